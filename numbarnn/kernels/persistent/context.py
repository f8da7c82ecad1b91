"""The arguments of a step's functions, f(thread, role, turn). `thread` is the memory that a thread works on, `role` is
what its block and warp do in all steps, and `turn` is the step.

A block works on *pairs* of a unit that it owns and a sequence, `tile.units * tile.sequences` of them in a turn; a
thread has up to `tile.pairs` of these. What a kernel does not have is () in place of an array.
"""

from typing import Any, NamedTuple

import numpy as np

from numbarnn.cuda.language import cuda
from numbarnn.kernels.device import device_function
from numbarnn.kernels.persistent.columns import BLOCK, WARP, Options, Warp

Array = Number = Any


class Turn(NamedTuple):
    """A step, its time t, and the sequences from b0 on: as many as are multiplied at once."""

    step: Number
    t: Number
    b0: Number


class Owned(NamedTuple):
    """What a block owns of its layer and direction.

    Attributes:
        unit, units: its first unit, and how many.
        hidden: H of the layer.
        begin, end: its sequences [begin, end) of the batch.
        batch: B.
    """

    unit: Number
    units: Number
    hidden: Number
    begin: Number
    end: Number
    batch: Number


class Rows(NamedTuple):
    """An array with a row for each time or slot and each sequence.

    Attributes:
        array: (times, B, width), flat.
        width: elements of a row.
        column: of the block's first unit.
    """

    array: Array
    width: Number
    column: Number


class Outputs(NamedTuple):
    """What a block has of its layer's h, or of h's gradient, where h is a projection.

    Attributes:
        owned: of outputs in place of units.
        rows: forward of h, backward of its gradient in each step.
        before: forward, the state before the step at time t is in slot t + before.
        dropped: forward, what is dropped out of the layer's h, in rows like h's.
    """

    owned: Owned
    rows: Rows
    before: Number = 0
    dropped: Array = ()


class WithinStep(NamedTuple):
    """What blocks exchange within a step, and what of it is kept: tuples of flat arrays, one for each layer and
    direction; empty where the cell has none.

    Attributes:
        words: of sums over units, `across.Words.array`.
        sums: (T, B, Q) in the dtype of sums, which forward writes in training and backward reads.
        v: (T, B, S*H), forward: the vectors that R multiplies in the S product stages.
        projected: with projections only. Forward: m, the cells' outputs, (T+2, B, D*H), one array per layer. Backward:
            the gradient of h in each step, (T, B, P).
    """

    words: tuple = ()
    sums: tuple = ()
    v: tuple = ()
    projected: tuple = ()


class Thread(NamedTuple):
    """Arrays that a thread works on: its block's shared memory, and local ones.

    Attributes:
        shared: shared memory, laid out as `Tile` says.
        timed_out: shared (1,) int32, whether a warp of the block has waited too long.
        registers: (fragment_words,), the lane's weights.
        loaded: (n8, chunks on the way, 4), what the thread's warp multiplies, see `exchange.make_look`.
        code_of: the step mask of the thread's pairs; code_after: backward, that of the step after.
        per_unit: the pairs' parameters per unit.
        now: forward, x Wᵀ of the pairs, as stored.
        gates: forward, cells with stages: pre-activations with biases, those of ax and then those of ah, of each pair.
        biases: forward, with `Tile.keeps_biases`, those of each pair in the same order.
        saved, h_before, h_after, c_before, c_after: backward, what the cell saved of the pairs, and their states before
            and after the step.
        dy: backward, the gradient of the layer's output, if it stands in an array.
        sums: backward, over units, of a cell that has any.
        came: backward, cells with stages, and projections: of each pair the gradient of the output, then those of h and
            of the private states that come from later steps.
        d_v: backward, product stages: of each pair the gradients of what they multiply.
    """

    shared: Array
    timed_out: Array
    registers: Array
    loaded: Array
    code_of: Array
    per_unit: Array
    code_after: Array = ()
    now: Array = ()
    gates: Array = ()
    biases: Array = ()
    saved: Array = ()
    h_before: Array = ()
    h_after: Array = ()
    c_before: Array = ()
    c_after: Array = ()
    dy: Array = ()
    sums: Array = ()
    came: Array = ()
    d_v: Array = ()


class Role(NamedTuple):
    """What a block and a warp do in all steps.

    Attributes:
        row: the block's of `blocks`, `columns.Block`.
        owned: what follows from it. warp: the warp's of `warps`; all but weights, shift, width and column are int32.
        weights: the flat buffer of all weights. operand: the exchanged array that the warp multiplies.
        limit, error_flag: how often a warp looks for numbers, at most; once the flag is set nobody waits any more.
        split, working: the first warps, before `split`, leave sums of the recurrent product, those before `working`
            the others.
        stage_warps: see `columns.Block`.
        reads: forward, whether x Wᵀ stands in `Thread.now`; backward, whether dy stands in `Thread.dy`.
        options: what is out of the ordinary. noise: the row of random words, where the cell draws.
        mask: row of the masks for dropout of the output; -1: none.
        words, kept_sums: of sums over units, `across.Words.array`, and those that are kept for backward, (T, B, Q).
        published: of product stages, where blocks publish what is multiplied: forward (T, B, S*H), backward dah.
        outputs: of a projection.
        d_output: backward, the output's gradient.
    """

    row: Array
    owned: Owned
    warp: Warp
    weights: Array
    operand: Array
    limit: Number
    error_flag: Array
    split: Number
    working: Number
    stage_warps: Number
    reads: Number
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
    """Make decode(tables, batch) -> (row, owned, warp, split, working): the block's row of `blocks`, and what follows
    from it; the warp's of `warps`."""
    short = np.int32  # what is multiplied then takes one instruction

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
    """Make pair_of(owned, b0, i) -> (number, unit, b, valid): the thread's i-th pair of those of the sequences from b0
    on; the unit counts from the block's first."""
    U, THREADS, SEQUENCES = tile.units, tile.threads, tile.sequences

    def pair_of(owned, b0, i):
        number = cuda.threadIdx.x + i * THREADS
        unit, b = number % U, b0 + number // U
        return number, unit, b, number < U * SEQUENCES and unit < owned.units and b < owned.end

    return pair_of
