"""`numbarnn.optim`: the updates of the papers, in place, with clipping."""

import copy

import numpy as np
import pytest

import numbarnn as nr

rng = np.random.default_rng(1)
W, GRADIENTS = rng.standard_normal(10), rng.standard_normal((6, 10)) * np.geomspace(0.1, 10, 6)[:, None]


def in_steps(optimizer, **options):
    """The weights after updates of two arrays, which are one here; and the optimizer."""
    parts = [W[:4].copy(), W[4:].reshape(2, 3).copy()]
    made = optimizer(parts, lr=0.05, clip=2.0, **options)
    for g in GRADIENTS:
        made.step([g[:4], g[4:].reshape(2, 3)])
    return np.concatenate([one.ravel() for one in parts]), made


def clipped(g):
    return g * min(1, 2.0 / np.linalg.norm(g))


def test_adam_is_algorithm_1_of_its_paper():
    m, v, w = np.zeros_like(W), np.zeros_like(W), W
    for t, g in enumerate(map(clipped, GRADIENTS), 1):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        w = w - 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    found, optimizer = in_steps(nr.optim.Adam)
    np.testing.assert_allclose(found, w, rtol=1e-6)  # the clipping divides by norm + 1e-6
    assert optimizer.steps == 6 and optimizer.second[1].shape == (2, 3)


def test_sgd_with_momentum():
    v, w = 0, W
    for g in map(clipped, GRADIENTS):
        v = 0.9 * v + g
        w = w - 0.05 * v
    np.testing.assert_allclose(in_steps(nr.optim.SGD, momentum=0.9)[0], w, rtol=1e-6)


def test_gradients_stay_and_wrong_ones_change_nothing():
    w, g = np.ones(3, np.float32), np.full(3, 10, np.float32)
    optimizer = nr.optim.SGD([w], lr=1.0, clip=1.0)
    optimizer.step([g])
    assert (g == 10).all() and w.dtype == np.float32 and not (w == 1).any()
    before = w.copy()
    for wrong in ([g, g], [g[:2]]):
        with pytest.raises(ValueError, match=r"the shapes of the weights, \[\(3,\)\], got"):
            optimizer.step(wrong)
    assert np.array_equal(w, before) and optimizer.steps == 1
    with pytest.raises(TypeError, match="a list of arrays"):
        nr.optim.Adam(w)
    twin = copy.deepcopy(optimizer)
    twin.step([g])
    assert twin.steps == 2 and np.array_equal(w, before)
    for weights in ([], [w.astype("float16")], [[1.0, 2.0]]):
        with pytest.raises(TypeError, match="arrays of float32 or float64"):
            nr.optim.Adam(weights)
    with pytest.raises(ValueError, match="clip must be a positive number"):
        nr.optim.SGD([w], clip=-1.0)
    with pytest.raises(ValueError, match="lr must be a number of at least 0"):
        nr.optim.SGD([w], lr=-1.0)
    with pytest.raises(ValueError, match="betas must be two numbers from 0 to below 1"):
        nr.optim.Adam([w], betas=(0.9, 1.0))
