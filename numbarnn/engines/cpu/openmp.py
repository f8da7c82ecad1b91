"""Run the engine's work on PyTorch's OpenMP threads.

After an operation PyTorch's threads spin for some milliseconds on the CPUs that numbarnn's threads would use; whole
training steps became a fifth slower. With PyTorch loaded, its threads therefore do the engine's work. They run a
parallel region: a function that all of them call together with the calling thread, which waits until all are done.
Compilers enter such a region through GOMP_parallel; so does this module, in the library that PyTorch itself uses.

OpenMP keeps threads for each thread that began a region. A forked process lacks them, and its next region would wait
forever. They are therefore ended before a fork and created again when needed.
"""

import ctypes
import os
from functools import cache

import numpy as np
from llvmlite import ir

from numbarnn.compile import types
from numbarnn.compile.translate import intrinsic
from numbarnn.engines.cpu.atomics import SLOTS
from numbarnn.engines.cpu.records import Region, by_address, from_python, job_at, new_job, region_at, run_job
from numbarnn.engines.cpu.vectors import numbers_at

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_NAMES = (
    "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_pause_resource_all",
)  # fmt: skip
_SOFT = 1  # omp_pause_soft: end the threads, keep the program's settings


def openmp_functions(library, mode=ctypes.DEFAULT_MODE):
    """Return OpenMP's functions in a library, name -> ctypes function; None if it lacks them or is older than OpenMP 5.

    Args:
        library: name or path; None for symbols that are global in the process.
    """
    try:
        loaded = ctypes.PyDLL(library, mode)  # keeps Python's lock: these functions return at once
        return {name: getattr(loaded, name) for name in _NAMES}
    except (OSError, AttributeError):
        return None


@cache
def functions_of_pytorch():
    """Return the OpenMP functions that PyTorch calls, name -> ctypes function; None if it uses other threads.

    PyTorch must be loaded. Symbols are looked up in the linker's order: global ones (LD_PRELOAD), then PyTorch's own.
    """
    if os.name != "posix":
        return None
    return openmp_functions(None) or openmp_functions(
        "libtorch_cpu.so", getattr(os, "RTLD_NOLOAD", ctypes.DEFAULT_MODE)
    )


@intrinsic
def _ask(typing_context, function):
    """Return the int that a C function without arguments returns."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(_I32, []).as_pointer()
        return builder.sext(builder.call(builder.inttoptr(arguments[0], kind), []), _I64)

    return types.int64(types.intp), generate


@intrinsic
def _begin_region(typing_context, gomp_parallel, function, record):
    """Call function(record) on all of OpenMP's threads.
    The region keeps OpenMP's current number of threads, as PyTorch's regions do: OpenMP ends and creates threads
    whenever the number changes."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [_I64, _I64, _I32, _I32]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], kind), [*arguments[1:], _I32(0), _I32(0)])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@by_address
def take_part(address):
    """Run one thread's part of a `records.Region`, if the region uses this thread.
    A team may be smaller than asked for: inside another region, or at a limit of OpenMP's."""
    region, place = region_at(address), new_job()
    job = job_at(place)
    job.thread, job.threads = _ask(region.thread_number), min(region.threads, _ask(region.team_size))
    job.counters, job.record = region.counters, region.record
    if job.thread < job.threads:
        run_job(region.item, region.function, place)


@from_python
def run_region(address):
    """Run a `records.Region`."""
    region = region_at(address)
    words = numbers_at(np.int64(0), region.counters)
    for k in range(region.threads * SLOTS):
        words[k] = 0
    _begin_region(region.gomp_parallel, region.take_part, address)


class OpenMP:
    """Runs compiled functions on PyTorch's threads, one at a time.

    Args:
        functions: those that `functions_of_pytorch` returned.
        size: `torch.get_num_threads`, the number of threads of the calling Python thread's regions. Until PyTorch has
            set it in a Python thread, which this call does, OpenMP would use all CPUs.

    Attributes:
        size: the argument.
    """

    def __init__(self, functions, size):
        self._functions, self.size = functions, size
        places = {name: ctypes.cast(function, ctypes.c_void_p).value for name, function in functions.items()}
        self._region = Region(
            gomp_parallel=places["GOMP_parallel"], thread_number=places["omp_get_thread_num"],
            team_size=places["omp_get_num_threads"], take_part=take_part.address(),
        )  # fmt: skip
        self._counters = np.zeros(0, np.int64)

    def run(self, item, function, threads, record):
        """Run a compiled function of (zero, address of a `records.Job`) on several threads.

        Args:
            item: bytes of a number of the dtype. function, record: addresses of the function and of its record.
        """
        region, size = self._region, threads * SLOTS
        if self._counters.size < size:
            self._counters = np.zeros(size, np.int64)
        region.counters = self._counters.ctypes.data
        region.item, region.function, region.threads, region.record = item, function, threads, record
        run_region(ctypes.addressof(region))

    def end_threads(self):
        """End the calling thread's OpenMP threads; return whether it has none now."""
        return self._functions["omp_pause_resource_all"](_SOFT) == 0
