"""Callers' arrays as compiled code finds them: whether one is like that of the call before, and where its numbers are.

Python takes a tenth of a microsecond to ask an array for its shape, dtype or flags, and two for its address: together
as long as a short call computes. Compiled code reads them where NumPy's headers say that an array has them
(`PyArrayObject_fields`, which no version changes, as all extensions read it so). `LAID_OUT` says whether it is so here.
"""

from array import array as numbers
from ctypes import addressof, c_int64, sizeof
from functools import partial

import numpy as np

from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.records import Given, from_objects, given_at
from numbarnn.engines.cpu.sharing import NO, YES
from numbarnn.engines.cpu.vectors import numbers_at

# Numbers of int64 from an object's address to what it has; flags and the number of axes are int32.
_BODY = object.__basicsize__ // 8
_TYPE, _DATA, _AXES, _SHAPE, _DTYPE, _FLAGS = _BODY - 1, _BODY, _BODY + 1, _BODY + 2, _BODY + 5, _BODY + 6
_WANTED = 0x101  # of the flags: C-contiguous, aligned
_WORD, _HALF, _GIVEN_BYTES = np.int64(0), np.int32(0), sizeof(Given)


@plain
def _fits(object, place):
    """Whether an object at an address is what a `records.Given` says."""
    given, words, halves = given_at(place), numbers_at(_WORD, object), numbers_at(_HALF, object)
    if words[_TYPE] != given.type:
        return NO
    if given.dtype == 0:  # None
        return YES
    if halves[2 * _AXES] != given.axes or words[_DTYPE] != given.dtype or halves[2 * _FLAGS] & _WANTED != _WANTED:
        return NO
    shape, wanted = numbers_at(_WORD, words[_SHAPE]), numbers_at(_WORD, given.shape)
    for axis in range(given.axes):
        if shape[axis] != wanted[axis]:
            return NO
    return YES


@plain
def _put_address(object, place):
    """Write where an array's numbers are to the places of a `records.Given`."""
    given, first = given_at(place), numbers_at(_WORD, object)[_DATA]
    places = numbers_at(_WORD, given.places)
    for number in range(given.places_count):
        numbers_at(_WORD, places[2 * number])[0] = first + places[2 * number + 1]


@from_objects(3)
def _take(given, x, h, c):
    """Whether three objects are what three `records.Given` at an address say; then the addresses are written."""
    if not (_fits(x, given) and _fits(h, given + _GIVEN_BYTES) and _fits(c, given + 2 * _GIVEN_BYTES)):
        return 0
    _put_address(x, given)
    _put_address(h, given + _GIVEN_BYTES)
    _put_address(c, given + 2 * _GIVEN_BYTES)
    return 1


def _is_laid_out():
    """Whether arrays have their parts where NumPy's headers say."""
    for one in (np.zeros((2, 3), np.float32), np.zeros((3, 5, 7))[:, ::2, 1:]):
        words = (c_int64 * (_FLAGS + 1)).from_address(id(one))
        parts = [words[k] for k in (_TYPE, _DATA, _DTYPE)]
        if parts != [id(np.ndarray), one.ctypes.data, id(one.dtype)] or words[_AXES] & 0xFFFFFFFF != one.ndim:
            return False
        shape = tuple((c_int64 * one.ndim).from_address(words[_SHAPE]))
        if shape != one.shape or bool(words[_FLAGS] & 1) != one.flags.c_contiguous or not words[_FLAGS] & 0x100:
            return False
    return True


LAID_OUT = object.__basicsize__ % 8 == 0 and _is_laid_out()


def taker(arrays, places):
    """A function f(x, h, c): whether these are arrays like the given ones, of NumPy's own type, contiguous, and None
    where None is given; then their addresses are put where they are to be.

    Args:
        arrays: three, each an array or None. places: of each [(address of an int64, bytes from where the array begins
            to what is there)].
    """
    kept, given = [], (Given * 3)()
    for record, one, own in zip(given, arrays, places, strict=True):
        record.type = id(type(one))
        if one is not None:
            shape, pairs = numbers("q", one.shape), numbers("q", [word for pair in own for word in pair])
            record.dtype, record.axes, record.shape = id(one.dtype), one.ndim, shape.buffer_info()[0]
            record.places, record.places_count = pairs.buffer_info()[0], len(own)
            kept += [one.dtype, shape, pairs]
    take = partial(_take.compiled, addressof(given))
    take.kept = given, kept
    return take
