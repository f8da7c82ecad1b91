"""The CPU engine's forward loop: all steps of one layer and direction, on several threads.

It is compiled once for each dtype, and calls a cell's functions by address (`cell_steps`).
"""

from typing import NamedTuple

from numbarnn.common.order import RESET, SKIP
from numbarnn.compile.plain import inlined, plain
from numbarnn.engines.cpu.panels import PANEL
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
    columns_apart,
    copy_units,
    cut,
    find_step_time,
    mask_at,
    meet,
    meet_packed,
    own_products,
    run_rows,
    set_parameters,
    share_of,
    sum_units,
)
from numbarnn.engines.cpu.vectors import bytes_of


# ------------------------------------------------------------------------------------------ products
class Weights(NamedTuple):
    """A thread's rows of weights (gates * units, terms): units [first, last) of each gate.

    Attributes:
        address, panels: of all weights, and of their panels. panel_row: bytes of a panel's columns.
    """

    address: int
    panels: int
    panel_row: int
    gates: int
    units: int
    terms: int
    first: int
    last: int


@plain
def _R(call, share):
    return Weights(
        call.R, call.R_panels, call.panel_row, call.ah_gates, call.hidden, call.outputs, share.first, share.last
    )


@plain
def _W(call, share):
    return Weights(call.W, call.W_panels, PANEL, call.input_gates, call.hidden, call.inputs, share.first, share.last)


@plain
def _W_hr(call, share):
    columns = share.first_out, share.last_out
    return Weights(call.W_hr, call.W_hr_panels, call.panel_row, ONE, call.outputs, call.hidden, *columns)


@plain
def _pack(zero, call, share):
    """Pack R, W and W_hr. A single step from zero does not multiply by R."""
    if call.packs:
        if call.from_zero == 0 or call.steps > 1 or call.stages_count:
            _pack_gates(zero, call, share, _R(call, share))
        if call.x:
            _pack_gates(zero, call, share, _W(call, share))
        if call.W_hr:
            _pack_gates(zero, call, share, _W_hr(call, share))


