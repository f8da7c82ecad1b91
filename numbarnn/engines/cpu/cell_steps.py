"""One step of a cell on the units of some sequences, compiled for each cell and dtype.

The time loops call these functions by address with a `records.Rows`. `cell` is a `cell_parts.CellParts` or a stage's
parts, whose numbers are constants for the compiler. Results of TILE units are collected on the stack before they are
stored: then LLVM knows that a loop's loads and stores do not overlap, and vectorizes it.
"""

import numpy as np

from numbarnn.cells.definition import Given
from numbarnn.compile.plain import inlined
from numbarnn.engines.cpu.records import of_cell, rows_at
from numbarnn.engines.cpu.vectors import numbers_at, own_numbers

TILE = 128  # units


@inlined
def _put(zero, address, first, H, tile, place, values, n):
    """Store values of n units: number k H + first + i at the address = tile[(place + k) TILE + i]."""
    row = numbers_at(zero, address)
    for k in range(values):
        for i in range(n):
            row[k * H + first + i] = tile[(place + k) * TILE + i]


@inlined
def _each(cell, unit, context, n):
    """Call unit(context, i) for n units: whole blocks in loops of a length known to LLVM, then the rest."""
    whole = n // cell.block * cell.block
    for block in range(0, whole, cell.block):
        for i in range(cell.block):
            unit(context, block + i)
    for i in range(n - whole):
        unit(context, whole + i)


@inlined
def _words_at(address):
    return numbers_at(np.uint64(0), address)


@inlined
def _noise(cell, zero, rows, position, draws):
    """Return the random numbers of the unit at a position; in inference their means."""
    values, thresholds = numbers_at(zero, rows.noise_values), _words_at(rows.noise_thresholds)
    return cell.load_noise(values, thresholds, _words_at(rows.noise), position, rows.t, draws)


@inlined
def _given(cell, zero, rows, b, j, draws):
    """Return the `Given` of unit j of sequence b. Its random numbers are drawn if `draws`, else they are the means."""
    return Given(
        cell.load_per_unit(numbers_at(zero, rows.per_unit), j, rows.H),
        cell.load_sums(numbers_at(zero, rows.sums + b * rows.sums_row), rows.H),
        _noise(cell, zero, rows, rows.position + b * rows.H + j, draws),
    )


# ------------------------------------------------------------------------------------------ forward
@inlined
def _forward_arguments(cell, zero, rows, b, j, save):
    """Return the arguments of the cell's and its stages' forward functions for unit j of sequence b."""
    H = rows.H
    h, c = numbers_at(zero, rows.h + b * rows.h_row), numbers_at(zero, rows.c + b * rows.c_row)
    return (
        cell.load_input(numbers_at(zero, rows.ax + b * rows.ax_row), rows.ax_units, numbers_at(zero, rows.b_w), j, H),
        cell.load_recurrent(
            numbers_at(zero, rows.ah + b * rows.ah_row), rows.ah_units, numbers_at(zero, rows.b_r), j, H
        ),
        (h[j], *cell.load_private(c, j, H)),
        _given(cell, zero, rows, b, j, save),
    )


@inlined
def _forward_unit(context, i):
    (cell, zero, rows, tile, save), (b, first) = context
    new_state, kept = cell.forward(*_forward_arguments(cell, zero, rows, b, first + i, save))
    cell.store(tile, i, TILE, new_state)
    if save:
        cell.store(tile, i + cell.num_states * TILE, TILE, kept)


@inlined
def _forward(cell, address, save):
    zero, rows = cell.zero, rows_at(address)
    tile = own_numbers(zero, cell.values * TILE)
    for b in range(rows.rows):
        for first in range(rows.first, rows.last, TILE):
            n = min(TILE, rows.last - first)
            _each(cell, _forward_unit, ((cell, zero, rows, tile, save), (b, first)), n)
            _put(zero, rows.new_h + b * rows.new_h_row, first, rows.H, tile, 0, 1, n)
            _put(zero, rows.new_c + b * rows.new_c_row, first, rows.H, tile, 1, cell.num_private, n)
            if save:
                _put(zero, rows.saved + b * rows.saved_row, first, rows.H, tile, cell.num_states, cell.num_saved, n)


@of_cell
def infer_units(cell, address):
    """Compute one step of the units."""
    _forward(cell, address, False)


@of_cell
def train_units(cell, address):
    """Compute one step of the units and keep what backward needs."""
    _forward(cell, address, True)


@inlined
def _stage_unit(context, i):
    (stage, zero, rows, tile, draws), (b, first) = context
    tile[i] = stage.forward(*_forward_arguments(stage.whole, zero, rows, b, first + i, draws))


@of_cell
def stage_units(stage, address):
    """Compute a stage of gates, forward: the vector that its rows of R multiply, into `out`."""
    zero, rows = stage.zero, rows_at(address)
    tile = own_numbers(zero, stage.values * TILE)
    for b in range(rows.rows):
        for first in range(rows.first, rows.last, TILE):
            n = min(TILE, rows.last - first)
            _each(stage, _stage_unit, ((stage, zero, rows, tile, rows.noise != 0), (b, first)), n)
            _put(zero, rows.out + b * rows.out_row, first, rows.H, tile, 0, 1, n)


