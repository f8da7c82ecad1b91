"""Launching compiled kernels with little overhead.

    add = Kernel(add_kernel)  # a @cuda.jit kernel: add_kernel(out, a, factor, t)
    step = add.bind(LaunchConfig(grid=64, block=256), out, a, np.float32(2))
    step(0)  # launches it with t = 0 on CuPy's current stream
    step(1)

Binding does once what Numba's dispatcher does at every launch: types, compiling, loading, packing the
arguments. A call then writes its integers into the packed block and calls the driver: about a microsecond of
host time.

Kernels that were made for the backend "python" run on NumPy arrays, in `simulator`.
"""

import struct
from array import array
from dataclasses import dataclass
from math import prod

import numpy as np

from numbarnn.cuda import driver
from numbarnn.cuda.arguments import INT, Arguments, numba_types
from numbarnn.cuda.backend import backend
from numbarnn.cuda.compiler import compile_kernel
from numbarnn.cuda.language import PythonKernel, as_python

_MAX_BLOCK = 1024  # threads, on every device so far


@dataclass(frozen=True)
class LaunchConfig:
    """Sizes of a launch.

    Attributes:
        grid: number of blocks: an int, or a tuple of 1 to 3 (x, y, z); kept as a tuple of 3.
        block: threads per block, an int or a tuple as `grid`; at most 1024 in all.
        shared_bytes: dynamic shared memory per block.
        cooperative: all blocks are resident at once, so that they may wait for each other.
    """

    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    shared_bytes: int = 0
    cooperative: bool = False

    def __post_init__(self):
        for name in ("grid", "block"):
            object.__setattr__(self, name, _three_sizes(name, getattr(self, name)))
        if prod(self.block) > _MAX_BLOCK:
            raise ValueError(f"block must have at most {_MAX_BLOCK} threads, got {self.block}")
        if self.shared_bytes < 0:
            raise ValueError(f"shared_bytes must not be negative, got {self.shared_bytes}")


def _three_sizes(name, sizes):
    """An int or up to three ints as a tuple of three, the missing ones 1."""
    given = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
    positive = all(isinstance(size, (int, np.integer)) and size > 0 for size in given)
    if not positive or not 1 <= len(given) <= 3:
        raise ValueError(f"{name} must be 1 to 3 positive ints, got {sizes!r}")
    return (*map(int, given), *(1,) * (3 - len(given)))


class Kernel:
    """A `@cuda.jit` kernel that is launched through `bind`.

    Args:
        dispatcher: the decorated kernel. Its last parameters may be int32 scalars that change between
            launches.
        name: what messages call it; its Python name if None.
        source_key: anything else that distinguishes it from kernels of the same source, for the cache on
            disk.
    """

    def __init__(self, dispatcher, name=None, source_key=""):
        self.dispatcher = dispatcher
        self.name = name or dispatcher.py_func.__name__
        self.source_key = source_key
        if backend() == "python":
            self.dispatcher = PythonKernel(as_python(dispatcher))
        self._num_parameters = dispatcher.py_func.__code__.co_argcount
        self._functions = {}  # (signature, device) -> driver.Function

    def __repr__(self):
        return f"Kernel({self.name})"

    def bind(self, config, *arguments):
        """Prepare launches with these arguments.

        Args:
            config: LaunchConfig.
            arguments: for the kernel's first parameters, in order: CuPy arrays, NumPy scalars such as
                np.float32(0.5), tuples of these, or NamedTuples of these and None; in the simulator NumPy arrays.
                Other arrays with `__cuda_array_interface__` do as well, if the caller orders their work before the
                launches. Arrays are kept alive and their contents may change between launches; their places in
                memory, and scalars, are fixed here.

        Returns:
            A function of the kernel's remaining parameters (ints), which launches it on the stream that is
            CuPy's current one when called. Not to be called by two threads at once. Binding compiles and
            loads, so bind before the capture of a CUDA graph.
        """
        num_ints = self._num_ints(len(arguments))
        if isinstance(self.dispatcher, PythonKernel):
            return _bind_simulated(self, config, arguments, num_ints)
        packed = Arguments(self.name, arguments)
        return BoundKernel(self.name, config, self._load(packed, num_ints), packed, num_ints)

    def compile(self, cc, *arguments):
        """The CompiledKernel for arguments like these (NumPy arrays will do) and the remaining ints.

        Args:
            cc: compute capability, such as (9, 0); needs no GPU.
            arguments: as for `bind`.
        """
        return self._compile(Arguments(self.name, arguments), self._num_ints(len(arguments)), cc)

    def _num_ints(self, num_arguments):
        """How many of the kernel's parameters are left for the launches."""
        if num_arguments > self._num_parameters:
            raise TypeError(f"kernel {self.name} has {self._num_parameters} parameters, got {num_arguments} arguments")
        return self._num_parameters - num_arguments

    def _compile(self, packed, num_ints, cc):
        types = numba_types((*packed.signature, *["int32"] * num_ints))
        compiled = compile_kernel(self.dispatcher, types, cc, source_key=self.source_key)
        packed.require_layout(compiled, num_ints)
        return compiled

    def _load(self, packed, num_ints):
        """The kernel for these arguments on CuPy's current device, as a driver.Function."""
        device = driver.current_device()
        packed.require_on(device)
        driver.activate(device)
        key = (packed.signature, device)
        if key not in self._functions:
            compiled = self._compile(packed, num_ints, driver.compute_capability(device))
            self._functions[key] = driver.load(compiled, device)
        return self._functions[key]


