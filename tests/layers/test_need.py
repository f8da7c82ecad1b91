"""What backward is asked for: mistakes, products that are left out, calls in turns. Results: test_every_engine.py."""

from contextlib import nullcontext

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.cells import library
from numbarnn.layers import planned
from numbarnn.programs.backward import ResultGrads
from running import not_prepared

STEPS, BATCH, INPUT, HIDDEN = 6, 4, 5, 8

LAYERS = {
    "gru": lambda: nr.GRU(INPUT, HIDDEN, batch_first=True, device="cpu", seed=1),
    "rnn": lambda: nr.RNN(INPUT, HIDDEN, schedule="wavefront", num_layers=2, device="cpu", seed=1),
    "heads": lambda: nr.RNN(nr.cell(library.slstm, heads=2), INPUT, HIDDEN, device="cpu", seed=1),
}
by_layer = pytest.mark.parametrize("name", LAYERS)


def inputs(layer, seed=0):
    """(x, dy) of a layer."""
    rng, outer = np.random.default_rng(seed), (BATCH, STEPS) if layer.batch_first else (STEPS, BATCH)
    width = layer.stack.directions * layer.stack.output_sizes[-1]
    return tuple(rng.normal(0, 1, (*outer, size)).astype(layer.dtype) for size in (layer.input_size, width))


def test_mistakes_leave_the_tape_good():
    layer = LAYERS["gru"]()
    x, dy = inputs(layer)
    tape = layer.forward(x)[2]
    with pytest.raises(ValueError, match="need must be a tuple of some of 'x', 'weights', 'states', but has 'w'"):
        layer.backward(tape, dy, need=("w",))
    with pytest.raises(TypeError, match="need must be a tuple"):
        layer.backward(tape, dy, need="x")
    with pytest.raises(TypeError, match="retain must be True or False"):
        layer.backward(tape, dy, retain=1)
    with pytest.raises(ValueError, match="dw must be None"):
        layer.backward(tape, dy, need=("x",), dw=np.zeros_like(layer.weights))
    grads = layer.backward(tape, dy, need=("x",))
    with pytest.raises(ValueError, match="there are no gradients of parameters"):
        grads.params  # noqa: B018


@by_layer
@pytest.mark.parametrize("binds", [nullcontext, not_prepared], ids=["prepared", "not_prepared"])
def test_a_reserve_tells_calls_with_a_state_from_those_without(name, binds):
    """In turns, as bound calls are kept: each sums the gradient of R over the rows that its ordinary call does."""
    with binds():
        layer = LAYERS[name]()
    stack, (x, dy) = layer.stack, inputs(layer)
    last = layer.forward(x)[1]
    h, c = (last[0], last[1]) if isinstance(last, tuple) else (last, None)
    if c is not None and stack.cell.num_private > 1:
        c = np.concatenate(last[1:], axis=2)
    for _ in range(2):
        for given, state in ((None, (None, None)), (last, (h, c))):
            layer.training_calls = 0
            tape = layer.forward(x, given)[2]
            grads = layer.backward(tape, dy)
            calls = planned.PlannedCalls(
                stack, planned.Shape(STEPS, BATCH, batch_major=layer.batch_first, from_zero=given is None)
            )
            _, reserve = calls.forward(layer.weights, x, state)
            *_, dw = calls.backward(layer.weights, x, reserve, ResultGrads(dy))
            np.testing.assert_array_equal(dw, grads.weights)