@inlined
def _stage_term(context, i):
    stage, zero, rows, tile = context
    terms = stage.forward(*_forward_arguments(stage.whole, zero, rows, 0, rows.first + i, rows.noise != 0))
    stage.store(tile, i, TILE, terms)


@of_cell
def stage_terms(stage, address):
    """Compute a stage of sums, forward: the terms of one sequence's units, at most TILE, into `out` (sums, TILE)."""
    zero, rows = stage.zero, rows_at(address)
    tile, n = own_numbers(zero, stage.values * TILE), rows.last - rows.first
    _each(stage, _stage_term, (stage, zero, rows, tile), n)
    _put(zero, rows.out, 0, TILE, tile, 0, stage.count, n)


# ------------------------------------------------------------------------------------------ backward
@inlined
def _backward_arguments(cell, zero, rows, b, j):
    """Return the arguments of the cell's and its stages' backward functions for unit j of sequence b."""
    H = rows.H
    h, c = numbers_at(zero, rows.h + b * rows.h_row), numbers_at(zero, rows.c + b * rows.c_row)
    new_h, new_c = numbers_at(zero, rows.new_h + b * rows.new_h_row), numbers_at(zero, rows.new_c + b * rows.new_c_row)
    dy, dh = numbers_at(zero, rows.dy + b * rows.dy_row), numbers_at(zero, rows.dh + b * rows.dh_row)
    known = (
        cell.load_saved(numbers_at(zero, rows.saved + b * rows.saved_row), j, H),
        (h[j], *cell.load_private(c, j, H)),
        (new_h[j], *cell.load_private(new_c, j, H)),
        (dy[j] + dh[j], *cell.load_private(numbers_at(zero, rows.dc + b * rows.dc_row), j, H)),
        cell.load_d_v(numbers_at(zero, rows.d_v + b * rows.d_v_row), j, H),
    )
    given = _given(cell, zero, rows, b, j, True)
    return (*known, cell.load_d_sums(numbers_at(zero, rows.d_sums + b * rows.d_sums_row), 0, 1), given)


@inlined
def _backward_unit(context, i):
    (cell, zero, rows, tile, places), (b, first) = context
    of_gates, of_recurrent, of_parameters = places
    d_ax, d_ah, d_before, d_per_unit = cell.backward(*_backward_arguments(cell, zero, rows, b, first + i))
    cell.store(tile, i, TILE, d_before)
    cell.store(tile, i + of_gates * TILE, TILE, d_ax)
    if not cell.same_gradient:
        cell.store(tile, i + of_recurrent * TILE, TILE, d_ah)
    cell.store(tile, i + of_parameters * TILE, TILE, d_per_unit)


@of_cell
def backward_units(cell, address):
    """Compute one step of the units, backward."""
    zero, rows = cell.zero, rows_at(address)
    tile = own_numbers(zero, cell.values * TILE)
    of_gates = cell.num_states
    of_recurrent = of_gates + cell.num_gates
    of_parameters = of_recurrent + (0 if cell.same_gradient else cell.num_recurrent)
    context = cell, zero, rows, tile, (of_gates, of_recurrent, of_parameters)
    for b in range(rows.rows):
        for first in range(rows.first, rows.last, TILE):
            n = min(TILE, rows.last - first)
            _each(cell, _backward_unit, (context, (b, first)), n)
            H = rows.H
            _put(zero, rows.dh + b * rows.dh_row, first, H, tile, 0, 1, n)
            _put(zero, rows.dc + b * rows.dc_row, first, H, tile, 1, cell.num_private, n)
            _put(zero, rows.dax + b * rows.dax_row, first, H, tile, of_gates, cell.num_gates, n)
            if not cell.same_gradient:
                _put(zero, rows.dah + b * rows.dah_row, first, H, tile, of_recurrent, cell.num_recurrent, n)
            _put(zero, rows.d_per_unit + b * rows.d_per_unit_row, first, H, tile, of_parameters, cell.num_per_unit, n)


@inlined
def _stage_unit_back(context, i):
    (stage, zero, rows, tile), (b, first) = context
    stage.store(tile, i, TILE, stage.backward(*_backward_arguments(stage.whole, zero, rows, b, first + i)))


@of_cell
def stage_units_back(stage, address):
    """Compute a stage of gates, backward: the gates' gradients, into dah."""
    zero, rows = stage.zero, rows_at(address)
    tile = own_numbers(zero, stage.values * TILE)
    for b in range(rows.rows):
        for first in range(rows.first, rows.last, TILE):
            n = min(TILE, rows.last - first)
            _each(stage, _stage_unit_back, ((stage, zero, rows, tile), (b, first)), n)
            _put(zero, rows.out + b * rows.out_row, first, rows.H, tile, 0, stage.count, n)


@inlined
def _stage_term_back(context, i):
    stage, zero, rows, tile = context
    terms = stage.backward(*_backward_arguments(stage.whole, zero, rows, 0, rows.first + i))
    stage.store(tile, i, TILE, terms)


@of_cell
def stage_terms_back(stage, address):
    """Compute a stage of sums, backward: the gradients' terms of one sequence's units, at most TILE, into `out`."""
    zero, rows = stage.zero, rows_at(address)
    tile, n = own_numbers(zero, stage.values * TILE), rows.last - rows.first
    _each(stage, _stage_term_back, (stage, zero, rows, tile), n)
    _put(zero, rows.out, 0, TILE, tile, 0, stage.count, n)
