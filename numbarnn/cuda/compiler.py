"""Compile `@cuda.jit` kernels to cubins, without a GPU or a driver. `numbarnn.cuda.launch` launches them.

    kernel --Numba--> PTX --nvJitLink--> cubin, with its registers, spills and shared memory

Cubins are cached in the process and on disk (`numbarnn.common.code_cache`).
"""

import os
import re
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from numbarnn.common import code_cache, install, notice
from numbarnn.cuda import patches

#: Environment variable that names the compiler in the cache's keys in place of its versions. So a machine without a
#: compiler can run kernels that another machine compiled.
TOOLCHAIN = "NUMBARNN_TOOLCHAIN"
HOW_LONG = "ten seconds for a layer of a new kind or size"  # compile time, for `notice`
_PACKAGES = (
    "numpy", "numba", "numba-cuda", "llvmlite", "cuda-bindings", "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12",
    "nvidia-nvvm", "nvidia-nvjitlink",
)  # fmt: skip

_OPTIONS = {"fastmath": False, "opt": True, "lineinfo": False, "launch_bounds": None, "max_registers": None}

_compiled = {}  # key -> CompiledKernel
_lock = threading.RLock()


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel compiled for one signature and one compute capability.

    Attributes:
        name: the kernel's Python name.
        entry: its symbol in the cubin.
        cubin: the binary that the driver loads.
        cc: its compute capability (major, minor).
        parameter_bytes: size of each kernel parameter; an array is 5 + 2 ndim parameters of 8 bytes.
        registers: registers per thread, or -1 if unknown.
        spill_bytes: bytes that spilled registers store and load, or -1 if unknown.
        shared_bytes: static shared memory per block.
        stack_bytes: local memory per thread.
    """

    name: str
    entry: str
    cubin: bytes
    cc: tuple[int, int]
    parameter_bytes: tuple[int, ...]
    registers: int
    spill_bytes: int
    shared_bytes: int
    stack_bytes: int


def compile_kernel(kernel, argument_types, cc, *, source_key=""):
    """Compile a kernel, or take it from a cache.

    The `@cuda.jit` options fastmath, launch_bounds, max_registers, lineinfo and opt apply.

    Args:
        kernel: a function decorated with `@cuda.jit`, or a plain one. It may call device functions.
        argument_types: Numba types, one per parameter of the kernel.
        cc: compute capability, such as (9, 0).
        source_key: further text for the cache's key, which has the kernel's code and all that the code refers to.

    Returns:
        CompiledKernel.

    Raises:
        RuntimeError: the CUDA compiler is not installed, or knows no device as new as `cc`.
    """
    function, argument_types, cc = _function(kernel), tuple(argument_types), tuple(map(int, cc))
    options = _options(kernel)
    key = code_cache.key(function, source_key, str(argument_types), f"{cc} {sorted(options.items())}", toolchain())
    with _lock:
        if key not in _compiled:
            _compiled[key] = _load(key) or _compile_and_store(key, function, argument_types, cc, options)
        return _compiled[key]


def ptx(kernel, argument_types, cc):
    """Return a kernel's PTX as text, without a cache. Arguments: as for `compile_kernel`."""
    toolchain()
    return _ptx(_function(kernel), tuple(argument_types), tuple(map(int, cc)), _options(kernel))


@lru_cache(maxsize=1)
def toolchain():
    """Return the versions of all parts of the compiler as text, or the value of NUMBARNN_TOOLCHAIN.

    Raises:
        RuntimeError: a part is missing.
    """
    if simulated():
        raise RuntimeError("kernels cannot be compiled in Numba's simulator: unset NUMBA_ENABLE_CUDASIM")
    if name := os.environ.get(TOOLCHAIN):
        return name
    if lacks := install.compiler_lacks():
        raise RuntimeError(lacks)
    try:
        libraries = _library_versions()
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise RuntimeError(f"the CUDA compiler was not found ({reason}): {install.for_gpus()}") from error
    packages = []
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            packages.append(f"{name} {version(name)}")
    return f"{libraries} {' '.join(packages)}"


def simulated():
    """Return whether Numba runs kernels in its simulator (NUMBA_ENABLE_CUDASIM=1).

    Numba's own setting is read only if Numba is imported or has a configuration file, since the CPU engine does not
    need Numba, whose import takes 0.25 s.
    """
    variable = os.environ.get("NUMBA_ENABLE_CUDASIM", "0")
    if sys.modules.get("numba") is None and variable in ("0", "1") and not os.path.exists(".numba_config.yaml"):
        return variable == "1"
    from numba.core import config

    return bool(config.ENABLE_CUDASIM)


def _library_versions():
    """Load NVVM, NVRTC (from which Numba gets the known devices) and nvJitLink, and return their versions as text."""
    from cuda.bindings import nvjitlink, nvrtc
    from numba.cuda.cudadrv import nvvm

    versions = {
        "NVVM": nvvm.NVVM().get_ir_version(),
        "NVRTC": nvrtc.nvrtcVersion()[1:],
        "nvJitLink": nvjitlink.version(),
    }
    return " ".join(f"{name} {'.'.join(map(str, numbers))}" for name, numbers in versions.items())


# ------------------------------------------------------------------------------------- Numba: Python to PTX
def _function(kernel):
    return getattr(kernel, "py_func", kernel)


