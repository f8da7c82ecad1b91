"""The CPU engine's forward loop: all steps of one layer and direction, on several threads.

It is compiled once for each dtype, and calls a cell's functions by address (`cell_steps`).
"""

import numpy as np

from numbarnn.common.order import RESET, SKIP
from numbarnn.compile.plain import inlined, plain
from numbarnn.engines.cpu.panels import PANEL_ROW, has_accumulators, kc_of
from numbarnn.engines.cpu.records import (
    STAGE_BYTES,
    by_address,
    call_at,
    job_at,
    new_product,
    new_rows,
    product_at,
    rows_at,
    run_at,
    stage_at,
)
from numbarnn.engines.cpu.sharing import (
    NO,
    ONE,
    YES,
    ZERO,
    c_slot,
    clear_units,
    columns_before,
    copy_units,
    find_step_time,
    mask_at,
    meet,
    meet_packed,
    run_rows,
    set_parameters,
    share_of,
    sum_units,
    units_before,
)
from numbarnn.engines.cpu.vectors import bytes_of

_ROW = np.intp(PANEL_ROW)


# ------------------------------------------------------------------------------------------ products
@plain
def _pack(zero, call, share):
    """Pack R, W and W_hr: the rows of the thread's units."""
    if call.packs:
        if call.from_zero == 0 or call.steps > 1 or call.stages_count:
            shape, units = (call.ah_gates, call.hidden, call.outputs), units_before(zero, call, share, call.panel_row)
            _pack_gates(zero, call, (call.R, call.R_panels, call.panel_row), shape, units)
        if call.x:
            shape, units = (call.input_gates, call.hidden, call.inputs), units_before(zero, call, share, _ROW)
            _pack_gates(zero, call, (call.W, call.W_panels, _ROW), shape, units)
        if call.W_hr:
            shape, columns = (ONE, call.outputs, call.hidden), columns_before(zero, call, share)
            _pack_gates(zero, call, (call.W_hr, call.W_hr_panels, call.panel_row), shape, columns)


