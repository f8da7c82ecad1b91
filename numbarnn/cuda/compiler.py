"""From a readable `@cuda.jit` kernel to a cubin. Numba only compiles; `numbarnn.cuda.launch` launches.

    kernel --Numba--> PTX --nvJitLink--> cubin, with its registers, spills and shared memory

No GPU and no driver is needed for that, so every kernel can be compiled for every device anywhere. Cubins are kept in
the process and on disk (`numbarnn.common.code_cache`).

What reaches into Numba's internals is in `numbarnn.cuda.patches`. This module knows the names of a dispatcher's
attributes.
"""

import os
import re
import sys
import threading
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from numbarnn.common import code_cache, install, notice
from numbarnn.cuda import patches

#: Of the environment: a name for all that takes part in compiling. Kernels kept under it, such as those that another
#: machine has compiled, are found whatever is installed.
TOOLCHAIN = "NUMBARNN_TOOLCHAIN"
HOW_LONG = "ten seconds for a layer of a new kind or size"  # compiling takes, for `notice`
_PACKAGES = (
    "numpy", "numba", "numba-cuda", "llvmlite", "cuda-bindings", "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12",
    "nvidia-nvvm", "nvidia-nvjitlink",
)  # fmt: skip

_compiled = {}  # key -> CompiledKernel, of this process
_lock = threading.RLock()


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel compiled for one signature and one compute capability.

    Attributes:
        name: the kernel's Python name.
        entry: its symbol in the cubin.
        cubin: the binary that the driver loads.
        cc: compute capability (major, minor) it was compiled for.
        parameter_bytes: size of each kernel parameter; an array is 5 + 2 ndim parameters of 8 bytes.
        registers: registers per thread; -1 if the linker did not say.
        spill_bytes: registers spilled to local memory, bytes stored plus bytes loaded; 0 is what one wants,
            -1 means that the linker did not say.
        shared_bytes: static shared memory per block, as declared.
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


def compile_kernel(kernel, argument_types, cc, *, source_key="", fastmath=None):
    """The kernel as a cubin, from a cache where possible.

    Options given to `@cuda.jit` hold: fastmath, launch_bounds, max_registers, lineinfo, opt.

    Args:
        kernel: a function decorated with `@cuda.jit`, or a plain one; it may call device functions.
        argument_types: Numba types, one per parameter of the kernel.
        cc: compute capability, such as (9, 0).
        source_key: anything else that distinguishes this kernel from others, as text. The kernel's code and
            the functions, constants and jitted functions it refers to are part of the cache's key anyway.
        fastmath: True, False, or None for what `@cuda.jit` was given (False if nothing). Without it
            multiplications and additions are still contracted to FMA.

    Returns:
        CompiledKernel.

    Raises:
        RuntimeError: the CUDA compiler is not installed, or knows no device as new as `cc`.
    """
    function, argument_types, cc = _function(kernel), tuple(argument_types), _capability(cc)
    options = _options(kernel, fastmath)
    key = code_cache.key(function, source_key, str(argument_types), f"{cc} {sorted(options.items())}", toolchain())
    with _lock:
        if key not in _compiled:
            _compiled[key] = _load(key) or _compile_and_store(key, function, argument_types, cc, options)
        return _compiled[key]


def ptx(kernel, argument_types, cc, *, fastmath=None):
    """The kernel's PTX as text: arguments as for `compile_kernel`. Not cached."""
    toolchain()
    return _ptx(_function(kernel), tuple(argument_types), _capability(cc), _options(kernel, fastmath))


@lru_cache(maxsize=1)
def toolchain():
    """Versions of all that takes part in compiling, as text, or the name that the environment has for it.

    Raises:
        RuntimeError: a part is missing; says how to install it.
    """
    if simulated():
        raise RuntimeError("kernels cannot be compiled in Numba's simulator: unset NUMBA_ENABLE_CUDASIM")
    if named := os.environ.get(TOOLCHAIN):
        return named
    if lacks := install.compiler_lacks():
        raise RuntimeError(lacks)
    try:
        libraries = _library_versions()
    except (ImportError, OSError, RuntimeError) as error:
        found = " ".join(str(error).split())
        raise RuntimeError(f"the CUDA compiler was not found ({found}): {install.for_gpus()}") from error
    packages = []
    for name in _PACKAGES:
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"{libraries} {' '.join(packages)}"


def simulated():
    """Whether Numba runs kernels in its simulator (NUMBA_ENABLE_CUDASIM=1).

    Numba itself is asked only where it is there already, or reads something else too: importing it takes a quarter of a
    second, which the CPU engine does without.
    """
    said = os.environ.get("NUMBA_ENABLE_CUDASIM", "0")
    if sys.modules.get("numba") is None and said in ("0", "1") and not os.path.exists(".numba_config.yaml"):
        return said == "1"
    from numba.core import config

    return bool(config.ENABLE_CUDASIM)


def _library_versions():
    """Load NVVM, NVRTC (Numba asks it for the devices known) and nvJitLink; their versions as text."""
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


