"""A thread's share of a call, and what the CPU engine's loops do apart from the cell and the product with R."""

from typing import NamedTuple

import numpy as np

from numbarnn.common.order import RESET, SKIP, step_time
from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.atomics import barrier
from numbarnn.engines.cpu.cell_steps import TILE
from numbarnn.engines.cpu.records import LARGEST, rows_at, run_at
from numbarnn.engines.cpu.vectors import LINE, bytes_of, numbers_at

find_step_time = plain(step_time)
FEW_TILES = 8  # sums of TILE units that are added up one after another
_BYTE = np.uint8(0)
# Arguments that never change.
ZERO, ONE, NO, YES = np.intp(0), np.intp(1), np.bool_(False), np.bool_(True)


class Share(NamedTuple):
    """A thread's share of a call: some sequences, or some units of all sequences.

    Attributes:
        thread, threads, counters: number of the thread, how many there are, and the barrier's counters
            (`atomics.barrier`).
        first_row, last_row: its sequences. first, last: its units of H.
        first_out, last_out: its columns of h, which differ from its units if there is a projection.
    """

    thread: int
    threads: int
    counters: int
    first_row: int
    last_row: int
    first: int
    last: int
    first_out: int
    last_out: int


@plain
def cut(size, part, thread, threads):
    """Return [first, last) of the thread's share of `size`, cut at multiples of `part`."""
    parts = (size + part - 1) // part
    return min(size, parts * thread // threads * part), min(size, parts * (thread + 1) // threads * part)


@plain
def share_of(zero, call, job):
    """Return the thread's share of a call."""
    thread, threads, counters = job.thread, job.threads, job.counters
    if call.by_rows:
        b0, b1 = cut(call.batch, ONE, thread, threads)
        return Share(thread, threads, counters, b0, b1, 0, call.hidden, 0, call.outputs)
    # Cut sums over units at multiples of TILE: they are then the same for any number of threads.
    width = TILE if call.sums_count else call.panel_row // bytes_of(zero)
    first, last = cut(call.hidden, width, thread, threads)
    p0, p1 = (first, last) if call.W_hr == 0 else cut(call.outputs, width, thread, threads)
    return Share(thread, threads, counters, 0, call.batch, first, last, p0, p1)


@plain
def columns_apart(zero, call, first, last):
    """Return the columns between two gates in a thread's product for units [first, last) of all gates.
    The gates follow each other. A cell's stages multiply some gates alone; these begin new panels."""
    width = call.panel_row // bytes_of(zero)
    return (last - first + width - 1) // width * width if call.stages_count else last - first


@plain
def own_products(zero, call, share, slots, gates):
    """Return (offset, bytes between rows) of a thread's part of memory for products.
    For each of its sequences it has `slots` rows, with its units of so many gates. Rows a power of two apart would
    evict each other from the caches."""
    item = bytes_of(zero)
    row = gates * columns_apart(zero, call, share.first, share.last) * item + LINE
    if call.by_rows:
        return share.first_row * slots * row, row
    return call.batch * slots * (gates * share.first * item + share.thread * LINE), row


# ------------------------------------------------------------------------------------------ threads and each other
# Threads share a call's sequences, and meet once, after packing. Or they share its units, and meet in each step, as
# its product with R needs all of h; cells with sums, stages or a projection meet within a step too.
@plain
def meet(call, share):
    """Wait until all threads have come here, if they share the units."""
    if not call.by_rows:
        barrier(share.counters, share.thread, share.threads)


@plain
def meet_packed(call, share):
    """Wait until all threads have packed their parts of the weights, if each needs all of them."""
    if call.by_rows:
        barrier(share.counters, share.thread, share.threads)


# ------------------------------------------------------------------------------------------ masks and rows
@plain
def mask_at(call, slot, b):
    """Return the mask of a sequence's step, indexed by the slot after it; 0 (an ordinary step) without masks."""
    if call.step_mask == 0:
        return 0
    return int(numbers_at(_BYTE, call.step_mask)[slot * call.batch + b])


@plain
def clear_units(zero, address, values, H, first, last):
    """Set units [first, last) of `values` rows of H units to 0."""
    row = numbers_at(zero, address)
    for k in range(values):
        for j in range(first, last):
            row[k * H + j] = zero


@plain
def copy_units(zero, address, source, values, H, first, last):
    """Copy units [first, last) of `values` rows of H units."""
    row, other = numbers_at(zero, address), numbers_at(zero, source)
    for k in range(values):
        for j in range(first, last):
            row[k * H + j] = other[k * H + j]


@plain
def c_slot(call, slot):
    """Return the address of the cell states in a slot; two slots may alternate."""
    return call.c + slot % call.c_slots * call.c_slot


@plain
def set_rows(zero, call, share, rows, b, count, t, before):
    """Point `rows` at `count` sequences from number b at time t, whose step starts from slot `before`.
    A sequence that is reset comes alone; its state before is zero."""
    place, sums = t * call.batch + b, rows.sums_row
    reset = mask_at(call, t + 1, b) == RESET
    rows.rows, rows.position, rows.t = count, b * call.hidden, t
    rows.h = call.zeros if reset else call.own_h + before * call.own_h_slot + b * call.own_h_row
    rows.c = call.zeros if reset else c_slot(call, before) + b * call.c_row
    rows.new_h = call.own_h + (t + 1) * call.own_h_slot + b * call.own_h_row
    rows.new_c = c_slot(call, t + 1) + b * call.c_row
    rows.saved = call.saved + place * call.saved_row
    totals = call.totals + (share.thread * call.batch + b) * sums
    if call.backward:
        rows.sums, rows.d_sums = call.all_sums + place * sums, totals
        rows.dy = call.dy + place * call.dy_row if call.W_hr == 0 else call.zeros
        rows.dh, rows.dc = call.own_dh + b * call.own_dh_row, call.dc + b * call.dc_row
        rows.dax, rows.dah = call.dax + place * call.dax_row, call.dah + place * call.dah_row
        rows.d_per_unit, rows.d_v = call.d_per_unit + place * call.d_per_unit_row, call.d_v + b * call.d_v_row
    else:
        rows.sums, number = totals, b - share.first_row
        rows.ax, rows.ah = rows.ax_first + number * rows.ax_row, rows.ah_first + number * rows.ah_row


@plain
def set_parameters(zero, call, rows):
    """Set the fields of `rows` that are the same in all steps."""
    rows.H = call.hidden
    rows.b_w, rows.b_r, rows.per_unit = call.b_w, call.b_r, call.per_unit
    rows.noise = call.noise
    rows.noise_thresholds, rows.noise_values = call.noise_thresholds, call.noise_values
    rows.h_row = rows.new_h_row = call.own_h_row
    rows.c_row = rows.new_c_row = call.c_row
    rows.saved_row = call.saved_row
    rows.sums_row = rows.d_sums_row = call.sums_count * bytes_of(zero)
    rows.dy_row = call.dy_row if call.W_hr == 0 else 0
    rows.dh_row, rows.dc_row, rows.dax_row, rows.dah_row = call.own_dh_row, call.dc_row, call.dax_row, call.dah_row
    rows.d_per_unit_row, rows.d_v_row = call.d_per_unit_row, call.d_v_row


# ------------------------------------------------------------------------------------------ sums over units
@plain
def _add_lanes(zero, out, lanes, count, n):
    """Set out[q] = the sum of n numbers of row q of lanes (count, TILE), added pairwise."""
    sums = numbers_at(zero, out)
    for q in range(count):
        row, width = numbers_at(zero, lanes + q * TILE * bytes_of(zero)), TILE // 2
        for i in range(n, TILE):
            row[i] = zero
        while width > 0:
            for i in range(width):
                row[i] += row[width + i]
            width //= 2
        sums[q] = row[0]


@plain
def _largest_of_lanes(zero, out, lanes, count, n):
    """Set out[q] = the largest of n numbers of row q of lanes (count, TILE), NaN if one is."""
    largest = numbers_at(zero, out)
    for q in range(count):
        row = numbers_at(zero, lanes + q * TILE * bytes_of(zero))
        total = row[0]
        for i in range(1, n):
            total = row[i] if row[i] > total or row[i] != row[i] else total
        largest[q] = total


@plain
def sum_units(zero, call, share, address, at, stage, totals):
    """Sum a stage's terms over all units, or take the largest: first within each TILE of units, then in order.

    Args:
        address: of the `Rows`.
        at: (t, before). totals: address (B, Q) of the thread's sums.
    """
    Q, B, rows, item = call.sums_count, call.batch, rows_at(address), bytes_of(zero)
    count, lanes = stage.end_sum - stage.first_sum, call.lanes + share.thread * Q * TILE * item
    rows.out = lanes
    for first in range(share.first, share.last, TILE):
        rows.first, rows.last = first, min(share.last, first + TILE)
        for b in range(share.first_row, share.last_row):
            if not (call.backward and mask_at(call, at[0] + 1, b) == SKIP):
                set_rows(zero, call, share, rows, b, ONE, at[0], at[1])
                run_at(None, stage.step, address)
                out = call.parts + ((first // TILE * B + b) * Q + stage.first_sum) * item
                if stage.is_sums == LARGEST:
                    _largest_of_lanes(zero, out, lanes, count, rows.last - first)
                else:
                    _add_lanes(zero, out, lanes, count, rows.last - first)
    meet(call, share)
    parts, sums = numbers_at(zero, call.parts), numbers_at(zero, totals)
    tiles = (call.hidden + TILE - 1) // TILE
    for b in range(share.first_row, share.last_row):
        for q in range(stage.first_sum, stage.end_sum):
            total = parts[b * Q + q] if stage.is_sums == LARGEST else zero
            for start in range(0, tiles, FEW_TILES):  # sum few, then sums of few: rounds less than one long sum
                part = zero
                for tile in range(start, min(tiles, start + FEW_TILES)):
                    term = parts[(tile * B + b) * Q + q]
                    if stage.is_sums == LARGEST:
                        total = term if term > total or term != term else total
                    else:
                        part += term
                total = total + part
            sums[b * Q + q] = total


@plain
def run_rows(zero, call, share, address, at, step, skip):
    """Call a function of the cell on the thread's sequences: once for all, or once per sequence with a step mask.

    Args:
        address: the address of the `Rows`. If the function writes to `out`, `out` and `out_row` locate the output of
            sequence 0.
        step: the function's address. skip: leave out sequences whose step is skipped.
    """
    (t, before), rows = at, rows_at(address)
    b, count, out = share.first_row, share.last_row - share.first_row, rows.out
    rows.first, rows.last = share.first, share.last
    if call.step_mask:
        count = 1
    while b < share.last_row:
        if not (skip and mask_at(call, t + 1, b) == SKIP):
            set_rows(zero, call, share, rows, b, count, t, before)
            rows.out = out + b * rows.out_row
            run_at(None, step, address)
        b += count
