"""The functions of `ptx` in Python on NumPy arrays, for the simulator.

Relaxed loads and stores, by which blocks exchange numbers, notify the `simulator.Watcher`.
"""

import numpy as np

from numbarnn.cuda import simulator

# One word seen as three types: writing one and reading another takes a fifth of the time of NumPy's conversions.
_WORD = np.zeros(1, np.uint32)
_FLOAT32, _INT32 = _WORD.view(np.float32), _WORD.view(np.int32)


def _word(bits):
    """Return an int below 2^32 as uint32."""
    _WORD[0] = bits
    return _WORD[0]


def _element(array, index):
    if not 0 <= index < len(array):
        raise IndexError(f"element {index} of {len(array)}")
    return array[index]


def _four(array, index):
    """Return four elements from an index that is a multiple of 4."""
    index = _index_of_four(array, index)
    return array[index], array[index + 1], array[index + 2], array[index + 3]


def _index_of_four(array, index):
    index = int(index)
    if index % 4 or not 0 <= index <= len(array) - 4:
        raise IndexError(f"four elements at {index} of {len(array)}: it must be a multiple of 4, within the array")
    return index


def _sixteen_bytes(array, index):
    """Return four words at array[index], which must be aligned to 16 bytes as on a device."""
    index, count = int(index), 16 // array.itemsize
    if not 0 <= index <= len(array) - count:
        raise IndexError(f"16 bytes at element {index} of {len(array)}")
    if index % count:
        raise ValueError(f"element {index} of an array of {array.dtype} is not at a multiple of 16 bytes")
    return _four(array[index : index + count].view(np.uint32), 0)


# ---- weights
load_weight, load_weight_words = _element, _sixteen_bytes


def load_weight_pair(array, index):
    if index % 2:
        raise IndexError(f"two elements at {index}, an odd one")
    two = _element(array, index), _element(array, index + 1)
    return pack_halves(*two) if array.itemsize == 2 else two


# ---- memory that blocks share
def load_words(array, index):
    words = _sixteen_bytes(array, index)
    simulator.watcher.loaded(array, index, 16 // array.itemsize)
    return words


def load_words_if(array, index, wanted_and_words):
    wanted, *words = wanted_and_words
    return load_words(array, index) if wanted else tuple(words)


def load(array, index):
    value = _element(array, index)
    simulator.watcher.loaded(array, index, 1)
    return value


def store(array, index, value):
    _element(array, index)
    array[index] = value
    simulator.watcher.stored(array, index, 1)


def store_word(array, index, word):
    if index % 2 or not 0 <= index < len(array) - 1:
        raise IndexError(f"a word at element {index} of {len(array)}")
    array[index], array[index + 1] = word & np.uint32(0xFFFF), word >> np.uint32(16)
    simulator.watcher.stored(array, index, 2)


def prefetch(array, index):
    _element(array, index)


# ---- shared memory
load_shared = _four


def load_shared_words(array, index):
    return _four(array.view(np.uint32), index)


def store_shared_words(array, index, words):
    index = _index_of_four(array, index)
    array.view(np.uint32)[index : index + 4] = words


def store_shared(array, index, value):
    _element(array, index)
    array[index] = value


def store_shared_pair(array, index, values):
    if index % 2 or not 0 <= index <= len(array) - 2:
        raise IndexError(f"two elements at {index} of {len(array)}")
    array[index : index + 2] = values


# ---- the tensor cores: 16 x K by K x 8
_ROW, _PAIR = np.arange(32) // 4, np.arange(32) % 4  # of each lane: groupID and threadID_in_group in the PTX ISA


def _mma(unpacked):
    """Return an mma instruction. unpacked: function words -> the n numbers in each word, (n, ...) float32."""

    def of_warp(lanes):
        if len(lanes) != 32:
            raise RuntimeError(f"mma needs all 32 lanes of the warp, {len(lanes)} came")
        a, b, c = (np.array([lanes[lane][k] for lane in range(32)]) for k in range(3))
        a, b = unpacked(a), unpacked(b)  # (n, 32, 4), (n, 32, 2)
        n = len(a)
        A, B, D = np.zeros((16, 8 * n), np.float32), np.zeros((8 * n, 8), np.float32), np.zeros((16, 8), np.float32)
        for k in range(n):
            for register in range(4):
                A[_ROW + 8 * (register % 2), n * _PAIR + k + 4 * n * (register // 2)] = a[k, :, register]
            for register in range(2):
                B[n * _PAIR + k + 4 * n * register, _ROW] = b[k, :, register]
        for register in range(4):
            D[_ROW + 8 * (register // 2), 2 * _PAIR + register % 2] = c[:, register]
        D = D + A @ B
        sums = [D[_ROW + 8 * (register // 2), 2 * _PAIR + register % 2] for register in range(4)]
        return list(zip(*sums, strict=True))

    def mma(a, b, sums):
        return simulator.collective((a, b, sums), of_warp)

    return mma


def _two_float16(words):
    return np.moveaxis(words.view(np.float16).reshape(*words.shape, 2), -1, 0).astype(np.float32)


def _two_bfloat16(words):
    return np.stack([words << np.uint32(16), words & np.uint32(0xFFFF0000)]).view(np.float32)


def _one_tf32(words):
    return (words & np.uint32(0xFFFFE000)).view(np.float32)[None]  # mma ignores the low 13 bits


mma_float16, mma_bfloat16, mma_tf32 = _mma(_two_float16), _mma(_two_bfloat16), _mma(_one_tf32)


# ---- bits
def to_tf32(word):
    """Round to 10 bits of mantissa, to nearest, ties away from zero."""
    return _word(int(word) + 0x1000 & 0xFFFFE000)


def split_tf32(word):
    large = to_tf32(word)
    return large, as_word(as_float32(word) - as_float32(large))


def hidden_zero(number):
    _INT32[0] = int(number) >> 31 & 1
    return _INT32[0]


def keep_order(number):
    if number < 0:
        raise ValueError(f"keep_order needs a number of at least 0, got {number}: else a device would sleep")


def as_float32(word):
    _WORD[0] = word
    return _FLOAT32[0]


def as_word(value):
    _FLOAT32[0] = value
    return _WORD[0]


def float32_of_half(bits):
    return np.float32(bits.view(np.float16))


def half_of_float32(value):
    return np.float32(value).astype(np.float16).view(np.uint16)


def pack_halves(low, high):
    return _word(int(low) & 0xFFFF | (int(high) & 0xFFFF) << 16)


lower_halves = pack_halves


def upper_halves(a, b):
    return _word(int(a) >> 16 | int(b) & 0xFFFF0000)


largest, exp2, reciprocal = max, np.exp2, np.reciprocal


def sleep(nanoseconds):
    simulator.pause()
