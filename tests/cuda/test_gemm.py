"""Products against float64: NumPy's path, cuBLAS as ctypes calls it (a stand-in that multiplies), cuBLAS on a GPU."""

import ctypes
import threading
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from numbarnn.common.precision import DTYPES, is_half, numpy_dtype
from numbarnn.cuda import cublas, gemm

pytest.importorskip("ml_dtypes")
FORMS = [(dtype, dtype) for dtype in DTYPES] + [("float16", "float32"), ("bfloat16", "float32")]
by_form = pytest.mark.parametrize("dtype, out_dtype", FORMS, ids=lambda name: name)
by_flags = pytest.mark.parametrize(
    "transpose_a, transpose_b, accumulate",
    [(a, b, c) for a in (False, True) for b in (False, True) for c in (False, True)],
    ids=lambda flag: "yes" if flag else "no",
)
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
CUDA_TYPES = {
    0: np.float32,
    1: np.float64,
    2: np.float16,
    14: numpy_dtype("bfloat16"),
}  # cudaDataType of library_types.h


def normal(dtype, *shape, seed=0):
    """Normal numbers in the left columns of a wider array, so that rows stand at a stride."""
    wide = np.random.default_rng(seed).standard_normal((*shape[:-1], shape[-1] + 3))
    return wide.astype(numpy_dtype(dtype))[..., : shape[-1]]


class Case:
    """Operands of one product, M = 5, N = 7, K = 33, and what it should give."""

    def __init__(self, dtype, out_dtype, transpose_a=False, transpose_b=False, accumulate=False, steps=None):
        M, N, K = 5, 7, 33
        stack = () if steps is None else (steps,)
        self.a = normal(dtype, *stack, *((K, M) if transpose_a else (M, K)), seed=1)
        self.b = normal(dtype, *((N, K) if transpose_b else (K, N)), seed=2)
        self.start = normal(out_dtype, M, N, seed=3)
        self.out = self.start.copy() if accumulate else np.full_like(self.start, np.nan)
        self.flags = {"transpose_b": transpose_b, "accumulate": accumulate}
        if steps is None:
            self.flags["transpose_a"] = transpose_a

    def check(self, out, t=None):
        """Within the rounding of K sums in the precision that adds, and one rounding to out's dtype."""
        a, b = (self.a if t is None else self.a[t]).astype(np.float64), self.b.astype(np.float64)
        a, b = a.T if self.flags.get("transpose_a") else a, b.T if self.flags["transpose_b"] else b
        start = self.start.astype(np.float64) if self.flags["accumulate"] else 0
        expected, size = start + a @ b, np.abs(start) + np.abs(a) @ np.abs(b)
        sums = EPS["float64" if self.a.dtype == np.float64 else "float32"] * a.shape[1] * size
        error = np.abs(out.astype(np.float64) - expected)
        assert (error <= sums + EPS[out.dtype.name] / 2 * (np.abs(expected) + sums)).all(), error.max()


class Outputs:
    """A product for each of three steps, whose results stand in one array (3, M, N), columns of a wider one."""

    def __init__(self, dtype, out_dtype, accumulate):
        self.case = Case(dtype, out_dtype, transpose_b=True, accumulate=accumulate, steps=3)
        self.start = normal(out_dtype, 3, 5, 7, seed=4)
        self.out = normal(out_dtype, 3, 5, 7, seed=5)
        self.out[...] = self.start if accumulate else np.nan

    def check(self, out, done):
        """Of the steps that are done the product, of others what was there."""
        for t in range(3):
            self.case.start = self.start[t]
            if t in done:
                self.case.check(out[t], t)
            else:
                np.testing.assert_array_equal(out[t].astype(np.float64), self.out[t].astype(np.float64))


@pytest.fixture(params=["numpy", "cublas", pytest.param("gpu", marks=pytest.mark.gpu)])
def place(request):
    """(function that brings an array to where products are computed, function that brings it back)."""
    if request.param == "gpu":
        cupy = request.getfixturevalue("cupy")
        return partial(on_gpu, cupy), cupy.asnumpy
    if request.param == "cublas":
        request.getfixturevalue("library")
        return OnDevice, lambda array: getattr(array, "array", array)
    return (lambda array: array,) * 2


def on_gpu(cupy, array):
    """The array on the GPU, with the columns to its right if it is a part of a wider one."""
    return cupy.asarray(array) if array.base is None else cupy.asarray(array.base)[..., : array.shape[-1]]


