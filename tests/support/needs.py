"""Retained tapes, needs and reserves on any engine: the same bits as one ordinary backward pass."""

import numpy as np
import pytest

import numbarnn as nr
from comparing import all_arrays
from numbarnn.cells import library
from numbarnn.layers import planned
from numbarnn.programs.backward import Need, ResultGrads

STEPS, BATCH = 3, 2
LAYERS = {
    "lstm": lambda **options: nr.LSTM(4, 6, 2, **options),
    "given": lambda **options: nr.GRU(2 * 18, 6, bidirectional=True, input_mode="given", **options),
    "projection": lambda **options: nr.LSTM(4, [6, 5], proj_size=3, **options),
    "dropped": lambda **options: nr.RNN(RANDOM, 4, 6, 2, dropout=0.5, **options),
}
RANDOM = nr.cell(library.lstm, drop_R=0.4, zoneout_c=0.2)


def check_needs(name, device, schedule, calls=1, **options):
    """Assert it for a layer; of several calls the later ones may be replays."""
    layer = LAYERS[name](device=device, schedule=schedule, seed=1, **options)
    engine, stack = layer.engine, layer.stack
    rng = np.random.default_rng(0)
    x = engine.from_host(rng.normal(size=(STEPS, BATCH, layer.input_size)).astype("float32"))
    for call in range(calls):
        layer.training_calls = call
        y, _, tape = layer.forward(x)
        dy = engine.from_host(rng.normal(size=y.shape).astype("float32"))
        several = [
            layer.backward(tape, dy, need=need, retain=True) for need in (("x", "weights"), ("x",), ("weights",))
        ]
        last, host = layer.backward(tape, dy), engine.to_host
        assert several[1].weights is None and several[2].x is None
        with pytest.raises(ValueError, match=r"already used.*pass retain=True"):
            layer.backward(tape, dy)
        for grads in several:
            for found, expected in ((grads.x, last.x), (grads.weights, last.weights)):
                assert found is None or np.array_equal(host(found), host(expected))
            for found, expected in zip(all_arrays(grads.state), all_arrays(last.state), strict=True):
                assert np.array_equal(host(found), host(expected))
        if call:
            continue
        calls = planned.PlannedCalls(stack, planned.Shape(STEPS, BATCH, from_zero=True))
        key = stack.seed, 0
        (again, _, _), reserve = calls.forward(layer.weights, x, (None, None), key=key)
        assert np.array_equal(host(again), host(y))
        copy = engine.from_host(host(reserve))
        reserve[...] = 0xFF
        for _ in range(2):
            dx, *_, dw = calls.backward(layer.weights, x, copy, ResultGrads(dy), Need(again=True), key)
            assert np.array_equal(host(dx), host(last.x)) and np.array_equal(host(dw), host(last.weights))
