"""The few calls of the CUDA driver that launching needs, each with its status checked.

CuPy owns the context (the primary one of its current device) and the stream. Nothing is imported before the
first use, so that the package works without CuPy, without cuda-bindings and without a driver.
"""

import threading
from functools import cache

from numbarnn.common import install

_CURES = {
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": (
        "the block needs more registers or shared memory than a multiprocessor has: use fewer threads per "
        "block, or @cuda.jit(max_registers=...)"
    ),
    "CUDA_ERROR_NO_BINARY_FOR_GPU": (
        "the kernel was compiled for another device: empty the cache (NUMBARNN_CACHE_DIR), upgrade numba-cuda"
    ),
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": (
        "all blocks of a cooperative launch must be resident at once: use fewer or smaller blocks"
    ),
    "CUDA_ERROR_INVALID_VALUE": (
        "a grid has at most 65535 blocks in y and z, a block no more shared memory than the device allows"
    ),
    "CUDA_ERROR_INVALID_HANDLE": "CuPy's current device is not the one this was bound on: bind there too",
    "CUDA_ERROR_ILLEGAL_ADDRESS": (
        "this or an earlier kernel accessed memory out of bounds; the process cannot use this device any more"
    ),
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": "bind kernels before the capture of a graph begins",
    "CUDA_ERROR_NOT_SUPPORTED": "the device, or the capture of a graph, does not support this kind of launch",
}

_lock = threading.RLock()
_contexts = {}  # device -> its primary context
_functions = {}  # (device, entry, cubin) -> Function; modules stay loaded as long as the process lives


@cache
def bindings():
    """The module cuda.bindings.driver."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise RuntimeError(f"launching kernels needs cuda-bindings ({error}): {install.for_gpus()}") from error
    return driver


@cache
def cupy():
    """The module cupy."""
    try:
        import cupy as module
    except ImportError as error:
        raise RuntimeError(f"running on a GPU needs CuPy ({error}): {install.for_gpus()}") from error
    return module


def check(result, doing):
    """The values a driver call returned.

    Args:
        result: what the call of cuda.bindings returned, (status, value, ...).
        doing: what was being done, for the message.

    Raises:
        RuntimeError: the status is an error; with its name, the driver's text and, where known, what to do.
    """
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"{doing}: {explain(status)}")
    return values[0] if len(values) == 1 else tuple(values)


def explain(status):
    """A driver status as text: name, number, the driver's description and, where known, what to do."""
    described, text = bindings().cuGetErrorString(status)
    text = text.decode(errors="replace") if int(described) == 0 and text else "unknown error"
    name = getattr(status, "name", "unknown status")  # a plain int if the driver is newer than cuda-bindings
    cure = _CURES.get(name)
    return f"{name} ({int(status)}, {text})" + (f"; {cure}" if cure else "")


# ---------------------------------------------------------------------------------------- device and stream
def current_device():
    """Index of CuPy's current device."""
    return cupy().cuda.runtime.getDevice()


def current_stream_source():
    """A function without arguments that returns CuPy's current stream (its handle is the attribute `ptr`)."""
    return cupy().cuda.get_current_stream


@cache
def compute_capability(device):
    """(major, minor) of a device."""
    driver = bindings()
    check(driver.cuInit(0), "starting CUDA")
    attribute = driver.CUdevice_attribute
    handle = check(driver.cuDeviceGet(device), f"getting device {device}")
    return tuple(
        check(driver.cuDeviceGetAttribute(name, handle), f"asking device {device} for its compute capability")
        for name in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )


def activate(device):
    """Make the device's primary context (CuPy's) current in this thread, if no context is."""
    driver = bindings()
    check(driver.cuInit(0), "starting CUDA")
    if int(check(driver.cuCtxGetCurrent(), "asking for the current context")) == 0:
        with _lock:
            if device not in _contexts:
                handle = check(driver.cuDeviceGet(device), f"getting device {device}")
                _contexts[device] = check(
                    driver.cuDevicePrimaryCtxRetain(handle), f"getting the context of device {device}"
                )
        check(driver.cuCtxSetCurrent(_contexts[device]), f"using the context of device {device}")


# ------------------------------------------------------------------------------------------------ functions
class Function:
    """A kernel loaded on a device.

    Attributes:
        handle: the driver's CUfunction.
        compiled: the CompiledKernel it was loaded from.
        device: index of the device.
    """

    def __init__(self, handle, compiled, device):
        self.handle, self.compiled, self.device = handle, compiled, device
        self._dynamic_bytes = 0

    def allow_shared_memory(self, dynamic_bytes):
        """Let launches use this much dynamic shared memory per block; never lowers what was allowed.

        Without it 48 KB is the limit, on every device.
        """
        with _lock:
            if dynamic_bytes <= self._dynamic_bytes:
                return
            driver = bindings()
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            status = driver.cuFuncSetAttribute(self.handle, attribute, dynamic_bytes)[0]
            if int(status) != 0:
                raise RuntimeError(
                    f"kernel {self.compiled.name} needs {self.compiled.shared_bytes} bytes of static and "
                    f"{dynamic_bytes} bytes of dynamic shared memory per block; device {self.device} allows "
                    f"{self._largest_block_memory()} bytes in all: {explain(status)}"
                )
            self._dynamic_bytes = dynamic_bytes

    def resident_blocks(self, threads, dynamic_bytes):
        """How many blocks of this size the device holds at once: the largest grid of a cooperative launch."""
        driver = bindings()
        name = self.compiled.name
        per_multiprocessor = check(
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.handle, threads, dynamic_bytes),
            f"asking how many blocks of kernel {name} a multiprocessor holds",
        )
        return per_multiprocessor * self._attribute("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT")

    def _largest_block_memory(self):
        return self._attribute("CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")

    def _attribute(self, name):
        driver = bindings()
        attribute = getattr(driver.CUdevice_attribute, name)
        handle = check(driver.cuDeviceGet(self.device), f"getting device {self.device}")
        return check(driver.cuDeviceGetAttribute(attribute, handle), f"asking device {self.device} for {name}")


def load(compiled, device):
    """The kernel loaded on a device whose context is current; loaded once per device and cubin."""
    key = (device, compiled.entry, compiled.cubin)
    with _lock:
        if key not in _functions:
            driver = bindings()
            doing = f"loading kernel {compiled.name} (sm_{compiled.cc[0]}{compiled.cc[1]}) on device {device}"
            module = check(driver.cuModuleLoadData(compiled.cubin), doing)
            handle = check(driver.cuModuleGetFunction(module, compiled.entry.encode()), doing)
            _functions[key] = Function(handle, compiled, device)
        return _functions[key]
