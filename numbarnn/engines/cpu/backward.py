"""The CPU engine's backward loop, which walks through the steps of one layer and direction from the last; see
`forward`."""

import numpy as np
from numba import njit

from numbarnn.common.order import RESET, SKIP
from numbarnn.engines.cpu.atomics import barrier
from numbarnn.engines.cpu.cell_units import Row, backward_units, stage_gradient_sums, stage_gradients
from numbarnn.engines.cpu.forward import (
    PART,
    Step,
    Walk,
    find_step_time,
    make_totals,
    noise_at,
    own_output,
    row_parameters,
    states_at,
    states_before,
)
from numbarnn.engines.cpu.products import ADD, AS_IS, INNER, OPTIONS, SET, product, share
from numbarnn.engines.cpu.rows import TILE, Thread, Units, add_parts, clear_units, if_there, mask_at, row_of, zero_row
from numbarnn.engines.cpu.stages import each_stage_back
from numbarnn.kernels.step.groups import Gradients, Options, Parameters, Saved, Scratch, States


@if_there(otherwise=lambda dm, gradients: gradients)
def _own_gradient(dm, gradients):
    """The gradients, with dh that of the cell's own output: with projection all of it, else dy must be added."""
    _, dc, dax, dah, _, dht, d_per_unit = gradients
    return Gradients(dm, dc, dax, dah, None, dht, d_per_unit)


# ------------------------------------------------------------------------------------------ rows of a sequence
@if_there()
def _columns_from(row, first):
    """A row without its first columns."""
    return row[first:]


@if_there()
def _row_at(array, t, b):
    """A sequence's row in a step."""
    return array[t, b]


@njit(**INNER)
def _row(walk, at, b):
    """A sequence's `Row` in a step."""
    t, g, H = at.t, walk.gradients, walk.units.H
    dy, d_per_unit = _columns_from(_row_at(g.dy, t, b), walk.columns[0]), _row_at(g.d_per_unit, t, b)
    return Row(
        row_parameters(walk.parameters),
        states_before(walk, at, b),
        states_at(walk.states, walk.columns, t + 1, b),
        Scratch(None, None, None, row_of(walk.scratch.d_v, b), None),
        Gradients(g.dh[b], g.dc[b], g.dax[t, b], g.dah[t, b], dy, None, d_per_unit),
        walk.cell.load_sums(_row_at(walk.saved.sums, t, b), H),
        walk.cell.load_d_sums(row_of(walk.totals, b), 0, 1),
        noise_at(walk.options.noise, b * H, t),
    )


# ------------------------------------------------------------------------------------------ parts of a step
@njit(**PART)
def _project(W_hr, thread, gradients, dm, step_mask, at, direction):
    """dht[t] = dy[t] + dh, 0 where the step is skipped; dh = 0 but there; dm = dht[t] W_hr: the thread's columns."""
    if W_hr is not None:
        (P, H), t = W_hr.shape, at.t
        own, (u0, u1) = Units(*share(P, thread.number, thread.count), P), share(H, thread.number, thread.count)
        for b in range(dm.shape[0]):
            dht, dh, dy = gradients.dht[t, b], gradients.dh[b], gradients.dy[t, b, direction * P :]
            if mask_at(step_mask, 2 * (t + 1) - at.before, b) == RESET:
                clear_units(dh, 1, own)
            if mask_at(step_mask, t + 1, b) == SKIP:
                clear_units(dht, 1, own)
                continue
            for k in range(own.first, own.last):
                dht[k] = dy[k] + dh[k]
                dh[k] = 0
        barrier(thread.counters, thread.number, thread.count)
        if u0 < u1:
            product(dm[:, u0:u1], gradients.dht[t, :, 0:P], W_hr[:, u0:u1], AS_IS, AS_IS, SET)


@njit(**INNER)
def _mask_gradients(step_mask, walk, at):
    """Of a step after which a sequence begins anew nothing comes back; a skipped one has no part in the gradients of
    parameters."""
    if step_mask is not None:
        cell, gradients, slot, slot_after = walk.cell, walk.gradients, at.t + 1, 2 * (at.t + 1) - at.before
        for b in range(step_mask.shape[1]):
            if step_mask[slot_after, b] == RESET:
                clear_units(gradients.dc[b], cell.num_private, walk.units)
                if gradients.dht is None:  # else `_project` has done it
                    clear_units(gradients.dh[b], 1, walk.units)
            if step_mask[slot, b] == SKIP:
                clear_units(gradients.dax[at.t, b], cell.num_gates, walk.units)
                if not cell.same_gradient:
                    clear_units(gradients.dah[at.t, b], cell.num_ah, walk.units)
                clear_units(_row_at(gradients.d_per_unit, at.t, b), cell.num_per_unit, walk.units)


