"""Packed weights that are kept between calls of inference: only what has changed is packed anew.

Callers may write to weights at any time, and nothing tells of it. So each call reads all weights, and packs a panel
anew unless its weights have the fingerprint of those that were packed there. A change of one number is always seen, of
several at once it is missed once in 2**64 times. To read takes a third of the time of packing, which writes as much,
after reading where it writes.
"""

import threading
import weakref
from collections import deque

import numpy as np
from llvmlite import ir

from numbarnn.common.forks import freed_in_forks
from numbarnn.compile import cgutils, types
from numbarnn.compile.calls import intrinsic
from numbarnn.compile.plain import plain
from numbarnn.engines.cpu import memory
from numbarnn.engines.cpu.vectors import INT, VECTOR_BYTES, numbers_at, own_bytes

LANES = 64  # words that are read together, each into a part of the fingerprint of its own
LAST_LANES = 16  # that become one number one after another
PRINT_BYTES = 8
NOTHING = np.uint64(0)  # the fingerprint of what is not packed yet
_WORD = np.uint32(0)
# Factors are odd, so that no bit is lost by a product. A product keeps a word's highest bit alone where it was, as both
# do with a number's sign: so bits then go on by different ways, or one bit of the lane's next word could undo both.
_ONE, _OTHER = (np.uint32(0x9E3779B1), np.uint32(13)), (np.uint32(0x85EBCA77), np.uint32(18))
_LAST_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@plain
def _mixed(word, by):
    """Other bits for each word: where one differs in the last bit, many do. `by`: a factor, and a turn to the left."""
    factor, turn = by
    word = np.uint32(word * factor)
    return np.uint32((word << turn) | (word >> np.uint32(np.uint32(32) - turn)))


@intrinsic
def _mix_lines(typing_context, one, other, address, count):
    """Each of LANES words at two addresses = _mixed(it ^ a word, by), for so many times LANES words at `address`.

    All lanes are in registers, where LLVM would keep arrays in memory. And of a turn that is two shifts of a product it
    makes two products, but not of one that it knows as such.
    """

    def generate(context, builder, signature, arguments):
        one, other, address, count = arguments
        vector = ir.VectorType(ir.IntType(32), VECTOR_BYTES // 4)
        turned = ir.FunctionType(vector, [vector] * 3)
        turned = cgutils.get_or_insert_function(builder.module, turned, f"llvm.fshl.v{vector.count}i32")

        def at(base, place):
            return builder.inttoptr(builder.add(base, INT(place)), vector.as_pointer())

        def load(base, place):
            words = builder.load(at(base, place))
            words.align = 4
            return words

        places, lanes = range(0, LANES * 4, VECTOR_BYTES), []
        for base, by in ((one, _ONE), (other, _OTHER)):
            by = [ir.Constant(vector, [int(number)] * vector.count) for number in by]
            for place in places:
                lanes.append((cgutils.alloca_once(builder, vector), base, place, by))
                builder.store(load(base, place), lanes[-1][0])
        with cgutils.for_range(builder, count) as loop:
            line = builder.add(address, builder.mul(loop.index, INT(LANES * 4)))
            words = {place: load(line, place) for place in places}
            for own, _, place, (factor, turn) in lanes:
                mixed = builder.mul(builder.xor(builder.load(own), words[place]), factor)
                builder.store(builder.call(turned, [mixed, mixed, turn]), own)
        for own, base, place, _ in lanes:
            builder.store(builder.load(own), at(base, place)).align = 4
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), generate


