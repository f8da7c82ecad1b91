"""Where arrays live and kernels run: CUDA, simulated CUDA, CPU, behind one small interface (`base.Engine`)."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from threading import RLock

from numbarnn.common import install
from numbarnn.common.forks import freed_in_forks
from numbarnn.cuda.compiler import simulated
from numbarnn.engines.base import Engine, Job

__all__ = ["Engine", "Job", "available", "get", "get_num_threads", "set_num_threads", "why_not"]

NAMES = ("cpu", "cuda", "sim")
_lock = freed_in_forks(RLock())


@cache
def _gpu_problem():
    """Why no GPU can be used, with the cure; None if one can."""
    if simulated():
        return "NUMBA_ENABLE_CUDASIM=1 is set, so kernels run in the simulator: unset it"
    if find_spec("cupy") is None:
        return f"CuPy is not installed: {install.for_gpus()}"
    if lacks := install.compiler_lacks("cuda12"):
        return lacks
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy finds no usable GPU ({error}): check the driver with nvidia-smi"
    return None if count else "this machine has no NVIDIA GPU"


def why_not(name: str) -> str | None:
    """Why the engine of that name cannot run in this process, with the cure; None if it can."""
    if name == "cpu":
        return None if find_spec("scipy_openblas32") else "OpenBLAS is missing: pip install scipy-openblas32"
    if name == "sim":
        return install.simulator_lacks()
    return _gpu_problem()


def available() -> list[str]:
    """Names of the engines that run in this process, of "cpu", "cuda" and "sim"."""
    return [name for name in NAMES if why_not(name) is None]


def get(device: str | Engine = "auto") -> Engine:
    """The engine for a device; the same object for the same device.

    Args:
        device: "auto" (a GPU where there is one, else the CPU), "cpu", "cuda", "cuda:N", or "sim".

    Raises:
        ValueError: no such device name.
        RuntimeError: the engine cannot run here; the message says why and what to do.
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
    """Let calls on the CPU use this many threads; at first all CPUs that this process may run on, or where it uses
    modules of `numbarnn.torch`, as many of these as `torch.set_num_threads` allows.

    Small problems take fewer, as many as pay. With another number of threads results may differ in their last bits.

    Raises:
        ValueError: threads is not a positive int.
    """
    get("cpu").set_num_threads(threads)


def get_num_threads() -> int:
    """How many threads calls on the CPU may use."""
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
