"""Kernel.bind: packing, what the driver is called with, errors; the simulator; on a GPU."""

import ctypes
import math
import os
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import cuda

from numbarnn.cuda import compiler, driver
from numbarnn.cuda.arguments import Arguments, contiguous_strides, numba_types
from numbarnn.cuda.launch import Kernel, LaunchConfig


# ---------------------------------------------------------------------------------------------- LaunchConfig
def test_launch_config_completes_sizes():
    config = LaunchConfig(grid=(np.int64(3), 2), block=64)
    assert (config.grid, config.block) == ((3, 2, 1), (64, 1, 1))
    assert config == LaunchConfig((3, 2, 1), (64,))


@pytest.mark.parametrize(
    "sizes",
    [
        {"grid": 0},
        {"grid": -1},
        {"grid": 2.0},
        {"grid": ()},
        {"grid": (1, 1, 1, 1)},
        {"block": 0},
        {"block": (32, 33)},
        {"shared_bytes": -1},
    ],
    ids=str,
)
def test_launch_config_rejects(sizes):
    with pytest.raises(ValueError, match=next(iter(sizes))):
        LaunchConfig(**{"grid": 1, "block": 32, **sizes})


# ------------------------------------------------------------------------------------- packing, without a GPU
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


def test_numba_has_the_array_layout_that_is_packed(toolchain):
    from numba.cuda.descriptor import cuda_target

    with compiler._numpy_for_numba():
        cuda_target.target_context.refresh()
    (array_type,) = numba_types((("float32", 2, "A"),))
    model = cuda_target.target_context.data_model_manager[array_type]
    assert list(model._fields) == ["meminfo", "parent", "nitems", "itemsize", "data", "shape", "strides"]


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


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: scalar.dtype.name)
def test_scalar_is_packed_in_its_own_bytes(scalar):
    packed = Arguments("k", (scalar, np.int32(7)))
    assert packed.signature == (scalar.dtype.name, "int32")
    slots = bytearray(16)
    packed.pack_into(slots)
    assert slots == scalar.tobytes().ljust(8, b"\0") + np.int32(7).tobytes().ljust(8, b"\0")


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


def test_a_group_of_arrays_of_one_type_is_a_group_too(toolchain):
    @cuda.jit
    def sum_kernel(out, group):
        out[0] = group.a[0] + group.b[0] + group.c[0]

    assert len(Kernel(sum_kernel).compile((9, 0), BASE[0, 0], Group(*BASE[0, :3])).parameter_bytes) == 4 * 7


def test_a_group_without_an_array_is_refused_by_kernels_that_read_it(toolchain):
    """When they are compiled."""
    with pytest.raises(Exception, match="none"):
        Kernel(cuda.jit(group_kernel)).compile((9, 0), BASE[0, 0], Group(None, c=Group(BASE[0, 0])))


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
        self.calls, self.parameters = [], []
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

    def launches(self, sizes):
        """(function's arguments, bytes of each parameter) of the last launch."""
        call = self.calls[-1]
        pointers = ctypes.cast(call[10], ctypes.POINTER(ctypes.c_void_p))
        return call, [ctypes.string_at(pointers[k], size) for k, size in enumerate(sizes)]


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


AXPY_SIZES = (8,) * 7 + (8,) * 9 + (4, 4, 4)


def test_launch_passes_sizes_stream_and_parameters(recorder):
    bound = bind_axpy()
    for step, sign in [(3, -1), (np.int64(2**31 - 1), 0)]:
        recorder.stream += 1
        bound(step, sign)
        call, parameters = recorder.launches(AXPY_SIZES)
        assert call[0] == "cuLaunchKernel"
        assert call[2:10] == (2, 3, 1, 64, 1, 1, 100, recorder.stream)
        assert call[11] == 0
        assert parameters[:2] == [bytes(8), bytes(8)]
        assert np.frombuffer(b"".join(parameters[7 + 5 : 16]), np.int64).tolist() == [6, 4, 4, 24]
        assert parameters[16] == np.float32(0.25).tobytes()
        assert parameters[17:] == [np.int32(step).tobytes(), np.int32(sign).tobytes()]


def test_binding_again_compiles_and_loads_nothing(recorder, monkeypatch):
    kernel = Kernel(cuda.jit(axpy_kernel))
    arguments = Interface(np.zeros(6, np.float32)), Interface(np.zeros((6, 4), np.float32)), np.float32(1)
    kernel.bind(LaunchConfig(1, 32), *arguments)
    recorder.calls.clear()
    monkeypatch.setattr("numbarnn.cuda.launch.compile_kernel", lambda *_: pytest.fail("compiled again"))
    kernel.bind(LaunchConfig(2, 32), *arguments)
    assert not any("Module" in name for name, *_ in recorder.calls)


