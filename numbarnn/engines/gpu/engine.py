"""The engines that run CUDA kernels, on a GPU or in the simulator. They differ in where arrays are."""

import threading
from functools import partial

import numpy as np

from numbarnn.common.precision import known_dtype
from numbarnn.cuda import gemm
from numbarnn.cuda.backend import using
from numbarnn.engines.base import Engine, HostEngine, as_code
from numbarnn.engines.gpu import foreign, profiles, steps
from numbarnn.engines.gpu.buffer_pool import SHARE, BufferPool
from numbarnn.engines.gpu.graphs import Streams
from numbarnn.kernels.arrays import column_sums, copies, dropout, masks
from numbarnn.kernels.error_flag import CALLER, CALLERS, explain

_lock = threading.RLock()  # for the engines' notes about calls
RESULTS = 4  # results of a kind of call that callers may keep without a copy; with more, no graph would be replayed


class KernelEngine(Engine):
    """Steps made of `@cuda.jit` kernels and products; the base of `CudaEngine` and `SimulatedEngine`."""

    def __init__(self):
        self._told = self._make_told()  # error codes of failed calls: the array for kernels, and as a NumPy array
        self._callers = {}  # caller as text -> number

    def _make_told(self):
        word = np.zeros(1, np.int64)
        return word, word

    def notice_of(self, caller):
        """Return (host memory for the error codes of failed calls, what to add to a code for this caller)."""
        with _lock:
            number = self._callers.setdefault(caller, min(len(self._callers), CALLERS - 1))
        return self._told[0], number * CALLER

    def launch_words(self):
        """Return two (1,) int64 arrays that are zero between calls: an error flag, and the number of blocks that left a
        launch."""
        return np.zeros(1, np.int64), np.zeros(1, np.int64)

    def raise_if_failed(self):
        if self._told[1][0]:
            self._raise_failure()

    def _raise_failure(self):
        with _lock:
            number, code = divmod(int(self._told[1][0]), CALLER)
            self._told[1][0] = 0  # report it once
            callers = [text for text, known in self._callers.items() if known == number]
        if code:  # else another thread reports it
            raise RuntimeError(explain(code, callers[0] if len(callers) == 1 else "one of many layers"))

    def mark_unwritten(self, array):
        """Set all bits of a contiguous array, by which waiting blocks know missing numbers."""
        array.view(np.uint8)[...] = 0xFF

    copy = staticmethod(copies.copy)
    dropout = staticmethod(dropout.dropout)
    fill_step_mask = staticmethod(masks.fill_step_mask)
    select = staticmethod(masks.select)
    gather = staticmethod(masks.gather)
    spread = staticmethod(copies.spread)
    sum_gates = staticmethod(copies.sum_gates)
    spread_blocks = staticmethod(copies.spread_blocks)
    add_column_sums = staticmethod(column_sums.add_column_sums)
    forward_steps = staticmethod(steps.forward_steps)
    backward_steps = staticmethod(steps.backward_steps)

    def multiply(self, out, a, b, **options):
        gemm.matmul(out, a, b, **options)

    def launch(self, launch_arrays):
        from numbarnn.engines.gpu import launches  # imports the persistent kernels

        return launches.bind(self, launch_arrays)


class _Allocator:
    """Allocates memory of the buffer pool, or raises a MemoryError with a cure."""

    def __init__(self, allocate, buffers):
        self._allocate, self._buffers = allocate, buffers
        self.have, self.in_use = buffers.have, buffers.in_use

    def __call__(self, name, shape, dtype):
        return self._allocate(partial(self._buffers, name), shape, dtype)


class SimulatedEngine(KernelEngine, HostEngine):
    """Runs the kernels as Python on NumPy arrays, all blocks at once, for tests and debuggers."""

    name = "sim"
    device = "simulator of the whole grid"
    profile = profiles.SIMULATOR

    def activate(self):
        return using("python")


def _in_simulator(name):
    """Make a method of `SimulatedEngine` whose kernels are made for the simulator, whoever calls it."""

    def method(self, *operands, **options):
        with using("python"):
            return getattr(super(SimulatedEngine, self), name)(*operands, **options)

    return method


for _name in (
    "copy", "dropout", "fill_step_mask", "select", "gather", "spread", "sum_gates", "spread_blocks", "add_column_sums",
    "forward_steps", "backward_steps", "multiply", "launch",
):  # fmt: skip
    setattr(SimulatedEngine, _name, _in_simulator(_name))


