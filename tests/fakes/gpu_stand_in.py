"""A CUDA engine without a GPU: nothing is computed, but what would be asked of the driver is counted.

Arrays, streams and graphs are the emulated GPU's; kernels and products are stand-ins.
"""

import sys
from collections import Counter

import numpy as np

import numbarnn
from emulator import cupy_module
from emulator.memory import Memory
from numbarnn import engines
from numbarnn.cuda import gemm, launch
from numbarnn.engines.gpu import engine as device
from numbarnn.engines.gpu import profiles

T, B, H = 6, 4, 32
Array, Pointer, UnownedMemory = cupy_module.ndarray, cupy_module.MemoryPointer, cupy_module.UnownedMemory
COUNTED = {  # what is counted -> methods of the stand-in for CuPy; those that change nothing here only count
    "synchronize": [(cupy_module.Stream, "synchronize"), (cupy_module.Device, "synchronize")],
    "record": [(cupy_module.Stream, "record")], "wait": [(cupy_module.Stream, "wait_event")],
    "capture": [(cupy_module.Stream, "begin_capture")], "graph": [(cupy_module.Graph, "launch")],
    "copy from host": [(cupy_module.ndarray, "set"), (cupy_module, "asarray")],
    "copy": [(cupy_module.MemoryPointer, "copy_from_device_async")], "memset": [(cupy_module.runtime, "memsetAsync")],
}  # fmt: skip


class Pool(Memory):
    """Gives every allocation an address of its own: what calls find again, they kept. room: bytes of the largest."""

    room = None

    def allocate(self, size):
        if self.room is not None and size > self.room:
            raise MemoryError(size)
        return super().allocate(size)

    def free(self, address, size):
        """Addresses are not given twice."""


def make_engine(monkeypatch):
    """(engine, counts of its driver calls by name, its stand-in for CuPy); layers made with device="cuda" run on it."""
    counts, pool = Counter(), Pool(1 << 24)

    def counting(name, function):
        return lambda *given, **options: (counts.update([name]), function(*given, **options))[1]

    def counted(name):
        return lambda *_, **__: lambda *_: counts.update([name])

    for name, methods in COUNTED.items():
        for owner, method in methods:
            monkeypatch.setattr(owner, method, counting(name, getattr(owner, method)))
    alloc = counting("alloc", cupy_module.alloc)
    for owner, name, value in (
        (cupy_module, "device_memory", pool), (cupy_module, "alloc", alloc), (cupy_module.cuda, "alloc", alloc),
        (profiles, "of_device", lambda *_: profiles.PROFILES["h200"]), (launch.Kernel, "bind", counted("kernel")),
        (gemm, "step_product", counted("product")), (gemm, "matmul", lambda *_, **__: counts.update(["product"])),
        (device.CudaEngine, "_make_told", lambda _: (np.zeros(1, np.int64), np.zeros(1, np.int64))),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, value)
    monkeypatch.setitem(sys.modules, "cupy", cupy_module)
    engine, get = device.CudaEngine(), engines.get
    monkeypatch.setattr(engines, "get", lambda name: engine if name == "cuda" else get(name))
    return engine, counts, cupy_module


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
        yield from [value.data.mem.ptr] if value.size else []
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
        known = {array.data.mem.ptr for array in (*arrays, *engine._constants.values())}
        named.append(bool(used) and used <= known)

    def spied(original):
        return lambda *given, **options: (used.update(memory_of(given)), original(*given, **options))[1]

    monkeypatch.setattr(engine, "run_jobs", told)
    for owner, name in (
        (launch.Kernel, "bind"), (gemm, "matmul"), (gemm, "step_product"), (device.CudaEngine, "_set_bytes")
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, spied(getattr(owner, name)))
    return named
