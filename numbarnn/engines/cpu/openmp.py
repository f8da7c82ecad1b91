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

from numbarnn.compile import native, types
from numbarnn.engines.cpu.atomics import WORDS_APART
from numbarnn.engines.cpu.records import Region, by_address, job_at, new_job, region_at, run_job

_NAMES = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_pause_resource_all")
_thread_number, _team_size = (types.ExternalFunction(f"numbarnn_{name}", types.int32()) for name in _NAMES[1:3])
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


@by_address
def take_part(address):
    """Run one thread's part of a `records.Region`, if the region uses this thread.
    A team may be smaller than asked for: inside another region, or at a limit of OpenMP's."""
    region, place = region_at(address), new_job()
    job = job_at(place)
    job.thread, job.threads = int(_thread_number()), min(region.threads, int(_team_size()))
    job.counters, job.record = region.counters, region.record
    if job.thread < job.threads:
        run_job(region.item, region.function, place)


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
        for name in _NAMES[1:3]:
            native.offer_symbol(f"numbarnn_{name}", ctypes.cast(functions[name], ctypes.c_void_p).value)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._begin_region = kind(ctypes.cast(functions["GOMP_parallel"], ctypes.c_void_p).value)
        self._take_part, self._region = take_part.address(), Region()
        self._counters = np.zeros(0, np.int64)

    def run(self, item, function, threads, record):
        """Run a compiled function of (zero, address of a `records.ThreadJob`) on several threads.

        Args:
            item: bytes of a number of the dtype. function, record: addresses of the function and of its record.
        """
        region, size = self._region, threads * WORDS_APART
        if self._counters.size < size:
            self._counters = np.zeros(size, np.int64)
        self._counters[...] = 0
        region.counters = self._counters.ctypes.data
        region.item, region.function, region.threads, region.record = item, function, threads, record
        # With OpenMP's current number of threads, as PyTorch's regions have: it ends and creates threads whenever the
        # number changes.
        self._begin_region(self._take_part, ctypes.addressof(region), 0, 0)

    def end_threads(self):
        """End the calling thread's OpenMP threads; return whether it has none now."""
        return self._functions["omp_pause_resource_all"](_SOFT) == 0
