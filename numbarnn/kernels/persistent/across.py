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

from typing import NamedTuple

import numpy as np

from numbarnn.common.precision import compute_dtype
from numbarnn.cuda import ptx
from numbarnn.cuda.backend import backend
from numbarnn.cuda.language import cuda
from numbarnn.kernels.device import device_function
from numbarnn.kernels.persistent.context import Array, Number
from numbarnn.kernels.persistent.exchange import POLLS_BEFORE_SLEEP, SLEEP_NS, make_time_out
from numbarnn.kernels.step.unit_sums import make_add

LOOKS = 4  # words that a lane asks for before it waits for the first of them
_STEP_BITS, _NUMBER = np.int64(32), np.int64(0xFFFFFFFF)  # of a word: the step stands above a float32


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

    array: Array
    step: Number
    blocks: Number
    number: Number
    b0: Number
    end: Number
    batch: Number


class Part(NamedTuple):
    """The sums of a stage: the number of the first of them among the cell's, how many; whether in place of the sum of
    the terms it is the largest of them. int32, and a bool."""

    first: Number
    count: Number
    largest: Number


@device_function
def make_publish_sum():
    """Make publish(array, index, value, step): a float32 with the number of its step beside it."""
    store, as_word = ptx.store, ptx.as_word

    def publish(array, index, value, step):
        store(array, index, (np.int64(step) << _STEP_BITS) | np.int64(as_word(value)))

    return publish


@device_function
def make_wait_for_word():
    """Make wait(thread, role, turn, found, n, index, step): wait until the n-th of the words that were looked for,
    which stands at `index` of `Role.words`, is all of that step, or time out; until then look again."""
    load, sleep, time_out = ptx.load, ptx.sleep, make_time_out()
    sleep_ns, in_simulator = np.uint32(SLEEP_NS), backend() == "python"

    def wait(thread, role, turn, found, n, index, step):
        polls = 0
        while found[n] >> _STEP_BITS != step:
            polls += 1
            asks = polls > POLLS_BEFORE_SLEEP
            if polls > role.limit or (asks and load(role.error_flag, 0) != 0):
                time_out(thread, role, turn, True)
                return
            if in_simulator or asks:
                sleep(sleep_ns)  # in the simulator others run before this thread looks
            found[n] = load(role.words, index)

    return wait


@device_function
def make_across(tile, of_all):
    """Make across(thread, role, turn, at, part, words), which publishes the block's part of a stage's sums and waits
    for those of all blocks. All threads of the block call it together; before it and after it there must be a barrier.

    Args:
        of_all: Q.

    Args of across:
        at: (terms, totals), places in shared memory. The term of the stage's sum k, sequence b and unit u stands in
            place (k * tile.sequences + b) * tile.units + u from `terms` on; the total of the cell's sum q goes to place
            q * tile.sequences + b from `totals` on.
        part: `Part`. words: `Words`.
    """
    publish, load, wait, as_float32 = make_publish_sum(), ptx.load, make_wait_for_word(), ptx.as_float32
    WARPS, THREADS, SEQUENCES, U = tile.warps, tile.threads, tile.sequences, tile.units
    zero, least = map(np.dtype(compute_dtype(tile.dtype)).type, (0, -np.inf))
    looks, place = LOOKS if backend() == "cuda" else 1, np.uint64  # known not to count from the end
    row, add = _make_row(SEQUENCES, of_all), _make_add()

    def across(thread, role, turn, at, part, words):
        shared, (terms, totals) = thread.shared, at
        none = least if part.largest else zero
        for item in range(cuda.threadIdx.x, part.count * SEQUENCES, THREADS):
            if words.b0 + item % SEQUENCES < words.end:
                total = none
                for unit in range(role.owned.units):
                    total = add(part, total, shared[place(terms + item * U + unit)])
                publish(words.array, row(part, words, item) + words.number, total, words.step)
        warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        found = cuda.local.array(looks, np.int64)
        # A warp has every WARPS-th of the sums and sequences, of those a lane every 32nd block's words.
        for item in range(warp, part.count * SEQUENCES, WARPS):
            total, begin_of_row = none, row(part, words, item)
            for begin in range(lane, words.blocks, 32 * looks):
                for n in range(looks):
                    found[n] = load(words.array, begin_of_row + min(begin + n * 32, words.blocks - 1))
                for n in range(looks):
                    number = begin + n * 32
                    if number < words.blocks:
                        wait(thread, role, turn, found, n, begin_of_row + number, words.step)
                        total = add(part, total, as_float32(np.uint32(found[n] & _NUMBER)))
            cuda.syncwarp()
            for k in range(5):
                total = add(part, total, cuda.shfl_xor_sync(0xFFFFFFFF, total, 16 >> k))
            if lane == 0:
                shared[place(totals + part.first * SEQUENCES + item)] = total

    return across


@device_function
def _make_row(sequences, of_all):
    """Make row(part, words, item): where the words of a sum and sequence begin; of a sequence beyond the last one those
    of the last."""
    short = np.int32

    def row(part, words, item):
        k, b = short(item // sequences), short(min(words.b0 + item % sequences, words.end - 1))
        q = short((words.step & 1) * of_all + part.first + k)
        return short(short(q * words.batch) + b) * words.blocks

    return row


@device_function
def _make_add():
    """Make add(part, a, b): the sum of two terms, or the larger of them."""
    add, larger = make_add(False), make_add(True)
    return lambda part, a, b: larger(a, b) if part.largest else add(a, b)
