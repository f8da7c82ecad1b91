"""Exchange numbers between the blocks of a persistent kernel, without flags.

Buffers of exchanged numbers are filled with `UNWRITTEN` bits before the launch, and each number is written once. A
number has arrived as soon as its bits differ. So a step takes one trip through the L2 cache instead of three (store,
flag, load). A NaN with these bits, which no arithmetic produces, is stored as the usual NaN. Every wait has a
timeout.

A warp's operand at a step is some columns of some rows of an exchanged array (`columns.Warp`).
"""

import numpy as np

from numbarnn.common.precision import is_half
from numbarnn.compile import storage
from numbarnn.cuda import ptx
from numbarnn.cuda.backend import backend
from numbarnn.cuda.language import cuda
from numbarnn.kernels.device import device_function, in_turn
from numbarnn.kernels.error_flag import OTHER_LAYER, WITHIN, make_report
from numbarnn.kernels.persistent.columns import BLOCK, GIVEN, RECURRENT, STAGE
from numbarnn.kernels.persistent.tile import N8

UNWRITTEN = 0xFFFFFFFF  # a word that nobody has written yet (0xFFFF where numbers are exchanged one by one)
POLLS_BEFORE_SLEEP, SLEEP_NS = 256, 100


# ---- 16 bytes of a row
@device_function
def make_newest(dtype, aligned):
    """Make newest(words) -> `UNWRITTEN` if one of four words, or a half of one, is missing, else a smaller number.
    It has no branches, so that several loads may be in flight before it."""
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

    return newest


@device_function
def make_load(dtype, aligned, whole):
    """Make load(array, index, left, valid) -> 16 bytes as four words, zero from the `left`-th element on unless
    `whole`. valid: an index where 16 bytes can always be loaded, so that the load needs no branch."""
    if aligned:
        load_words = ptx.load_words

        def load(array, index, left, valid):
            if whole:
                return load_words(array, index)
            words = load_words(array, index if left > 0 else valid)
            mask = np.uint32(UNWRITTEN) if left > 0 else np.uint32(0)
            return words[0] & mask, words[1] & mask, words[2] & mask, words[3] & mask

    else:
        word, step = _make_load_word(dtype), 2 if is_half(dtype) else 1

        def load(array, index, left, valid):
            first, second = word(array, index, left), word(array, index + step, left - step)
            third = word(array, index + 2 * step, left - 2 * step)
            return first, second, third, word(array, index + 3 * step, left - 3 * step)

    return load


@device_function
def _make_load_word(dtype):
    """Make word(array, index, left) -> one float32 or two 16-bit numbers, zero from the `left`-th element on."""
    load, pack, as_word, none = ptx.load, ptx.pack_halves, ptx.as_word, np.uint16(0)
    if is_half(dtype):

        def word(array, index, left):
            low = load(array, index) if left > 0 else none
            return pack(low, load(array, index + 1) if left > 1 else none)

    else:

        def word(array, index, left):
            return as_word(load(array, index)) if left > 0 else np.uint32(0)

    return word


@device_function
def make_load_missing(dtype, aligned, whole):
    """Make load_missing(array, index, left, valid, words) -> words, loaded again if one of them, or a half of one, is
    missing."""
    newest, load, load_words_if = make_newest(dtype, aligned), make_load(dtype, aligned, whole), ptx.load_words_if
    if aligned:

        def load_missing(array, index, left, valid, words):
            # Words beyond the last column are zero: they are never missing.
            missing = np.uint32(1) if newest(words) == UNWRITTEN else np.uint32(0)
            return load_words_if(array, index, (missing, words[0], words[1], words[2], words[3]))

    else:

        def load_missing(array, index, left, valid, words):
            return load(array, index, left, valid) if newest(words) == UNWRITTEN else words

    return load_missing


# ---- publishing
@device_function
def make_publish(dtype, aligned):
    """Make publish(array, index, stored, valid), which stores a number that other blocks wait for, in the format of
    `storage`. All lanes of a warp call it together, and it stores if `valid`. If readers load words of two 16-bit
    numbers, two lanes store them together."""
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

    return publish


@device_function
def make_publish_all(dtype, aligned, count):
    """Make publish_all(array, index, between, values, valid): narrow and `publish` a tuple of `count` numbers."""
    if count == 0:
        return lambda array, index, between, values, valid: None
    publish, rest = make_publish(dtype, aligned), make_publish_all(dtype, aligned, count - 1)
    narrow = storage.narrow(dtype)

    def publish_all(array, index, between, values, valid):
        publish(array, index, narrow(values[0]), valid)
        rest(array, index + between, between, values[1:], valid)

    return publish_all


# ---- waiting for an operand
@device_function
def _make_words():
    """Make words(loaded, n, place) -> the four words of a row and chunk as a tuple."""

    def words(loaded, n, place):
        return loaded[n, place, 0], loaded[n, place, 1], loaded[n, place, 2], loaded[n, place, 3]

    return words


