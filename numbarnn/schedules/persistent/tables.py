"""The tables that tell each block and each warp of a persistent launch its part.

Their columns are described where kernels read them: `numbarnn.kernels.persistent.kernels` and
`numbarnn.kernels.persistent.tiles`.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from numbarnn.kernels import trouble
from numbarnn.kernels.persistent.tiles import INPUT, RECURRENT
from numbarnn.schedules.persistent import planner


@dataclass(frozen=True)
class Place:
    """Where the weights of a layer and direction stand in the flat buffer, in elements; -1 for what there is not."""

    W: int
    R: int
    b_w: int
    b_r: int
    per_unit: int = -1


def make_tables(problem, launch, places):
    """The tables `blocks` and `warps` of a launch, as `numbarnn.kernels.persistent.kernels` and `slices` describe them.

    Args:
        places: places[layer, direction], a `Place`.

    Returns:
        int64 arrays (blocks, BLOCK_COLUMNS) and (blocks, warps, WARP_COLUMNS).
    """
    make_warps = _backward_warp if launch.backward else _forward_warp
    blocks, warps = [], []
    for layer in range(launch.first, launch.last):
        hidden = problem.hidden_sizes[layer]
        shares = planner.share(
            planner.sources(problem, launch.first, layer, launch.last, launch.backward), launch.cut.warps, launch.cut
        )
        recurrent = sum(1 for one in shares if one and one[0].kind == RECURRENT)
        working = sum(1 for one in shares if one)
        for direction in range(problem.directions):
            place = places[layer, direction]
            noise = layer * problem.directions + direction if problem.training and problem.cell.noise else 0
            alone = layer == (launch.last - 1 if launch.backward else launch.first)
            mask = layer if problem.dropping and layer < launch.last - 1 else -1
            width = max(problem.cell.num_saved, problem.cell.num_gates) if problem.training else problem.cell.num_gates
            code = trouble.waited(layer, direction, launch.backward)
            owned = product(range(0, problem.batch, launch.sequences), range(0, hidden, launch.cut.units))
            for sequence, unit in owned:
                count, end = min(launch.cut.units, hidden - unit), min(sequence + launch.sequences, problem.batch)
                blocks.append(
                    (
                        layer - launch.first, direction, unit, count, hidden, width * hidden, place.b_w, place.b_r,
                        recurrent, working, int(alone), mask, code, sequence, end,
                        place.per_unit, noise,
                    )
                )  # fmt: skip
                warps.append([make_warps(problem, launch, places, layer, direction, unit, one) for one in shares])
    return np.array(blocks, np.int64), np.array(warps, np.int64)


_IDLE = (0,) * 9 + (INPUT, 0)


def _forward_warp(problem, launch, places, layer, direction, unit, share):
    """The row of `warps` for a share of `planner.share`, forward."""
    if share is None:
        return _IDLE
    source, first, count = share
    hidden, place = problem.hidden_sizes[layer], places[layer, direction]
    number, layers = layer - launch.first, launch.last - launch.first
    if source.kind == RECURRENT:
        at = place.R + unit * hidden + first
        width, column = problem.directions * hidden, direction * hidden + first
        gates = problem.cell.num_recurrent
        return number, 2 * direction, width, column, count, at, hidden * hidden, hidden, 1, RECURRENT, gates
    inputs = source.columns
    vector, shift = (layers + number - 1, 0) if problem.dropping else (number - 1, 1)
    at = place.W + unit * inputs + first
    return vector, shift, inputs, first, count, at, hidden * inputs, inputs, 1, INPUT, problem.cell.num_gates


def _backward_warp(problem, launch, places, layer, direction, unit, share):
    """The row of `warps` for a share of `planner.share`, backward."""
    if share is None:
        return _IDLE
    source, first, count = share
    hidden, D, number = problem.hidden_sizes[layer], problem.directions, layer - launch.first
    if source.kind == RECURRENT:
        at = places[layer, direction].R + first * hidden + unit
        shift = 1 if direction == 0 else -1
        return number * D + direction, shift, source.columns, first, count, at, 0, 1, hidden, RECURRENT, 1
    vector = (number + 1) * D + source.direction
    if not problem.cell.same_gradient:
        vector += (launch.last - launch.first) * D
    inputs = D * hidden  # columns of the W above
    at = places[layer + 1, source.direction].W + first * inputs + direction * hidden + unit
    return vector, 0, source.columns, first, count, at, 0, 1, inputs, INPUT, 1
