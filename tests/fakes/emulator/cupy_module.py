"""What numbarnn and its tests use of CuPy, on the emulated device's memory.

Work on a stream happens at once, in the order in which it is asked for. A recorded graph runs its nodes in a random
order that its streams and events allow.
"""

import itertools
import threading
import weakref
from types import SimpleNamespace

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from emulator.memory import Memory

ATTRIBUTES = {
    "MultiProcessorCount": 32,  # few, as every thread costs time
    "MaxSharedMemoryPerBlockOptin": 227 * 1024,
    "MaxRegistersPerMultiprocessor": 65536,
    "ClockRate": 1_980_000,
    "CooperativeLaunch": 1,
}
device_memory = Memory(2 << 30)  # of the host's memory, only what is touched


class OutOfMemoryError(MemoryError):
    pass


class CUDARuntimeError(RuntimeError):
    pass


# ------------------------------------------------------------------------------------------------------------- memory
class MemoryHook:
    """A context in which an object is told of every allocation."""

    active = ()

    def __enter__(self):
        MemoryHook.active = (*MemoryHook.active, self)
        return self

    def __exit__(self, *_):
        MemoryHook.active = tuple(hook for hook in MemoryHook.active if hook is not self)

    def malloc_preprocess(self, **arguments):
        pass


class _Allocation:
    device_id = 0

    def __init__(self, size):
        self.ptr, self.memory = 0, device_memory
        for hook in MemoryHook.active:
            hook.malloc_preprocess(device_id=0, size=size, mem_size=size)
        try:
            self.ptr = device_memory.allocate(size)
        except MemoryError:
            raise OutOfMemoryError(f"the emulated device has no room for {size} bytes") from None
        self.size = size

    def __del__(self):  # earlier than CuPy's memory, but as an allocator in Python may do it: in a circle too
        if self.ptr and device_memory:  # None when the interpreter ends
            self.memory.free(self.ptr, self.size)


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=0):
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    device_id = 0

    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset

    def __add__(self, offset):
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def copy_from_device_async(self, source, size, stream=None):
        target, origin = (device_memory.array(pointer.ptr, np.uint8, (size,)) for pointer in (self, source))
        (stream or get_current_stream()).do(lambda: np.copyto(target, origin))


class _PinnedMemory(np.ndarray):
    """Memory of the host that kernels can reach."""


def alloc(size):
    return MemoryPointer(_Allocation(size), 0)


def alloc_pinned_memory(size):
    memory = _Allocation(size)
    pinned = device_memory.array(memory.ptr, np.uint8, (size,)).view(_PinnedMemory)
    pinned.ptr, pinned.memory = memory.ptr, memory
    return pinned


# ------------------------------------------------------------------------------------------------------------- arrays
class ndarray(NDArrayOperatorsMixin):
    """A NumPy array of the device's memory, which NumPy's functions refuse, as CuPy's are refused."""

    __hash__ = None

    def __init__(self, shape, dtype=float, memptr=None, strides=None):
        shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        dtype = np.dtype(dtype)
        memptr = alloc(int(np.prod(shape)) * dtype.itemsize) if memptr is None else memptr
        self._memory, self._start, self.base = memptr.mem, memptr.ptr, None
        self._view = device_memory.array(memptr.ptr, dtype, shape, strides)

    @classmethod
    def _part(cls, view, whole):
        """A view of an array's memory."""
        array = cls.__new__(cls)
        array._view, array._memory, array._start = view, whole._memory, whole._start
        array.base = whole if whole.base is None else whole.base
        return array

    @property
    def data(self):
        start = device_memory.address(self._view) if self._view.size else self._start
        return MemoryPointer(self._memory, start - self._memory.ptr)

    @property
    def device(self):
        return Device(0)

    @property
    def __cuda_array_interface__(self):
        interface = dict(self._view.__array_interface__, version=3, stream=None)
        interface["data"] = self.data.ptr, False
        if self._view.flags.c_contiguous:
            interface["strides"] = None
        return interface

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed: use .get() or cupy.asnumpy()")

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        if any(isinstance(value, np.ndarray) and value.ndim for value in inputs):
            raise TypeError(f"Unsupported type {np.ndarray}")
        if out is not None:
            options["out"] = tuple(_unwrapped(value) for value in out)
        result = getattr(ufunc, method)(*map(_unwrapped, inputs), **options)
        return out[0] if out is not None else _wrapped(result, self)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._view, name)
        return _on_views(value, self) if callable(value) else _wrapped(value, self)

    def __getitem__(self, index):
        view = self._view[_unwrapped(index)]
        view = view if isinstance(view, np.ndarray) else np.asarray(view)
        return _wrapped(view, self)

    def __setitem__(self, index, value):
        if isinstance(value, np.ndarray) and value.ndim:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        self._view[_unwrapped(index)] = _unwrapped(value)

    def __len__(self):
        return len(self._view)

    def __iter__(self):
        return (self[number] for number in range(len(self)))

    def __float__(self):
        return float(self._view)

    def __int__(self):
        return int(self._view)

    def __bool__(self):
        return bool(self._view)

    def __repr__(self):
        return f"emulated {self._view!r}"

    def get(self):
        return self._view.copy()

    def set(self, array, stream=None):
        self._view[...] = array


