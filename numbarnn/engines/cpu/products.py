"""The CPU engine's compiled code that knows no cell: products by OpenBLAS, sums, dropout, each on several threads.

Functions that the engine calls take (thread, threads, counters, ...) first, see `thread_pool.ThreadPool`. Functions
that call each other stand in this one file, as Numba's disk cache notices changes of the calling function's file only.
Of other files it is told by `disk_cache.contains`; where a cell's steps call functions of this file, by `cell_tag`.
"""

import numpy as np
from numba import njit
from numba.extending import overload

from numbarnn.common import order
from numbarnn.common import philox as random_numbers
from numbarnn.common.order import mask_of_step
from numbarnn.common.philox import philox
from numbarnn.compile import specialise as compiling
from numbarnn.compile.specialise import INSIDE, ON_CPU, specialise
from numbarnn.engines.cpu import openblas
from numbarnn.engines.cpu.disk_cache import contains

UNITS = 16  # slices of units start at multiples of this: one 64-byte line of float32
SMALL_PRODUCT = 1_000_000  # m n k up to which OpenBLAS multiplies matrices as they lie
CHAIN = 128  # terms that a product adds up one after another
FEW_ROWS = 40  # m up to which products are cut into such small ones
SUM_ROWS = 16  # rows added up one after another
OPTIONS = dict(cache=True, nogil=True, no_cfunc_wrapper=True, **ON_CPU)
# Of functions that compiled code alone calls: without what lets Python call them, which takes as long to compile as
# they themselves. A call from Python would crash.
INNER = OPTIONS | INSIDE
_ROW_MAJOR, _NO_TRANS, _TRANS = 101, 111, 112
# Flags of `product`. As NumPy's bools Numba does not know their values, and compiles it once for all of them.
AS_IS, TRANSPOSED = np.bool_(False), np.bool_(True)
SET, ADD = np.bool_(False), np.bool_(True)
_mask_of_step = njit(**OPTIONS)(mask_of_step)


# ------------------------------------------------------------------------------------------ products
def _blas(zero, transpose_a, transpose_b, m, n, k, a, lda, b, ldb, accumulate, c, ldc):
    raise NotImplementedError("only for compiled code")


@overload(_blas)
def _blas_typed(zero, transpose_a, transpose_b, m, n, k, a, lda, b, ldb, accumulate, c, ldc):
    matrix_matrix, matrix_vector = (openblas.blas_function(str(zero), name) for name in ("gemm", "gemv"))
    one, zero = (getattr(np, str(zero))(value) for value in (1, 0))

    def call(zero, transpose_a, transpose_b, m, n, k, a, lda, b, ldb, accumulate, c, ldc):
        if m == 1:  # c = op(b)ᵀ a: not copied anywhere, up to 6 times faster
            matrix_vector(
                _ROW_MAJOR, _NO_TRANS if transpose_b else _TRANS, n if transpose_b else k, k if transpose_b else n,
                one, b, ldb, a, lda if transpose_a else 1, one if accumulate else zero, c, 1,
            )  # fmt: skip
            return
        matrix_matrix(
            _ROW_MAJOR, _TRANS if transpose_a else _NO_TRANS, _TRANS if transpose_b else _NO_TRANS,
            m, n, k, one, a, lda, b, ldb, one if accumulate else zero, c, ldc,
        )  # fmt: skip

    return call


