"""What engines do to rows: step masks, rows chosen by step masks and by numbers, gates made of one row and added up.
On every engine.

Each test runs one function of an engine against a line of NumPy, bit for bit: numbers are small integers, whose sums
every dtype holds exactly. Where rows may stand at a stride, they are columns of wider arrays of NaN, which must stay.
"""

import numpy as np
import pytest

from numbarnn import engines
from numbarnn.common.order import RESET, SKIP
from numbarnn.common.precision import DTYPES
from row_cases import expected_step_mask, integers, random_step_mask
from running import on_engine

ENGINES = ("cpu", "sim", "cuda")


def on_engines(every, *, gpu=(), large=(), dtypes=False):
    """Parameters (engine, *values), or with `dtypes` (engine, *values, dtype) in each that the engine has.

    Args:
        every: values for each engine. gpu: more of them, for a GPU alone. large: those with more rows
            than a grid has, of which the emulated GPU takes too long.
    """
    found = []
    for name in ENGINES:
        marks = [pytest.mark.gpu] if name == "cuda" else []
        several = [(values, marks) for values in every]
        if name == "cuda":
            several += [(values, marks) for values in gpu]
            several += [(values, [*marks, pytest.mark.real_gpu]) for values in large]
        for values, own in several:
            for last in [(dtype,) for dtype in (DTYPES if name != "cpu" else DTYPES[:2])] if dtypes else [()]:
                parameters = name, *values, *last
                found.append(pytest.param(*parameters, marks=own, id="-".join(map(str, parameters))))
    return found


@pytest.fixture
def engine(request):
    """The engine of a name: the CPU's shares small work too, the simulator's threads take turns in a random order."""
    if request.param == "cpu":
        yield request.getfixturevalue("cpu_on_threads")
    elif request.param == "cuda":
        yield engines.get("cuda")
    else:
        from numbarnn.cuda import simulator

        with simulator.schedule(seed=f"{simulator.default_seed()} {request.node.name}"):
            yield engines.get("sim")


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


# ---------------------------------------------------------------------------------------------------------- step masks
@pytest.mark.parametrize("with_resets", (False, True))
@pytest.mark.parametrize("engine, directions, steps, batch", on_engines(
    [(1, 1, 1), (2, 1, 2), (2, 2, 3), (1, 5, 7), (2, 7, 9)], gpu=[(2, 300, 130)], large=[(1, 70_000, 2)]
), indirect=["engine"])  # fmt: skip
def test_fill_step_mask(engine, directions, steps, batch, with_resets):
    """Lengths from 0 to T in turn; resets at random, also at the first time and beyond the lengths."""
    lengths = (np.arange(batch) * 3 % (steps + 1)).astype(np.int32)
    resets = np.random.default_rng(0).random((steps, batch)) < 0.5
    expected = expected_step_mask(directions, lengths, resets & with_resets)
    step_mask, lengths = on_engine(engine, [np.full((directions, steps + 2, batch), 255, np.uint8), lengths])
    resets = engine.from_host(resets.view(np.uint8) if with_resets else np.zeros((0, batch), np.uint8))
    engine.fill_step_mask(step_mask, lengths, resets)
    assert_equal(engine, step_mask, expected)


@pytest.mark.parametrize("engine", on_engines([()]), indirect=True)
def test_step_mask_written_out(engine):
    """Five times of three sequences of 5, 3 and 0 elements that begin anew at 0, 2 and 4; R resets, S is skipped."""
    resets = np.zeros((5, 3), np.uint8)
    resets[[0, 2, 4]] = 1
    step_mask, *given = on_engine(engine, [np.full((2, 7, 3), 255, np.uint8), np.int32([5, 3, 0]), resets])
    engine.fill_step_mask(step_mask, *given)
    words, parts = {0: ".", RESET: "R", SKIP: "S"}, engine.to_host(step_mask)
    forward, backward = (["".join(words[one] for one in sequence) for sequence in part.T] for part in parts)
    assert forward == [".R.R.R.", ".R.RSS.", ".SSSSS."]
    assert backward == ["..R.R..", "..R.SS.", ".SSSSS."]


# --------------------------------------------------------------------------------------------------------- row choice
@pytest.mark.parametrize("in_place, transposed", [(False, ()), (True, ()), (False, ("x",)), (False, ("out",))], ids=str)
@pytest.mark.parametrize("dropped, fill", [(SKIP, -0.5), (RESET, 0.0), (RESET | SKIP, np.nan)])
@pytest.mark.parametrize("engine, X, Y, Z, dtype", on_engines(
    [(1, 1, 1), (7, 3, 5), (2, 5, 9), (3, 1, 33)], gpu=[(3, 20, 300)], dtypes=True
), indirect=["engine"])  # fmt: skip
def test_select(engine, X, Y, Z, dtype, dropped, fill, in_place, transposed):
    """Rows whose mask has a bit of `dropped` become `fill`, whatever stood there; `transposed`: "out", "x", with time
    and batch exchanged in memory."""
    x, step_mask = integers(dtype, X, Y, Z), random_step_mask(X, Y)
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


@pytest.mark.parametrize("engine, rows, columns, fill, dtype", on_engines(
    [(1, 1, 0.0), (9, 5, -2.0), (3, 33, np.nan), (0, 4, 0.0)], gpu=[(700, 300, np.nan)], dtypes=True
), indirect=["engine"])  # fmt: skip
def test_gather(engine, rows, columns, fill, dtype):
    """Rows in any order, twice, and not at all."""
    x = integers(dtype, 6, columns)
    index = np.random.default_rng(1).integers(-1, 6, rows)
    expected = np.where(index[:, None] < 0, np.asarray(fill, x.dtype), x[index])
    out = engine.from_host(np.full((rows, columns), np.nan, x.dtype))
    engine.gather(out, engine.from_host(x), engine.from_host(index), fill)
    assert_equal(engine, out, expected)


# --------------------------------------------------------------------------------------------------------- skip input
by_size = pytest.mark.parametrize("engine, rows, hidden, dtype", on_engines(
    [(1, 1), (7, 5), (3, 33)], gpu=[(50, 300)], large=[(70_000, 2)], dtypes=True
), indirect=["engine"])  # fmt: skip
by_gates = pytest.mark.parametrize("gates", (1, 3, 4))


@by_gates
@by_size
def test_spread(engine, rows, hidden, dtype, gates):
    """Every gate gets x; rows of both stand at a stride."""
    x = integers(dtype, rows, hidden)
    given, x_columns = wide(x)
    expected, columns = wide(np.tile(x, gates))
    out = engine.from_host(np.full_like(expected, np.nan))
    engine.spread(columns(out), x_columns(engine.from_host(given)), gates)
    assert_equal(engine, out, expected)


@pytest.mark.parametrize("accumulate", (False, True), ids=("set", "add"))
@by_gates
@by_size
def test_sum_gates(engine, rows, hidden, dtype, gates, accumulate):
    """The sum over gates, added to what is there or not; rows of x stand at a stride."""
    x, start = integers(dtype, rows, gates * hidden), integers(dtype, rows, hidden, seed=1)
    expected = sum(part.astype(np.float64) for part in np.split(x, gates, axis=1)) + (start if accumulate else 0)
    given, columns = wide(x)
    out = engine.from_host(start if accumulate else np.full_like(start, np.nan))
    engine.sum_gates(out, columns(engine.from_host(given)), gates, accumulate)
    assert_equal(engine, out, expected.astype(x.dtype))
