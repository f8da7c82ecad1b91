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


class OfWarp(NamedTuple):
    """What a warp multiplies: fragments, `weights.Fragments`; loaded, see `exchange.make_look`; share, `block.Share`;
    array, the exchanged array of its operand."""

    fragments: Any
    loaded: Any
    share: Any
    array: Any


class Exchanged(NamedTuple):
    """What stages of a layer and direction exchange; () is what the cell does not have.

    Attributes:
        words: of sums over units, `across.Words.array`.
        sums: (T, B, Q), where they are kept for backward.
        published: of product stages, where blocks publish what is multiplied: forward (T, B, S*H), backward dah.
        of_warp: of product stages, the `OfWarp`.
        patience: `exchange.Patience`.
    """

    words: Any
    sums: Any
    published: Any
    of_warp: Any
    patience: Any


def make_in_turn(cell, stages, sums_of, product_of):
    """A device function of (own, about, turn, exchanged): stages in turn.

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
    """A device function multiply(own, about, turn, exchanged) -> True: the warps of a product stage wait for its vector
    and multiply it. All threads of the block call it together; it ends with a barrier.

    Args:
        product: its number among the product stages; of a projection, which comes after them, how many there are.
    """
    step, report = products.make_product(tile).step, make_report()
    PARTIALS, BETWEEN_WARPS = tile.partials, tile.between_warps

    def multiply(own, about, turn, exchanged):
        (fragments, loaded, share, array), owned = exchanged.of_warp, about.owned
        if share.stage == product:
            slot, partial = turn.t + share.shift, PARTIALS + cuda.threadIdx.x // 32 * BETWEEN_WARPS
            what = Operand(array, slot, turn.b0, owned.end, owned.batch, share.width, share.column, share.columns)
            if not step(fragments, loaded, own.shared, partial, what, exchanged.patience):
                report(exchanged.patience.trouble, about.trouble + turn.step + WITHIN)
                own.failed[0] = 1
        cuda.syncthreads()
        return True

    return jit(multiply, BACKEND)


@cache
def make_stage_sums(tile, product, count):
    """A device function sums(own, about, number): what that product gives the block's `number`-th pair, `count`
    numbers."""
    add_up, U, PARTIALS, ROW_STRIDE = products.make_sums(tile, count, True), tile.units, tile.partials, tile.row_stride
    end_of, index = _make_end(product), products.make_index(True)
    begin_of = _make_end(product - 1) if product > 0 else jit(lambda about: about.working, BACKEND)

    def sums(own, about, number):
        begin, end = begin_of(about), end_of(about)
        return add_up(own.shared, index(PARTIALS + number // U * ROW_STRIDE + number % U), begin, end)

    return jit(sums, BACKEND)


def _make_end(product):
    """A device function end(about): behind the warps of a product stage, from `columns.Block.stage_warps`."""
    skipped, bits, short = np.int64(STAGE_BITS * product), np.int64((1 << STAGE_BITS) - 1), np.int32
    return jit(lambda about: short((about.stage_warps >> skipped) & bits), BACKEND)


@cache
def make_sums(cell, tile, stages, terms):
    """A device function sums(own, about, turn, exchanged): stages of sums over units, in turn. All threads of the block
    call it together; it ends with a barrier.

    Args:
        stages: their numbers, in the order in which they come.
        terms: of each a device function terms(own, about, turn, i): of the thread's i-th pair, a valid one.
    """
    Q, P, SEQUENCES = cell.num_sums, tile.pairs, tile.sequences
    TERMS, TOTALS, number_of_stages = tile.stages + Q * SEQUENCES, tile.stages, len(stages)
    put, part_of = _make_put(cell, tile, stages, terms), _make_part(cell, stages)
    across, words_of, pair_of, report = make_across(tile, Q), _make_words(tile), block.make_pair(tile), make_report()
    hidden_zero, short = ptx.hidden_zero, np.int32

    def sums(own, about, turn, exchanged):
        for which in range(hidden_zero(short(turn.step)), number_of_stages):
            for i in range(P):
                number, _, _, valid = pair_of(i, turn.b0, about.owned)
                if valid:
                    put(which, own, about, turn, i, TERMS + number)
            cuda.syncthreads()
            words = words_of(about.owned, turn, exchanged.words)
            at, patience = (TERMS, TOTALS), exchanged.patience
            if not across(own.shared, at, part_of(which), words, about.owned.units, patience):
                report(patience.trouble, about.trouble + turn.step + WITHIN)
                own.failed[0] = 1
            cuda.syncthreads()
        return True

    return jit(sums, BACKEND)


def _make_put(cell, tile, stages, terms, number=0):
    """A device function put(which, own, about, turn, i, at): the terms of the stage that comes `which`-th, to shared
    memory; a choice among the stages from the `number`-th on."""
    store = units.storer(len(cell.stages[stages[number]].sums), BACKEND)
    between, terms_of = np.uint64(tile.sequences * tile.units), terms[number]

    def put_terms(which, own, about, turn, i, at):
        store(own.shared, np.uint64(at), between, terms_of(own, about, turn, i))

    put = jit(put_terms, BACKEND)
    if number + 1 == len(stages):
        return put
    rest = _make_put(cell, tile, stages, terms, number + 1)

    def choose(which, own, about, turn, i, at):
        if which == number:
            put(which, own, about, turn, i, at)
        else:
            rest(which, own, about, turn, i, at)

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
