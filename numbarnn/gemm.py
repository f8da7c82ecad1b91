"""The one place that multiplies matrices.

    matmul(out, a, b, ...)            out = a b for CuPy arrays (cuBLAS) and NumPy arrays (NumPy's BLAS)
    step_product(out, a, b, ...)      the same product prepared for many steps: a is indexed by step at each call
    blas_function(dtype, name)        CBLAS's gemm and gemv for code compiled for the CPU: OpenBLAS, one thread per call

Arrays are row-major; a row may be longer than the matrix is wide (a slice of columns needs no copy). Products are
computed in the arrays' own precision: float32 stays float32, TF32 is never used.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np


def matmul(out, a, b, *, transpose_a=False, transpose_b=False, accumulate=False):
    """out = op(a) op(b), or out += op(a) op(b); op(m) is m or mᵀ.

    Args:
        out: (M, N); each array float32 or float64, all of one dtype, last axis contiguous.
        a: (M, K), or (K, M) with `transpose_a`.
        b: (K, N), or (N, K) with `transpose_b`.
        accumulate: add to out.
    """
    if isinstance(out, np.ndarray):
        product = (a.T if transpose_a else a) @ (b.T if transpose_b else b)
        if accumulate:
            out += product
        else:
            out[...] = product
    else:
        _cublas_product(out, a, b, transpose_a, transpose_b, accumulate)(0)


def step_product(out, a, b, *, transpose_b=False, accumulate=False):
    """A function f(t) that computes out = a[t] op(b), or adds it, with all else prepared.

    Args:
        out: (M, N). a: (S, M, K), any stride between its S matrices. b: (K, N), or (N, K) with `transpose_b`.
    """
    if isinstance(out, np.ndarray):
        return lambda t: matmul(out, a[t], b, transpose_b=transpose_b, accumulate=accumulate)
    return _cublas_product(out, a, b, False, transpose_b, accumulate)


def _leading_dimension(matrix):
    """Elements between the starts of two rows of the matrix (the last two axes)."""
    return max(1, matrix.shape[-1], matrix.strides[-2] // matrix.itemsize)


def _cublas_product(out, a, b, transpose_a, transpose_b, accumulate):
    """f(t): the product by cuBLAS on CuPy's current stream; t indexes the first axis of a 3-D a."""
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cublas

    # cuBLAS is column-major: a row-major product out = a b is the column-major outᵀ = bᵀ aᵀ, on the same memory.
    call = {"f": cublas.sgemm, "d": cublas.dgemm}[out.dtype.char]
    m, n = out.shape
    k = a.shape[-2] if transpose_a else a.shape[-1]
    scalars = np.array([1.0, 1.0 if accumulate else 0.0], dtype=out.dtype)  # cuBLAS reads alpha and beta from here
    alpha, beta = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
    operations = [cublas.CUBLAS_OP_T if flag else cublas.CUBLAS_OP_N for flag in (transpose_b, transpose_a)]
    leading = [_leading_dimension(matrix) for matrix in (b, a, out)]
    out_pointer, a_pointer, b_pointer = out.data.ptr, a.data.ptr, b.data.ptr
    a_stride = a.strides[0] if a.ndim == 3 else 0
    handle = device.get_cublas_handle()

    def product(t):
        call(
            handle, *operations, n, m, k, alpha, b_pointer, leading[0],
            a_pointer + t * a_stride, leading[1], beta, out_pointer, leading[2],
        )  # fmt: skip

    product.keeps = (out, a, b, scalars)  # raw pointers are used: keep what they point to
    return product


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