@plain
def fingerprint(address, count):
    """A number of 64 bits made of `count` words of 32 bits at an address."""
    first, second = own_bytes(LANES * 4), own_bytes(LANES * 4)
    one, other, words = numbers_at(_WORD, first), numbers_at(_WORD, second), numbers_at(_WORD, address)
    for j in range(LANES):
        one[j] = other[j] = _WORD
    _mix_lines(first, second, address, count // LANES)
    for k in range(count // LANES * LANES, count):
        j = k % LANES
        one[j] = _mixed(one[j] ^ words[k], _ONE)
        other[j] = _mixed(other[j] ^ words[k], _OTHER)
    lanes = LANES
    while lanes > LAST_LANES:  # halves become one: where one number has changed, one of them has
        lanes //= 2
        for j in range(lanes):
            one[j] = _mixed(one[j], _ONE) ^ one[lanes + j]
            other[j] = _mixed(other[j], _OTHER) ^ other[lanes + j]
    total = np.uint64(count)
    for j in range(LAST_LANES):
        total = (total ^ (np.uint64(one[j]) << np.uint64(32)) ^ np.uint64(other[j])) * _LAST_FACTOR
        total = total ^ (total >> np.uint64(29))
    return total


@plain
def joint(one, other):
    """The fingerprint of several things in their order, of that of those before and that of the next one."""
    return (one * _LAST_FACTOR) ^ other


class _Idle(weakref.ref):
    """Panels that no call uses now, of weights in one array; with the array they are forgotten.

    Attributes:
        number: `id` of the array. panels: key -> list of (panels, prints).
    """

    __slots__ = ("number", "panels")


class _Lent:
    """Panels that a call has, and the fingerprint of each; with it they return to where they came from.

    Attributes:
        panels, prints: arrays.
    """

    __slots__ = ("_key", "_returned", "panels", "prints")

    def __init__(self, returned, key, panels, prints):
        self._returned, self._key, self.panels, self.prints = returned, key, panels, prints

    def __del__(self):  # wherever Python collects it, so it waits for no lock
        self._returned.append((*self._key, self.panels, self.prints))


class PackedWeights:
    """Lends panels to calls, those that an earlier call left if there are any of the same weights.

    Args:
        pool: the `MemoryPool` that they come from. Panels that no call uses count as memory that it keeps.
    """

    def __init__(self, pool):
        self._pool = pool
        self._of, self._kept = {}, 0  # id of an array -> `_Idle`, the last used last; bytes of all their panels
        self._returned, self._dead = deque(), deque()  # what has come back since, and whose array has gone
        self._lock = freed_in_forks(threading.RLock())

    def lend(self, weights, place, shape):
        """Panels for a call of its own, with `panels` and `prints`; fingerprints are NOTHING at first.

        Args:
            weights: an array, or a view of the array that all weights of a layer are in.
            place: hashable: where in that array the weights are, and how they are cut into panels.
            shape: of the panels.
        """
        owner = weights.base if isinstance(weights.base, np.ndarray) else weights
        with self._lock:
            self._take_back()
            idle = self._of.pop(id(owner), None)
            if idle is None:
                idle = _Idle(owner, self._dead.append)
                idle.number, idle.panels = id(owner), {}
            self._of[id(owner)] = idle
            left = idle.panels.get(place)
            panels, prints = left.pop() if left else (None, None)
            if panels is not None:
                self._kept -= panels.nbytes
            while self._kept > memory.MOST_KEPT and len(self._of) > 1:
                self._drop(next(iter(self._of.values())))
            self._pool.leave_room(self._kept)
        if panels is None:
            panels, prints = self._pool.empty(shape, weights.dtype), np.zeros(shape[0], np.uint64)
        return _Lent(self._returned, (idle, place), panels, prints)

    def _take_back(self):
        while self._dead:
            self._drop(self._dead.popleft())
        while self._returned:
            idle, place, panels, prints = self._returned.popleft()
            if self._of.get(idle.number) is idle:
                idle.panels.setdefault(place, []).append((panels, prints))
                self._kept += panels.nbytes

    def _drop(self, idle):
        """Forget an array's panels."""
        if self._of.get(idle.number) is idle:
            del self._of[idle.number]
            self._kept -= sum(panels.nbytes for own in idle.panels.values() for panels, _ in own)

    def clear(self):
        """Forget what no call uses."""
        with self._lock:
            self._returned.clear()
            self._dead.clear()
            self._of.clear()
            self._kept = 0
