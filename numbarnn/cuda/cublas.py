"""Multiply CuPy arrays with cuBLAS through ctypes, for `numbarnn.cuda.gemm`.

    f = product(out, a, b, transpose_b=True)    # prepares all arguments of the call
    f(t)                                        # out = a[t] bᵀ on CuPy's current stream of the arrays' device

CuPy's own products refuse to run while a stream is captured as a CUDA graph. Here each stream has a handle with its own
workspace. So products can be captured, and products on several streams neither wait for each other nor change from run
to run. A call takes a few microseconds of host time.
"""

import ctypes
import os
import sys
import threading
from functools import cache

from numbarnn.common import install

# cudaDataType by NumPy's letter of a dtype; "E" is ml_dtypes' bfloat16. Reading dtype.name would take microseconds.
_DATA_TYPES = {"f": 0, "d": 1, "e": 2, "E": 14}
# (cublasComputeType_t, type of alpha and beta) by the letter of a and b.
_FLOAT32, _TF32, _FLOAT64 = (68, ctypes.c_float), (77, ctypes.c_float), (70, ctypes.c_double)
_NEVER_TF32 = (69, ctypes.c_float)  # "pedantic": ignores NVIDIA_TF32_OVERRIDE, which lets cuBLAS use TF32
_COMPUTE = {"f": _FLOAT32, "d": _FLOAT64, "e": _FLOAT32, "E": _FLOAT32}
_NOT_TRANSPOSED, _TRANSPOSED = 0, 1  # cublasOperation_t
_DEFAULT_ALGORITHM = -1  # cublasGemmAlgo_t
# cublasMath_t: no TF32 unless a call asks for it (the default), and no sums rounded to half precision.
_MATH_MODE = 0 | 16

# Workspaces that NVIDIA recommends: the large one from compute capability 9.0 on.
_LARGE_WORKSPACE, _SMALL_WORKSPACE = 32 << 20, 4 << 20
_LARGE_FROM_MAJOR = 9

_CURES = {
    "CUBLAS_STATUS_NOT_INITIALIZED": "usually the device has no memory left: free arrays, or cupy's pool",
    "CUBLAS_STATUS_ALLOC_FAILED": "the device has no memory left: free arrays, or cupy's pool",
    "CUBLAS_STATUS_ARCH_MISMATCH": "bfloat16 needs compute capability 8.0 or newer: use float16 or float32",
    "CUBLAS_STATUS_NOT_SUPPORTED": "the device, or this version of cuBLAS, has no such product: use float32",
    "CUBLAS_STATUS_INVALID_VALUE": "a size exceeds 2^31 - 1, or an array was freed",
}

_DEFAULT_STREAMS = (0, 1, 2)  # addresses that may stand for another stream in each thread

_lock = threading.Lock()
_handles = {}  # (device, stream, thread if a default stream) -> Handle; captured graphs use them until `release`


@cache
def library():
    """Return cuBLAS as a ctypes library, the one that CuPy has loaded.

    Raises:
        RuntimeError: CuPy or cuBLAS is not installed.
    """
    try:
        import cupy
        from cupy_backends.cuda.libs import cublas  # noqa: F401 - CuPy searches for the library and loads it

        major = cupy.cuda.runtime.runtimeGetVersion() // 1000
        return ctypes.CDLL(f"cublas64_{major}.dll" if sys.platform == "win32" else f"libcublas.so.{major}")
    except (ImportError, OSError) as error:
        raise RuntimeError(f"products on the GPU need CuPy and cuBLAS ({error}): {install.for_gpus()}") from error


def _check(status, doing):
    """Raise RuntimeError with the status's name and cure unless it is 0."""
    if status:
        function = library().cublasGetStatusName
        function.restype = ctypes.c_char_p
        name = (function(ctypes.c_int(status)) or b"unknown status").decode()
        cure = _CURES.get(name)
        raise RuntimeError(f"{doing}: {name} ({status})" + (f"; {cure}" if cure else ""))


class Handle:
    """A cuBLAS handle of the current device for one stream, with its own workspace.

    Attributes:
        argument: the handle for ctypes.
    """

    def __init__(self, device, stream):
        import cupy

        cublas, doing = library(), f"making a cuBLAS handle on device {device}"
        self.argument = ctypes.c_void_p()
        large = int(cupy.cuda.Device(device).compute_capability) // 10 >= _LARGE_FROM_MAJOR
        size = _LARGE_WORKSPACE if large else _SMALL_WORKSPACE
        try:
            self._workspace = cupy.cuda.alloc(size)
        except MemoryError as error:
            raise MemoryError(
                f"GPU {device} has no memory left for cuBLAS's workspace, {size >> 20} MiB for each stream: free "
                f"arrays (layer.engine.buffer_pool.clear() frees what layers keep), or use a smaller batch ({error})"
            ) from error
        workspace = ctypes.c_void_p(self._workspace.ptr)
        _check(cublas.cublasCreate_v2(ctypes.byref(self.argument)), doing)
        # Set the stream first: setting it drops the workspace.
        _check(cublas.cublasSetStream_v2(self.argument, ctypes.c_void_p(stream)), doing)
        _check(cublas.cublasSetWorkspace_v2(self.argument, workspace, ctypes.c_size_t(size)), doing)
        _check(cublas.cublasSetMathMode(self.argument, ctypes.c_int(_MATH_MODE)), doing)

    def close(self):
        """Free the handle and its workspace after waiting for the device."""
        _check(library().cublasDestroy_v2(self.argument), "freeing a cuBLAS handle")
        self._workspace = None


