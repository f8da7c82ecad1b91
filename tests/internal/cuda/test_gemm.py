"""Products against float64: NumPy's path, cuBLAS as ctypes calls it (that of the emulated GPU), cuBLAS on a GPU."""

import sys
import threading
from functools import partial

import numpy as np
import pytest

from emulator import cupy_module, libraries
from emulator.cupy_module import Stream
from numbarnn.common.precision import DTYPES, numpy_dtype
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


@pytest.fixture(params=["numpy", "cublas", pytest.param("gpu", marks=pytest.mark.gpu)])
def place(request):
    """(function that brings an array to where products are computed, function that brings it back)."""
    if request.param == "gpu":
        cupy = request.getfixturevalue("cupy")
        return partial(on_gpu, cupy), cupy.asnumpy
    if request.param == "cublas":
        request.getfixturevalue("library")
        return partial(on_gpu, cupy_module), cupy_module.asnumpy
    return (lambda array: array,) * 2


def on_gpu(cupy, array):
    """The array on the GPU, with the columns to its right if it is a part of a wider one."""
    return cupy.asarray(array) if array.base is None else cupy.asarray(array.base)[..., : array.shape[-1]]


# ------------------------------------------------------------------------------------ NumPy, the emulated GPU, a GPU
@by_flags
@by_form
def test_product(place, dtype, out_dtype, transpose_a, transpose_b, accumulate):
    there, back = place
    case = Case(dtype, out_dtype, transpose_a, transpose_b, accumulate)
    out = there(case.out)
    gemm.matmul(out, there(case.a), there(case.b), **case.flags)
    case.check(back(out))


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
        with pytest.raises(TypeError, match=f"a {dtypes[1]}, b {dtypes[2]} and out {dtypes[0]}"):
            multiply(out, a, b)


# ------------------------------------------------------------------------------------- cuBLAS as ctypes calls it
@pytest.fixture
def library(monkeypatch):
    """cuBLAS and CuPy of the emulated GPU, in the places of those of this machine."""
    found = libraries.Cublas()
    monkeypatch.setitem(sys.modules, "cupy", cupy_module)
    monkeypatch.setattr(cublas, "library", lambda: found)
    monkeypatch.setattr(cublas, "_handles", {})
    return found


def operands(case):
    """out, a and b on the emulated GPU."""
    return [on_gpu(cupy_module, array) for array in (case.out, case.a, case.b)]


def product_of(dtype="float32", out_dtype="float32"):
    """A product on the emulated GPU, prepared."""
    case = Case(dtype, out_dtype)
    return cublas.product(*operands(case), **case.flags)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tf32_is_for_float32_where_allowed(library, dtype):
    case = Case(dtype, dtype)
    gemm.matmul(*operands(case), **case.flags, allow_tf32=True)
    assert library.computes == [{"float32": 77, "float64": 70}.get(dtype, 68)]


@pytest.mark.parametrize("setting, compute", [(None, 68), ("0", 68), ("1", 69)])
def test_float32_stays_float32_where_the_environment_says_tf32(library, monkeypatch, setting, compute):
    if setting is None:
        monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    else:
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", setting)
    for dtype, expected in (("float32", compute), ("float16", 68), ("float64", 70)):
        case = Case(dtype, dtype)
        gemm.matmul(*operands(case), **case.flags)
        assert library.computes.pop() == expected


def run_on(stream, product):
    with stream:
        product()


def in_another_thread(*arguments):
    thread = threading.Thread(target=run_on, args=arguments)
    thread.start()
    thread.join()


def test_one_handle_for_each_stream_and_of_default_streams_for_each_thread(library):
    """Work on a stream of one's own comes one after the other, from whatever threads; a default stream may be one per
    thread under one address."""
    product, own, default = product_of(), Stream(), Stream.null
    for stream in (own, default, own, default):  # the emulated library asserts that a handle is used on its own stream
        run_on(stream, product)
    assert list(library.streams.values()) == [own.ptr, 0]
    in_another_thread(default, product)
    assert list(library.streams.values()) == [own.ptr, 0, 0]
    in_another_thread(own, product)
    assert list(library.streams.values()) == [own.ptr, 0, 0]


def test_a_handle_is_not_made_during_capture(library):
    product, stream, other = product_of(), Stream(), Stream()
    with stream:
        product()
        stream.begin_capture()
        product()
        stream.end_capture()
    with other:
        other.begin_capture()
        with pytest.raises(
            RuntimeError, match=r"first product on a stream .*compute one product .* before begin_capture"
        ):
            product()
        other.end_capture()
    assert library.calls.count("cublasCreate_v2") == 1


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
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
