"""What steps forward and backward do alike between their products and the cell: stages of sums over units, in turn.

They are a loop, not one after another in the code: adding up across blocks is long, and what is prepared for each copy
of it takes registers from the weights.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numbarnn.compile import units
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.kernels.persistent import block
from numbarnn.kernels.persistent.across import Part, Words, make_across
from numbarnn.kernels.trouble import WITHIN, make_report


class Turn(NamedTuple):
    """A step, of the sequences from b0 on: as many as are multiplied at once. t: its time."""

    step: Any
    t: Any
    b0: Any


class Exchanged(NamedTuple):
    """What stages of a layer and direction exchange.

    Attributes:
        words: of sums over units, `across.Words.array`.
        sums: (T, B, Q), where they are kept for backward.
        patience: `exchange.Patience`.
    """

    words: Any
    sums: Any
    patience: Any


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
