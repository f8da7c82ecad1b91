"""Call the CUDA driver functions that launches need, and check the status of each call.

CuPy owns the context (the primary one of its current device) and the stream. CuPy and cuda-bindings are imported at
first use, so that the package works without them.
"""

import threading
from functools import cache

from numbarnn.common import install

_CURES = {
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": (
        "the block needs more registers or shared memory than a multiprocessor has. Use fewer threads per block, or "
        "@cuda.jit(max_registers=...)"
    ),
    "CUDA_ERROR_NO_BINARY_FOR_GPU": (
        "the kernel was compiled for another device. Empty the cache (NUMBARNN_CACHE_DIR), upgrade numba-cuda"
    ),
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": (
        "a cooperative launch needs all blocks resident at once. Use fewer or smaller blocks"
    ),
    "CUDA_ERROR_INVALID_VALUE": (
        "a grid has at most 65535 blocks in y and z, a block no more shared memory than the device allows"
    ),
    "CUDA_ERROR_INVALID_HANDLE": "the kernel was bound on another device than CuPy's current one, so bind there too",
    "CUDA_ERROR_ILLEGAL_ADDRESS": (
        "this or an earlier kernel accessed memory out of bounds. This process cannot use the device any more"
    ),
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": "bind kernels before the capture of a graph begins",
    "CUDA_ERROR_NOT_SUPPORTED": "the device, or the capture of a graph, does not support this kind of launch",
}

_lock = threading.RLock()
_functions = {}  # (device, entry, cubin) -> Function; modules stay loaded until the process ends


@cache
def bindings():
    """Return the module cuda.bindings.driver."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise RuntimeError(f"launching kernels needs cuda-bindings ({error}): {install.for_gpus()}") from error
    return driver


@cache
def cupy():
    """Return the module cupy."""
    try:
        import cupy as module
    except ImportError as error:
        raise RuntimeError(f"running on a GPU needs CuPy ({error}): {install.for_gpus()}") from error
    return module


def check(result, doing):
    """Return the values of a driver call.

    Args:
        result: what cuda.bindings returned, (status, value, ...).
        doing: name of the action, for the message.

    Raises:
        RuntimeError: the status is an error.
    """
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"{doing}: {explain(status)}")
    return values[0] if len(values) == 1 else tuple(values)


def explain(status):
    """Describe a driver status: name, number, the driver's text and, where known, a cure."""
    described, text = bindings().cuGetErrorString(status)
    text = text.decode(errors="replace") if int(described) == 0 and text else "unknown error"
    name = getattr(status, "name", "unknown status")  # a plain int if the driver is newer than cuda-bindings
    cure = _CURES.get(name)
    return f"{name} ({int(status)}, {text})" + (f"; {cure}" if cure else "")


def current_device():
    """Return the index of CuPy's current device."""
    return cupy().cuda.runtime.getDevice()


def current_stream_source():
    """Return a function that returns CuPy's current stream, whose attribute `ptr` is its handle."""
    return cupy().cuda.get_current_stream


@cache
def compute_capability(device):
    """Return the compute capability of a device, (major, minor)."""
    return divmod(int(cupy().cuda.Device(device).compute_capability), 10)


def activate(device):
    """Make the device's primary context (CuPy's) current in this thread, unless the thread has a context."""
    driver = bindings()
    check(driver.cuInit(0), "starting CUDA")
    if int(check(driver.cuCtxGetCurrent(), "asking for the current context")) == 0:
        handle = check(driver.cuDeviceGet(device), f"getting device {device}")
        context = check(driver.cuDevicePrimaryCtxRetain(handle), f"getting the context of device {device}")
        check(driver.cuCtxSetCurrent(context), f"using the context of device {device}")


class Function:
    """A kernel loaded on a device.

    Attributes:
        handle: the driver's CUfunction.
        compiled: its CompiledKernel.
        device: index of the device.
    """

    def __init__(self, handle, compiled, device):
        self.handle, self.compiled, self.device = handle, compiled, device
        self._dynamic_bytes = 0

    def allow_shared_memory(self, dynamic_bytes):
        """Raise the limit of dynamic shared memory per block, which is 48 KB by default on every device."""
        with _lock:
            if dynamic_bytes <= self._dynamic_bytes:
                return
            driver = bindings()
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            status = driver.cuFuncSetAttribute(self.handle, attribute, dynamic_bytes)[0]
            if int(status) != 0:
                most = self._device_attribute("CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
                raise RuntimeError(
                    f"kernel {self.compiled.name} needs {self.compiled.shared_bytes} bytes of static and "
                    f"{dynamic_bytes} bytes of dynamic shared memory per block, but device {self.device} allows "
                    f"{most} bytes in all: {explain(status)}"
                )
            self._dynamic_bytes = dynamic_bytes

    def resident_blocks(self, threads, dynamic_bytes):
        """Return how many blocks of this size the device holds at once: the largest grid of a cooperative launch."""
        per_multiprocessor = check(
            bindings().cuOccupancyMaxActiveBlocksPerMultiprocessor(self.handle, threads, dynamic_bytes),
            f"asking how many blocks of kernel {self.compiled.name} a multiprocessor holds",
        )
        return per_multiprocessor * self._device_attribute("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT")

    def _device_attribute(self, name):
        driver = bindings()
        attribute = getattr(driver.CUdevice_attribute, name)
        handle = check(driver.cuDeviceGet(self.device), f"getting device {self.device}")
        return check(driver.cuDeviceGetAttribute(attribute, handle), f"asking device {self.device} for {name}")


def load(compiled, device):
    """Load a kernel, once per device and cubin, on a device whose context is current."""
    key = (device, compiled.entry, compiled.cubin)
    with _lock:
        if key not in _functions:
            driver = bindings()
            doing = f"loading kernel {compiled.name} (sm_{compiled.cc[0]}{compiled.cc[1]}) on device {device}"
            module = check(driver.cuModuleLoadData(compiled.cubin), doing)
            handle = check(driver.cuModuleGetFunction(module, compiled.entry.encode()), doing)
            _functions[key] = Function(handle, compiled, device)
        return _functions[key]
