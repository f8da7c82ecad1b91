"""What steps forward and backward do alike between their products and the cell: the cell's stages, in turn.

    make_in_turn(...)     # all of them
    make_sums(...)        # stages of sums over units that follow each other
    make_multiply(...)    # the product of a stage, after its vector has been published

Stages of sums are a loop, not one after another in the code: adding up across blocks is long, and what is prepared for
each copy of it takes registers from the weights. Products of stages are multiplied by warps of their own, as weights
stay in registers.
"""

from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numbarnn.compile import units
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.kernels.in_turn import in_turn
from numbarnn.kernels.persistent import block, products
from numbarnn.kernels.persistent.across import Part, Words, make_across
from numbarnn.kernels.persistent.columns import STAGE_BITS
from numbarnn.kernels.persistent.exchange import Operand
from numbarnn.kernels.trouble import WITHIN, make_report


class Turn(NamedTuple):
    """A step, of the sequences from b0 on: as many as are multiplied at once. t: its time."""

    step: Any
    t: Any
    b0: Any


class Thread(NamedTuple):
    """Arrays that a thread works on: its block's shared memory, and local ones; () is what the kernel does not have.

    Attributes:
        shared: shared memory, laid out as `Tile` says.
        failed: shared (1,), whether a thread of the block has timed out.
        loaded: what the thread's warp multiplies, see `exchange.make_look`.
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

    shared: Any
    failed: Any
    loaded: Any
    code_of: Any
    per_unit: Any
    code_after: Any = ()
    now: Any = ()
    gates: Any = ()
    biases: Any = ()
    saved: Any = ()
    h_before: Any = ()
    h_after: Any = ()
    c_before: Any = ()
    c_after: Any = ()
    dy: Any = ()
    sums: Any = ()
    came: Any = ()
    d_v: Any = ()


class Role(NamedTuple):
    """What a block and a warp do in all steps; () is what the kernel does not have.

    Attributes:
        owned: `block.Owned`. split, working: see `block.make_decode`. stage_warps, trouble: see `columns.Block`.
        reads: forward, whether x Wᵀ stands in `Thread.now`; backward, whether dy stands in `Thread.dy`.
        options: `columns.Options`. noise: the row of random words, where the cell draws.
        share, fragments: `block.Share` and `weights.Fragments` of the warp. operand: the exchanged array that it reads.
        patience: `exchange.Patience`.
        words: of sums over units, `across.Words.array`.
        kept_sums: (T, B, Q), sums over units that are kept for backward.
        published: of product stages, where blocks publish what is multiplied: forward (T, B, S*H), backward dah.
        outputs: of a projection, `projection.Outputs`.
        mask: backward, row of the masks for dropout of the output; -1: none.
        d_output: backward, the `block.Rows` of the output's gradient.
    """

    owned: Any
    split: Any
    working: Any
    stage_warps: Any
    trouble: Any
    reads: Any
    options: Any
    noise: Any
    share: Any
    fragments: Any
    operand: Any
    patience: Any
    words: Any = ()
    kept_sums: Any = ()
    published: Any = ()
    outputs: Any = ()
    mask: Any = -1
    d_output: Any = ()


def make_in_turn(cell, stages, sums_of, product_of):
    """A device function of (thread, role, turn): stages in turn.

    Args:
        stages: their numbers, in the order in which they come.
        sums_of: numbers of stages of sums that follow each other -> the device function; product_of: number of a
            product stage -> likewise.
    """
    functions = []
    for multiplies, numbers in groupby(stages, lambda stage: len(cell.stages[stage].gates) > 0):
        row = tuple(numbers)
        functions += map(product_of, row) if multiplies else [sums_of(row)]
    return in_turn(tuple(functions))


@cache
def make_multiply(tile, product):
    """A device function multiply(thread, role, turn) -> True: the warps of a product stage wait for its vector
    and multiply it. All threads of the block call it together; it ends with a barrier.

    Args:
        product: its number among the product stages; of a projection, which comes after them, how many there are.
    """
    step, report = products.make_product(tile).step, make_report()
    PARTIALS, BETWEEN_WARPS = tile.partials, tile.between_warps

    def multiply(thread, role, turn):
        share, owned = role.share, role.owned
        if share.stage == product:
            slot, partial = turn.t + share.shift, PARTIALS + cuda.threadIdx.x // 32 * BETWEEN_WARPS
            what = Operand(
                role.operand, slot, turn.b0, owned.end, owned.batch, share.width, share.column, share.columns
            )
            if not step(role.fragments, thread.loaded, thread.shared, partial, what, role.patience):
                report(role.patience.trouble, role.trouble + turn.step + WITHIN)
                thread.failed[0] = 1
        cuda.syncthreads()
        return True

    return jit(multiply, BACKEND)


@cache
def make_stage_sums(tile, product, count):
    """A device function sums(thread, role, number): what that product gives the block's `number`-th pair, `count`
    numbers."""
    add_up, U, PARTIALS, ROW_STRIDE = products.make_sums(tile, count, True), tile.units, tile.partials, tile.row_stride
    end_of, index = _make_end(product), products.make_index(True)
    begin_of = _make_end(product - 1) if product > 0 else jit(lambda role: role.working, BACKEND)

    def sums(thread, role, number):
        begin, end = begin_of(role), end_of(role)
        return add_up(thread.shared, index(PARTIALS + number // U * ROW_STRIDE + number % U), begin, end)

    return jit(sums, BACKEND)


def _make_end(product):
    """A device function end(role): behind the warps of a product stage, from `columns.Block.stage_warps`."""
    skipped, bits, short = np.int64(STAGE_BITS * product), np.int64((1 << STAGE_BITS) - 1), np.int32
    return jit(lambda role: short((role.stage_warps >> skipped) & bits), BACKEND)


@cache
def make_sums(cell, tile, stages, terms):
    """A device function sums(thread, role, turn): stages of sums over units, in turn. All threads of the block
    call it together; it ends with a barrier.

    Args:
        stages: their numbers, in the order in which they come.
        terms: of each a device function terms(thread, role, turn, i): of the thread's i-th pair, a valid one.
    """
    Q, P, SEQUENCES = cell.num_sums, tile.pairs, tile.sequences
    TERMS, TOTALS, number_of_stages = tile.stages + Q * SEQUENCES, tile.stages, len(stages)
    put, part_of = _make_put(cell, tile, stages, terms), _make_part(cell, stages)
    across, words_of, pair_of, report = make_across(tile, Q), _make_words(tile), block.make_pair(tile), make_report()
    hidden_zero, short = ptx.hidden_zero, np.int32

    def sums(thread, role, turn):
        for which in range(hidden_zero(short(turn.step)), number_of_stages):
            for i in range(P):
                number, _, _, valid = pair_of(i, turn.b0, role.owned)
                if valid:
                    put(which, thread, role, turn, i, TERMS + number)
            cuda.syncthreads()
            words = words_of(role.owned, turn, role.words)
            at, patience = (TERMS, TOTALS), role.patience
            if not across(thread.shared, at, part_of(which), words, role.owned.units, patience):
                report(patience.trouble, role.trouble + turn.step + WITHIN)
                thread.failed[0] = 1
            cuda.syncthreads()
        return True

    return jit(sums, BACKEND)


def _make_put(cell, tile, stages, terms, number=0):
    """A device function put(which, thread, role, turn, i, at): the terms of the stage that comes `which`-th, to shared
    memory; a choice among the stages from the `number`-th on."""
    store = units.storer(len(cell.stages[stages[number]].sums), BACKEND)
    between, terms_of = np.uint64(tile.sequences * tile.units), terms[number]

    def put_terms(which, thread, role, turn, i, at):
        store(thread.shared, np.uint64(at), between, terms_of(thread, role, turn, i))

    put = jit(put_terms, BACKEND)
    if number + 1 == len(stages):
        return put
    rest = _make_put(cell, tile, stages, terms, number + 1)

    def choose(which, thread, role, turn, i, at):
        if which == number:
            put(which, thread, role, turn, i, at)
        else:
            rest(which, thread, role, turn, i, at)

    return jit(choose, BACKEND)


def _make_part(cell, stages, number=0):
    """A device function part_of(which): the `Part` of the stage that comes `which`-th, likewise."""
    stage, short = cell.stages[stages[number]], np.int32
    first, count, largest = cell.first_sum(stages[number]), len(stage.sums), stage.largest
    part = jit(lambda which: Part(short(first), short(count), largest), BACKEND)
    if number + 1 == len(stages):
        return part
    rest = _make_part(cell, stages, number + 1)
    return jit(lambda which: part(which) if which == number else rest(which), BACKEND)


def _make_words(tile):
    """A device function words_of(owned, turn, array): the `Words` of a block's turn, of which the compiler keeps
    nothing in registers from step to step."""
    U, short, hidden_zero = tile.units, np.int32, ptx.hidden_zero

    def words_of(owned, turn, array):
        step = short(turn.step)
        zero = hidden_zero(step)
        blocks, number = (short(owned.hidden) + short(U - 1)) // short(U) + zero, short(owned.unit) // short(U) + zero
        return Words(array, step, blocks, number, short(turn.b0), short(owned.end) + zero, short(owned.batch) + zero)

    return jit(words_of, BACKEND)
