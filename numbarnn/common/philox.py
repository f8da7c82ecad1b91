"""Philox4x32-10, a counter-based random number generator.

Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", doi:10.1145/2063384.2063405. Four
random 32-bit words are a function of a 128-bit counter and a 64-bit key. So dropout masks need no memory: every
engine recomputes them from seed, layer, step and position. 32-bit words are stored in uint64, whose products do not
overflow.
"""

from typing import NamedTuple

import numpy as np

MULTIPLIER_0, MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_0, WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
WORD_MASK = np.uint64(0xFFFFFFFF)
WORD_BITS = np.uint64(32)
UNIFORM_SHARE = 2.0**-24  # step from one uniform number to the next


def philox(counter_0, counter_1, counter_2, counter_3, key_0, key_1):
    """Return four random words (uint64, each below 2^32) for a counter and a key of such words."""
    for _ in range(10):
        product_0 = MULTIPLIER_0 * counter_0
        product_1 = MULTIPLIER_1 * counter_2
        counter_0, counter_1, counter_2, counter_3 = (
            (product_1 >> WORD_BITS) ^ counter_1 ^ key_0,
            product_1 & WORD_MASK,
            (product_0 >> WORD_BITS) ^ counter_3 ^ key_1,
            product_0 & WORD_MASK,
        )
        key_0 = (key_0 + WEYL_0) & WORD_MASK
        key_1 = (key_1 + WEYL_1) & WORD_MASK
    return counter_0, counter_1, counter_2, counter_3


class Origin(NamedTuple):
    """The position of a pass in the call whose random numbers it draws.

    Attributes:
        time: time of its first step.
        place: layer D + direction of its first layer and direction.
        goes_back: whether its next steps are at earlier times.
    """

    time: int = 0
    place: int = 0
    goes_back: bool = False


WHOLE = Origin()  # a pass that is all of its call


def dropout_words(p, seed, layer, call, first=0):
    """Return a layer's dropout constants: (scale, threshold, key_0, key_1, stream_0, stream_1, first).

    In training call number `call`, `layer` (0 is the first) has an output (T, B, D*H). Dropout keeps element i of it if
    i's random word is at least `threshold` = p 2^32, and multiplies it by `scale` = 1 / (1 - p). The word is number
    i mod 4 of Philox with counter (i div 4 in two words, layer, call) and key `seed` in two words. All but scale are
    uint64. For an array that is a part of the output, `first` is the i of its first element.
    """
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    words = (round(p * 2**32), seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, layer, call & 0xFFFFFFFF, first)
    return (scale, *(np.uint64(word) for word in words))


def dropout_masks(p, seed, call, firsts):
    """Return (scale, the `dropout_words` of layers 0, 1, ... without scale as a uint64 array (layers, 6)). firsts: each
    layer's `first`. Kernels read the words from memory, so that a captured CUDA graph uses those of each call."""
    rows = [dropout_words(p, seed, layer, call, first) for layer, first in enumerate(firsts)]
    return rows[0][0], np.array([words for _, *words in rows], np.uint64)


# Streams of random words, so that no two uses share one: dropout between layers has 0 to L - 2.
NOISE_STREAM, DROP_CONNECT_STREAM, STREAMS_PER_PLACE = 1 << 31, 1 << 30, 1 << 8


def noise_words(seed, places, call, origin=WHOLE):
    """Return the constants for cells' random numbers (`definition.Noise`): uint64 (places, 6), a row for each place.

    A place is layer D + direction. Its row: two words of the key `seed`; the first of its streams; the number of the
    training call; the time of the pass's step 0; 1 if the steps go back in time from there, else 0.

    A cell has numbers drawn anew in each step and numbers drawn once for all steps; each kind is counted separately.
    Number k of a kind, of unit j of sequence b at time t, is 0 if its word is below rate 2^32. The word is number k mod
    4 of the Philox of counter (b H + j, t, stream + k div 4, call), with 2^32 - 1 for t if it is drawn once.
    """
    streams = NOISE_STREAM + STREAMS_PER_PLACE * (origin.place + np.arange(places))
    key, when = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF), (origin.time, origin.goes_back)
    rows = [(*key, stream, call & 0xFFFFFFFF, *when) for stream in streams]
    return np.array(rows, np.uint64)


def drop_connect_words(rate, seed, place, gate, call):
    """Return `dropout_words` for the elements of one gate's matrix (H, H) in R of a place (layer D + direction)."""
    return dropout_words(rate, seed, DROP_CONNECT_STREAM + STREAMS_PER_PLACE * place + gate, call)
