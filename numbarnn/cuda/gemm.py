"""The one place that multiplies matrices for kernels: on a GPU, and in the simulator.

    matmul(out, a, b, ...)            out = a b for CuPy arrays (`numbarnn.cuda.cublas`) and NumPy arrays (NumPy's BLAS)
    step_product(out, a, b, ...)      the same product prepared for many steps: a is indexed by step at each call

Arrays are row-major; a row may be longer than the matrix is wide (a slice of columns needs no copy). a and b are of one
dtype: float64, float32, float16 or bfloat16. out is of the same dtype, or float32 where a and b have 16 bits. Sums are
float64's or float32's, rounded once to out's dtype; float32 stays float32, TF32 is used only where it is allowed.
"""

import numpy as np

from numbarnn.common.precision import is_half
from numbarnn.cuda import cublas


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