def test_cooperative_launch(recorder):
    bind_axpy(LaunchConfig(8, 128, cooperative=True))(0, 1)
    call, _ = recorder.launches(AXPY_SIZES)
    assert (call[0], len(call)) == ("cuLaunchCooperativeKernel", 11)
    assert call[2:10] == (8, 1, 1, 128, 1, 1, 0, 7)


def test_dynamic_shared_memory_is_allowed_and_never_lowered(recorder):
    for dynamic_bytes in (100_000, 50_000, 200_000):
        bind_axpy(LaunchConfig(1, 32, shared_bytes=dynamic_bytes))
    allowed = [call[-1] for call in recorder.calls if call[0] == "cuFuncSetAttribute"]
    assert allowed == [100_000, 200_000]


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
        data=SimpleNamespace(ptr=64, device_id=1),
        dtype=np.dtype("f4"),
        shape=(6, 4),
        strides=(16, 4),
        size=24,
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


def test_first_launch_in_a_thread_gets_a_context(recorder):
    bound = bind_axpy()
    recorder.status["cuLaunchKernel"] = [recorder.CUresult.CUDA_ERROR_INVALID_CONTEXT]
    bound(0, 1)
    assert [call[0] for call in recorder.calls[-2:]] == ["cuCtxGetCurrent", "cuLaunchKernel"]


# --------------------------------------------------------------------------------------------- the simulator
IN_SIMULATOR = """
import numpy as np, pytest
from numba import cuda, float32
from numbarnn.cuda.launch import Kernel, LaunchConfig

@cuda.jit(device=True)
def twice(x):
    return x + x

@cuda.jit
def kernel(out, a, pair, factor, t, flip):
    '''out[i] = 2 a[t, i] factor + the sum of pair, reversed within the block if flip.'''
    shared = cuda.shared.array(0, float32)
    i, k = cuda.grid(1), cuda.threadIdx.x
    shared[k] = twice(a[t, i]) * factor + pair[0][i] + pair[1]
    cuda.syncthreads()
    out[i] = shared[cuda.blockDim.x - 1 - k] if flip else shared[k]

out = np.full((12, 2), np.nan, np.float32)
a = np.arange(36, dtype=np.float32).reshape(3, 12)
b = np.ones(12, np.float32)
a.flags.writeable = False
step = Kernel(kernel).bind(
    LaunchConfig(grid=3, block=4, shared_bytes=16), out[:, 1], a, (b, np.float32(5)), np.float32(0.5))
step(2, 0)
np.testing.assert_array_equal(out[:, 1], a[2] + 6)
assert np.isnan(out[:, 0]).all()
b[:] = 2                                           # arrays are used as they are at each launch
step(1, 1)
np.testing.assert_array_equal(out[:, 1], (a[1] + 7).reshape(3, 4)[:, ::-1].ravel())

@cuda.jit
def in_place(x, also_x, t):
    i = cuda.grid(1)
    x[i] = also_x[i] + t

x = np.zeros(4, np.float32)
add = Kernel(in_place).bind(LaunchConfig(2, 2), x, x)
add(1); add(2)
assert x.tolist() == [3] * 4                       # both names are one memory

for wrong in ((), (1, 2)):
    with pytest.raises(TypeError, match="in_place takes 1 more int32"):
        add(*wrong)
with pytest.raises(TypeError, match="argument 1 of kernel in_place"):
    Kernel(in_place).bind(LaunchConfig(1, 1), x, 0.5)
with pytest.raises(RuntimeError, match="NUMBA_ENABLE_CUDASIM"):
    Kernel(in_place).compile((9, 0), x, x)
print("simulated")
"""


def test_simulator_runs_the_kernel_on_numpy_arrays():
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(IN_SIMULATOR)],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.stdout.strip() == "simulated", ran.stderr


