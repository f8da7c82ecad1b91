"""A GPU for cuDNN, through CuPy, whose context PyTorch uses too: memory by its addresses, and CUDA graphs."""

import weakref
from contextlib import suppress

import numpy as np

from numbarnn import engines
from numbarnn.cuda.driver import cupy

NAN_BYTE = 0xFF  # a number of such bytes is NaN in every dtype


class Device:
    """The first GPU. `with device:` makes it CuPy's current one, and puts the former one back.

    Raises:
        RuntimeError: CuPy, a driver or a GPU is missing.
    """

    def __init__(self):
        if (problem := engines.why_not("cuda")) is not None:
            raise RuntimeError(f"cuDNN needs an NVIDIA GPU and its driver: {problem}")
        self._cuda = cupy().cuda
        self._device, self._runtime = self._cuda.Device(0), self._cuda.runtime
        self.name = self._runtime.getDeviceProperties(0)["name"].decode(errors="replace")
        version = self._runtime.driverGetVersion()
        self.driver_version = f"{version // 1000}.{version % 1000 // 10}"

    def __enter__(self):
        self._device.__enter__()
        return self

    def __exit__(self, *exception):
        self._device.__exit__(*exception)

    def synchronize(self):
        self._device.synchronize()

    def allocate(self, size):
        """Address of new memory of that many bytes."""
        try:
            with self:
                return self._runtime.malloc(max(size, 1))
        except self._runtime.CUDARuntimeError as error:
            raise RuntimeError(f"{error}; free memory on the device, or use smaller sizes") from error

    def free(self, address):
        with self:
            self._runtime.free(address)

    def fill(self, address, byte, size):
        with self:
            self._runtime.memset(address, byte, size)

    def fill_on(self, stream, address, byte, size):
        """Set every byte when what stands before it on a stream is done, without waiting for that; None: the default
        stream."""
        with self:
            self._runtime.memsetAsync(address, byte, size, stream or 0)

    def write(self, address, array):
        """Copy a contiguous NumPy array to the device."""
        with self:
            self._runtime.memcpy(address, array.ctypes.data, array.nbytes, self._runtime.memcpyHostToDevice)

    def read(self, array, address):
        """Fill a contiguous NumPy array from the device."""
        with self:
            self._runtime.memcpy(array.ctypes.data, address, array.nbytes, self._runtime.memcpyDeviceToHost)

    def record(self, work):
        """The graph of what `work(stream)` starts on a stream of its own, where nothing of it is run.

        Memory that the work uses has to be kept by whoever launches it. What is recorded may allocate memory on the
        way, as cuDNN does at times: CuPy records in the relaxed mode.

        Raises:
            RuntimeError: the work cannot be recorded, or raised it.
        """
        with self:
            stream = self._cuda.Stream(non_blocking=True)
            stream.begin_capture()
            try:
                work(stream.ptr)
            except BaseException:  # the recording has to end, whatever became of it; what is raised is the reason
                with suppress(RuntimeError):
                    stream.end_capture()
                raise
            return stream.end_capture()

    def launch(self, graph):
        """Start a graph on the default stream, without waiting."""
        with self:
            graph.launch(self._cuda.Stream.null)


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
