"""What a launch is told besides arrays: its options, and the columns of the two tables that tell blocks and warps their
parts of it, in one place.

`numbarnn.schedules.persistent.tables` makes rows by name, `Block(layer=0, ...)`; kernels read
`blocks[block, BLOCK.layer]`. A new column is a line here, one where it is filled, one where it is read.
"""

from typing import Any, NamedTuple

# Kinds of products: with the own layer's previous step, with another layer's same time, with what was there before, and
# for the cell's p-th product stage (STAGE + p) with what blocks of the layer exchange within the step; a projection is
# one more of these, the last.
RECURRENT, INPUT, GIVEN, STAGE = 0, 1, 2, 3
STAGE_BITS = 8  # of `Block.stage_warps` for each product stage


class Options(NamedTuple):
    """What is out of the ordinary in a launch; None is what is not. A new one is a line here, one in
    `numbarnn.schedules.persistent.tables.make_options`, and where kernels read it.

    Attributes:
        step_mask: (D * (T + 2) * B,) uint8, of all directions (`numbarnn.common.order`).
        noise: (L * D, 6) uint64, `numbarnn.common.philox.noise_words`.
        masks, scale: of dropout between the launch's layers, `numbarnn.common.philox.dropout_masks`.
        chances: of the cell's random numbers, `numbarnn.cells.definition.Chances`.
    """

    step_mask: Any = None
    noise: Any = None
    masks: Any = None
    scale: Any = None
    chances: Any = None


class Block(NamedTuple):
    """A row of `blocks` (blocks, columns) int64: what a block owns.

    Attributes:
        layer: among the layers of this launch. direction: 0 or 1.
        unit, units: the block's first unit of the layer, and how many it owns.
        hidden: H of the layer. width: of its h: P with a projection, else H.
        outputs: how many of h's numbers it owns, from its first unit's on: as many as units but for projections.
        sequence, end: the block's sequences [sequence, end) of the batch.
        recurrent_warps: the first warps multiply the state before, the next ones the layer's input.
        working_warps: both together; those of product stages follow, then come some that idle.
        gates_width: elements of a row of `gates`.
        reads_gates: whether, forward, x Wᵀ stands in `gates`, as in the first layer without `Tile.given`; backward, dy
            in `dy`.
        timeout: `error_flag.timeout_of` the block.
        bias_w, bias_r: where its layer's biases begin in `weights`; -1: there are none.
        per_unit: where the cell's parameters per unit begin in `weights`, if it has any.
        mask: row of the masks for dropout between the layer and the next of this launch; -1: none.
        noise: row of `noise`, if there is any.
        stage_warps: for each product stage, and then a projection, the first one's in the lowest `STAGE_BITS` bits, the
            end of its warps, which begin where those of the stage before it end.
    """

    layer: int
    direction: int
    unit: int
    units: int
    hidden: int
    width: int
    outputs: int
    sequence: int
    end: int
    recurrent_warps: int
    working_warps: int
    gates_width: int
    reads_gates: int
    timeout: int
    bias_w: int = -1
    bias_r: int = -1
    per_unit: int = -1
    mask: int = -1
    noise: int = 0
    stage_warps: int = 0


class Warp(NamedTuple):
    """A row of `warps` (blocks, warps, columns) int64: what a warp multiplies. The defaults: nothing.

    Attributes:
        kind: `RECURRENT`, `INPUT`, `GIVEN` or `STAGE` + p.
        operand: number of the exchanged array that it multiplies.
        shift: the step at time t reads slot t + shift.
        width: elements of a row of that array.
        column, columns: its first column, and how many.
        weights: where the weight of its first row and column stands.
        units: of the block's units, or of its outputs, how many have rows in its matrix.
        rows_per_unit: how many each of them has: `Tile.rows_per_unit` or fewer, the others are zero.
        gate_stride, unit_stride, column_stride: elements from gate to gate, unit to unit, column to column.
    """

    kind: int = INPUT
    operand: int = 0
    shift: int = 0
    width: int = 0
    column: int = 0
    columns: int = 0
    weights: int = 0
    units: int = 0
    rows_per_unit: int = 0
    gate_stride: int = 0
    unit_stride: int = 0
    column_stride: int = 0


# Where each column stands: BLOCK.layer is 0, BLOCK.direction 1, ... Constants, to kernels too.
BLOCK, WARP = (record(*range(len(record._fields))) for record in (Block, Warp))
