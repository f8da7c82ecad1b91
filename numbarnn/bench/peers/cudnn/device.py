"""cuDNN's library, its handle, and a GPU by CuPy, whose context PyTorch uses too: memory, and CUDA graphs."""

import ctypes
from contextlib import contextmanager, suppress
from functools import cache

import numpy as np

from numbarnn import engines
from numbarnn.cuda.driver import cupy

from . import library

NAN_BYTE = 0xFF  # a number of such bytes is NaN in every dtype


class Device:
    """The first GPU, or a RuntimeError. `with device:` makes it CuPy's current one, and puts the former one back."""

    def __init__(self):
        if (problem := engines.why_not("cuda")) is not None:
            raise RuntimeError(f"cuDNN needs an NVIDIA GPU and its driver: {problem}")
        self._cupy = cupy()
        self._cuda, self._device = self._cupy.cuda, self._cupy.cuda.Device(0)
        self.name = self._cuda.runtime.getDeviceProperties(0)["name"].decode(errors="replace")
        version = self._cuda.runtime.driverGetVersion()
        self.driver_version = f"{version // 1000}.{version % 1000 // 10}"

    def __enter__(self):
        self._device.__enter__()
        return self

    def __exit__(self, *exception):
        self._device.__exit__(*exception)

    def synchronize(self):
        """Wait until the device has done all its work."""
        self._device.synchronize()

    def empty(self, shape, dtype):
        """Return a new array of CuPy's."""
        try:
            with self:
                return self._cupy.empty(shape, dtype)
        except MemoryError as error:
            raise RuntimeError(f"{error}; free memory on the device, or use smaller sizes") from error

    def copied(self, array):
        """Return a NumPy array's elements on the device; None for None, which is NULL."""
        if array is None:
            return None
        out = self.empty(array.shape, array.dtype)
        with self:
            out.set(np.ascontiguousarray(array))
        return out

    def unwritten(self, shape, dtype):
        """Return an array full of NaN for an output, so that an element that is never written shows."""
        array = self.empty(shape, dtype)
        self.fill(array, NAN_BYTE)
        return array

    def fill(self, array, byte, stream=None):
        """Set every byte when what stands before it on a stream is done; None: the default stream."""
        with self:
            self._cuda.runtime.memsetAsync(array.data.ptr, byte, array.nbytes, stream or 0)

    def read(self, array):
        """Return an array of the device as NumPy's."""
        with self:
            return self._cupy.asnumpy(array)

    def record(self, work):
        """Return the graph of what `work(stream)` starts on a stream of its own, which is recorded and not run.

        A RuntimeError says that it cannot be recorded. Memory that the work uses has to be kept by whoever launches it.
        """
        with self:
            stream = self._cuda.Stream(non_blocking=True)
            stream.begin_capture()  # in the relaxed mode: cuDNN allocates memory at times
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


class Session:
    """cuDNN on one device. One thread at a time may use it, as cuDNN's handle allows no more."""

    def __init__(self, library, device):
        self.library, self.device, self.handle = library, device, ctypes.c_void_p()
        with device:  # the handle is never destroyed: a Session is kept as long as the process lives
            library.call("cudnnCreate", handle=ctypes.byref(self.handle))

    def call(self, function, **arguments):
        """Call a function of cuDNN that takes the handle, and leave what it started to the device."""
        with self.device:
            self.library.call(function, handle=self.handle, **arguments)

    @contextmanager
    def on_stream(self, stream):
        """A context in which cuDNN works on another stream than the default one."""
        self.call("cudnnSetStream", streamId=stream)
        try:
            yield
        finally:
            self.call("cudnnSetStream", streamId=None)

    def __str__(self):
        """What results came from: cuDNN 9.28.0 on NVIDIA H200, CUDA driver 13.0."""
        return f"cuDNN {self.library.version_text} on {self.device.name}, CUDA driver {self.device.driver_version}"


@cache
def default_session():
    """Return cuDNN on the first GPU; RuntimeError where cuDNN, a driver or a GPU is missing, or it does not start."""
    loaded, device = library.library(), Device()
    library.preload_companions()
    return Session(loaded, device)


@cache
def why_not():
    """Return why cuDNN cannot be used here, as a sentence; None where it can."""
    try:
        default_session()
    except RuntimeError as error:
        return str(error)
    return None
