"""`numbarnn info`: versions, devices and engines; what is missing and how to get it."""

import ctypes.util
import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import numbarnn
from numbarnn import engines
from numbarnn.bench import console
from numbarnn.common import code_cache, install
from numbarnn.common.words import counted
from numbarnn.engines.cpu import openblas, vectors

FORCED_CORE = "OPENBLAS_CORETYPE"  # environment variable that overrides OpenBLAS' choice for the processor
# Name in the table -> distributions that contain it, the last one installed counts; numbarnn's extra that installs it.
PACKAGES = {
    "numpy": "numpy", "llvmlite": "llvmlite", "OpenBLAS wheel": "scipy-openblas32",
    "numba": "numba [kernels]", "numba-cuda": "numba-cuda [kernels]",
    "CuPy": "cupy cupy-cuda13x cupy-cuda12x", "cuDNN": "nvidia-cudnn-cu13 nvidia-cudnn-cu12 [cudnn]",
    "PyTorch": "torch [torch]", "onnx": "onnx [onnx]", "onnxruntime": "onnxruntime-gpu onnxruntime",
    "safetensors": "safetensors [safetensors]", "greenlet": "greenlet [sim]", "rich": "rich [cli]",
    "matplotlib": "matplotlib [cli]",
}  # fmt: skip
MORE = {"cuDNN": "  (CUDA 13: pip install nvidia-cudnn-cu13)"}


def add_arguments(parser):
    """Add the options of `numbarnn info`."""
    parser.add_argument("--clear-cache", action="store_true", help="Delete all compiled code from disk.")
    console.add_json_argument(parser, "all of it")


def run(args):
    """Print what is here; return 0, or 1 if not even the CPU engine runs."""
    if args.clear_cache:
        folder, (count, size) = code_cache.directory_if_any(), code_cache.clear()
        console.say(f"removed {counted(count, 'file')} of compiled code, {size / 1e6:.1f} MB, from {folder}")
        return 0
    facts = collect()
    rows = [["numbarnn", facts["numbarnn"], ""], ["python", f"{facts['python']}  {sys.executable}", ""]]
    for name, version in facts["versions"].items():
        rows.append([name, version or "not installed", "" if version else how_to_install(name)])
    console.print_table("Versions", ["package", "version", "how to get it"], rows)
    console.print_table("Devices", ["device", "name", "about it"], devices(facts))
    rows = [
        [name, "ok" if engine["runs"] else "no", engine["missing"] or "", engine["how"] or ""]
        for name, engine in facts["engines"].items()
    ]
    console.print_table("Engines", ["engine", "runs here", "what is missing", "how to get or use it"], rows)
    if args.json:
        console.write_json(args.json, facts)
    return 0 if facts["engines"]["cpu"]["runs"] else 1


def how_to_install(name):
    if name == "CuPy":
        return install.for_gpus()
    last = PACKAGES[name].split()[-1]
    return (install.command(last[1:-1]) if last[0] == "[" else f"pip install {last}") + MORE.get(name, "")


def devices(facts):
    cpu = facts["cpu"]
    core = f", OpenBLAS kernels for {cpu['openblas_core']}" if cpu["openblas_core"] else ""
    core += f" ({notice})" if (notice := forced_core_notice()) else ""
    core += f", steps with {cpu['vectors']}" if cpu["vectors"] else ""
    rows = [["CPU", cpu["model"], f"{cpu['cores']} cores{core}"]]
    for i, gpu in enumerate(facts["gpus"]):
        text = f"compute capability {gpu['compute_capability']}, {gpu['memory_bytes'] / 2**30:.0f} GiB"
        rows.append([f"GPU {i}", gpu["name"], text])
    return rows if facts["gpus"] else [*rows, ["GPU", "none", "no NVIDIA GPU or driver was found"]]


def collect():
    """Return everything that `numbarnn info` shows, as plain values. Records of benchmarks have it too."""
    runs = engines.why_not("cpu") is None
    lines = run_tool("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    cpu = {
        "model": cpu_model(), "cores": core_count(), "openblas_core": openblas.core_name() if runs else None,
        "vectors": vectors.description() if runs else None, "forced": os.environ.get(FORCED_CORE),
    }  # fmt: skip
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "numbarnn": numbarnn.__version__,
        "commit": commit(), "python": platform.python_version(), "platform": platform.platform(),
        "versions": versions(), "cpu": cpu, "gpus": gpus(), "driver": lines[0].strip() if lines else None,
        "engines": engines_here(),
    }  # fmt: skip


def versions():
    """Return name -> version of each package in PACKAGES, None if it is not installed."""
    known = dict.fromkeys(PACKAGES)
    for name, distributions in PACKAGES.items():
        for distribution in distributions.partition(" [")[0].split():
            with suppress(metadata.PackageNotFoundError):
                known[name] = metadata.version(distribution)
    return known | {"cuDNN": known["cuDNN"] or ctypes.util.find_library("cudnn")}


def commit():
    """Return the commit of numbarnn's git working tree, with "-dirty" if files have changed; else "unknown"."""
    root = str(Path(numbarnn.__file__).resolve().parents[1])
    if run_tool("git", "-C", root, "rev-parse", "--show-toplevel") != (root,):
        return "unknown"
    described = run_tool("git", "-C", root, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return described[0] if described else "unknown"


def run_tool(name, *arguments):
    """Run a program and return the lines that it prints; none if it is missing or fails."""
    if (tool := shutil.which(name)) is None:
        return ()
    answer = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=30, check=False)
    return tuple(answer.stdout.splitlines()) if answer.returncode == 0 else ()


def cpu_model():
    with suppress(FileNotFoundError):
        if match := re.search(r"^model name\s*:(.*)", Path("/proc/cpuinfo").read_text(errors="replace"), re.MULTILINE):
            return match[1].strip()
    return platform.processor() or platform.machine()


def core_count():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def forced_core_notice():
    """Return a notice if an environment variable overrides OpenBLAS' choice of kernels for the processor; else None."""
    forced = os.environ.get(FORCED_CORE)
    text = f"{FORCED_CORE}={forced} is set: unset it to let OpenBLAS choose its kernels for this processor"
    return None if forced is None else text


def gpus():
    """Return NVIDIA GPUs that nvidia-smi lists: dicts with name, compute_capability and memory_bytes."""
    query = ("--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits")
    rows = [line.rsplit(", ", 2) for line in run_tool("nvidia-smi", *query)]
    return [
        {"name": row[0], "compute_capability": row[1], "memory_bytes": int(row[2]) * 2**20}
        for row in rows if len(row) == 3 and row[2].isdecimal()
    ]  # fmt: skip


def engines_here():
    """Return engine -> whether it runs here, what is missing, and how to get or use it."""
    missing = {name: engines.why_not(name) for name in ("cpu", "cuda", "sim")}
    how = {"cpu": "pip install scipy-openblas32", "cuda": f"on a machine with an NVIDIA GPU: {install.for_gpus()}"}
    how = {name: how[name] if missing[name] else None for name in how}
    how["sim"] = install.command("sim") if missing["sim"] else "device='sim', numbarnn check --device sim"
    return {name: {"runs": reason is None, "missing": reason, "how": how[name]} for name, reason in missing.items()}
