"""Each kernel alone, in the simulator, against a line of NumPy. Launches are tiny here (several blocks of four threads,
kernels/target.py), so that small arrays span several blocks and several turns of every grid-stride loop.

Outputs start as NaN: an element that is not written shows, and one that must not be written stays NaN.
"""

import numpy as np
import pytest
from one_step import Step, assert_near, assert_only_written, joined, nans, normal, split

from general_cells import GENERAL
from numbarnn import cells
from numbarnn.cuda.launch import LaunchConfig
from numbarnn.kernels.arrays import column_sums, copies, dropout
from numbarnn.kernels.step import pointwise
from philox_reference import dropout_mask
from step_buffers import mask_words

by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))
ALL_CELLS = cells.CELLS | GENERAL
by_cell = pytest.mark.parametrize("cell", ALL_CELLS.values(), ids=ALL_CELLS)


# ------------------------------------------------------------------------------------------------------------ copy
@by_dtype
@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1)], ids=str)
def test_copy_of_any_layout(axes, dtype):
    x = normal(dtype, 3, 5, 9).transpose(axes)
    out = nans(dtype, *x.shape)
    copies.copy(out, x)
    np.testing.assert_array_equal(out, x, strict=True)


@by_dtype
@pytest.mark.parametrize("shape", [(1,), (9,), (3, 9), (1, 1, 1)], ids=str)
def test_copy_into_a_slice_writes_that_slice_only(shape, dtype):
    out = nans(dtype, *shape[:-1], 2 * shape[-1] + 1)
    x = normal(dtype, *shape)
    copies.copy(out[..., 1::2], x)
    np.testing.assert_array_equal(out[..., 1::2], x)
    assert np.isnan(out[..., ::2]).all()


# -------------------------------------------------------------------------------------------------------- row sums
@by_dtype
@pytest.mark.parametrize("rows", (1, 2, 3, 17))
@pytest.mark.parametrize("columns", (1, 4, 5, 19))  # tiles have 4 columns, 2 rows, and there are 2 blocks
def test_add_column_sums_over_several_tiles(columns, rows, dtype):
    whole = normal(dtype, rows, 2 * columns + 3)
    x = whole[:, 2 : 2 + columns]  # rows at a stride
    start = normal(dtype, columns, seed=1)
    out = start.copy()
    column_sums.add_column_sums(out, x)
    # each of at most rows + 1 additions rounds a sum of at most rows * 4
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(
        out, start + x.sum(axis=0, dtype=np.float64), rtol=0, atol=eps * 4 * rows * (rows + 1) / 2
    )


def test_add_column_sums_has_a_fixed_order():
    x, out = normal("float32", 100, 7), [np.zeros(7, np.float32) for _ in range(2)]
    for one in out:
        column_sums.add_column_sums(one, x)
    np.testing.assert_array_equal(*out)


@pytest.mark.parametrize("blocks", (1, 3))
def test_add_column_sums_is_right_for_any_grid(blocks):
    x, out, expected = normal("float64", 5, 11), np.zeros(11), np.zeros(11)
    kernel = column_sums.make_add_column_sums("float64")
    kernel.bind(LaunchConfig(blocks, (column_sums.COLUMNS, column_sums.ROWS)), out, x)()
    column_sums.add_column_sums(expected, x)
    np.testing.assert_array_equal(out, expected)


# --------------------------------------------------------------------------------------------------------- dropout
@by_dtype
@pytest.mark.parametrize("p", (0.0, 0.3, 1.0))
@pytest.mark.parametrize("n", (1, 4, 67))  # not a multiple of 4, the words of one Philox
def test_dropout_is_the_mask_of_numpys_philox(n, p, dtype):
    x, out = normal(dtype, n), nans(dtype, n)
    dropout.dropout(out, x, *mask_words(p, 2**35 + 5, 2, 9))
    mask = dropout_mask((n,), p, 2**35 + 5, 2, 9, dtype)
    np.testing.assert_array_equal(out, x * mask, strict=True)
    dropout.dropout(x, x, *mask_words(p, 2**35 + 5, 2, 9))  # in place
    np.testing.assert_array_equal(x, out)


@pytest.mark.parametrize("first, last", [(0, 5), (3, 30), (4, 8), (7, 8), (33, 67)])
def test_dropout_of_a_part_is_that_part_of_the_mask(first, last):
    x, out = normal("float32", 67), nans("float32", 67)
    dropout.dropout(out[first:last], x[first:last], *mask_words(0.4, 3, 1, 2), position=first)
    np.testing.assert_array_equal(out[first:last], (x * dropout_mask((67,), 0.4, 3, 1, 2, "float32"))[first:last])
    assert np.isnan(out[:first]).all() and np.isnan(out[last:]).all()


@pytest.mark.parametrize("blocks, threads", [(1, 1), (3, 2)])
def test_dropout_is_right_for_any_grid(blocks, threads):
    x, out = normal("float32", 35), nans("float32", 35)
    mask, scale = mask_words(0.5, 1, 0, 0)
    config = LaunchConfig(blocks, threads)
    dropout.make_dropout("float32").bind(config, out, x, mask, np.float32(scale), np.uint64(0))()
    np.testing.assert_array_equal(out, x * dropout_mask((35,), 0.5, 1, 0, 0, "float32"))


