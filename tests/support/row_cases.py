"""What engines do to rows: step masks, rows chosen by step masks and by numbers, gates made of one row and added up.

    check_select(engine, "float32", dropped=SKIP)

Each check runs one function of an engine against a line of NumPy, bit for bit: numbers are small integers, whose sums
every dtype holds exactly. Where rows may stand at a stride, they are columns of wider arrays of NaN, which must stay.
"""

import numpy as np

from numbarnn.common.order import RESET, SKIP
from numbarnn.common.precision import numpy_dtype
from running import on_engine

SHAPES = [(1, 1, 1), (7, 3, 5), (2, 5, 9), (3, 1, 33)]  # T or X, B or Y, N or Z


def integers(dtype, *shape, seed=0):
    """Random integers from -8 to 8."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(numpy_dtype(dtype))


def random_step_mask(*shape, seed=0):
    """0, RESET and SKIP, in any order."""
    return np.random.default_rng(seed).choice(np.uint8([0, RESET, SKIP]), shape)


def wide(x, columns=4):
    """x as the middle columns of an array of NaN: (the whole array, a function of it that gives these columns)."""
    whole = np.full((*x.shape[:-1], x.shape[-1] + columns), np.nan, x.dtype)
    middle = slice(columns // 2, columns // 2 + x.shape[-1])
    whole[..., middle] = x
    return whole, lambda array: array[..., middle]


def assert_equal(engine, value, expected):
    """The same numbers: of 16 bits as float64, NumPy cannot compare NaN of all dtypes."""
    value = engine.to_host(value)
    assert value.dtype == expected.dtype
    np.testing.assert_array_equal(value.astype(np.float64), expected.astype(np.float64))


# -------------------------------------------------------------------------------------------------------------
# step_mask
def expected_step_mask(directions, lengths, resets):
    """Codes (D, T + 2, B), sequence by sequence."""
    T, B = resets.shape
    step_mask = np.zeros((directions, T + 2, B), np.uint8)
    for b, length in enumerate(lengths):
        step_mask[:, 1 + length : T + 1, b] = SKIP
        step_mask[0, 1 : 1 + length, b] = np.where(resets[:length, b], RESET, 0)
        if directions == 2 and length:  # the state that time t + 1 passes to time t
            step_mask[1, 1:length, b] = np.where(resets[1:length, b], RESET, 0)
    return step_mask


def check_step_mask(engine, directions, steps, batch, with_resets):
    """Lengths from 0 to T in turn; resets at random, also at the first time and beyond the lengths."""
    lengths = (np.arange(batch) * 3 % (steps + 1)).astype(np.int32)
    resets = np.random.default_rng(0).random((steps, batch)) < 0.5
    expected = expected_step_mask(directions, lengths, resets & with_resets)
    step_mask, lengths = on_engine(engine, [np.full((directions, steps + 2, batch), 255, np.uint8), lengths])
    resets = engine.from_host(resets.view(np.uint8) if with_resets else np.zeros((0, batch), np.uint8))
    engine.fill_step_mask(step_mask, lengths, resets)
    assert_equal(engine, step_mask, expected)


# --------------------------------------------------------------------------------------------------------- row choice
def check_select(engine, dtype, shape, dropped, fill, in_place=False, transposed=()):
    """Rows whose code has a bit of `dropped` become `fill`, whatever stood there; `transposed`: "out", "x", with time
    and batch exchanged in memory."""
    x, step_mask = integers(dtype, *shape), random_step_mask(*shape[:2])
    drop = (step_mask & dropped) != 0
    x[drop] = np.nan
    expected = np.where(drop[..., None], np.asarray(fill, x.dtype), x)

    def given(name, array):
        if name not in transposed:
            return engine.from_host(array)
        return engine.from_host(np.ascontiguousarray(array.transpose(1, 0, 2))).transpose(1, 0, 2)

    source, step_mask = given("x", x), engine.from_host(step_mask)
    out = source if in_place else given("out", np.full_like(x, np.nan))
    engine.select(out, source, step_mask, dropped, fill)
    assert_equal(engine, out, expected)
    if not in_place:
        assert_equal(engine, source, x)


def check_gather(engine, dtype, rows, columns, fill):
    """Rows in any order, twice, and not at all."""
    x = integers(dtype, 6, columns)
    index = np.random.default_rng(1).integers(-1, 6, rows)
    expected = np.where(index[:, None] < 0, np.asarray(fill, x.dtype), x[index])
    out = engine.from_host(np.full((rows, columns), np.nan, x.dtype))
    engine.gather(out, engine.from_host(x), engine.from_host(index), fill)
    assert_equal(engine, out, expected)


# --------------------------------------------------------------------------------------------------------- skip input
def check_spread(engine, dtype, rows, hidden, gates):
    """Every gate gets x; rows of both stand at a stride."""
    x = integers(dtype, rows, hidden)
    given, x_columns = wide(x)
    expected, columns = wide(np.tile(x, gates))
    out = engine.from_host(np.full_like(expected, np.nan))
    engine.spread(columns(out), x_columns(engine.from_host(given)), gates)
    assert_equal(engine, out, expected)


def check_sum_gates(engine, dtype, rows, hidden, gates, accumulate):
    """The sum over gates, added to what is there or not; rows of x stand at a stride."""
    x, start = integers(dtype, rows, gates * hidden), integers(dtype, rows, hidden, seed=1)
    expected = sum(part.astype(np.float64) for part in np.split(x, gates, axis=1)) + (start if accumulate else 0)
    given, columns = wide(x)
    out = engine.from_host(start if accumulate else np.full_like(start, np.nan))
    engine.sum_gates(out, columns(engine.from_host(given)), gates, accumulate)
    assert_equal(engine, out, expected.astype(x.dtype))
