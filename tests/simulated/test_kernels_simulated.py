"""Each kernel alone, in the simulator, against a line of NumPy, for any grid. Launches are tiny here (several blocks of
four threads, compile/backend.py), so that small arrays span several blocks and several turns of every loop.

Outputs start as NaN: an element that is not written shows, and one that must not be written stays NaN.
"""

import numpy as np
import pytest

from cases import Case
from comparing import check
from minimal_rnn import problem_of, run
from numbarnn import engines
from numbarnn.common.order import RESET, SKIP
from numbarnn.common.precision import DTYPES, HALVES, compute_dtype, numpy_dtype
from numbarnn.compile import storage
from numbarnn.cuda.launch import LaunchConfig
from numbarnn.kernels import minimal
from numbarnn.kernels.arrays import column_sums, copies, dropout, masks
from numbarnn.kernels.step import pointwise
from numbarnn.reference.philox import dropout_mask
from row_cases import random_step_mask
from step_buffers import mask_words

ENGINE = engines.get("sim")
by_dtype = pytest.mark.parametrize("dtype", DTYPES)


def normal(dtype, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(numpy_dtype(dtype))


def nans(dtype, *shape):
    return np.full(shape, np.nan, numpy_dtype(dtype))


# ----------------------------------------------------------------------------------------------------------- copies
@by_dtype
@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1)], ids=str)
def test_copy_of_any_layout(axes, dtype):
    x = normal(dtype, 3, 5, 9).transpose(axes)
    out = nans(dtype, *x.shape)
    copies.copy(out, x)
    np.testing.assert_array_equal(out, x, strict=True)


@by_dtype
def test_copy_into_a_slice_writes_that_slice_only_and_converts(dtype):
    out, x = nans(dtype, 3, 19), normal("float32", 3, 9)
    copies.copy(out[:, 1::2], x)
    np.testing.assert_array_equal(out[:, 1::2], x.astype(numpy_dtype(dtype)))
    assert np.isnan(out[:, ::2].astype(np.float32)).all()
    back = nans("float32", 3, 9)
    copies.copy(back, out[:, 1::2])
    np.testing.assert_array_equal(back, out[:, 1::2].astype(np.float32))


