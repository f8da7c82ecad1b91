"""What a block sees of other blocks' stores to global memory: late, in any order, and only by relaxed.gpu.

A store stands in the memory at once, where its own block sees it. To every other block it shows at once or, in some
rounds, 0 to `LATEST` rounds later, each element of a vector by itself; until then that block is given what stood there
before. So a number that has come says nothing about any other, unless the storing block makes a fence between the two
and the loading block another. The end of a launch shows everything to everybody.

What may meet are loads and stores that are both relaxed (or volatile) in the device's scope, and of the same element
size. Anything else that reads what another block wrote in the same launch is an error: it may come from a cache that
nobody updates, or be half of one number and half of another (PTX ISA, "Memory Consistency Model").
"""

import re
from functools import cache
from typing import NamedTuple

import numpy as np

from emulator.arithmetic import per_lane

LATEST = 2  # rounds; in a round all threads go on as far as they can without new numbers of other blocks
SELDOM = 4  # the stores of about one round in so many are late: whoever waits for them looks again, which takes time
_COLUMNS = {"start": np.int64, "old": np.uint64} | dict.fromkeys(("by", "block", "round", "fence"), np.int32)


class DeviceError(RuntimeError):
    """What would be an error of the device, or is not defined on it."""


class Access(NamedTuple):
    """What matters of a load or store.

    Attributes:
        size: bytes per element.
        is_strong: blocks may exchange numbers by it.
        is_constant: it promises that nobody writes there during the launch.
    """

    size: int
    is_strong: bool
    is_constant: bool


@cache
def access_of(opcode):
    """The Access of an instruction such as "ld.relaxed.gpu.global.v4.u32"."""
    words = set(opcode.split("."))
    is_strong = bool({"atom", "volatile", "relaxed"} & words) and "cta" not in words
    return Access(int(re.search(r"\d+$", opcode).group()) // 8, is_strong, "nc" in words)


class Stores:
    """The stores of one launch to global memory, of all blocks, numbered from 1 on.

    Attributes:
        round: counted up by those who let threads look for others' numbers again.
    """

    def __init__(self, memory, num_blocks, seed):
        self._last = memory.last_store  # number of the last store, per 2 bytes of the memory; 0: none
        self._seed, self.round = int(seed), 0
        self._end = 1
        self._kept = {name: np.zeros(1024, dtype) for name, dtype in _COLUMNS.items()}
        self._opcodes = []  # column "by" is a place in it
        self._num_fences, self._fence_of = 0, np.zeros(num_blocks, np.int32)  # in all; number of each block's last one

    def store(self, opcode, place, block, old):
        """Note that these blocks store to these bytes, where `old` stands."""
        first, self._end = self._end, self._end + len(place)
        while self._end > len(self._kept["start"]):
            self._kept = {name: np.concatenate([column, column]) for name, column in self._kept.items()}
        if opcode not in self._opcodes:
            self._opcodes.append(opcode)
        new = {"start": place, "by": self._opcodes.index(opcode), "block": block, "round": self.round, "fence": 0}
        for name, value in (new | {"old": old.view(f"u{old.itemsize}")}).items():
            self._kept[name][first : self._end] = value
        for byte in range(0, old.itemsize, 2):
            self._last[(place + byte) >> 1] = np.arange(first, self._end)

    def load(self, opcode, place, block, values):
        """What these blocks see where `values` stand, at these bytes."""
        access = access_of(opcode)
        number = self._last[place >> 1]
        if access.size > 2:
            number = np.maximum(number, self._last[(place + access.size - 1) >> 1])
        if not np.any(number):
            return values
        number, place, values = (per_lane(array, len(block)) for array in (number, place, values))
        at = np.flatnonzero((number > 0) & (access.is_constant | (self._kept["block"][number] != block)))
        if not len(at):
            return values
        number, place, block = number[at], place[at], block[at]
        if not (self._meets(opcode)[self._kept["by"][number]] & (self._kept["start"][number] == place)).all():
            self._refuse(opcode, place, block, number)
        new = np.flatnonzero(self._kept["round"][number] + LATEST > self.round)
        hidden = new[self._are_hidden(number[new], block[new])]
        if not len(hidden):
            return values
        seen = values.copy()
        seen[at[hidden]] = self._kept["old"][number[hidden]].astype(f"u{access.size}").view(values.dtype)
        return seen

    def fence(self, block):
        """These blocks make a fence."""
        self._num_fences += 1
        self._fence_of[block] = self._num_fences
        fence = self._kept["fence"][: self._end]
        fence[(fence == 0) & np.isin(self._kept["block"][: self._end], block)] = self._num_fences

    def finish(self):
        """The launch ends."""
        for byte in range(0, 8, 2):
            self._last[(self._kept["start"][1 : self._end] + byte) >> 1] = 0

    def _meets(self, opcode):
        """Per opcode of stores, whether this load may read what another block wrote by it."""
        load, stored_by = access_of(opcode), [access_of(text) for text in self._opcodes]
        return np.array([load.is_strong and by.is_strong and load.size == by.size for by in stored_by])

    def _refuse(self, opcode, place, block, number):
        """Raise if one of these loads reads what it may not read: some may only be neighbors."""
        size, start, by = access_of(opcode).size, self._kept["start"][number], self._kept["by"][number]
        end = start + np.array([access_of(text).size for text in self._opcodes])[by]
        is_right = self._meets(opcode)[by] & (start == place)
        wrong = np.flatnonzero(~is_right & (start < place + size) & (place < end))
        if len(wrong):
            k = wrong[0]
            writer = self._kept["block"][number[k]]
            raise DeviceError(
                f"block {block[k]} reads by {opcode}, at byte {place[k]}, what block {writer} wrote in the same launch "
                f"by {self._opcodes[by[k]]}, at byte {start[k]}: both must be relaxed.gpu and of the same element; "
                f"{len(wrong)} threads do so"
            )

    def _are_hidden(self, number, block):
        """Which of these stores these blocks do not see yet."""
        start, stored, fence = (self._kept[name][number] for name in ("start", "round", "fence"))
        is_late = _random(self._seed, stored) % SELDOM == 0
        in_order = (fence > 0) & (fence < self._fence_of[block])
        shows = stored + _random(self._seed, start, stored, block) % (LATEST + 1)
        return is_late & ~in_order & (shows > self.round)


def _random(*words):
    """Integers from 0 on that look random, always the same for the same words."""
    mixed = np.uint64(0)
    for word in words:
        mixed = (mixed ^ np.asarray(word).astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = mixed ^ (mixed >> np.uint64(29))
    return (mixed >> np.uint64(3)).astype(np.int64)
