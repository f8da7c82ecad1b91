"""Store float16 and bfloat16 in arrays as bits (uint16), and compute with them as float32.

    widen, narrow = storage.widen(dtype), storage.narrow(dtype)   # device functions for the kernel's closure
    y[i] = narrow(widen(x[i]) * factor)                           # in the kernel
    kernel.bind(config, storage.stored(y), storage.stored(x))     # passes float16 and bfloat16 as uint16
    kernel.bind(config, storage.stored_group(states))             # a NamedTuple of arrays, tuples and None

Numba's float16 needs a library that NVCC builds, and Numba has no bfloat16 arrays. Bits work on every device.
"""

import numpy as np

from numbarnn.compile import units
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.cuda.backend import backend, per_backend


def stored(array):
    """Return an array as kernels take it: 16-bit numbers as uint16, other arrays unchanged."""
    return array.view(np.uint16) if array.dtype.itemsize == 2 else array


def stored_group(group):
    """Return a NamedTuple of arrays, tuples of numbers and None with its arrays as `stored`."""
    return group._make([part if part is None or isinstance(part, tuple) else stored(part) for part in group])


@per_backend
def widen(dtype):
    """Make a device function from a number stored as `dtype` to the number for arithmetic."""
    if dtype == "float16":
        return ptx.float32_of_half
    return jit(bfloat16_to_float32, backend()) if dtype == "bfloat16" else units.unchanged()


@per_backend
def narrow(dtype):
    """Make a device function from a computed number to its stored form in `dtype`, rounded to nearest even."""
    if dtype == "float16":
        return ptx.half_of_float32
    return jit(float32_to_bfloat16, backend()) if dtype == "bfloat16" else units.unchanged()


# ---------------------------------------------------------------------------------------------------------- bfloat16
def bfloat16_to_float32(bits):
    """Return the float32 of a bfloat16's bits, which are the upper half of its bits."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(value):
    """Round to the bits of the nearest bfloat16, ties to even. NaN stays NaN, and overflow becomes infinite."""
    bits = np.float32(value).view(np.uint32)
    upper = np.uint32(bits >> np.uint32(16))
    if np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):  # NaN: must not turn into infinity
        return np.uint16(upper | np.uint32(0x40))
    nearest = np.uint32(np.uint32(bits + np.uint32(0x7FFF)) + np.uint32(upper & np.uint32(1)))
    return np.uint16(np.uint32(nearest >> np.uint32(16)))
