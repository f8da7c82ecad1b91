"""Kernel.bind without a GPU: what the driver is called with, errors; the simulator. test_arguments.py: packing."""

from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

from numbarnn.cuda import driver
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
    with pytest.raises(TypeError, match="kernel axpy_kernel takes 2 more int32 at a launch, got"):
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
    with pytest.raises(RuntimeError, match=r"loading kernel axpy_kernel \(sm_90\).*NO_BINARY.*empty the cache"):
        bind_axpy()
    recorder.status["cuFuncSetAttribute"] = [recorder.CUresult.CUDA_ERROR_INVALID_VALUE]
    with pytest.raises(RuntimeError, match=r"kernel axpy_kernel asks for 0 .* 500000 .* allows 132 bytes"):
        bind_axpy(LaunchConfig(1, 32, shared_bytes=500_000))
