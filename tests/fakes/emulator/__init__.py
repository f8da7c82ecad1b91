"""A GPU in NumPy, for tests without one: it runs the PTX that Numba wrote, whole grids at a time.

    NUMBARNN_TEST_GPU=emulated python -m pytest -m gpu tests/layers/test_gpu_options.py
    NUMBARNN_TEST_GPU=emulated/20 python -m pytest -m gpu tests/layers/test_gpu_options.py    # one in 20 of the tests

What it tells: whether the compiled code, the packing of arguments, launches, streams, graphs and the addresses of all
loads and stores are right; whether blocks rely on more than the memory promises, as what one stores the others see late
and in any order (`visibility`); whether threads of a block share its memory without a barrier (`races`). What it cannot
tell: times, the device's own rounding of exp and division, registers. An access outside of an allocated piece of memory
is an error, and so is one that reads what another block wrote, unless both are made for that; new memory is full of
junk.

NUMBARNN_TEST_GPU_SMS=132 sets its number of SMs, 32 without it. With 132 planners choose the launches of an H200: both
have 227 KiB of shared memory per block.

NUMBARNN_TEST_GPU_SEED=7 picks when blocks see each other's stores, and lets threads go on in a random order, not side
by side, which is ten times slower.
"""

import importlib.machinery
import os
import sys
import tempfile
import zlib

VARIABLE, SEED, SMS = "NUMBARNN_TEST_GPU", "NUMBARNN_TEST_GPU_SEED", "NUMBARNN_TEST_GPU_SMS"


def is_wanted():
    """Whether the environment asks for the emulated GPU."""
    return os.environ.get(VARIABLE, "").partition("/")[0] == "emulated"


def is_in_sample(name):
    """Whether a test of that name is one of those that the environment asks for."""
    share = int(os.environ[VARIABLE].partition("/")[2] or 1)
    return zlib.crc32(name.encode()) % share == 0


def install(multiprocessors=None):
    """Put the emulated GPU in the place of CuPy, the driver and cuBLAS, in this process, before any was used.

    Args:
        multiprocessors: its number of SMs; None: NUMBARNN_TEST_GPU_SMS, else 32.
    """
    import ml_dtypes  # noqa: F401 - NumPy's bfloat16
    import numpy as np

    from emulator import cupy_module, libraries
    from numbarnn.cuda import compiler, cublas, driver

    multiprocessors = multiprocessors or int(os.environ.get(SMS, 0))
    if multiprocessors:
        cupy_module.ATTRIBUTES["MultiProcessorCount"] = multiprocessors
    # What is kept there are no cubins. A folder called numbarnn would be a package to scripts in the system's own.
    cache = os.environ.get("NUMBARNN_CACHE_DIR") or os.path.join(tempfile.gettempdir(), "numbarnn-kernels")
    os.environ["NUMBARNN_CACHE_DIR"] = os.path.join(cache, "emulated")
    cupy_module.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
    sys.modules["cupy"] = cupy_module
    driver_calls, library = libraries.Driver(), libraries.Cublas()
    compiler._link = lambda text, name, cc, options: (text.encode(), "")  # the driver takes PTX
    driver.bindings, driver.cupy = lambda: driver_calls, lambda: cupy_module
    cublas.library = lambda: library
    if SEED in os.environ:
        libraries.seed = int(os.environ[SEED])
        libraries.order = np.random.default_rng(libraries.seed)
