"""The record of `numbarnn bench`, a dict written as JSON: rows of times, machine and method, and doubts about times.

The printed table and the tables on pages use the same rows and doubts.
"""

import ast
import hashlib
import json
import os
import time
from functools import cache
from pathlib import Path

import numpy as np

import numbarnn
from numbarnn import cells
from numbarnn.bench import info, memory, timing
from numbarnn.bench.cases import half_lengths
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.contender import torch
from numbarnn.bench.peers.cudnn_peer import PREFIX
from numbarnn.bench.peers.torch_peer import TORCH
from numbarnn.bench.shapes import PRODUCTS

RESULTS = Path(__file__).parent / "results"  # the records that come with numbarnn
# Device -> parts of the package that run during a call.
TIMED = {"cpu": ("cells", "common", "compile", "engines", "programs", "schedules")}
TIMED["cuda"] = (*TIMED["cpu"], "cuda", "kernels")
# How peers are called, as recorded with the times.
TORCH_METHOD = (
    "forward: module.eval() under torch.no_grad(); forward+backward: module.train(), y.backward(dy), which gives dx, "
    "dhx, dcx and all weight gradients; one step: under torch.inference_mode(); allow_tf32: as each row's tf32 says"
)
CUDNN_METHOD = (
    "forward: CUDNN_FWD_MODE_INFERENCE; forward+backward: CUDNN_FWD_MODE_TRAINING, gradients of weights into zeros; "
    "parts apart: again and again with the reserve space of one forward; weights packed and spaces allocated before; "
    "CUDNN_FMA_MATH without TF32 and with 3x; with it CUDNN_DEFAULT_MATH, and CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION"
)


def row(**known):
    """Return a row: the known fields, defaults for the others, medians and ratios.

    cell, shape (sizes by letter), form (words of `shapes.FORMS`), dtype, device, what (the pass), schedule, input_mode
    ("linear", or "skip": layer 0 has no W), tf32 (whether float32 products may be rounded to TF32; "3x": numbarnn's
    are three products of TF32) say what was timed. The other fields:

        ok, refusal         whether there are times, and why not
        agreement           rows of `LineUp.compare`
        plan                what numbarnn ran, and why
        seconds             contender -> time per call in each round, by the host's clock; device_seconds: by the GPU's
        p99_seconds         contender -> 99th percentile of single steps in each round
        median_s            contender -> median over rounds; also device_median_s, p99_s
        ratio               contender -> median over rounds of numbarnn's time / the contender's; also device_ratio
        best_cudnn          the fastest of cuDNN's algorithms, by the GPU's clock
        host_behind         contender -> rounds in which the GPU may have waited for the host; None: not measured
        notes, left_out     contender -> how it is called, why it has no times
        peak_bytes          contender -> memory of a call, measured as the record's method says
    """
    found = {name: {} for name in ("seconds", "device_seconds", "p99_seconds", "notes", "left_out", "peak_bytes")}
    found |= {"ok": False, "refusal": None, "agreement": [], "plan": None}
    found |= {"tf32": False, "input_mode": "linear", "form": (), "host_behind": {}} | known
    for kind in ("", "device_"):
        found |= {f"{kind}median_s": medians(found[f"{kind}seconds"]), f"{kind}ratio": ratios(found[f"{kind}seconds"])}
    own = {name: middle for name, middle in found["device_median_s"].items() if is_cudnn(name)}
    return found | {"p99_s": medians(found["p99_seconds"]), "best_cudnn": min(own, key=own.get, default=None)}


def medians(seconds):
    return {name: float(np.median(times)) for name, times in seconds.items()}


def ratios(seconds):
    ours = np.array(seconds.get("numbarnn", ()))
    return {name: float(np.median(ours / np.array(t))) for name, t in seconds.items() if name != "numbarnn"}


def is_cudnn(name):
    return name.startswith(PREFIX)


def judged(row):
    """Return the contenders in a row's main ratios: on a GPU numbarnn and cuDNN's fastest algorithm, or PyTorch."""
    if not row["device_seconds"]:
        return list(row["seconds"])
    return ["numbarnn", *({row["best_cudnn"] or TORCH} & row["device_seconds"].keys())]


@cache
def kernels_digest(device):
    """Return a digest of the code, without comments and docstrings, that runs on a device ("cpu" or "cuda")."""
    package, digest = Path(numbarnn.__file__).parent, hashlib.sha256()
    for part in TIMED[device]:
        files = sorted((package / part).rglob("*.py"), key=lambda file: file.relative_to(package).parts)
        if not files:
            raise FileNotFoundError(f"numbarnn has no {part}: record.TIMED names what runs during a call")
        for file in files:
            code = "\n".join(_code_lines(file.read_text(encoding="utf-8")))
            digest.update(f"{file.relative_to(package).as_posix()}\n{code}\0".encode())
    return digest.hexdigest()[:16]


def _code_lines(text):
    """Return the lines of Python source without empty lines, comments and docstrings."""
    prose = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            prose.update(range(node.body[0].lineno - 1, node.body[0].end_lineno))
    lines = enumerate(text.splitlines())
    return [line for at, line in lines if at not in prose and line.strip() and line.strip()[0] != "#"]


