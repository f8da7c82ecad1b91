"""Multiply matrices with cuBLAS (CuPy arrays) or with NumPy (NumPy arrays, in the simulator).

    matmul(out, a, b, ...)            out = a b
    step_product(out, a, b, ...)      prepare out = a[t] b for many steps t

Arrays are row-major, and their rows may be strided (a slice of columns needs no copy). a and b have one dtype: float64,
float32, float16 or bfloat16. out has that dtype, or float32 if a and b are float16 or bfloat16. Sums are in float64 for
float64 and in float32 for the rest, and are rounded once to out's dtype. TF32 is used only where `allow_tf32` is true.
"""

import numpy as np

from numbarnn.common.precision import is_half
from numbarnn.cuda import cublas


def matmul(out, a, b, *, transpose_a=False, transpose_b=False, accumulate=False, allow_tf32=False):
    """Compute out = op(a) op(b), or out += op(a) op(b), where op(m) is m or its transpose.

    Args:
        out: (M, N). The last axis of out, a and b is contiguous.
        a: (M, K), or (K, M) with `transpose_a`.
        b: (K, N), or (N, K) with `transpose_b`.
        accumulate: add to out.
        allow_tf32: let tensor cores multiply float32 on a GPU. They read 10 bits of each mantissa.

    Raises:
        TypeError: the dtypes do not match.
    """
    options = {"transpose_a": transpose_a, "transpose_b": transpose_b, "accumulate": accumulate}
    _product(out, a, b, options, allow_tf32)()


def step_product(out, a, b, *, transpose_b=False, accumulate=False, allow_tf32=False):
    """Return a function f(t) that computes out = a[t] op(b), or adds the product to out.

    Args:
        out: (M, N), or (S, M, N) to write out[t]. a: (S, M, K). Their S matrices may have any stride.
        b: (K, N), or (N, K) with `transpose_b`.
    """
    return _product(out, a, b, {"transpose_b": transpose_b, "accumulate": accumulate}, allow_tf32)


def _product(out, a, b, options, allow_tf32):
    if a.dtype != b.dtype or (out.dtype != a.dtype and not (is_half(a.dtype.name) and out.dtype == np.float32)):
        raise TypeError(
            f"a and b of a product must have one dtype, and out that dtype (or float32, for 16-bit a and b), got "
            f"a {a.dtype}, b {b.dtype} and out {out.dtype}. Convert one of them."
        )
    if isinstance(out, np.ndarray):
        return lambda t=0: _numpy_product(out[t] if out.ndim == 3 else out, a[t] if a.ndim == 3 else a, b, **options)
    return cublas.product(out, a, b, **options, allow_tf32=allow_tf32)


def _numpy_product(out, a, b, transpose_a=False, transpose_b=False, accumulate=False):
    if is_half(a.dtype.name):
        a, b = a.astype(np.float32), b.astype(np.float32)
    product = (a.T if transpose_a else a) @ (b.T if transpose_b else b)
    out[...] = out + product if accumulate else product
