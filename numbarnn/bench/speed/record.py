"""A record of times: its rows, and what was timed, on what, and beside what else. It is a dict, written as JSON."""

import hashlib
import json
from functools import cache
from pathlib import Path

import numpy as np

import numbarnn
from numbarnn.bench import info
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.contender import torch
from numbarnn.bench.peers.cudnn_peer import PREFIX
from numbarnn.bench.peers.torch_peer import TORCH
from numbarnn.bench.speed import memory, timing, trust
from numbarnn.bench.speed.peak import cpu_peak

RESULTS = Path(__file__).parents[1] / "results"  # the records that come with numbarnn
# What runs during a call, by device: parts of the package.
TIMED = {"cpu": ("cells", "common", "compile", "engines", "programs", "schedules")}
TIMED["cuda"] = (*TIMED["cpu"], "cuda", "kernels")
# What PyTorch and cuDNN are asked for, by pass, as recorded with the times.
TORCH_METHOD = {
    "forward": "module.eval() under torch.no_grad(): on a GPU cuDNN's inference call",
    "forward+backward": "module.train(): forward and y.backward(dy), which gives dx, dhx, dcx and all weight gradients",
    "torch.compile": "with --compile, the modules for one step (LSTMCell, ...) of all layers, in a loop over time",
    "loop": "of a cell that PyTorch does not have: a loop over time of eager operations (bench.peers.torch_loop)",
    "allow_tf32": "as each row's tf32 says (3x: False); PyTorch's own default is True for cuDNN "
    "(torch.backends.cudnn.allow_tf32)",
}
CUDNN_METHOD = {
    "forward": "cudnnRNNForward, CUDNN_FWD_MODE_INFERENCE",
    "forward+backward": "cudnnRNNForward, CUDNN_FWD_MODE_TRAINING; cudnnRNNBackwardData_v8; cudnnRNNBackwardWeights_v8 "
    "into zeros, which are set before",
    "forward in training, backward data, backward weights": "the same functions apart, each again and again with the "
    "reserve space of one forward; backward: data and weights",
    "how": "weights packed and spaces allocated before; layout and whether it is one CUDA graph: each row's notes",
    "tf32": "CUDNN_FMA_MATH without and with 3x, CUDNN_DEFAULT_MATH with; and as a contender of its own "
    "CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION, which rounds to float16",
}


def row(**known):
    """Return a row: what is known of it, and for the rest that it is not there.

    cell, shape (sizes by letter), form (words of `shapes.FORMS`), dtype, device, what (the pass), schedule, input_mode
    ("linear", or "skip": layer 0 has no W), tf32 (whether float32 products were allowed to be rounded to TF32, for
    everybody; "3x": ours computed as three products of TF32 each) say what was timed. The others:

        ok, refusal         whether there are times, and why there are none
        agreement           rows of `lineup.compare`
        plan                what numbarnn ran, and why
        seconds             contender -> its time per call in each round, by the host's clock; device_seconds: the GPU's
        median_s            contender -> median over rounds; device_median_s likewise
        ratio               contender -> median over rounds of numbarnn's time / the contender's; device_ratio likewise
        best_cudnn          the fastest of cuDNN's algorithms, by the GPU's clock
        host_behind         contender -> rounds in which the GPU may have waited for the host; None: nobody looked
        notes, left_out     contender -> how it is called, why it has no times
        peak_bytes          contender -> memory of a call, as the record's method says
        compile_s           contender -> seconds of the first call of one that compiles; no time has it in it

    Rows of single steps (`stream`) have more.
    """
    nothing = dict.fromkeys(("seconds", "device_seconds", "notes", "left_out", "peak_bytes", "compile_s"))
    found = {name: {} for name in nothing} | {"ok": False, "refusal": None, "agreement": [], "plan": None}
    found |= {"tf32": False, "input_mode": "linear", "form": (), "host_behind": {}} | known
    for kind in ("", "device_"):
        seconds = found[f"{kind}seconds"]
        found = {f"{kind}median_s": medians(seconds), f"{kind}ratio": ratios(seconds)} | found
    return {"best_cudnn": best_cudnn(found["device_seconds"])} | found


def medians(seconds):
    """Return contender -> median of its times."""
    return {name: float(np.median(times)) for name, times in seconds.items()}


def ratios(seconds):
    """Return contender -> median over rounds of numbarnn's time / the contender's in the same round."""
    ours = np.array(seconds.get("numbarnn", ()))
    return {name: float(np.median(ours / np.array(t))) for name, t in seconds.items() if name != "numbarnn"}


def is_cudnn(name):
    """Return whether a contender is one of cuDNN's algorithms."""
    return name.startswith(PREFIX)


def best_cudnn(seconds):
    """Return the fastest of cuDNN's algorithms, None where there is none."""
    found = {name: middle for name, middle in medians(seconds).items() if is_cudnn(name)}
    return min(found, key=found.get, default=None)


def judged(row):
    """Return the contenders whose times a row's main ratios are made of: on a GPU cuDNN's fastest, or else PyTorch."""
    if not row["device_seconds"]:
        return list(row["seconds"])
    rival = row["best_cudnn"] or TORCH
    return ["numbarnn", *([rival] if rival in row["device_seconds"] else [])]


@cache
def kernels_digest(device):
    """Return a digest of the source of what runs during a call on a device ("cpu" or "cuda")."""
    package, digest = Path(numbarnn.__file__).parent, hashlib.sha256()
    for part in TIMED[device]:
        files = sorted((package / part).rglob("*.py"), key=lambda file: file.relative_to(package).parts)
        if not files:
            raise FileNotFoundError(f"numbarnn has no {part}: record.TIMED names what runs during a call")
        for file in files:
            digest.update(f"{file.relative_to(package).as_posix()}\n{file.read_text(encoding='utf-8')}\0".encode())
    return digest.hexdigest()[:16]


def as_record(rows, where, load, torch_method=TORCH_METHOD):
    """Return everything measured, and what it was measured on; load: a `trust.Load` made before the first row."""
    found, load, device = info.collect(), load.as_record(), where.device
    known = found["commit"] != "unknown"  # without git
    turn_s = timing.GPU_TURN_S if device == "cuda" else timing.TURN_S
    method = load | {"rounds": where.rounds, "turn_s": turn_s, "threads": where.threads, "torch": torch_method}
    if device == "cuda":
        direct = cudnn.default_session().library.version_text if cudnn.why_not() is None else None
        of_torch = torch.backends.cudnn.version()
        method |= {"cudnn": CUDNN_METHOD | {"version": direct, "version_in_torch": of_torch}}
    else:
        method |= {"peak_flops": {dtype: cpu_peak(dtype) for dtype in ("float32", "float64")}}
    if where.memory and any(row["peak_bytes"] for row in rows):
        method["memory"] = memory.METHOD[device]
    machine = trust.machine_doubt(load, found["cpu"]["cores"])
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
        "results": [row | {"doubts": trust.doubts(row, row["seconds"], machine)} for row in rows],
    }


def read(path):
    """Return a record from its file; None for a file of something else."""
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    return found if isinstance(found, dict) and "kernels" in found else None
