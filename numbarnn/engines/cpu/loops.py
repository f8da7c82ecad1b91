"""The CPU engine's compiled loops: all steps of one layer and direction, on several threads, around BLAS and a cell.

Every function takes (thread, threads, counters, ...) first, see `thread_pool.ThreadPool`. Threads own slices of the
units; they meet once per step, because the next step's product needs all of h, and once at each stage. The cell
arrives as a tag, see `cell_tag`. Functions that call each other stand in this one file, as Numba's disk cache notices
changes of the calling function's file only; those of `cpu_products`, which know no cell, it notices by the tag.
"""

import numpy as np
from numba import njit

from numbarnn.common.order import RESET, SKIP, step_time
from numbarnn.engines.cpu.atomics import barrier
from numbarnn.engines.cpu.cell_tag import (
    cell_backward,
    cell_draws,
    cell_forward,
    cell_noise,
    cell_sums,
    first_gate,
    first_sum,
    for_product_stage,
    for_sum_stage,
    load_d_sums,
    load_d_v,
    load_input,
    load_per_unit,
    load_private,
    load_recurrent,
    load_saved,
    num_ah,
    num_gates,
    num_per_unit,
    num_private,
    num_recurrent,
    num_saved,
    num_stages,
    num_states,
    num_sums,
    product_number,
    same_gradient,
    store_gates,
    store_gradient_terms,
    store_gradients,
    store_per_unit,
    store_recurrent,
    store_saved,
    store_states,
    store_terms,
    store_vector,
)
from numbarnn.engines.cpu.products import OPTIONS, product, share

# Of functions without a tag that call other files: cached on their own, they would not notice when those files change.
# They are in the cache as part of the functions with a tag, which tells.
PART = OPTIONS | {"cache": False}

TILE = 128  # units whose results a thread collects before it stores them
_step_time = njit(**OPTIONS)(step_time)


# ------------------------------------------------------------------------------------------ forward
@njit(**OPTIONS)
def put(row, first, tile, number, n):
    """row[first : first + n] = row `number` of a tile."""
    target, source = row[first : first + n], tile[number * TILE :]
    for i in range(n):
        target[i] = source[i]


