"""The LSTM with cell clip (cells/lstm.py): its c within bounds, no gradient through them, NaN kept or not."""

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
def test_clipped_c_is_the_lstms_within_bounds(cell):
    """On arrays and on numbers; h is computed from the limited c, and what is saved is the LSTM's."""
    ax, ah, state = lstm_points(200)
    (_, free), saved = lstm.LSTM.forward(ax, ah, state)
    (h, c), kept = cell.forward(ax, ah, state)
    assert (free < LOW).sum() > 20 and (free > HIGH).sum() > 20 and ((LOW < free) & (free < HIGH)).sum() > 20
    np.testing.assert_array_equal(c, [clip_by_hand(one, True) for one in free])
    np.testing.assert_array_equal(h, saved[3] * np.tanh(c))
    np.testing.assert_array_equal(kept, saved)
    for k in range(20):
        one = cell.forward(*(tuple(values[k] for values in part) for part in (ax, ah, state)))
        np.testing.assert_allclose(one[0], (h[k], c[k]), rtol=1e-15)


@by_clipped
def test_no_gradient_passes_a_bound(cell):
    """Where c is at a bound, nothing reaches i, f, g and the c before, but o gets what it gets without. Elsewhere all
    is the LSTM's. A c that is there by chance counts as limited."""
    ax, ah, state = lstm_points(200)
    new_state, saved = cell.forward(ax, ah, state)
    new_state[1][:2] = LOW, HIGH
    d_state = (np.linspace(-1, 1, 200), np.linspace(0.5, 1.5, 200))
    d_ax, d_ah, (d_h, d_c) = cell.backward(saved, state, new_state, d_state)
    free_ax, _, (_, free_c) = lstm.LSTM.backward(saved, state, new_state, d_state)
    at_bound = (new_state[1] == LOW) | (new_state[1] == HIGH)
    assert 50 < at_bound.sum() < 150 and at_bound[:2].all()
    for gate, (found, free) in enumerate(zip(d_ax, free_ax, strict=True)):
        np.testing.assert_array_equal(found, free if gate == 3 else np.where(at_bound, 0, free))
    np.testing.assert_array_equal(d_c, np.where(at_bound, 0, free_c))
    assert d_ah is d_ax and d_h == 0 and (free_c[at_bound] != 0).all()


@pytest.mark.parametrize("propagate_nan", (True, False))
def test_nan_in_c(propagate_nan):
    """It stays, or becomes the lower bound: on numbers, on arrays, compiled in both dtypes."""
    cell = lstm.clipped(*BOUNDS, propagate_nan)
    gates, numbers = (0.5,) * 4, (math.nan, -math.inf, math.inf, 3.0, -3.0, 0.1)
    (h, c), _ = cell.forward(gates, gates, (0.0, np.array(numbers)))
    free = lstm.LSTM.forward(gates, gates, (0.0, np.array(numbers)))[0][1]
    expected = [clip_by_hand(one, propagate_nan) for one in free]
    assert math.isnan(expected[0]) == propagate_nan and expected[1:5] == [LOW, HIGH, HIGH, LOW]
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
        (_, c), _ = lstm.clipped(*bounds).forward((100.0,) * 4, (100.0,) * 4, (0.0, np.array([-1e3, 1e3])))
        np.testing.assert_array_equal(c, bounds)
