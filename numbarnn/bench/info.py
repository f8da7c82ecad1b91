"""`numbarnn info`: versions, devices and engines; what is missing and how to get it."""

import ctypes.util
import os
import platform
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import numbarnn
from numbarnn.bench import report
from numbarnn.common import install

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


def how_to_install(name):
    """The command that installs one of PACKAGES."""
    (distribution, *_), extra = PACKAGES[name]
    if name == "CuPy":
        return install.for_gpus()
    if name == "cuDNN":
        return f"{install.command('cudnn')}  (CUDA 13: pip install nvidia-cudnn-cu13)"
    return install.command(extra) if extra else f"pip install {distribution}"


def how_to_get_engines():
    """Name of an engine -> how it comes to run."""
    return {
        "cpu": "pip install scipy-openblas32",
        "cuda": f"on a machine with an NVIDIA GPU: {install.for_gpus()}",
        "sim": "set NUMBA_ENABLE_CUDASIM=1 before Python starts, or: numbarnn check --device sim",
    }


def add_arguments(parser):
    """Adds the arguments of `numbarnn info`."""
    report.add_json_argument(parser, "all of it")


def run(args):
    """Prints what is here; returns 0, or 1 where not even the CPU engine runs."""
    found = collect()
    print_versions(found)
    print_devices(found)
    rows = [
        [name, "ok" if engine["runs"] else "no", engine["missing"] or "", engine["how"] or ""]
        for name, engine in found["engines"].items()
    ]
    columns = ["engine", "runs here", "what is missing", "how to get it"]
    report.print_table("Engines", columns, rows, wrap=columns[2:])
    if args.json:
        report.write_json(args.json, found)
    return 0 if found["engines"]["cpu"]["runs"] else 1


def collect():
    """All that `numbarnn info` knows, as a dict of plain values; benchmarks record it beside their times."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "numbarnn": numbarnn.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(),
        "cpu": {"model": cpu_model(), "cores": core_count(), "openblas_core": openblas_core(), "forced": forced_core()},
        "gpus": gpus(),
        "driver": driver(),
        "engines": engines_here(),
    }


def versions():
    """Name -> version of each package in PACKAGES, None where it is not installed."""
    found = {}
    for name, (distributions, _) in PACKAGES.items():
        found[name] = next((v for v in map(distribution_version, distributions) if v is not None), None)
    if found["cuDNN"] is None:
        found["cuDNN"] = ctypes.util.find_library("cudnn")
    return found


def distribution_version(distribution):
    """The installed version of a distribution, None when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def commit():
    """The commit of numbarnn's own working tree, with "-dirty" where files have changed since; "unknown" elsewhere."""
    root = str(Path(numbarnn.__file__).resolve().parents[1])
    if run_tool("git", "-C", root, "rev-parse", "--show-toplevel") != [root]:
        return "unknown"
    described = run_tool("git", "-C", root, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return described[0] if described else "unknown"


def run_tool(name, *arguments):
    """The lines that a program prints; none where it is missing or fails."""
    tool = shutil.which(name)
    if tool is None:
        return []
    answer = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=30, check=False)
    return answer.stdout.splitlines() if answer.returncode == 0 else []


def cpu_model():
    """The processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def core_count():
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def openblas_core():
    """Which processor family OpenBLAS chose its kernels for; None where OpenBLAS is missing."""
    from numbarnn import engines
    from numbarnn.engines.cpu import openblas

    return openblas.core_name() if engines.why_not("cpu") is None else None


def forced_core():
    """The processor family that the environment makes OpenBLAS take, None where it looks at the processor itself."""
    return os.environ.get("OPENBLAS_CORETYPE")


def forced_core_notice():
    """What to tell about `forced_core`: a line, or None where there is nothing to tell."""
    forced = forced_core()
    if forced is None:
        return None
    return f"OPENBLAS_CORETYPE={forced} is set: unset it to let OpenBLAS choose its kernels for this processor"


def gpus():
    """NVIDIA GPUs: a list of dicts with name, compute_capability and memory_bytes."""
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
        properties = [cupy.cuda.runtime.getDeviceProperties(i) for i in range(count)]
    except Exception:  # no CuPy, no driver or no device, each with an exception of its own
        return gpus_of_the_driver()
    return [as_gpu(p["name"].decode(), f"{p['major']}.{p['minor']}", p["totalGlobalMem"]) for p in properties]


def as_gpu(name, capability, memory):
    """One of `gpus`."""
    return {"name": name, "compute_capability": capability, "memory_bytes": int(memory)}


def gpus_of_the_driver():
    """`gpus` as the driver's own tool tells it, where CuPy does not run."""
    query = ("--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits")
    rows = [line.rsplit(", ", 2) for line in run_tool("nvidia-smi", *query)]
    return [as_gpu(*row[:2], int(row[2]) * 2**20) for row in rows if len(row) == 3 and row[2].isdecimal()]


def driver():
    """The version of the NVIDIA driver, None where there is none."""
    lines = run_tool("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return lines[0].strip() if lines else None


def engines_here():
    """Engine -> whether it runs in this process, what is missing and how to get it."""
    from numbarnn import engines

    found = {name: (engines.why_not(name), how) for name, how in how_to_get_engines().items()}
    return {
        name: {"runs": missing is None, "missing": missing, "how": None if missing is None else how}
        for name, (missing, how) in found.items()
    }


def print_versions(found):
    """The table of versions."""
    rows = [["numbarnn", found["numbarnn"], ""], ["python", f"{found['python']}  {sys.executable}", ""]]
    for name, version in found["versions"].items():
        rows.append([name, version or "not installed", "" if version else how_to_install(name)])
    report.print_table("Versions", ["package", "version", "how to get it"], rows, wrap=("version", "how to get it"))


def print_devices(found):
    """The table of devices."""
    cpu = found["cpu"]
    core = f", OpenBLAS kernels for {cpu['openblas_core']}" if cpu["openblas_core"] else ""
    core += f" ({notice})" if (notice := forced_core_notice()) else ""
    rows = [["CPU", cpu["model"], f"{cpu['cores']} cores{core}"]]
    for i, gpu in enumerate(found["gpus"]):
        about = f"compute capability {gpu['compute_capability']}, {gpu['memory_bytes'] / 2**30:.0f} GiB"
        rows.append([f"GPU {i}", gpu["name"], about])
    if not found["gpus"]:
        rows.append(["GPU", "none", "no NVIDIA GPU or driver was found"])
    report.print_table("Devices", ["device", "name", "about it"], rows, wrap=("name", "about it"))
