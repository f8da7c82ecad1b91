"""Matrix products by cuBLAS through ctypes: what `numbarnn.cuda.gemm` does with CuPy arrays.

    f = product(out, a, b, transpose_b=True)    # all arguments of the call prepared
    f(t)                                        # out = a[t] bᵀ on CuPy's current stream, of the arrays' device

CuPy's own wrappers refuse to run while a stream is captured as a CUDA graph. Here each stream that multiplies has a
handle with a workspace of its own, so that products can be captured, and products on several streams neither wait for
each other nor differ from run to run. A call costs a few microseconds of host time.
"""

import ctypes
import os
import sys
import threading
from functools import cache

from numbarnn.common import install

# By NumPy's letter of a dtype ("E" is ml_dtypes' bfloat16; names take NumPy microseconds): cudaDataType, ...
_DATA_TYPES = {"f": 0, "d": 1, "e": 2, "E": 14}
# ... and, of the dtype of a and b, (cublasComputeType_t, type of alpha and beta).
_FLOAT32, _TF32, _FLOAT64 = (68, ctypes.c_float), (77, ctypes.c_float), (70, ctypes.c_double)
_NEVER_TF32 = (69, ctypes.c_float)  # "pedantic": where NVIDIA_TF32_OVERRIDE lets cuBLAS round what nobody allowed it to
_COMPUTE = {"f": _FLOAT32, "d": _FLOAT64, "e": _FLOAT32, "E": _FLOAT32}
_NOT_TRANSPOSED, _TRANSPOSED = 0, 1  # cublasOperation_t
_DEFAULT_ALGORITHM = -1  # cublasGemmAlgo_t
# cublasMath_t: no TF32 unless a call asks for it (default), and sums of half products never rounded on the way.
_MATH_MODE = 0 | 16

# Workspace by compute capability's major number, as NVIDIA recommends; else the smaller one.
_LARGE_WORKSPACE, _SMALL_WORKSPACE = 32 << 20, 4 << 20
_LARGE_FROM_MAJOR = 9

_CURES = {
    "CUBLAS_STATUS_NOT_INITIALIZED": "usually the device has no memory left: free arrays, or cupy's pool",
    "CUBLAS_STATUS_ALLOC_FAILED": "the device has no memory left: free arrays, or cupy's pool",
    "CUBLAS_STATUS_ARCH_MISMATCH": "bfloat16 needs compute capability 8.0 or newer: use float16 or float32",
    "CUBLAS_STATUS_NOT_SUPPORTED": "the device, or this version of cuBLAS, has no such product: use float32",
    "CUBLAS_STATUS_INVALID_VALUE": "sizes beyond 2^31 - 1, or an array that is freed",
}

# Under these addresses (0, cudaStreamLegacy, cudaStreamPerThread) each thread may have a stream of its own.
_DEFAULT_STREAMS = (0, 1, 2)

_lock = threading.Lock()
_handles = {}  # (device, stream, thread, of a default stream) -> Handle; kept until `release`, as graphs refer to them


@cache
def library():
    """cuBLAS as a ctypes library: the very one that CuPy has loaded.

    Raises:
        RuntimeError: it is not installed, or CuPy is missing.
    """
    try:
        import cupy
        from cupy_backends.cuda.libs import cublas  # noqa: F401 - CuPy searches for the library and loads it

        major = cupy.cuda.runtime.runtimeGetVersion() // 1000
        return ctypes.CDLL(f"cublas64_{major}.dll" if sys.platform == "win32" else f"libcublas.so.{major}")
    except (ImportError, OSError) as error:
        raise RuntimeError(f"products on the GPU need CuPy and cuBLAS ({error}): {install.for_gpus()}") from error


def _check(status, doing):
    """Raise RuntimeError, with the status' name and the cure where known, unless a call returned 0."""
    if status:
        function = library().cublasGetStatusName
        function.restype = ctypes.c_char_p
        name = (function(ctypes.c_int(status)) or b"unknown status").decode()
        cure = _CURES.get(name)
        raise RuntimeError(f"{doing}: {name} ({status})" + (f"; {cure}" if cure else ""))


