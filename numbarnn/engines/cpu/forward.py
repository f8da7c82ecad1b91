"""The CPU engine's forward loop: all steps of one layer and direction, on several threads, around BLAS and a cell.

Threads own slices of the units. They meet once per step, because the next step's product needs all of h, and once at
each stage. What a call does not have is None; a function that gets it as an argument asks for it first, as Numba then
compiles nothing else. Of an attribute of a group it would compile both branches.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from numbarnn.common.order import RESET, SKIP, step_time
from numbarnn.engines.cpu.atomics import barrier
from numbarnn.engines.cpu.cell_units import Row, forward_units, stage_sums, stage_vector
from numbarnn.engines.cpu.products import AS_IS, INNER, OPTIONS, SET, TRANSPOSED, product, share
from numbarnn.engines.cpu.rows import (
    TILE,
    Thread,
    Units,
    add_parts,
    clear_units,
    copy_units,
    if_there,
    mask_at,
    row_of,
    unless_reset,
    zero_row,
)
from numbarnn.engines.cpu.stages import each_stage
from numbarnn.kernels.step.groups import Options, Parameters, Saved, Scratch, States

# Of functions without a cell that call other files: cached on their own, they would not notice when those files change.
# They are in the cache as part of the functions with a cell, whose type tells (`cell_tag`).
PART = INNER | {"cache": False}
find_step_time = njit(**INNER)(step_time)


class Walk(NamedTuple):
    """What a thread needs in all steps of a direction.

    Attributes:
        thread, cell, units: `rows.Thread`, `cell_tag.CellTag`, `rows.Units`.
        parameters, states, saved, scratch, gradients, options: the groups; but h is the cell's own output, that ahead
            of a projection, and dh its gradient. In forward gradients is None.
        parts: (threads, B, Q), each thread's part of a step's sums, or of their gradients.
        totals: (B, Q), their sums.
        tile: see `rows`. zeros: see `rows.zero_row`.
        columns: of h and of c, where the direction's begin.
    """

    thread: Thread
    cell: Any
    units: Units
    parameters: Parameters
    states: States
    saved: Saved
    scratch: Scratch
    gradients: Any
    options: Options
    parts: Any
    totals: Any
    tile: Any
    zeros: Any
    columns: tuple[int, int]


class Step(NamedTuple):
    """A step: it is time t, starts from slot `before` of the states, and forward saves to slot `kept` of v and sums."""

    t: int
    before: int
    kept: int


@njit(**INNER)
def own_output(m, h):
    """h as the cell computes it."""
    if m is None:
        return h
    return m


@if_there()
def make_totals(sums):
    """A place (B, Q) for one step's sums."""
    return np.empty((sums.shape[1], sums.shape[2]), dtype=sums.dtype)


# ------------------------------------------------------------------------------------------ rows of a sequence
@njit(**INNER)
def states_at(states, columns, slot, b):
    """A sequence's rows of h and c in a slot; c may have but two, which take turns."""
    of_h, of_c = columns
    return States(states.h[slot, b, of_h:], states.c[slot % states.c.shape[0], b, of_c:], None)


@njit(**INNER)
def states_before(walk, at, b):
    """The rows from which a sequence's step starts."""
    states = states_at(walk.states, walk.columns, at.before, b)
    mask = mask_at(walk.options.step_mask, at.t + 1, b)
    return States(unless_reset(states.h, walk.zeros, mask), unless_reset(states.c, walk.zeros, mask), None)


@njit(**INNER)
def row_parameters(parameters):
    """Those that a row of units reads."""
    return Parameters(None, parameters.b_w, parameters.b_r, None, None, parameters.per_unit)


@if_there()
def noise_at(words, position, t):
    """`Row.noise`: position is the number of the sequence's first unit."""
    return words, np.uintp(position), np.uint64(t)


@njit(**INNER)
def _row(walk, at, b):
    """A sequence's `Row` in a step."""
    H, scratch = walk.units.H, walk.scratch
    return Row(
        row_parameters(walk.parameters),
        states_before(walk, at, b),
        states_at(walk.states, walk.columns, at.t + 1, b),
        Scratch(scratch.ax[at.t, b], scratch.ah[b], None, None, None),
        None,
        walk.cell.load_sums(row_of(walk.totals, b), H),
        None,
        noise_at(walk.options.noise, b * H, at.t),
    )


# ------------------------------------------------------------------------------------------ parts of a step
@njit(**PART)
def _input_products(x, W, ax, gates, times, units):
    """x Wᵀ of times [t0, t1) and the thread's units, into ax; nothing where it is there already."""
    if x is not None:
        (t0, t1), (T, B, I), n = times, x.shape, units.last - units.first  # noqa: E741 - the legend's letter
        x_rows, ax_rows = x.reshape(T * B, I)[t0 * B : t1 * B, :], ax.reshape(T * B, ax.shape[2])
        for g in range(gates):
            row = g * units.H + units.first
            product(ax_rows[t0 * B : t1 * B, row : row + n], x_rows, W[row : row + n, :], AS_IS, TRANSPOSED, SET)


@njit(**PART)
def _recurrent_products(ah, vectors, R, gates, units):
    """ah = vectors Rᵀ, of gates [first, last) and the thread's units.

    Args:
        ah: (B, A * H). vectors: (B, P), rows may stand apart. R: (A * H, P).
    """
    first, last = gates
    for g in range(first, last):
        rows = slice(g * units.H + units.first, g * units.H + units.last)
        product(ah[:, rows], vectors, R[rows, :], AS_IS, TRANSPOSED, SET)


