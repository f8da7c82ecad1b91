"""A GPU for cuDNN, through CuPy, whose context PyTorch uses too: arrays by their addresses, and CUDA graphs."""

from contextlib import suppress

import numpy as np

from numbarnn import engines
from numbarnn.cuda.driver import cupy

NAN_BYTE = 0xFF  # a number of such bytes is NaN in every dtype


class Device:
    """The first GPU, or a RuntimeError. `with device:` makes it CuPy's current one, and puts the former one back."""

    def __init__(self):
        if (problem := engines.why_not("cuda")) is not None:
            raise RuntimeError(f"cuDNN needs an NVIDIA GPU and its driver: {problem}")
        self._cupy = cupy()
        self._cuda = self._cupy.cuda
        self._device, runtime = self._cuda.Device(0), self._cuda.runtime
        self.name = runtime.getDeviceProperties(0)["name"].decode(errors="replace")
        version = runtime.driverGetVersion()
        self.driver_version = f"{version // 1000}.{version % 1000 // 10}"

    def __enter__(self):
        self._device.__enter__()
        return self

    def __exit__(self, *exception):
        self._device.__exit__(*exception)

    def synchronize(self):
        self._device.synchronize()

    def empty(self, shape, dtype):
        """A new array of CuPy's."""
        try:
            with self:
                return self._cupy.empty(shape, dtype)
        except MemoryError as error:
            raise RuntimeError(f"{error}; free memory on the device, or use smaller sizes") from error

    def copied(self, array):
        """A NumPy array's elements on the device; None for None, which is NULL."""
        if array is None:
            return None
        out = self.empty(array.shape, array.dtype)
        with self:
            out.set(np.ascontiguousarray(array))
        return out

    def unwritten(self, shape, dtype):
        """An array full of NaN for an output, so that an element that is never written shows."""
        array = self.empty(shape, dtype)
        self.fill(array, NAN_BYTE)
        return array

    def fill(self, array, byte, stream=None):
        """Set every byte when what stands before it on a stream is done, without waiting for that; None: the default
        stream."""
        with self:
            self._cuda.runtime.memsetAsync(array.data.ptr, byte, array.nbytes, stream or 0)

    def read(self, array):
        """An array of the device as NumPy's."""
        with self:
            return self._cupy.asnumpy(array)

    def record(self, work):
        """The graph of what `work(stream)` starts on a stream of its own: it is recorded and not run.

        A RuntimeError says that it cannot be recorded.

        Memory that the work uses has to be kept by whoever launches it. What is recorded may allocate memory on the
        way, as cuDNN does at times: CuPy records in the relaxed mode.
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


def address(array):
    """What a call takes for an array: its address; None, which is NULL, for None."""
    return None if array is None else array.data.ptr
