"""Fingerprints of NumPy arrays, compiled; see `numbarnn.kernels.arrays.samples`."""

from array import array
from ctypes import addressof
from functools import partial

import numpy as np

from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.calls import address
from numbarnn.engines.cpu.records import Prints, by_address, from_python, job_at, prints_at
from numbarnn.engines.cpu.sharing import NONE, take_any
from numbarnn.engines.cpu.vectors import numbers_at
from numbarnn.kernels.arrays import samples

_WORD, _PLACE, _PRINT = np.uint32(0), np.int64(0), np.uint64(0)
PLACE_BYTES = PRINT_BYTES = 8
_term = plain(samples.term)


@plain
def _of_words(words, count, places, places_count):
    """Of `count` words at an address, of which the lines are read that begin at the places."""
    words, places, total = numbers_at(_WORD, words), numbers_at(_PLACE, places), np.uint64(0)
    for k in range(places_count):
        first = places[k]
        for j in range(first, min(count, first + samples.LINE)):
            total = total ^ _term(words[j], j)
    return total


@from_python
def _of_arrays(out, arrays, count):
    """The fingerprints of so many arrays into `out`, an address; at `arrays` stand the arguments of `_of_words` of
    each, one after another."""
    prints, given = numbers_at(_PRINT, out), numbers_at(_PLACE, arrays)
    for k in range(count):
        prints[k] = _of_words(given[4 * k], given[4 * k + 1], given[4 * k + 2], given[4 * k + 3])


@by_address
def of_pieces(zero, address):
    """A thread's part in a `records.Prints`: the fingerprints of pieces of each array's places."""
    job = job_at(address)
    what = prints_at(job.what)
    pieces, piece, given = what.pieces, take_any(what.pieces, job, NONE), numbers_at(_PLACE, what.arrays)
    while piece != NONE:
        prints = numbers_at(_PRINT, what.out + piece * what.count * PRINT_BYTES)
        for k in range(what.count):
            number = given[4 * k + 3]
            first, last = number * piece // pieces, number * (piece + 1) // pieces
            prints[k] = _of_words(given[4 * k], given[4 * k + 1], given[4 * k + 2] + first * PLACE_BYTES, last - first)
        piece = take_any(pieces, job, piece)


class Watch:
    """The fingerprint of each of some contiguous arrays of float32 or float64 as they are now, a tuple of ints: by a
    call.

    Args:
        arrays: which must live as long. places: of each of them, what `samples.places` returned.
        run: run(function, address of a `records.Prints`) by so many threads; None: this one does it.
        pieces: for them.
    """

    def __init__(self, arrays, places, run=None, pieces=1):
        self._run, self._places = run, places
        self._found = np.zeros((pieces, len(arrays)), np.uint64)
        self._given = array("q")  # the arguments of `_of_words` of each array, one after another
        for one, own in zip(arrays, places, strict=True):
            self._given.extend((address(one), one.nbytes // 4, address(own), len(own)))
        at, out = self._given.buffer_info()[0], address(self._found)
        self._what = Prints(out=out, arrays=at, count=len(arrays), pieces=pieces)
        self._numbers = out, at, len(arrays)

    def read(self, number, other):
        """From now on read another array, of the same shape, in place of that with this number."""
        self._given[4 * number] = address(other)

    def __call__(self):
        if self._run is None:
            _of_arrays.compiled(*self._numbers)
            return tuple(self._found[0].tolist())
        self._run(of_pieces, addressof(self._what))
        return tuple(np.bitwise_xor.reduce(self._found).tolist())


def watch(arrays, places):
    """A function without arguments: the fingerprint of each of some contiguous arrays now, a tuple of ints."""
    return partial(_of_halves, arrays, places) if arrays[0].dtype.itemsize == 2 else Watch(arrays, places)


def _of_halves(arrays, places):
    """These of halves, whose words have 16 bits, by NumPy: on the CPU they are widened anyway to be computed with."""
    found = []
    for one, own in zip(arrays, places, strict=True):
        at = (own[:, None] + np.arange(samples.LINE)).reshape(-1)
        at = at[at < one.size]
        found.append(int(np.bitwise_xor.reduce(samples.term(one.reshape(-1).view(np.uint16)[at], at))))
    return tuple(found)