# ------------------------------------------------------------------------------------ NumPy, cuBLAS' stand-in, a GPU
@by_flags
@by_form
def test_product(place, dtype, out_dtype, transpose_a, transpose_b, accumulate):
    there, back = place
    case = Case(dtype, out_dtype, transpose_a, transpose_b, accumulate)
    out = there(case.out)
    gemm.matmul(out, there(case.a), there(case.b), **case.flags)
    case.check(back(out))


@pytest.mark.parametrize("accumulate", (False, True), ids=("set", "add"))
@by_form
def test_step_product_of_each_step_its_own(place, dtype, out_dtype, accumulate):
    """The first direction's columns of h are written, those of the second are not."""
    there, back = place
    outputs = Outputs(dtype, out_dtype, accumulate)
    out = there(outputs.out.base.copy()[..., :7])
    product = gemm.step_product(out, there(outputs.case.a), there(outputs.case.b), **outputs.case.flags)
    for done in ([2], [2, 0]):
        product(done[-1])
        outputs.check(back(out), done)
    np.testing.assert_array_equal(back(out.base)[..., 7:], outputs.out.base[..., 7:])


@by_form
def test_step_product(place, dtype, out_dtype):
    there, back = place
    case = Case(dtype, out_dtype, transpose_b=True, accumulate=True, steps=3)
    out, start = there(case.out), there(case.start)
    product = gemm.step_product(out, there(case.a), there(case.b), **case.flags)
    for t in (2, 0):
        out[...] = start
        product(t)
        case.check(back(out), t)
    assert getattr(product, "keeps", [out])[0] is out


@pytest.mark.parametrize(
    "dtypes",
    [("float32", "float32", "float64"), ("float16", "float32", "float32"), ("float64", "float32", "float32"),
     ("bfloat16", "float16", "float16"), ("float16", "bfloat16", "float16")],
    ids="-".join,
)  # fmt: skip
def test_dtypes_that_do_not_go_together(dtypes):
    out, a, b = (np.zeros((2, 2), numpy_dtype(dtype)) for dtype in dtypes)
    for multiply in (gemm.matmul, lambda out, a, b: gemm.step_product(out, a[None], b)):
        with pytest.raises(TypeError, match=f"{dtypes[1]}, {dtypes[2]} and {dtypes[0]}"):
            multiply(out, a, b)


# ------------------------------------------------------------------------------------- cuBLAS' stand-in, in C's terms
class OnDevice:
    """A NumPy array with the attributes of a CuPy array that `numbarnn.cuda.cublas` reads."""

    def __init__(self, array):
        self.array, self.data = array, SimpleNamespace(ptr=array.ctypes.data)
        self.device = SimpleNamespace(id=0)
        self.shape, self.strides, self.dtype, self.ndim = array.shape, array.strides, array.dtype, array.ndim
        self.itemsize, self.base = array.itemsize, array.base

    def __setitem__(self, index, other):
        self.array[index] = other.array


def column_major(address, dtype, rows, columns, leading):
    """A matrix in memory as cuBLAS sees it: a view."""
    assert leading >= rows
    buffer = (ctypes.c_char * (((columns - 1) * leading + rows) * dtype.itemsize)).from_address(address)
    strides = (dtype.itemsize, leading * dtype.itemsize)
    return np.ndarray((rows, columns), dtype, buffer, strides=strides)


