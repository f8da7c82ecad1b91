"""Data types of stored numbers and of arithmetic.

float16 and bfloat16 are for storage only. Loaded numbers are widened to float32, all arithmetic is float32, and
results are rounded once, to nearest even. Numbers that accumulate from step to step (cell states such as the LSTM's
c, gradients of states, results of recurrent products) are float32 in memory too.
"""

from functools import cache
from numbers import Real

import numpy as np

from numbarnn.common import install

HALVES = ("float16", "bfloat16")
DTYPES = ("float32", "float64", *HALVES)


def is_half(dtype):
    """Return whether a dtype (a name) is float16 or bfloat16."""
    return dtype in HALVES


def itemsize(dtype):
    """Return the bytes of a number stored as `dtype` (a name)."""
    return 2 if is_half(dtype) else np.dtype(dtype).itemsize


def compute_dtype(dtype):
    """Return the dtype (a name) of arithmetic, and of accumulating states, for numbers stored as `dtype`."""
    return "float32" if dtype in HALVES else dtype


def is_number(value):
    """Return whether a value is a real number; a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def compute_type(dtype):
    """Return NumPy's scalar type of arithmetic for numbers stored as `dtype`: float32 or float64."""
    return np.dtype(compute_dtype(dtype)).type


def numpy_dtype(dtype):
    """Return NumPy's dtype of that name. bfloat16 comes from the package ml_dtypes, whose import teaches NumPy and CuPy
    the name.

    Raises:
        RuntimeError: ml_dtypes is not installed.
    """
    if dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise RuntimeError(
                "dtype 'bfloat16' needs the package ml_dtypes, as NumPy has no such type: "
                f'{install.command("bfloat16")}, or use dtype="float16"'
            ) from error
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


# `numpy_dtype` with a cache: NumPy's look-up takes longer than a whole call may.
known_dtype = cache(numpy_dtype)
