"""Kernel.bind without a GPU: what the driver is called with, errors; how arguments are packed, and that compiled
kernels take them so."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import cuda

from numbarnn.cuda import compiler, driver
from numbarnn.cuda.arguments import Arguments
from numbarnn.cuda.launch import Kernel, LaunchConfig


# --------------------------------------------------------------------- what the driver is called with, no GPU
class Interface:
    """An array on the GPU of which only `__cuda_array_interface__` is known; on the host in truth."""

    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "strides": None if array.flags.c_contiguous else array.strides,
            "version": 3,
        }


class RecordingDriver:
    """Stands in for cuda.bindings.driver: records calls, launches nothing."""

    def __init__(self, real):
        self.CUresult, self.CUdevice_attribute = real.CUresult, real.CUdevice_attribute
        self.CUfunction_attribute = real.CUfunction_attribute
        self.calls = []
        self.status = {}  # name of a function -> the statuses it returns, in turn

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append((name, *arguments))
            statuses = self.status.get(name)
            status = statuses.pop(0) if statuses else self.CUresult.CUDA_SUCCESS
            return (status, {"cuGetErrorString": b"some text", "cuCtxGetCurrent": 1}.get(name, 132))

        return call


@pytest.fixture
def recorder(toolchain, monkeypatch):
    """The driver replaced by a RecordingDriver; CuPy is not used."""
    recorder = RecordingDriver(pytest.importorskip("cuda.bindings.driver"))
    monkeypatch.setattr(driver, "bindings", lambda: recorder)
    monkeypatch.setattr(driver, "_functions", {})
    monkeypatch.setattr(driver, "current_device", lambda: 0)
    monkeypatch.setattr(driver, "compute_capability", lambda device: (9, 0))
    monkeypatch.setattr(driver, "current_stream_source", lambda: lambda: SimpleNamespace(ptr=recorder.stream))
    recorder.stream = 7
    return recorder


def axpy_kernel(out, a, factor, step, sign):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = a[i, step] * factor * sign


def bind_axpy(config=None, **jit_options):
    a, out = np.zeros((4, 6), np.float32).T, np.zeros(6, np.float32)
    config = config or LaunchConfig((2, 3), 64, shared_bytes=100)
    return Kernel(cuda.jit(**jit_options)(axpy_kernel)).bind(config, Interface(out), Interface(a), np.float32(0.25))


def test_arguments_live_as_long_as_the_bound_launch(recorder):
    import gc
    import weakref

    array = Interface(np.zeros(6, np.float32))
    alive = weakref.ref(array)
    bound = Kernel(cuda.jit(axpy_kernel)).bind(
        LaunchConfig(1, 32), array, Interface(np.zeros((6, 4), np.float32)), np.float32(1)
    )
    del array
    gc.collect()
    assert alive() is not None
    del bound
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("ints", [(), (1,), (1, 2, 3), (2**31, 0), (0.5, 1), (None, 1)], ids=str)
def test_wrong_ints_raise(recorder, ints):
    bound = bind_axpy()
    with pytest.raises(
        TypeError, match="kernel axpy_kernel takes 2 int32 at a launch, besides its bound arguments, got"
    ):
        bound(*ints)
    assert recorder.calls[-1][0] != "cuLaunchKernel"


def test_too_many_arguments_raise():
    with pytest.raises(TypeError, match="kernel axpy_kernel has 5 parameters, got 6 arguments"):
        Kernel(cuda.jit(axpy_kernel)).bind(LaunchConfig(1, 1), *[np.int32(0)] * 6)


def test_array_elsewhere_raises(recorder):
    kernel = Kernel(cuda.jit(axpy_kernel))
    array = Interface(np.zeros(6, np.float32))
    with pytest.raises(ValueError, match="argument 1 of kernel axpy_kernel is in host memory, not on device 0"):
        kernel.bind(LaunchConfig(1, 32), array, np.zeros((6, 4), np.float32))
    on_device_1 = SimpleNamespace(
        data=SimpleNamespace(ptr=64, device_id=1), dtype=np.dtype("f4"), shape=(6, 4), strides=(16, 4), size=24
    )
    with pytest.raises(ValueError, match="argument 1 of kernel axpy_kernel is in device 1, not on device 0"):
        kernel.bind(LaunchConfig(1, 32), array, on_device_1)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "fewer threads"),
        ("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "17424 such blocks fit"),
        ("CUDA_ERROR_INVALID_HANDLE", "bind there too"),
        ("CUDA_ERROR_UNKNOWN", "some text"),
    ],
)
def test_failed_launch_names_kernel_sizes_and_cure(recorder, name, cure):
    bound = bind_axpy(LaunchConfig((2, 3), 64, cooperative=True))
    recorder.status["cuLaunchCooperativeKernel"] = [getattr(recorder.CUresult, name)]
    with pytest.raises(RuntimeError) as raised:
        bound(0, 1)
    message = str(raised.value)
    for part in ("axpy_kernel", "(2, 3, 1)", "(64, 1, 1)", "registers per thread", name, "some text", cure):
        assert part in message


def test_failed_load_and_shared_memory_name_the_kernel(recorder):
    recorder.status["cuModuleLoadData"] = [recorder.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU]
    with pytest.raises(RuntimeError, match=r"loading kernel axpy_kernel \(sm_90\).*NO_BINARY.*Empty the cache"):
        bind_axpy()
    recorder.status["cuFuncSetAttribute"] = [recorder.CUresult.CUDA_ERROR_INVALID_VALUE]
    with pytest.raises(RuntimeError, match=r"kernel axpy_kernel needs 0 .* 500000 .* allows 132 bytes"):
        bind_axpy(LaunchConfig(1, 32, shared_bytes=500_000))


# ------------------------------------------------------------------------------------------------------------ arguments
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
    declared = compiler._declared
    monkeypatch.setattr(compiler, "_declared", lambda text: {**declared(text), "parameter_bytes": (8, 8)})
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