@pytest.mark.parametrize("dtype", HALVES)
def test_conversions_round_to_nearest_even_and_back_exactly(dtype):
    """Every number of the dtype, every midpoint between two of them, what is next to a midpoint; anything at random."""
    every = np.arange(1 << 16).astype(np.uint16)
    narrow, widen, exact = storage.narrow(dtype), storage.widen(dtype), every.view(numpy_dtype(dtype))
    np.testing.assert_array_equal([widen(bits) for bits in every[::7]], exact.astype(np.float32)[::7])
    exact = np.sort(exact.astype(np.float32))
    exact = exact[np.isfinite(exact)]
    middle = ((exact[1:].astype(np.float64) + exact[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(middle, np.float32(direction)) for direction in (-np.inf, np.inf)]
    words = np.random.default_rng(0).integers(0, 1 << 32, 5000, np.uint32).view(np.float32)
    values = np.concatenate([part[:: 1 + part.size // 5000] for part in (exact, middle, *beside)])
    values = np.concatenate([values, words, np.float32([0.0, -0.0, np.inf, -np.inf, np.nan])])
    with np.errstate(over="ignore", invalid="ignore"):
        found, expected = np.array([narrow(value) for value in values]), values.astype(numpy_dtype(dtype))
    number = ~np.isnan(values)
    np.testing.assert_array_equal(found[number], expected.view(np.uint16)[number])
    assert found.dtype == np.uint16 and np.isnan(found[~number].view(numpy_dtype(dtype)).astype(np.float32)).all()


# --------------------------------------------------------------------------------------------------------- column sums
@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("rows", (1, 3, 17))
@pytest.mark.parametrize("columns", (1, 4, 19))  # tiles have 4 columns, 2 rows, and there are 2 blocks
def test_add_column_sums_over_several_tiles(columns, rows, dtype):
    x, out = normal(dtype, rows, 2 * columns + 3)[:, 2 : 2 + columns], normal(dtype, columns, seed=1)  # at a stride
    expected = out + x.sum(axis=0, dtype=np.float64)
    column_sums.add_column_sums(out, x)
    # each of at most rows + 1 additions rounds a sum of at most rows * 4
    np.testing.assert_allclose(out, expected, rtol=0, atol=np.finfo(dtype).eps * 2 * rows * (rows + 1))


@pytest.mark.parametrize("dtype", HALVES)
def test_column_sums_are_rounded_once(dtype):
    """300 numbers near 1: a sum of halves would be stuck at 256 in bfloat16."""
    x, out = (1 + normal(dtype, 300, 6) / 8).astype(numpy_dtype(dtype)), normal(dtype, 6, seed=1)
    expected = out.astype(np.float64) + x.sum(axis=0, dtype=np.float64)
    column_sums.add_column_sums(out, x)
    np.testing.assert_array_equal(out, expected.astype(numpy_dtype(dtype)))


# --------------------------------------------------------------------------------------------------------- dropout
@by_dtype
@pytest.mark.parametrize("p, n", [(0.0, 4), (0.3, 1), (0.3, 67), (1.0, 4)])  # 4 words of one Philox
def test_dropout_is_the_mask_of_numpys_philox(n, p, dtype):
    x, out = normal(dtype, n), nans(dtype, n)
    dropout.dropout(out, x, *mask_words(p, 2**35 + 5, 2, 9))
    mask = dropout_mask((n,), p, 2**35 + 5, 2, 9, compute_dtype(dtype))
    np.testing.assert_array_equal(out, (x.astype(compute_dtype(dtype)) * mask).astype(x.dtype), strict=True)
    dropout.dropout(x, x, *mask_words(p, 2**35 + 5, 2, 9))  # in place
    np.testing.assert_array_equal(x, out)


# ------------------------------------------------------------------------------------- rows, by step mask or number
@pytest.mark.parametrize("blocks, threads", [(1, 1), ((1, 5), 16)])
def test_row_kernels_are_right_for_any_grid(blocks, threads):
    config, x, step_mask = LaunchConfig(blocks, threads), normal("float32", 3, 4, 7), random_step_mask(3, 4)
    select, gather = masks.make_select("float32")[0], masks.make_gather("float32")[0]
    out, expected = nans("float32", *x.shape), nans("float32", *x.shape)
    select.bind(config, out, x, step_mask, np.float32(2))(SKIP)
    ENGINE.select(expected, x, step_mask, SKIP, 2.0)
    np.testing.assert_array_equal(out, expected)
    index = np.array([2, -1, 0, 2, 1])
    out, expected = nans("float32", 5, 7), nans("float32", 5, 7)
    gather.bind(config, out, x[0], index, np.float32(2))()
    ENGINE.gather(expected, x[0], index, 2.0)
    np.testing.assert_array_equal(out, expected)
    step_mask, expected = np.full((2, 2, 5, 4), 255, np.uint8)
    lengths, resets = np.int32([3, 0, 1, 2]), (random_step_mask(3, 4) == RESET).view(np.uint8)
    masks.make_step_mask_kernel().bind(config, step_mask, lengths, resets)()
    ENGINE.fill_step_mask(expected, lengths, resets)
    np.testing.assert_array_equal(step_mask, expected)


# ------------------------------------------------------------------------------------------------------------ steps
@pytest.mark.parametrize("grid, threads", [(1, 1), ((1, 5), 16)])
@pytest.mark.parametrize("cell", ("lstm", "gru_reset_before"))
def test_steps_are_right_for_any_grid(monkeypatch, cell, grid, threads):
    """One thread that does everything, and more threads than units."""
    monkeypatch.setattr(pointwise, "launch_config", lambda *_: LaunchConfig(grid, threads))
    options = dict(lengths=(2, 3, 0), resets=True)
    check(Case(cell, T=3, B=3, hidden=(9,), directions=2, dtype="float64", **options), "sim")


# ------------------------------------------------------------------------------------------------------ the minimal RNN
@pytest.mark.parametrize("T, B, H, seed", [(1, 1, 1, 0), (4, 3, 7, 1), (3, 11, 8, 2), (5, 8, 16, 3)])
def test_agrees_with_float64(T, B, H, seed):
    h, ax, R, right = problem_of(T, B, H)
    run(h, ax, R, seed)
    np.testing.assert_allclose(h[1:], right, rtol=0, atol=1e-5)


@pytest.mark.parametrize("what", ("a block", "the first state"))
def test_ends_where_something_is_missing(monkeypatch, what):
    """What depends on it stays NaN."""
    monkeypatch.setattr(minimal, "PATIENCE", 5)
    h, ax, R, _ = problem_of(4, 3, 8)
    if what == "the first state":
        h[0, 1, 5] = np.nan
    run(h, ax, R, missing=int(what == "a block"))
    assert np.isnan(h[2:]).all() and np.isfinite(h[1]).any() == (what == "a block")
