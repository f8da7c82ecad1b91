"""Memory of an emulated GPU."""

import numpy as np

BASE = 0x7F0000000000  # global memory's addresses begin here: cut to 32 bits they would be wrong
SHARED, LOCAL = 0x7E0000000000, 0x7D0000000000  # where each thread sees its block's shared, and its own memory
JUNK = np.frombuffer(bytes.fromhex("ADDEC07F"), np.uint8)  # NaN in float32, every second float16; 2e307 in float64
CODES = ("u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8")
_ALIGNMENT = 512
_JUNK_BYTES = 1 << 22  # of one piece of memory that are filled: what tests look at is smaller


class Memory:
    """The device's memory: one array of bytes. New pieces are full of junk; freed ones must not be touched."""

    def __init__(self, size):
        self.bytes = np.zeros(size, np.uint8)
        self.views = views_of(self.bytes)
        self.is_allocated = np.zeros(size, bool)
        self.last_store = np.zeros(size // 2 + 4, np.uint32)  # see visibility.Stores
        self.size, self.used, self._top = size, 0, _ALIGNMENT
        self._free = {}  # rounded size -> list of addresses
        self.is_allocated[:64] = True  # where threads that do not take part read and write nothing

    def allocate(self, size):
        """Address of that many bytes."""
        room = _room(size)
        kept = self._free.get(room)
        if kept:
            start = kept.pop()
        elif self._top + room <= self.size:
            start, self._top = self._top, self._top + room
        else:
            raise MemoryError(size)
        piece = self.bytes[start : start + room]
        piece.reshape(-1, 4)[: _JUNK_BYTES // 4] = JUNK
        self.is_allocated[start : start + size] = True
        self.used += size
        return BASE + start

    def free(self, address, size):
        start = address - BASE
        self.is_allocated[start : start + size] = False
        self.used -= size
        self._free.setdefault(_room(size), []).append(start)

    def address(self, view):
        """Where a NumPy view of this memory begins."""
        return BASE + view.__array_interface__["data"][0] - self.bytes.__array_interface__["data"][0]

    def contains(self, array):
        return BASE <= self.address(array) < BASE + self.size

    def array(self, address, dtype, shape, strides=None):
        """The numbers at an address as a NumPy array."""
        return np.ndarray(shape, dtype, self.bytes.data, address - BASE, strides)


def _room(size):
    """Bytes that a piece of memory takes, with a fence behind it that is nobody's."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT


def views_of(array):
    """An array of bytes as numbers of each code: code -> view."""
    return {code: array.view(code) for code in CODES}