class Handle:
    """A cuBLAS handle of the current device, tied to one stream, with a workspace of its own.

    Attributes:
        argument: the handle as ctypes passes it.
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
        _check(cublas.cublasSetStream_v2(self.argument, ctypes.c_void_p(stream)), doing)
        # after the stream: setting that takes the workspace away
        _check(cublas.cublasSetWorkspace_v2(self.argument, workspace, ctypes.c_size_t(size)), doing)
        _check(cublas.cublasSetMathMode(self.argument, ctypes.c_int(_MATH_MODE)), doing)

    def close(self):
        """Give all of it back; waits until the device has done what it was asked for."""
        _check(library().cublasDestroy_v2(self.argument), "giving up a cuBLAS handle")
        self._workspace = None


def _key(device, stream):
    """Return the key of a handle: one per stream, whose work comes one after the other whoever asks for it."""
    return device, stream, threading.get_ident() if stream in _DEFAULT_STREAMS else None


def handle():
    """The Handle of CuPy's current device and stream, made at first use.

    Raises:
        RuntimeError: it would have to be made while the stream is captured, or cuBLAS refuses.
        MemoryError: there is no room for its work space.
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
    """Give back the handles and work spaces of streams (addresses), to be made again at the next product.

    Graphs in which products on these streams were captured must not run any more. The device must be CuPy's current.
    """
    with _lock:
        for stream in streams:
            found = _handles.pop(_key(device, stream), None)
            if found is not None:
                found.close()


def product(out, a, b, *, transpose_a=False, transpose_b=False, accumulate=False, allow_tf32=False):
    """A function f(t) that computes out = op(a[t]) op(b), or adds it, on CuPy's current stream.

    a may be one matrix, and out as many as a.

    Args: see `numbarnn.cuda.gemm.step_product`. Not to be called by two threads at once.
    """
    import cupy

    # cuBLAS is column-major: a row-major product out = a b is the column-major outᵀ = bᵀ aᵀ, on the same memory.
    m, n = out.shape[-2:]
    k = a.shape[-2] if transpose_a else a.shape[-1]
    compute, scalar = _COMPUTE[a.dtype.char]
    if a.dtype.char == "f" and allow_tf32:
        compute, scalar = _TF32
    elif a.dtype.char == "f" and os.environ.get("NVIDIA_TF32_OVERRIDE", "0") != "0":
        compute, scalar = _NEVER_TF32
    alpha, beta = ctypes.byref(scalar(1)), ctypes.byref(scalar(1 if accumulate else 0))
    # What changes from call to call:
    handle_argument, a_argument, out_argument = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    arguments = (
        handle_argument, *_ints(_operation(transpose_b), _operation(transpose_a), n, m, k), alpha,
        *_matrix(b), a_argument, *_matrix(a)[1:], beta, out_argument, *_matrix(out)[1:],
        *_ints(compute, _DEFAULT_ALGORITHM),
    )  # fmt: skip
    gemm, current_stream = library().cublasGemmEx, cupy.cuda.get_current_stream
    device = out.device.id
    a_start, a_stride, out_start, out_stride = (*_matrices(a), *_matrices(out))

    def run(t=0):
        found = _handles.get(_key(device, current_stream().ptr)) or handle()
        handle_argument.value = found.argument.value
        a_argument.value, out_argument.value = a_start + t * a_stride, out_start + t * out_stride
        status = gemm(*arguments)
        if status:
            _check(status, f"cuBLAS product ({m}, {k}) by ({k}, {n}), {a.dtype} to {out.dtype}, device {device}")

    run.keeps = (out, a, b)  # raw pointers are used: keep what they point to
    return run


def _operation(transpose):
    return _TRANSPOSED if transpose else _NOT_TRANSPOSED


def _ints(*values):
    return tuple(map(ctypes.c_int, values))


def _matrices(array):
    """(address of the first, bytes from one to the next) of one matrix or several."""
    return array.data.ptr, array.strides[0] if array.ndim == 3 else 0


def _matrix(matrix):
    """(address, type, leading dimension) of the last two axes, as a call takes them."""
    leading = max(1, matrix.shape[-1], matrix.strides[-2] // matrix.itemsize)  # elements between the starts of two rows
    return ctypes.c_void_p(matrix.data.ptr), *_ints(_DATA_TYPES[matrix.dtype.char], leading)
