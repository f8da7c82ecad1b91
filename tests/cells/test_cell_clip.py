"""The LSTM with cell clip (cells/lstm.py): gradients at and beyond the bounds. What it computes is in
test_conformance.py, NaN in layers/test_options.py, cuDNN's own results in tests/data/cudnn-lstm-clip*.npz."""

import numpy as np
import pytest

from numbarnn.cells import lstm

LOW, HIGH = -0.3, 0.4  # bounds of c
BOUNDS = LOW, HIGH
CLIPPED = {"clipped": lstm.clipped(*BOUNDS), "clipped_nan_too": lstm.clipped(*BOUNDS, False)}
by_clipped = pytest.mark.parametrize("cell", CLIPPED.values(), ids=CLIPPED)


def lstm_points(count, seed=0):
    """(ax, ah, (h, c)) of `count` units, some of whose c leave the bounds on either side and some on none."""
    rng = np.random.default_rng(seed)
    point = rng.normal(size=(10, count))
    return tuple(point[:4]), tuple(point[4:8]), tuple(point[8:])


@by_clipped
def test_no_gradient_passes_a_bound(cell):
    """Beyond the bounds all of dc reaches c, but nothing of dh. Nothing reaches the c before where that is.
    At a bound all passes. o gets what it gets without."""
    ax, ah, state = lstm_points(200)
    state[1][:2] = LOW, HIGH
    new_state, saved = cell.forward(ax, ah, state)
    new_state[1][:2] = LOW, HIGH
    dh, dc = d_state = (np.linspace(-1, 1, 200), np.linspace(0.5, 1.5, 200))
    d_ax, d_ah, (d_h, d_c) = cell.backward(saved, state, new_state, d_state)
    (before, beyond_before), (c, beyond) = (
        (np.clip(one, LOW, HIGH), (one < LOW) | (one > HIGH)) for one in (state[1], new_state[1])
    )
    assert 50 < beyond.sum() < 180 and 50 < beyond_before.sum() < 180 and not beyond[:2].any()
    free_ax, _, (_, free_c) = lstm.LSTM.backward(saved, (0, before), (0, c), (np.where(beyond, 0, dh), dc))
    for gate in range(3):
        np.testing.assert_array_equal(d_ax[gate], free_ax[gate])
    np.testing.assert_allclose(d_ax[3], dh * np.tanh(c) * saved[3] * (1 - saved[3]), rtol=1e-13)
    np.testing.assert_array_equal(d_c, np.where(beyond_before, 0, free_c))
    assert d_ah is d_ax and d_h == 0 and (free_c[beyond_before] != 0).all()


def test_one_cell_for_equal_bounds():
    assert lstm.clipped(-1, 2.0) is lstm.clipped(-1.0, 2) is not lstm.clipped(-1.0, 2.0, False)
    assert len({cell.name for cell in (lstm.LSTM, *CLIPPED.values())}) == 3
    for bounds in ((-1.0, 2.0), (-1.0, 2.5), (-2.0, 2.0)):
        (_, c), _ = lstm.clipped(*bounds).forward((-100.0, 100.0, 0, 0), (0,) * 4, (0.0, np.array([-1e3, 1e3])))
        np.testing.assert_allclose(c, bounds, rtol=1e-15)
