"""The CPU engine's compiled loops: all steps of one layer and direction, on several threads, around BLAS and a cell.

Every function takes (thread, threads, counters, ...) first, see `team.Team`. Threads own slices of the units; they
meet once per step, because the next step's product needs all of h. The cell arrives as a tag, see `cell_tag`. Functions
that call each other stand in this one file, as Numba's disk cache notices changes of the calling function's file only.
"""

import numpy as np
from numba import njit
from numba.extending import overload

from numbarnn import gemm
from numbarnn.cells import specialise
from numbarnn.cells.definition import FAST_MATH
from numbarnn.cells.order import step_time
from numbarnn.cells.philox import philox
from numbarnn.engines.atomics import barrier
from numbarnn.engines.cell_tag import (
    cell_backward,
    cell_forward,
    load_pre_activations,
    load_private,
    load_saved,
    num_gates,
    num_private,
    num_saved,
    num_states,
    same_gradient,
    store_gates,
    store_saved,
    store_states,
)

UNITS = 16  # slices of units start at multiples of this: one 64-byte line of float32
SMALL_PRODUCT = 1_000_000  # m n k up to which OpenBLAS multiplies matrices as they lie
CHAIN = 128  # terms that a product adds up one after another
FEW_ROWS = 40  # m up to which products are cut into such small ones
TILE = 128  # units whose results a thread collects before it stores them
SUM_ROWS = 16  # rows added up one after another
_OPTIONS = dict(cache=True, nogil=True, fastmath=FAST_MATH, error_model="numpy")
_step_time = njit(**_OPTIONS)(step_time)
_ROW_MAJOR, _NO_TRANS, _TRANS = 101, 111, 112


# ------------------------------------------------------------------------------------------ products
def _blas(out, transpose_a, transpose_b, m, n, k, a, lda, b, ldb, accumulate, c, ldc):
    raise NotImplementedError("only for compiled code")


@overload(_blas)
def _blas_typed(out, transpose_a, transpose_b, m, n, k, a, lda, b, ldb, accumulate, c, ldc):
    matrix_matrix, matrix_vector = (gemm.blas_function(str(out.dtype), name) for name in ("gemm", "gemv"))
    one, zero = (getattr(np, str(out.dtype))(value) for value in (1, 0))

    def call(out, transpose_a, transpose_b, m, n, k, a, lda, b, ldb, accumulate, c, ldc):
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


