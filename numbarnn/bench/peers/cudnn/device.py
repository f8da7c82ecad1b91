"""cuDNN's library and handle on the first GPU, with CuPy's memory and CUDA graphs; PyTorch uses the same context."""

import ctypes
from contextlib import suppress
from functools import cache

import numpy as np

from numbarnn import engines
from numbarnn.cuda.driver import cupy

from . import library

NAN_BYTE = 0xFF  # a number of such bytes is NaN in every dtype


class Session:
    """cuDNN on one device. One thread at a time may use it, as cuDNN's handle allows no more.

    Args:
        library: a `library.Library`. arrays: CuPy. device: CuPy's, a context in which it is the current one.
    """

    def __init__(self, library, arrays, device):
        self.library, self._arrays, self.device, self.handle = library, arrays, device, ctypes.c_void_p()
        with device:  # the handle is never destroyed: a Session is kept as long as the process lives
            library.call("cudnnCreate", handle=ctypes.byref(self.handle))

    def call(self, function, **arguments):
        """Call a function of cuDNN that takes the handle, and leave what it started to the device."""
        with self.device:
            self.library.call(function, handle=self.handle, **arguments)

    def empty(self, shape, dtype, byte=None):
        """Return a new array of CuPy's, with every byte set if one is given."""
        try:
            with self.device:
                array = self._arrays.empty(shape, dtype)
        except MemoryError as error:
            raise RuntimeError(f"{error}; free memory on the device, or use smaller sizes") from error
        if byte is not None:
            self.fill(array, byte)
        return array

    def copied(self, array):
        """Return a NumPy array's elements on the device; None for None, which is NULL."""
        if array is not None:
            out = self.empty(array.shape, array.dtype)
            with self.device:
                out.set(np.ascontiguousarray(array))
            return out

    def fill(self, array, byte, stream=None):
        """Set every byte when what stands before it on a stream is done; None: the default stream."""
        with self.device:
            self._arrays.cuda.runtime.memsetAsync(array.data.ptr, byte, array.nbytes, stream or 0)

    def read(self, array):
        """Return an array of the device as NumPy's."""
        with self.device:
            return self._arrays.asnumpy(array)

    def record(self, work):
        """Return the graph of what `work(stream)` starts; a RuntimeError says that it cannot be recorded.

        Memory that the work uses has to be kept by whoever launches it.
        """
        with self.device:
            stream = self._arrays.cuda.Stream(non_blocking=True)
            stream.begin_capture()  # in the relaxed mode: cuDNN allocates memory at times
            try:
                self.call("cudnnSetStream", streamId=stream.ptr)
                try:
                    work(stream.ptr)
                finally:
                    self.call("cudnnSetStream", streamId=None)
            except BaseException:  # the recording has to end, whatever became of it; what is raised is the reason
                with suppress(RuntimeError):
                    stream.end_capture()
                raise
            return stream.end_capture()

    def launch(self, graph):
        """Start a graph on the default stream, without waiting."""
        with self.device:
            graph.launch(self._arrays.cuda.Stream.null)

    def __str__(self):
        """What results came from: cuDNN 9.28.0 on NVIDIA H200, CUDA driver 13.0."""
        runtime = self._arrays.cuda.runtime
        name, version = runtime.getDeviceProperties(0)["name"].decode(errors="replace"), runtime.driverGetVersion()
        driver = f"{version // 1000}.{version % 1000 // 10}"
        return f"cuDNN {self.library.version_text} on {name}, CUDA driver {driver}"


@cache
def default_session():
    """Return cuDNN on the first GPU; RuntimeError where cuDNN, a driver or a GPU is missing, or it does not start."""
    loaded = library.library()
    if (problem := engines.why_not("cuda")) is not None:
        raise RuntimeError(f"cuDNN needs an NVIDIA GPU and its driver: {problem}")
    library.preload_companions()
    return Session(loaded, cupy(), cupy().cuda.Device(0))


@cache
def why_not():
    """Return why cuDNN cannot be used here, as a sentence; None where it can."""
    try:
        default_session()
    except RuntimeError as error:
        return str(error)
    return None
