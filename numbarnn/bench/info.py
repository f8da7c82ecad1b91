"""`numbarnn info`: versions, devices and engines; what is missing and how to get it."""

import ctypes.util
import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numbarnn
from numbarnn import engines
from numbarnn.bench import console
from numbarnn.common import code_cache, install
from numbarnn.common.words import counted
from numbarnn.engines.cpu import openblas, openmp, vectors

FORCED_CORE = "OPENBLAS_CORETYPE"  # of the environment: OpenBLAS takes it and does not look at the processor
# What is looked for: the name shown -> (distributions that bring it, the first one installed counts; the extra that
# has it; None: pip install).
PACKAGES = {
    "numpy": (("numpy",), None),
    "numba": (("numba",), None),
    "numba-cuda": (("numba-cuda",), None),
    "OpenBLAS wheel": (("scipy-openblas32",), None),
    "CuPy": (("cupy-cuda12x", "cupy-cuda13x", "cupy"), "cuda12"),
    "cuDNN": (("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"), "cudnn"),
    "PyTorch": (("torch",), "torch"),
    "onnx": (("onnx",), "onnx"),
    "onnxruntime": (("onnxruntime", "onnxruntime-gpu"), None),
    "safetensors": (("safetensors",), "safetensors"),
    "greenlet": (("greenlet",), "sim"),
    "rich": (("rich",), "cli"),
    "tqdm": (("tqdm",), "cli"),
    "matplotlib": (("matplotlib",), "cli"),
}


def add_arguments(parser):
    parser.add_argument("--clear-cache", action="store_true", help="remove all compiled code from disk")
    console.add_json_argument(parser, "all of it")


def run(args):
    """Prints what is here; returns 0, or 1 where not even the CPU engine runs."""
    if args.clear_cache:
        folder, (count, size) = code_cache.directory_if_any(), code_cache.clear()
        console.say(f"removed {counted(count, 'file')} of compiled code, {size / 1e6:.1f} MB, from {folder}")
        return 0
    found = collect()
    rows = [["numbarnn", found["numbarnn"], ""], ["python", f"{found['python']}  {sys.executable}", ""]]
    for name, version in found["versions"].items():
        rows.append([name, version or "not installed", "" if version else how_to_install(name)])
    console.print_table("Versions", ["package", "version", "how to get it"], rows)
    console.print_table("Devices", ["device", "name", "about it"], devices(found))
    rows = [
        [name, "ok" if engine["runs"] else "no", engine["missing"] or "", engine["how"] or ""]
        for name, engine in found["engines"].items()
    ]
    columns = ["engine", "runs here", "what is missing", "how to get or use it"]
    console.print_table("Engines", columns, rows)
    if args.json:
        console.write_json(args.json, found)
    return 0 if found["engines"]["cpu"]["runs"] else 1


def how_to_install(name):
    """The command that installs one of PACKAGES."""
    (distribution, *_), extra = PACKAGES[name]
    if name == "CuPy":
        return install.for_gpus()
    if name == "cuDNN":
        return f"{install.command('cudnn')}  (CUDA 13: pip install nvidia-cudnn-cu13)"
    return install.command(extra) if extra else f"pip install {distribution}"


def devices(found):
    """The rows of the table of devices."""
    cpu = found["cpu"]
    core = f", OpenBLAS kernels for {cpu['openblas_core']}" if cpu["openblas_core"] else ""
    core += f" ({notice})" if (notice := forced_core_notice()) else ""
    core += f", steps with {cpu['vectors']}" if cpu["vectors"] else ""
    core += f"; modules of numbarnn.torch on {cpu['module_threads']} threads" if cpu["module_threads"] else ""
    rows = [["CPU", cpu["model"], f"{cpu['cores']} cores{core}"]]
    for i, gpu in enumerate(found["gpus"]):
        about = f"compute capability {gpu['compute_capability']}, {gpu['memory_bytes'] / 2**30:.0f} GiB"
        rows.append([f"GPU {i}", gpu["name"], about])
    return rows if found["gpus"] else [*rows, ["GPU", "none", "no NVIDIA GPU or driver was found"]]


