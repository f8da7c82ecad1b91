"""How much memory a call takes, by the figures of the system and of the drivers' pools; absent where nobody tells.

on the CPU   how far the resident size of this process rises above what it was, while a contender that was made anew
             makes its first call: what the call allocates and writes (saved activations, results, gradients, work
             space), without weights and inputs, which are there before. Code is compiled by then, memory that
             engines and the C library keep for later calls is given back first.
on a GPU     what is allocated for a contender that is made anew and makes one call: weights and inputs, too, as
             cuDNN's arrays and spaces are made before its calls. numbarnn's arrays, and cuDNN's where it is called
             directly, come from a pool of CuPy's of their own; PyTorch's from its own pool, which counts them.
             What a library takes from the driver by itself, such as code, nobody counts.
"""

import ctypes
import gc
import re
from contextlib import suppress
from pathlib import Path

from numbarnn import engines
from numbarnn.bench.peers.contender import torch
from numbarnn.cuda import driver

METHOD = {
    "cpu": "rise of the resident size (VmHWM, set back by /proc/self/clear_refs) during the first call of a contender "
    "made anew; weights and inputs were there before",
    "cuda": "allocated for a contender made anew and one call, by a CuPy pool of its own or by PyTorch's pool: weights "
    "and inputs, too, but not what libraries take from the driver by themselves",
}
PROCESS = Path("/proc/self")
SET_PEAK_BACK = "5"  # proc(5), clear_refs
NOT_LINUX = "the system does not tell the peak of a process' memory since a moment (Linux does, in /proc)"


def why_not(device):
    """Why memory cannot be told, as words; None where it can."""
    if device == "cuda":
        return _no_cupy()
    if _trim() is None:
        return "the C library cannot give back what it keeps (malloc_trim of glibc)"
    try:
        _set_peak_back()
        _kilobytes("VmHWM")
    except (OSError, LookupError) as error:
        return f"{NOT_LINUX}: {error}"
    return None


def method(device):
    """How memory is told, or why not, as words for a record."""
    absent = why_not(device)
    return f"absent: {absent}" if absent else METHOD[device]


def peaks(contenders, device):
    """Name of a contender -> bytes that a call of it takes; contenders: by name."""
    found = {}
    if why_not(device) is None:
        for name, contender in contenders.items():
            with suppress(MemoryError, RuntimeError):  # there are two of it then: what has no room has no figure
                again = contender.again or (lambda one=contender: one)
                found[name] = peak_bytes(again, device, engines.get(device))
    return found


def peak_bytes(make, device, engine):
    """Bytes that a contender takes, which `make` makes anew; engine: numbarnn's, which keeps memory of its own."""
    return (_on_gpu if device == "cuda" else _on_cpu)(make, engine)


# ----------------------------------------------------------------------------------------------------------- the CPU
def _on_cpu(make, engine):
    contender = make()
    gc.collect()
    engine.give_back_memory()
    _trim()(0)
    _set_peak_back()
    before = _kilobytes("VmRSS")
    returned = contender.call()
    peak = _kilobytes("VmHWM")
    del returned
    return max(0, peak - before) * 1024


def _trim():
    """glibc's malloc_trim, which gives free memory back to the system; None where there is none."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, TypeError, OSError):  # another C library; Windows has no CDLL(None)
        return None


def _set_peak_back():
    (PROCESS / "clear_refs").write_text(SET_PEAK_BACK)


def _kilobytes(name):
    found = re.search(rf"^{name}:\s+(\d+) kB", (PROCESS / "status").read_text(), re.MULTILINE)
    if found is None:
        raise LookupError(f"{PROCESS}/status has no {name}")
    return int(found[1])


# ------------------------------------------------------------------------------------------------------------- a GPU
def _no_cupy():
    try:
        driver.cupy()
    except RuntimeError as error:
        return str(error)
    return None


def _on_gpu(make, engine):
    cuda = driver.cupy().cuda
    pool = cuda.MemoryPool()
    engine.give_back_memory()  # what calls left in another pool
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with cuda.using_allocator(pool.malloc):
        contender = make()
        contender.call()
        contender.synchronize()
    found = pool.total_bytes() + torch.cuda.max_memory_allocated() - before
    engine.give_back_memory()  # which lies in the pool of this contender
    return found
