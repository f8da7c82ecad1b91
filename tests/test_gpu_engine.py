"""The CUDA engine's own parts on a GPU: products, sums, dropout, copies; and its time loops in a CUDA graph."""

import numpy as np
import pytest
from philox_reference import dropout_mask
from step_buffers import backward_buffers, forward_buffers, moved, normal

from numbarnn import cells, engines

pytestmark = pytest.mark.gpu
by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))


@pytest.fixture
def engine():
    return engines.get("cuda")


@by_dtype
@pytest.mark.parametrize("accumulate", (False, True), ids=("set", "add"))
@pytest.mark.parametrize("transpose_a, transpose_b", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("M, N, K", [(1, 1, 1), (1, 33, 5), (33, 1, 5), (50, 17, 33), (130, 64, 20)])
def test_multiply(engine, M, N, K, transpose_a, transpose_b, accumulate, dtype):
    """Slices of columns, all transposes; float32 products are not rounded to TF32."""
    a, b, start = normal(dtype, M, K), normal(dtype, K, N, seed=1), normal(dtype, M, N, seed=2)

    def columns(matrix):
        wide = np.full((matrix.shape[0], matrix.shape[1] + 7), np.nan, dtype)
        wide[:, 3 : 3 + matrix.shape[1]] = matrix
        return engine.from_host(wide)[:, 3 : 3 + matrix.shape[1]]

    out = columns(start)
    left, right = columns(a.T if transpose_a else a), columns(b.T if transpose_b else b)
    engine.multiply(out, left, right, transpose_a=transpose_a, transpose_b=transpose_b, accumulate=accumulate)
    expected = a.astype(np.float64) @ b.astype(np.float64) + (start if accumulate else 0)
    bound = np.finfo(dtype).eps * (K + 1) * (np.abs(a) @ np.abs(b) + np.abs(start if accumulate else 0))
    assert (np.abs(engine.to_host(out) - expected) <= bound).all()


@by_dtype
@pytest.mark.parametrize("rows, columns", [(1, 1), (17, 33), (300, 32), (5000, 1000)])
def test_add_row_sums(engine, rows, columns, dtype):
    x, start = normal(dtype, rows, 2 * columns), normal(dtype, columns, seed=1)
    out = engine.from_host(start)
    engine.add_row_sums(
        out, engine.from_host(x)[:, 3 : 3 + columns] if columns > 3 else engine.from_host(x)[:, :columns]
    )
    x = x[:, 3 : 3 + columns] if columns > 3 else x[:, :columns]
    bound = np.finfo(dtype).eps * (rows / 16 + 17) * (np.abs(x).sum(axis=0) + np.abs(start))
    assert (np.abs(engine.to_host(out) - start - x.sum(axis=0, dtype=np.float64)) <= bound).all()


@by_dtype
@pytest.mark.parametrize("shape", [(1,), (7, 3, 5), (100, 64, 333)], ids=str)
def test_dropout(engine, shape, dtype):
    x = normal(dtype, *shape)
    out = engine.from_host(np.full(shape, np.nan, dtype))
    engine.dropout(out, engine.from_host(x), 0.3, 2**40 + 1, 2, 5)
    np.testing.assert_array_equal(
        engine.to_host(out), x * dropout_mask(shape, 0.3, 2**40 + 1, 2, 5, dtype), strict=True
    )


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 300), (2, 70_000, 2)], ids=str)  # more rows than a grid has
def test_copy(cupy, engine, shape):
    x = normal("float32", *shape)
    out = cupy.full((shape[1], shape[0], 2 * shape[2]), np.nan, "float32")
    engine.copy(out[:, :, ::2], engine.from_host(x).transpose(1, 0, 2))
    np.testing.assert_array_equal(engine.to_host(out[:, :, ::2]), x.transpose(1, 0, 2))
    assert cupy.isnan(out[:, :, 1::2]).all()


@pytest.mark.parametrize("direction", (0, 1))
@pytest.mark.parametrize("cell", cells.CELLS.values(), ids=cells.CELLS)
def test_time_loops_neither_allocate_nor_wait(cupy, engine, cell, direction):
    """They can be captured as a CUDA graph, in which allocations, host copies and synchronisation are errors."""
    expected = forward_buffers(cell, direction)
    cpu = engines.get("cpu")
    forward = moved(expected, engine)
    cpu.forward_steps(expected)(0, 7)
    expected_back = backward_buffers(expected)
    cpu_forward = [expected.h.copy(), expected.c.copy(), expected.ax.copy()]
    backward = moved(backward_buffers(expected), engine)
    cpu.backward_steps(expected_back)(0, 7)

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        runs = [engine.forward_steps(forward), engine.backward_steps(backward)]
        start = [array.copy() for array in device_arrays(forward) + device_arrays(backward)]
        for run in runs:
            run(0, 7)  # cuBLAS takes its work space at its first call
        for array, first in zip(device_arrays(forward) + device_arrays(backward), start, strict=True):
            array[...] = first
        stream.synchronize()
        stream.begin_capture()
        for run in runs:
            run(0, 7)
        graph = stream.end_capture()
        graph.launch()
    stream.synchronize()
    results = [forward.h, forward.c, forward.ax, backward.dax, backward.dah, backward.dh, backward.dc]
    wanted = [*cpu_forward, expected_back.dax, expected_back.dah, expected_back.dh, expected_back.dc]
    for result, value in zip(results, wanted, strict=True):
        # gates and states of size 1, sums of 33 terms on both engines: tests/helpers.py
        np.testing.assert_allclose(engine.to_host(result), value, rtol=0, atol=64 * np.finfo(np.float32).eps)


def device_arrays(buffers):
    """The arrays of some buffers, each once."""
    arrays = {id(array): array for array in vars(buffers).values() if hasattr(array, "ndim")}
    return list(arrays.values())