def as_record(rows, where, load):
    """Return the record of rows. load: a `Load` made before the first row."""
    found, load, device = info.collect(), load.as_record(), where.device
    known = found["commit"] != "unknown"  # without git
    turn_s = timing.GPU_TURN_S if device == "cuda" else timing.TURN_S
    method = load | {"torch": TORCH_METHOD, "rounds": where.rounds, "turn_s": turn_s, "threads": where.threads}
    if device == "cuda":
        direct = cudnn.default_session().library.version_text if cudnn.why_not() is None else None
        versions = {"version": direct, "version_in_torch": torch.backends.cudnn.version()}
        method |= {"cudnn": versions | {"how": CUDNN_METHOD}}
    if any(row["peak_bytes"] for row in rows):
        method["memory"] = memory.METHOD[device]
    machine = machine_doubt(load, found["cpu"]["cores"])
    return {
        "date": found["date"],
        "commit": found["commit"].removesuffix("-dirty") if known else None,
        "clean": not found["commit"].endswith("-dirty") if known else None,
        "kernels": kernels_digest(device),
        "driver": found["driver"],
        "device": device,
        "device_name": found["gpus"][0]["name"] if device == "cuda" and found["gpus"] else found["cpu"]["model"],
        "environment": found,
        "method": method,
        "doubt": machine,
        "results": [row | {"doubts": doubts(row, row["seconds"], machine)} for row in rows],
    }


def read(path):
    """Read a record from its file; return None if the file holds something else."""
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    return found if isinstance(found, dict) and "kernels" in found else None


def work_of(row):
    """Return the floating-point operations in a call's products; None for cells that are not built in."""
    if row["cell"] not in cells.CELLS:
        return None
    (T, B, inputs, H, L), D = (row["shape"][letter] for letter in "TBIHL"), 1 + ("bidirectional" in row["form"])
    vectors = int(half_lengths(T, B).sum()) if "lengths" in row["form"] else T * B
    columns = (0 if row["input_mode"] == "skip" else inputs) + H + (L - 1) * (D + 1) * H  # of W and R of all layers
    return PRODUCTS[row["what"]] * 2 * vectors * D * cells.get(row["cell"]).num_gates * H * columns


# --------------------------------------------------------------------------------------------------- doubts about times
BUSY = 0.3  # share of the cores that other processes may keep busy
NOISY = 0.1  # largest `spread` of a contender's rounds
NOISY_TAIL = 0.5  # largest `spread` of the 99th percentiles of single calls
LEAST_ROUNDS = 3  # with fewer rounds their scatter is unknown


class Load:
    """Measure the load of other processes from now on; None where there is no /proc/stat."""

    def __init__(self):
        self._begin = self._now()

    def _now(self):
        """Return (time, busy seconds of all cores, busy seconds of this process); None without /proc/stat."""
        if not (stat := Path("/proc/stat")).exists():
            return None
        user, nice, system, _, _, irq, softirq, *_ = map(int, stat.read_text().split("\n", 1)[0].split()[1:])
        busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        return np.array([time.monotonic(), busy, sum(os.times()[:4])])  # os.times counts finished children too

    def as_record(self):
        """Return the mean number of cores that other processes have kept busy."""
        elsewhere = None
        if self._begin is not None:
            seconds, busy, own = self._now() - self._begin
            elsewhere = max(0.0, float((busy - own) / max(seconds, 1e-3)))
        return {"cores_busy_elsewhere": elsewhere}


def machine_doubt(load, cores):
    """Say how busy other processes kept the machine; None if that does no harm. load: from `Load.as_record`."""
    elsewhere = load["cores_busy_elsewhere"] or 0.0
    return f"others kept {elsewhere:.1f} of {cores} cores busy" if elsewhere > BUSY * cores else None


def spread(times):
    """Return the interquartile range of times, relative to their median."""
    low, middle, high = np.percentile(times, (25, 50, 75))
    return float((high - low) / middle)


def doubts(row, names, machine=None):
    """List what makes the times of contenders (names) of a row doubtful.

    The times are by the GPU's clock if there are any, else by the host's. A `machine_doubt` counts for the host's
    clock, and for the GPU's in records without `host_behind` (before 2026-11-22)."""
    by_gpu = row.get("device_seconds") or {}
    times, behind, found = by_gpu or row["seconds"], row.get("host_behind"), []
    for name in (name for name in names if name in times):
        rounds = len(times[name])
        if rounds < LEAST_ROUNDS:
            found.append(f"{name} had {rounds} rounds only")
        elif (apart := spread(times[name])) > NOISY:
            found.append(f"{name} scatters by {apart:.0%}")
        tails = (row.get("p99_seconds") or {}).get(name, ())
        if len(tails) >= LEAST_ROUNDS and (apart := spread(tails)) > NOISY_TAIL:
            found.append(f"{name}'s 99th percentile scatters by {apart:.0%}")
        if by_gpu and behind and behind.get(name):
            found.append(f"the GPU waited for the host in {behind[name]} of {rounds} rounds of {name}")
    if machine and (not by_gpu or behind is None):
        found.append(machine)
    return found
