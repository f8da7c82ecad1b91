"""Measure the memory that a call takes, by the system's figures and by memory pools on a GPU.

METHOD says what is measured. Before that, code is compiled, and memory that engines and the C library keep is freed.
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


def peaks(contenders, device):
    """Return name -> bytes that a call of the contender takes, where they can be measured. contenders: by name."""
    bytes_of, engine = {}, engines.get(device)
    for name, contender in contenders.items() if tells(device) else ():
        with suppress(MemoryError, RuntimeError):  # a second contender may not fit into memory
            make = contender.again or (lambda one=contender: one)
            bytes_of[name] = (_on_gpu if device == "cuda" else _on_cpu)(make, engine)
    return bytes_of


def tells(device):
    """Return whether a call's memory can be measured: on a GPU, or on Linux with glibc."""
    if device == "cuda":
        return True
    try:
        _trim()
        (PROCESS / "clear_refs").write_text(SET_PEAK_BACK)
        _kilobytes("VmHWM")
    except (AttributeError, TypeError, OSError):  # another C library; Windows has no CDLL(None)
        return False
    return True


def _on_cpu(make, engine):
    contender = make()
    gc.collect()
    engine.give_back_memory()
    _trim()
    (PROCESS / "clear_refs").write_text(SET_PEAK_BACK)
    before = _kilobytes("VmRSS")
    returned = contender.call()
    peak = _kilobytes("VmHWM")
    del returned
    return max(0, peak - before) * 1024


def _trim():
    ctypes.CDLL(None).malloc_trim(0)


def _kilobytes(name):
    return int(re.search(rf"^{name}:\s+(\d+) kB", (PROCESS / "status").read_text(), re.MULTILINE)[1])


def _on_gpu(make, engine):
    cuda = driver.cupy().cuda
    pool = cuda.MemoryPool()
    engine.give_back_memory()  # memory that calls left in another pool
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with cuda.using_allocator(pool.malloc):
        contender = make()
        contender.call()
        contender.synchronize()
    peak = pool.total_bytes() + torch.cuda.max_memory_allocated() - before
    engine.give_back_memory()  # memory in the pool of this contender
    return peak
