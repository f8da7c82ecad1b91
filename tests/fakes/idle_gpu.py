"""A GPU that does nothing: calls on it plan, compile for sm_90 and pack as on an H100 or H200, and no kernel runs.

    NUMBARNN_TEST_GPU=idle python -m pytest -m gpu tests/layers/test_gpu_options.py    # compiles, and fails

The emulator's stand-in for CuPy is used; its arrays lie in memory of the host that is never touched.
"""

import mmap
import os
from types import SimpleNamespace

import numpy as np

import emulator
from emulator import cupy_module, libraries
from emulator.memory import BASE, Memory, views_of

#: What the driver says of both, as CuPy names it.
ATTRIBUTES = {"MultiProcessorCount": 132}
ROOM = 1 << 38  # bytes of addresses
NORESERVE = 0x4000  # of Linux' mmap: memory is taken as it is touched


class Untouched(Memory):
    """Addresses for arrays, each piece behind the other; nothing is given back."""

    def __init__(self, size=ROOM):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
        self.bytes = np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)
        self.views, self.size, self.used, self._top = views_of(self.bytes), size, 0, 512

    def allocate(self, size):
        start, self._top = self._top, self._top + size + -size % 512 + 512
        if self._top > self.size:
            raise MemoryError(size)
        return BASE + start

    def free(self, address, size):
        """Addresses are not given twice."""


class Driver(libraries.Driver):
    """In place of cuda.bindings.driver: loads and launches nothing."""

    def cuModuleLoadData(self, cubin):
        return libraries._OK, SimpleNamespace(shared_bytes=0)

    def cuModuleGetFunction(self, module, entry):
        return libraries._OK, module

    def cuLaunchKernel(self, *_):
        return (libraries._OK,)

    cuLaunchCooperativeKernel = cuLaunchKernelEx = cuLaunchKernel


class Pointer(cupy_module.MemoryPointer):
    def copy_from_device_async(self, source, size, stream=None):
        """Copies nothing."""


def is_wanted():
    """Whether the environment asks for it."""
    return os.environ.get(emulator.VARIABLE) == "idle"


def install():
    """Put it in the place of CuPy, the driver and cuBLAS, in this process, before any was used."""
    from numbarnn.cuda import compiler, driver
    from numbarnn.engines.gpu.engine import CudaEngine

    kept_in, link = os.environ.get("NUMBARNN_CACHE_DIR"), compiler._link
    emulator.install()
    compiler._link = link  # what is compiled is compiled for a real one, and kept
    os.environ.pop("NUMBARNN_CACHE_DIR") if kept_in is None else os.environ.update(NUMBARNN_CACHE_DIR=kept_in)
    cupy_module.ATTRIBUTES.update(ATTRIBUTES)
    cupy_module.device_memory, cupy_module.MemoryPointer = Untouched(), Pointer
    idle = Driver()
    driver.bindings = lambda: idle
    libraries.Cublas._cublasGemmEx = lambda *_: None
    CudaEngine._set_bytes = lambda *_: None
