"""Each kernel alone, in the simulator, against a line of NumPy, for any grid. Launches are tiny here (several blocks of
four threads, compile/backend.py), so that small arrays span several blocks and several turns of every loop.

Outputs start as NaN: an element that is not written shows, and one that must not be written stays NaN.
"""

from importlib.util import find_spec

import numpy as np
import pytest

from cases import Case
from comparing import assert_same_bits, check
from numbarnn import engines
from numbarnn.common.order import RESET, SKIP
from numbarnn.common.precision import DTYPES, HALVES, compute_dtype, numpy_dtype
from numbarnn.compile import storage
from numbarnn.cuda import simulator
from numbarnn.cuda.launch import LaunchConfig
from numbarnn.kernels.arrays import column_sums, copies, dropout, masks
from numbarnn.kernels.step import pointwise, projection
from numbarnn.kernels.step.groups import Gradients, Options
from numbarnn.reference.philox import dropout_mask
from problems import dense, make_problem
from row_cases import integers, random_step_mask
from running import infer, train
from step_buffers import mask_words

ENGINE = engines.get("sim")
by_dtype = pytest.mark.parametrize("dtype", DTYPES)
by_direction = pytest.mark.parametrize("direction", (0, 1))


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


@pytest.mark.parametrize("config", [None, LaunchConfig((1, 1), 1), LaunchConfig((3, 2), 2)], ids=str)
@pytest.mark.parametrize("gates, heads, size, width", [(1, 1, 1, 1), (4, 2, 3, 3), (3, 5, 1, 2)])
def test_spread_blocks(gates, heads, size, width, config):
    """Onto the diagonal of each gate's matrix."""
    x = normal("float64", gates * heads * size, width)
    out = nans("float64", len(x), heads * width)
    copies.make_spread_blocks().bind(config, out, x)(gates) if config else copies.spread_blocks(out, x, gates)
    np.testing.assert_array_equal(out, dense(x, gates, heads), strict=True)


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


@pytest.mark.parametrize("blocks", (1, 3))
def test_add_column_sums_is_right_for_any_grid(blocks):
    x, out, expected = normal("float64", 5, 11), np.zeros(11), np.zeros(11)
    kernel = column_sums.make_add_column_sums("float64")
    kernel.bind(LaunchConfig(blocks, (column_sums.COLUMNS, column_sums.ROWS)), out, x)()
    column_sums.add_column_sums(expected, x)
    np.testing.assert_array_equal(out, expected)


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


@pytest.mark.parametrize("first, last", [(0, 5), (3, 30), (4, 8), (33, 67)])
def test_dropout_of_a_part_is_that_part_of_the_mask(first, last):
    x, out = normal("float32", 67), nans("float32", 67)
    dropout.dropout(out[first:last], x[first:last], *mask_words(0.4, 3, 1, 2), position=first)
    np.testing.assert_array_equal(out[first:last], (x * dropout_mask((67,), 0.4, 3, 1, 2, "float32"))[first:last])
    assert np.isnan(out[:first]).all() and np.isnan(out[last:]).all()


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


@by_dtype
@by_direction
def test_carry(direction, dtype):
    """The rows of skipped steps of one direction become those before them; all else stays."""
    T, B, P, t = 3, 5, 7, 1
    before, columns = t + 2 * direction, slice(direction * P, (direction + 1) * P)
    h, step_mask = integers(dtype, T + 2, B, 2 * P), random_step_mask(T + 2, B, seed=2)
    expected = h.copy()
    expected[t + 1, step_mask[t + 1] == SKIP, columns] = h[before, step_mask[t + 1] == SKIP, columns]
    projection.bind_carry(h[:, :, columns], step_mask)(t, before)
    assert (step_mask[t + 1] == SKIP).any() and (step_mask[t + 1] != SKIP).any()
    np.testing.assert_array_equal(h.astype(np.float64), expected.astype(np.float64))


