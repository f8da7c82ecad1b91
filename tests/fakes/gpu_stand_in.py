"""A CUDA engine without a GPU: nothing is computed, but what would be asked of the driver is counted."""

import sys
import threading
from collections import Counter
from types import SimpleNamespace

import numpy as np

import numbarnn
from numbarnn import engines
from numbarnn.cuda import gemm, launch
from numbarnn.engines.gpu import engine as device
from numbarnn.engines.gpu import profiles

T, B, H = 6, 4, 32


class OutOfMemoryError(Exception):
    pass


class Memory:
    """A piece of GPU memory; `owner` is kept as long as it is used."""

    def __init__(self, ptr, size, owner, device_id):
        self.ptr, self.size, self.owner = ptr, size, owner


class Pointer:
    device_id = 0

    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset

    def __add__(self, offset):
        return Pointer(self.mem, self.ptr - self.mem.ptr + offset)

    def copy_from_device_async(self, source, size):
        Array.counts["copy"] += 1


class Array(np.ndarray):
    """What CuPy's arrays are asked for here; views know their addresses."""

    counts = None  # set by `make_engine`

    def __new__(cls, shape, dtype, pointer, strides=None):
        array = np.zeros(shape, dtype).view(cls)
        array.pointer, array.start = pointer, array.__array_interface__["data"][0]
        return array

    def __array_finalize__(self, parent):
        self.pointer, self.start = getattr(parent, "pointer", None), getattr(parent, "start", None)

    device = property(lambda self: Device(self.data.device_id))

    @property
    def data(self):
        return type(self.pointer)(self.pointer.mem, self.__array_interface__["data"][0] - self.start)

    def set(self, array, stream):
        self.counts["copy from host"] += 1


class Pool:
    """Gives every allocation an address of its own: what calls find again, they kept."""

    def __init__(self, counts):
        self.counts, self.top, self.room = counts, 1 << 40, None

    def alloc(self, size):
        if self.room is not None and size > self.room:
            raise OutOfMemoryError
        self.counts["alloc"] += 1
        start, self.top = self.top, self.top + size + -size % 512 + 512
        return Pointer(Memory(start, size, self, 0), 0)


def stream_class(counts):
    """(a class of streams that count what they are given, the function that tells the thread's current one)."""

    class Stream:
        current = threading.local()  # .stream, within a `with`
        capturing = False

        def __init__(self, non_blocking=True):
            self.ptr = id(self)

        def __enter__(self):
            self.before = get_current_stream()
            Stream.current.stream = self
            return self

        def __exit__(self, *_):
            Stream.current.stream = self.before

        def is_capturing(self):
            return self.capturing

        def synchronize(self):
            counts["synchronize"] += 1

        def record(self, event):
            counts["record"] += 1

        def wait_event(self, event):
            counts["wait"] += 1

        def begin_capture(self):
            counts["capture"] += 1

        def end_capture(self):
            return SimpleNamespace(launch=lambda stream: counts.update(["graph"]))

    def get_current_stream():
        return getattr(Stream.current, "stream", default)

    default = Stream()
    return Stream, get_current_stream


class Device:
    """Context manager, as CuPy's."""

    attributes = None

    def __init__(self, ordinal):
        self.id = ordinal

    def synchronize(self):
        Array.counts["synchronize"] += 1

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def make_engine(monkeypatch):
    """(engine, counts of its driver calls by name, its stand-in for CuPy); layers made with device="cuda" run on it."""
    counts = Array.counts = Counter()
    pool, (Stream, get_current_stream) = Pool(counts), stream_class(counts)

    def empty(shape, dtype):
        dtype = np.dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        memory = pool.alloc(size)
        return Array(shape, dtype, Pointer(Memory(memory.ptr, size, pool, 0), 0))

    def asarray(array):
        counts["copy from host"] += 1
        return empty(array.shape, array.dtype)

    runtime = SimpleNamespace(
        getDevice=lambda: 0,
        memGetInfo=lambda: (1 << 30, 1 << 30),
        memsetAsync=lambda *_: counts.update(["memset"]),
        getDeviceProperties=lambda _: {"name": b"stand-in", "major": 9, "minor": 0},
        driverGetVersion=lambda: 13000,
    )
    cuda = SimpleNamespace(
        Stream=Stream, Event=lambda disable_timing: None, Device=Device, runtime=runtime, alloc=pool.alloc,
        get_current_stream=get_current_stream, MemoryPointer=Pointer, UnownedMemory=Memory,
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    )  # fmt: skip
    cupy = SimpleNamespace(
        cuda=cuda, ndarray=Array, empty=empty, zeros=empty, asarray=asarray, pool=pool, __version__="14.0.0"
    )

    def counted(name):
        return lambda *_, **__: lambda *_: counts.update([name])

    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(profiles, "of_device", lambda *_: profiles.PROFILES["h200"])
    monkeypatch.setattr(launch.Kernel, "bind", counted("kernel"))
    monkeypatch.setattr(gemm, "step_product", counted("product"))
    monkeypatch.setattr(gemm, "matmul", lambda *_, **__: counts.update(["product"]))
    monkeypatch.setattr(device.CudaEngine, "_make_told", lambda _: (np.zeros(1, np.int64), np.zeros(1, np.int64)))
    engine, get = device.CudaEngine(), engines.get
    monkeypatch.setattr(engines, "get", lambda name: engine if name == "cuda" else get(name))
    return engine, counts, cupy


def layer_and_input(cupy, cell="LSTM", schedule="persistent", dtype="float32", **options):
    """A layer on the stand-in, x, and something of y's shape."""
    layer = getattr(numbarnn, cell)(H, H, device="cuda", schedule=schedule, dtype=dtype, seed=0, **options)
    sizes = (B, T) if layer.batch_first else (T, B)
    return layer, cupy.empty((*sizes, H), dtype), cupy.empty((*sizes, H * (1 + layer.bidirectional)), dtype)


def steady(counts, call, warm_up=4):
    """What one call asks for when the same was called before; the results of a call live on through the next one."""
    kept = []
    for _ in range(warm_up):
        kept = call()
    counts.clear()
    kept = call()
    del kept
    return dict(counts)


def memory_of(value):
    """Where the memory of each array begins, in arguments that may hold some."""
    if isinstance(value, Array):
        yield from [value.pointer.mem.ptr] if value.size else []
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from memory_of(item)


def calls_name_their_memory(monkeypatch, engine):
    """A list that gets, for each call, whether its key names all memory that its kernels, products and zeros are given:
    what it does not name a replay would read where it was at first."""
    used, run_jobs, named = set(), engine.run_jobs, []

    def told(make_jobs, key, arrays):
        used.clear()
        run_jobs(make_jobs, (key, len(named)), arrays)  # seen for the first time: bound and run
        known = {array.pointer.mem.ptr for array in (*arrays, *engine._constants.values())}
        named.append(bool(used) and used <= known)

    def spied(original):
        return lambda *given, **options: (used.update(memory_of(given)), original(*given, **options))[1]

    monkeypatch.setattr(engine, "run_jobs", told)
    for owner, name in (
        (launch.Kernel, "bind"), (gemm, "matmul"), (gemm, "step_product"), (device.CudaEngine, "_set_bytes")
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, spied(getattr(owner, name)))
    return named