@plain
def _pack_gates(zero, call, weights, shape, units):
    """Pack units [first, last) of each gate of weights (gates * H, terms) into panels.

    Panels of the same units follow each other, gate after gate: a thread's panels are therefore contiguous. Units that
    fill no whole panel come last, all gates together.

    Args:
        weights: (address of the weights, address of the panels, bytes of a panel's columns).
        shape: (gates, H, terms). units: (first, last).
    """
    (source, panels, panel_row), (gates, H, terms), item = weights, shape, bytes_of(zero)
    width, size, address, (first, last) = panel_row // item, terms * panel_row, new_product(), units
    at = product_at(address)
    at.terms, at.b_row, at.out_row = terms, terms * item, panel_row
    whole = H // width * width
    for g in range(gates):
        for j in range(first, min(last, whole), width):
            at.columns, at.b = width, source + (g * H + j) * terms * item
            at.out = panels + (j // width * gates + g) * size
            run_at(zero, call.pack_panel, address)
    rest = H - whole
    if first < last and last == H and rest > 0:
        at.b, at.b_next, at.rest = source + whole * terms * item, H * terms * item, rest
        for column in range(0, gates * rest, width):
            at.columns, at.rest_first = min(width, gates * rest - column), column
            at.out = panels + (whole // width * gates + column // width) * size
            run_at(zero, call.pack_panel, address)


@plain
def _multiply_gates(zero, call, weights, shape, rows, a, out, units):
    """Compute out = a weightsᵀ for gates [first, end) and some units.

    Args:
        weights: (address, address of the panels, bytes of a panel's columns, gates) of weights (gates * H, terms).
        shape: (first gate, end, H, terms).
        a, out: (address, bytes between rows). units: (first, last).
    """
    (source, panels, panel_row, gates), (first_gate, end_gate, H, terms), item = weights, shape, bytes_of(zero)
    (first, last), width, address = units, panel_row // item, new_product()
    at = product_at(address)
    at.rows, at.columns, at.terms, at.a, at.a_row, at.out_row = rows, last - first, terms, a[0], a[1], out[1]
    at.more, at.out_next, at.out = end_gate - first_gate - 1, H * item, out[0] + (first_gate * H + first) * item
    if call.pack:
        at.b_next, at.panel_row, at.kc = terms * panel_row, panel_row, kc_of(terms)
        at.b_row = gates * at.b_next
        at.b = panels + first_gate * at.b_next + first // width * at.b_row
        at.accumulators = has_accumulators(panel_row, call.batch)
        at.rest_first, at.rest_panels = first_gate, panels + H // width * at.b_row
    else:
        at.transpose_b, at.b_row = True, terms * item
        at.b_next = H * at.b_row
        at.b = source + (first_gate * H + first) * at.b_row
    if first < last and first_gate < end_gate:
        run_at(zero, call.product, address)


@plain
def _input_products(zero, call, share):
    """Compute x Wᵀ into ax for all times and the thread's units, unless ax is ready or each step computes its own."""
    if call.x and call.x_by_steps == 0:
        t0 = find_step_time(call.first, call.steps, call.direction, NO)[0]
        t1 = find_step_time(call.last - 1, call.steps, call.direction, NO)[0]
        row, end = min(t0, t1) * call.batch, (max(t0, t1) + 1) * call.batch
        units = units_before(zero, call, share, _ROW)
        _multiply_x(zero, call, (row, end - row), call.ax + row * call.ax_row, units)


@plain
def _multiply_x(zero, call, rows, ax, units):
    """Compute x Wᵀ for rows of x; gates without W get x itself.

    Args:
        rows: (the first, how many).
        ax: address of the result's first row. units: (first, last).
    """
    (row, count), width = rows, call.hidden * bytes_of(zero)
    x, shape = call.x + row * call.x_row, (ZERO, call.input_gates, call.hidden, call.inputs)
    weights = call.W, call.W_panels, _ROW, call.input_gates
    _multiply_gates(zero, call, weights, shape, count, (x, call.x_row), (ax, call.ax_row), units)
    for g in range(call.input_gates, call.gates):
        for i in range(count):
            out = ax + i * call.ax_row + g * width
            copy_units(zero, out, x + i * call.x_row, ONE, call.hidden, units[0], units[1])


# ------------------------------------------------------------------------------------------ parts of a step
@plain
def _multiply_x_of_step(zero, call, share, step):
    """Compute x Wᵀ for one step, if each step computes its own."""
    if call.x_by_steps:
        t = find_step_time(step, call.steps, call.direction, NO)[0]
        ax = call.ax + t * call.ax_slot + share.first_row * call.ax_row
        rows = t * call.batch + share.first_row, share.last_row - share.first_row
        _multiply_x(zero, call, rows, ax, (share.first, share.last))


@inlined
def _recurrent_products(zero, call, share, at, step):
    """Compute h Rᵀ; zero for sequences that are reset."""
    t, before = at
    if step == 0 and call.from_zero:
        for b in range(share.first_row, share.last_row):
            clear_units(zero, call.ah + b * call.ah_row, call.recurrent, call.hidden, share.first, share.last)
        return
    b, count = share.first_row, share.last_row - share.first_row
    h = call.h + before * call.h_slot + b * call.h_row, call.h_row
    ah = call.ah + b * call.ah_row, call.ah_row
    shape = ZERO, call.recurrent, call.hidden, call.outputs
    weights = call.R, call.R_panels, call.panel_row, call.ah_gates
    _multiply_gates(zero, call, weights, shape, count, h, ah, (share.first, share.last))
    if call.step_mask:
        for b in range(share.first_row, share.last_row):
            if mask_at(call, t + 1, b) == RESET:
                clear_units(zero, call.ah + b * call.ah_row, call.recurrent, call.hidden, share.first, share.last)


@inlined
def _stages(zero, call, share, address, at):
    """Run the cell's stages: sums over all units, or a vector of all units times the stage's rows of R."""
    (t, _), item, H, b = at, bytes_of(zero), call.hidden, share.first_row
    for number in range(call.stages_count):
        stage = stage_at(call.stages + number * STAGE_BYTES)
        kept = t * call.batch if call.save else 0
        if stage.is_sums:
            totals, Q = call.totals + share.thread * call.batch * call.sums_count * item, call.sums_count
            sum_units(zero, call, share, address, at, stage, totals)
            if call.by_rows or share.thread == 0:
                all_sums = call.all_sums + kept * Q * item
                for row in range(b, share.last_row):
                    source, out = totals + row * Q * item, all_sums + row * Q * item
                    copy_units(zero, out, source, ONE, Q, stage.first_sum, stage.end_sum)
            continue
        v = call.v + kept * call.v_row + stage.product * H * item
        rows = rows_at(address)
        rows.out, rows.out_row = v, call.v_row
        run_rows(zero, call, share, address, at, stage.step, NO)
        meet(call, share)
        vectors, ah = (v + b * call.v_row, call.v_row), (call.ah + b * call.ah_row, call.ah_row)
        shape = stage.first_gate, stage.end_gate, H, H
        weights = call.R, call.R_panels, call.panel_row, call.ah_gates
        _multiply_gates(zero, call, weights, shape, share.last_row - b, vectors, ah, (share.first, share.last))


@inlined
def _carry(zero, call, share, at):
    """Carry the states of skipped steps over."""
    if call.step_mask:
        (t, before), H = at, call.hidden
        for b in range(share.first_row, share.last_row):
            if mask_at(call, t + 1, b) == SKIP:
                h = call.own_h + b * call.own_h_row
                copy_units(
                    zero, h + (t + 1) * call.own_h_slot, h + before * call.own_h_slot, ONE, H, share.first, share.last
                )
                c, c_before = c_slot(call, t + 1) + b * call.c_row, c_slot(call, before) + b * call.c_row
                copy_units(zero, c, c_before, call.private, H, share.first, share.last)


@inlined
def _project(zero, call, share, at):
    """Compute h = m W_hrᵀ after a step, the thread's columns; skipped steps keep h."""
    if call.W_hr:
        meet(call, share)
        (t, before), b, P = at, share.first_row, call.outputs
        h, columns = call.h + (t + 1) * call.h_slot, (share.first_out, share.last_out)
        m = call.own_h + (t + 1) * call.own_h_slot + b * call.own_h_row, call.own_h_row
        out = h + b * call.h_row, call.h_row
        shape, weights = (ZERO, ONE, P, call.hidden), (call.W_hr, call.W_hr_panels, call.panel_row, ONE)
        _multiply_gates(zero, call, weights, shape, share.last_row - b, m, out, columns)
        for b in range(share.first_row, share.last_row):
            if mask_at(call, t + 1, b) == SKIP:
                h_before = call.h + before * call.h_slot + b * call.h_row
                copy_units(zero, h + b * call.h_row, h_before, ONE, P, share.first_out, share.last_out)


@inlined
def _step(zero, call, share, address, step):
    """Run the thread's share of a step, all but x Wᵀ."""
    at = find_step_time(step, call.steps, call.direction, NO)
    _recurrent_products(zero, call, share, at, step)
    _stages(zero, call, share, address, at)
    run_rows(zero, call, share, address, at, call.step, YES)
    _carry(zero, call, share, at)
    _project(zero, call, share, at)


# ------------------------------------------------------------------------------------------ the loop
@plain
def _prepare(zero, call, share):
    """Pack the weights and multiply by x, before the first step."""
    _pack(zero, call, share)
    _input_products(zero, call, share)


@by_address
def forward_loop(zero, address):
    """Run steps of one direction: its products and its cell.

    Args:
        zero: of the dtype. address: of a `records.Job` that does a `records.Call`.
    """
    job, rows_address = job_at(address), new_rows()
    call = call_at(job.record)
    share = share_of(zero, call, job)
    _prepare(zero, call, share)
    meet_packed(call, share)
    set_parameters(zero, call, rows_at(rows_address))
    for step in range(call.first, call.last):
        _multiply_x_of_step(zero, call, share, step)
        if step > call.first:  # after the product with x, so that a slow thread delays nobody
            meet(call, share)
        _step(zero, call, share, rows_address, step)