@device_function
def make_look(tile, group, again=False):
    """Make look(thread, role, turn), which loads a group of chunks of the warp's operand, whether or not they have
    arrived.

    Four words, 16 bytes, of each row and chunk go to `Thread.loaded`. It computes nothing from them, so that the
    thread does not wait for the loads.

    Args:
        again: load only the pieces that were missing.
    """
    load, load_missing = (make(tile.dtype, tile.aligned, tile.whole) for make in (make_load, make_load_missing))
    n8, gathered, place = tile.n8, tile.gathered, tile.place_of(group)
    piece_elements, chunk_elements = tile.piece_elements, tile.chunk_elements
    skipped, in_simulator = group * tile.gathered * tile.chunk_elements, backend() == "python"
    sleep, sleep_ns, words = ptx.sleep, np.uint32(SLEEP_NS), _make_words()

    def look(thread, role, turn):
        if in_simulator:
            sleep(sleep_ns)  # others run before this thread looks
        warp, loaded, lane = role.warp, thread.loaded, cuda.threadIdx.x % 32
        slot = turn.t + warp.shift
        own = skipped + lane % 4 * piece_elements  # four lanes share a row
        for n in range(n8):
            b = min(turn.b0 + n * N8 + lane // 4, role.owned.end - 1)
            safe = (slot * role.owned.batch + b) * warp.width + warp.column
            for chunk in range(gathered):
                skip = own + chunk * chunk_elements
                left = warp.columns - skip
                if again:
                    before = words(loaded, n, place + chunk)
                    four = load_missing(role.operand, safe + skip, left, safe, before)
                else:
                    four = load(role.operand, safe + skip, left, safe)
                for k in range(4):
                    loaded[n, place + chunk, k] = four[k]

    return look


@device_function
def make_time_out():
    """Make time_out(thread, role, turn, within), which sets the error flag and the block's `timed_out`.
    within: whether the warp waited for numbers that blocks exchange within the step."""
    report = make_report()

    def time_out(thread, role, turn, within):
        other = OTHER_LAYER if role.warp.kind != RECURRENT else 0
        kind = WITHIN if within or role.warp.kind >= STAGE else other
        report(role.error_flag, role.row[BLOCK.timeout] + turn.step + kind)
        thread.timed_out[0] = 1

    return time_out


@device_function
def make_wait(tile, group):
    """Make wait(thread, role, turn), which waits until a loaded group of chunks has arrived, or times out.
    While it waits, it loads missing pieces again, also those of groups that were loaded ahead."""
    newest, largest, words = make_newest(tile.dtype, tile.aligned), ptx.largest, _make_words()
    sleep, sleep_ns, error_of, time_out = ptx.sleep, np.uint32(SLEEP_NS), ptx.load, make_time_out()
    n8, gathered, place, given = tile.n8, tile.gathered, tile.place_of(group), tile.given
    last = max(group, min(group + tile.groups_ahead, tile.groups - 1))
    look_again = in_turn(tuple(make_look(tile, one, again=True) for one in range(group, last + 1)))

    def wait(thread, role, turn):
        polls = 0
        while True:
            found = np.uint32(0)
            for n in range(n8):
                for chunk in range(gathered):
                    found = largest(found, newest(words(thread.loaded, n, place + chunk)))
            if (given and role.warp.kind == GIVEN) or found != UNWRITTEN:
                return
            polls += 1
            asks = polls > POLLS_BEFORE_SLEEP
            if polls > role.limit or (asks and error_of(role.error_flag, 0) != 0):
                time_out(thread, role, turn, False)
                return
            if asks:
                sleep(sleep_ns)
            look_again(thread, role, turn)

    return wait


@device_function
def make_gather(tile, uses):
    """Make gather(thread, role, turn, sums), which gathers the warp's operand and uses each group as soon as it has
    arrived.

    A group that timed out is used too, since nothing reads the result. With `Tile.groups_ahead` the next group is
    loaded before the wait for this one, so that loading overlaps with use.

    Args:
        uses: for each group a device function use(thread, sums).
    """
    ahead = tile.groups_ahead
    looks, nothing = [make_look(tile, group) for group in range(tile.groups)], _make_nothing()
    looks = [in_turn(tuple(looks[: 1 + ahead])), *looks[1 + ahead :], *[nothing] * ahead]
    waits = [make_wait(tile, group) for group in range(tile.groups)]
    return in_turn(tuple(map(_make_group, looks, waits, uses)))


@device_function
def _make_nothing():
    return lambda thread, role, turn: None


@device_function
def _make_group(look, wait, use):
    """Make gather_group(thread, role, turn, sums), which loads a group, waits for a group and uses the latter."""

    def gather_group(thread, role, turn, sums):
        look(thread, role, turn)
        wait(thread, role, turn)
        use(thread, sums)

    return gather_group