@by_dtype
@by_direction
def test_join(direction, dtype):
    """dht[t] = dy[t] + dh and dh = 0; of skipped steps dht[t] = 0 and dh stays; what comes from a reset counts as 0."""
    T, B, P, t = 3, 9, 7, 1
    before, columns = t + 2 * direction, slice(direction * P, (direction + 1) * P)
    step_mask, every = np.full((T + 2, B), 99, np.uint8), np.uint8([0, RESET, SKIP])
    step_mask[t + 1] = np.repeat(every, 3)
    step_mask[t if direction else t + 2] = np.tile(every, 3)  # the next step's
    skip, cut_off = (step_mask[t + 1] == SKIP)[:, None], (np.tile(every, 3) == RESET)[:, None]
    dh, dy = integers(compute_dtype(dtype), B, P, seed=1), integers(dtype, T, B, 2 * P, seed=2)
    d_h = np.where(cut_off, 0, dh)
    expected, expected_dh = np.where(skip, 0, dy[t, :, columns] + d_h), np.where(skip, d_h, 0)
    dh[cut_off[:, 0]] = dy[t, skip[:, 0]] = np.nan
    dht = nans(dtype, T, B, P)
    projection.bind_join(Gradients(dh, None, None, None, dy[:, :, columns], dht), Options(step_mask))(t, before)
    np.testing.assert_array_equal(dht[t].astype(np.float64), expected)
    assert np.isnan(dht[[0, 2]].astype(np.float64)).all()
    np.testing.assert_array_equal(dh, expected_dh)


# ------------------------------------------------------------------------------------------------------------ steps
@pytest.mark.parametrize("grid, threads", [(1, 1), ((1, 5), 16)])
@pytest.mark.parametrize("cell", ("lstm", "gru_reset_before"))
def test_steps_are_right_for_any_grid(monkeypatch, cell, grid, threads):
    """One thread that does everything, and more threads than units."""
    monkeypatch.setattr(pointwise, "launch_config", lambda *_: LaunchConfig(grid, threads))
    options = dict(lengths=(2, 3, 0), resets=True)
    check(Case(cell, T=3, B=3, hidden=(9,), directions=2, dtype="float64", **options), "sim")


if find_spec("torch"):

    @pytest.mark.parametrize("blocks, threads", [(1, 1), (2, 3), (7, 2)])
    def test_sums_over_units_are_the_same_bits_for_any_grid_one_block_wide(monkeypatch, blocks, threads):
        """Of one shape, whatever the order in which threads run."""
        monkeypatch.setattr(pointwise, "launch_config", lambda *_: LaunchConfig((1, blocks), threads))
        case = Case("ladder", T=2, B=3, hidden=(9,), dtype="float64")
        check(case, "sim")
        problem, found = make_problem(case), []
        for seed in range(2):
            layer = problem.layer("sim", schedule="stepwise")
            with simulator.schedule(seed=seed):
                found.append(infer(layer, problem) | train(layer, problem)[0])
        assert_same_bits(*found)


@pytest.mark.parametrize("cell, accumulate, sums", [("lstm", False, 1), ("lstm", True, 2), ("gru", False, 2)])
def test_gradients_of_two_biases_that_are_the_same_are_summed_once(monkeypatch, cell, accumulate, sums):
    """Where they are added to what is there, that may differ."""
    summed, add = [], ENGINE.add_column_sums
    monkeypatch.setattr(ENGINE, "add_column_sums", lambda out, x: summed.append(out) or add(out, x), raising=False)
    case = Case(cell, T=2, B=2, hidden=(5,))
    problem = make_problem(case)
    layer = problem.layer("sim", schedule="stepwise")
    dw = layer.engine.zeros(layer.weights.shape, case.dtype) if accumulate else None
    found = layer.backward(layer.forward(problem.x, **problem.options())[2], problem.dy, dw=dw)
    assert len(summed) == sums
    biases = layer.stack.space.views(found.weights)
    same = np.array_equal(biases["bias_ih_l0"], biases["bias_hh_l0"])
    assert biases["bias_ih_l0"].any() and same == (cell == "lstm")
