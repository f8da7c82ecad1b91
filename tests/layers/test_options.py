"""Options of the layers on the CPU engine: padding, packed sequences, clipping, PyTorch's errors, what layers say.
What every option computes with every other is in test_conformance.py."""

import numpy as np
import pytest

import numbarnn
from cases import Case
from comparing import assert_same_bits
from numbarnn import reference
from problems import Problem, make_problem, pack
from running import train

RAGGED = (3, 0, 6, 7)  # of B = 4 sequences with T = 7 steps


# ------------------------------------------------------------------------------------------------------ lengths, resets
def ragged_case(cell="lstm", **options):
    return Case(cell, **(dict(B=4, hidden=(5, 3), directions=2, lengths=RAGGED) | options))


@pytest.mark.parametrize("batch_first", (False, True))
def test_padding(batch_first):
    """What is there in x and dy changes no bit; y is `padding_value` there, dx is 0."""
    case = ragged_case(batch_first=batch_first, padding_value=7.5)
    problem = make_problem(case)
    layer = problem.layer()
    with_nan, _ = train(layer, problem)
    x, dy = (np.nan_to_num(problem.sequences(array), nan=3.0) for array in (problem.x, problem.dy))
    state, dstate = problem.state, problem.dstate
    y, final, tape = layer.forward(x, state, **problem.options())
    gradients = layer.backward(tape, dy, dstate)
    padding = problem.padding.T if batch_first else problem.padding
    for found, name in ((y, "y"), (final[0], "hy"), (final[1], "cy"), (gradients.x, "dx")):
        for part, expected in zip(np.atleast_1d(found) if name in ("y", "dx") else found, with_nan[name], strict=True):
            np.testing.assert_array_equal(part, expected, strict=True)
    assert (y[padding] == 7.5).all() and (gradients.x[padding] == 0).all()
    assert np.isfinite(y).all() and np.isfinite(gradients.weights).all()


def test_a_padding_value_that_is_no_number():
    problem = make_problem(ragged_case())
    layer = problem.layer()
    y, _ = layer(problem.x, problem.state, lengths=RAGGED, padding_value=float("nan"))
    np.testing.assert_array_equal(np.isnan(y).all(axis=2), problem.padding)
    np.testing.assert_array_equal(np.isnan(y).any(axis=2), problem.padding)


def test_a_packed_sequence_without_indices_is_sorted():
    lengths = (7, 5, 5, 1)
    problem = make_problem(ragged_case(lengths=lengths))
    x, layer = pack(problem.x, lengths), problem.layer()
    expected, _ = layer(x)
    y, _ = layer(numbarnn.PackedSequence(x.data, x.batch_sizes))
    np.testing.assert_array_equal(y.data, expected.data, strict=True)


def test_pytorchs_packed_sequence_as_it_is():
    torch = pytest.importorskip("torch")
    lengths = (5, 7, 5, 7)
    problem = make_problem(ragged_case(lengths=lengths))
    x = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(problem.x), torch.tensor(lengths), enforce_sorted=False)
    layer = problem.layer()
    np.testing.assert_array_equal(layer(x)[0].data, layer(pack(problem.x, lengths))[0].data, strict=True)


def test_lengths_of_every_integer_type():
    problem = make_problem(ragged_case())
    layer, state = problem.layer(), problem.state
    expected, _ = layer(problem.x, state, lengths=list(RAGGED))
    for dtype in (np.int8, np.uint16, np.int32, np.int64, np.uint64):
        y, _ = layer(problem.x, state, lengths=np.array(RAGGED, dtype))
        np.testing.assert_array_equal(y, expected, strict=True)


# ------------------------------------------------------------------------------------------------------------- clipping
@pytest.mark.parametrize("propagate", (True, False))
def test_a_cell_state_that_is_no_number(propagate):
    case = Case("lstm", T=2, hidden=(5,), cell_clip=(-0.1, 0.2), clip_propagate_nan=propagate)
    problem = make_problem(case)
    layer = problem.layer()
    c = problem.c.copy()
    c[0, 1, 2] = np.nan
    y, (_, cy) = layer(problem.x[:1], (problem.h, c))
    if propagate:
        assert np.isnan(cy[0, 1, 2]) and np.isnan(y[0, 1, 2]) and np.isnan(y).sum() == 1
    else:
        assert np.isfinite(cy).all() and np.isfinite(y).all()