@plain
def _pack_gates(zero, call, share, weights):
    """Pack a thread's rows of weights; if the threads share sequences, each packs a part of all."""
    item, address = bytes_of(zero), new_product()
    at = product_at(address)
    at.units, at.terms, at.panel_row = weights.last - weights.first, weights.terms, weights.panel_row
    at.b_row, at.out_next = weights.terms * item, columns_apart(zero, call, weights.first, weights.last)
    at.b, at.b_next = weights.address + weights.first * at.b_row, weights.units * at.b_row
    at.out, at.columns = _panels_of(zero, weights), (weights.gates - 1) * at.out_next + at.units
    if call.by_rows:
        at.first_column, at.columns = cut(at.columns, at.panel_row // item, share.thread, share.threads)
    if at.units > 0:
        run_at(zero, call.pack_panels, address)


@plain
def _panels_of(zero, weights):
    """Return the address of a thread's panels: units are shared at whole panels."""
    return weights.panels + weights.gates * weights.first * weights.terms * bytes_of(zero)


@plain
def _multiply_gates(zero, call, weights, gates, rows, a, out):
    """Compute out = a weightsᵀ for gates [first, end); out has all of the thread's gates, `columns_apart`.

    Args:
        a, out: (address, bytes between rows).
    """
    (first, end), item, address = gates, bytes_of(zero), new_product()
    at, units = product_at(address), weights.last - weights.first
    apart = columns_apart(zero, call, weights.first, weights.last)
    at.rows, at.terms, at.a, at.a_row, at.out_row = rows, weights.terms, a[0], a[1], out[1]
    if units == 0 or first == end:
        return
    if call.pack:
        at.panel_row, at.b_row = weights.panel_row, weights.terms * weights.panel_row
        at.columns = (end - first - 1) * apart + units
        at.b, at.out = _panels_of(zero, weights) + first * apart * weights.terms * item, out[0] + first * apart * item
        run_at(zero, call.product, address)
        return
    at.transpose_b, at.b_row, at.columns = True, weights.terms * item, units
    if apart == weights.units:  # consecutive gates are one matrix
        at.columns, end = (end - first) * units, first + 1
    for g in range(first, end):
        at.b, at.out = weights.address + (g * weights.units + weights.first) * at.b_row, out[0] + g * apart * item
        run_at(zero, call.product, address)


@plain
def _multiply_x(zero, call, share, address, step):
    """Compute x Wᵀ for a chunk of steps before the first of them, and point `rows` at the step's part of it."""
    rows, item, count = rows_at(address), bytes_of(zero), share.last_row - share.first_row
    if call.x == 0:
        t = find_step_time(step, call.steps, call.direction, NO)[0]
        rows.ax_first = call.ax + (t * call.batch + share.first_row) * call.ax_row
        return
    number, steps = (step - call.first) % call.chunk, min(call.chunk, call.last - step)
    ax = call.own_ax + own_products(zero, call, share, call.chunk, call.gates)[0]
    rows.ax_first = ax + number * count * rows.ax_row - share.first * item
    if number > 0:
        return
    x_row = call.inputs * item
    x = call.own_x + (share.first_row if call.by_rows else share.thread * call.batch) * call.chunk * x_row
    for k in range(steps):
        t = find_step_time(step + k, call.steps, call.direction, NO)[0]
        for b in range(count):
            row = call.x + (t * call.batch + share.first_row + b) * call.x_row
            copy_units(zero, x + (k * count + b) * x_row, row, ONE, ZERO, ZERO, call.inputs)
    gates = ZERO, call.input_gates
    _multiply_gates(zero, call, _W(call, share), gates, steps * count, (x, x_row), (ax, rows.ax_row))
    for g in range(call.input_gates, call.gates):  # gates without W get x itself
        for i in range(steps * count):
            out = ax + i * rows.ax_row + (g * rows.ax_units - share.first) * item
            copy_units(zero, out, x + i * x_row, ONE, ZERO, share.first, share.last)


# ------------------------------------------------------------------------------------------ parts of a step
@plain
def _clear_products(zero, call, share, address, b):
    """Set h Rᵀ of a sequence to zero."""
    rows = rows_at(address)
    row = rows.ah_first + (b - share.first_row) * rows.ah_row
    clear_units(zero, row, call.recurrent, rows.ah_units, share.first, share.last)


@inlined
def _recurrent_products(zero, call, share, address, at, step):
    """Compute h Rᵀ; zero for sequences that are reset."""
    (t, before), rows, b = at, rows_at(address), share.first_row
    if step == 0 and call.from_zero:
        for b in range(share.first_row, share.last_row):
            _clear_products(zero, call, share, address, b)
        return
    h = call.h + before * call.h_slot + b * call.h_row, call.h_row
    ah = rows.ah_first + share.first * bytes_of(zero), rows.ah_row
    _multiply_gates(zero, call, _R(call, share), (ZERO, call.recurrent), share.last_row - b, h, ah)
    if call.step_mask:
        for b in range(share.first_row, share.last_row):
            if mask_at(call, t + 1, b) == RESET:
                _clear_products(zero, call, share, address, b)


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
        vectors, ah = (v + b * call.v_row, call.v_row), (rows.ah_first + share.first * item, rows.ah_row)
        _multiply_gates(
            zero, call, _R(call, share), (stage.first_gate, stage.end_gate), share.last_row - b, vectors, ah
        )


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
        h = call.h + (t + 1) * call.h_slot
        m = call.own_h + (t + 1) * call.own_h_slot + b * call.own_h_row, call.own_h_row
        out = h + b * call.h_row + share.first_out * bytes_of(zero), call.h_row
        _multiply_gates(zero, call, _W_hr(call, share), (ZERO, ONE), share.last_row - b, m, out)
        for b in range(share.first_row, share.last_row):
            if mask_at(call, t + 1, b) == SKIP:
                h_before = call.h + before * call.h_slot + b * call.h_row
                copy_units(zero, h + b * call.h_row, h_before, ONE, P, share.first_out, share.last_out)


@inlined
def _step(zero, call, share, address, step):
    """Run the thread's share of a step, all but x Wᵀ."""
    at = find_step_time(step, call.steps, call.direction, NO)
    _recurrent_products(zero, call, share, address, at, step)
    _stages(zero, call, share, address, at)
    run_rows(zero, call, share, address, at, call.step, YES)
    _carry(zero, call, share, at)
    _project(zero, call, share, at)


# ------------------------------------------------------------------------------------------ the loop
@plain
def _set_products(zero, call, share, rows):
    """Set the fields of `rows` that say where the thread's products stand."""
    rows.ax_units = rows.ah_units = columns_apart(zero, call, share.first, share.last)
    rows.ax_row = own_products(zero, call, share, call.chunk, call.gates)[1]
    ah, rows.ah_row = own_products(zero, call, share, ONE, call.ah_gates)
    rows.ah_first = call.own_ah + ah - share.first * bytes_of(zero)
    if call.x == 0:
        rows.ax_units, rows.ax_row = call.hidden, call.ax_row


@by_address
def forward_loop(zero, address):
    """Run steps of one direction: its products and its cell.

    Args:
        zero: of the dtype. address: of a `records.ThreadJob` that does a `records.LoopCall`.
    """
    job, rows_address = job_at(address), new_rows()
    call = call_at(job.record)
    share = share_of(zero, call, job)
    _pack(zero, call, share)
    meet_packed(call, share)
    set_parameters(zero, call, rows_at(rows_address))
    _set_products(zero, call, share, rows_at(rows_address))
    for step in range(call.first, call.last):
        _multiply_x(zero, call, share, rows_address, step)
        if step > call.first:  # after the product with x, so that a slow thread delays nobody
            meet(call, share)
        _step(zero, call, share, rows_address, step)
