"""A GPU in NumPy, for tests without one: it runs the PTX that Numba wrote, whole grids at a time.

    NUMBARNN_TEST_GPU=emulated python -m pytest -m gpu tests/test_gpu_engine.py

What it tells: whether the compiled code, the packing of arguments, launches, streams, graphs and the addresses of all
loads and stores are right. What it cannot tell: times, the device's own rounding of exp and division, weakly ordered
memory, registers. An access outside of an allocated piece of memory is an error, new memory is full of junk.
"""

import importlib.machinery
import os
import sys
import tempfile

VARIABLE = "NUMBARNN_TEST_GPU"


def is_wanted():
    """Whether the environment asks for the emulated GPU."""
    return os.environ.get(VARIABLE) == "emulated"


def install():
    """Put the emulated GPU in the place of CuPy, the driver and cuBLAS, in this process, before any was used."""
    import ml_dtypes  # noqa: F401 - NumPy's bfloat16

    from emulator import cupy_module, libraries
    from numbarnn import cublas
    from numbarnn.kernels import compiler, driver

    os.environ.setdefault("NUMBARNN_CACHE_DIR", os.path.join(tempfile.gettempdir(), "numbarnn-emulated-kernels"))
    cupy_module.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
    sys.modules["cupy"] = cupy_module
    driver_calls, library = libraries.Driver(), libraries.Cublas()
    compiler._link = lambda text, name, cc, options: (text.encode(), "")  # the driver takes PTX
    driver.bindings, driver.cupy = lambda: driver_calls, lambda: cupy_module
    cublas.library = lambda: library
