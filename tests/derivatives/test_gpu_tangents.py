"""Tangents and Hessian-vector products on a GPU equal those of the CPU."""

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.cells import library

pytestmark = pytest.mark.gpu
MAKE = {
    "LSTM": lambda device: nr.LSTM(5, 8, 2, bidirectional=True, device=device, dtype="float64", seed=0),
    "GRU": lambda device: nr.GRU(5, [8, 6], dropout=0.3, device=device, dtype="float64", seed=0),
    "projection": lambda device: nr.LSTM(5, 8, proj_size=4, device=device, dtype="float64", seed=0),
    "peephole_lstm": lambda device: nr.RNN(library.peephole_lstm, 5, 8, device=device, dtype="float64", seed=0),
}


@pytest.mark.parametrize("name", MAKE)
def test_the_same_numbers_as_on_the_cpu(name):
    import cupy

    found = []
    for device, xp in (("cpu", np), ("cuda", cupy)):
        layer, rng = MAKE[name](device), np.random.default_rng(0)
        sizes = 5, 5, layer(xp.zeros((4, 3, 5)))[0].shape[2]
        x, dx, dy = (xp.asarray(rng.standard_normal((4, 3, size))) for size in sizes)
        weights = xp.asarray(rng.standard_normal(layer.weights.shape))
        y, y_tangent, _, _, tape = layer.jvp(x, dx, weights=weights, lengths=[4, 2, 3], training=True, tape=True)
        grads, hvp = layer.hvp(tape, dy)
        _, _, tape = layer.forward(x)
        each = layer.backward(tape, dy, per_sequence=True)
        results = y, y_tangent, grads.weights, hvp.weights, hvp.x, each.weights
        found.append([layer.engine.to_host(one) for one in results])
    for ours, expected in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9)