class StandIn:
    """Functions with C's types that check their arguments and do what cuBLAS does, on host memory."""

    def __init__(self):
        self.calls, self.streams, self.computes, self.fail = [], {}, [], {}
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        signatures = {
            "cublasCreate_v2": [ctypes.POINTER(pointer)],
            "cublasSetStream_v2": [pointer, pointer],
            "cublasSetWorkspace_v2": [pointer, pointer, ctypes.c_size_t],
            "cublasSetMathMode": [pointer, integer],
            "cublasDestroy_v2": [pointer],
            "cublasGemmEx": [
                pointer, *[integer] * 5, pointer, *[pointer, integer, integer] * 2, pointer,
                *[pointer, integer, integer], integer, integer,
            ],
        }  # fmt: skip
        for name, types in signatures.items():
            setattr(self, name, ctypes.CFUNCTYPE(integer, *types)(self._recorded(name)))
        names = {0: b"CUBLAS_STATUS_SUCCESS", 3: b"CUBLAS_STATUS_ALLOC_FAILED", 15: b"CUBLAS_STATUS_NOT_SUPPORTED"}
        self.cublasGetStatusName = lambda status: names[status.value]

    def _recorded(self, name):
        def function(*arguments):
            self.calls.append(name)
            return self.fail.get(name, 0) or getattr(self, f"_{name}")(*arguments)

        return function

    def _cublasCreate_v2(self, handle):
        handle[0] = 1000 + self.calls.count("cublasCreate_v2")
        self.streams[handle[0]] = None
        return 0

    def _cublasSetStream_v2(self, handle, stream):
        self.streams[handle] = stream or 0
        return 0

    def _cublasSetWorkspace_v2(self, handle, workspace, size):
        assert self.streams[handle] is not None and workspace % 256 == 0
        self.workspace = size
        return 0

    def _cublasSetMathMode(self, handle, mode):
        assert handle in self.streams and mode == 16
        return 0

    def _cublasDestroy_v2(self, handle):
        del self.streams[handle]
        return 0

    def _cublasGemmEx(
        self, handle, op_a, op_b, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, compute,
        algorithm,
    ):  # fmt: skip
        assert self.streams[handle] == self.stream and algorithm == -1
        self.computes.append(compute)
        scalar = np.float64 if compute == 70 else np.float32
        alpha, beta = (column_major(address, np.dtype(scalar), 1, 1, 1)[0, 0] for address in (alpha, beta))
        sizes = {0: lambda rows, columns: (rows, columns), 1: lambda rows, columns: (columns, rows)}
        a = column_major(a, np.dtype(CUDA_TYPES[a_type]), *sizes[op_a](m, k), lda).astype(scalar)
        b = column_major(b, np.dtype(CUDA_TYPES[b_type]), *sizes[op_b](k, n), ldb).astype(scalar)
        c = column_major(c, np.dtype(CUDA_TYPES[c_type]), m, n, ldc)
        result = alpha * ((a.T if op_a else a) @ (b.T if op_b else b))
        c[...] = result + (beta * c if beta else 0)
        return 0