@njit(**OPTIONS)
def _forward_units(
    tag, tile, h, c, ax, ah, b_w, b_r, per_unit, sums, draws, h_before, c_before, start, stop, H, save
):  # fmt: skip
    """One step of units [start, stop) of one sequence; each array is the row of that sequence.

    `sums` are those that the cell's functions see; `draws` is what `cell_draws` returns. Results go through a tile, so
    that the loop stores to one place that it does not read: only then LLVM vectorises it.
    """
    for first in range(start, stop, TILE):
        n = min(TILE, stop - first)
        j, rows = np.uintp(first), np.uintp(H)
        for i in range(np.uintp(n)):
            new_state, kept = cell_forward(
                tag,
                load_input(tag, ax, b_w, j, rows),
                load_recurrent(tag, ah, b_r, j, rows),
                (h_before[j], *load_private(tag, c_before, j, rows)),
                load_per_unit(tag, per_unit, j, rows),
                sums,
                cell_noise(tag, h_before, draws, j, save),
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


@njit(**PART)
def _input_products(ax, x, W, G, H, t0, t1, u0, u1):
    """x Wᵀ of times [t0, t1) and units [u0, u1), into ax; as in `forward_steps`."""
    B, I, item, ld = x.shape[1], x.shape[2], x.itemsize, ax.shape[2]  # noqa: E741 - the legend's letter
    for g in range(G):
        row = g * H + u0
        product(
            ax, False, True, (t1 - t0) * B, u1 - u0, I, x.ctypes.data + t0 * B * I * item, I,
            W.ctypes.data + row * I * item, I, False, ax.ctypes.data + (t0 * B * ld + row) * item, ld,
        )  # fmt: skip


@njit(**OPTIONS)
def code_at(step_mask, slot, b):
    """The code of a sequence's step, by its slot; 0 if there are no step_mask."""
    return step_mask[slot, b] if step_mask.shape[0] > 0 else np.uint8(0)


@njit(**OPTIONS)
def copy_units(row, other, values, start, stop, H):
    """row = other, for units [start, stop) of `values` values of H units each."""
    for first in range(0, values * H, H):
        for j in range(first + start, first + stop):
            row[j] = other[j]


@njit(**OPTIONS)
def clear_units(row, values, start, stop, H):
    """row = 0, likewise."""
    for first in range(0, values * H, H):
        row[first + start : first + stop] = 0


@njit(**PART)
def _project(thread, threads, h, m, W_hr, step_mask, t, before, direction):
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
        if code_at(step_mask, t + 1, b) == SKIP:
            copy_units(h[t + 1, b, direction * P :], h[before, b, direction * P :], 1, p0, p1, P)


@njit(**OPTIONS)
def _stage_units(
    tag, stage, v, ax, ah, b_w, b_r, per_unit, sums, draws, h_before, c_before, start, stop, H, save
):  # fmt: skip
    """The vector that a stage's rows of R multiply, for units [start, stop) of one sequence; as `_forward_units`.

    Here and below the stage is known by its type.
    """
    rows = np.uintp(H)
    for j in range(np.uintp(start), np.uintp(stop)):
        store_vector(
            tag,
            stage,
            v,
            j,
            rows,
            load_input(tag, ax, b_w, j, rows),
            load_recurrent(tag, ah, b_r, j, rows),
            (h_before[j], *load_private(tag, c_before, j, rows)),
            load_per_unit(tag, per_unit, j, rows),
            sums,
            cell_noise(tag, h_before, draws, j, save),
        )


@njit(**OPTIONS)
def _add_rows(tile, other, n):
    """Row 0 of a tile += the first n values that begin at place `other`."""
    first, second = tile[:n], tile[other:]
    for i in range(n):
        first[i] += second[i]


@njit(**OPTIONS)
def _add_lanes(parts, tile):
    """parts[q] = the sum of row q of a tile, its values added up in pairs, those in pairs, and so on."""
    for q in range(parts.shape[0]):
        width = TILE // 2
        while width > 0:
            _add_rows(tile[q * TILE :], width, width)
            width //= 2
        parts[q] = tile[q * TILE]


@njit(**OPTIONS)
def _add_parts(totals, parts, first, last):
    """totals (B, Q) = the sum of all threads' parts (threads, B, Q), in their order, of columns [first, last)."""
    for b in range(totals.shape[0]):
        for q in range(first, last):
            total = parts[0, b, q]
            for other in range(1, parts.shape[0]):
                total += parts[other, b, q]
            totals[b, q] = total


@njit(**OPTIONS)
def _stage_sums(
    tag, stage, tile, parts, ax, ah, b_w, b_r, per_unit, sums, draws, h_before, c_before, start, stop, H, save
):  # fmt: skip
    """parts = the sums of a stage's terms of units [start, stop) of one sequence; as `_forward_units`."""
    rows = np.uintp(H)
    count = parts.shape[0]  # rows of the tile that add up the terms of all tiles; after them come those of this one
    tile[: count * TILE] = 0
    for first in range(start, stop, TILE):
        n = min(TILE, stop - first)
        j = np.uintp(first)
        for i in range(np.uintp(n)):
            store_terms(
                tag,
                stage,
                tile,
                i + np.uintp(count * TILE),
                np.uintp(TILE),
                load_input(tag, ax, b_w, j, rows),
                load_recurrent(tag, ah, b_r, j, rows),
                (h_before[j], *load_private(tag, c_before, j, rows)),
                load_per_unit(tag, per_unit, j, rows),
                sums,
                cell_noise(tag, h_before, draws, j, save),
            )
            j += np.uintp(1)
        for q in range(count):
            _add_rows(tile[q * TILE :], count * TILE, n)
    _add_lanes(parts, tile)


@njit(**OPTIONS)
def forward_steps(
    thread, threads, counters, tag, h, c, ax, ah, x, W, R, b_w, b_r, step_mask, m, W_hr, per_unit, v, sums, parts,
    noise, direction, first, last, save,
):  # fmt: skip
    """Steps [first, last) of one direction: its products and its cell.

    Args:
        h: (T + 2, B, D * H), slot t + 1 is step t; slot 0 or T + 1 is the initial state. Written.
        c: (S, B, D * N * H) for N private states, slot modulo S; S is T + 2, or 2 if backward will not follow. Written.
        ax: (T, B, >= G * H), place for x Wᵀ; with `save` replaced by what the cell saves, (T, B, >= K * H).
        x: (T, B, I) and W: (G * H, I), or x of no steps, if ax is x Wᵀ already.
        ah: (B, A * H), scratch; A gates, G but for general cells.  R: (A * H, H).  b_w: (G * H,).  b_r: (A * H,).
        step_mask: (T + 2, B), see `numbarnn.common.order`; (0, 0) if all steps are ordinary.
        m, W_hr: (T + 2, B, D * H) and (P, H) with projection, where h is (T + 2, B, D * P), R (G * H, P); else W_hr has
            no rows. m is written.
        per_unit: (V * H,).
        v: (T, B, S * H), without `save` (1, B, S * H), written, if the cell has S further products.
        sums: (T, B, Q), without `save` (1, B, Q), written, if the cell has Q sums over units.
        parts: (threads, B, Q), scratch: each thread's part of a step's sums.
        noise: (4,) uint64, see `numbarnn.common.philox.noise_words`; with `save` read, if the cell has noise.
        direction: 0 forward in time, 1 backward.
    """
    T, B, G, A, N, P = h.shape[0] - 2, h.shape[1], num_gates(tag), num_ah(tag), num_private(tag), R.shape[1]
    H, projected = b_w.shape[0] // G, W_hr.shape[0] > 0
    output = m if projected else h  # what the cell writes
    column, c_column = direction * H, direction * H * N
    u0, u1 = share(H, thread, threads)
    tile = np.empty(max(num_states(tag) + num_saved(tag), 2 * num_sums(tag)) * TILE, dtype=h.dtype)
    nothing = np.zeros((1, max(1, N) * H if step_mask.shape[0] > 0 else 0), dtype=h.dtype)
    totals = np.empty((B, num_sums(tag)), dtype=h.dtype)
    item, ldh = h.itemsize, h.shape[2]
    h_start, ah_start, R_start = h.ctypes.data + direction * P * item, ah.ctypes.data, R.ctypes.data
    if x.shape[0] > 0 and first < last:  # every thread for its own units, which need nothing of the others'
        t0, t1 = _step_time(first, T, direction, False)[0], _step_time(last - 1, T, direction, False)[0]
        _input_products(ax, x, W, G, H, min(t0, t1), max(t0, t1) + 1, u0, u1)
    for step in range(first, last):
        t, before = _step_time(step, T, direction, False)
        for g in range(num_recurrent(tag)):
            row = g * H + u0
            product(
                ah, False, True, B, u1 - u0, P, h_start + before * B * ldh * item, ldh,
                R_start + row * P * item, P, False, ah_start + row * item, A * H,
            )  # fmt: skip
        for b in range(B if step_mask.shape[0] > 0 else 0):
            if code_at(step_mask, t + 1, b) == RESET:
                clear_units(ah[b, 0:], num_recurrent(tag), u0, u1, H)
        for stage in range(num_stages(tag)):
            slot, ldv, column_v = t if save else 0, v.shape[2], product_number(tag, stage) * H
            q0, q1 = first_sum(tag, stage), first_sum(tag, stage + 1)
            for b in range(B):
                before_row, c_before = output[before, b, column:], c[before % c.shape[0], b, c_column:]
                if code_at(step_mask, t + 1, b) == RESET:
                    before_row, c_before = nothing[0, 0:], nothing[0, 0:]
                draws = cell_draws(tag, noise, b * H, t)
                if q0 < q1:
                    for_sum_stage(
                        tag, stage, _stage_sums, tile, parts[thread, b, q0:q1], ax[t, b], ah[b], b_w, b_r, per_unit,
                        cell_sums(tag, totals[b], H), draws, before_row, c_before, u0, u1, H, save,
                    )  # fmt: skip
                else:
                    for_product_stage(
                        tag, stage, _stage_units, v[slot, b, column_v:], ax[t, b], ah[b], b_w, b_r, per_unit,
                        cell_sums(tag, totals[b], H), draws, before_row, c_before, u0, u1, H, save,
                    )  # fmt: skip
            barrier(counters, thread, threads)
            if q0 < q1:
                _add_parts(totals, parts[:threads], q0, q1)
                if thread == 0:
                    for b in range(B):
                        copy_units(sums[slot, b], totals[b], 1, q0, q1, q1)
            for g in range(first_gate(tag, stage), first_gate(tag, stage + 1)):
                row = g * H + u0
                product(
                    ah, False, True, B, u1 - u0, H, v.ctypes.data + (slot * B * ldv + column_v) * item, ldv,
                    R_start + row * H * item, H, False, ah_start + row * item, A * H,
                )  # fmt: skip
        for b in range(B):
            code = code_at(step_mask, t + 1, b)
            output_row, c_row = output[t + 1, b, column:], c[(t + 1) % c.shape[0], b, c_column:]
            output_before, c_before = output[before, b, column:], c[before % c.shape[0], b, c_column:]
            if code == SKIP:
                copy_units(output_row, output_before, 1, u0, u1, H)
                copy_units(c_row, c_before, N, u0, u1, H)
                continue
            if code == RESET:
                output_before, c_before = nothing[0, 0:], nothing[0, 0:]
            _forward_units(
                tag, tile, output_row, c_row, ax[t, b], ah[b], b_w, b_r, per_unit, cell_sums(tag, totals[b], H),
                cell_draws(tag, noise, b * H, t), output_before, c_before, u0, u1, H, save,
            )  # fmt: skip
        barrier(counters, thread, threads)
        if projected:
            _project(thread, threads, h, m, W_hr, step_mask, t, before, direction)
            barrier(counters, thread, threads)


# ------------------------------------------------------------------------------------------ backward
@njit(**OPTIONS)
def _backward_units(
    tag, tile, dh, dc, dax, dah, d_per_unit, dy, h, c, per_unit, d_v, sums, d_sums, draws, h_before, c_before,
    start, stop, H,
):  # fmt: skip
    """One step backward of units [start, stop) of one sequence; arrays, draws and tile as in `_forward_units`."""
    recurrent, after_gates = num_recurrent(tag), num_states(tag) + num_gates(tag)
    for first in range(start, stop, TILE):
        n = min(TILE, stop - first)
        j, rows = np.uintp(first), np.uintp(H)
        for i in range(np.uintp(n)):
            d_ax, d_ah, d_before, d_own = cell_backward(
                tag,
                load_saved(tag, dax, j, rows),
                (h_before[j], *load_private(tag, c_before, j, rows)),
                (h[j], *load_private(tag, c, j, rows)),
                (dy[j] + dh[j], *load_private(tag, dc, j, rows)),
                load_d_v(tag, d_v, j, rows),
                load_per_unit(tag, per_unit, j, rows),
                sums,
                d_sums,
                cell_noise(tag, h, draws, j, True),
            )
            store_states(tag, tile, i, np.uintp(TILE), d_before)
            store_gates(tag, tile, i + np.uintp(num_states(tag) * TILE), np.uintp(TILE), d_ax)
            if not same_gradient(tag):
                store_recurrent(tag, tile, i + np.uintp(after_gates * TILE), np.uintp(TILE), d_ah)
            store_per_unit(tag, tile, i + np.uintp((after_gates + recurrent) * TILE), np.uintp(TILE), d_own)
            j += np.uintp(1)
        put(dh, first, tile, 0, n)
        for k in range(1, num_states(tag)):
            put(dc, (k - 1) * H + first, tile, k, n)
        for g in range(num_gates(tag)):
            put(dax, g * H + first, tile, num_states(tag) + g, n)
        for g in range(0 if same_gradient(tag) else recurrent):
            put(dah, g * H + first, tile, after_gates + g, n)
        for k in range(num_per_unit(tag)):
            put(d_per_unit, k * H + first, tile, after_gates + recurrent + k, n)


@njit(**OPTIONS)
def _stage_units_backward(
    tag, stage, dah, dax, dh, dc, dy, h, c, per_unit, d_v, sums, d_sums, draws, h_before, c_before, start, stop, H
):  # fmt: skip
    """The gradients of a stage's gates, for units [start, stop) of one sequence; as `_backward_units`."""
    rows = np.uintp(H)
    for j in range(np.uintp(start), np.uintp(stop)):
        store_gradients(
            tag,
            stage,
            dah,
            j,
            rows,
            load_saved(tag, dax, j, rows),
            (h_before[j], *load_private(tag, c_before, j, rows)),
            (h[j], *load_private(tag, c, j, rows)),
            (dy[j] + dh[j], *load_private(tag, dc, j, rows)),
            load_d_v(tag, d_v, j, rows),
            load_per_unit(tag, per_unit, j, rows),
            sums,
            d_sums,
            cell_noise(tag, h, draws, j, True),
        )


@njit(**OPTIONS)
def _stage_sums_backward(
    tag, stage, tile, parts, dax, dh, dc, dy, h, c, per_unit, d_v, sums, d_sums, draws, h_before, c_before,
    start, stop, H,
):  # fmt: skip
    """parts = the sums of the terms of a stage's gradients, of units [start, stop) of one sequence; likewise."""
    rows = np.uintp(H)
    count = parts.shape[0]  # rows of the tile that add up the terms of all tiles; after them come those of this one
    tile[: count * TILE] = 0
    for first in range(start, stop, TILE):
        n = min(TILE, stop - first)
        j = np.uintp(first)
        for i in range(np.uintp(n)):
            store_gradient_terms(
                tag,
                stage,
                tile,
                i + np.uintp(count * TILE),
                np.uintp(TILE),
                load_saved(tag, dax, j, rows),
                (h_before[j], *load_private(tag, c_before, j, rows)),
                (h[j], *load_private(tag, c, j, rows)),
                (dy[j] + dh[j], *load_private(tag, dc, j, rows)),
                load_d_v(tag, d_v, j, rows),
                load_per_unit(tag, per_unit, j, rows),
                sums,
                d_sums,
                cell_noise(tag, h, draws, j, True),
            )
            j += np.uintp(1)
        for q in range(count):
            _add_rows(tile[q * TILE :], count * TILE, n)
    _add_lanes(parts, tile)


@njit(**PART)
def _project_backward(thread, threads, counters, dht, dm, dh, dy, W_hr, step_mask, t, before, direction):
    """dht[t] = dy[t] + dh, 0 where the step is skipped; dh = 0 but there; dm = dht[t] W_hr: the thread's columns."""
    B, (P, H), item = dh.shape[0], W_hr.shape, dh.itemsize
    p0, p1 = share(P, thread, threads)
    for b in range(B):
        dht_row, dh_row, dy_row = dht[t, b, 0:], dh[b, 0:], dy[t, b, direction * P :]
        if code_at(step_mask, 2 * (t + 1) - before, b) == RESET:
            clear_units(dh_row, 1, p0, p1, P)
        if code_at(step_mask, t + 1, b) == SKIP:
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


@njit(**OPTIONS)
def _skip_units(tag, dax, dah, d_per_unit, start, stop, H):
    """A skipped step has no part in the parameters' gradients."""
    clear_units(dax, num_gates(tag), start, stop, H)
    if not same_gradient(tag):
        clear_units(dah, num_ah(tag), start, stop, H)
    clear_units(d_per_unit, num_per_unit(tag), start, stop, H)


@njit(**OPTIONS)
def backward_steps(
    thread, threads, counters, tag, dh, dc, dax, dah, dy, h, c, R, step_mask, dht, dm, m, W_hr, per_unit,
    d_per_unit, d_v, sums, parts, noise, direction, first, last,
):  # fmt: skip
    """Steps [first, last) of one direction's backward walk: the cell's backward and the product with R.

    Args:
        dh: (B, H), gradient of the walk's first h from beyond; then of h before its last step. In place.
        dc: (B, N * H), likewise.
        dax: (T, B, >= G * H), what the cell saved (T, B, max(K, G) * H); replaced by the gradient of x Wᵀ.
        dah: (T, B, >= A * H), the gradient of h Rᵀ, written; is dax if the cell's two gradients are the same.
        dy: (T, B, D * H).
        dht, dm: with projection, (T, B, P), written: all of the gradient of h; and (B, H), scratch for that of m.
        d_per_unit: (T, B, V * H), written: the gradient of per_unit in each step.
        d_v: (B, S * H), scratch, the gradient of v.
        h, c, R, step_mask, m, W_hr, per_unit, sums, noise, direction: as in `forward_steps`; step 0 is the last one of
            forward.
        parts: (threads, B, Q), scratch: each thread's part of the gradients of a step's sums.
    """
    T, B, G, N, P = h.shape[0] - 2, h.shape[1], num_gates(tag), num_private(tag), R.shape[1]
    H, projected, stages = dax.shape[2] // max(G, num_saved(tag)), W_hr.shape[0] > 0, num_stages(tag)
    output, d_output = (m, dm) if projected else (h, dh)
    column, c_column = direction * H, direction * H * N
    u0, u1 = share(H, thread, threads)
    p0, p1 = share(P, thread, threads)
    values = num_states(tag) + G + num_recurrent(tag) + num_per_unit(tag)
    tile = np.empty(max(values, 2 * num_sums(tag)) * TILE, dtype=h.dtype)
    nothing = np.zeros((1, max(1, N) * H if step_mask.shape[0] > 0 or projected else 0), dtype=h.dtype)
    no_row = nothing[0, 0:]
    d_totals = np.empty((B, num_sums(tag)), dtype=h.dtype)
    item, ld = h.itemsize, dah.shape[2]
    dh_start, dah_start, R_start = dh.ctypes.data, dah.ctypes.data, R.ctypes.data
    for step in range(first, last):
        t, before = _step_time(step, T, direction, True)
        if projected:
            _project_backward(thread, threads, counters, dht, dm, dh, dy, W_hr, step_mask, t, before, direction)
        for turn in range(stages, -1, -1):  # the stages, the last one first; at last the cell itself
            stage = turn - 1
            q0, q1 = first_sum(tag, max(0, stage)), first_sum(tag, turn)
            for b in range(B):
                code = code_at(step_mask, t + 1, b)
                d_per_unit_row = d_per_unit[t, b, 0:] if num_per_unit(tag) > 0 else no_row
                if code_at(step_mask, 2 * (t + 1) - before, b) == RESET:  # nothing comes from the step after
                    clear_units(dc[b, 0:], N, u0, u1, H)
                    if not projected:
                        clear_units(dh[b, 0:], 1, u0, u1, H)
                if code == SKIP:
                    _skip_units(tag, dax[t, b, 0:], dah[t, b, 0:], d_per_unit_row, u0, u1, H)
                    continue
                dy_row = no_row if projected else dy[t, b, column:]
                output_before, c_before = output[before, b, column:], c[before, b, c_column:]
                if code == RESET:
                    output_before, c_before = nothing[0, 0:], nothing[0, 0:]
                known = cell_sums(tag, sums[t, b, 0:] if num_sums(tag) > 0 else no_row, H)
                d_known = load_d_sums(tag, d_totals[b], 0, 1)
                draws = cell_draws(tag, noise, b * H, t)
                if q0 < q1:
                    for_sum_stage(
                        tag, stage, _stage_sums_backward, tile, parts[thread, b, q0:q1], dax[t, b], d_output[b], dc[b],
                        dy_row, output[t + 1, b, column:], c[t + 1, b, c_column:], per_unit, d_v[b], known, d_known,
                        draws, output_before, c_before, u0, u1, H,
                    )  # fmt: skip
                elif stage >= 0:
                    for_product_stage(
                        tag, stage, _stage_units_backward, dah[t, b], dax[t, b], d_output[b], dc[b], dy_row,
                        output[t + 1, b, column:], c[t + 1, b, c_column:], per_unit, d_v[b], known, d_known,
                        draws, output_before, c_before, u0, u1, H,
                    )  # fmt: skip
                else:
                    _backward_units(
                        tag, tile, d_output[b], dc[b], dax[t, b], dah[t, b], d_per_unit_row, dy_row,
                        output[t + 1, b, column:], c[t + 1, b, c_column:], per_unit, d_v[b], known, d_known,
                        draws, output_before, c_before, u0, u1, H,
                    )  # fmt: skip
            barrier(counters, thread, threads)
            if q0 < q1:
                _add_parts(d_totals, parts[:threads], q0, q1)
            elif stage >= 0:
                start, count = first_gate(tag, stage) * H, (first_gate(tag, turn) - first_gate(tag, stage)) * H
                product(
                    d_v, False, False, B, u1 - u0, count, dah_start + (t * B * ld + start) * item, ld,
                    R_start + (start * H + u0) * item, H, False,
                    d_v.ctypes.data + (product_number(tag, stage) * H + u0) * item, d_v.shape[1],
                )  # fmt: skip
        if num_recurrent(tag) > 0:
            product(
                dh, False, False, B, p1 - p0, num_recurrent(tag) * H, dah_start + t * B * ld * item, ld,
                R_start + p0 * item, P, True, dh_start + p0 * item, P,
            )  # fmt: skip
