"""A cell on the units of one sequence in one step, compiled for the CPU. `cell` and `stage` are those of `cell_tag`.

These functions are most of what is compiled. They see rows alone, so that calls with and without step masks,
projection or product with x share them. Index arithmetic is unsigned, see `numbarnn.compile.units`.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from numbarnn.engines.cpu.products import INNER
from numbarnn.engines.cpu.rows import TILE, add_lanes, add_rows, put

INLINE = INNER | {"forceinline": True}


class Row(NamedTuple):
    """One sequence in one step: of each array the row that begins with unit 0.

    Attributes:
        parameters: `Parameters` without matrices.
        before, after: `States` before and after the step; h is the cell's own, that ahead of a projection.
        scratch: `Scratch`, of which forward reads ax and ah, and replaces ax by what the cell saves; backward d_v.
        gradients: `Gradients` without dht, in backward; dax holds what the cell saved. dy is None if it is in dh.
        sums, d_sums: of all units, as the cell's functions take them.
        noise: (words, number of the sequence's first unit, t); None without noise and in inference.
    """

    parameters: Any
    before: Any
    after: Any
    scratch: Any
    gradients: Any
    sums: Any
    d_sums: Any
    noise: Any


# ------------------------------------------------------------------------------------------ forward
@njit(**INLINE)
def _forward_arguments(cell, row, j, H):
    """What the cell's and its stages' forward functions take of unit j."""
    return (
        cell.load_input(row.scratch.ax, row.parameters.b_w, j, H),
        cell.load_recurrent(row.scratch.ah, row.parameters.b_r, j, H),
        (row.before.h[j], *cell.load_private(row.before.c, j, H)),
        cell.load_per_unit(row.parameters.per_unit, j, H),
        row.sums,
        cell.load_noise(row.noise, j),
    )


@njit(**INNER)
def forward_units(cell, tile, row, units, save):
    """One step of the units.

    Results go through a tile, so that the loop stores to one place that it does not read: only then LLVM vectorises it.
    """
    for first in range(units.first, units.last, TILE):
        n = min(TILE, units.last - first)
        j, H = np.uintp(first), np.uintp(units.H)
        for i in range(np.uintp(n)):
            new_state, kept = cell.forward(*_forward_arguments(cell, row, j, H))
            cell.store_states(tile, i, np.uintp(TILE), new_state)
            if save:
                cell.store_saved(tile, i + np.uintp(cell.num_states * TILE), np.uintp(TILE), kept)
            j += np.uintp(1)
        put(row.after.h, first, units.H, tile, 1, n)
        put(row.after.c, first, units.H, tile[TILE:], cell.num_private, n)
        if save:
            put(row.scratch.ax, first, units.H, tile[cell.num_states * TILE :], cell.num_saved, n)


@njit(**INNER)
def stage_vector(cell, stage, v, row, units):
    """v (H,) = what the stage's rows of R multiply, of the units."""
    for j in range(np.uintp(units.first), np.uintp(units.last)):
        v[j] = stage.forward(*_forward_arguments(cell, row, j, np.uintp(units.H)))


@njit(**INNER)
def stage_sums(cell, stage, tile, parts, row, units):
    """parts = the sums of the stage's terms over the units."""
    count = parts.shape[0]  # rows of the tile that add up the terms of all tiles; after them come those of this one
    tile[: count * TILE] = 0
    for first in range(units.first, units.last, TILE):
        n, j = min(TILE, units.last - first), np.uintp(first)
        for i in range(np.uintp(n)):
            terms = stage.forward(*_forward_arguments(cell, row, j, np.uintp(units.H)))
            stage.store_sums(tile, i + np.uintp(count * TILE), np.uintp(TILE), terms)
            j += np.uintp(1)
        for q in range(count):
            add_rows(tile[q * TILE :], count * TILE, n)
    add_lanes(parts, tile)


# ------------------------------------------------------------------------------------------ backward
@njit(**INLINE)
def _sum_of(dy, dh, j):
    """All of the gradient of the cell's output."""
    if dy is None:
        return dh[j]
    return dy[j] + dh[j]


@njit(**INLINE)
def _backward_arguments(cell, row, j, H):
    """What the cell's and its stages' backward functions take of unit j."""
    return (
        cell.load_saved(row.gradients.dax, j, H),
        (row.before.h[j], *cell.load_private(row.before.c, j, H)),
        (row.after.h[j], *cell.load_private(row.after.c, j, H)),
        (_sum_of(row.gradients.dy, row.gradients.dh, j), *cell.load_private(row.gradients.dc, j, H)),
        cell.load_d_v(row.scratch.d_v, j, H),
        cell.load_per_unit(row.parameters.per_unit, j, H),
        row.sums,
        row.d_sums,
        cell.load_noise(row.noise, j),
    )


@njit(**INNER)
def backward_units(cell, tile, row, units):
    """One step backward of the units, by way of a tile as in `forward_units`."""
    after_gates = cell.num_states + cell.num_gates
    after_recurrent = after_gates + (0 if cell.same_gradient else cell.num_recurrent)
    for first in range(units.first, units.last, TILE):
        n = min(TILE, units.last - first)
        j, H = np.uintp(first), np.uintp(units.H)
        for i in range(np.uintp(n)):
            d_ax, d_ah, d_before, d_per_unit = cell.backward(*_backward_arguments(cell, row, j, H))
            cell.store_states(tile, i, np.uintp(TILE), d_before)
            cell.store_gates(tile, i + np.uintp(cell.num_states * TILE), np.uintp(TILE), d_ax)
            if not cell.same_gradient:
                cell.store_recurrent(tile, i + np.uintp(after_gates * TILE), np.uintp(TILE), d_ah)
            cell.store_per_unit(tile, i + np.uintp(after_recurrent * TILE), np.uintp(TILE), d_per_unit)
            j += np.uintp(1)
        put(row.gradients.dh, first, units.H, tile, 1, n)
        put(row.gradients.dc, first, units.H, tile[TILE:], cell.num_private, n)
        put(row.gradients.dax, first, units.H, tile[cell.num_states * TILE :], cell.num_gates, n)
        if not cell.same_gradient:
            put(row.gradients.dah, first, units.H, tile[after_gates * TILE :], cell.num_recurrent, n)
        put(row.gradients.d_per_unit, first, units.H, tile[after_recurrent * TILE :], cell.num_per_unit, n)


@njit(**INNER)
def stage_gradients(cell, stage, row, units):
    """The gradients of the stage's gates, of the units, into the row's dah."""
    dah, H = row.gradients.dah, np.uintp(units.H)
    for j in range(np.uintp(units.first), np.uintp(units.last)):
        d_gates = stage.backward(*_backward_arguments(cell, row, j, H))
        stage.store_gates(dah, j + H * np.uintp(stage.first_gate), H, d_gates)


@njit(**INNER)
def stage_gradient_sums(cell, stage, tile, parts, row, units):
    """parts = the sums over the units of the terms of the stage's gradients; as `stage_sums`."""
    count = parts.shape[0]
    tile[: count * TILE] = 0
    for first in range(units.first, units.last, TILE):
        n, j = min(TILE, units.last - first), np.uintp(first)
        for i in range(np.uintp(n)):
            terms = stage.backward(*_backward_arguments(cell, row, j, np.uintp(units.H)))
            stage.store_sums(tile, i + np.uintp(count * TILE), np.uintp(TILE), terms)
            j += np.uintp(1)
        for q in range(count):
            add_rows(tile[q * TILE :], count * TILE, n)
    add_lanes(parts, tile)