def _key(device, stream):
    return device, stream, threading.get_ident() if stream in _DEFAULT_STREAMS else None


def handle():
    """Return the Handle of CuPy's current device and stream, and make it at first use.

    Raises:
        RuntimeError: the stream is being captured and has no handle yet, or cuBLAS fails.
        MemoryError: the device has no memory for the workspace.
    """
    import cupy

    device, stream = cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream()
    key = _key(device, stream.ptr)
    with _lock:
        if key not in _handles:
            if stream.ptr and stream.is_capturing():
                raise RuntimeError(
                    "the first product on a stream allocates memory, so a CUDA graph cannot capture it: compute one "
                    "product on that stream before begin_capture()"
                )
            _handles[key] = Handle(device, stream.ptr)
        return _handles[key]


def release(device, streams):
    """Free the handles of streams (addresses) on CuPy's current device. The next product makes them again.

    Graphs that captured products on these streams must not run afterwards.
    """
    with _lock:
        for stream in streams:
            closing = _handles.pop(_key(device, stream), None)
            if closing is not None:
                closing.close()


def product(out, a, b, *, transpose_a=False, transpose_b=False, accumulate=False, allow_tf32=False):
    """Return a function f(t) that computes out = op(a[t]) op(b), or adds it to out, on CuPy's current stream.

    Arguments: as for `numbarnn.cuda.gemm.step_product`, but a may be a single matrix. Two threads must not call the
    function at once.
    """
    import cupy

    # cuBLAS is column-major: a row-major product out = a b is the column-major outᵀ = bᵀ aᵀ on the same memory.
    m, n = out.shape[-2:]
    k = a.shape[-2] if transpose_a else a.shape[-1]
    compute, scalar = _COMPUTE[a.dtype.char]
    if a.dtype.char == "f" and allow_tf32:
        compute, scalar = _TF32
    elif a.dtype.char == "f" and os.environ.get("NVIDIA_TF32_OVERRIDE", "0") != "0":
        compute, scalar = _NEVER_TF32
    alpha, beta = ctypes.byref(scalar(1)), ctypes.byref(scalar(1 if accumulate else 0))
    # Each call sets these three:
    handle_argument, a_argument, out_argument = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    operations = [_TRANSPOSED if transposed else _NOT_TRANSPOSED for transposed in (transpose_b, transpose_a)]
    arguments = (
        handle_argument, *_ints(*operations, n, m, k), alpha, *_matrix(b), a_argument, *_matrix(a)[1:], beta,
        out_argument, *_matrix(out)[1:], *_ints(compute, _DEFAULT_ALGORITHM),
    )  # fmt: skip
    gemm, current_stream = library().cublasGemmEx, cupy.cuda.get_current_stream
    device = out.device.id
    (a_start, a_stride), (out_start, out_stride) = _steps(a), _steps(out)

    def run(t=0):
        current = _handles.get(_key(device, current_stream().ptr)) or handle()
        handle_argument.value = current.argument.value
        a_argument.value, out_argument.value = a_start + t * a_stride, out_start + t * out_stride
        status = gemm(*arguments)
        if status:
            _check(status, f"cuBLAS product ({m}, {k}) by ({k}, {n}), {a.dtype} to {out.dtype}, device {device}")

    run.keeps = (out, a, b)  # cuBLAS gets raw pointers, so keep the arrays alive
    return run


def _ints(*values):
    return tuple(map(ctypes.c_int, values))


def _steps(array):
    """Return the address of an array's first matrix and the bytes from one matrix to the next (0 for a single one)."""
    return array.data.ptr, array.strides[0] if array.ndim == 3 else 0


def _matrix(matrix):
    """Return the address, type and leading dimension of the last two axes as cuBLAS takes them."""
    leading = max(1, matrix.shape[-1], matrix.strides[-2] // matrix.itemsize)  # elements between the starts of two rows
    return ctypes.c_void_p(matrix.data.ptr), *_ints(_DATA_TYPES[matrix.dtype.char], leading)
