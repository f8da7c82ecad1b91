"""Options of the layers on the CPU engine: padding, packed sequences, clipping, PyTorch's errors, what layers say.
What every option computes with every other is in test_conformance.py."""

import numpy as np
import pytest

import numbarnn as nr
from cases import Case
from comparing import assert_same_bits
from numbarnn import reference
from numbarnn.cells import library
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
    y, _ = layer(nr.PackedSequence(x.data, x.batch_sizes))
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
    wide = nr.LSTM(4, 5, cell_clip=1e300, device="cpu", seed=1)
    without = nr.LSTM(4, 5, device="cpu", seed=1)
    np.testing.assert_array_equal(wide(x)[0], without(x)[0])


# ------------------------------------------------------------------------------------------------ what layers say of it
def test_attributes_and_parameters():
    lstm = nr.LSTM(4, 4, 2, bias="input", proj_size=3, input_mode="skip", cell_clip=1.5, bidirectional=True)
    assert (lstm.bias_mode, lstm.bias, lstm.proj_size, lstm.input_mode) == ("input", True, 3, "skip")
    assert (lstm.cell, lstm.cell_clip, lstm.clip_propagate_nan) == ("lstm", (-1.5, 1.5), True)
    assert nr.GRU(4, 4, bias=False).bias_mode == "none" and not nr.GRU(4, 4, bias="none").bias
    assert nr.GRU(4, 4).bias_mode == "double" and nr.GRU(4, 4, bias="recurrent").bias
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


# ------------------------------------------------------------------------------------------------- states of every step
STEPS, BATCH, INPUT, HIDDEN = 5, 3, 4, 6
LAYERS = {
    "lstm": lambda **options: nr.LSTM(INPUT, HIDDEN, 2, **options),
    "both_ways": lambda **options: nr.LSTM(INPUT, HIDDEN, 2, bidirectional=True, **options),
    "projection": lambda **options: nr.LSTM(INPUT, HIDDEN, proj_size=2, **options),
    "sizes": lambda **options: nr.LSTM(INPUT, [HIDDEN, 8], schedule="wavefront", **options),
    "slstm": lambda **options: nr.RNN(library.slstm, INPUT, HIDDEN, bidirectional=True, **options),
    "layer_norm": lambda **options: nr.RNN(library.layer_norm_lstm, INPUT, HIDDEN, **options),
}
ODD = {"plain": {}, "odd": {"lengths": [5, 0, 3], "resets": True}}
by_layer = pytest.mark.parametrize("name", LAYERS)


def make(name, **options):
    return LAYERS[name](device="cpu", dtype="float64", seed=1, **options)


def inputs(layer, odd):
    rng = np.random.default_rng(0)
    options = dict(ODD[odd])
    if "resets" in options:
        options["resets"] = rng.random((STEPS, BATCH)) < 0.3
    return rng.normal(size=(STEPS, BATCH, INPUT)), options


@pytest.mark.parametrize("name", sorted({*LAYERS} - {"both_ways", "slstm"}))
def test_they_are_the_states_of_calls_step_by_step(name):
    layer = make(name)
    x, _ = inputs(layer, "plain")
    y, _, states = layer(x, output_states=True)
    assert len(states) == layer.stack.cell.num_private
    last = None
    for t in range(STEPS):
        _, last = layer(x[t : t + 1], last)
        for every, one in zip(states, last[1:], strict=True):
            one = one[-1] if isinstance(one, list) else one
            np.testing.assert_allclose(every[t], one[-1], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(y, layer(x)[0], rtol=0, atol=0)


@by_layer
@pytest.mark.parametrize("odd", ODD)
def test_gradients_are_those_of_differences(name, odd):
    layer = make(name)
    x, options = inputs(layer, odd)
    y, _, states, tape = layer.forward(x, output_states=True, **options)
    np.testing.assert_array_equal(states, layer(x, output_states=True, **options)[2])
    rng = np.random.default_rng(1)
    dy, given = rng.normal(size=y.shape), [rng.normal(size=state.shape) for state in states]
    grads = layer.backward(tape, dy, dstates=given)

    def loss(x):
        y, _, states = layer(x, output_states=True, **options)
        inside = np.ones((STEPS, BATCH, 1))
        if "lengths" in options:
            inside = np.arange(STEPS)[:, None, None] < np.array(options["lengths"])[None, :, None]
        return (y * dy * inside).sum() + sum((s * d * inside).sum() for s, d in zip(states, given, strict=True))

    direction, step = rng.normal(size=x.shape), 1e-6
    slope = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    np.testing.assert_allclose((grads.x * direction).sum(), slope, rtol=2e-7)
    weights, along = layer.weights.copy(), rng.normal(size=layer.weights.shape)
    values = []
    for sign in (1, -1):
        layer.weights = weights + sign * step * along
        values.append(loss(x))
    np.testing.assert_allclose((grads.weights * along).sum(), (values[0] - values[1]) / (2 * step), rtol=2e-7)


def test_what_cannot_be_is_refused():
    x, _ = inputs(None, "plain")
    gru = nr.GRU(INPUT, HIDDEN, device="cpu", dtype="float64")
    with pytest.raises(ValueError, match="output_states must be False: a gru has no state besides h"):
        gru(x, output_states=True)
    lstm = make("lstm")
    with pytest.raises(TypeError, match="output_states must be True or False"):
        lstm(x, output_states=1)
    y, _, tape = lstm.forward(x)
    with pytest.raises(ValueError, match="dstates needs a forward with output_states=True"):
        lstm.backward(tape, y, dstates=(y,))
    y, _, (c,), tape = lstm.forward(x, output_states=True)
    with pytest.raises(TypeError, match=r"dstates must be a tuple of gradients \(c,\)"):
        lstm.backward(tape, y, dstates=c)
    with pytest.raises(ValueError, match=r"dstates\[0\] must have shape \(5, 3, 6\), but has \(4, 3, 6\)"):
        lstm.backward(tape, y, dstates=(c[1:],))
