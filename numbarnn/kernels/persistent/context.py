"""The arguments of a step's device functions, f(thread, role, turn): a thread's memory, its constant work, the step.

A block works on *pairs* of a unit that it owns and a sequence, `tile.units * tile.sequences` of them in a turn. Each
thread has up to `tile.pairs` of them. Arrays that a kernel lacks are ().
"""

from typing import Any, NamedTuple

import numpy as np

from numbarnn.cuda.language import cuda
from numbarnn.kernels.device import device_function
from numbarnn.kernels.persistent.columns import BLOCK, WARP, Options, Warp

Array = Number = Any


class Turn(NamedTuple):
    """A step, its time t, and b0, the first of the sequences that are multiplied at once."""

    step: Number
    t: Number
    b0: Number


class Owned(NamedTuple):
    """A block's part of its layer and direction.

    Attributes:
        unit, units: its first unit, and how many units. hidden: H of the layer.
        begin, end: its sequences [begin, end) of the batch. batch: B.
    """

    unit: Number
    units: Number
    hidden: Number
    begin: Number
    end: Number
    batch: Number


class Rows(NamedTuple):
    """An array with a row for each time (or slot) and sequence.

    Attributes:
        array: (times, B, width), flat. width: elements of a row. column: the column of the block's first unit.
    """

    array: Array
    width: Number
    column: Number


class Outputs(NamedTuple):
    """A block's part of its layer's h, or of h's gradient, if h is a projection.

    Attributes:
        owned: the block's outputs, in place of units. rows: of h forward, of its gradient in each step backward.
        before: forward, the state before the step at time t is in slot t + before.
        dropped: forward, the layer's h after dropout, in rows like those of h.
    """

    owned: Owned
    rows: Rows
    before: Number = 0
    dropped: Array = ()


class WithinStep(NamedTuple):
    """Arrays that blocks exchange within a step, and what is kept of them: a flat array for each layer and direction.

    A tuple is empty if the cell lacks the feature.

    Attributes:
        words: of sums over units (`across.Words.array`).
        sums: (T, B, Q) in the dtype of sums, which forward writes in training and backward reads.
        v: (T, B, S*H), forward: the vectors that R multiplies in the S product stages.
        projected: with projections only. Forward m, the cells' outputs, (T+2, B, D*H), one array per layer. Backward
            the gradient of h in each step, (T, B, P).
    """

    words: tuple = ()
    sums: tuple = ()
    v: tuple = ()
    projected: tuple = ()


class Thread(NamedTuple):
    """A thread's arrays: its block's shared memory, and local arrays.

    Attributes:
        shared: shared memory in the layout of `Tile`.
        timed_out: shared (1,) int32, whether a warp of the block timed out.
        registers: (fragment_words,), the lane's weights.
        loaded: (n8, chunks on the way, 4), the operand of the thread's warp (see `exchange.make_look`).
        code_of: the step mask of the thread's pairs. code_after: backward, the step mask of the next step.
        per_unit: the pairs' per-unit parameters. x_product: forward, x Wᵀ of the pairs, as stored.
        gates: forward, cells with stages: pre-activations with biases of each pair, first ax, then ah.
        biases: forward, with `Tile.keeps_biases`: the biases of each pair in the same order.
        saved, h_before, h_after, c_before, c_after: backward, the pairs' saved values, and states before and after the
            step.
        dy: backward, the gradient of the layer's output, if it is in an array.
        sums: backward, the cell's sums over units.
        d_after: backward, cells with stages or a projection: each pair's gradient of the output, then those of all
            states from later steps.
        d_v: backward, product stages: for each pair the gradients of the stages' vectors.
    """

    shared: Array
    timed_out: Array
    registers: Array
    loaded: Array
    code_of: Array
    per_unit: Array
    code_after: Array = ()
    x_product: Array = ()
    gates: Array = ()
    biases: Array = ()
    saved: Array = ()
    h_before: Array = ()
    h_after: Array = ()
    c_before: Array = ()
    c_after: Array = ()
    dy: Array = ()
    sums: Array = ()
    d_after: Array = ()
    d_v: Array = ()


class Role(NamedTuple):
    """The work of a block and a warp in all steps.

    Attributes:
        row: the block's row of `blocks` (`columns.Block`). owned: made from it.
        warp: the warp's row of `warps`; all but weights, shift, width and column are int32.
        weights: the flat buffer of all weights. operand: the exchanged array that the warp multiplies.
        limit: the most polls of a wait. error_flag: once it is set, no block waits any more.
        recurrent_warps, working_warps: warps before the first number leave sums of the product with h; warps from there
            to the second leave sums of the layer's input.
        stage_warps: see `columns.Block`.
        reads_gates: forward whether x Wᵀ is in `Thread.x_product`, backward whether dy is in `Thread.dy`.
        options: the launch's options. noise: the row of random words, if the cell draws.
        mask: row of the masks for dropout of the output, or -1.
        words, kept_sums: of sums over units: `across.Words.array`, and the sums kept for backward, (T, B, Q).
        published: of product stages, where blocks publish the vector: forward (T, B, S*H), backward dah.
        outputs: of a projection. d_output: backward, the output's gradient.
    """

    row: Array
    owned: Owned
    warp: Warp
    weights: Array
    operand: Array
    limit: Number
    error_flag: Array
    recurrent_warps: Number
    working_warps: Number
    stage_warps: Number
    reads_gates: Number
    options: Options
    noise: Array
    mask: Number
    words: Array = ()
    kept_sums: Array = ()
    published: Array = ()
    outputs: Outputs = ()
    d_output: Rows = ()


@device_function
def make_decode():
    """Make decode(tables, batch) -> (row, owned, warp, recurrent_warps, working_warps), from the rows of the block and
    of the warp."""
    short = np.int32  # products of int32 take one instruction

    def decode(tables, batch):
        blocks, warps = tables
        row, part = blocks[cuda.blockIdx.x], warps[cuda.blockIdx.x, cuda.threadIdx.x // 32]
        owned = Owned(row[BLOCK.unit], row[BLOCK.units], row[BLOCK.hidden], row[BLOCK.sequence], row[BLOCK.end], batch)
        warp = Warp(
            short(part[WARP.kind]), part[WARP.operand], part[WARP.shift], part[WARP.width], part[WARP.column],
            short(part[WARP.columns]), part[WARP.weights], short(part[WARP.units]), short(part[WARP.rows_per_unit]),
            short(part[WARP.gate_stride]), short(part[WARP.unit_stride]), short(part[WARP.column_stride]),
        )  # fmt: skip
        return row, owned, warp, short(row[BLOCK.recurrent_warps]), short(row[BLOCK.working_warps])

    return decode


@device_function
def make_pair(tile):
    """Make pair_of(owned, b0, i) -> (number, unit, b, valid), the thread's i-th pair for sequences from b0 on.
    The unit counts from the block's first unit."""
    U, THREADS, SEQUENCES = tile.units, tile.threads, tile.sequences

    def pair_of(owned, b0, i):
        number = cuda.threadIdx.x + i * THREADS
        unit, b = number % U, b0 + number // U
        return number, unit, b, number < U * SEQUENCES and unit < owned.units and b < owned.end

    return pair_of
