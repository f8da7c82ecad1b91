"""The CUDA driver through ctypes: a device, its primary context (the one CuPy and PyTorch use too), its memory, and
CUDA graphs."""

import ctypes
import sys
import weakref
from functools import cache

import numpy as np

_INT, _SIZE, _POINTER, _ADDRESS = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64
_ARGUMENTS = {
    "cuInit": (ctypes.c_uint,),
    "cuDriverGetVersion": (_POINTER,),
    "cuDeviceGetCount": (_POINTER,),
    "cuDeviceGet": (_POINTER, _INT),
    "cuDeviceGetName": (_POINTER, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_POINTER, _INT),
    "cuCtxPushCurrent_v2": (_POINTER,),
    "cuCtxPopCurrent_v2": (_POINTER,),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (_POINTER, _SIZE),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemsetD8_v2": (_ADDRESS, ctypes.c_ubyte, _SIZE),
    "cuMemcpyHtoD_v2": (_ADDRESS, _POINTER, _SIZE),
    "cuMemcpyDtoH_v2": (_POINTER, _ADDRESS, _SIZE),
    "cuMemsetD8Async": (_ADDRESS, ctypes.c_ubyte, _SIZE, _POINTER),
    "cuStreamCreate": (_POINTER, ctypes.c_uint),
    "cuStreamDestroy_v2": (_POINTER,),
    "cuStreamBeginCapture_v2": (_POINTER, _INT),
    "cuStreamEndCapture": (_POINTER, _POINTER),
    "cuGraphInstantiateWithFlags": (_POINTER, _POINTER, ctypes.c_ulonglong),
    "cuGraphDestroy": (_POINTER,),
    "cuGraphLaunch": (_POINTER, _POINTER),
    "cuGraphExecDestroy": (_POINTER,),
}
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not wait for the default stream
# CU_STREAM_CAPTURE_MODE_RELAXED: what is recorded may allocate memory on the way, as cuDNN does at times.
RELAXED = 2
NAN_BYTE = 0xFF  # a number of such bytes is NaN in every dtype


@cache
def load():
    """The driver's library, started.

    Raises:
        RuntimeError: there is no driver, or it does not start.
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise RuntimeError(f"there is no NVIDIA driver ({error}): cuDNN needs an NVIDIA GPU and its driver") from error
    for function, types in _ARGUMENTS.items():
        getattr(library, function).argtypes = types
    _check(library, "cuInit", 0)
    return library


def _check(library, function, *arguments):
    """Call a function of the driver; RuntimeError with the driver's words unless it returns 0."""
    status = getattr(library, function)(*arguments)
    if status:
        words = []
        for explain in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            getattr(library, explain)(_INT(status), ctypes.byref(text))
            words.append((text.value or b"unknown error").decode(errors="replace"))
        cure = "; free memory on the device, or use smaller sizes" if "OUT_OF_MEMORY" in words[0] else ""
        raise RuntimeError(f"{function}: {words[0]} ({status}, {words[1]}){cure}")


