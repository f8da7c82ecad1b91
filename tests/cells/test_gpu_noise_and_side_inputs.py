"""Noise and side inputs on a GPU equal those of the CPU."""

import numpy as np
import pytest

import numbarnn as nr

pytestmark = pytest.mark.gpu


@nr.cell
def noisy(x, h, p, gap=nr.side(1)):
    kept = h / (1 + abs(p.decay) * gap)
    return nr.tanh(p.W @ x + p.R @ kept + p.b + 0.3 * (nr.uniform() - 0.5))


@nr.cell
def normal(x, h, p):
    return nr.tanh(p.W @ x + p.R @ h + 0.1 * nr.normal())


@pytest.mark.parametrize("schedule", ["stepwise", "persistent"])
@pytest.mark.parametrize("cell", [noisy, normal], ids=lambda cell: cell.name)
def test_the_same_numbers_as_on_the_cpu(cell, schedule):
    import cupy

    found = []
    for device, xp in (("cpu", np), ("cuda", cupy)):
        options = {"schedule": schedule} if device == "cuda" else {}
        layer, rng = nr.RNN(cell, 6, 8, device=device, seed=0, **options), np.random.default_rng(0)
        x, dy = (xp.asarray(rng.standard_normal((4, 3, size)).astype("f4")) for size in (6, 8))
        y, h, tape = layer.forward(x)
        grads = layer.backward(tape, dy)
        found.append([layer.engine.to_host(one) for one in (y, h, grads.x, grads.weights)])
    for ours, expected in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
