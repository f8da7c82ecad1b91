"""Calls without an initial state, whose first step has no product with R: they equal those that start at zeros."""

import numpy as np
import pytest

import numbarnn as nr
from comparing import all_arrays
from numbarnn.cells import library

INPUT, HIDDEN = 5, 24

LAYERS = {
    "lstm": lambda **given: nr.LSTM(INPUT, HIDDEN, 2, bidirectional=True, **given),
    "projection": lambda **given: nr.LSTM(INPUT, HIDDEN, proj_size=7, **given),
    "reset_before": lambda **given: nr.GRU(INPUT, HIDDEN, reset_after=False, **given),
    "wavefront": lambda **given: nr.LSTM(INPUT, HIDDEN, 3, schedule="wavefront", **given),
    "sums_and_dropped_R": lambda **given: nr.RNN(nr.cell(library.layer_norm_gru, drop_R=0.3), INPUT, HIDDEN, **given),
}
by_layer = pytest.mark.parametrize("name", LAYERS)
by_steps = pytest.mark.parametrize("steps", [1, 5])
by_batch = pytest.mark.parametrize("batch", [1, 12], ids="B{}".format)  # R as it lies, and in panels


def zeros_like(state):
    if isinstance(state, np.ndarray):
        return np.zeros_like(state)
    return type(state)(zeros_like(part) for part in state)


def trained(layer, x, dy, state, **options):
    """All numbers of a training call by name; gradients are added to ones."""
    layer.training_calls = 0  # the same numbers at random
    y, last, tape = layer.forward(x, state, **options)
    dw = np.ones_like(layer.weights)
    gradients = layer.backward(tape, dy, dw=dw)
    written = layer.backward(layer.forward(x, state, **options)[2], dy).weights
    found = {"y": y, "dx": gradients.x, "dw": dw, "written": written}
    for name, state in {"hy": last, "dhx": gradients.state}.items():
        found |= {f"{name}{number}": part for number, part in enumerate(all_arrays(state))}
    return found


@by_layer
@by_steps
@by_batch
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_an_absent_state_is_one_of_zeros(name, steps, batch, masked):
    layer = LAYERS[name](device="cpu", dtype="float64", seed=3)
    rng, width = np.random.default_rng(0), layer.stack.directions * layer.stack.output_sizes[-1]
    x, dy = (rng.standard_normal((steps, batch, size)) for size in (INPUT, width))
    options = {}
    if masked:
        options = {"lengths": rng.integers(0, steps + 1, batch), "resets": rng.random((steps, batch)) < 0.3}
    zeros = zeros_like(layer.forward(x, **options)[1])
    absent, given = trained(layer, x, dy, None, **options), trained(layer, x, dy, zeros, **options)
    for what in absent:  # the gradient of R is a sum of other terms
        compare = np.testing.assert_allclose if what in ("dw", "written") else np.testing.assert_array_equal
        tolerance = {"rtol": 1e-10, "atol": 1e-13} if what in ("dw", "written") else {}
        compare(absent[what], given[what], err_msg=what, **tolerance)
    for _ in range(3):  # the later calls are bound
        np.testing.assert_array_equal(layer(x, **options)[0], layer(x, zeros, **options)[0])


def test_the_first_step_does_not_read_R():
    """What the product is left out for; with a state, and from the second step on, R's NaN reach y."""
    layer = nr.LSTM(INPUT, HIDDEN, device="cpu", seed=3)
    layer.parameters["weight_hh_l0"][...] = np.nan
    x = np.ones((2, 12, INPUT), np.float32)
    y, state, _ = layer.forward(x)
    assert np.isfinite(y[0]).all() and np.isnan(y[1]).all()
    assert np.isfinite(layer(x[:1])[0]).all()
    assert np.isnan(layer(x[:1], zeros_like(state))[0]).all()
