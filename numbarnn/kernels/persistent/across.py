"""How blocks of a persistent kernel add up numbers over the units of a sequence, within a step: numbers that say of
which step they are.

Each block of a layer adds up the terms of its own units and publishes the sum, one number for each sum and sequence;
each reads those of all blocks of its layer, and adds them up in the same order, so that all have the same total to the
bit. These few numbers would take much memory if every step had a place of its own for them, as h has. So they have two
places, for even and for odd steps, and each number stands in one word of 64 bits with the number of its step beside it:
who finds another step's number there looks again. All words are
UNWRITTEN before the launch, which is no step's number.

Nothing has to be in any order for that, as a word is written and read at once, by relaxed accesses of 64 bits: whoever
sees the step's number sees the number beside it. Nor can a number be lost that somebody still waits for. A block writes
over its word of step s at step s + 2, after it has read all blocks' words of the same sum and sequence of step s + 1.
Each of those was published by a block that had read all words of step s before: what it publishes at step s + 1 depends
on what it read at step s, by barriers of the block and by a branch (it goes on only when all has come). No execution
that PTX allows has a load return what a store wrote that depends on that load. And if one had, the reader would see a
number of step s + 2, keep waiting and end with an error, never with a wrong sum.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numbarnn.common.precision import compute_dtype
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.kernels.persistent.exchange import POLLS_BEFORE_SLEEP, SLEEP_NS
from numbarnn.kernels.step.unit_sums import larger, plus
from numbarnn.kernels.trouble import make_report, make_unnamed

LOOKS = 4  # words that a lane asks for before it waits for the first of them


class Words(NamedTuple):
    """The words of a layer and direction, of one turn of a step.

    Attributes:
        array: (2, Q, B, blocks) int64, flat.
        step: number of the step in the pass, of any direction.
        blocks: of the layer that have the same sequences, each with its own units.
        number: of the own block among them.
        b0, end, batch: sequences from b0 on, as many as are multiplied at once, before `end`; B.

    All numbers are int32.
    """

    array: Any
    step: Any
    blocks: Any
    number: Any
    b0: Any
    end: Any
    batch: Any


@cache
def make_tagged():
    """Device functions for a float32 number with the number of its step beside it.

    Returns:
        A namespace of
        publish(array, index, value, step)
        look(found, n, array, index): what stands there, to the n-th row of found, local (looks,) int64.
        is_of(found, n, step): whether it is all of that step.
        value(found, n): the number.
    """
    load, store, bits, low_bits = ptx.load, ptx.store, np.int64(32), np.int64(0xFFFFFFFF)
    tag = jit(lambda word, step: (np.int64(step) << bits) | np.int64(word), BACKEND)
    as_word, as_float32 = ptx.as_word, ptx.as_float32

    def publish(array, index, value, step):
        store(array, index, tag(as_word(value), step))

    def look(found, n, array, index):
        found[n] = load(array, index)

    def is_of(found, n, step):
        return found[n] >> bits == step

    def value(found, n):
        return as_float32(np.uint32(found[n] & low_bits))

    made = {one.__name__: jit(one, BACKEND) for one in (publish, look, is_of, value)}
    return SimpleNamespace(**made)


@cache
def _make_wait():
    """A device function wait(found, n, array, index, step, patience) -> whether the n-th of those that were looked for
    has come; until then it looks again."""
    tagged, trouble_of, sleep = make_tagged(), ptx.load, ptx.sleep
    look, is_of, sleep_ns, in_simulator = tagged.look, tagged.is_of, np.uint32(SLEEP_NS), BACKEND == "python"

    def wait(found, n, array, index, step, patience):
        polls = 0
        while not is_of(found, n, step):
            polls += 1
            if polls > patience.limit:
                return False
            if polls > POLLS_BEFORE_SLEEP and trouble_of(patience.trouble, 0) != 0:
                return False
            if in_simulator or polls > POLLS_BEFORE_SLEEP:
                sleep(sleep_ns)  # in the simulator others run before this thread looks
            look(found, n, array, index)
        return True

    return jit(wait, BACKEND)


class Part(NamedTuple):
    """The sums of a stage: the number of the first of them among the cell's, how many; whether in place of the sum of
    the terms it is the largest of them. int32, and a bool."""

    first: Any
    count: Any
    largest: Any


@cache
def make_across(tile, of_all):
    """A device function across(shared, at, part, words, units, patience) -> whether all has come, as far as the lane
    knows.

    It publishes the block's part of a stage's sums and waits for those of all blocks. All threads of the block call it
    together; before it and after it there must be a barrier.

    Args:
        of_all: Q.

    Args of across:
        at: (terms, totals), places in shared memory. The term of the stage's sum k, sequence b and unit u stands in
            place (k * tile.sequences + b) * tile.units + u from `terms` on; the total of the cell's sum q goes to place
            q * tile.sequences + b from `totals` on.
        part: `Part`. words: `Words`. units: the block's.
        patience: `exchange.Patience`.
    """
    dtype = compute_dtype(tile.dtype)
    tagged, wait, report, unnamed = make_tagged(), _make_wait(), make_report(), make_unnamed()
    publish, look, value = tagged.publish, tagged.look, tagged.value
    WARPS, THREADS, SEQUENCES, U = tile.warps, tile.threads, tile.sequences, tile.units
    looks, short, (zero, least) = LOOKS if BACKEND == "cuda" else 1, np.int32, map(np.dtype(dtype).type, (0, -np.inf))
    place = jit(lambda number: np.uint64(number), BACKEND)  # known not to count from the end
    add_up, bigger = jit(plus, BACKEND), jit(larger, BACKEND)

    def row_of(part, words, item):
        """Where the words of a sum and sequence begin; of a sequence beyond the last one those of the last."""
        k, b = short(item // SEQUENCES), short(min(words.b0 + item % SEQUENCES, words.end - 1))
        q = short((words.step & 1) * of_all + part.first + k)
        return short(short(q * words.batch) + b) * words.blocks

    row = jit(row_of, BACKEND)
    add = jit(lambda part, a, b: bigger(a, b) if part.largest else add_up(a, b), BACKEND)

    def publish_own(shared, terms, part, words, units):
        for item in range(cuda.threadIdx.x, part.count * SEQUENCES, THREADS):
            if words.b0 + item % SEQUENCES < words.end:
                total = least if part.largest else zero
                for unit in range(units):
                    total = add(part, total, shared[place(terms + item * U + unit)])
                publish(words.array, row(part, words, item) + words.number, total, words.step)

    publish_sums = jit(publish_own, BACKEND)

    def across(shared, at, part, words, units, patience):
        publish_sums(shared, at[0], part, words, units)
        warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        found, none, all_came = cuda.local.array(looks, np.int64), least if part.largest else zero, True
        # A warp has every WARPS-th of the sums and sequences, of those a lane every 32nd block's words.
        for item in range(warp, part.count * SEQUENCES, WARPS):
            total, begin_of_row = none, row(part, words, item)
            for begin in range(lane, words.blocks, 32 * looks):
                for n in range(looks):
                    look(found, n, words.array, begin_of_row + min(begin + n * 32, words.blocks - 1))
                for n in range(looks):
                    number = begin + n * 32
                    if number < words.blocks:
                        if not wait(found, n, words.array, begin_of_row + number, words.step, patience):
                            report(patience.trouble, unnamed())  # the kernel says where; nobody waits for long then
                            all_came = False
                        total = add(part, total, value(found, n))
            cuda.syncwarp()
            for k in range(5):
                total = add(part, total, cuda.shfl_xor_sync(0xFFFFFFFF, total, 16 >> k))
            if lane == 0:
                shared[place(at[1] + part.first * SEQUENCES + item)] = total
        return all_came

    return jit(across, BACKEND)
