"""Load the arguments of a cell's functions: device functions per cell, for all kernels with one thread per unit.

A kernel takes the groups of `numbarnn.kernels.step.groups` and reads the rows of one sequence at one step. Fields
that a cell or a call lacks are None, in groups and rows. The factories' flags say so too, as Numba compiles by them.
"""

from typing import Any, NamedTuple

import numpy as np

from numbarnn.cells.definition import Given
from numbarnn.common.order import RESET
from numbarnn.common.precision import compute_dtype, compute_type
from numbarnn.compile import storage, units
from numbarnn.cuda.backend import backend
from numbarnn.kernels.device import device_function


class Where(NamedTuple):
    """A step of a sequence.

    Attributes:
        code, code_after: the step mask of the step, and of the next step in its direction; 0 without a mask.
        direction, t: of the step. b: the sequence.
    """

    code: Any
    code_after: Any
    direction: Any
    t: Any
    b: Any


class ForwardRows(NamedTuple):
    """One sequence's rows of a step forward: h and c before the step, of both directions; ax, ah; sums."""

    h: Any
    c: Any
    ax: Any
    ah: Any
    sums: Any


class BackwardRows(NamedTuple):
    """One sequence's rows of a step backward: h and c before and after the step, of both directions; saved values
    (gates, sums); gradients, named as in their groups."""

    h_before: Any
    c_before: Any
    h: Any
    c: Any
    gates: Any
    sums: Any
    dy: Any
    dh: Any
    dc: Any
    d_states: Any
    d_v: Any
    d_sums: Any


@device_function
def make_where(masked):
    """Make where(options, direction, t, before, b) -> a `Where`. `before` is the slot of the state before the step: t,
    or t + 2 in the second direction. The next step's slot is the other of the two."""

    def where(options, direction, t, before, b):
        code = options.step_mask[t + 1, b] if masked else 0
        code_after = options.step_mask[2 * (t + 1) - before, b] if masked else 0
        return Where(code, code_after, direction, t, b)

    return where


@device_function
def make_forward_rows(cell):
    """Make rows(states, saved, scratch, t, before, b, save) -> `ForwardRows`.
    Without `save`, sums have one slot, and c has two slots in turn, unless the call keeps all of them."""
    has_sums = cell.num_sums > 0

    def rows(states, saved, scratch, t, before, b, save):
        c = states.c[before if save or states.c.shape[0] > 2 else before % 2, b]
        sums = saved.sums[t if save else 0, b] if has_sums else None
        return ForwardRows(states.h[before, b], c, scratch.ax[t, b], scratch.ah[b], sums)

    return rows


@device_function
def make_backward_rows(cell, projected, with_states=False):
    """Make rows(states, saved, gradients, scratch, t, before, b) -> `BackwardRows`.
    with_states: whether every step's cell states have a gradient."""
    has_sums, has_products, has_saved = cell.num_sums > 0, cell.num_products > 0, cell.num_saved > 0

    def rows(states, saved, gradients, scratch, t, before, b):
        dy = None if projected else gradients.dy[t, b]
        d_v = scratch.d_v[b] if has_products else None
        sums, d_sums = (saved.sums[t, b], scratch.d_sums[b]) if has_sums else (None, None)
        d_states = gradients.d_states[t, b] if with_states else None
        h, c, dh, dc = states.h, states.c, gradients.dh[b], gradients.dc[b]
        of_states = h[before, b], c[before, b], h[t + 1, b], c[t + 1, b]
        gates = saved.gates[t, b] if has_saved else None
        return BackwardRows(*of_states, gates, sums, dy, dh, dc, d_states, d_v, d_sums)

    return rows


@device_function
def make_draw(noise, dtype, draws):
    """Make draw(chances, words, position, t) (see `units.noise_loader`), which returns means without `draws`."""
    forms = tuple(one.form for one in noise)
    if draws:
        return units.noise_loader(forms, backend(), compute_dtype(dtype))
    mean = units.mean_loader(forms, backend(), compute_dtype(dtype))
    return lambda chances, words, position, t: mean(chances)


@device_function
def make_load_sums(count, dtype):
    """Make load(row, H) -> (H as a number, the row's sums), or () for a cell without sums."""
    if count == 0:
        return lambda row, H: ()
    number, load, whole = compute_type(dtype), units.loader(count), units.joiner()
    first, next_one = np.uintp(0), np.uintp(1)
    return lambda row, H: whole(number(H), load(row, first, next_one))


