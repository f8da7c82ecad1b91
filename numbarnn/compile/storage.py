"""Numbers of 16 bits in kernels: arrays of bits in memory, float32 in registers.

    widen, narrow = storage.widen(dtype), storage.narrow(dtype)   # device functions, for the kernel to close over
    y[i] = narrow(widen(x[i]) * factor)                           # in the kernel
    kernel.bind(config, storage.stored(y), storage.stored(x))     # float16 and bfloat16 go in as uint16
    kernel.bind(config, storage.stored_group(states))             # a NamedTuple of arrays, of tuples and None

Numba's own float16 needs a library that NVCC builds, and it has no bfloat16 arrays; bits need neither, on any device.
"""

from functools import cache

import numpy as np

from numbarnn.compile import units
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit


def stored(array):
    """Return an array as kernels take it: a view of its bits (uint16) if its numbers have 16, else the array itself."""
    return array.view(np.uint16) if array.dtype.itemsize == 2 else array


def stored_group(group):
    """Return a NamedTuple of arrays, tuples of numbers and None as kernels take it: the arrays as `stored`."""
    return group._make([part if part is None or isinstance(part, tuple) else stored(part) for part in group])


@cache
def widen(dtype):
    """Make a device function: a number stored in arrays of `dtype` -> the number to compute with."""
    if dtype == "float16":
        return _float16_to_float32()
    return jit(bfloat16_to_float32, BACKEND) if dtype == "bfloat16" else units.unchanged(BACKEND)


@cache
def narrow(dtype):
    """Make a device function: a computed number -> what is stored in arrays of `dtype`, rounded to nearest even."""
    if dtype == "float16":
        return _float32_to_float16()
    return jit(float32_to_bfloat16, BACKEND) if dtype == "bfloat16" else units.unchanged(BACKEND)


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


# ----------------------------------------------------------------------------------------------------------- float16
def _float16_to_float32():
    if BACKEND == "python":
        return lambda bits: np.float32(bits.view(np.float16))
    return _conversion("cvt.f32.f16 $0, $1;", "=f,h", "float32", "uint16")


def _float32_to_float16():
    if BACKEND == "python":
        return lambda value: np.float32(value).astype(np.float16).view(np.uint16)
    return _conversion("cvt.rn.f16.f32 $0, $1;", "=h,f", "uint16", "float32")


def _conversion(instruction, constraint, result, argument):
    """Make a device function of one number that is one PTX instruction."""
    from llvmlite import ir
    from numba import types
    from numba.cuda.extending import intrinsic

    result, argument = getattr(types, result), getattr(types, argument)

    def convert(typing_context, value):
        def generate(context, builder, signature, values):
            function = ir.FunctionType(context.get_value_type(result), [context.get_value_type(argument)])
            return builder.call(ir.InlineAsm(function, instruction, constraint), values)

        return result(argument), generate

    return intrinsic(convert)
