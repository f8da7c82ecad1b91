"""float16 and bfloat16 in the simulator: conversions, each kernel, and what layers made of them keep. Their results are
in test_conformance.py, but for PyTorch's errors."""

from importlib.util import find_spec

import numpy as np
import pytest

import numbarnn as nr
import torch_peer
from cases import Case
from comparing import assert_same_bits
from numbarnn import functional
from numbarnn.common.precision import HALVES, numpy_dtype
from numbarnn.compile import storage
from numbarnn.kernels.arrays import column_sums, copies, dropout
from numbarnn.reference.philox import dropout_mask
from problems import make_problem
from running import train
from step_buffers import mask_words

by_dtype = pytest.mark.parametrize("dtype", HALVES)
EVERY = np.arange(1 << 16).astype(np.uint16)  # all numbers of 16 bits


def normal(dtype, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(numpy_dtype(dtype))


# ------------------------------------------------------------------------------------------------------- conversions
@by_dtype
def test_widen_is_exact_for_every_number(dtype):
    widen, expected = storage.widen(dtype), EVERY.view(numpy_dtype(dtype)).astype(np.float32)
    found = np.array([widen(bits) for bits in EVERY])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)  # NaN equals NaN here


@by_dtype
def test_narrow_rounds_to_nearest_even(dtype):
    """Every number of the dtype, every midpoint between two of them, what is next to a midpoint; anything at random."""
    narrow, exact = storage.narrow(dtype), np.sort(EVERY.view(numpy_dtype(dtype)).astype(np.float32))
    exact = exact[np.isfinite(exact)]
    middle = ((exact[1:].astype(np.float64) + exact[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(middle, np.float32(direction)) for direction in (-np.inf, np.inf)]
    words = np.random.default_rng(0).integers(0, 1 << 32, 20000, np.uint32).view(np.float32)
    values = np.concatenate([part[:: 1 + part.size // 20000] for part in (exact, middle, *beside)])
    values = np.concatenate([values, words, np.float32([0.0, -0.0, np.inf, -np.inf, np.nan])])
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.array([narrow(value) for value in values])
        expected = values.astype(numpy_dtype(dtype))
    number = ~np.isnan(values)
    np.testing.assert_array_equal(found[number], expected.view(np.uint16)[number])
    assert found.dtype == np.uint16 and np.isnan(found[~number].view(numpy_dtype(dtype)).astype(np.float32)).all()


# ----------------------------------------------------------------------------------------------------------- kernels
@by_dtype
def test_copy_converts_both_ways(dtype):
    wide = normal("float32", 3, 5, 9)
    out = np.full((3, 5, 18), np.nan, numpy_dtype(dtype))
    copies.copy(out[:, :, ::2], wide)
    np.testing.assert_array_equal(out[:, :, ::2], wide.astype(numpy_dtype(dtype)))
    assert np.isnan(out[:, :, 1::2].astype(np.float32)).all()
    back = np.empty_like(wide)
    copies.copy(back, out[:, :, ::2])
    np.testing.assert_array_equal(back, out[:, :, ::2].astype(np.float32))
    transposed = np.empty((5, 3, 18), out.dtype)
    copies.copy(transposed, out.transpose(1, 0, 2))
    np.testing.assert_array_equal(transposed.view(np.uint16), out.transpose(1, 0, 2).view(np.uint16))


@by_dtype
def test_column_sums_are_rounded_once(dtype):
    """300 numbers near 1: a sum of halves would be stuck at 256 in bfloat16."""
    x, out = 1 + normal(dtype, 300, 6) / 8, normal(dtype, 6, seed=1)
    x, exact = x.astype(numpy_dtype(dtype)), out.astype(np.float64)
    exact = exact + x.sum(axis=0, dtype=np.float64)
    column_sums.add_column_sums(out, x)
    np.testing.assert_array_equal(out, exact.astype(numpy_dtype(dtype)))


@by_dtype
def test_dropout_is_the_mask_of_numpys_philox(dtype):
    x = normal(dtype, 35)
    out = np.full_like(x, np.nan)
    dropout.dropout(out, x, *mask_words(0.3, 7, 2, 9))
    mask = dropout_mask((35,), 0.3, 7, 2, 9, "float32")
    np.testing.assert_array_equal(out, (x.astype(np.float32) * mask).astype(numpy_dtype(dtype)), strict=True)


# ------------------------------------------------------------------------------------------------------------ layers
if find_spec("torch"):  # no skips here: test_simulator.py takes them for tests that do not run

    @by_dtype
    @pytest.mark.parametrize("cell, sizes", (("lstm", dict(hidden=(33,))), ("gru", dict(hidden=(9, 9), directions=2))))
    def test_error_is_at_most_twice_torchs(cell, sizes, dtype):
        import torch

        problem = make_problem(Case(cell, **sizes, dtype=dtype))
        values, _ = train(problem.layer("sim"), problem)
        theirs = torch_peer.values(torch, problem)
        torch_peer.assert_at_most_twice_torchs_error(problem.case, values, theirs, problem.expected())


@by_dtype
def test_c_is_not_rounded_from_step_to_step(dtype):
    """With f and i all open and g tiny, c grows by less than half its last bit: in 16 bits it would not grow at all."""
    layer = nr.LSTM(1, 1, dtype=dtype, device="sim", seed=0)
    layer.weights[...] = 0
    layer.parameters["bias_ih_l0"][...] = [20, 20, 2.0**-13, 20]  # i = f = o = 1, g = 2^-13 to rounding
    c = np.ones((1, 1, 1), numpy_dtype(dtype))
    _, (_, cy) = layer(np.zeros((256, 1, 1), numpy_dtype(dtype)), (np.zeros_like(c), c))
    assert cy.dtype == c.dtype and cy[0, 0, 0] == 1 + 256 * 2.0**-13  # 1 + 2^-5, a number of both dtypes


@by_dtype
def test_functional_is_the_layer_bit_for_bit(dtype):
    problem = make_problem(Case("lstm", T=3, hidden=(5, 5), dtype=dtype))
    layer = problem.layer("sim")
    expected, _ = train(layer, problem)
    rnn = functional.Descriptor("lstm", 4, 5, 2, dtype=dtype, device="sim")
    places = {name: np.full_like(expected[name], np.nan) for name in ("hy", "cy", "dhx", "dcx")}
    outputs = {name: places[name] for name in ("hy", "cy")}
    y, *_, reserve = functional.forward_training(rnn, problem.x, problem.h, problem.c, layer.weights, **outputs)
    inputs = {name: places[name] for name in ("dhx", "dcx")}
    gradients = (problem.dy, problem.dhy, problem.dcy)
    dx, *_ = functional.backward_data(rnn, reserve, *gradients, layer.weights, **inputs)
    dw = functional.backward_weights(rnn, reserve, rnn.zeros_weights())
    params = {f"d{name}": view for name, view in rnn.weight_params(dw).items()}
    assert_same_bits({"y": y, **outputs, "dx": dx, **inputs, **params}, expected)


@by_dtype
def test_parameters_round_trip(dtype):
    layer = nr.GRU(3, 4, dtype=dtype, device="sim", seed=0)
    state = layer.state_dict()
    assert {value.dtype.name for value in state.values()} == {dtype}
    other = nr.GRU(3, 4, dtype=dtype, device="sim", seed=1)
    other.load_state_dict(state)
    np.testing.assert_array_equal(other.weights, layer.weights)
    other.load_state_dict({name: value.astype(np.float64) for name, value in state.items()})
    np.testing.assert_array_equal(other.weights, layer.weights)


@pytest.mark.parametrize("dtype, other", [("float16", "bfloat16"), ("bfloat16", "float16"), ("bfloat16", "float32")])
def test_another_dtype_is_named(dtype, other):
    layer = nr.GRU(3, 4, dtype=dtype, device="sim", seed=0)
    with pytest.raises(TypeError, match=f"x has dtype {other}, but this layer computes in {dtype}"):
        layer(np.zeros((2, 1, 3), numpy_dtype(other)))