def _unwrapped(value):
    if isinstance(value, ndarray):
        return value._view
    if isinstance(value, (tuple, list)):
        return type(value)(_unwrapped(part) for part in value)
    return value


def _wrapped(value, whole=None):
    """A NumPy result on the device: a view of its memory as it is, anything else copied there."""
    if isinstance(value, tuple) and any(isinstance(part, np.ndarray) for part in value):
        return tuple(_wrapped(part, whole) for part in value)
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        return value
    if whole is not None and device_memory.contains(value):
        return ndarray._part(value, whole)
    array = ndarray(value.shape, value.dtype)
    array._view[...] = value
    return array


def _on_views(function, whole=None):
    def run(*arguments, **options):
        options = {name: _unwrapped(value) for name, value in options.items()}
        return _wrapped(function(*map(_unwrapped, arguments), **options), whole)

    return run


def asarray(array, dtype=None):
    if isinstance(array, ndarray) and (dtype is None or array.dtype == dtype):
        return array
    return _wrapped(np.array(_unwrapped(array), dtype))


def asnumpy(array):
    return array.get() if isinstance(array, ndarray) else np.asarray(array)


def empty(shape, dtype=float):
    return ndarray(shape, dtype)


# ------------------------------------------------------------------------------------------------- streams and graphs
_streams = weakref.WeakValueDictionary()  # handle -> Stream
_handles = itertools.count(0x1000, 0x10)
_current = threading.local()


class Graph:
    """Work recorded from streams: functions, each with the numbers of those that it comes after."""

    def __init__(self):
        self.nodes, self.streams = [], []
        self._order = np.random.default_rng(0)

    def launch(self, stream=None):
        (stream or get_current_stream()).do(self._run)

    def _run(self):
        awaited = [set(needs) for _, needs in self.nodes]
        left = set(range(len(self.nodes)))
        while left:
            ready = sorted(number for number in left if not awaited[number] & left)
            number = ready[self._order.integers(len(ready))]
            self.nodes[number][0]()
            left.remove(number)


class Event:
    def __init__(self, *_, **__):
        self.graph, self.after = None, set()

    def record(self, stream=None):
        (stream or get_current_stream()).record(self)

    def synchronize(self):
        """All is done already."""


class Stream:
    null = None

    def __init__(self, null=False, non_blocking=False):
        self.ptr = 0 if null else next(_handles)
        _streams[self.ptr] = self
        self._graph, self._after, self._before = None, set(), []

    def __enter__(self):
        self._before.append(get_current_stream())
        _current.stream = self
        return self

    def __exit__(self, *_):
        _current.stream = self._before.pop()

    def is_capturing(self):
        return self._graph is not None

    def begin_capture(self):
        self._join(Graph(), set())

    def end_capture(self):
        graph = self._graph
        for stream in graph.streams:
            stream._graph, stream._after = None, set()
        return graph

    def _join(self, graph, after):
        if self._graph is None:
            self._graph, self._after = graph, set()
            graph.streams.append(self)
        elif self._graph is not graph:
            raise CUDARuntimeError("a stream waits for an event of another capture")
        self._after |= after

    def record(self, event):
        event.graph, event.after = self._graph, set(self._after)

    def wait_event(self, event):
        if event.graph is not None:
            self._join(event.graph, event.after)

    def synchronize(self):
        if self.is_capturing():
            raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported")

    def do(self, function):
        """Run the function, or note it where a graph is recorded."""
        if self._graph is None:
            function()
            return
        self._graph.nodes.append((function, set(self._after)))
        self._after = {len(self._graph.nodes) - 1}


Stream.null = Stream(null=True)


def get_current_stream():
    return getattr(_current, "stream", Stream.null)


def stream_of(handle):
    return _streams[int(handle)]


class Device:
    """The only one; as in CuPy also a context manager."""

    compute_capability = "90"
    attributes = ATTRIBUTES

    def __init__(self, ordinal=0):
        self.id = ordinal

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __int__(self):
        return self.id

    def synchronize(self):
        pass


def _memset(address, value, size, stream):
    target = device_memory.array(address, np.uint8, (size,))
    stream_of(stream).do(lambda: target.fill(value))


runtime = SimpleNamespace(
    getDevice=lambda: 0,
    getDeviceCount=lambda: 1,
    memGetInfo=lambda: (device_memory.size - device_memory.used, device_memory.size),
    getDeviceProperties=lambda _: {"name": b"emulated GPU", "major": 9, "minor": 0, "totalGlobalMem": 1 << 30},
    runtimeGetVersion=lambda: 13000,
    driverGetVersion=lambda: 13000,
    memsetAsync=_memset,
    CUDARuntimeError=CUDARuntimeError,
)
cuda = SimpleNamespace(
    Device=Device, Event=Event, Stream=Stream, alloc=alloc, alloc_pinned_memory=alloc_pinned_memory, runtime=runtime,
    MemoryHook=MemoryHook, MemoryPointer=MemoryPointer, UnownedMemory=UnownedMemory,
    get_current_stream=get_current_stream, get_elapsed_time=lambda begin, end: 0.0,  # no time passes here
    memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
)  # fmt: skip
__version__ = "14.0.0"


def __getattr__(name):
    """Everything else as NumPy has it."""
    if name.startswith("__"):
        raise AttributeError(name)
    value = getattr(np, name)
    return value if isinstance(value, type) or not callable(value) else _on_views(value)
