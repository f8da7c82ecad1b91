"""Add up numbers over the units of a sequence, across the blocks of a persistent kernel, within a step.

Each block of a layer adds up the terms of its own units and publishes the sum, one number for each sum and sequence.
Each block then reads all blocks' sums of its layer and adds them in the same order, so that all totals are
identical. A slot per step, as for h, would take too much memory. So sums have two slots, for even and odd steps, and
each number shares a 64-bit word with the number of its step. A reader that finds another step's number looks again.
Before the launch all words are UNWRITTEN, which is no step's number.

No memory fence is needed, since a relaxed 64-bit access transfers step and number together. No number is overwritten
while a block waits for it: a block overwrites its word of step s at step s + 2, after it has read all blocks' words
of step s + 1. The block that published such a word had read all words of step s before, and its word of step s + 1
depends on them by the block's barriers and by a branch. PTX allows no execution in which a load returns the result
of a store that depends on that load. If one did, the reader would see step s + 2, wait until its timeout and report
an error; it would never use a wrong sum.
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
_STEP_BITS, _NUMBER = np.int64(32), np.int64(0xFFFFFFFF)  # the step lies above a float32 in a word


class Words(NamedTuple):
    """The words of a layer and direction in one turn of a step.

    Attributes (int32, except for array):
        array: (2, Q, B, blocks) int64, flat. step: number of the step in the pass, in either direction.
        blocks: number of the layer's blocks with the same sequences, each with its own units.
        number: this block's number among them.
        b0, end, batch: first sequence of the turn, end of the block's sequences, B.
    """

    array: Array
    step: Number
    blocks: Number
    number: Number
    b0: Number
    end: Number
    batch: Number


class Part(NamedTuple):
    """The sums of a stage: number of the first sum (int32), how many (int32), whether it takes the largest term."""

    first: Number
    count: Number
    largest: Number


@device_function
def make_publish_sum():
    """Make publish(array, index, value, step), which stores a float32 and its step's number in one word."""
    store, as_word = ptx.store, ptx.as_word

    def publish(array, index, value, step):
        store(array, index, (np.int64(step) << _STEP_BITS) | np.int64(as_word(value)))

    return publish


@device_function
def make_wait_for_word():
    """Make wait(thread, role, turn, found, n, index, step), which waits until the n-th loaded word is of that step.
    It loads the word, at `index` of `Role.words`, again until it has arrived or the wait times out."""
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
    """Make across(thread, role, turn, at, part, words), which publishes the block's part of a stage's sums.

    It then waits for all blocks' parts and adds them. All threads of the block call it together, between two
    barriers.

    Args:
        of_all: Q.

    Args of across:
        at: (terms, totals), places in shared memory. The term of the stage's sum k, sequence b and unit u is at
            terms + (k * tile.sequences + b) * tile.units + u. The total of the cell's sum q goes to
            totals + q * tile.sequences + b.
        part: `Part`. words: `Words`.
    """
    publish, load, wait, as_float32 = make_publish_sum(), ptx.load, make_wait_for_word(), ptx.as_float32
    WARPS, THREADS, SEQUENCES, U = tile.warps, tile.threads, tile.sequences, tile.units
    zero, least = map(np.dtype(compute_dtype(tile.dtype)).type, (0, -np.inf))
    looks, place = LOOKS if backend() == "cuda" else 1, np.uint64  # unsigned: no negative indices
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
        # A warp has every WARPS-th sum and sequence, a lane every 32nd block's words of these.
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
    """Make row(part, words, item) -> the index at which the words of a sum and sequence begin.
    For sequences beyond the last it is the last one's index."""
    short = np.int32

    def row(part, words, item):
        k, b = short(item // sequences), short(min(words.b0 + item % sequences, words.end - 1))
        q = short((words.step & 1) * of_all + part.first + k)
        return short(short(q * words.batch) + b) * words.blocks

    return row


@device_function
def _make_add():
    """Make add(part, a, b) -> the sum of two terms, or the larger of them."""
    add, larger = make_add(False), make_add(True)
    return lambda part, a, b: larger(a, b) if part.largest else add(a, b)