def collect():
    """Everything that `numbarnn info` tells, as a dict of plain values; benchmarks record it beside their times."""
    runs = engines.why_not("cpu") is None
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "numbarnn": numbarnn.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(),
        "cpu": {
            "model": cpu_model(),
            "cores": core_count(),
            "openblas_core": openblas.core_name() if runs else None,
            "vectors": vectors.description() if runs else None,
            "module_threads": module_threads(),
            "forced": os.environ.get(FORCED_CORE),
        },
        "gpus": gpus(),
        "driver": driver(),
        "engines": engines_here(),
    }


def versions():
    """Name -> version of each package in PACKAGES, None where it is not installed."""
    found = dict.fromkeys(PACKAGES)
    for name, (distributions, _) in PACKAGES.items():
        for distribution in distributions[::-1]:
            with suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(distribution)
    return found | {"cuDNN": found["cuDNN"] or ctypes.util.find_library("cudnn")}


def commit():
    """The commit of numbarnn's own working tree, with "-dirty" where files have changed since; "unknown" elsewhere."""
    root = str(Path(numbarnn.__file__).resolve().parents[1])
    if run_tool("git", "-C", root, "rev-parse", "--show-toplevel") != [root]:
        return "unknown"
    described = run_tool("git", "-C", root, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return described[0] if described else "unknown"


def run_tool(name, *arguments):
    """The lines that a program prints; none where it is missing or fails."""
    if (tool := shutil.which(name)) is None:
        return []
    answer = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=30, check=False)
    return answer.stdout.splitlines() if answer.returncode == 0 else []


def cpu_model():
    with suppress(FileNotFoundError):
        if found := re.search(r"^model name\s*:(.*)", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE):
            return found[1].strip()
    return platform.processor() or platform.machine()


def core_count():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def module_threads():
    """Whose threads modules of numbarnn.torch use on the CPU, "PyTorch's" or "numbarnn's"; None without PyTorch, or
    where its OpenMP library is not in its folder: importing PyTorch, to find out, takes seconds."""
    if engines.why_not("cpu") is not None or not (found := find_spec("torch")) or not found.origin:
        return None
    if not (libraries := sorted(Path(found.origin).parent.glob("lib/lib*omp*.so*"))):
        return None
    return "PyTorch's" if openmp.functions_of(str(libraries[0])) else "numbarnn's"


def forced_core_notice():
    """What to tell where the environment makes OpenBLAS take a processor family; None where it does not."""
    forced = os.environ.get(FORCED_CORE)
    about = f"{FORCED_CORE}={forced} is set: unset it to let OpenBLAS choose its kernels for this processor"
    return None if forced is None else about


def gpus():
    """NVIDIA GPUs: a list of dicts with name, compute_capability and memory_bytes."""
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
        properties = [cupy.cuda.runtime.getDeviceProperties(i) for i in range(count)]
    except Exception:  # no CuPy, no driver or no device, each with an exception of its own
        return gpus_of_the_driver()
    return [
        {
            "name": p["name"].decode(),
            "compute_capability": f"{p['major']}.{p['minor']}",
            "memory_bytes": int(p["totalGlobalMem"]),
        }
        for p in properties
    ]


def gpus_of_the_driver():
    """`gpus` as the driver's own tool tells it, where CuPy does not run."""
    query = ("--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits")
    rows = [line.rsplit(", ", 2) for line in run_tool("nvidia-smi", *query)]
    return [
        {"name": name, "compute_capability": capability, "memory_bytes": int(memory[0]) * 2**20}
        for name, capability, *memory in rows
        if len(memory) == 1 and memory[0].isdecimal()
    ]


@cache
def driver():
    """The version of the NVIDIA driver, None where there is none. Asked once: the tool may take a second."""
    lines = run_tool("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return lines[0].strip() if lines else None


def engines_here():
    """Engine -> whether it runs on this machine, what is missing and how to get it, or how to use it."""
    how = {
        "cpu": "pip install scipy-openblas32",
        "cuda": f"on a machine with an NVIDIA GPU: {install.for_gpus()}",
    }
    missing = {name: engines.why_not(name) for name in how}
    found = {
        name: {"runs": reason is None, "missing": reason, "how": None if reason is None else how[name]}
        for name, reason in missing.items()
    }
    lacks = install.simulator_lacks()
    use = "in a process of its own: numbarnn check --device sim, or set NUMBA_ENABLE_CUDASIM=1 before Python starts"
    return found | {
        "sim": {"runs": lacks is None, "missing": lacks, "how": use if lacks is None else install.command("sim")}
    }
