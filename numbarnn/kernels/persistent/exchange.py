"""How blocks of a persistent kernel exchange numbers: data are their own flags.

What blocks exchange is written once and never changed, in buffers that were filled with `UNWRITTEN` bits before. A
number is there as soon as it is anything else: one trip through the L2 cache per step, not three (store, flag, load).
Numbers that happen to have these bits, a NaN that no arithmetic yields, are stored as the usual NaN. Every wait is
bounded.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numbarnn.common.precision import is_half
from numbarnn.compile import storage
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.kernels.in_turn import in_turn
from numbarnn.kernels.persistent.tile import OCTET
from numbarnn.kernels.trouble import make_report, make_unnamed

UNWRITTEN = 0xFFFFFFFF  # a word that nobody has written yet (0xFFFF where numbers are exchanged one by one)
POLLS_BEFORE_SLEEP, SLEEP_NS = 256, 100


class Operand(NamedTuple):
    """What a warp multiplies with its weights at a step: some columns of some rows of an exchanged array.

    Attributes:
        array: flat, slots of `batch` rows of `width` elements.
        slot: the one that is read.
        b0, end: the sequences from b0 on, before `end`: as many as are multiplied at once.
        batch, width: sizes of a slot.
        column, columns: the warp's first column and number of columns.
    """

    array: Any
    slot: Any
    b0: Any
    end: Any
    batch: Any
    width: Any
    column: Any
    columns: Any


class Patience(NamedTuple):
    """How long a warp waits for its operand.

    Attributes:
        wait: 0 if what is there is valid in any case.
        limit: times to look, at most.
        trouble: (1,) int64, the call's word (`numbarnn.kernels.trouble`): once a block has given up, nobody waits any
            more.
    """

    wait: Any
    limit: Any
    trouble: Any


@cache
def make_newest(dtype, aligned):
    """A device function of four words: `UNWRITTEN` if one of them, or a half of one, is not there yet; else less.

    Without branches, so that the loads before it do not wait for each other.
    """
    largest = ptx.largest
    if is_half(dtype) and not aligned:
        low, high = np.uint32(0x0000FFFF), np.uint32(0xFFFF0000)

        def newest(words):
            found = np.uint32(0)
            for word in words:
                found = largest(found, largest(word | low, word | high))
            return found

    else:

        def newest(words):
            return largest(largest(words[0], words[1]), largest(words[2], words[3]))

    return jit(newest, BACKEND)


@cache
def make_load(dtype, aligned, whole):
    """A device function load(array, index, left, valid): 16 bytes as four words.

    They are zero from the `left`-th element on, unless they are known to be `whole`.

    valid: an index from which 16 bytes can be loaded in any case: a load that is always done needs no branch.
    """
    zero = np.uint32(0)
    load_words, load_element = ptx.load_words, ptx.load
    if aligned and whole:

        def load(array, index, left, valid):
            return load_words(array, index)

    elif aligned:

        def load(array, index, left, valid):
            words = load_words(array, index if left > 0 else valid)
            mask = np.uint32(UNWRITTEN) if left > 0 else zero
            return words[0] & mask, words[1] & mask, words[2] & mask, words[3] & mask

    elif is_half(dtype):
        pack, none = ptx.pack_halves, np.uint16(0)

        def load_pair(array, index, left):
            low = load_element(array, index) if left > 0 else none
            return pack(low, load_element(array, index + 1) if left > 1 else none)

        pair = jit(load_pair, BACKEND)

        def load(array, index, left, valid):
            first, second = pair(array, index, left), pair(array, index + 2, left - 2)
            return first, second, pair(array, index + 4, left - 4), pair(array, index + 6, left - 6)

    else:
        as_word = ptx.as_word

        def load_one(array, index, left):
            return as_word(load_element(array, index)) if left > 0 else zero

        one = jit(load_one, BACKEND)

        def load(array, index, left, valid):
            first, second = one(array, index, left), one(array, index + 1, left - 1)
            return first, second, one(array, index + 2, left - 2), one(array, index + 3, left - 3)

    return jit(load, BACKEND)


@cache
def make_load_missing(dtype, aligned, whole):
    """A device function load_missing(array, index, left, valid, words): what `make_load`'s finds now, where one of the
    words, or a half of one, was not there yet; else the words as they are, and nothing is loaded."""
    newest, load, load_words_if = make_newest(dtype, aligned), make_load(dtype, aligned, whole), ptx.load_words_if
    if aligned:

        def load_missing(array, index, left, valid, words):
            # Words beyond the last column are zero: they are never missing.
            missing = np.uint32(1) if newest(words) == UNWRITTEN else np.uint32(0)
            return load_words_if(array, index, (missing, words[0], words[1], words[2], words[3]))

    else:

        def load_missing(array, index, left, valid, words):
            return load(array, index, left, valid) if newest(words) == UNWRITTEN else words

    return jit(load_missing, BACKEND)


@cache
def make_publish(dtype, aligned):
    """A device function publish(array, index, stored, valid): a number that others wait for, as `storage` stores it.

    All lanes of a warp call it together; it stores where `valid`. Where others look at words of two halves, two lanes
    store them together.
    """
    store, store_word, pack = ptx.store, ptx.store_word, ptx.pack_halves
    unwritten, usual_nan = np.uint16(0xFFFF), np.uint16(0x7FFF)
    if is_half(dtype) and aligned:

        def publish(array, index, stored, valid):
            own = usual_nan if stored == unwritten else stored
            other = np.uint16(cuda.shfl_xor_sync(0xFFFFFFFF, np.int32(own), 1))
            if valid and cuda.threadIdx.x % 2 == 0:
                store_word(array, index, pack(own, other))

    elif is_half(dtype):

        def publish(array, index, stored, valid):
            if valid:
                store(array, index, usual_nan if stored == unwritten else stored)

    else:
        nan = np.dtype(dtype).type(np.nan)

        def publish(array, index, stored, valid):
            if valid:
                store(array, index, nan if stored != stored else stored)

    return jit(publish, BACKEND)


@cache
def make_publish_all(dtype, aligned, count):
    """A device function publish_all(array, index, between, stored, valid): `publish` for a tuple of `count` numbers."""
    if count == 0:
        return jit(lambda array, index, between, stored, valid: None, BACKEND)
    publish, rest = make_publish(dtype, aligned), make_publish_all(dtype, aligned, count - 1)
    narrow = storage.narrow(dtype)

    def publish_all(array, index, between, values, valid):
        publish(array, index, narrow(values[0]), valid)
        rest(array, index + between, between, values[1:], valid)

    return jit(publish_all, BACKEND)


@cache
def _make_words():
    """A device function words(loaded, octet, place): the four words of a row and chunk, as a tuple."""

    def words(loaded, octet, place):
        return loaded[octet, place, 0], loaded[octet, place, 1], loaded[octet, place, 2], loaded[octet, place, 3]

    return jit(words, BACKEND)


@cache
def make_look(tile, group, again=False):
    """A device function look(loaded, operand): asks for a group of chunks, whether or not it is there yet.

    Nothing is done with what comes, so that nothing waits for it.

        loaded: local (octets, chunks on the way, 4) uint32, written: four words, 16 bytes, of each row and chunk.
        operand: an `Operand`.

    Args:
        again: it looks again, only for the pieces that were not there.
    """
    load, load_missing = (make(tile.dtype, tile.aligned, tile.whole) for make in (make_load, make_load_missing))
    octets, gathered, place = tile.octets, tile.gathered, tile.place_of(group)
    piece_elements, chunk_elements = tile.piece_elements, tile.chunk_elements
    skipped, in_simulator = group * tile.gathered * tile.chunk_elements, BACKEND == "python"
    sleep, sleep_ns, words = ptx.sleep, np.uint32(SLEEP_NS), _make_words()

    def look(loaded, operand):
        if in_simulator:
            sleep(sleep_ns)  # others run before this thread looks
        lane = cuda.threadIdx.x % 32
        own = skipped + lane % 4 * piece_elements  # four lanes share a row
        for octet in range(octets):
            b = min(operand.b0 + octet * OCTET + lane // 4, operand.end - 1)
            valid = (operand.slot * operand.batch + b) * operand.width + operand.column
            for chunk in range(gathered):
                skip = own + chunk * chunk_elements
                left = operand.columns - skip
                if again:
                    before = words(loaded, octet, place + chunk)
                    four = load_missing(operand.array, valid + skip, left, valid, before)
                else:
                    four = load(operand.array, valid + skip, left, valid)
                for k in range(4):
                    loaded[octet, place + chunk, k] = four[k]
        return True

    return jit(look, BACKEND)


@cache
def make_wait(tile, group):
    """The device function that waits for a group of chunks of an `Operand` that was looked for.

    wait(loaded, operand, patience) -> whether all has come

    Until then it looks again: at what is missing of this group, and of those that were looked for ahead of time.
    """
    newest, largest, words = make_newest(tile.dtype, tile.aligned), ptx.largest, _make_words()
    sleep, sleep_ns, trouble_of = ptx.sleep, np.uint32(SLEEP_NS), ptx.load
    octets, gathered, place = tile.octets, tile.gathered, tile.place_of(group)
    last = max(group, min(group + tile.groups_ahead, tile.groups - 1))
    look_again = in_turn(tuple(make_look(tile, one, again=True) for one in range(group, last + 1)))

    def wait(loaded, operand, patience):
        polls = 0
        while True:
            found = np.uint32(0)
            for octet in range(octets):
                for chunk in range(gathered):
                    found = largest(found, newest(words(loaded, octet, place + chunk)))
            if patience.wait == 0 or found != UNWRITTEN:
                return True
            polls += 1
            if polls > patience.limit:
                return False
            if polls > POLLS_BEFORE_SLEEP:
                if trouble_of(patience.trouble, 0) != 0:
                    return False
                sleep(sleep_ns)
            look_again(loaded, operand)

    return jit(wait, BACKEND)


def _make_arrival(look, wait):
    """A device function arrival(loaded, operand, patience) -> whether a group of chunks that it looks for has come.

    One that has not is reported before the next one is waited for: nobody waits for long then.
    """
    report, unnamed = make_report(), make_unnamed()

    def arrival(loaded, operand, patience):
        look(loaded, operand)
        done = wait(loaded, operand, patience)
        if not done:
            report(patience.trouble, unnamed())  # the kernel says where
        return done

    return jit(arrival, BACKEND)


@cache
def make_gather(tile, uses):
    """A device function that gathers an `Operand`, group by group, and does something with each as soon as it is there.

    gather(fragments, sums, loaded, shared, operand, patience) -> whether all has come

    With `Tile.groups_ahead` the next group is looked for before this one is waited for: its way from the L2 cache
    passes while this one is used.

    Args:
        uses: for each group a device function use(fragments, sums, loaded, shared).
    """
    ahead = tile.groups_ahead

    def make_group(look, wait, use):
        arrival = _make_arrival(look, wait)

        def gather_group(fragments, sums, loaded, shared, operand, patience):
            done = arrival(loaded, operand, patience)
            use(fragments, sums, loaded, shared)
            return done

        return jit(gather_group, BACKEND)

    looks, none = [make_look(tile, group) for group in range(tile.groups)], jit(lambda loaded, operand: True, BACKEND)
    looks = [in_turn(tuple(looks[: 1 + ahead])), *looks[1 + ahead :], *[none] * ahead]
    waits = [make_wait(tile, group) for group in range(tile.groups)]
    return in_turn(tuple(map(make_group, looks, waits, uses)))
