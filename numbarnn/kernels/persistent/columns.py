"""A launch's options, and the columns of the two tables that assign work to blocks and warps.

`numbarnn.schedules.persistent.tables` makes rows by name, `Block(layer=0, ...)`; kernels read
`blocks[block, BLOCK.layer]`. A new column needs one line here, one where it is filled, and one where it is read.
"""

from typing import Any, NamedTuple

# Kinds of products: with the previous step of the own layer, with another layer at the same time, with given input,
# and (STAGE + p) for the cell's p-th product stage with what its blocks exchange within the step. A projection is the
# last of these.
RECURRENT, INPUT, GIVEN, STAGE = 0, 1, 2, 3
STAGE_BITS = 8  # of `Block.stage_warps` for each product stage


class Options(NamedTuple):
    """A launch's options; an unused one is None.

    A new option needs a line here, one in `numbarnn.schedules.persistent.tables.make_options`, and one in the
    kernels.

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
        layer: number of the layer in this launch. direction: 0 or 1.
        unit, units: the block's first unit of the layer, and how many units it owns.
        hidden: H of the layer. width: of its h, P with a projection, else H.
        outputs: how many numbers of h the block owns, from its first unit on; without a projection as many as units.
        sequence, end: the block's sequences [sequence, end) of the batch.
        recurrent_warps: number of warps that multiply the previous state. The next warps multiply the layer's input.
        working_warps: number of both. Warps of product stages follow, then idle warps.
        gates_width: elements of a row of `gates`.
        reads_gates: forward whether to read x Wᵀ in `gates`, as in the first layer without `Tile.given`; backward
            whether to read dy in `dy`.
        timeout: the block's `error_flag.timeout_of`.
        bias_w, bias_r: where the layer's biases begin in `weights`, or -1 without biases.
        per_unit: where the cell's per-unit parameters begin in `weights`, if it has any.
        mask: row of the masks for dropout between the layer and the next one of this launch, or -1.
        noise: row of `noise`, if there is any.
        stage_warps: ends of the warps of each product stage and then of a projection, `STAGE_BITS` bits each from the
            lowest on. A stage's warps begin where the previous stage's end.
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
    """A row of `warps` (blocks, warps, columns) int64: what a warp multiplies. By default it multiplies nothing.

    Attributes:
        kind: `RECURRENT`, `INPUT`, `GIVEN` or `STAGE` + p.
        operand: number of the exchanged array that it multiplies. shift: the step at time t reads slot t + shift.
        width: elements of a row of that array. column, columns: its first column, and how many.
        weights: where the weight of its first row and column is.
        units: how many of the block's units, or outputs, have rows in its matrix.
        rows_per_unit: rows of each of them, at most `Tile.rows_per_unit`; further rows are zero.
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


# Numbers of the columns: BLOCK.layer is 0, BLOCK.direction 1, ... Kernels see constants.
BLOCK, WARP = (record(*range(len(record._fields))) for record in (Block, Warp))