def _capability(cc):
    major, minor = cc
    return int(major), int(minor)


def _options(kernel, fastmath):
    """Return the options of `@cuda.jit` that matter to the compiler."""
    given = getattr(kernel, "targetoptions", {})
    for name in ("debug", "link"):
        if given.get(name):
            raise ValueError(f"@cuda.jit option {name!r} is not supported for kernels of numbarnn")
    return {
        "fastmath": bool(given.get("fastmath", False) if fastmath is None else fastmath),
        "opt": bool(given.get("opt", True)),
        "lineinfo": bool(given.get("lineinfo", False)),
        "launch_bounds": given.get("launch_bounds"),
        "max_registers": given.get("max_registers"),
    }


def _ptx(function, argument_types, cc, options):
    """The kernel's PTX, by Numba and NVVM."""
    from numba import cuda

    options = {name: value for name, value in options.items() if name != "max_registers"}
    with _lock, patches.device_for_numba(cc), patches.numpy_for_numba(), patches.convergent_functions():
        text, _ = cuda.compile(
            function, argument_types, device=False, abi="numba", output="ptx", cc=cc, debug=False, **options
        )
    return text.strip("\0\n ")


# ---------------------------------------------------------------------------------- nvJitLink: PTX to cubin
def _compile_and_store(key, function, argument_types, cc, options):
    what = f"its GPU kernels for sm_{cc[0]}{cc[1]}"
    with code_cache.alone(key), notice.compiling(what, HOW_LONG, code_cache.directory_if_any()):
        compiled = _load(key)  # another process may have compiled it meanwhile
        if compiled is None:
            compiled = _compile(function, argument_types, cc, options)
            description = asdict(compiled)
            del description["cubin"]
            code_cache.write(key, description, compiled.cubin)
    return compiled


def _compile(function, argument_types, cc, options):
    text = _ptx(function, argument_types, cc, options)
    entry = re.search(r"\.entry\s+([\w$]+)", text).group(1)
    cubin, log = _link(text, function.__name__, cc, options)
    return CompiledKernel(
        name=function.__name__,
        entry=entry,
        cubin=cubin,
        cc=cc,
        parameter_bytes=_parameter_bytes(text),
        shared_bytes=_shared_bytes(text),
        **_resources(log),
    )


def _load(key):
    """The CompiledKernel stored on disk under `key`, or None."""
    stored = code_cache.read(key)
    if stored is None:
        return None
    description, cubin = stored
    lists = {name: tuple(value) for name, value in description.items() if isinstance(value, list)}
    try:
        return CompiledKernel(cubin=cubin, **{**description, **lists})
    except TypeError:  # written by something else
        return None


def _link(text, name, cc, options):
    """(cubin, the linker's log) of a PTX text. A linker that is older than NVVM names the version of PTX that it knows:
    the text is then tried once more as one of that version."""
    from cuda.bindings import nvjitlink

    target = re.search(r"\.target\s+sm_(\d+)", text).group(1)
    if int(target) // 10 != cc[0]:
        raise RuntimeError(
            f"{name}: the newest device that the installed CUDA compiler knows is sm_{target}, this one is "
            f"sm_{cc[0]}{cc[1]}; upgrade numba-cuda and its CUDA packages"
        )
    flags = [f"-arch=sm_{target}", "-verbose"]
    if options["max_registers"]:
        flags.append(f"-maxrregcount={options['max_registers']}")
    if options["lineinfo"]:
        flags.append("-lineinfo")
    data = text.encode()
    handle = None
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
            f"linking kernel {name} for sm_{target} failed: {error}: {_as_text(log)} "
            f"(if versions disagree: {toolchain()})"
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
    """Read a kernel's resources from the linker's log; device functions that were not inlined included."""

    def numbers(pattern):
        return [int(number) for number in re.findall(pattern, log)]

    spills = numbers(r"(\d+) bytes spill (?:stores|loads)")
    return {
        "registers": max(numbers(r"[Uu]sed (\d+) registers"), default=-1),
        "spill_bytes": sum(spills) if spills else -1,
        "stack_bytes": max(numbers(r"(\d+) bytes stack frame"), default=0),
    }


def _shared_bytes(text):
    """Static shared memory that the PTX text declares (the linker's log adds what sm_90 reserves)."""
    total = 0
    for alignment, size in re.findall(r"\.shared\s+\.align\s+(\d+)\s+\.b8\s+[\w$]+\[(\d+)\]", text):
        total += -total % int(alignment) + int(size)
    return total


# .param .u64 name   .param .u64 .ptr .global .align 8 name   .param .align 8 .b8 name[16]
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[bfsu](\d+)\s[^,\[]*(?:\[(\d+)\])?")


def _parameter_bytes(text):
    """Size in bytes of each parameter of the PTX text's kernel."""
    declared = re.search(r"\.entry\s+[\w$]+\s*\((.*?)\)", text, re.DOTALL).group(1)
    return tuple(int(bits) // 8 * int(count or 1) for bits, count in _PARAMETER.findall(declared))
