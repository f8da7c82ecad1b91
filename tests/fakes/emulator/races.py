"""Whether threads of a block share its memory in an order that barriers give: looked at in one block of a launch.

A thread may read what another one wrote, or overwrite what another one read, only after a barrier of the block, or
after `bar.warp.sync` if both are of one warp. Shuffles and mma order nothing. On a device the lack shows rarely: lanes
of a warp mostly go on together.
"""

import numpy as np

from emulator.arithmetic import WARP
from emulator.visibility import DeviceError


class SharedAccesses:
    """The last write and the last read of each word of a block's shared memory.

    Args:
        first, end: lanes of the grid that are the block's.
        start, size: where its shared memory begins among all blocks', and its size, in bytes.
    """

    def __init__(self, first, end, start, size):
        self.lanes, self._start = slice(first, end), start
        self._thread = np.arange(end - first)
        self._writer, self._written = np.zeros((2, size // 4), np.int32)
        self._reader, self._read = np.zeros((2, size // 4), np.int32)
        self._now = 1  # counts barriers, of the block and of its warps
        self._barrier = np.ones((2, end - first), np.int32)  # each thread's last ones: of the block, of the warp

    def barrier(self, lanes, of_warp=False):
        """These lanes have come to a barrier, None: all of them."""
        self._now += 1
        self._barrier[int(of_warp)][slice(None) if lanes is None else lanes[self.lanes]] = self._now

    def access(self, opcode, place, size, mask):
        """Lanes of the mask, None: all, read or write so many bytes at these bytes; an array over all lanes."""
        thread, place = self._thread, place[self.lanes] - self._start
        if mask is not None:
            thread, place = thread[mask[self.lanes]], place[mask[self.lanes]]
        for byte in {0, size - 1}:
            word = (place + byte) >> 2
            if opcode.startswith("ld"):
                self._require_order(opcode, "wrote", self._writer[word], self._written[word], thread)
                self._reader[word], self._read[word] = thread, self._now
            else:
                self._require_order(opcode, "read", self._reader[word], self._read[word], thread)
                self._writer[word], self._written[word] = thread, self._now

    def _require_order(self, opcode, did, other, when, thread):
        of_block, of_warp = self._barrier[0][thread], self._barrier[1][thread]
        in_order = (when < of_block) | (other == thread) | ((other // WARP == thread // WARP) & (when < of_warp))
        wrong = np.flatnonzero(~in_order)
        if len(wrong):
            k = wrong[0]
            raise DeviceError(
                f"thread {thread[k]} accesses by {opcode} the shared memory that thread {other[k]} {did}, without a "
                f"barrier between them; {len(wrong)} threads do so"
            )