@njit(**OPTIONS)
def share(size, thread, threads):
    """[first, last) of the thread's share of `size` units, cut at multiples of UNITS."""
    blocks = (size + UNITS - 1) // UNITS
    return min(size, blocks * thread // threads * UNITS), min(size, blocks * (thread + 1) // threads * UNITS)


@njit(**INNER, forceinline=True)
def _row_length(matrix):
    """Elements between the starts of two rows, as BLAS wants it: at least the width, at least 1."""
    return max(1, matrix.shape[1], matrix.strides[0] // matrix.itemsize)


@contains(openblas)
@njit(**INNER)
def _in_pieces(zero, item, sizes, out, a, b, flags):
    """`product` by addresses, once compiled for all layouts and flags.

    In pieces, for two reasons. OpenBLAS adds up as many as 500 terms one after another; sums of CHAIN terms, added up,
    have half the rounding error and cost nothing. And unless a product is small, OpenBLAS first copies both matrices
    into a layout of its own; with few rows that takes longer than the product: small pieces are up to 3 times faster.

    Args:
        zero, item: of the dtype; its bytes.
        sizes: (m, n, k).
        out, a, b: (address, row length) each. flags: (transpose_a, transpose_b, accumulate).
    """
    (m, n, k), (c, ldc), (a, lda), (b, ldb) = sizes, out, a, b
    transpose_a, transpose_b, accumulate = flags
    width, depth = max(1, n), max(1, k) if m == 1 else CHAIN
    if 1 < m <= FEW_ROWS and not transpose_a:
        width = 2 * UNITS if transpose_b else 4 * UNITS
        lanes = 8 if transpose_b else 1  # rows by rows: OpenBLAS adds the terms up in several lanes anyway
        depth = min(lanes * CHAIN, SMALL_PRODUCT // (max(1, m) * width))
    for i in range(0, n, width):
        for j in range(0, k, depth):
            a_start = a + (j * lda if transpose_a else j) * item
            b_start = b + ((i * ldb + j) if transpose_b else (j * ldb + i)) * item
            _blas(
                zero, transpose_a, transpose_b, m, min(width, n - i), min(depth, k - j), a_start, lda,
                b_start, ldb, accumulate or j > 0, c + i * item, ldc,
            )  # fmt: skip


@contains(openblas)
@njit(**INNER, forceinline=True)
def product(out, a, b, transpose_a, transpose_b, accumulate):
    """out (m, n) = op(a) op(b), k terms each, or +=; rows of matrices may stand apart.

    Inlined, so that views that callers take, such as `R[rows, :]`, come to nothing but addresses.
    """
    sizes = out.shape[0], out.shape[1], a.shape[0] if transpose_a else a.shape[1]
    places = (
        (out.ctypes.data, _row_length(out)),
        (a.ctypes.data, _row_length(a)),
        (b.ctypes.data, _row_length(b)),
    )
    flags = transpose_a, transpose_b, accumulate
    _in_pieces(out.dtype.type(0), out.itemsize, sizes, places[0], places[1], places[2], flags)


@contains(openblas)
@njit(**OPTIONS)
def multiply(thread, threads, counters, out, a, b, transpose_a, transpose_b, accumulate):
    """The thread's share of out (M, N) = op(a) op(b), or +=; the longer side of out is shared."""
    m, n = out.shape
    m0, m1, n0, n1 = 0, m, 0, n
    if m >= n:
        m0, m1 = share(m, thread, threads)
    else:
        n0, n1 = share(n, thread, threads)
    if m0 < m1 and n0 < n1:
        own_a = a[:, m0:m1] if transpose_a else a[m0:m1, :]
        own_b = b[n0:n1, :] if transpose_b else b[:, n0:n1]
        product(out[m0:m1, n0:n1], own_a, own_b, transpose_a, transpose_b, accumulate)


# ------------------------------------------------------------------------------------------ sums
_philox = specialise(philox, "float32", "cpu")


@njit(**OPTIONS)
def add_column_sums(thread, threads, counters, out, x):
    """The thread's share of out (N,) += x.sum(axis=0), x (M, N).

    Pairwise, so that the rounding error does not grow with M: sums of SUM_ROWS rows are added two by two, those sums
    two by two, and so on; `waiting[k]` is a sum of 2^k of them that waits for its like.
    """
    n0, n1 = share(out.shape[0], thread, threads)
    M, blocks = x.shape[0], (x.shape[0] + SUM_ROWS - 1) // SUM_ROWS
    levels = 1
    while blocks >> levels > 0:
        levels += 1
    waiting = np.zeros((levels + 1, n1 - n0), dtype=x.dtype)
    for block in range(blocks):
        total = x[block * SUM_ROWS, n0:n1].copy()
        for m in range(block * SUM_ROWS + 1, min(M, (block + 1) * SUM_ROWS)):
            _add(total, x[m, n0:n1])
        level, likes = 0, block
        while likes & 1:
            _add(total, waiting[level])
            waiting[level] = 0
            level, likes = level + 1, likes >> 1
        _put(waiting[level], total)
    level = 0
    while blocks >> level > 1:
        _add(waiting[level + 1], waiting[level])
        level += 1
    _add(out[n0:n1], waiting[level])


@contains(compiling, order)
@njit(**OPTIONS)
def fill_step_mask(thread, threads, counters, step_mask, lengths, resets):
    """step_mask (D, T + 2, B): see `Engine.fill_step_mask`."""
    step_mask[...] = 0
    for direction in range(step_mask.shape[0]):
        for t in range(step_mask.shape[1] - 2):
            for b in range(step_mask.shape[2]):
                step_mask[direction, t + 1, b] = _mask_of_step(t, direction, lengths[b], resets, b)


@contains(openblas)
@njit(**OPTIONS)
def weight_gradients(thread, threads, counters, dw, dax, dah, x, h_before, accumulate):
    """The thread's share of a direction's gradients, see `Engine.weight_gradients`; dw is (dW, dR, db_w, db_r), None
    where one is missing."""
    dW, dR, db_w, db_r = dw
    _weight_gradient(thread, threads, counters, dW, dax, x, accumulate)
    _weight_gradient(thread, threads, counters, dR, dah, h_before, accumulate)
    _bias_gradient(thread, threads, counters, db_w, dax, accumulate)
    _bias_gradient(thread, threads, counters, db_r, dah, accumulate)


@njit(**INNER)
def _weight_gradient(thread, threads, counters, weight, gradient, given, accumulate):
    """The thread's share of gradientᵀ given, of as many columns of the gradient as the weight has rows."""
    if weight is not None:
        columns = gradient[:, : weight.shape[0]]
        multiply(thread, threads, counters, weight, columns, given, TRANSPOSED, AS_IS, accumulate)


@njit(**INNER)
def _bias_gradient(thread, threads, counters, bias, gradient, accumulate):
    """The thread's share of Σ gradient."""
    if bias is not None:
        if not accumulate:
            n0, n1 = share(bias.shape[0], thread, threads)
            bias[n0:n1] = 0
        add_column_sums(thread, threads, counters, bias, gradient)


@njit(**INNER)
def _add(total, row):
    for n in range(total.shape[0]):
        total[n] += row[n]


@njit(**INNER)
def _put(kept, row):
    """kept = row. For kept[...] = row Numba compiles, for seconds, the message that shapes do not agree."""
    for n in range(kept.shape[0]):
        kept[n] = row[n]


@contains(compiling, random_numbers)
@njit(**OPTIONS)
def dropout(thread, threads, counters, out, x, mask, scale, position):
    """The thread's share of dropout, element by element as `kernels.arrays.dropout` does it; out and x (n,), the
    elements from number `position` on."""
    first, last = share(x.size, thread, threads)
    threshold, key_0, key_1, stream_0, stream_1 = mask[0], mask[1], mask[2], mask[3], mask[4]
    for group in range((position + first) // 4, (position + last + 3) // 4):
        low, high = np.uint64(group) & np.uint64(0xFFFFFFFF), np.uint64(group) >> np.uint64(32)
        words = _philox(low, high, stream_0, stream_1, key_0, key_1)
        for k in range(4):
            i = group * 4 + k - position
            if first <= i < last:
                out[i] = x[i] * scale if words[k] >= threshold else scale - scale
