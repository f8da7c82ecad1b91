"""Memory that calls used and will want again, so that a steady loop comes back to the same few addresses soon.

CUDA graphs are found again by addresses (`numbarnn.engines.gpu.graphs`). With CuPy's pool alone the same addresses come
back only after dozens of turns of a training loop, if ever: it splits and joins pieces, so that what an array gets
depends on all arrays before. Here an array takes the place that an array of the same name, in a call of the same kind,
has left. A loop that keeps two calls alive at a time uses two sets of addresses.
"""

from collections import OrderedDict
from math import prod
from threading import RLock, get_ident

KINDS = 32  # kinds of calls whose memory is kept, the least recently used given back first
SHARE = 8  # of the device's memory at most one part in this many is kept for calls that are not the latest


class BufferPool:
    """Kept memory of one device; where there is none, it comes from CuPy's pool, and goes back there when given up.

    Args:
        cupy: the module, or what stands in for it.
        ordinal: the device.
        limit: bytes kept for kinds besides the latest.
        also: function without arguments that gives back what else is kept, for `clear`.
    """

    def __init__(self, cupy, ordinal, limit, also=lambda: None):
        self._cupy, self._ordinal, self._limit, self._also = cupy, ordinal, limit, also
        self._kinds = OrderedDict()  # (kind, stream, thread) -> CallBuffers
        self._lock = RLock()  # of this dict, and of the dicts `CallBuffers.free`

    def of_call(self, kind):
        """The `CallBuffers` of a kind of call (hashable) on CuPy's current stream: each stream has its own, as another
        one's work may still use what it was given."""
        key = kind, self._cupy.cuda.get_current_stream().ptr, get_ident()  # a thread's default stream is its own
        given_back = []  # freed below: CuPy's pool has a lock of its own
        with self._lock:
            buffers = self._kinds.get(key)
            if buffers is None:
                buffers = self._kinds[key] = CallBuffers(self._cupy, self._ordinal, self._lock)
                while len(self._kinds) > 1 and (len(self._kinds) > KINDS or self.kept_bytes() > self._limit):
                    given_back.append(self._kinds.popitem(last=False))
            else:
                self._kinds.move_to_end(key)
        return buffers

    def kept_bytes(self):
        """Bytes that no array uses now."""
        with self._lock:
            lists = [kept for buffers in self._kinds.values() for kept in buffers.free.values()]
            return sum(memory.mem.size for kept in lists for memory in tuple(kept))

    def clear(self):
        """Give all of it back to CuPy's pool."""
        with self._lock:
            kinds, self._kinds = self._kinds, OrderedDict()
        kinds.clear()
        self._also()


class CallBuffers:
    """Memory for the arrays of one kind of call, of one thread. An array's size depends on its name alone.

    All of it is held here, lent or not, for arrays may end as garbage: a call that compiles leaves its frames, and so
    its arrays, in a circle, as Numba keeps exceptions that it caught. If only the arrays held their memory, Python's
    collector would free both together, and a `_Loan` would hand freed memory to the next call. That is so of memory
    from an allocator in Python (`cupy.cuda.set_allocator`); CuPy's own is freed later.
    """

    def __init__(self, cupy, ordinal, lock):
        self._cupy, self._ordinal, self._lock = cupy, ordinal, lock
        self.free = {}  # name -> list of memory that no array uses; other threads read it, and add to the lists
        self._pieces, self._places = {}, set()  # name -> list of all its memory; the addresses of all memory

    def __call__(self, name, shape, dtype):
        """An array with unspecified contents."""
        kept = self.free.get(name)
        if kept is None:
            with self._lock:
                kept = self.free[name] = []
                self._pieces[name] = []
        if kept:
            memory = kept.pop()
        else:
            memory = self._cupy.cuda.alloc(prod(shape) * dtype.itemsize)
            self._places.add(memory.ptr)
            self._pieces[name].append(memory)
        cuda, size = self._cupy.cuda, memory.mem.size
        pointer = cuda.MemoryPointer(cuda.UnownedMemory(memory.ptr, size, _Loan(kept, memory), self._ordinal), 0)
        return self._cupy.ndarray(shape, dtype, pointer)

    def have(self, array):
        """Whether an array's memory came from here."""
        return array.data.mem.ptr in self._places

    def in_use(self, name):
        """How many pieces of memory of that name arrays use."""
        return len(self._pieces[name]) - len(self.free[name])


class _Loan:
    """Lives as long as an array's memory is used, by views too; then the memory is free again."""

    __slots__ = ("_kept", "_memory")

    def __init__(self, kept, memory):
        self._kept, self._memory = kept, memory

    def __del__(self):  # in any thread, between any two instructions: no locks
        self._kept.append(self._memory)
