"""How arguments of a launch are packed, and that compiled kernels take them so: without a GPU."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import cuda

from numbarnn.cuda import compiler
from numbarnn.cuda.arguments import Arguments, contiguous_strides
from numbarnn.cuda.launch import Kernel

BASE = np.zeros((6, 8, 10), np.float32)
ARRAYS = {
    "1-D": BASE[0, 0],
    "2-D": BASE[0],
    "3-D": BASE,
    "1-D strided": BASE[0, 0, ::2],
    "2-D columns": BASE[0, :, 2:5],
    "3-D transposed": BASE.transpose(2, 0, 1),
    "backwards": BASE[0, ::-1],
    "one row": BASE[2:3, 1:2, :],
    "0-D": BASE[0, 0, 0, ...],
    "empty": BASE[:0],
    "float64": np.zeros((3, 4)),
    "uint64": np.zeros(5, np.uint64),
    "bool": np.zeros(5, bool),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_array_is_packed_like_numba_lays_it_out(array):
    packed = Arguments("k", (array,))
    contiguous = array.flags.c_contiguous
    assert packed.signature == ((array.dtype.name, array.ndim, "C" if contiguous else "A"),)
    strides = contiguous_strides(array.shape, array.itemsize) if contiguous else list(array.strides)
    header = [0, 0, array.size, array.itemsize, array.ctypes.data]
    assert packed.values == [*header, *array.shape, *strides]
    slots = bytearray(8 * len(packed.values))
    packed.pack_into(slots)
    assert np.frombuffer(slots, np.int64).tolist() == packed.values


def test_contiguous_array_with_odd_strides_counts_as_contiguous():
    """Extents of 1 may have any stride: T = 1 or B = 1 must not make another kernel."""
    row = np.lib.stride_tricks.as_strided(BASE, (1, 10), (12345, 4))
    assert Arguments("k", (row,)).signature == (("float32", 2, "C"),)
    assert Arguments("k", (row,)).values[-2:] == [40, 4]


SCALARS = [
    np.bool_(True),
    np.int8(-5),
    np.uint8(250),
    np.int16(-300),
    np.uint16(60000),
    np.int32(-(2**31)),
    np.uint32(2**32 - 1),
    np.int64(-(2**63)),
    np.uint64(2**64 - 1),
    np.float16(0.5),
    np.float32(0.1),
    np.float64(0.1),
]


def sizes_kernel(out, a, scalar, pair, count):
    """Uses every argument, so that none is dropped."""
    if count > 0:
        out[0] = a.size + np.float32(scalar) + pair[0][0] + pair[1] + count


def everything_kernel(out, scalars, arrays, pair, count):
    """Of a scalar of each dtype and of arrays of many shapes; parameters that nobody reads are there all the same."""
    if count > 0:
        out[0] = scalars[1] + arrays[2].size + pair[0][0] + pair[1] + count


def test_compiled_kernel_takes_what_is_packed(toolchain):
    """Scalars in their own bytes, and arrays of any shape; one compilation tells of all."""
    kernel, arrays, pair = Kernel(cuda.jit(everything_kernel)), tuple(ARRAYS.values()), (BASE[0, :, 0], np.int16(3))
    compiled = kernel.compile((9, 0), BASE[0, 0], tuple(SCALARS), arrays, pair)
    itemsizes = tuple(scalar.dtype.itemsize for scalar in SCALARS)
    dimensions = sum(5 + 2 * array.ndim for array in arrays)
    assert compiled.parameter_bytes == ((8,) * 7 + itemsizes + (8,) * dimensions + (8,) * 7 + (2,) + (4,))


class Group(NamedTuple):
    """What kernels take in a group; None is what is not there."""

    a: Any
    b: Any = None
    c: Any = None


def group_kernel(out, group, count):
    """Uses the first array of a group, and the last one of a pair of groups."""
    if count > 0:
        out[0] = group.a[0] + group.c.a[1]


@pytest.mark.parametrize("b", (None, BASE[0, 0]), ids=("absent", "there"))
def test_group_is_packed_as_compiled_kernels_take_it(toolchain, b):
    """Its fields in turn, those that are not there as null pointers."""
    group = Group(BASE[0, 0], b, Group(BASE[0, 0, ::2], np.int16(3)))
    packed, one = Arguments("k", (BASE[0, 0], group)), ("float32", 1, "C")
    inner = (Group, ("float32", 1, "A"), "int16", "none")
    assert packed.signature == (one, (Group, one, "none" if b is None else one, inner))
    slots = bytearray(8 * len(packed.values))
    packed.pack_into(slots)
    assert np.frombuffer(slots, np.int64).tolist() == packed.values
    compiled = Kernel(cuda.jit(group_kernel)).compile((9, 0), BASE[0, 0], group)
    assert compiled.parameter_bytes == (8,) * (14 + (1 if b is None else 7) + 7) + (2, 8, 4)


def test_unknown_way_of_passing_arguments_raises(toolchain, monkeypatch):
    monkeypatch.setattr(compiler, "_parameter_bytes", lambda text: (8, 8))
    kernel = Kernel(cuda.jit(sizes_kernel), source_key="changed")
    with pytest.raises(RuntimeError, match="kernel sizes_kernel: the installed numba-cuda passes arguments"):
        kernel.compile((9, 0), BASE[0, 0], BASE, np.int8(1), (BASE[0, 0], np.int16(3)))


@pytest.mark.parametrize("bad", [1, 0.5, [1.0], None, "text"], ids=repr)
def test_other_arguments_raise(bad):
    with pytest.raises(TypeError, match=rf"argument 1 of kernel k must be an array .* got {type(bad).__name__}"):
        Arguments("k", (BASE, bad))


@pytest.mark.parametrize("dtype", ["complex64", ">f4", "datetime64[s]", "S3"])
def test_other_dtypes_raise(dtype):
    with pytest.raises(TypeError, match=r"argument 0 of kernel k: dtype .* is not supported"):
        Arguments("k", (np.zeros(3, dtype),))


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: scalar.dtype.name)
def test_scalar_is_packed_in_its_own_bytes(scalar):
    packed = Arguments("k", (scalar, np.int32(7)))
    assert packed.signature == (scalar.dtype.name, "int32")
    slots = bytearray(16)
    packed.pack_into(slots)
    assert slots == scalar.tobytes().ljust(8, b"\0") + np.int32(7).tobytes().ljust(8, b"\0")
