"""Each kernel alone, in the simulator, against a line of NumPy. Launches are tiny here (several blocks of four threads,
compile/backend.py), so that small arrays span several blocks and several turns of every grid-stride loop.

Outputs start as NaN: an element that is not written shows, and one that must not be written stays NaN.
"""

import numpy as np
import pytest

from numbarnn.cuda.launch import LaunchConfig
from numbarnn.kernels.arrays import column_sums, copies, dropout
from numbarnn.reference.philox import dropout_mask
from step_buffers import mask_words, nans, normal

by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))


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