def test_import_needs_neither_cupy_nor_a_driver():
    program = """
        import sys
        sys.modules["cupy"] = None
        import numbarnn.cuda.launch
        assert "cuda.bindings.driver" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=120)


# ------------------------------------------------------------------------------------------------ on a GPU
@pytest.fixture
def cupy(monkeypatch, tmp_path):
    """CuPy, where it has a device."""
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path))
    module = pytest.importorskip("cupy")
    try:
        module.zeros(1)
    except module.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"no GPU: {error}")
    return module


def gpu_kernel(out, a, pair, factor, t):
    """out[b, j] = tanh(a[t, b, j] factor) + pair[0][j] - pair[1]; 2-D grid-stride."""
    for b in range(cuda.blockIdx.y, out.shape[0], cuda.gridDim.y):
        for j in range(cuda.grid(1), out.shape[1], cuda.gridsize(1)):
            out[b, j] = math.tanh(a[t, b, j] * factor) + pair[0][j] - pair[1]


@pytest.mark.gpu
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
def test_gpu_computes(cupy, strided):
    rng = np.random.default_rng(0)
    a = cupy.asarray(rng.standard_normal((5, 7, 66), dtype=np.float32))
    bias = cupy.asarray(rng.standard_normal(66, dtype=np.float32))
    out = cupy.full((7, 66), np.nan, np.float32)
    if strided:
        a, bias, out = a[:, :, ::2], bias[::-2], out[:, 33:]
    else:
        a, bias, out = a[:, :, :33].copy(), bias[:33].copy(), out[:, :33].copy()
    step = Kernel(cuda.jit(gpu_kernel)).bind(
        LaunchConfig(grid=(2, 3), block=32), out, a, (bias, np.float32(0.25)), np.float32(0.5)
    )
    for t in (4, 0):
        step(t)
        expected = np.tanh(cupy.asnumpy(a[t]) * np.float32(0.5)) + cupy.asnumpy(bias) - np.float32(0.25)
        # tanh is right to 2 units in the last place of 1, here and there; two sums below 4 are rounded, twice
        np.testing.assert_allclose(cupy.asnumpy(out), expected, rtol=0, atol=8 * np.finfo(np.float32).eps)


def chain_kernel(x, t):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = x[i] * 3 + t


@pytest.mark.gpu
def test_gpu_follows_the_current_stream_and_records_graphs(cupy):
    x = cupy.zeros(1000, np.int32)
    step = Kernel(cuda.jit(chain_kernel)).bind(LaunchConfig(8, 128), x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for t in range(5):
            step(t)
    stream.synchronize()
    expected = 0
    for t in range(5):
        expected = expected * 3 + t
    assert (cupy.asnumpy(x) == expected).all()

    with stream:
        x.fill(0)
        stream.begin_capture()
        for t in range(5):
            step(t)  # the ints are copied into the graph, so the next call may overwrite them
        graph = stream.end_capture()
        graph.launch()
    stream.synchronize()
    assert (cupy.asnumpy(x) == expected).all()


def shared_kernel(out, words):
    tile = cuda.shared.array(0, np.uint32)
    for i in range(cuda.threadIdx.x, words, cuda.blockDim.x):
        tile[words - 1 - i] = i
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, words, cuda.blockDim.x):
        out[i] = tile[i]


@pytest.mark.gpu
def test_gpu_dynamic_shared_memory_beyond_48_kb(cupy):
    words = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"] // 4
    out = cupy.zeros(words, np.uint32)
    kernel = Kernel(cuda.jit(shared_kernel))
    kernel.bind(LaunchConfig(1, 256, shared_bytes=4 * words), out)(words)
    np.testing.assert_array_equal(cupy.asnumpy(out), np.arange(words)[::-1])
    with pytest.raises(RuntimeError, match=f"kernel shared_kernel .* device 0 allows {4 * words} bytes"):
        kernel.bind(LaunchConfig(1, 256, shared_bytes=4 * words + 1024), out)


@pytest.mark.gpu
def test_gpu_cooperative_launch(cupy):

    @cuda.jit
    def all_meet_kernel(x):
        """Every block waits (not for ever) until all have come: x[0] blocks; x[1 + block] = 1."""
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(x, 0, 1)
            for _ in range(1_000_000):
                if cuda.atomic.add(x, 0, 0) == cuda.gridDim.x:
                    x[1 + cuda.blockIdx.x] = 1
                    break

    x = cupy.zeros(2000, np.int32)
    kernel = Kernel(all_meet_kernel)
    kernel.bind(LaunchConfig(16, 64, cooperative=True), x)()
    assert cupy.asnumpy(x)[:18].tolist() == [16] + [1] * 16 + [0]
    too_large = kernel.bind(LaunchConfig(10**6, 64, cooperative=True), x)
    fit = too_large.resident_blocks()
    assert 16 <= fit < 10**6
    with pytest.raises(RuntimeError, match=f"{fit} such blocks fit.*COOPERATIVE_LAUNCH_TOO_LARGE"):
        too_large()


@pytest.mark.gpu
def test_gpu_empty_arrays_and_other_threads(cupy):
    Kernel(cuda.jit(chain_kernel)).bind(LaunchConfig(1, 32), cupy.zeros(0, np.int32))(1)
    x = cupy.ones(32, np.int32)
    step = Kernel(cuda.jit(chain_kernel)).bind(LaunchConfig(1, 32), x)
    thread = threading.Thread(target=step, args=(4,))
    thread.start()
    thread.join()
    cupy.cuda.Device().synchronize()
    assert (cupy.asnumpy(x) == 7).all()
