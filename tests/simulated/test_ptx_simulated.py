"""The tensor cores' instructions and the loads and stores of `ptx` in the simulator, against NumPy.

Lane layouts are those of NVIDIA's PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and "... for
mma.m16n8k8". With groupID = lane / 4 and threadID_in_group = lane % 4, a lane holds

    A, 16 x K     word i: row groupID (i even) or groupID + 8; of 16 bits columns 2 threadID_in_group and the next one,
                  plus 8 for i of 2 and 3; of TF32 column threadID_in_group, plus 4
    B, K x 8      word i: column groupID; of 16 bits rows 2 threadID_in_group and the next one, plus 8 for i = 1;
                  of TF32 row threadID_in_group, plus 4
    C, D, 16 x 8  number i: row groupID (i of 0 and 1) or groupID + 8; column 2 threadID_in_group, plus 1 for odd i

The same layouts were confirmed on an H200 on 2026-11-20 (numbarnn/bench/results/probe.json).
"""

import numpy as np
import pytest
from numba import cuda

from numbarnn.common.precision import numpy_dtype
from numbarnn.cuda import ptx
from numbarnn.cuda.launch import Kernel, LaunchConfig

LANES = range(32)
MMA = {"float16": "mma_float16", "bfloat16": "mma_bfloat16", "float32": "mma_tf32"}  # made when they are asked for


def as_tf32(array):
    """Rounded to 10 bits of mantissa by the function that kernels use."""
    return np.array([ptx.to_tf32(word) for word in array.view(np.uint32).ravel()]).view(np.float32).reshape(array.shape)


def words_of(array, positions):
    """One word: the numbers of a matrix at these (row, column) positions, the first one in the lower bits."""
    return np.array([array[position] for position in positions]).view(np.uint32)[0]


def fragments(A, B, C):
    """Per lane what it holds of the matrices, spelled out as in the PTX ISA: (32, 4), (32, 2), (32, 4)."""
    pairs = A.itemsize == 2
    a, b, c = np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32), np.zeros((32, 4), np.float32)
    for lane in LANES:
        group, thread = lane // 4, lane % 4
        columns = (
            [[2 * thread, 2 * thread + 1], [2 * thread + 8, 2 * thread + 9]] if pairs else [[thread], [thread + 4]]
        )
        for i in range(4):
            row = group if i in (0, 2) else group + 8
            a[lane, i] = words_of(A, [(row, column) for column in columns[i // 2]])
            c[lane, i] = C[group if i < 2 else group + 8, 2 * thread + i % 2]
        for i in range(2):
            b[lane, i] = words_of(B, [(row, group) for row in columns[i]])
    return a, b, c


def run_mma(mma, a, b, c, threads=32):
    @cuda.jit
    def mma_kernel(d, a, b, c):
        lane = cuda.threadIdx.x
        result = mma(
            (a[lane, 0], a[lane, 1], a[lane, 2], a[lane, 3]),
            (b[lane, 0], b[lane, 1]),
            (c[lane, 0], c[lane, 1], c[lane, 2], c[lane, 3]),
        )
        for k in range(4):
            d[lane, k] = result[k]

    d = np.full((32, 4), np.nan, np.float32)
    Kernel(mma_kernel).bind(LaunchConfig(1, threads), d, a, b, c)()
    return d


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", MMA)
def test_mma_is_the_product(dtype, seed):
    rng, K = np.random.default_rng(seed), 8 if dtype == "float32" else 16
    A, B = (rng.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in ((16, K), (K, 8)))
    C = rng.standard_normal((16, 8)).astype(np.float32)
    if dtype == "float32":
        A, B = as_tf32(A), as_tf32(B)
    a, b, c = fragments(A, B, C)
    expected = A.astype(np.float64) @ B.astype(np.float64) + C
    found = run_mma(getattr(ptx, MMA[dtype]), a, b, c)
    _, _, layout = fragments(A, B, expected)
    np.testing.assert_allclose(found, layout, rtol=0, atol=8 * np.finfo(np.float32).eps * np.abs(expected).max())


def test_mma_needs_the_whole_warp():
    nothing = np.zeros((32, 4), np.uint32)
    with pytest.raises(RuntimeError, match="mma needs all 32 lanes of the warp, 31 came"):
        run_mma(ptx.mma_float16, nothing, nothing[:, :2], np.zeros((32, 4), np.float32), threads=31)


def test_split_tf32():
    """The first part is the nearest TF32 number, both are the number, and what mma reads of them is it to 2^-23."""
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32) * np.float32(100)
    large, small = np.array([ptx.split_tf32(word) for word in values.view(np.uint32)], np.uint32).T.copy()
    np.testing.assert_array_equal(large.view(np.float32), as_tf32(values))
    np.testing.assert_array_equal(large.view(np.float32) + small.view(np.float32), values)
    read = (small & np.uint32(0xFFFFE000)).view(np.float32)
    left = np.abs(values - large.view(np.float32).astype(np.float64) - read) / np.abs(values)
    assert 0 < left.max() <= 2.0**-23


@pytest.mark.parametrize("dtype", ("uint16", "float32"))
def test_load_words_takes_16_bytes(dtype):
    count = 16 // np.dtype(dtype).itemsize
    array = np.arange(3 * count).astype(dtype)
    np.testing.assert_array_equal(ptx.load_words(array, count), array[count : 2 * count].view(np.uint32))
    for index in (-count, 3 * count, 2 * count + 1):
        with pytest.raises(IndexError, match=f"16 bytes at element {index} of {3 * count}"):
            ptx.load_words(array, index)
    with pytest.raises(ValueError, match=f"element 1 of an array of {dtype} is not at a multiple of 16 bytes"):
        ptx.load_words(array, 1)


@pytest.mark.parametrize("index", (-1, 5))
def test_a_number_outside_of_its_array_is_refused(index):
    array = np.zeros(5, np.float32)
    for access in (ptx.load, ptx.prefetch, lambda array, index: ptx.store(array, index, np.float32(1))):
        with pytest.raises(IndexError, match=f"element {index} of 5"):
            access(array, index)
    assert not array.any()