@njit(**_OPTIONS)
def share(size, thread, threads):
    """[first, last) of the thread's share of `size` units, cut at multiples of UNITS."""
    blocks = (size + UNITS - 1) // UNITS
    return min(size, blocks * thread // threads * UNITS), min(size, blocks * (thread + 1) // threads * UNITS)


@njit(**_OPTIONS)
def product(out, transpose_a, transpose_b, m, n, k, a, lda, b, ldb, accumulate, c, ldc):
    """c (m, n) = op(a) op(b), k terms each, or +=; addresses, with `out` for the dtype.

    In pieces, for two reasons. OpenBLAS adds up as many as 500 terms one after another; sums of CHAIN terms, added up,
    have half the rounding error and cost nothing. And unless a product is small, OpenBLAS first copies both matrices
    into a layout of its own; with few rows that takes longer than the product: small pieces are up to 3 times faster.
    """
    width, depth = max(1, n), max(1, k) if m == 1 else CHAIN
    if 1 < m <= FEW_ROWS and not transpose_a:
        width = 2 * UNITS if transpose_b else 4 * UNITS
        lanes = 8 if transpose_b else 1  # rows by rows: OpenBLAS adds the terms up in several lanes anyway
        depth = min(lanes * CHAIN, SMALL_PRODUCT // (max(1, m) * width))
    item = out.itemsize
    for i in range(0, n, width):
        for j in range(0, k, depth):
            a_start = a + (j * lda if transpose_a else j) * item
            b_start = b + ((i * ldb + j) if transpose_b else (j * ldb + i)) * item
            _blas(
                out, transpose_a, transpose_b, m, min(width, n - i), min(depth, k - j), a_start, lda,
                b_start, ldb, accumulate or j > 0, c + i * item, ldc,
            )  # fmt: skip


@njit(**_OPTIONS)
def row_length(matrix):
    """Elements between the starts of two rows, as BLAS wants it: at least the width, at least 1."""
    return max(1, matrix.shape[1], matrix.strides[0] // matrix.itemsize)


@njit(**_OPTIONS)
def multiply(thread, threads, counters, out, a, b, transpose_a, transpose_b, accumulate):
    """The thread's share of out (M, N) = op(a) op(b), or +=; the longer side of out is shared.

    Rows of each matrix may be longer than it is wide.
    """
    item = out.itemsize
    m, n = out.shape
    k = a.shape[0] if transpose_a else a.shape[1]
    m0, m1, n0, n1 = 0, m, 0, n
    if m >= n:
        m0, m1 = share(m, thread, threads)
    else:
        n0, n1 = share(n, thread, threads)
    lda, ldb, ldc = row_length(a), row_length(b), row_length(out)
    a_start = a.ctypes.data + (m0 if transpose_a else m0 * lda) * item
    b_start = b.ctypes.data + (n0 * ldb if transpose_b else n0) * item
    c_start = out.ctypes.data + (m0 * ldc + n0) * item
    m, n = m1 - m0, n1 - n0
    if m > 0 and n > 0:
        product(out, transpose_a, transpose_b, m, n, k, a_start, lda, b_start, ldb, accumulate, c_start, ldc)


# ------------------------------------------------------------------------------------------ forward
@njit(**_OPTIONS)
def put(row, first, tile, number, n):
    """row[first : first + n] = row `number` of a tile."""
    target, source = row[first : first + n], tile[number * TILE :]
    for i in range(n):
        target[i] = source[i]


@njit(**_OPTIONS)
def _forward_units(tag, tile, h, c, ax, ah, b_w, b_r, h_before, c_before, start, stop, H, save):
    """One step of units [start, stop) of one sequence; each array is the row of that sequence.

    Results go through a tile, so that the loop stores to one place that it does not read: only then LLVM vectorises it.
    """
    for first in range(start, stop, TILE):
        n = min(TILE, stop - first)
        j, rows = np.uintp(first), np.uintp(H)
        for i in range(np.uintp(n)):
            new_state, kept = cell_forward(
                tag,
                load_pre_activations(tag, ax, b_w, j, rows),
                load_pre_activations(tag, ah, b_r, j, rows),
                (h_before[j], *load_private(tag, c_before, j, rows)),
            )
            store_states(tag, tile, i, np.uintp(TILE), new_state)
            if save:
                store_saved(tag, tile, i + np.uintp(num_states(tag) * TILE), np.uintp(TILE), kept)
            j += np.uintp(1)
        put(h, first, tile, 0, n)
        for k in range(1, num_states(tag)):
            put(c, (k - 1) * H + first, tile, k, n)
        for k in range(num_saved(tag) if save else 0):
            put(ax, k * H + first, tile, num_states(tag) + k, n)


@njit(**_OPTIONS)
def _input_products(ax, x, W, G, H, t0, t1, u0, u1):
    """x Wᵀ of times [t0, t1) and units [u0, u1), into ax; as in `forward_steps`."""
    B, I, item, ld = x.shape[1], x.shape[2], x.itemsize, ax.shape[2]  # noqa: E741 - the legend's letter
    for g in range(G):
        row = g * H + u0
        product(
            ax, False, True, (t1 - t0) * B, u1 - u0, I, x.ctypes.data + t0 * B * I * item, I,
            W.ctypes.data + row * I * item, I, False, ax.ctypes.data + (t0 * B * ld + row) * item, ld,
        )  # fmt: skip


@njit(**_OPTIONS)
def forward_steps(thread, threads, counters, tag, h, c, ax, ah, x, W, R, b_w, b_r, direction, first, last, save):
    """Steps [first, last) of one direction: its products and its cell.

    Args:
        h: (T + 2, B, D * H), slot t + 1 is step t; slot 0 or T + 1 is the initial state. Written.
        c: (S, B, D * N * H) for N private states, slot modulo S; S is T + 2, or 2 if backward will not follow. Written.
        ax: (T, B, >= G * H), place for x Wᵀ; with `save` replaced by what the cell saves, (T, B, >= K * H).
        x: (T, B, I) and W: (G * H, I), or x of no steps, if ax is x Wᵀ already.
        ah: (B, G * H), scratch.  R: (G * H, H).  b_w, b_r: (G * H,).
        direction: 0 forward in time, 1 backward.
    """
    T, B, H, G = h.shape[0] - 2, h.shape[1], R.shape[1], num_gates(tag)
    h_column, c_column = direction * H, direction * H * num_private(tag)
    u0, u1 = share(H, thread, threads)
    tile = np.empty((num_states(tag) + num_saved(tag)) * TILE, dtype=h.dtype)
    item, ldh = h.itemsize, h.shape[2]
    h_start, ah_start, R_start = h.ctypes.data + h_column * item, ah.ctypes.data, R.ctypes.data
    if x.shape[0] > 0 and first < last:  # every thread for its own units, which need nothing of the others'
        t0, t1 = _step_time(first, T, direction, False)[0], _step_time(last - 1, T, direction, False)[0]
        _input_products(ax, x, W, G, H, min(t0, t1), max(t0, t1) + 1, u0, u1)
    for step in range(first, last):
        t, before = _step_time(step, T, direction, False)
        for g in range(G):
            row = g * H + u0
            product(
                ah, False, True, B, u1 - u0, H, h_start + before * B * ldh * item, ldh,
                R_start + row * H * item, H, False, ah_start + row * item, G * H,
            )  # fmt: skip
        for b in range(B):
            _forward_units(
                tag, tile, h[t + 1, b, h_column:], c[(t + 1) % c.shape[0], b, c_column:], ax[t, b], ah[b], b_w, b_r,
                h[before, b, h_column:], c[before % c.shape[0], b, c_column:], u0, u1, H, save,
            )  # fmt: skip
        barrier(counters, thread, threads)


# ------------------------------------------------------------------------------------------ backward
@njit(**_OPTIONS)
def _backward_units(tag, tile, dh, dc, dax, dah, dy, h, c, h_before, c_before, start, stop, H):
    """One step backward of units [start, stop) of one sequence; arrays and tile as in `_forward_units`."""
    for first in range(start, stop, TILE):
        n = min(TILE, stop - first)
        j, rows = np.uintp(first), np.uintp(H)
        for i in range(np.uintp(n)):
            d_ax, d_ah, d_before = cell_backward(
                tag,
                load_saved(tag, dax, j, rows),
                (h_before[j], *load_private(tag, c_before, j, rows)),
                (h[j], *load_private(tag, c, j, rows)),
                (dy[j] + dh[j], *load_private(tag, dc, j, rows)),
            )
            store_states(tag, tile, i, np.uintp(TILE), d_before)
            store_gates(tag, tile, i + np.uintp(num_states(tag) * TILE), np.uintp(TILE), d_ax)
            if not same_gradient(tag):
                store_gates(tag, tile, i + np.uintp((num_states(tag) + num_gates(tag)) * TILE), np.uintp(TILE), d_ah)
            j += np.uintp(1)
        put(dh, first, tile, 0, n)
        for k in range(1, num_states(tag)):
            put(dc, (k - 1) * H + first, tile, k, n)
        for g in range(num_gates(tag)):
            put(dax, g * H + first, tile, num_states(tag) + g, n)
            if not same_gradient(tag):
                put(dah, g * H + first, tile, num_states(tag) + num_gates(tag) + g, n)


@njit(**_OPTIONS)
def backward_steps(thread, threads, counters, tag, dh, dc, dax, dah, dy, h, c, R, direction, first, last):
    """Steps [first, last) of one direction's backward walk: the cell's backward and the product with R.

    Args:
        dh: (B, H), gradient of the walk's first h from beyond; then of h before its last step. In place.
        dc: (B, N * H), likewise.
        dax: (T, B, >= G * H), what the cell saved (T, B, >= K * H); replaced by the gradient of x Wᵀ.
        dah: (T, B, >= G * H), the gradient of h Rᵀ, written; is dax if the cell's two gradients are the same.
        dy: (T, B, D * H).  h, c, R, direction: as in `forward_steps`; step 0 is the last one of forward.
    """
    T, B, H, G = h.shape[0] - 2, h.shape[1], R.shape[1], num_gates(tag)
    h_column, c_column = direction * H, direction * H * num_private(tag)
    u0, u1 = share(H, thread, threads)
    tile = np.empty((num_states(tag) + 2 * G) * TILE, dtype=h.dtype)
    item, ld = h.itemsize, dah.shape[2]
    dh_start, dah_start, R_start = dh.ctypes.data, dah.ctypes.data, R.ctypes.data
    for step in range(first, last):
        t, before = _step_time(step, T, direction, True)
        for b in range(B):
            _backward_units(
                tag, tile, dh[b], dc[b], dax[t, b], dah[t, b], dy[t, b, h_column:],
                h[t + 1, b, h_column:], c[t + 1, b, c_column:],
                h[before, b, h_column:], c[before, b, c_column:], u0, u1, H,
            )  # fmt: skip
        barrier(counters, thread, threads)
        product(
            dh, False, False, B, u1 - u0, G * H, dah_start + t * B * ld * item, ld,
            R_start + u0 * item, H, True, dh_start + u0 * item, H,
        )  # fmt: skip


# ------------------------------------------------------------------------------------------ the rest
_philox = specialise(philox, "float32", "cpu")


@njit(**_OPTIONS)
def add_row_sums(thread, threads, counters, out, x):
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
        waiting[level] = total
    level = 0
    while blocks >> level > 1:
        _add(waiting[level + 1], waiting[level])
        level += 1
    _add(out[n0:n1], waiting[level])


@njit(**_OPTIONS)
def weight_gradients(thread, threads, counters, dW, dR, db_w, db_r, dax, dah, x, h_before, accumulate):
    """The thread's share of a direction's gradients: see `Engine.weight_gradients`; biases may have no elements."""
    multiply(thread, threads, counters, dW, dax, x, True, False, accumulate)
    multiply(thread, threads, counters, dR, dah, h_before, True, False, accumulate)
    if db_w.shape[0] > 0:
        n0, n1 = share(db_w.shape[0], thread, threads)
        if not accumulate:
            db_w[n0:n1] = 0
            db_r[n0:n1] = 0
        add_row_sums(thread, threads, counters, db_w, dax)
        add_row_sums(thread, threads, counters, db_r, dah)


@njit(**_OPTIONS)
def _add(total, row):
    for n in range(total.shape[0]):
        total[n] += row[n]


@njit(**_OPTIONS)
def dropout(thread, threads, counters, out, x, mask, scale, position):
    """The thread's share of dropout, element by element as `kernels.dropout` does it; out and x (n,), the elements from
    number `position` on."""
    first, last = share(x.size, thread, threads)
    threshold, key_0, key_1, stream_0, stream_1 = mask[0], mask[1], mask[2], mask[3], mask[4]
    for group in range((position + first) // 4, (position + last + 3) // 4):
        low, high = np.uint64(group) & np.uint64(0xFFFFFFFF), np.uint64(group) >> np.uint64(32)
        words = _philox(low, high, stream_0, stream_1, key_0, key_1)
        for k in range(4):
            i = group * 4 + k - position
            if first <= i < last:
                out[i] = x[i] * scale if words[k] >= threshold else scale - scale