# ------------------------------------------------------------------------------------------------------- pointwise
@by_dtype
@pytest.mark.parametrize("direction", (0, 1))
@by_cell
def test_pointwise_forward_of_training(cell, direction, dtype):
    """h and c of the step are written, and what the cell saves in the place of x Wᵀ."""
    s = Step(cell, dtype, direction)
    new_state, saved = s.expected()
    before, others = [part.copy() for part in s.state_before], s.ax[[0, 2]].copy()
    bind = pointwise.bind_forward
    bind(cell, s.h, s.c, s.ax, s.ah, s.b_w, s.b_r, s.per_unit, None, direction, True)(s.t, s.before)
    np.testing.assert_array_equal(s.state_before, before)
    for array, columns, value in ((s.h, s.h_columns, new_state[:1]), (s.c, s.c_columns, new_state[1:])):
        array[s.before] = np.nan  # was given
        if value:
            assert_only_written(array, (s.t + 1, slice(None), columns), np.concatenate(value, axis=1))
    if saved:
        assert_near(s.ax[s.t, :, : cell.num_saved * s.H], np.concatenate(saved, axis=1))
    np.testing.assert_array_equal(s.ax[[0, 2]], others)


@by_dtype
@pytest.mark.parametrize("direction", (0, 1))
@by_cell
def test_pointwise_forward_of_inference(cell, direction, dtype):
    """c has two slots, taken in turns; nothing is saved."""
    s = Step(cell, dtype, direction)
    new_state, _ = s.expected()
    c, ax = nans(dtype, 2, *s.c.shape[1:]), s.ax.copy()
    c[s.before % 2] = s.c[s.before]
    bind = pointwise.bind_forward
    bind(cell, s.h, c, s.ax, s.ah, s.b_w, s.b_r, s.per_unit, None, direction, False)(s.t, s.before)
    assert_near(s.h[s.t + 1, :, s.h_columns], new_state[0])
    np.testing.assert_array_equal(c[s.before % 2], s.c[s.before])
    if cell.num_private:
        c[s.before % 2] = np.nan
        assert_only_written(c, ((s.t + 1) % 2, slice(None), s.c_columns), np.concatenate(new_state[1:], axis=1))
    np.testing.assert_array_equal(s.ax, ax)


@by_dtype
@pytest.mark.parametrize("direction", (0, 1))
@by_cell
def test_pointwise_backward(cell, direction, dtype):
    s = Step(cell, dtype, direction)
    G, N, K, H = cell.num_gates, cell.num_private, cell.num_saved, s.H
    new_state, saved = s.expected()
    s.keep(new_state)
    dy = normal(dtype, s.T, s.B, 2 * H, seed=7)
    dh, dc = normal(dtype, s.B, H, seed=8), normal(dtype, s.B, N * H, seed=9)
    d_v = normal(dtype, s.B, len(cell.stages) * H, seed=11)
    d_state = (dy[s.t, :, s.h_columns].astype(np.float64) + dh, *split(dc.astype(np.float64), N))
    d_stages = split(d_v.astype(np.float64), len(cell.stages))
    d_ax, d_ah, d_before, d_own = s.expected_gradients(saved, s.state_before, new_state, d_state, d_stages)

    dax = nans(dtype, s.T, s.B, s.width)  # at first what forward saved
    if K:
        dax[s.t, :, : K * H] = np.concatenate(saved, axis=1)
    dah = dax if cell.same_gradient else nans(dtype, s.T, s.B, cell.num_ah * H)
    d_per_unit = nans(dtype, s.T, s.B, s.per_unit.size)
    given = cell, dh, dc, dax, dah, d_per_unit, dy, s.h, s.c, s.per_unit, d_v, None, direction
    pointwise.bind_backward(*given)(s.t, s.before)
    assert_near(dax[s.t, :, : G * H], np.concatenate(d_ax, axis=1))
    assert np.isnan(dax[[0, 2]]).all()
    if not cell.same_gradient:  # gates of stages are theirs
        assert_only_written(dah, (s.t, slice(None), slice(0, cell.num_recurrent * H)), joined(d_ah, s.B))
    assert_only_written(d_per_unit, s.t, joined(d_own, s.B))
    assert_near(dh, d_before[0])
    assert_near(dc, joined(d_before[1:], s.B))


@by_cell
def test_pointwise_is_right_for_any_grid(cell):
    """One thread that does everything, and more threads than units."""
    results = []
    for config in (LaunchConfig(1, 1), LaunchConfig((1, 5), 16)):
        s = Step(cell, "float64", 0)
        kernel = pointwise.make_pointwise_forward(cell, "float64", True)
        step_mask = pointwise.no_step_mask(s.ah, None)
        arrays = s.h, s.c, s.ax, s.ah, s.b_w, s.b_r, s.per_unit, s.h, s.b_w, step_mask  # no sums, no noise
        kernel.bind(config, *arrays, np.int32(0))(s.t, s.before)
        results.append((s.h, s.c, s.ax))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
