"""The cell's stages between a step's products and the cell, forward and backward.

    make_stages(...)      # all stages
    make_sums(...)        # consecutive stages of sums over units
    make_multiply(...)    # the product of a stage, after its vector has been published

Stages of sums run in a loop, since the code for adding across blocks is long, and the preparations of each unrolled
copy would take registers from the weights. Separate warps multiply the stages' products, since weights stay in
registers. Device functions are f(thread, role, turn), or f(thread, role, turn, i) for a pair.
"""

from itertools import groupby

import numpy as np

from numbarnn.compile import units
from numbarnn.cuda import ptx
from numbarnn.cuda.language import cuda
from numbarnn.kernels.device import device_function, in_turn
from numbarnn.kernels.persistent import products
from numbarnn.kernels.persistent.across import Part, Words, make_across
from numbarnn.kernels.persistent.columns import STAGE, STAGE_BITS
from numbarnn.kernels.persistent.context import make_pair


def make_stages(cell, stages, sums_of, product_of):
    """Make run(thread, role, turn), which runs stages in order.

    Args:
        stages: their numbers. sums_of: function (numbers of consecutive stages of sums) -> device function.
        product_of: function (number of a product stage) -> device function.
    """
    functions = []
    for multiplies, numbers in groupby(stages, lambda stage: len(cell.stages[stage].gates) > 0):
        row = tuple(numbers)
        functions += map(product_of, row) if multiplies else [sums_of(row)]
    return in_turn(tuple(functions))


@device_function
def make_multiply(tile, product):
    """Make multiply(thread, role, turn), in which the warps of a product stage wait for its vector and multiply it.

    All threads of the block call it together. It ends with a barrier.

    Args:
        product: its number among the product stages; a projection comes after them.
    """
    step, kind = products.make_product(tile).step, STAGE + product

    def multiply(thread, role, turn):
        if role.warp.kind == kind:
            step(thread, role, turn)
        cuda.syncthreads()

    return multiply


@device_function
def make_stage_sums(tile, product, count):
    """Make sums(thread, role, number) -> the `count` sums of a product for the block's `number`-th pair."""
    add_up, U, PARTIALS, ROW_STRIDE = products.make_sums(tile, count, True), tile.units, tile.partials, tile.row_stride
    end_of, begin_of, index = _make_end(product), _make_end(product - 1), products.make_index(True)

    def sums(thread, role, number):
        begin, end = begin_of(role), end_of(role)
        return add_up(thread.shared, index(PARTIALS + number // U * ROW_STRIDE + number % U), begin, end)

    return sums


@device_function
def _make_end(product):
    """Make end(role) -> the end of a product stage's warps, from `columns.Block.stage_warps`.
    For product -1 it is the end of the warps of products outside stages."""
    if product < 0:
        return lambda role: role.working_warps
    skipped, bits, short = np.int64(STAGE_BITS * product), np.int64((1 << STAGE_BITS) - 1), np.int32
    return lambda role: short((role.stage_warps >> skipped) & bits)


@device_function
def make_sums(cell, tile, stages, terms):
    """Make sums(thread, role, turn), which runs stages of sums over units in order.

    All threads of the block call it together. It ends with a barrier.

    Args:
        stages: their numbers.
        terms: for each stage a device function terms(thread, role, turn, i) of the thread's i-th pair if valid.
    """
    Q, P, SEQUENCES = cell.num_sums, tile.pairs, tile.sequences
    TERMS, TOTALS, number_of_stages = tile.stages + Q * SEQUENCES, tile.stages, len(stages)
    put, part_of = _make_put(cell, tile, stages, terms, 0), _make_part(cell, stages, 0)
    across, words_of, pair_of = make_across(tile, Q), _make_words(tile), make_pair(tile)
    hidden_zero, short = ptx.hidden_zero, np.int32

    def sums(thread, role, turn):
        for which in range(hidden_zero(short(turn.step)), number_of_stages):
            for i in range(P):
                number, _, _, valid = pair_of(role.owned, turn.b0, i)
                if valid:
                    put(which, thread, role, turn, i, TERMS + number)
            cuda.syncthreads()
            words = words_of(role.owned, turn, role.words)
            across(thread, role, turn, (TERMS, TOTALS), part_of(which), words)
            cuda.syncthreads()

    return sums


@device_function
def _make_put(cell, tile, stages, terms, number):
    """Make put(which, thread, role, turn, i, at), which stores the terms of the `which`-th stage in shared memory.
    It chooses among the stages from the `number`-th on."""
    store = units.storer(len(cell.stages[stages[number]].sums))
    between, terms_of, last = np.uint64(tile.sequences * tile.units), terms[number], number + 1 == len(stages)
    rest = terms_of if last else _make_put(cell, tile, stages, terms, number + 1)

    def put_terms(which, thread, role, turn, i, at):
        store(thread.shared, np.uint64(at), between, terms_of(thread, role, turn, i))

    def choose(which, thread, role, turn, i, at):
        if which == number:
            store(thread.shared, np.uint64(at), between, terms_of(thread, role, turn, i))
        else:
            rest(which, thread, role, turn, i, at)

    return put_terms if last else choose


@device_function
def _make_part(cell, stages, number):
    """Make part_of(which) -> the `Part` of the `which`-th stage, among the stages from the `number`-th on."""
    stage, short = cell.stages[stages[number]], np.int32
    first, count, largest = cell.first_sum(stages[number]), len(stage.sums), stage.largest
    if number + 1 == len(stages):
        return lambda which: Part(short(first), short(count), largest)
    rest = _make_part(cell, stages, number + 1)
    return lambda which: Part(short(first), short(count), largest) if which == number else rest(which)


@device_function
def _make_words(tile):
    """Make words_of(owned, turn, array) -> the `Words` of a block's turn, which take no registers between steps."""
    U, short, hidden_zero = tile.units, np.int32, ptx.hidden_zero

    def words_of(owned, turn, array):
        step = short(turn.step)
        zero = hidden_zero(step)
        blocks, number = (short(owned.hidden) + short(U - 1)) // short(U) + zero, short(owned.unit) // short(U) + zero
        return Words(array, step, blocks, number, short(turn.b0), short(owned.end) + zero, short(owned.batch) + zero)

    return words_of
