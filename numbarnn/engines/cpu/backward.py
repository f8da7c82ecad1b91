"""The CPU engine's backward loop: all steps of one layer and direction, from the last to the first."""

from typing import NamedTuple

from numbarnn.common.order import RESET, SKIP
from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.records import (
    LARGEST,
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
    clear_units,
    cut,
    find_step_time,
    mask_at,
    meet,
    meet_packed,
    run_rows,
    set_parameters,
    share_of,
    sum_units,
)
from numbarnn.engines.cpu.vectors import bytes_of, numbers_at


# ------------------------------------------------------------------------------------------ products
@plain
def _pack(zero, call, share):
    """Pack the thread's columns of R and W_hr."""
    if call.packs:
        span = share.first_out, share.last_out
        _pack_columns(zero, call, share, (call.R, call.R_panels), call.ah_gates * call.hidden, call.outputs, span)
        if call.W_hr:
            span = share.first, share.last
            _pack_columns(zero, call, share, (call.W_hr, call.W_hr_panels), call.outputs, call.hidden, span)


@plain
def _pack_columns(zero, call, share, weights, terms, columns, span):
    """Pack columns [first, last) of weights (terms, columns) into panels; if the threads share sequences, each packs a
    part of all.

    Args:
        weights: addresses of the weights and of the panels. span: (first, last).
    """
    (source, panels), (first, last), item, address = weights, span, bytes_of(zero), new_product()
    at = product_at(address)
    if call.by_rows:
        first, last = cut(columns, call.panel_row // item, share.thread, share.threads)
    at.terms, at.b_row, at.panel_row = terms, columns * item, call.panel_row
    at.columns, at.b, at.out = last - first, source + first * item, panels + first * terms * item
    run_at(zero, call.pack_panels, address)


class PanelWeights(NamedTuple):
    """Weights that gradients flow back through: addresses of the weights and their panels; all terms, all columns."""

    address: int
    panels: int
    terms: int
    columns: int


@plain
def _multiply_back(zero, call, weights, terms, sizes, a, out, add):
    """Compute out = a weights, or +=, for some terms and columns of the weights.

    Args:
        weights: `PanelWeights`. terms: (first, how many).
        sizes: (rows, first column, columns of out). a, out: (address, bytes between rows).
    """
    item, address, (rows, column, columns) = bytes_of(zero), new_product(), sizes
    at = product_at(address)
    at.rows, at.columns, at.terms, at.add = rows, columns, terms[1], add
    at.a, at.a_row, at.out, at.out_row = a[0], a[1], out[0], out[1]
    if columns > 0 and terms[1] > 0:
        if call.pack:
            at.b_row, at.panel_row = weights.terms * call.panel_row, call.panel_row
            at.b = weights.panels + column * weights.terms * item + terms[0] * call.panel_row
        else:
            at.b_row = weights.columns * item
            at.b = weights.address + terms[0] * at.b_row + column * item
        run_at(zero, call.product, address)


# ------------------------------------------------------------------------------------------ parts of a step
@plain
def _project(zero, call, share, at):
    """Set the thread's columns of dht[t] = dy[t] + dh, dh = 0 (skipped steps: dht[t] = 0), and dm = dht[t] W_hr."""
    if call.W_hr:
        (t, before), item, P, H, b = at, bytes_of(zero), call.outputs, call.hidden, share.first_row
        first, last, after = share.first_out, share.last_out, 2 * (t + 1) - before  # slot of the next step's mask
        for row in range(b, share.last_row):
            place = t * call.batch + row
            dht, dh = call.dht + place * P * item, call.dh + row * call.dh_row
            if mask_at(call, after, row) == RESET:
                clear_units(zero, dh, ONE, P, first, last)
            if mask_at(call, t + 1, row) == SKIP:
                clear_units(zero, dht, ONE, P, first, last)
                continue
            _add_to(zero, dht, dh, call.dy + place * call.dy_row, first, last)
            clear_units(zero, dh, ONE, P, first, last)
        meet(call, share)
        a = call.dht + (t * call.batch + b) * P * item, P * item
        out = call.own_dh + b * call.own_dh_row + share.first * item, call.own_dh_row
        sizes = share.last_row - b, share.first, share.last - share.first
        _multiply_back(zero, call, PanelWeights(call.W_hr, call.W_hr_panels, P, H), (ZERO, P), sizes, a, out, NO)


@plain
def _add_to(zero, total, one, other, first, last):
    """Set total = one + other for units [first, last)."""
    total, one, other = numbers_at(zero, total), numbers_at(zero, one), numbers_at(zero, other)
    for j in range(first, last):
        total[j] = other[j] + one[j]


@plain
def _mask_gradients(zero, call, share, at):
    """Stop gradients at resets, and keep skipped steps out of the parameters' gradients."""
    if call.step_mask:
        (t, before), H, first, last = at, call.hidden, share.first, share.last
        for b in range(share.first_row, share.last_row):
            place = t * call.batch + b
            if mask_at(call, 2 * (t + 1) - before, b) == RESET:  # the next step's mask
                clear_units(zero, call.dc + b * call.dc_row, call.private, H, first, last)
                if call.W_hr == 0:  # else `_project` has done it
                    clear_units(zero, call.dh + b * call.dh_row, ONE, H, first, last)
            if mask_at(call, t + 1, b) == SKIP:
                clear_units(zero, call.dax + place * call.dax_row, call.gates, H, first, last)
                if not call.same_gradient:
                    clear_units(zero, call.dah + place * call.dah_row, call.ah_gates, H, first, last)
                d_per_unit = call.d_per_unit + place * call.d_per_unit_row
                clear_units(zero, d_per_unit, call.per_unit_values, H, first, last)


@plain
def _add_state_gradients(zero, call, share, at):
    """Add the gradients of a step's own cell states to dc, unless the step is skipped: the thread's units."""
    if call.d_states:
        (t, _), width = at, call.hidden * bytes_of(zero)
        for b in range(share.first_row, share.last_row):
            if mask_at(call, t + 1, b) != SKIP:
                dc, d_states = call.dc + b * call.dc_row, call.d_states + (t * call.batch + b) * call.d_states_row
                for number in range(call.private):
                    part = dc + number * width
                    _add_to(zero, part, part, d_states + number * width, share.first, share.last)


@plain
def _stages(zero, call, share, address, at):
    """Compute the gradients of the cell's stages, from the last: of sums over all units, or of gates.
    For gates, multiply by the stage's rows of R to obtain the gradient of its vector."""
    (t, _), item, H, b = at, bytes_of(zero), call.hidden, share.first_row
    for number in range(call.stages_count - 1, -1, -1):
        stage = stage_at(call.stages + number * STAGE_BYTES)
        if stage.is_sums == LARGEST:  # no gradient flows through a maximum
            continue
        if stage.is_sums:
            totals = call.totals + share.thread * call.batch * call.sums_count * item
            sum_units(zero, call, share, address, at, stage, totals)
            continue
        first_row, start = call.dah + t * call.batch * call.dah_row, stage.first_gate * H
        rows = rows_at(address)
        rows.out, rows.out_row = first_row + start * item, call.dah_row
        run_rows(zero, call, share, address, at, stage.step, YES)
        meet(call, share)
        a = first_row + b * call.dah_row + start * item, call.dah_row
        out = call.d_v + b * call.d_v_row + (stage.product * H + share.first) * item, call.d_v_row
        sizes = share.last_row - b, share.first, share.last - share.first
        terms = start, (stage.end_gate - stage.first_gate) * H
        weights = PanelWeights(call.R, call.R_panels, call.ah_gates * H, H)
        _multiply_back(zero, call, weights, terms, sizes, a, out, NO)


@plain
def _cell(zero, call, share, address, step):
    """Compute the cell's part of a step from dh: dah and the other gradients."""
    at = find_step_time(step, call.steps, call.direction, YES)
    _project(zero, call, share, at)
    _mask_gradients(zero, call, share, at)
    _add_state_gradients(zero, call, share, at)
    _stages(zero, call, share, address, at)
    run_rows(zero, call, share, address, at, call.step, YES)


@plain
def _through_R(zero, call, share, step):
    """Add dah R to dh; it needs dah of all units."""
    t = find_step_time(step, call.steps, call.direction, YES)[0]
    b, first, terms = share.first_row, share.first_out, call.recurrent * call.hidden
    weights = PanelWeights(call.R, call.R_panels, call.ah_gates * call.hidden, call.outputs)
    dah = call.dah + (t * call.batch + b) * call.dah_row, call.dah_row
    dh = call.dh + b * call.dh_row + first * bytes_of(zero), call.dh_row
    _multiply_back(
        zero, call, weights, (ZERO, terms), (share.last_row - b, first, share.last_out - first), dah, dh, YES
    )


# ------------------------------------------------------------------------------------------ the loop
@by_address
def backward_loop(zero, address):
    """Run steps of one direction, backward: the cell's backward and the product with R.

    The product comes at the beginning of the next step: it needs dah of all units, and only that step needs dh.

    Args:
        zero: of the dtype.
        address: of a `records.ThreadJob` that does a `records.LoopCall`; step 0 is the last one of forward.
    """
    job, rows_address = job_at(address), new_rows()
    call = call_at(job.record)
    share = share_of(zero, call, job)
    _pack(zero, call, share)
    meet_packed(call, share)
    set_parameters(zero, call, rows_at(rows_address))
    for step in range(call.first, call.last + 1):
        if step > call.first:
            meet(call, share)
            _through_R(zero, call, share, step - 1)
        if step < call.last:
            _cell(zero, call, share, rows_address, step)
