"""Choose where arrays live and kernels run: CPU, CUDA, or simulated CUDA, behind one interface (`base.Engine`)."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from threading import RLock

from numbarnn.common import install
from numbarnn.common.forks import freed_in_forks
from numbarnn.cuda.compiler import simulated
from numbarnn.engines.base import Engine, EngineJob

__all__ = ["Engine", "EngineJob", "available", "get", "get_num_threads", "set_num_threads", "why_not"]

NAMES = ("cpu", "cuda", "sim")
_lock = freed_in_forks(RLock())


@cache
def _gpu_problem():
    """Return why no GPU can be used, with the cure, or None."""
    if simulated():
        return "NUMBA_ENABLE_CUDASIM=1 is set, so kernels run in the simulator: unset it"
    if find_spec("cupy") is None:
        return f"CuPy is not installed: {install.for_gpus()}"
    if lacks := install.compiler_lacks() or install.unsuitable(("numba", "numba-cuda")) or _too_new():
        return lacks
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if "insufficient" in str(error):
            runtime = cupy.cuda.runtime
            here, wanted = (_release(one()) for one in (runtime.driverGetVersion, runtime.runtimeGetVersion))
            cure = f"update the driver, or take the packages of CUDA 12: {install.command('cuda12')}"
            return f"the driver is for CUDA {here}, and the installed packages are for CUDA {wanted}: {cure}"
        return f"CuPy finds no usable GPU ({error}): check the driver with nvidia-smi"
    return None if count else "this machine has no NVIDIA GPU"


def _too_new():
    """Return which package is too new or too old for Numba, with the cure, or None."""
    return next(filter(None, (install.unsuitable(("numpy", "llvmlite"), one) for one in ("numba", "numba-cuda"))), None)


def _release(version):
    """Return CUDA's version, such as 12020, as text."""
    return f"{version // 1000}.{version % 1000 // 10}"


def why_not(name: str) -> str | None:
    """Return why an engine ("cpu", "cuda" or "sim") cannot run in this process, with the cure, or None."""
    if name == "cpu":
        missing = None if find_spec("scipy_openblas32") else "OpenBLAS is missing: pip install scipy-openblas32"
        return missing or install.unsuitable(("numpy", "llvmlite", "scipy-openblas32"))
    if name == "sim":
        return install.simulator_lacks()
    return _gpu_problem()


def available() -> list[str]:
    """Return the names of the engines that run in this process, of "cpu", "cuda" and "sim"."""
    return [name for name in NAMES if why_not(name) is None]


def get(device: str | Engine = "auto") -> Engine:
    """Return the engine of a device, the same object each time.

    Args:
        device: "auto" (a GPU if there is one, else the CPU), "cpu", "cuda", "cuda:N" or "sim".

    Raises:
        ValueError: there is no such device name.
        RuntimeError: the engine cannot run here; the message has the reason and the cure.
    """
    if isinstance(device, Engine):
        return device
    if device == "auto":
        device = "cuda" if why_not("cuda") is None else "cpu"
    name, colon, ordinal = device.partition(":") if isinstance(device, str) else (None, "", "")
    if name not in NAMES or (colon and (name != "cuda" or not ordinal.isdecimal())):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda', 'cuda:N' or 'sim', not {device!r}")
    problem = why_not(name)
    if problem:
        raise RuntimeError(f"device {device!r} cannot be used: {problem}")
    with _lock:  # a second engine for one device would launch kernels next to the first one's
        return _make(name, int(ordinal or 0))


def set_num_threads(threads: int) -> None:
    """Set the number of threads for calls on the CPU.

    The default is NUMBARNN_NUM_THREADS, or all usable CPUs; with `numbarnn.torch` at most `torch.get_num_threads()`.
    Small problems use fewer.

    Args:
        threads: the number of threads.

    Raises:
        ValueError: threads is not a positive int.
    """
    get("cpu").set_num_threads(threads)


def get_num_threads() -> int:
    """Return the number of threads that calls on the CPU may use."""
    return get("cpu").num_threads


@cache
def _make(name, ordinal):
    if name == "cpu":
        from numbarnn.engines.cpu.engine import CpuEngine

        return CpuEngine()
    from numbarnn.engines.gpu import engine as device

    if name == "sim":
        return device.SimulatedEngine()
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if ordinal >= count:
        raise RuntimeError(f"device 'cuda:{ordinal}' does not exist: this machine has {count} GPU(s)")
    return device.CudaEngine(ordinal)
