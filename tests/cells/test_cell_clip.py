"""The LSTM with cell clip (cells/lstm.py): c is limited where it is read, no gradient passes the bounds, NaN is kept or
not. cuDNN's own results are in tests/data/cudnn-lstm-clip*.npz."""

import math

import numpy as np
import pytest

from cell_steps import callable_from_python
from numbarnn.cells import lstm
from numbarnn.compile.specialise import specialise

LOW, HIGH = -0.3, 0.4  # bounds of c
BOUNDS = LOW, HIGH
CLIPPED = {"clipped": lstm.clipped(*BOUNDS), "clipped_nan_too": lstm.clipped(*BOUNDS, False)}
by_clipped = pytest.mark.parametrize("cell", CLIPPED.values(), ids=CLIPPED)
by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))


def clip_by_hand(x, propagate_nan):
    """One number limited to [LOW, HIGH], in words of its own."""
    if math.isnan(x):
        return x if propagate_nan else LOW
    return sorted((LOW, x, HIGH))[1]


def lstm_points(count, seed=0):
    """(ax, ah, (h, c)) of `count` units, some of whose c leave the bounds on either side and some on none."""
    rng = np.random.default_rng(seed)
    point = rng.normal(size=(10, count))
    return tuple(point[:4]), tuple(point[4:8]), tuple(point[8:])


@by_clipped
def test_c_is_limited_where_it_is_read(cell):
    """On arrays and on numbers: before the LSTM's equations, and again for h. c itself is not."""
    ax, ah, (h, c) = lstm_points(200)
    limited = np.array([clip_by_hand(one, True) for one in c])
    (_, free), saved = lstm.LSTM.forward(ax, ah, (h, limited))
    (new_h, new_c), kept = cell.forward(ax, ah, (h, c))
    for one in (c, free):
        assert (one < LOW).sum() > 20 and (one > HIGH).sum() > 20 and ((LOW < one) & (one < HIGH)).sum() > 20
    np.testing.assert_array_equal(new_c, free)
    np.testing.assert_array_equal(new_h, saved[3] * np.tanh([clip_by_hand(one, True) for one in free]))
    np.testing.assert_array_equal(kept, saved)
    for k in range(20):
        one = cell.forward(*(tuple(values[k] for values in part) for part in (ax, ah, (h, c))))
        np.testing.assert_allclose(one[0], (new_h[k], new_c[k]), rtol=1e-15)


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


@pytest.mark.parametrize("propagate_nan", (True, False))
def test_nan_in_c(propagate_nan):
    """It stays, or is read as the lower bound: on numbers, on arrays, compiled in both dtypes."""
    cell = lstm.clipped(*BOUNDS, propagate_nan)
    gates, numbers = (0.5,) * 4, (math.nan, -math.inf, math.inf, 3.0, -3.0, 0.1)
    (h, c), _ = cell.forward(gates, gates, (0.0, np.array(numbers)))
    limited = np.array([clip_by_hand(one, propagate_nan) for one in numbers])
    assert math.isnan(limited[0]) == propagate_nan and list(limited[1:5]) == [LOW, HIGH, HIGH, LOW]
    expected = lstm.LSTM.forward(gates, gates, (0.0, limited))[0][1]
    np.testing.assert_array_equal(c, expected)
    assert np.isnan(h[0]) == propagate_nan and np.isfinite(h[1:]).all()
    for number, one in zip(numbers, expected, strict=True):
        np.testing.assert_array_equal(cell.forward(gates, gates, (0.0, number))[0][1], one)
    for dtype in ("float32", "float64"):
        of_dtype, forward = np.dtype(dtype).type, callable_from_python(specialise(cell.forward, dtype, "cpu"))
        for number, one in zip(numbers, expected, strict=True):
            four = (of_dtype(0.5),) * 4
            (_, found), _ = forward(four, four, (of_dtype(0), of_dtype(number)))
            np.testing.assert_allclose(found, one, rtol=4 * np.finfo(dtype).eps)


def test_one_cell_for_equal_bounds():
    assert lstm.clipped(-1, 2.0) is lstm.clipped(-1.0, 2) is not lstm.clipped(-1.0, 2.0, False)
    assert len({cell.name for cell in (lstm.LSTM, *CLIPPED.values())}) == 3
    for bounds in ((-1.0, 2.0), (-1.0, 2.5), (-2.0, 2.0)):
        (_, c), _ = lstm.clipped(*bounds).forward((-100.0, 100.0, 0, 0), (0,) * 4, (0.0, np.array([-1e3, 1e3])))
        np.testing.assert_allclose(c, bounds, rtol=1e-15)
