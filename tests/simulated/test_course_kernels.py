"""`course.launch`: students' kernels on NumPy arrays, all blocks at once."""

import numpy as np
import pytest
from numba import cuda

from numbarnn import course
from numbarnn.cuda import ptx


@cuda.jit
def scale_kernel(out, a, factor, count):
    at = cuda.grid(1)
    if at < count:
        out[at] = factor * a[at]


@cuda.jit
def chain_kernel(h, steps):
    """Block b waits for block b - 1 at each step."""
    block = cuda.blockIdx.x
    for t in range(steps):
        value = ptx.load(h, (block - 1) * steps + t) if block > 0 else float(t)
        while value != value:
            ptx.sleep(np.uint32(100))
            value = ptx.load(h, (block - 1) * steps + t)
        ptx.store(h, block * steps + t, value + 1)


@cuda.jit
def wrong_index_kernel(out):
    out[cuda.grid(1)] = 1


@cuda.jit
def waits_kernel(h):
    while ptx.load(h, 0) != ptx.load(h, 0):
        ptx.sleep(np.uint32(100))


def test_arrays_are_written_in_place_and_numbers_are_those_of_kernels():
    out, a = np.full(10, np.nan, np.float32), np.arange(10, dtype=np.float32)
    course.launch(scale_kernel, 3, 4, out, a, 0.5, 9)
    assert np.array_equal(out[:9], a[:9] / 2) and np.isnan(out[9])


@pytest.mark.parametrize("seed", range(4))
def test_blocks_wait_for_each_other(seed):
    h = np.full(4 * 6, np.nan)
    course.launch(chain_kernel, 4, 1, h, 6, seed=seed)
    assert np.array_equal(h.reshape(4, 6), np.add.outer(np.arange(1, 5), np.arange(6)))


def test_a_wrong_index_is_named_by_block_and_thread():
    with pytest.raises(RuntimeError, match=r"block \(1, 0, 0\), thread \(3, 0, 0\) raised IndexError: index 7"):
        course.launch(wrong_index_kernel, 2, 4, np.zeros(7))


def test_who_waits_in_vain_is_named_by_the_line_of_the_kernel():
    with pytest.raises(RuntimeError, match=r"livelock.* at sleep, test_course_kernels\.py:\d+ in waits_kernel"):
        course.launch(waits_kernel, 1, 2, np.full(1, np.nan))