class Device:
    """A GPU. `with device:` makes its primary context the current one, and puts the former one back.

    Raises:
        RuntimeError: there is no driver or no such device.
    """

    def __init__(self, index=0):
        self.index, self._driver = index, load()
        count, handle, self._context = _INT(), _INT(), ctypes.c_void_p()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        if index >= count.value:
            raise RuntimeError(f"there is no GPU {index}: the driver finds {count.value}")
        self.call("cuDeviceGet", ctypes.byref(handle), index)
        name, version = ctypes.create_string_buffer(256), _INT()
        self.call("cuDeviceGetName", name, len(name), handle)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.name = name.value.decode(errors="replace")
        self.driver_version = f"{version.value // 1000}.{version.value % 1000 // 10}"
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)

    def call(self, function, *arguments):
        """Call a function of the driver, RuntimeError unless it succeeds."""
        _check(self._driver, function, *arguments)

    def do(self, function, *arguments):
        """`call` in the device's context."""
        with self:
            self.call(function, *arguments)

    def __enter__(self):
        self.call("cuCtxPushCurrent_v2", self._context)
        return self

    def __exit__(self, *_):
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def synchronize(self):
        """Wait for all work of the context."""
        self.do("cuCtxSynchronize")

    def allocate(self, size):
        """Address of new memory of that many bytes."""
        address = _ADDRESS()
        self.do("cuMemAlloc_v2", ctypes.byref(address), max(size, 1))
        return address.value

    def free(self, address):
        """Give memory back."""
        self.do("cuMemFree_v2", address)

    def fill(self, address, byte, size):
        """Set every byte."""
        self.do("cuMemsetD8_v2", address, byte, size)

    def fill_on(self, stream, address, byte, size):
        """Set every byte when what stands before it on a stream is done, without waiting for that; None: the default
        stream."""
        self.do("cuMemsetD8Async", address, byte, size, stream)

    def write(self, address, array):
        """Copy a contiguous NumPy array to the device."""
        self.do("cuMemcpyHtoD_v2", address, array.ctypes.data, array.nbytes)

    def read(self, array, address):
        """Fill a contiguous NumPy array from the device."""
        self.do("cuMemcpyDtoH_v2", array.ctypes.data, address, array.nbytes)

    def record(self, work):
        """The executable graph of what `work(stream)` starts on a stream of its own, where nothing of it is run.

        Raises:
            RuntimeError: it cannot be recorded.
        """
        stream, graph, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        with self:
            self.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
            try:
                self.call("cuStreamBeginCapture_v2", stream, RELAXED)
                try:
                    work(stream.value)
                except BaseException:  # the recording has to end, whatever became of it; what is raised is the reason
                    self._driver.cuStreamEndCapture(stream, ctypes.byref(graph))
                    raise
                self.call("cuStreamEndCapture", stream, ctypes.byref(graph))
                self.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
            finally:
                if graph:
                    self.call("cuGraphDestroy", graph)
                self.call("cuStreamDestroy_v2", stream)
        return executable.value

    def launch(self, executable):
        """Start a graph on the default stream, without waiting."""
        self.do("cuGraphLaunch", executable, None)

    def free_graph(self, executable):
        """Give a graph of `record` back."""
        self.do("cuGraphExecDestroy", executable)


class Graph:
    """What `work(stream)` starts, recorded once; freed when nothing refers to this object any more.

    Memory that the work uses has to be kept by whoever launches it.

    Raises:
        RuntimeError: the work cannot be recorded, or raised it.
    """

    def __init__(self, device, work):
        self._device, self._executable = device, device.record(work)
        weakref.finalize(self, device.free_graph, self._executable).atexit = False  # as Buffer's

    def launch(self):
        """Start it on the default stream, without waiting."""
        self._device.launch(self._executable)


class Buffer:
    """Memory on a device, freed when nothing refers to this object any more.

    Attributes:
        address: of its first byte. size: in bytes.
    """

    def __init__(self, device, size):
        self._device, self.size = device, size
        self.address = device.allocate(size)
        weakref.finalize(self, device.free, self.address).atexit = False  # at exit the driver frees everything

    def fill(self, byte):
        """Set every byte."""
        if self.size:
            self._device.fill(self.address, byte, self.size)
        return self

    def read(self, shape, dtype):
        """A NumPy array of that shape, which must fill the buffer."""
        array = np.empty(shape, dtype)
        assert array.nbytes == self.size, f"{array.nbytes} bytes to read from a buffer of {self.size}"
        if self.size:
            self._device.read(array, self.address)
        return array


def copied(device, array):
    """A Buffer with an array's elements; None for None, which is NULL."""
    if array is None:
        return None
    array = np.ascontiguousarray(array)
    buffer = Buffer(device, array.nbytes)
    if array.nbytes:
        device.write(buffer.address, array)
    return buffer


def unwritten(device, shape, dtype):
    """A Buffer full of NaN for an output, so that an element that is never written shows."""
    return Buffer(device, int(np.prod(shape)) * np.dtype(dtype).itemsize).fill(NAN_BYTE)


def address(buffer):
    """What a call takes for a Buffer: its address; None, which is NULL, for None."""
    return None if buffer is None else buffer.address
