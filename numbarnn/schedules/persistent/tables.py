"""A persistent launch's `Options`, and the tables (rows of `Block` and `Warp`) that give each block and warp its part.

`numbarnn.kernels.persistent.columns` explains the columns.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from numbarnn.common.precision import compute_dtype
from numbarnn.kernels import error_flag
from numbarnn.kernels.persistent.columns import BLOCK, GIVEN, INPUT, RECURRENT, STAGE, STAGE_BITS, Block, Options, Warp
from numbarnn.schedules.persistent import planner, shares


@dataclass(frozen=True)
class WeightOffsets:
    """Where the weights of a layer and direction begin in the flat buffer, in elements; -1 for absent ones."""

    W: int
    R: int
    b_w: int
    b_r: int
    per_unit: int = -1
    W_hr: int = -1


def make_options(problem, launch, step_mask, noise, masks, scale):
    """Return the `Options` of a launch from a call's step mask (flat), noise, and the masks and scale of dropout."""
    drops = planner.variant(problem, launch)[1]
    return Options(
        step_mask=step_mask if problem.masked else None,
        noise=noise if problem.training and problem.cell.noise else None,
        masks=masks if drops else None,
        scale=np.dtype(compute_dtype(problem.dtype)).type(scale) if drops else None,
        chances=problem.chances,
    )


def make_tables(problem, launch, places):
    """Return the tables of a launch.

    Args:
        places: places[layer, direction], a `WeightOffsets`.

    Returns:
        int64 arrays (blocks, columns of `Block`) and (blocks, warps, columns of `Warp`), read-only. Calls of any T get
        the same ones.
    """
    sizes, problem = (problem.batch, launch.sequences), replace(problem, steps=0, batch=0)
    tiled = {"steps": 0, "blocks": 0, "slices": 0, "sequences": 0, "shared_bytes": 0, "chain_us": 0.0, "estimate": None}
    return _tables(problem, replace(launch, **tiled), sizes, tuple(places.items()))


@lru_cache(maxsize=256)
def _tables(problem, launch, sizes, places):
    """Return the tables of a problem without T and B, and of a launch without sequences: `sizes` are (B, most of a
    block)."""
    batch, size = sizes
    blocks, warps = [], []
    for layer, direction in product(launch.layer_range, range(problem.directions)):
        own_blocks, own_warps = _rows(problem, launch, places, layer, direction)
        for sequence in range(0, batch, size):
            blocks.append(own_blocks.copy())
            blocks[-1][:, BLOCK.sequence], blocks[-1][:, BLOCK.end] = sequence, min(sequence + size, batch)
            warps.append(own_warps)
    return tuple(map(_for_good, (blocks, warps)))


def _for_good(parts):
    """Return rows one after another, as a read-only array."""
    array = np.concatenate(parts)
    array.flags.writeable = False
    return array


@lru_cache(maxsize=1024)
def _rows(problem, launch, places, layer, direction):
    """Return the rows of `blocks` and of `warps` of a layer and direction, for one part of the batch.
    All parts have the same rows but for sequence and end, which are 0 here."""
    make_warp, places = _backward_warp if launch.backward else _forward_warp, dict(places)
    tile = launch.tile
    sources = shares.sources(problem, launch.first, layer, launch.last, launch.backward, tile)
    of_warps = shares.share(sources, tile)
    blocks = _blocks(problem, launch, places[layer, direction], layer, direction, of_warps)
    count = len(blocks.unit)
    warps = [_filled(make_warp(problem, launch, places, layer, blocks, share), count) for share in of_warps]
    return _filled(blocks, count), np.stack(warps, axis=1)


def _filled(record, count):
    """Return an array with a row for each of `count` blocks; the record's fields are numbers for all, or arrays."""
    rows = np.empty((count, len(record)), np.int64)
    for column, value in enumerate(record):
        rows[:, column] = value
    return rows


def _blocks(problem, launch, place, layer, direction, of_warps):
    """Return the rows of `blocks` of a layer and direction, one for each tile of its units, as a `Block` of arrays."""
    cell, hidden, size = problem.cell, problem.hidden_sizes[layer], launch.tile.units
    gates = max(cell.num_saved, cell.num_gates) if problem.training else cell.num_gates
    width, unit = problem.projection or hidden, np.arange(0, hidden, size)
    units = np.clip(hidden - unit, 0, size)
    return Block(
        layer=layer - launch.first,
        direction=direction,
        unit=unit,
        units=units,
        hidden=hidden,
        width=width,
        outputs=np.clip(width - unit, 0, units),
        sequence=0,
        end=0,
        recurrent_warps=sum(1 for share in of_warps if share and share[0].kind == RECURRENT),
        working_warps=sum(1 for share in of_warps if share and share[0].kind < STAGE),
        gates_width=gates * hidden,
        reads_gates=int(layer == (launch.last - 1 if launch.backward else launch.first) and not launch.tile.given),
        timeout=error_flag.timeout_of(layer, direction, launch.backward),
        bias_w=place.b_w,
        bias_r=place.b_r,
        per_unit=place.per_unit,
        mask=layer if problem.dropping and layer < launch.last - 1 else -1,
        noise=layer * problem.directions + direction if problem.training and cell.noise else 0,
        stage_warps=_stage_warps(of_warps),
    )


