"""Launch compiled kernels with little overhead.

    add = Kernel(add_kernel)  # a @cuda.jit kernel: add_kernel(out, a, factor, t)
    step = add.bind(LaunchConfig(grid=64, block=256), out, a, np.float32(2))
    step(0)  # launches it with t = 0 on CuPy's current stream
    step(1)

`bind` does once what Numba's dispatcher does at each launch: it types and packs the arguments, compiles and loads. A
call then only writes its integers into the packed arguments and calls the driver, which takes about 1 us of host time.

Kernels made for the backend "python" run on NumPy arrays in `simulator`.
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
        grid: number of blocks, an int or a tuple of 1 to 3 (x, y, z); stored as a tuple of 3.
        block: threads per block, an int or tuple as for `grid`; at most 1024 in all.
        shared_bytes: dynamic shared memory per block.
        cooperative: keep all blocks resident at once, so that they may wait for each other.
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
    given = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
    positive = all(isinstance(size, (int, np.integer)) and size > 0 for size in given)
    if not positive or not 1 <= len(given) <= 3:
        raise ValueError(f"{name} must be 1 to 3 positive ints, got {sizes!r}")
    return (*map(int, given), *(1,) * (3 - len(given)))


class Kernel:
    """A `@cuda.jit` kernel that is launched through `bind`.

    Args:
        dispatcher: the decorated kernel. Its last parameters may be int32 scalars that change between launches.
        name: name in messages, by default the Python name.
        source_key: text that tells it from kernels of the same source in the cache on disk.
    """

    def __init__(self, dispatcher, name=None, source_key=""):
        self.dispatcher = PythonKernel(as_python(dispatcher)) if backend() == "python" else dispatcher
        self.name = name or dispatcher.py_func.__name__
        self.source_key = source_key
        self._num_parameters = dispatcher.py_func.__code__.co_argcount
        self._functions = {}  # (signature, device) -> driver.Function

    def __repr__(self):
        return f"Kernel({self.name})"

    def bind(self, config, *arguments):
        """Prepare launches of the kernel with these arguments.

        Args:
            config: LaunchConfig.
            arguments: for the kernel's first parameters: CuPy arrays, NumPy scalars such as np.float32(0.5), tuples of
                these, or NamedTuples of these and None. In the simulator, NumPy arrays. Other arrays with
                `__cuda_array_interface__` do if the caller synchronizes their streams. Arrays are kept alive. Their
                contents may change between launches, but not their addresses, nor the scalars.

        Returns:
            A function that takes the kernel's remaining parameters (ints) and launches it on CuPy's current stream. Two
            threads must not call it at once. Bind before a CUDA graph is captured, since binding compiles and loads.
        """
        num_ints = self._num_ints(len(arguments))
        packed = Arguments(self.name, arguments)
        if isinstance(self.dispatcher, PythonKernel):
            return self._bind_simulated(config, arguments, num_ints)
        return BoundKernel(self.name, config, self._load(packed, num_ints), packed, num_ints)

    def compile(self, cc, *arguments):
        """Return the CompiledKernel for arguments like these and the remaining ints; needs no GPU.

        Args:
            cc: compute capability, such as (9, 0).
            arguments: as for `bind`, or NumPy arrays in their place.
        """
        return self._compile(Arguments(self.name, arguments), self._num_ints(len(arguments)), cc)

    def _num_ints(self, num_arguments):
        if num_arguments > self._num_parameters:
            raise TypeError(f"kernel {self.name} has {self._num_parameters} parameters, got {num_arguments} arguments")
        return self._num_parameters - num_arguments

    def _compile(self, packed, num_ints, cc):
        types = numba_types((*packed.signature, *["int32"] * num_ints))
        compiled = compile_kernel(self.dispatcher, types, cc, source_key=self.source_key)
        packed.require_layout(compiled, num_ints)
        return compiled

    def _load(self, packed, num_ints):
        """Return the driver.Function for these arguments on CuPy's current device."""
        device = driver.current_device()
        packed.require_on(device)
        driver.activate(device)
        key = (packed.signature, device)
        if key not in self._functions:
            compiled = self._compile(packed, num_ints, driver.compute_capability(device))
            self._functions[key] = driver.load(compiled, device)
        return self._functions[key]

    def _bind_simulated(self, config, arguments, num_ints):
        from numbarnn.cuda import simulator

        def launch(*ints):
            if len(ints) != num_ints:
                raise TypeError(f"kernel {self.name} takes {num_ints} more int32 at a launch, got {ints!r}")
            simulator.launch(self.dispatcher.py_func, config, (*arguments, *map(np.int32, ints)))

        return launch


class BoundKernel:
    """A kernel bound to arguments on a GPU. Call it with the kernel's remaining ints to launch it.

    Attributes:
        name: the kernel's name, for messages.
        config: the LaunchConfig.
        function: the driver.Function; `function.compiled` has its registers and shared memory.
    """

    def __init__(self, name, config, function, packed, num_ints):
        self.name, self.config, self.function = name, config, function
        function.allow_shared_memory(config.shared_bytes)
        self._kept_alive = packed.arguments
        self._num_ints = num_ints
        self._pack_ints = struct.Struct("=" + INT * num_ints).pack_into
        self._first_int = 8 * len(packed.values)  # offset of the ints, in bytes
        # The driver takes an array of pointers, one to each slot. Neither array may move from here on.
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
            expected = f"{self._num_ints} int32 at a launch, besides its bound arguments"
            raise TypeError(f"kernel {self.name} takes {expected}, got {ints!r}") from error
        stream = self._current_stream().ptr
        status = self._launch(*self._sizes, stream, *self._parameters)[0]
        if status:
            self._recover(status, stream)

    def resident_blocks(self):
        """Return how many blocks of this size the device holds at once: the largest cooperative grid."""
        return self.function.resident_blocks(prod(self.config.block), self.config.shared_bytes)

    def _recover(self, status, stream):
        """Launch again if this thread had no context yet; raise RuntimeError if that fails too."""
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
