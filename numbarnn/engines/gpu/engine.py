"""The engines that run CUDA kernels: on a GPU, and in the simulator. They differ in where arrays live."""

import threading
from functools import partial

import numpy as np

from numbarnn.common.order import step_time
from numbarnn.common.precision import known_dtype
from numbarnn.cuda import gemm
from numbarnn.engines.base import Engine, HostEngine, as_code
from numbarnn.engines.gpu import foreign, profiles
from numbarnn.engines.gpu.buffer_pool import SHARE, BufferPool
from numbarnn.engines.gpu.graphs import Streams

_lock = threading.RLock()  # of what engines note about calls
RESULTS = 4  # of a kind of call that callers may keep without a copy: with more, recordings would not come round


class KernelEngine(Engine):
    """Steps made of `@cuda.jit` kernels and products; the base of `CudaEngine` and `SimulatedEngine`."""

    def __init__(self):
        self._told = self._make_told()  # what the calls' last kernels say: as they take it, and as a NumPy array
        self._callers = {}  # who calls, as text -> number

    def _make_told(self):
        word = np.zeros(1, np.int64)
        return word, word

    def spoil(self, results, trouble, caller):
        from numbarnn.kernels.trouble import CALLERS, spoil

        with _lock:
            number = self._callers.setdefault(caller, min(len(self._callers), CALLERS - 1))
        spoil(results, trouble, self._told[0], number)

    def require_no_trouble(self):
        if self._told[1][0]:
            self._raise_trouble()

    def _raise_trouble(self):
        from numbarnn.kernels.trouble import CALLER, explain

        with _lock:
            number, code = divmod(int(self._told[1][0]), CALLER)
            self._told[1][0] = 0  # said once
            callers = [text for text, known in self._callers.items() if known == number]
        if code:  # else another thread says it
            raise RuntimeError(explain(code, callers[0] if len(callers) == 1 else "one of many layers"))

    def note(self, seen, arrays, places, trouble):
        """Note the fingerprints of arrays in `seen`, as `kernels.arrays.fingerprint.note` has it."""
        from numbarnn.kernels.arrays import fingerprint

        fingerprint.note(seen, arrays, places, trouble)

    def compare(self, seen, arrays, places, trouble):
        """Say in the call's word `trouble` if the arrays are not what they were when `note` had the same arguments."""
        from numbarnn.kernels.arrays import fingerprint

        fingerprint.compare(seen, arrays, places, trouble)

    def mark_unwritten(self, array):
        """Set all bits of a contiguous array, as blocks that wait for its numbers expect."""
        array.view(np.uint8)[...] = 0xFF

    def copy(self, out, x):
        from numbarnn.kernels.arrays import copies

        if x.size:
            copies.copy(out, x)

    def dropout(self, out, x, mask, scale, position=0):
        from numbarnn.kernels.arrays import dropout

        dropout.dropout(out, x, mask, scale, position)

    def fill_step_mask(self, step_mask, lengths, resets):
        from numbarnn.kernels.arrays import masks

        masks.fill_step_mask(step_mask, lengths, resets)

    def select(self, out, x, step_mask, dropped, fill):
        from numbarnn.kernels.arrays import masks

        masks.select(out, x, step_mask, dropped, fill)

    def gather(self, out, x, index, fill):
        from numbarnn.kernels.arrays import masks

        if out.size:
            masks.gather(out, x, index, fill)

    def spread(self, out, x, gates):
        from numbarnn.kernels.arrays import repeat

        repeat.spread(out, x, gates)

    def sum_gates(self, out, x, gates, accumulate):
        from numbarnn.kernels.arrays import repeat

        repeat.sum_gates(out, x, gates, accumulate)

    def spread_blocks(self, out, x, gates):
        from numbarnn.kernels.arrays import blocks

        blocks.spread_blocks(out, x, gates)

    def multiply(self, out, a, b, **options):
        gemm.matmul(out, a, b, **options)

    def add_column_sums(self, out, x):
        from numbarnn.kernels.arrays import column_sums

        column_sums.add_column_sums(out, x)

    def forward_steps(self, buffers):
        from numbarnn.kernels.step import pointwise

        b = buffers
        steps, width = b.scratch.ax.shape[0], b.parameters.R.shape[1]
        h = b.states.h[:, :, b.direction * width :][:, :, :width]
        rows = b.cell.num_recurrent * (b.parameters.b_w.shape[0] // b.cell.num_gates)  # of R, that multiply h
        product = gemm.step_product(
            b.scratch.ah[:, :rows], h, b.parameters.R[:rows], transpose_b=True, allow_tf32=b.allow_tf32
        )
        stages = [_stage(b, stage) for stage in b.cell.product_stages]  # sums are made by what comes after
        per_unit = b.parameters.b_w if b.parameters.per_unit is None else b.parameters.per_unit
        output = b.states.h if b.states.m is None else b.states.m
        pointwise_step = pointwise.bind_forward(
            b.cell,
            output,
            b.states.c,
            b.scratch.ax,
            b.scratch.ah,
            b.parameters.b_w,
            b.parameters.b_r,
            per_unit,
            b.options.step_mask,
            b.direction,
            b.save,
            b.saved.sums,
            b.options.noise,
        )
        project = None if b.states.m is None else _projection(b, h)

        def run(first, last):
            for step in range(first, last):
                t, before = step_time(step, steps, b.direction, False)
                if rows:
                    product(before)
                for stage in stages:
                    stage(t, before)
                pointwise_step(t, before)
                if project is not None:
                    project(t, before)

        return run

    def backward_steps(self, buffers):
        from numbarnn.kernels.step import pointwise

        b = buffers
        steps, projected = b.gradients.dy.shape[0], b.states.m is not None
        H = b.gradients.dax.shape[2] // max(b.cell.num_saved, b.cell.num_gates)
        rows = b.cell.num_recurrent * H  # of R, that multiplied h
        product = gemm.step_product(
            b.gradients.dh,
            b.gradients.dah[:, :, :rows],
            b.parameters.R[:rows],
            accumulate=True,
            allow_tf32=b.allow_tf32,
        )
        stages = [_stage_backward(b, stage, H) for stage in reversed(b.cell.product_stages)]
        d_output, dy, output = (
            (b.scratch.dm, None, b.states.m) if projected else (b.gradients.dh, b.gradients.dy, b.states.h)
        )
        per_unit = b.parameters.R[:0].reshape(-1) if b.parameters.per_unit is None else b.parameters.per_unit
        pointwise_step = pointwise.bind_backward(
            b.cell,
            d_output,
            b.gradients.dc,
            b.gradients.dax,
            b.gradients.dah,
            b.gradients.d_per_unit,
            dy,
            output,
            b.states.c,
            per_unit,
            b.scratch.d_v,
            b.options.step_mask,
            b.direction,
            b.saved.sums,
            b.scratch.d_sums,
            b.options.noise,
        )
        project = _projection_backward(b) if projected else None

        def run(first, last):
            for step in range(first, last):
                t, before = step_time(step, steps, b.direction, True)
                if project is not None:
                    project(t, before)
                for stage in stages:
                    stage(t, before)
                pointwise_step(t, before)
                if rows:
                    product(t)

        return run


def _stage(buffers, number):
    """A function f(t, before): the vector of a cell's product, and its product with the stage's rows of R."""
    from numbarnn.kernels.step import stages

    b, H = buffers, buffers.parameters.b_w.shape[0] // buffers.cell.num_gates
    per_unit, output = (
        b.parameters.b_w if b.parameters.per_unit is None else b.parameters.per_unit,
        b.states.h if b.states.m is None else b.states.m,
    )
    make = stages.bind_forward(
        b.cell,
        number,
        b.saved.v,
        output,
        b.states.c,
        b.scratch.ax,
        b.scratch.ah,
        b.parameters.b_w,
        b.parameters.b_r,
        per_unit,
        b.options.step_mask,
        b.direction,
        b.save,
        b.saved.sums,
        b.options.noise,
    )
    rows, first = b.cell.rows_of_stage(number, H), b.cell.product_number(number) * H
    v = b.saved.v[:, :, first : first + H]
    product = gemm.step_product(
        b.scratch.ah[:, rows], v, b.parameters.R[rows], transpose_b=True, allow_tf32=b.allow_tf32
    )

    def run(t, before):
        make(t, before)
        product(t if b.save else 0)

    return run


def _stage_backward(buffers, number, H):
    """A function f(t, before): the gradients of a stage's gates, and that of its vector."""
    from numbarnn.kernels.step import stages

    b, rows, first = buffers, buffers.cell.rows_of_stage(number, H), buffers.cell.product_number(number) * H
    per_unit = b.parameters.R[:0].reshape(-1) if b.parameters.per_unit is None else b.parameters.per_unit
    d_output, dy, output = (
        (b.gradients.dh, b.gradients.dy, b.states.h) if b.states.m is None else (b.scratch.dm, None, b.states.m)
    )
    gates = stages.bind_backward(
        b.cell,
        number,
        b.gradients.dah,
        b.gradients.dax,
        d_output,
        b.gradients.dc,
        dy,
        output,
        b.states.c,
        per_unit,
        b.scratch.d_v,
        b.options.step_mask,
        b.direction,
        b.saved.sums,
        b.scratch.d_sums,
        b.options.noise,
    )
    product = gemm.step_product(
        b.scratch.d_v[:, first : first + H], b.gradients.dah[:, :, rows], b.parameters.R[rows], allow_tf32=b.allow_tf32
    )

    def run(t, before):
        gates(t, before)
        product(t)

    return run


def _projection(buffers, h):
    """A function f(t, before): h[t + 1] = m[t + 1] W_hrᵀ, or h[before] where the step is skipped.

    Args:
        h: (T + 2, B, P), the direction's columns.
    """
    from numbarnn.kernels.step import projection

    b, width = buffers, buffers.parameters.W_hr.shape[1]
    m = b.states.m[:, :, b.direction * width :][:, :, :width]
    product = gemm.step_product(h, m, b.parameters.W_hr, transpose_b=True, allow_tf32=b.allow_tf32)
    carry = None if b.options.step_mask is None else projection.bind_carry(h, b.options.step_mask)

    def run(t, before):
        product(t + 1)
        if carry is not None:
            carry(t, before)

    return run


def _projection_backward(buffers):
    """A function f(t, before): dht[t] = dy[t] + dh, dm = dht[t] W_hr."""
    from numbarnn.kernels.step import projection

    b, width = buffers, buffers.parameters.W_hr.shape[0]
    dy = b.gradients.dy[:, :, b.direction * width :][:, :, :width]
    join = projection.bind_join(b.gradients.dht, b.gradients.dh, dy, b.options.step_mask)
    product = gemm.step_product(b.scratch.dm, b.gradients.dht, b.parameters.W_hr, allow_tf32=b.allow_tf32)

    def run(t, before):
        join(t, before)
        product(t)

    return run


class _Rooms:
    """What `CudaEngine.rooms` returns: memory of the buffer pool, or a MemoryError that helps."""

    def __init__(self, allocate, rooms):
        self._allocate, self._rooms = allocate, rooms
        self.have, self.in_use = rooms.have, rooms.in_use

    def __call__(self, name, shape, dtype):
        return self._allocate(partial(self._rooms, name), shape, dtype)


def _copied(out, array):
    """`out` after a copy of a contiguous array, on the current stream."""
    out.data.copy_from_device_async(array.data, array.nbytes)
    return out


class SimulatedEngine(KernelEngine, HostEngine):
    """The same kernels as Python on NumPy arrays, all blocks at once, for tests and debuggers."""

    name = "sim"
    device = "simulator of the whole grid"
    profile = profiles.SIMULATOR

    def run_jobs(self, make_jobs, key, arrays):
        super().run_jobs(make_jobs, key, arrays)
        self.require_no_trouble()  # all is done already


class CudaEngine(KernelEngine):
    """An NVIDIA GPU: Numba compiles the kernels; CuPy owns memory, streams and cuBLAS."""

    name = "cuda"
    records_jobs = watches_in_jobs = True
    few_lines, work_per_line = 4096, 100_000

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
        self.profile = profiles.of_device(
            cupy.cuda.Device(ordinal).attributes, self.device, self._capability(properties)
        )

    @staticmethod
    def _capability(properties):
        return properties["major"], properties["minor"]

    def empty(self, shape, dtype):
        return self._allocate(self.array_module.empty, shape, dtype)

    def zeros(self, shape, dtype):
        return self._allocate(self.array_module.zeros, shape, dtype)

    def rooms(self, kind):
        return _Rooms(self._allocate, self.buffer_pool.rooms(kind))

    def settled(self, rooms, name, array, own=False):
        if not own and rooms.have(array):  # a result of a call of this kind, such as the state: it comes round as ours
            return array
        copy = rooms(name, array.shape, array.dtype)
        self.streams.follow()
        return _copied(copy, array)

    def handed_over(self, rooms, name, array):
        if rooms.in_use(name) <= RESULTS:
            return array
        return _copied(self.empty(array.shape, array.dtype), array)

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
                f"{self.device} (GPU {self.ordinal}) has no room for an array {shape} of {dtype}: take a smaller "
                f"batch or fewer steps, delete tapes and arrays no longer needed, or use device='cpu' ({error})"
            ) from error

    def asarray(self, value, name):
        cupy = self.array_module
        array = value if isinstance(value, cupy.ndarray) else foreign.shared(cupy, value, name)
        if array is None:
            raise TypeError(
                f"{name} must live on the GPU, as this layer does (device='cuda'), but is a "
                f"{type(value).__module__}.{type(value).__qualname__}; copy it with cupy.asarray({as_code(name)})"
            )
        if array.data.device_id != self.ordinal:
            raise ValueError(f"{name} is on GPU {array.device.id}, this layer on GPU {self.ordinal}")
        return array

    def from_host(self, array):
        return self.array_module.asarray(array)

    def _arrived(self):
        stream = self.array_module.cuda.get_current_stream()
        if not (stream.ptr and stream.is_capturing()):
            stream.synchronize()

    def from_host_into(self, rooms, name, array):
        copy = rooms(name, array.shape, array.dtype)
        self.streams.follow()
        copy.set(array, self.array_module.cuda.get_current_stream())
        return copy

    def to_host(self, array):
        host = self.array_module.asnumpy(array)  # waits for all that came before
        self.require_no_trouble()
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
        # Memory of the host that kernels write to, so that reading it waits for nothing.
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

    def synchronize(self):
        self.array_module.cuda.get_current_stream().synchronize()
        self.require_no_trouble()

    def check(self):
        self.array_module.cuda.Device(self.ordinal).synchronize()
        self.require_no_trouble()