def test_no_number_in_a_cell_state_reaches_the_gradients():
    """A NaN is not held at a bound: it goes on in backward, too."""
    case = Case("lstm", T=3, B=1, hidden=(3,), cell_clip=(-0.3, 0.4))
    problem = Problem(case)
    problem.states[1][0][0, 0, 1] = np.nan
    expected = reference.backward(problem.reference(), problem.dy, *problem.d_states)
    found, _ = train(problem.layer(), problem)
    for name, gradient in expected.params.items():
        np.testing.assert_array_equal(np.isnan(found[f"d{name}"]), np.isnan(gradient), err_msg=name)
    np.testing.assert_array_equal(np.isnan(found["dcx"]), np.isnan(expected.dcx[0]))


@pytest.mark.filterwarnings("error")
def test_a_clip_beyond_the_dtypes_range_clips_nothing():
    x = np.ones((3, 2, 4), np.float32)
    wide = numbarnn.LSTM(4, 5, cell_clip=1e300, device="cpu", seed=1)
    without = numbarnn.LSTM(4, 5, device="cpu", seed=1)
    np.testing.assert_array_equal(wide(x)[0], without(x)[0])


# ------------------------------------------------------------------------------------------------ what layers say of it
def test_attributes_and_parameters():
    lstm = numbarnn.LSTM(4, 4, 2, bias="input", proj_size=3, input_mode="skip", cell_clip=1.5, bidirectional=True)
    assert (lstm.bias_mode, lstm.bias, lstm.proj_size, lstm.input_mode) == ("input", True, 3, "skip")
    assert (lstm.cell, lstm.cell_clip, lstm.clip_propagate_nan) == ("lstm", (-1.5, 1.5), True)
    assert numbarnn.GRU(4, 4, bias=False).bias_mode == "none" and not numbarnn.GRU(4, 4, bias="none").bias
    assert numbarnn.GRU(4, 4).bias_mode == "double" and numbarnn.GRU(4, 4, bias="recurrent").bias
    shapes = {name: array.shape for name, array in lstm.state_dict().items()}
    expected = {}
    for suffix in ("", "_reverse"):
        expected |= {f"weight_hh_l0{suffix}": (16, 3), f"weight_hr_l0{suffix}": (3, 4), f"bias_ih_l0{suffix}": (16,)}
        expected |= {f"weight_ih_l1{suffix}": (16, 6), f"weight_hh_l1{suffix}": (16, 3)}
        expected |= {f"weight_hr_l1{suffix}": (3, 4), f"bias_ih_l1{suffix}": (16,)}
    assert shapes == expected
    assert all(word in repr(lstm) for word in ("bias='input'", "proj_size=3", "input_mode='skip'", "cell_clip="))
    y, (hy, cy) = lstm(np.zeros((2, 1, 4), np.float32))
    assert (y.shape, hy.shape, cy.shape) == ((2, 1, 6), (4, 1, 3), (4, 1, 4))


@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_tf32_changes_nothing_on_the_cpu(dtype):
    """What asks for three products does not let cuBLAS compute one."""
    case, found = Case("lstm", T=3, B=2, hidden=(5, 4), dtype=dtype), {}
    problem = make_problem(case)
    for allowed in (False, True, "3x"):
        layer = problem.layer("cpu", allow_tf32=allowed)
        assert layer.stack.allow_tf32 == allowed
        asked = layer.stack.problem(case.T, case.B, True)
        assert (asked.allow_tf32, asked.splits_tf32) == (allowed is True, allowed == "3x")
        found[allowed] = train(layer, problem)[0]
    assert_same_bits(found[True], found[False])
    assert_same_bits(found["3x"], found[False])