@njit(**INNER)
def _add_up(stage, walk, at):
    """The gradients of a stage's sums: all threads' parts, then in each thread their total."""
    first, last, thread = stage.first_sum, stage.end_sum, walk.thread
    for b in range(walk.totals.shape[0]):
        if mask_at(walk.options.step_mask, at.t + 1, b) != SKIP:
            part = walk.parts[thread.number, b, first:last]
            stage_gradient_sums(walk.cell, stage, walk.tile, part, _row(walk, at, b), walk.units)
    barrier(thread.counters, thread.number, thread.count)
    add_parts(walk.totals, walk.parts[: thread.count], first, last)


@njit(**INNER)
def _multiply(stage, walk, at):
    """The gradients of a stage's gates, then of all units that of the vector which its rows of R multiplied."""
    units, thread, d_v, dah = walk.units, walk.thread, walk.scratch.d_v, walk.gradients.dah
    for b in range(d_v.shape[0]):
        if mask_at(walk.options.step_mask, at.t + 1, b) != SKIP:
            stage_gradients(walk.cell, stage, _row(walk, at, b), units)
    barrier(thread.counters, thread.number, thread.count)
    rows, column = slice(stage.first_gate * units.H, stage.end_gate * units.H), stage.product * units.H
    product(
        d_v[:, column + units.first : column + units.last], dah[at.t, :, rows],
        walk.parameters.R[rows, units.first : units.last], AS_IS, AS_IS, SET,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ the loop
@njit(**OPTIONS)
def backward_steps(
    thread, threads, counters, cell, parameters, states, saved, gradients, scratch, options, parts, span
):  # fmt: skip
    """Steps of one direction's walk back: the cell's backward and the product with R.

    Args:
        thread, threads, counters, cell, parts: as in `forward_steps`.
        parameters, states, saved, gradients, scratch, options: the groups of `BackwardBuffers`, likewise. dax, (T, B,
            >= max(K, G) * H), holds what the cell saved.
        span: (direction, first, last), for steps [first, last); step 0 is the last one of forward.
    """
    direction, first, last = span
    parameters, states, saved = Parameters(*parameters), States(*states), Saved(*saved)
    gradients, scratch, options = Gradients(*gradients), Scratch(*scratch), Options(*options)
    T, B, P, G = states.h.shape[0] - 2, states.h.shape[1], parameters.R.shape[1], cell.num_gates
    H = parameters.b_w.shape[0] // G
    own, units = Thread(thread, threads, counters), Units(*share(H, thread, threads), H)
    p0, p1 = share(P, thread, threads)
    values = cell.num_states + G + cell.num_recurrent + cell.num_per_unit
    tile = np.empty(max(values, 2 * cell.num_sums) * TILE, dtype=states.h.dtype)
    zeros = zero_row(options.step_mask, states.h, max(1, cell.num_private) * H)
    walk = Walk(
        own, cell, units, parameters, States(own_output(states.m, states.h), states.c, None), saved, scratch,
        _own_gradient(scratch.dm, gradients), options, parts, make_totals(saved.sums), tile, zeros,
        (direction * H, direction * H * cell.num_private),
    )  # fmt: skip
    rows = slice(0, cell.num_recurrent * H)
    for step in range(first, last):
        t, before = find_step_time(step, T, direction, True)
        at = Step(t, before, t)
        _project(parameters.W_hr, own, gradients, scratch.dm, options.step_mask, at, direction)
        _mask_gradients(options.step_mask, walk, at)
        each_stage_back(cell, _add_up, _multiply, walk, at)
        for b in range(B):
            if mask_at(options.step_mask, t + 1, b) != SKIP:
                backward_units(cell, tile, _row(walk, at, b), units)
        barrier(counters, thread, threads)
        if cell.num_recurrent > 0:
            product(gradients.dh[:, p0:p1], gradients.dah[t, :, rows], parameters.R[rows, p0:p1], AS_IS, AS_IS, ADD)
