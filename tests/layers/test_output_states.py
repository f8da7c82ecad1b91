"""The private states of every step: what they are, and their gradients."""

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.cells import library

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
    with pytest.raises(ValueError, match="dstates must be None: forward was not asked"):
        lstm.backward(tape, y, dstates=(y,))
    y, _, (c,), tape = lstm.forward(x, output_states=True)
    with pytest.raises(TypeError, match=r"dstates must be a tuple \(c,\)"):
        lstm.backward(tape, y, dstates=c)
    with pytest.raises(ValueError, match=r"dstates\[0\] must have shape \(5, 3, 6\), but has \(4, 3, 6\)"):
        lstm.backward(tape, y, dstates=(c[1:],))
