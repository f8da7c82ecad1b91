"""Array memory that later calls use again: freed memory serves the next array of about its size.

The system gives large arrays new pages each time; filling these with zeros takes as long as a tenth of a call.
"""

import ctypes
import os
import threading

import numpy as np

from numbarnn.common.forks import freed_in_forks

SMALL = 1 << 16  # bytes below which NumPy's own memory is as fast
MOST_KEPT = 1 << 28  # bytes kept at most
_LINE = 64  # bytes of a cache line, at which arrays begin


def aligned(size):
    """Allocate `size` bytes, a uint8 array that begins at a cache line; contents are unspecified."""
    raw = np.empty(size + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + size]


def trim():
    """Return freed memory that the C library keeps to the system, where possible (glibc)."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if malloc_trim is not None:
        malloc_trim(0)


def copied(array):
    """Return a contiguous copy of an array, aligned to a cache line if large.
    Vectors that straddle two lines make reading large weights a seventh slower."""
    if array.nbytes < SMALL:
        return np.array(array, order="C")
    copy = aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


class _Loan:
    """Memory on loan: arrays and their views hold it; when the last one is gone, it returns to its pool."""

    def __init__(self, pool, raw, shape, dtype):
        self.pool, self.raw = pool, raw
        place = raw.__array_interface__["data"]
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": place}

    def __del__(self):
        if MOST_KEPT is None or self.raw.nbytes > MOST_KEPT:  # Python is about to end, or it alone exceeds the limit
            return
        pool, size = self.pool, self.raw.nbytes
        with pool._lock:
            pool._free.setdefault(size, []).append(self.raw)
            pool._kept += size
            if pool._kept > MOST_KEPT:
                pool._make_room()


class MemoryPool:
    """Allocates arrays in memory of earlier ones.

    Args:
        give_back: function without arguments that frees all memory kept for later calls, this pool's included. It is
            called when the system is out of memory.
    """

    def __init__(self, give_back=None):
        self._free, self._kept = {}, 0
        self._give_back = give_back or self.clear
        # Reentrant: while it is held, Python may collect arrays, which return their memory.
        self._lock = freed_in_forks(threading.RLock())

    def empty(self, shape, dtype):
        """Allocate an array of unspecified contents, aligned to a cache line if large."""
        dtype, shape = np.dtype(dtype), shape if type(shape) is tuple else (shape,)
        size = dtype.itemsize
        for length in shape:
            size *= length
        if size < SMALL:
            return np.empty(shape, dtype)
        if size <= MOST_KEPT:
            step = 1 << (size.bit_length() - 3)  # round kept sizes up, by at most a quarter
            size = -(-size // step) * step
        with self._lock:
            free = self._free[size] = self._free.pop(size, [])  # the last of the dict
            raw = free.pop() if free else None
            if raw is not None:
                self._kept -= size
        if raw is None:
            try:
                raw = aligned(size)
            except MemoryError:
                self._give_back()
                raw = aligned(size)
        return np.asarray(_Loan(self, raw, shape, dtype))

    def clear(self):
        """Return memory that no array uses to the system."""
        with self._lock:
            free, self._free, self._kept = self._free, {}, 0
        free.clear()

    def _make_room(self):
        """Free memory of the sizes unused for the longest time until the rest fits the limit.
        Kept bytes are counted anew: an interrupt or a garbage collection may have separated memory from its count."""
        sizes = list(self._free.items())
        kept = sum(size * len(free) for size, free in sizes)
        for size, free in sizes:
            while free and kept > MOST_KEPT:
                free.pop()
                kept -= size
        self._kept = kept