class CudaEngine(KernelEngine):
    """An NVIDIA GPU: Numba compiles the kernels; CuPy owns memory, streams and cuBLAS."""

    name = "cuda"
    records_jobs = True
    _launch_words = None

    def __init__(self, ordinal=0):
        import cupy

        self.array_module = cupy
        self.ordinal = ordinal
        with self.activate():
            self.streams = Streams(cupy, ordinal)
            self.buffer_pool = BufferPool(
                cupy, ordinal, cupy.cuda.runtime.memGetInfo()[1] // SHARE, self.streams.release
            )
            super().__init__()
        properties = cupy.cuda.runtime.getDeviceProperties(ordinal)
        self.device = properties["name"].decode()
        capability = properties["major"], properties["minor"]
        self.profile = profiles.of_device(cupy.cuda.Device(ordinal).attributes, self.device, capability)
        driver = cupy.cuda.runtime.driverGetVersion()
        self.identity = f"{self.device}, compute capability {capability[0]}.{capability[1]}, CUDA driver {driver}"

    def empty(self, shape, dtype):
        return self._allocate(self.array_module.empty, shape, dtype)

    def zeros(self, shape, dtype):
        return self._allocate(self.array_module.zeros, shape, dtype)

    def allocate(self, weights, *kind):
        return _Allocator(self._allocate, self.buffer_pool.of_call((self.address(weights), *kind)))

    def follow(self):
        self.streams.follow()

    def settled(self, allocate, name, array, own=False):
        if not own and allocate.have(array):  # a result of such a call, such as the state: its address repeats
            return array
        copy = allocate(name, array.shape, array.dtype)
        self.streams.follow()
        copy.data.copy_from_device_async(array.data, array.nbytes)
        return copy

    def handed_over(self, allocate, name, array):
        if allocate.in_use(name) <= RESULTS:
            return array
        copy = self.empty(array.shape, array.dtype)
        copy.data.copy_from_device_async(array.data, array.nbytes)
        return copy

    def _allocate(self, make, shape, dtype):
        out_of_memory = self.array_module.cuda.memory.OutOfMemoryError
        try:
            return make(shape, known_dtype(dtype))
        except out_of_memory:
            self.buffer_pool.clear()
        try:
            return make(shape, known_dtype(dtype))
        except out_of_memory as error:
            raise MemoryError(
                f"{self.device} (GPU {self.ordinal}) has no memory for an array {shape} of {dtype}: use a smaller "
                f"batch or fewer steps, delete tapes and arrays no longer needed, or use device='cpu' ({error})"
            ) from error

    def asarray(self, value, name):
        cupy = self.array_module
        array = value if isinstance(value, cupy.ndarray) else foreign.shared(cupy, value, name)
        if array is None:
            raise TypeError(
                f"{name} must be on the GPU, like this layer (device='cuda'), got a "
                f"{type(value).__module__}.{type(value).__qualname__}; copy it with cupy.asarray({as_code(name)})"
            )
        if array.data.device_id != self.ordinal:
            raise ValueError(f"{name} is on GPU {array.device.id}, this layer on GPU {self.ordinal}")
        return array

    def array_at(self, view, array):
        return self.array_module.ndarray(view.shape, view.dtype, array.data + view.offset, view.strides)

    def from_host(self, array):
        return self.array_module.asarray(array)

    def _arrived(self):
        stream = self.array_module.cuda.get_current_stream()
        if not (stream.ptr and stream.is_capturing()):
            stream.synchronize()

    def from_host_into(self, allocate, name, array):
        copy = allocate(name, array.shape, array.dtype)
        self.streams.follow()
        copy.set(array, self.array_module.cuda.get_current_stream())
        return copy

    def to_host(self, array):
        host = self.array_module.asnumpy(array)  # waits for all earlier work
        self.raise_if_failed()
        return host

    def address(self, array):
        return array.data.ptr

    def activate(self):
        return self.array_module.cuda.Device(self.ordinal)

    def require_no_capture(self):
        self.streams.require_no_capture()

    def run_jobs(self, make_jobs, key, arrays):
        self.streams.run_jobs(make_jobs, key, tuple([array.data.ptr for array in arrays]))

    def _make_told(self):
        # Kernels write to this host memory, so that the host reads it without waiting.
        cuda, size = self.array_module.cuda, np.dtype(np.int64).itemsize
        memory = cuda.alloc_pinned_memory(size)
        pointer = cuda.MemoryPointer(cuda.UnownedMemory(memory.ptr, size, memory, self.ordinal), 0)
        word = np.frombuffer(memory, np.int64, 1)
        word[0] = 0
        return self.array_module.ndarray((1,), np.int64, pointer), word

    def mark_unwritten(self, array):
        self._set_bytes(array, 0xFF)

    def zero(self, out):
        self._set_bytes(out, 0)

    def _set_bytes(self, array, value):
        cuda = self.array_module.cuda
        cuda.runtime.memsetAsync(array.data.ptr, value, array.nbytes, cuda.get_current_stream().ptr)

    def launch_words(self):
        with _lock:  # calls run one after another, so they share one pair
            if self._launch_words is None:
                words = self.from_host(np.zeros((2, 1), np.int64))
                self._arrived()
                self._launch_words = words[0], words[1]
        return self._launch_words

    def synchronize(self):
        self.array_module.cuda.get_current_stream().synchronize()
        self.raise_if_failed()

    def give_back_memory(self):
        self.buffer_pool.clear()

    def check(self):
        self.array_module.cuda.Device(self.ordinal).synchronize()
        self.raise_if_failed()