@pytest.fixture
def library(monkeypatch):
    """The stand-in in cuBLAS' place, and as much of CuPy as it takes."""
    stand_in = StandIn()
    stand_in.stream, stand_in.capability, stand_in.capturing = 77, "90", False
    stand_in.allocated = weakref.WeakSet()

    class Memory:
        ptr = 1 << 20

    def alloc(size):
        if stand_in.fail.get("alloc"):
            raise MemoryError(f"no {size} bytes")
        memory = Memory()
        stand_in.allocated.add(memory)
        return memory

    class Device:
        def __init__(self, number):
            self.compute_capability = stand_in.capability

        __enter__ = __exit__ = lambda *_: None

    cuda = SimpleNamespace(
        Device=Device,
        alloc=alloc,
        get_current_stream=lambda: SimpleNamespace(ptr=stand_in.stream, is_capturing=lambda: stand_in.capturing),
        runtime=SimpleNamespace(getDevice=lambda: 0),
    )
    monkeypatch.setitem(__import__("sys").modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(cublas, "library", lambda: stand_in)
    monkeypatch.setattr(cublas, "_handles", {})
    return stand_in


@pytest.mark.parametrize("dtype", DTYPES)
def test_tf32_is_for_float32_where_allowed(library, dtype):
    case = Case(dtype, dtype)
    gemm.matmul(OnDevice(case.out), OnDevice(case.a), OnDevice(case.b), **case.flags, allow_tf32=True)
    assert library.computes == [{"float32": 77, "float64": 70}.get(dtype, 68)]


@pytest.mark.parametrize("setting, compute", [(None, 68), ("0", 68), ("1", 69)])
def test_float32_stays_float32_where_the_environment_says_tf32(library, monkeypatch, setting, compute):
    if setting is None:
        monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    else:
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", setting)
    for dtype, expected in (("float32", compute), ("float16", 68), ("float64", 70)):
        case = Case(dtype, dtype)
        gemm.matmul(OnDevice(case.out), OnDevice(case.a), OnDevice(case.b), **case.flags)
        assert library.computes.pop() == expected


def in_another_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_one_handle_for_each_stream_and_of_default_streams_for_each_thread(library):
    """Work on a stream of one's own comes one after the other, from whatever threads; a default stream may be one per
    thread under one address."""
    case = Case("float32", "float32")
    product = cublas.product(OnDevice(case.out), OnDevice(case.a), OnDevice(case.b), **case.flags)
    for library.stream in (77, 0, 77, 0):  # the stand-in asserts that a handle is used on its own stream
        product()
    assert list(library.streams.values()) == [77, 0]
    in_another_thread(product)
    assert list(library.streams.values()) == [77, 0, 0]
    library.stream = 77
    in_another_thread(product)
    assert list(library.streams.values()) == [77, 0, 0]


def test_released_streams_get_new_handles_and_work_spaces(library):
    case = Case("float32", "float32")
    product = cublas.product(OnDevice(case.out), OnDevice(case.a), OnDevice(case.b), **case.flags)
    for library.stream in (77, 78, 79):
        product()
    gemm.release(0, (77, 78, 80))  # the last never multiplied
    gemm.release(1, (79,))  # another device's
    assert list(library.streams.values()) == [79] and len(library.allocated) == 1
    for library.stream in (79, 77):
        product()
    assert list(library.streams.values()) == [79, 77] and len(library.allocated) == 2


def test_no_room_for_a_work_space(library):
    library.fail["alloc"] = True
    with pytest.raises(MemoryError, match=r"no room for cuBLAS's work space, 32 MiB .*buffer_pool\.clear\(\)"):
        cublas.handle()
    assert not cublas._handles


@pytest.mark.parametrize("capability, mebibytes", [("75", 4), ("89", 4), ("90", 32), ("100", 32)])
def test_a_handle_has_a_workspace(library, capability, mebibytes):
    library.capability = capability
    cublas.handle()
    made = ["cublasCreate_v2", "cublasSetStream_v2", "cublasSetWorkspace_v2", "cublasSetMathMode"]
    assert library.calls == made and library.workspace == mebibytes << 20
    cublas.handle()
    assert library.calls == made


def test_a_handle_is_not_made_during_capture(library):
    case = Case("float32", "float32")
    product = cublas.product(OnDevice(case.out), OnDevice(case.a), OnDevice(case.b), **case.flags)
    product()
    library.capturing = True
    product()
    library.stream = 78
    with pytest.raises(RuntimeError, match=r"first product on a stream .*compute it once .* before begin_capture"):
        product()
    assert library.calls.count("cublasCreate_v2") == 1


def test_a_failed_call_is_named(library):
    case = Case("bfloat16", "float32")
    product = cublas.product(OnDevice(case.out), OnDevice(case.a), OnDevice(case.b), **case.flags)
    library.fail["cublasGemmEx"] = 15
    expected = r"product \(5, 33\) by \(33, 7\), bfloat16 to float32.*CUBLAS_STATUS_NOT_SUPPORTED \(15\); .*float32"
    with pytest.raises(RuntimeError, match=expected):
        product()
    library.fail["cublasSetWorkspace_v2"], library.stream = 3, 5
    with pytest.raises(RuntimeError, match=r"handle on device 0: CUBLAS_STATUS_ALLOC_FAILED \(3\); .*no memory left"):
        product()
    assert len(cublas._handles) == 1  # the one that failed is not kept


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(RuntimeError, match=r"CuPy and cuBLAS .*pip install .*cuda13"):
        cublas.library.__wrapped__()


# ------------------------------------------------------------------------------------------------------------- a GPU
@pytest.mark.gpu
@by_form
def test_gpu_products_in_a_graph(cupy, dtype, out_dtype):
    """Captured once, replayed with the same bits as eager products."""
    case = Case(dtype, out_dtype, transpose_b=True, accumulate=True, steps=3)
    out, a, b, start = (on_gpu(cupy, array) for array in (case.out, case.a, case.b, case.start.copy()))
    stream = cupy.cuda.Stream(non_blocking=True)
    product = gemm.step_product(out, a, b, **case.flags)
    with stream:
        cupy.cuda.Device().synchronize()
        for t in range(3):
            product(t)
        eager = cupy.asnumpy(out)
        stream.begin_capture()
        for t in range(3):
            product(t)
        graph = stream.end_capture()
        for _ in range(2):
            out.data.copy_from_device_async(start.data, out.nbytes, stream)
            graph.launch(stream)
            np.testing.assert_array_equal(cupy.asnumpy(out).astype(np.float64), eager.astype(np.float64))


@pytest.mark.gpu
def test_gpu_tf32_is_coarser_and_only_where_allowed(cupy):
    a, b = (cupy.asarray(normal("float32", 256, 256, seed=seed)) for seed in (1, 2))
    exact, errors = cupy.asnumpy(a).astype(np.float64) @ cupy.asnumpy(b).astype(np.float64), []
    for allow_tf32 in (False, True):
        out = cupy.empty((256, 256), np.float32)
        gemm.matmul(out, a, b, allow_tf32=allow_tf32)
        errors.append(np.abs(cupy.asnumpy(out) - exact).max())
    assert errors[0] < 1e-4
    if int(cupy.cuda.Device().compute_capability) >= 80:
        assert 1e-3 < errors[1] < 1e-1


def test_halves_are_what_has_16_bits():
    assert [dtype for dtype in DTYPES if is_half(dtype)] == ["float16", "bfloat16"]
