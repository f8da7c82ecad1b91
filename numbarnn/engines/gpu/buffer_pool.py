"""Keep the memory of calls, so that a steady loop uses the same few addresses again.

CUDA graphs are looked up by addresses (`numbarnn.engines.gpu.graphs`). CuPy's pool splits and merges blocks, so the
address of an array depends on all earlier arrays, and addresses repeat after dozens of iterations or never. Here an
array reuses the memory of an array of the same name in an earlier call of the same kind. A loop that keeps two calls
alive uses two sets of addresses.
"""

from collections import OrderedDict
from math import prod
from threading import RLock, get_ident

KINDS = 32  # kinds of calls whose memory is kept; the least recently used is freed first
SHARE = 8  # at most 1 / SHARE of the device's memory is kept for calls besides the latest


class BufferPool:
    """Memory of one device, kept for later calls. New memory comes from CuPy's pool, and freed memory returns to it.

    Args:
        cupy: the module, or a stand-in.
        ordinal: the device.
        limit: most bytes kept for kinds of calls besides the latest.
        also: function that frees what else is kept, called by `clear`.
    """

    def __init__(self, cupy, ordinal, limit, also=lambda: None):
        self._cupy, self._ordinal, self._limit, self._also = cupy, ordinal, limit, also
        self._kinds = OrderedDict()  # (kind, stream, thread) -> CallBuffers
        self._lock = RLock()  # for this dict and the dicts `CallBuffers.free`

    def of_call(self, kind):
        """Return the `CallBuffers` of a kind of call (hashable) on CuPy's current stream and in this thread.
        Streams do not share memory, since the work of another stream may still use it."""
        key = kind, self._cupy.cuda.get_current_stream().ptr, get_ident()  # each thread may have its own default stream
        freed = []  # dropped after the lock is released, since CuPy's pool has its own lock
        with self._lock:
            buffers = self._kinds.get(key)
            if buffers is None:
                buffers = self._kinds[key] = CallBuffers(self._cupy, self._ordinal, self._lock)
                while len(self._kinds) > 1 and (len(self._kinds) > KINDS or self.kept_bytes() > self._limit):
                    freed.append(self._kinds.popitem(last=False))
            else:
                self._kinds.move_to_end(key)
        return buffers

    def kept_bytes(self):
        """Return how many bytes no array uses now."""
        with self._lock:
            lists = [kept for buffers in self._kinds.values() for kept in buffers.free.values()]
            return sum(memory.mem.size for kept in lists for memory in tuple(kept))

    def clear(self):
        """Return all memory to CuPy's pool."""
        with self._lock:
            kinds, self._kinds = self._kinds, OrderedDict()
        kinds.clear()
        self._also()


class CallBuffers:
    """Memory for the arrays of one kind of call in one thread. The size of an array depends on its name alone.

    This object holds all of the memory, used or not, since arrays may end as garbage: a call that compiles leaves
    its frames and arrays in a reference cycle, as Numba keeps exceptions that it caught. If only the arrays held
    their memory, Python's collector would free both together, and a `_Loan` would hand freed memory to the next
    call. That would happen with an allocator in Python (`cupy.cuda.set_allocator`); CuPy's own memory is freed
    later.
    """

    def __init__(self, cupy, ordinal, lock):
        self._cupy, self._ordinal, self._lock = cupy, ordinal, lock
        self.free = {}  # name -> list of memory that no array uses; other threads read it and extend the lists
        self._pieces, self._places = {}, set()  # name -> list of all its memory; the addresses of all memory

    def __call__(self, name, shape, dtype):
        """Return an array with unspecified contents."""
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
        """Return whether an array's memory came from here."""
        return array.data.mem.ptr in self._places

    def in_use(self, name):
        """Return how many pieces of memory of that name arrays use."""
        return len(self._pieces[name]) - len(self.free[name])


class _Loan:
    """Lives as long as an array's memory is used, by views too, and then makes the memory free again."""

    __slots__ = ("_kept", "_memory")

    def __init__(self, kept, memory):
        self._kept, self._memory = kept, memory

    def __del__(self):  # runs in any thread between any two instructions, so it must take no lock
        self._kept.append(self._memory)
