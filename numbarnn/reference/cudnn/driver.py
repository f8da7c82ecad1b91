"""The CUDA driver through ctypes: a device, its primary context (the one CuPy and PyTorch use too), and its memory."""

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
}
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

    def __enter__(self):
        self.call("cuCtxPushCurrent_v2", self._context)
        return self

    def __exit__(self, *_):
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def synchronize(self):
        """Wait for all work of the context."""
        with self:
            self.call("cuCtxSynchronize")

    def allocate(self, size):
        """Address of new memory of that many bytes."""
        address = _ADDRESS()
        with self:
            self.call("cuMemAlloc_v2", ctypes.byref(address), max(size, 1))
        return address.value

    def free(self, address):
        """Give memory back."""
        with self:
            self.call("cuMemFree_v2", address)

    def fill(self, address, byte, size):
        """Set every byte."""
        with self:
            self.call("cuMemsetD8_v2", address, byte, size)

    def write(self, address, array):
        """Copy a contiguous NumPy array to the device."""
        with self:
            self.call("cuMemcpyHtoD_v2", address, array.ctypes.data, array.nbytes)

    def read(self, array, address):
        """Fill a contiguous NumPy array from the device."""
        with self:
            self.call("cuMemcpyDtoH_v2", array.ctypes.data, address, array.nbytes)


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