def _stage_warps(of_warps):
    """Return `Block.stage_warps`."""
    ends = {share[0].kind - STAGE: end for end, share in enumerate(of_warps, 1) if share}
    return sum(end << STAGE_BITS * product for product, end in ends.items() if product >= 0)


def _forward_warp(problem, launch, places, layer, blocks, share):
    """Return the rows of `warps`, forward, for a share of `shares.share`, of all `blocks` (`_blocks`).

    The exchanged arrays are numbered in this order: each layer's h; each h after dropout, if there is dropout; the
    first layer's input, if it is given; then v of each layer and direction, or m of each layer.
    """
    if share is None:
        return Warp()
    source, first, count = share
    first = first + source.first_column(blocks.unit)
    cell, D, layers, dropping = problem.cell, problem.directions, len(launch.layer_range), problem.dropping
    hidden, width, direction, place = blocks.hidden, blocks.width, blocks.direction, places[layer, blocks.direction]

    def warp(start, gates, row, column=0, **operand):
        """Return the `Warp` of a matrix that begins at `start`: for each unit `gates` rows of `row` numbers."""
        return Warp(
            kind=source.kind,
            column=column + first,
            columns=count,
            weights=start + blocks.unit * row + first,
            units=blocks.units,
            rows_per_unit=gates,
            gate_stride=hidden * row,
            unit_stride=row,
            column_stride=1,
            **operand,
        )

    if source.kind == RECURRENT:  # slot t is the state before time t, slot t + 2 the one after time t + 1
        slots = {"operand": blocks.layer, "shift": 2 * direction, "width": D * width}
        return warp(place.R, cell.num_recurrent, width, direction * width, **slots)
    input_number = layers + (layers - 1 if dropping else 0)  # the number of the first layer's input
    of_v, product = input_number + launch.tile.given, source.kind - STAGE
    if source.kind == shares.projection_kind(cell):
        slots = {"operand": of_v + blocks.layer, "shift": 1, "width": D * hidden}
        return _of_outputs(blocks, warp(place.W_hr, 1, hidden, direction * hidden, **slots))
    if product >= 0:  # of the same step
        stage = cell.product_stages[product]
        times = {"operand": of_v + blocks.layer * D + direction, "width": cell.num_products * hidden}
        R = place.R + cell.first_of_stage(stage) * hidden * hidden
        return warp(R, len(cell.stages[stage].gates), hidden, product * hidden, **times)
    operand = input_number if source.kind == GIVEN else blocks.layer - 1 + (layers if dropping else 0)
    shift = 0 if dropping or source.kind == GIVEN else 1  # after dropout or given, it has no slot for the initial state
    return warp(place.W, cell.num_gates, source.width, operand=operand, shift=shift, width=source.width)


def _backward_warp(problem, launch, places, layer, blocks, share):
    """Return the rows of `warps`, backward, for a share of `shares.share`, of all `blocks` (`_blocks`).
    The exchanged arrays are, each for all layers and directions: the gradients of h Rᵀ, if any; of x Wᵀ, if they
    differ; of h, with a projection."""
    if share is None:
        return Warp()
    source, first, count = share
    first = first + source.first_column(blocks.unit)
    cell, hidden, width, D = problem.cell, blocks.hidden, blocks.width, problem.directions
    number, places_of_launch = blocks.layer * D + blocks.direction, len(launch.layer_range) * D

    def warp(start, row, first=first, **operand):
        """Return the `Warp` of a matrix that begins at `start`, whose columns are the units': rows of `row` numbers."""
        return Warp(
            kind=source.kind,
            column=first,
            columns=count,
            weights=start + first * row + blocks.unit,
            units=blocks.units,
            rows_per_unit=1,
            unit_stride=1,
            column_stride=row,
            **operand,
        )

    if source.kind == shares.projection_kind(cell):
        before = places_of_launch * ((cell.num_ah > 0) + (not cell.same_gradient))
        return warp(places[layer, blocks.direction].W_hr, hidden, operand=before + number, width=width)
    if source.kind == INPUT:
        before = places_of_launch if cell.num_ah and not cell.same_gradient else 0
        W = places[layer + 1, source.direction].W + blocks.direction * width
        of_above = before + (blocks.layer + 1) * D + source.direction
        return _of_outputs(blocks, warp(W, D * width, operand=of_above, width=source.width))
    shift = 1 if blocks.direction == 0 else -1
    if source.kind >= STAGE:  # of the same step
        first, shift = first + cell.first_of_stage(cell.product_stages[source.kind - STAGE]) * hidden, 0
    R = places[layer, blocks.direction].R
    return _of_outputs(blocks, warp(R, width, first, operand=number, shift=shift, width=cell.num_ah * hidden))


def _of_outputs(blocks, warp):
    """Return the rows of `warps` of a matrix with rows for the blocks' outputs; blocks without outputs multiply
    nothing."""
    there = blocks.outputs > 0
    return Warp(*(np.where(there, *values) for values in zip(warp._replace(units=blocks.outputs), Warp(), strict=True)))
