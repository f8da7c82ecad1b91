"""Memory that calls use again: what an array leaves is kept for the next one of about its size.

The system gives large arrays new pages each time, and filling these with zeros takes as long as a tenth of a call.
"""

import threading

import numpy as np

SMALL = 1 << 16  # bytes below which NumPy's own memory is as fast
MOST_KEPT = 1 << 28  # bytes kept at most
_LINE = 64  # bytes of a line of the cache, at which arrays begin


class _Block(np.ndarray):
    """Bytes that return to their pool when the last array in them is gone."""

    pool = None

    def __del__(self):
        if self.pool is not None:
            self.pool._take_back(self)


class MemoryPool:
    """Makes arrays in memory of earlier ones."""

    def __init__(self):
        self._free, self._kept, self._lock = {}, 0, threading.Lock()

    def empty(self, shape, dtype):
        """An array with unspecified contents, that begins with a line of the cache where it is large."""
        dtype = np.dtype(dtype)
        size = dtype.itemsize
        for length in shape if type(shape) is tuple else (shape,):
            size *= length
        if size < SMALL:
            return np.empty(shape, dtype)
        step = 1 << (size.bit_length() - 3)  # sizes are rounded up, by at most a quarter
        size = -(-size // step) * step
        with self._lock:
            free = self._free.get(size)
            raw = free.pop() if free else None
            if raw is not None:
                self._kept -= size
        if raw is None:
            raw = np.empty(size + _LINE, np.uint8)
            start = -raw.ctypes.data % _LINE
            raw = raw[start : start + size]
        block = raw.view(_Block)
        block.pool = self
        return np.ndarray(shape, dtype, block)

    def _take_back(self, block):
        """Keep a block's bytes, unless there are too many."""
        with self._lock:
            if self._kept + block.nbytes <= MOST_KEPT:
                self._kept += block.nbytes
                self._free.setdefault(block.nbytes, []).append(block.view(np.ndarray))
