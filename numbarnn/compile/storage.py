"""Numbers of 16 bits in kernels: arrays of bits in memory, float32 in registers.

    widen, narrow = storage.widen(dtype), storage.narrow(dtype)   # device functions, for the kernel to close over
    y[i] = narrow(widen(x[i]) * factor)                           # in the kernel
    kernel.bind(config, storage.stored(y), storage.stored(x))     # float16 and bfloat16 go in as uint16
    kernel.bind(config, storage.stored_group(states))             # a NamedTuple of arrays, of tuples and None

Numba's own float16 needs a library that NVCC builds, and it has no bfloat16 arrays; bits need neither, on any device.
"""

import numpy as np

from numbarnn.compile import units
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.cuda.backend import backend, per_backend


def stored(array):
    """Return an array as kernels take it: a view of its bits (uint16) if its numbers have 16, else the array itself."""
    return array.view(np.uint16) if array.dtype.itemsize == 2 else array


def stored_group(group):
    """Return a NamedTuple of arrays, tuples of numbers and None as kernels take it: the arrays as `stored`."""
    return group._make([part if part is None or isinstance(part, tuple) else stored(part) for part in group])


@per_backend
def widen(dtype):
    """Make a device function: a number stored in arrays of `dtype` -> the number to compute with."""
    if dtype == "float16":
        return ptx.float32_of_half
    return jit(bfloat16_to_float32, backend()) if dtype == "bfloat16" else units.unchanged(backend())


@per_backend
def narrow(dtype):
    """Make a device function: a computed number -> what is stored in arrays of `dtype`, rounded to nearest even."""
    if dtype == "float16":
        return ptx.half_of_float32
    return jit(float32_to_bfloat16, backend()) if dtype == "bfloat16" else units.unchanged(backend())


# ---------------------------------------------------------------------------------------------------------- bfloat16
# bfloat16 is the upper half of a float32: a few integer instructions convert it on any device.
def bfloat16_to_float32(bits):
    """Return the float32 of a bfloat16's bits."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(value):
    """Return the bits of the nearest bfloat16, of two the even one; NaN stays NaN, too large becomes infinite."""
    bits = np.float32(value).view(np.uint32)
    upper = np.uint32(bits >> np.uint32(16))
    if np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):  # NaN: must not turn into infinity
        return np.uint16(upper | np.uint32(0x40))
    nearest = np.uint32(np.uint32(bits + np.uint32(0x7FFF)) + np.uint32(upper & np.uint32(1)))
    return np.uint16(np.uint32(nearest >> np.uint32(16)))