class BoundKernel:
    """A bound kernel on a GPU: call it with the kernel's remaining ints to launch.

    Attributes:
        name: of the kernel, for messages.
        config: the LaunchConfig.
        function: the loaded kernel, a driver.Function; `function.compiled` tells its registers and shared
            memory.
    """

    def __init__(self, name, config, function, packed, num_ints):
        self.name, self.config, self.function = name, config, function
        function.allow_shared_memory(config.shared_bytes)
        self._kept_alive = packed.arguments
        self._num_ints = num_ints
        self._pack_ints = struct.Struct("=" + INT * num_ints).pack_into
        self._first_int = 8 * len(packed.values)  # where the ints begin, in bytes
        # The driver takes an array of pointers, one to each parameter; both arrays keep their addresses from
        # here on.
        num_slots = len(packed.values) + num_ints
        self._slots = array("Q", bytes(8 * num_slots))
        packed.pack_into(self._slots)
        first = self._slots.buffer_info()[0]
        self._pointers = array("Q", range(first, first + 8 * num_slots, 8))
        self._sizes = (function.handle, *config.grid, *config.block, config.shared_bytes)
        parameters = self._pointers.buffer_info()[0] if num_slots else 0
        bindings = driver.bindings()
        if config.cooperative:
            self._launch, self._parameters = bindings.cuLaunchCooperativeKernel, (parameters,)
        else:
            self._launch, self._parameters = bindings.cuLaunchKernel, (parameters, 0)  # 0: no further options
        self._current_stream = driver.current_stream_source()

    def __call__(self, *ints):
        try:
            self._pack_ints(self._slots, self._first_int, *ints)
        except struct.error as error:
            wanted = f"{self._num_ints} more int32 at a launch"
            raise TypeError(f"kernel {self.name} takes {wanted}, got {ints!r}") from error
        stream = self._current_stream().ptr
        status = self._launch(*self._sizes, stream, *self._parameters)[0]
        if status:
            self._recover(status, stream)

    def resident_blocks(self):
        """The largest grid, in blocks, of a cooperative launch of this kernel with this block."""
        return self.function.resident_blocks(prod(self.config.block), self.config.shared_bytes)

    def _recover(self, status, stream):
        """After a failed launch: try again if this thread had no context yet, else raise RuntimeError."""
        error = getattr(status, "name", "")
        if error == "CUDA_ERROR_INVALID_CONTEXT":
            driver.activate(self.function.device)
            status = self._launch(*self._sizes, stream, *self._parameters)[0]
            if not status:
                return
        config, compiled = self.config, self.function.compiled
        launched = (
            f"grid {config.grid}, block {config.block}, {config.shared_bytes} bytes of dynamic and "
            f"{compiled.shared_bytes} of static shared memory, {compiled.registers} registers per thread"
        )
        if error == "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE":
            launched += f"; {self.resident_blocks()} such blocks fit"
        raise RuntimeError(
            f"launching kernel {self.name} on device {self.function.device} failed ({launched}): "
            f"{driver.explain(status)}"
        )


def _bind_simulated(kernel, config, arguments, num_ints):
    """`Kernel.bind` in the simulator: NumPy arrays, written in place."""
    from numbarnn.cuda import simulator

    Arguments(kernel.name, arguments)  # rejects what a GPU would not take either
    function = as_python(kernel.dispatcher)

    def launch(*ints):
        if len(ints) != num_ints:
            raise TypeError(f"kernel {kernel.name} takes {num_ints} more int32 at a launch, got {ints!r}")
        values = (*arguments, *map(np.int32, ints))
        simulator.launch(function, config, values)

    return launch
