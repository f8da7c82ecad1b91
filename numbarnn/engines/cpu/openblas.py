"""OpenBLAS for code compiled for the CPU: addresses of its gemm and gemv, one thread per call."""

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from numbarnn.compile import native, types

_LIBRARY_SUFFIXES = (".so", ".dylib", ".dll")


@cache
def openblas():
    """Load this package's own copy of OpenBLAS through ctypes, set to one thread per call.

    The engine splits products over its own threads; two thread pools in one loop would compete. NumPy and SciPy keep
    their own, multi-threaded copies. Importing `scipy_openblas32` would export its symbols to the whole process, where
    SciPy would find them first. OPENBLAS_CORETYPE applies when the library loads.

    Raises:
        ImportError: scipy-openblas32 is not installed.
    """
    package = find_spec("scipy_openblas32")
    folders = package.submodule_search_locations if package else ()
    paths = [path for folder in folders for path in Path(folder, "lib").iterdir() if path.suffix in _LIBRARY_SUFFIXES]
    if not paths:
        raise ImportError("the CPU engine needs OpenBLAS: pip install scipy-openblas32")
    library = ctypes.CDLL(str(paths[0]))  # visible through this handle only
    library.scipy_openblas_set_num_threads(1)
    return library


def core_name():
    """Return the name of the CPU kernels that OpenBLAS chose, such as "SkylakeX"."""
    function = openblas().scipy_openblas_get_corename
    function.restype = ctypes.c_char_p
    return function().decode()


@cache
def has_small_kernels():
    """Return whether OpenBLAS multiplies small matrices without packing them first."""
    return core_name() in ("SkylakeX", "Cooperlake", "SapphireRapids")


@cache
def blas_function(dtype, name="gemm"):
    """Return CBLAS's gemm or gemv for a dtype as a function that compiled code can call.

    Signatures as in CBLAS, addresses as integers:
        gemm(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
        gemv(order, transpose_a, m, n, alpha, a, lda, x, incx, beta, y, incy)
    """
    letter, scalar = {"float32": ("s", types.float32), "float64": ("d", types.float64)}[dtype]
    symbol = f"numbarnn_{letter}{name}"
    address = ctypes.cast(getattr(openblas(), f"scipy_cblas_{letter}{name}"), ctypes.c_void_p).value
    native.offer_symbol(symbol, address)
    i32, pointer = types.int32, types.intp
    sizes = {"gemm": 6, "gemv": 4}[name]
    signature = types.void(*[i32] * sizes, scalar, pointer, i32, pointer, i32, scalar, pointer, i32)
    return types.ExternalFunction(symbol, signature)
