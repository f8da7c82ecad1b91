"""The CUDA driver's and cuBLAS's calls that numbarnn makes, on the emulated device."""

import ctypes
from math import prod
from types import SimpleNamespace

import numpy as np

from emulator import cupy_module, machine
from emulator.arithmetic import to_tf32

order = None  # a numpy Generator that picks which threads go on; None: all that can, side by side
seed = 0  # of when blocks see what others stored; each launch adds one

_NAMES = {
    0: "CUDA_SUCCESS",
    1: "CUDA_ERROR_INVALID_VALUE",
    500: "CUDA_ERROR_NOT_FOUND",
    720: "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
}


class _Status(int):
    """A status of the driver; attribute `name`, as an enumeration's member has it."""

    @property
    def name(self):
        return _NAMES[self]


_OK, _INVALID_VALUE, _NOT_FOUND, _TOO_LARGE = map(_Status, (0, 1, 500, 720))


class Driver:
    """In place of cuda.bindings.driver."""

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT="multiprocessors",
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN="shared",
    )
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic")

    def __init__(self):
        self._launches = 0

    def cuInit(self, flags):
        return (_OK,)

    def cuDeviceGet(self, ordinal):
        return _OK, ordinal

    def cuDeviceGetAttribute(self, attribute, device):
        attributes = cupy_module.ATTRIBUTES
        known = {
            "major": 9,
            "minor": 0,
            "multiprocessors": attributes["MultiProcessorCount"],
            "shared": attributes["MaxSharedMemoryPerBlockOptin"],
        }
        return _OK, known[attribute]

    def cuCtxGetCurrent(self):
        return _OK, 1

    def cuGetErrorString(self, status):
        return _OK, b"emulated"

    def cuModuleLoadData(self, text):
        return _OK, machine.load(text.decode())

    def cuModuleGetFunction(self, kernel, entry):
        return (_OK if kernel.entry == entry.decode() else _NOT_FOUND), kernel

    def cuFuncSetAttribute(self, kernel, attribute, value):
        room = cupy_module.ATTRIBUTES["MaxSharedMemoryPerBlockOptin"]
        return (_OK if kernel.shared_bytes + value <= room + 1024 else _INVALID_VALUE,)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, kernel, threads, dynamic_bytes):
        return _OK, min(2048 // threads, 228 * 1024 // (kernel.shared_bytes + dynamic_bytes + 1024))

    def cuLaunchKernel(self, kernel, *arguments):
        *sizes, stream, pointers, _ = arguments
        return self._launch(kernel, sizes, stream, pointers, cooperative=False)

    def cuLaunchCooperativeKernel(self, kernel, *arguments):
        *sizes, stream, pointers = arguments
        fit = self.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, prod(sizes[3:6]), sizes[6])[1]
        if prod(sizes[:3]) > fit * cupy_module.ATTRIBUTES["MultiProcessorCount"]:
            return (_TOO_LARGE,)
        return self._launch(kernel, sizes, stream, pointers, cooperative=True)

    def _launch(self, kernel, sizes, stream, pointers, cooperative):
        grid, block, dynamic_bytes = sizes[:3], sizes[3:6], sizes[6]
        addresses = (ctypes.c_uint64 * len(kernel.program.parameters)).from_address(pointers) if pointers else ()
        parameters = [
            ctypes.string_at(address, size)
            for address, (_, size) in zip(addresses, kernel.program.parameters, strict=True)
        ]

        def run():
            self._launches += 1
            memory, own_seed = cupy_module.device_memory, seed + self._launches
            kernel.launch(memory, grid, block, parameters, dynamic_bytes, cooperative, order, own_seed)

        cupy_module.stream_of(stream).do(run)
        return (_OK,)


_TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: "bfloat16"}
_TF32 = 77


class Cublas:
    """In place of the library that ctypes loads.

    Attributes:
        calls: names of the functions that were called. fail: name -> the status that it returns instead.
        streams: handle -> address of its stream. workspace: bytes of the last work space.
        computes: cublasComputeType_t of each product.
    """

    def __init__(self):
        self.calls, self.fail, self.streams, self.computes, self.workspace = [], {}, {}, [], None
        names = {3: b"CUBLAS_STATUS_ALLOC_FAILED", 15: b"CUBLAS_STATUS_NOT_SUPPORTED"}
        self.cublasGetStatusName = lambda status: names[status.value]

    def __getattr__(self, name):
        function = object.__getattribute__(self, f"_{name}")

        def call(*arguments):
            self.calls.append(name)
            return self.fail.get(name) or function(*arguments) or 0

        return call

    def _cublasCreate_v2(self, handle):
        handle._obj.value = 1 + self.calls.count("cublasCreate_v2")
        self.streams[handle._obj.value] = None

    def _cublasSetStream_v2(self, handle, stream):
        self.streams[handle.value] = stream.value or 0

    def _cublasSetWorkspace_v2(self, handle, workspace, size):
        assert self.streams[handle.value] is not None, "setting the stream afterwards would take it away"
        assert workspace.value % 256 == 0
        self.workspace = size.value

    def _cublasSetMathMode(self, handle, mode):
        assert handle.value in self.streams and mode.value == 16

    def _cublasDestroy_v2(self, handle):
        del self.streams[handle.value]

    def _cublasGemmEx(self, handle, transa, transb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, *rest):
        beta, c, c_type, ldc, compute, algorithm = rest
        m, n, k, compute = map(_number, (m, n, k, compute))
        stream = self.streams[handle.value]
        assert stream == cupy_module.get_current_stream().ptr and algorithm.value == -1
        self.computes.append(compute)
        left = _matrix(_number(a), _number(a_type), _number(lda), m, k, _number(transa))
        right = _matrix(_number(b), _number(b_type), _number(ldb), k, n, _number(transb))
        out = _matrix(_number(c), _number(c_type), _number(ldc), m, n, 0)
        alpha, beta, tf32 = _number(alpha), _number(beta), compute == _TF32

        def run():
            wide = np.float64 if left.dtype == np.float64 else np.float32
            one, other = left.astype(wide), right.astype(wide)
            if tf32:
                one, other = to_tf32(one).view(np.float32), to_tf32(other).view(np.float32)
            product = alpha * (one @ other)
            out[...] = product + beta * out.astype(wide) if beta else product

        cupy_module.stream_of(stream).do(run)


def _number(argument):
    """The number in a ctypes object, or in what `byref` points to."""
    return getattr(argument, "_obj", argument).value


def _matrix(address, kind, leading, rows, columns, transposed):
    """op(matrix), which lies column by column in the device's memory."""
    dtype = np.dtype(_TYPES[kind])
    if transposed:
        return _matrix(address, kind, leading, columns, rows, False).T
    return cupy_module.device_memory.array(address, dtype, (rows, columns), (dtype.itemsize, leading * dtype.itemsize))