@device_function
def make_values_forward(cell, dtype, masked, draws):
    """Make values_of(rows, parameters, options, where, j, H) -> (arguments, state) for unit j.

    The arguments are those of the cell's forward and of its stages. A skipped step carries on the state.

    Args of values_of:
        rows: `ForwardRows`. parameters: `Parameters`, with b_w, b_r and per_unit.
        options: `Options`, with noise (if `draws`) and chances. where: a `Where`.
    """
    widen, number = storage.widen(dtype), compute_dtype(dtype)
    load_ax = units.biased_loader(cell.num_gates, widen, widen)
    load_ah = units.biased_loader(cell.num_ah, None, widen)
    load_after_reset = units.reset_loader(cell.num_recurrent, cell.num_ah, None, widen)
    load_per_unit = units.loader(cell.num_per_unit, widen)
    load_private = units.loader(cell.num_private)
    load_sums, draw = make_load_sums(cell.num_sums, dtype), make_draw(cell.noise, dtype, draws)
    no_state, whole, N = units.zeros(cell.num_states, number), units.joiner(), cell.num_private

    def values_of(rows, parameters, options, where, j, H):
        h_unit, c_unit = np.uintp(where.direction) * H + j, np.uintp(where.direction * N) * H + j
        state = whole(widen(rows.h[h_unit]), load_private(rows.c, c_unit, H))
        ax, ah = load_ax(rows.ax, parameters.b_w, j, H), load_ah(rows.ah, parameters.b_r, j, H)
        if masked and where.code == RESET:
            state, ah = no_state(), load_after_reset(rows.ah, parameters.b_r, j, H)
        per_unit, sums = load_per_unit(parameters.per_unit, j, H), load_sums(rows.sums, H)
        position = np.uint64(where.b) * np.uint64(H) + np.uint64(j)
        drawn = draw(options.chances, options.noise, position, np.uint64(where.t))
        return (ax, ah, state, Given(per_unit, sums, drawn)), state

    return values_of


@device_function
def make_values_backward(cell, dtype, masked, projected, with_states=False):
    """Make values_of(rows, parameters, options, where, j, H) -> (arguments, gradient of the state) for unit j.

    The arguments are those of the cell's backward and of its stages. A skipped step carries on the gradient.

    Args:
        projected: dh is the complete gradient of m, and there is no dy.
        with_states: the step's cell states have a gradient d_states besides that from later steps.

    Args of values_of:
        rows: `BackwardRows`. parameters: `Parameters`, with per_unit.
        options: `Options`, with noise (if drawn) and chances. where: a `Where`.
    """
    widen, number = storage.widen(dtype), compute_dtype(dtype)
    load_private, load_saved = units.loader(cell.num_private), units.loader(cell.num_saved, widen)
    load_per_unit = units.loader(cell.num_per_unit, widen)
    load_d_v = units.loader(cell.num_products)
    load_sums, draw = make_load_sums(cell.num_sums, dtype), make_draw(cell.noise, dtype, True)
    load_d_sums, first, next_one = units.loader(cell.num_sums), np.uintp(0), np.uintp(1)
    load_d_states, add = units.loader(cell.num_private, widen), units.adder(cell.num_private)
    no_state, no_private = (units.zeros(count, number) for count in (cell.num_states, cell.num_private))
    zero, whole, N = np.dtype(number).type(0), units.joiner(), cell.num_private

    def values_of(rows, parameters, options, where, j, H):
        h_unit, c_unit = np.uintp(where.direction) * H + j, np.uintp(where.direction * N) * H + j
        state = whole(widen(rows.h_before[h_unit]), load_private(rows.c_before, c_unit, H))
        new_state = whole(widen(rows.h[h_unit]), load_private(rows.c, c_unit, H))
        d_h, d_private = rows.dh[j], load_private(rows.dc, j, H)
        if masked:
            if where.code == RESET:
                state = no_state()
            if where.code_after == RESET:  # no gradient comes from the next step
                d_h, d_private = d_h if projected else zero, no_private()
        d_output = d_h if projected else widen(rows.dy[h_unit]) + d_h
        d_own = add(d_private, load_d_states(rows.d_states, c_unit, H)) if with_states else d_private
        per_unit, sums = load_per_unit(parameters.per_unit, j, H), load_sums(rows.sums, H)
        position = np.uint64(where.b) * np.uint64(H) + np.uint64(j)
        drawn = draw(options.chances, options.noise, position, np.uint64(where.t))
        arguments = (
            load_saved(rows.gates, j, H), state, new_state, whole(d_output, d_own), load_d_v(rows.d_v, j, H),
            load_d_sums(rows.d_sums, first, next_one), Given(per_unit, sums, drawn),
        )  # fmt: skip
        return arguments, whole(d_h, d_private)

    return values_of
