"""cuDNN's library, a device and cuDNN's handle on it, together; and whether they are here."""

import ctypes
from contextlib import contextmanager
from functools import cache

from . import driver, library


class Session:
    """cuDNN on one device. One thread at a time may use it, as cuDNN's handle allows no more."""

    def __init__(self, library, device):
        self.library, self.device, self.handle = library, device, ctypes.c_void_p()
        with device:  # the handle is never destroyed: a Session is kept as long as the process lives
            library.call("cudnnCreate", handle=ctypes.byref(self.handle))

    def start(self, function, **arguments):
        """Call a function of cuDNN that takes the handle, and leave what it started to the device."""
        with self.device:
            self.library.call(function, handle=self.handle, **arguments)

    def call(self, function, **arguments):
        """Call a function of cuDNN that takes the handle, and wait until the device has done what it started."""
        self.start(function, **arguments)
        self.device.synchronize()

    @contextmanager
    def on_stream(self, stream):
        """A context in which cuDNN works on another stream than the default one."""
        self.start("cudnnSetStream", streamId=stream)
        try:
            yield
        finally:
            self.start("cudnnSetStream", streamId=None)

    def __str__(self):
        """What results came from: cuDNN 9.28.0 on NVIDIA H200, CUDA driver 13.0."""
        return f"cuDNN {self.library.version_text} on {self.device.name}, CUDA driver {self.device.driver_version}"


@cache
def default_session():
    """cuDNN on the first GPU; RuntimeError where cuDNN, a driver or a GPU is missing, or cuDNN does not start."""
    loaded = library.library()
    device = driver.Device()
    library.preload_companions()
    return Session(loaded, device)


@cache
def why_not():
    """Why cuDNN cannot be used here, as a sentence; None where it can."""
    try:
        default_session()
    except RuntimeError as error:
        return str(error)
    return None
