"""PyTorch's threads as the CPU engine's.

After each of PyTorch's operations its threads go on looking for work for some milliseconds, on the processors that
numbarnn's own threads would run on: whole steps of a model became a fifth slower by that. So beside PyTorch its threads
do the engine's work too. They are OpenMP's, and take what is called a parallel region: a function that all of them
call, and the calling thread, which then waits until all are done. A compiler makes calls of GOMP_parallel of such
regions; so does this, of the very library that PyTorch's own calls go to.

OpenMP keeps threads for each thread that has begun a region. In a forked process they are not there, and its next
region, PyTorch's or ours, would wait for them for ever: so they are ended ahead of forks, and made again when needed.
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
_SOFT = 1  # omp_pause_soft: threads end, what the program has set stays


def functions_of(library, mode=ctypes.DEFAULT_MODE):
    """The functions of OpenMP in a library, name -> ctypes' function; None where it is not there, or older than OpenMP
    5.

    Args:
        library: name or path; None for what the process has loaded for all.
    """
    try:
        loaded = ctypes.PyDLL(library, mode)  # keeps Python's lock: these functions only look
        return {name: getattr(loaded, name) for name in _NAMES}
    except (OSError, AttributeError):
        return None


@cache
def functions_of_pytorch():
    """The functions of OpenMP that PyTorch calls, likewise; None where it has other threads.

    PyTorch must be loaded. Symbols are looked up in the linker's order: what is there for all, such as libraries of
    LD_PRELOAD, then what PyTorch's library brings along.
    """
    if os.name != "posix":
        return None
    return functions_of(None) or functions_of("libtorch_cpu.so", getattr(os, "RTLD_NOLOAD", ctypes.DEFAULT_MODE))


@intrinsic
def _ask(typing_context, function):
    """What a C function without arguments answers, an int."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(_I32, []).as_pointer()
        return builder.sext(builder.call(builder.inttoptr(arguments[0], kind), []), _I64)

    return types.int64(types.intp), generate


@intrinsic
def _begin_region(typing_context, gomp_parallel, function, what):
    """Let all threads call function(what), as many as OpenMP is set to. PyTorch's regions are of as many, and OpenMP
    ends threads and makes new ones where the next region has another number."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [_I64, _I64, _I32, _I32]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], kind), [*arguments[1:], _I32(0), _I32(0)])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@by_address
def take_part(address):
    """What each thread of a `records.Region` does: its part, if it is one of those that are wanted.

    There may be fewer than that: within another region, or beyond a limit of OpenMP's.
    """
    region, place = region_at(address), new_job()
    job = job_at(place)
    job.thread, job.threads = _ask(region.thread_number), min(region.threads, _ask(region.team_size))
    job.counters, job.what = region.counters, region.what
    if job.thread < job.threads:
        run_job(region.item, region.function, place)


@from_python
def run_region(address):
    """Do what a `records.Region` says."""
    region = region_at(address)
    words = numbers_at(np.int64(0), region.counters)
    for k in range(region.threads * SLOTS):
        words[k] = 0
    _begin_region(region.gomp_parallel, region.take_part, address)


class OpenMP:
    """Runs compiled functions on PyTorch's threads, one at a time.

    Args:
        functions: of `functions_of_pytorch`.
        size: f(), of how many threads a region of the calling Python thread is: `torch.get_num_threads`. OpenMP itself
            knows no number but all processors in a Python thread before PyTorch told it, as this does.

    Attributes:
        size: the same.
    """

    def __init__(self, functions, size):
        self._functions, self.size = functions, size
        places = {name: ctypes.cast(function, ctypes.c_void_p).value for name, function in functions.items()}
        self._region = Region(
            gomp_parallel=places["GOMP_parallel"], thread_number=places["omp_get_thread_num"],
            team_size=places["omp_get_num_threads"], take_part=take_part.address(),
        )  # fmt: skip
        self._counters = np.zeros(0, np.int64)

    def run(self, item, function, threads, what):
        """Let threads do something together: a function of (zero, address of a `records.Job`) does `what`; both are
        addresses, `item` is the bytes of a number of the dtype."""
        region, size = self._region, threads * SLOTS
        if self._counters.size < size:
            self._counters = np.zeros(size, np.int64)
        region.counters = self._counters.ctypes.data
        region.item, region.function, region.threads, region.what = item, function, threads, what
        run_region(ctypes.addressof(region))

    def end_threads(self):
        """End those that the calling thread has; whether it has none now."""
        return self._functions["omp_pause_resource_all"](_SOFT) == 0
