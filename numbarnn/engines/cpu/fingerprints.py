"""Fingerprints of NumPy arrays, compiled; see `numbarnn.kernels.arrays.samples`."""

from array import array
from ctypes import addressof

import numpy as np

from numbarnn.compile.plain import plain
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


def watch(arrays, places):
    """A function without arguments: the fingerprint of each of some contiguous arrays now, a tuple of ints.

    Args:
        places: of each of them, what `samples.places` returned.
    """
    if arrays[0].dtype.itemsize == 2:  # only in the simulator: widened, a word each
        return lambda: watch([one.astype(np.float32) for one in arrays], places)()
    found, given = np.zeros(len(arrays), np.uint64), _given(arrays, places)
    numbers, kept = (found.ctypes.data, given.buffer_info()[0], len(arrays)), (arrays, places, given)

    def fingerprints():
        assert kept
        _of_arrays(*numbers)
        return tuple(found.tolist())

    return fingerprints


def watch_by_all(arrays, places, run, pieces):
    """The same, of float32 or float64, where several threads take the fingerprints.

    Args:
        run: run(function, address of a `records.Prints`). pieces: for them.
    """
    found, given = np.zeros((pieces, len(arrays)), np.uint64), _given(arrays, places)
    what = Prints(out=found.ctypes.data, arrays=given.buffer_info()[0], count=len(arrays), pieces=pieces)
    kept = arrays, places, given

    def fingerprints():
        assert kept
        run(of_pieces, addressof(what))
        return tuple(np.bitwise_xor.reduce(found).tolist())

    return fingerprints


def _given(arrays, places):
    """What stands at `arrays`, see `_of_arrays`."""
    given = array("q")  # a tenth of the time of NumPy's, in each call
    for one, own in zip(arrays, places, strict=True):
        given.extend((one.ctypes.data, one.nbytes // 4, own.ctypes.data, len(own)))
    return given
