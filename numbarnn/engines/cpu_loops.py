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
from numbarnn.cells.order import RESET, SKIP, step_code, step_time
from numbarnn.cells.philox import philox
from numbarnn.engines.atomics import barrier
from numbarnn.engines.cell_tag import (
    cell_backward,
    cell_forward,
    inner_backward,
    inner_forward,
    load_kept,
    load_outer,
    load_pre_activations,
    load_private,
    load_saved,
    num_gates,
    num_outer,
    num_private,
    num_saved,
    num_states,
    same_gradient,
    store_gates,
    store_outer,
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
_step_time, _step_code = njit(**_OPTIONS)(step_time), njit(**_OPTIONS)(step_code)
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
def code_at(codes, slot, b):
    """The code of a sequence's step, by its slot; 0 if there are no codes."""
    return codes[slot, b] if codes.shape[0] > 0 else np.uint8(0)


@njit(**_OPTIONS)
def copy_units(row, other, values, start, stop, H):
    """row = other, for units [start, stop) of `values` values of H units each."""
    for first in range(0, values * H, H):
        for j in range(first + start, first + stop):
            row[j] = other[j]


@njit(**_OPTIONS)
def clear_units(row, values, start, stop, H):
    """row = 0, likewise."""
    for first in range(0, values * H, H):
        row[first + start : first + stop] = 0


@njit(**_OPTIONS)
def _project(thread, threads, h, m, W_hr, codes, t, before, direction):
    """h[t + 1] = m[t + 1] W_hrᵀ, or h[before] for the sequences whose step is skipped: the thread's columns."""
    B, (P, H), item, ldh, ldm = h.shape[1], W_hr.shape, h.itemsize, h.shape[2], m.shape[2]
    p0, p1 = share(P, thread, threads)
    if p0 < p1:
        product(
            h, False, True, B, p1 - p0, H, m.ctypes.data + ((t + 1) * B * ldm + direction * H) * item, ldm,
            W_hr.ctypes.data + p0 * H * item, H, False,
            h.ctypes.data + ((t + 1) * B * ldh + direction * P + p0) * item, ldh,
        )  # fmt: skip
    for b in range(B):
        if code_at(codes, t + 1, b) == SKIP:
            copy_units(h[t + 1, b, direction * P :], h[before, b, direction * P :], 1, p0, p1, P)


@njit(**_OPTIONS)
def _inner_units(tag, v, ax, ah, b_w, b_r, h_before, c_before, start, stop, H):
    """What the last gates multiply, for units [start, stop) of one sequence; each array is the row of that sequence."""
    rows = np.uintp(H)
    for j in range(np.uintp(start), np.uintp(stop)):
        v[j] = inner_forward(
            tag,
            load_outer(tag, ax, b_w, j, rows),
            load_outer(tag, ah, b_r, j, rows),
            (h_before[j], *load_private(tag, c_before, j, rows)),
        )


@njit(**_OPTIONS)
def forward_steps(
    thread, threads, counters, tag, h, c, ax, ah, x, W, R, b_w, b_r, codes, m, W_hr, v, direction, first, last, save
):
    """Steps [first, last) of one direction: its products and its cell.

    Args:
        h: (T + 2, B, D * H), slot t + 1 is step t; slot 0 or T + 1 is the initial state. Written.
        c: (S, B, D * N * H) for N private states, slot modulo S; S is T + 2, or 2 if backward will not follow. Written.
        ax: (T, B, >= G * H), place for x Wᵀ; with `save` replaced by what the cell saves, (T, B, >= K * H).
        x: (T, B, I) and W: (G * H, I), or x of no steps, if ax is x Wᵀ already.
        ah: (B, G * H), scratch.  R: (G * H, H).  b_w, b_r: (G * H,).
        codes: (T + 2, B), see `numbarnn.cells.order`; (0, 0) if all steps are ordinary.
        m, W_hr: (T + 2, B, D * H) and (P, H) with projection, where h is (T + 2, B, D * P), R (G * H, P); else W_hr has
            no rows. m is written.
        v: (T, B, H), without `save` (1, B, H), written, if the cell's step has two products.
        direction: 0 forward in time, 1 backward.
    """
    T, B, G, N, P = h.shape[0] - 2, h.shape[1], num_gates(tag), num_private(tag), R.shape[1]
    H, projected, outer = R.shape[0] // G, W_hr.shape[0] > 0, num_outer(tag)
    output = m if projected else h  # what the cell writes
    column, c_column = direction * H, direction * H * N
    u0, u1 = share(H, thread, threads)
    tile = np.empty((num_states(tag) + num_saved(tag)) * TILE, dtype=h.dtype)
    nothing = np.zeros((1, max(G, N) * H if codes.shape[0] > 0 else 0), dtype=h.dtype)
    item, ldh = h.itemsize, h.shape[2]
    h_start, ah_start, R_start = h.ctypes.data + direction * P * item, ah.ctypes.data, R.ctypes.data
    if x.shape[0] > 0 and first < last:  # every thread for its own units, which need nothing of the others'
        t0, t1 = _step_time(first, T, direction, False)[0], _step_time(last - 1, T, direction, False)[0]
        _input_products(ax, x, W, G, H, min(t0, t1), max(t0, t1) + 1, u0, u1)
    for step in range(first, last):
        t, before = _step_time(step, T, direction, False)
        for g in range(outer):
            row = g * H + u0
            product(
                ah, False, True, B, u1 - u0, P, h_start + before * B * ldh * item, ldh,
                R_start + row * P * item, P, False, ah_start + row * item, G * H,
            )  # fmt: skip
        if outer < G:
            slot = t if save else 0
            for b in range(B):
                before_row, c_before, ah_row = h[before, b, column:], c[before % c.shape[0], b, c_column:], ah[b, 0:]
                if code_at(codes, t + 1, b) == RESET:
                    before_row, c_before, ah_row = nothing[0, 0:], nothing[0, 0:], nothing[0, 0:]
                _inner_units(tag, v[slot, b], ax[t, b], ah_row, b_w, b_r, before_row, c_before, u0, u1, H)
            barrier(counters, thread, threads)
            for g in range(outer, G):
                row = g * H + u0
                product(
                    ah, False, True, B, u1 - u0, H, v.ctypes.data + slot * B * H * item, H,
                    R_start + row * H * item, H, False, ah_start + row * item, G * H,
                )  # fmt: skip
        for b in range(B):
            code = code_at(codes, t + 1, b)
            output_row, c_row = output[t + 1, b, column:], c[(t + 1) % c.shape[0], b, c_column:]
            output_before, c_before = output[before, b, column:], c[before % c.shape[0], b, c_column:]
            ah_row = ah[b, 0:]
            if code == SKIP:
                copy_units(output_row, output_before, 1, u0, u1, H)
                copy_units(c_row, c_before, N, u0, u1, H)
                continue
            if code == RESET:
                output_before, c_before, ah_row = nothing[0, 0:], nothing[0, 0:], nothing[0, 0:]
            _forward_units(
                tag, tile, output_row, c_row, ax[t, b], ah_row, b_w, b_r, output_before, c_before, u0, u1, H, save
            )
        barrier(counters, thread, threads)
        if projected:
            _project(thread, threads, h, m, W_hr, codes, t, before, direction)
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
def _project_backward(thread, threads, counters, dht, dm, dh, dy, W_hr, codes, t, before, direction):
    """dht[t] = dy[t] + dh, 0 where the step is skipped; dh = 0 but there; dm = dht[t] W_hr: the thread's columns."""
    B, (P, H), item = dh.shape[0], W_hr.shape, dh.itemsize
    p0, p1 = share(P, thread, threads)
    for b in range(B):
        dht_row, dh_row, dy_row = dht[t, b, 0:], dh[b, 0:], dy[t, b, direction * P :]
        if code_at(codes, 2 * (t + 1) - before, b) == RESET:
            clear_units(dh_row, 1, p0, p1, P)
        if code_at(codes, t + 1, b) == SKIP:
            clear_units(dht_row, 1, p0, p1, P)
            continue
        for k in range(p0, p1):
            dht_row[k] = dy_row[k] + dh_row[k]
            dh_row[k] = 0
    barrier(counters, thread, threads)
    u0, u1 = share(H, thread, threads)
    if u0 < u1:
        product(
            dm, False, False, B, u1 - u0, P, dht.ctypes.data + t * B * P * item, P,
            W_hr.ctypes.data + u0 * item, H, False, dm.ctypes.data + u0 * item, H,
        )  # fmt: skip


@njit(**_OPTIONS)
def _inner_units_backward(tag, dh, dax, dv, h_before, c_before, start, stop, H):
    """The first gates' gradients and what reaches h through v, for units [start, stop) of one sequence; rows of it."""
    rows = np.uintp(H)
    for j in range(np.uintp(start), np.uintp(stop)):
        state = (h_before[j], *load_private(tag, c_before, j, rows))
        d_ax, d_h = inner_backward(tag, load_kept(tag, dax, j, rows), dv[j], state)
        store_outer(tag, dax, j, rows, d_ax)
        dh[j] += d_h


@njit(**_OPTIONS)
def backward_steps(
    thread, threads, counters, tag, dh, dc, dax, dah, dy, h, c, R, codes, dht, dm, m, W_hr, dv, direction, first, last
):
    """Steps [first, last) of one direction's backward walk: the cell's backward and the product with R.

    Args:
        dh: (B, H), gradient of the walk's first h from beyond; then of h before its last step. In place.
        dc: (B, N * H), likewise.
        dax: (T, B, >= G * H), what the cell saved (T, B, >= K * H); replaced by the gradient of x Wᵀ.
        dah: (T, B, >= G * H), the gradient of h Rᵀ, written; is dax if the cell's two gradients are the same.
        dy: (T, B, D * H).
        dht, dm: with projection, (T, B, P), written: all of the gradient of h; and (B, H), scratch for that of m.
        dv: (B, H), scratch, the gradient of v, if the cell's step has two products.
        h, c, R, codes, m, W_hr, direction: as in `forward_steps`; step 0 is the last one of forward.
    """
    T, B, G, N, P = h.shape[0] - 2, h.shape[1], num_gates(tag), num_private(tag), R.shape[1]
    H, projected = R.shape[0] // G, W_hr.shape[0] > 0
    output, d_output = (m, dm) if projected else (h, dh)
    outer = num_outer(tag)
    column, c_column = direction * H, direction * H * N
    u0, u1 = share(H, thread, threads)
    p0, p1 = share(P, thread, threads)
    tile = np.empty((num_states(tag) + 2 * G) * TILE, dtype=h.dtype)
    nothing = np.zeros((1, max(1, N) * H if codes.shape[0] > 0 or projected else 0), dtype=h.dtype)
    item, ld = h.itemsize, dah.shape[2]
    dh_start, dah_start, R_start = dh.ctypes.data, dah.ctypes.data, R.ctypes.data
    for step in range(first, last):
        t, before = _step_time(step, T, direction, True)
        if projected:
            _project_backward(thread, threads, counters, dht, dm, dh, dy, W_hr, codes, t, before, direction)
        for b in range(B):
            code = code_at(codes, t + 1, b)
            if code_at(codes, 2 * (t + 1) - before, b) == RESET:  # nothing comes from the step after
                clear_units(dc[b, 0:], N, u0, u1, H)
                if not projected:
                    clear_units(dh[b, 0:], 1, u0, u1, H)
            if code == SKIP:
                clear_units(dax[t, b, 0:], G, u0, u1, H)
                if not same_gradient(tag):
                    clear_units(dah[t, b, 0:], G, u0, u1, H)
                continue
            dy_row = nothing[0, 0:] if projected else dy[t, b, column:]
            output_before, c_before = output[before, b, column:], c[before, b, c_column:]
            if code == RESET:
                output_before, c_before = nothing[0, 0:], nothing[0, 0:]
            _backward_units(
                tag, tile, d_output[b], dc[b], dax[t, b], dah[t, b], dy_row, output[t + 1, b, column:],
                c[t + 1, b, c_column:], output_before, c_before, u0, u1, H,
            )  # fmt: skip
        barrier(counters, thread, threads)
        if outer < G:
            product(
                dv, False, False, B, u1 - u0, (G - outer) * H, dah_start + (t * B * ld + outer * H) * item, ld,
                R_start + (outer * H * H + u0) * item, H, False, dv.ctypes.data + u0 * item, H,
            )  # fmt: skip
            for b in range(B):
                before_row, c_before = h[before, b, column:], c[before, b, c_column:]
                if code_at(codes, t + 1, b) == RESET:
                    before_row, c_before = nothing[0, 0:], nothing[0, 0:]
                _inner_units_backward(tag, dh[b], dax[t, b], dv[b], before_row, c_before, u0, u1, H)
            barrier(counters, thread, threads)
        product(
            dh, False, False, B, p1 - p0, outer * H, dah_start + t * B * ld * item, ld,
            R_start + p0 * item, P, True, dh_start + p0 * item, P,
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
def step_codes(thread, threads, counters, codes, lengths, resets):
    """codes (D, T + 2, B): see `Engine.step_codes`."""
    codes[...] = 0
    for direction in range(codes.shape[0]):
        for t in range(codes.shape[1] - 2):
            for b in range(codes.shape[2]):
                codes[direction, t + 1, b] = _step_code(t, direction, lengths[b], resets, b)


@njit(**_OPTIONS)
def weight_gradients(thread, threads, counters, dW, dR, db_w, db_r, dax, dah, x, h_before, v, outer, accumulate):
    """The thread's share of a direction's gradients: see `Engine.weight_gradients`; dW and biases may have no rows.

    Args:
        h_before, v: what the first `outer` rows of R multiplied, and the others.
    """
    if dW.shape[0] > 0:
        multiply(thread, threads, counters, dW, dax, x, True, False, accumulate)
    multiply(thread, threads, counters, dR[:outer], dah[:, :outer], h_before, True, False, accumulate)
    if outer < dR.shape[0]:
        multiply(thread, threads, counters, dR[outer:], dah[:, outer:], v, True, False, accumulate)
    _bias_gradient(thread, threads, counters, db_w, dax, accumulate)
    _bias_gradient(thread, threads, counters, db_r, dah, accumulate)


@njit(**_OPTIONS)
def _bias_gradient(thread, threads, counters, bias, gradient, accumulate):
    """The thread's share of Σ gradient."""
    if not accumulate:
        n0, n1 = share(bias.shape[0], thread, threads)
        bias[n0:n1] = 0
    if bias.shape[0] > 0:
        add_row_sums(thread, threads, counters, bias, gradient)


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