@njit(**INNER)
def _reset_products(step_mask, slot, ah, gates, units):
    """h Rᵀ of the sequences that begin anew is zero."""
    if step_mask is not None:
        for b in range(ah.shape[0]):
            if step_mask[slot, b] == RESET:
                clear_units(ah[b], gates, units)


@njit(**INNER)
def _skip(step_mask, slot, b, walk, before):
    """Whether the step is skipped; then the state is carried through."""
    if step_mask is None:
        return False
    if step_mask[slot, b] != SKIP:
        return False
    row = states_at(walk.states, walk.columns, slot, b)
    row_before = states_at(walk.states, walk.columns, before, b)
    copy_units(row.h, row_before.h, 1, walk.units)
    copy_units(row.c, row_before.c, walk.cell.num_private, walk.units)
    return True


@njit(**INNER)
def _add_up(stage, walk, at):
    """A stage of sums: all threads' parts, then in each thread their total."""
    first, last, thread = stage.first_sum, stage.end_sum, walk.thread
    for b in range(walk.totals.shape[0]):
        part = walk.parts[thread.number, b, first:last]
        stage_sums(walk.cell, stage, walk.tile, part, _row(walk, at, b), walk.units)
    barrier(thread.counters, thread.number, thread.count)
    add_parts(walk.totals, walk.parts[: thread.count], first, last)
    if thread.number == 0:
        add_parts(walk.saved.sums[at.kept], walk.parts[: thread.count], first, last)


@njit(**INNER)
def _multiply(stage, walk, at):
    """A stage of a product: the vector's own units, then of all units the product with the stage's rows of R."""
    H, thread = walk.units.H, walk.thread
    column = stage.product * H
    for b in range(walk.scratch.ah.shape[0]):
        stage_vector(walk.cell, stage, walk.saved.v[at.kept, b, column:], _row(walk, at, b), walk.units)
    barrier(thread.counters, thread.number, thread.count)
    vectors, gates = walk.saved.v[at.kept, :, column : column + H], (stage.first_gate, stage.end_gate)
    _recurrent_products(walk.scratch.ah, vectors, walk.parameters.R, gates, walk.units)


@njit(**PART)
def _project(W_hr, thread, states, step_mask, at, direction):
    """h = m W_hrᵀ after a step, the thread's columns; those of skipped steps are carried through."""
    if W_hr is not None:
        (P, H), slot = W_hr.shape, at.t + 1
        own = Units(*share(P, thread.number, thread.count), P)
        out = states.h[slot, :, direction * P + own.first : direction * P + own.last]
        if own.first < own.last:
            m = states.m[slot, :, direction * H : (direction + 1) * H]
            product(out, m, W_hr[own.first : own.last, :], AS_IS, TRANSPOSED, SET)
        for b in range(states.h.shape[1]):
            if mask_at(step_mask, slot, b) == SKIP:
                copy_units(states.h[slot, b, direction * P :], states.h[at.before, b, direction * P :], 1, own)
        barrier(thread.counters, thread.number, thread.count)


# ------------------------------------------------------------------------------------------ the loop
@njit(**OPTIONS)
def forward_steps(thread, threads, counters, cell, parameters, states, saved, scratch, options, x, parts, span):
    """Steps of one direction: its products and its cell.

    Args:
        thread, threads, counters: see `thread_pool.ThreadPool`.
        cell: `cell_tag.CellTag`.
        parameters, states, saved, scratch, options: the groups of `ForwardBuffers`, saved without gates; as plain
            tuples, since the type of a named one takes Numba 3 µs to find.
        x: (T, B, I); None if ax is x Wᵀ already. With `save` ax, (T, B, >= K * H), is replaced by what the cell saves.
        parts: see `Walk`.
        span: (direction, first, last, save), for steps [first, last); save: for backward.
    """
    direction, first, last, save = span
    parameters, states, scratch = Parameters(*parameters), States(*states), Scratch(*scratch)
    saved, options = Saved(*saved), Options(*options)
    T, B, P = states.h.shape[0] - 2, states.h.shape[1], parameters.R.shape[1]
    H = parameters.b_w.shape[0] // cell.num_gates
    own, units = Thread(thread, threads, counters), Units(*share(H, thread, threads), H)
    tile = np.empty(max(cell.num_states + cell.num_saved, 2 * cell.num_sums) * TILE, dtype=states.h.dtype)
    zeros = zero_row(options.step_mask, states.h, max(1, cell.num_private) * H)
    walk = Walk(
        own, cell, units, parameters, States(own_output(states.m, states.h), states.c, None), saved, scratch, None,
        options, parts, make_totals(saved.sums), tile, zeros,
        (direction * H, direction * H * cell.num_private),
    )  # fmt: skip
    if first < last:  # every thread for its own units, which need nothing of the others'
        t0, t1 = find_step_time(first, T, direction, False)[0], find_step_time(last - 1, T, direction, False)[0]
        _input_products(x, parameters.W, scratch.ax, cell.num_gates, (min(t0, t1), max(t0, t1) + 1), units)
    for step in range(first, last):
        t, before = find_step_time(step, T, direction, False)
        at = Step(t, before, t if save else 0)
        h_before = states.h[before, :, direction * P : (direction + 1) * P]
        _recurrent_products(scratch.ah, h_before, parameters.R, (0, cell.num_recurrent), units)
        _reset_products(options.step_mask, t + 1, scratch.ah, cell.num_recurrent, units)
        each_stage(cell, _add_up, _multiply, walk, at)
        for b in range(B):
            if not _skip(options.step_mask, t + 1, b, walk, before):
                forward_units(cell, tile, _row(walk, at, b), units, save)
        barrier(counters, thread, threads)
        _project(parameters.W_hr, own, states, options.step_mask, at, direction)
