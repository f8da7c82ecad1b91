"""Fingerprints of arrays, from which a change between two calls is seen: which of their words are read, and how.

Words are what numbers are stored in: 32 bits, two words for a float64, 16 bits for halves. They are read by lines of
LINE words, of which a long array gives a sample: reading all of it could take as long as a short call. Any array that
changes as a whole is noticed, and so is any parameter; a change of a few words among those that are not read is not.
"""

import numpy as np

from numbarnn.compile.backend import TINY_LAUNCHES

LINE = 16  # words that are read together: one line of a CPU's cache
MOST = 65536  # lines
STRIDES = (1, 3, 7, 13, 29, 61, 127, 251, 509, 1021)  # on average one line of so many is read
MOST_ARRAYS = 2  # in one launch
BLOCKS = 2 if TINY_LAUNCHES else 128  # of a launch per array, at most
FEWEST = 4  # lines of a part, where it has as many


def term(word, position):
    """What a word at a place of an array adds to the fingerprint; the fingerprint is the exclusive or of all of them.

    A product of 32 by 32 bits, so that no bit is lost: a word that changes changes its term, and words that change
    places do too, as each place has an odd factor of its own.
    """
    return np.uint64(word) * np.uint64(((position * 2654435761 + 0x9E3779B9) & 0xFFFFFFFF) | 1)


def stride_for(lines, allowed):
    """The smallest of STRIDES that leaves at most `allowed` of so many lines; the largest if none does."""
    return next((stride for stride in STRIDES if lines <= stride * allowed), STRIDES[-1])


def places(parts):
    """(N,) int64: the first words of the lines that are read, all different.

    Args:
        parts: (first word, number of words, stride) of each part of the array, of which one line in `stride` is read,
            always the same, at no regular distance, so that no column of a matrix is left out; at least FEWEST.
    """
    found = []
    for first, words, stride in parts:
        start, end = first // LINE, -(-(first + words) // LINE)
        count = min(end - start, max(FEWEST, -(-(end - start) // stride)))
        edges = start + np.arange(count + 1) * (end - start) // count
        found.append(np.random.default_rng(count).integers(edges[:-1], edges[1:]))  # one line between any two edges
    return LINE * np.unique(np.concatenate(found))  # a line twice would cancel out