def _options(kernel):
    """Return the `@cuda.jit` options that reach the compiler."""
    options = getattr(kernel, "targetoptions", {})
    return {name: options.get(name, default) for name, default in _OPTIONS.items()}


def _ptx(function, argument_types, cc, options):
    from numba import cuda

    options = {name: value for name, value in options.items() if name != "max_registers"}
    with _lock, patches.device_for_numba(cc), patches.numpy_for_numba(), patches.convergent_functions():
        text, _ = cuda.compile(
            function, argument_types, device=False, abi="numba", output="ptx", cc=cc, debug=False, **options
        )
    return text.strip("\0\n ")


# ---------------------------------------------------------------------------------- nvJitLink: PTX to cubin
def _compile_and_store(key, function, argument_types, cc, options):
    label = f"its GPU kernels for sm_{cc[0]}{cc[1]}"
    with code_cache.alone(key), notice.compiling(label, HOW_LONG, code_cache.directory_if_any()):
        if compiled := _load(key):  # another process has stored it while this one waited
            return compiled
        text = _ptx(function, argument_types, cc, options)
        cubin, log = _link(text, function.__name__, cc, options)
        description = {"name": function.__name__, "cc": cc, **_declared(text), **_resources(log)}
        code_cache.write(key, description, cubin)
    return CompiledKernel(cubin=cubin, **description)


def _load(key):
    """Return the CompiledKernel stored on disk under `key`, or None."""
    stored = code_cache.read(key)
    if stored is None:
        return None
    description, cubin = stored
    lists = {name: tuple(value) for name, value in description.items() if isinstance(value, list)}
    try:
        return CompiledKernel(cubin=cubin, **{**description, **lists})
    except TypeError:  # stored by another version, with other fields
        return None


def _link(text, name, cc, options):
    """Link PTX text and return (cubin, the linker's log).

    A linker older than NVVM rejects the PTX version and names its own. The text is then linked again as that version.
    """
    from cuda.bindings import nvjitlink

    target = re.search(r"\.target\s+sm_(\d+)", text).group(1)
    if int(target) // 10 != cc[0]:
        raise RuntimeError(
            f"{name}: the newest device that the installed CUDA compiler knows is sm_{target}, got "
            f"sm_{cc[0]}{cc[1]}; upgrade numba-cuda and its CUDA packages"
        )
    flags = [f"-arch=sm_{target}", "-verbose"]
    if options["max_registers"]:
        flags.append(f"-maxrregcount={options['max_registers']}")
    if options["lineinfo"]:
        flags.append("-lineinfo")
    data, handle = text.encode(), None
    try:
        handle = nvjitlink.create(len(flags), flags)
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), name)
        nvjitlink.complete(handle)
        cubin = _fetch(nvjitlink.get_linked_cubin_size, nvjitlink.get_linked_cubin, handle)
        log = _fetch(nvjitlink.get_info_log_size, nvjitlink.get_info_log, handle)
    except nvjitlink.nvJitLinkError as error:
        log = b"" if handle is None else _fetch(nvjitlink.get_error_log_size, nvjitlink.get_error_log, handle)
        known = re.search(r"Unsupported \.version [\d.]+; current version is '([\d.]+)'", _as_text(log))
        if known and known[1] != re.search(r"\.version\s+([\d.]+)", text)[1]:
            return _link(re.sub(r"\.version\s+[\d.]+", f".version {known[1]}", text, count=1), name, cc, options)
        raise RuntimeError(
            f"linking kernel {name} for sm_{target} failed: {error}: {_as_text(log)}. Versions that do not fit each "
            f"other may be the cause: {toolchain()}"
        ) from error
    finally:
        if handle is not None:
            nvjitlink.destroy(handle)
    return cubin, _as_text(log)


def _fetch(size, get, handle):
    buffer = bytearray(size(handle))
    if buffer:
        get(handle, buffer)
    return bytes(buffer)


def _as_text(log):
    return log.decode(errors="replace").strip("\0\n ")


def _resources(log):
    """Read a kernel's resources, with those of device functions that were not inlined, from the linker's log."""

    def numbers(pattern):
        return [int(number) for number in re.findall(pattern, log)]

    spills = numbers(r"(\d+) bytes spill (?:stores|loads)")
    return {
        "registers": max(numbers(r"[Uu]sed (\d+) registers"), default=-1),
        "spill_bytes": sum(spills) if spills else -1,
        "stack_bytes": max(numbers(r"(\d+) bytes stack frame"), default=0),
    }


# .param .u64 name   .param .u64 .ptr .global .align 8 name   .param .align 8 .b8 name[16]
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[bfsu](\d+)\s[^,\[]*(?:\[(\d+)\])?")
_SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.b8\s+[\w$]+\[(\d+)\]")


def _declared(text):
    """Read a kernel's entry, parameter sizes and static shared memory from PTX. (The linker's log would add to shared
    memory what sm_90 reserves.)"""
    entry, parameters = re.search(r"\.entry\s+([\w$]+)\s*\((.*?)\)", text, re.DOTALL).groups()
    sizes = tuple(int(bits) // 8 * int(count or 1) for bits, count in _PARAMETER.findall(parameters))
    shared_bytes = 0
    for alignment, size in _SHARED.findall(text):
        shared_bytes += -shared_bytes % int(alignment) + int(size)
    return {"entry": entry, "parameter_bytes": sizes, "shared_bytes": shared_bytes}
