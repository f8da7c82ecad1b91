"""The one place that multiplies matrices.

    matmul(out, a, b, ...)            out = a b for CuPy arrays (`numbarnn.cublas`) and NumPy arrays (NumPy's BLAS)
    step_product(out, a, b, ...)      the same product prepared for many steps: a is indexed by step at each call
    release(device, streams)          give back cuBLAS's work spaces of CuPy's streams
    blas_function(dtype, name)        CBLAS's gemm and gemv for code compiled for the CPU: OpenBLAS, one thread per call

Arrays are row-major; a row may be longer than the matrix is wide (a slice of columns needs no copy). a and b are of one
dtype: float64, float32, float16 or bfloat16. out is of the same dtype, or float32 where a and b have 16 bits. Sums are
float64's or float32's, rounded once to out's dtype; float32 stays float32, TF32 is used only where it is allowed.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from numbarnn import cublas
from numbarnn.common.precision import is_half


def matmul(out, a, b, *, transpose_a=False, transpose_b=False, accumulate=False, allow_tf32=False):
    """out = op(a) op(b), or out += op(a) op(b); op(m) is m or mᵀ.

    Args:
        out: (M, N), last axis contiguous, as of a and b.
        a: (M, K), or (K, M) with `transpose_a`.
        b: (K, N), or (N, K) with `transpose_b`.
        accumulate: add to out.
        allow_tf32: on a GPU, float32 products by tensor cores, which read 10 bits of each mantissa: faster, coarser.

    Raises:
        TypeError: the dtypes do not go together.
    """
    _require_dtypes(out, a, b)
    options = {"transpose_a": transpose_a, "transpose_b": transpose_b, "accumulate": accumulate}
    if isinstance(out, np.ndarray):
        _numpy_product(out, a, b, **options)
    else:
        cublas.product(out, a, b, **options, allow_tf32=allow_tf32)()


def step_product(out, a, b, *, transpose_b=False, accumulate=False, allow_tf32=False):
    """A function f(t) that computes out = a[t] op(b), or adds it, with all else prepared.

    Args:
        out: (M, N), or (S, M, N) for out[t]. a: (S, M, K). Any stride between their S matrices.
        b: (K, N), or (N, K) with `transpose_b`.
    """
    _require_dtypes(out, a, b)
    options = {"transpose_b": transpose_b, "accumulate": accumulate}
    if isinstance(out, np.ndarray):
        return lambda t: _numpy_product(out[t] if out.ndim == 3 else out, a[t], b, **options)
    return cublas.product(out, a, b, **options, allow_tf32=allow_tf32)


def release(device, streams):
    """Give back what cuBLAS keeps for streams (addresses) of a GPU; see `numbarnn.cublas.release`."""
    cublas.release(device, streams)


def _require_dtypes(out, a, b):
    if a.dtype != b.dtype or (out.dtype != a.dtype and not (is_half(a.dtype.name) and out.dtype == np.float32)):
        raise TypeError(
            "a product's a and b must be of one dtype, and out of it too (or float32, for a and b of 16 bits), but "
            f"they are {a.dtype}, {b.dtype} and {out.dtype}: convert one"
        )


def _numpy_product(out, a, b, transpose_a=False, transpose_b=False, accumulate=False):
    if is_half(a.dtype.name):
        a, b = a.astype(np.float32), b.astype(np.float32)
    product = (a.T if transpose_a else a) @ (b.T if transpose_b else b)
    out[...] = out + product if accumulate else product


# ----------------------------------------------------------------------------------------------- compiled CPU code
_LIBRARY_SUFFIXES = (".so", ".dylib", ".dll")


@cache
def openblas():
    """OpenBLAS as a ctypes library, this package's own copy, set to one thread per call.

    The engine splits products over its own threads (two pools in one loop would fight), which is why the copies that
    NumPy and SciPy use, with their threads, are left alone. Importing the package `scipy_openblas32` would not do: it
    offers its functions to the whole process, where SciPy would find them under the names of its own. As every
    OpenBLAS, this one reads OPENBLAS_CORETYPE when it is loaded.

    Raises:
        ImportError: scipy-openblas32 is not installed.
    """
    import ctypes

    package = find_spec("scipy_openblas32")
    folders = package.submodule_search_locations if package else ()
    found = [path for folder in folders for path in Path(folder, "lib").iterdir() if path.suffix in _LIBRARY_SUFFIXES]
    if not found:
        raise ImportError("the CPU engine needs OpenBLAS: pip install scipy-openblas32")
    library = ctypes.CDLL(str(found[0]))  # visible through this handle only
    library.scipy_openblas_set_num_threads(1)
    return library


def core_name():
    """Name of the CPU kernels that OpenBLAS chose, such as "SkylakeX"."""
    import ctypes

    function = openblas().scipy_openblas_get_corename
    function.restype = ctypes.c_char_p
    return function().decode()


@cache
def blas_function(dtype, name="gemm"):
    """CBLAS's gemm or gemv for a dtype as a function that compiled code can call (and Numba can cache).

    Signatures as in CBLAS, addresses as integers:
        gemm(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
        gemv(order, transpose_a, m, n, alpha, a, lda, x, incx, beta, y, incy)
    """
    import ctypes

    import llvmlite.binding as llvm
    from numba import types

    letter, scalar = {"float32": ("s", types.float32), "float64": ("d", types.float64)}[dtype]
    symbol = f"numbarnn_{letter}{name}"
    address = ctypes.cast(getattr(openblas(), f"scipy_cblas_{letter}{name}"), ctypes.c_void_p).value
    llvm.add_symbol(symbol, address)
    i32, pointer = types.int32, types.intp
    sizes = {"gemm": 6, "gemv": 4}[name]
    signature = types.void(*[i32] * sizes, scalar, pointer, i32, pointer, i32, scalar, pointer, i32)
    return types.ExternalFunction(symbol, signature)
