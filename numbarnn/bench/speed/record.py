"""What a record of times carries besides them: what was timed, on what, and beside what else.

A record is a dict, written as JSON. `read` takes older ones too, and fills in what they do not have.
"""

import ast
import hashlib
import io
import json
import tokenize
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

import numbarnn
from numbarnn.bench import info
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.contender import torch
from numbarnn.bench.speed import memory, timing, trust
from numbarnn.bench.speed.lineup import TORCH, is_cudnn
from numbarnn.bench.speed.peak import cpu_bandwidth, cpu_peak

# What runs during a call, by device: parts of the package.
TIMED = {"cpu": ("cells", "common", "compile", "engines", "passes", "schedules")}
TIMED["cuda"] = (*TIMED["cpu"], "cuda", "kernels")
# What PyTorch is asked for, by pass, as recorded with the times.
TORCH_METHOD = {
    "forward": "module.eval() under torch.no_grad(): on a GPU cuDNN's inference call",
    "forward+backward": "module.train(): forward and y.backward(dy), which gives dx, dhx, dcx and all weight gradients",
    "torch.compile": "with --compile, the modules for one step (LSTMCell, ...) of all layers, in a loop over time",
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


@dataclass(frozen=True, kw_only=True)
class Row:
    """What every row of a record has: a cell, its sizes, a pass and a schedule, and the times of its contenders.

    Attributes:
        refusal: why there are no times. agreement: rows of `lineup.compare`. plan: what numbarnn ran, and why.
        seconds, device_seconds: contender -> its time per call in each round: the host's clock, the GPU's.
        ratio: contender -> median over rounds of numbarnn's time per call / the contender's.
        compile_s: contender -> seconds of the first call of one that compiles; no time has it in it.
    """

    cell: str
    shape: dict
    dtype: str
    device: str
    what: str
    schedule: str
    ok: bool
    refusal: str | None = None
    agreement: list = field(default_factory=list)
    plan: str | None = None
    seconds: dict = field(default_factory=dict)
    device_seconds: dict = field(default_factory=dict)
    median_s: dict = field(default_factory=dict)
    device_median_s: dict = field(default_factory=dict)
    ratio: dict = field(default_factory=dict)
    compile_s: dict = field(default_factory=dict)


def times(turns):
    """The fields of a `Row` with the times of contenders by name, as `timing.take_turns` gives them."""
    seconds = {name: turn.call for name, turn in turns.items()}
    device = {name: turn.device for name, turn in turns.items() if turn.device}
    return {
        "seconds": seconds, "device_seconds": device, "median_s": medians(seconds), "device_median_s": medians(device),
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------- what was timed
@cache
def kernels_digest(device):
    """A digest of the source of what runs during a call on a device ("cpu" or "cuda"): the same on every machine.

    Comments, docstrings, empty lines and the ends of lines do not count.
    """
    package = Path(numbarnn.__file__).parent
    digest = hashlib.sha256()
    for part in TIMED[device]:
        files = sorted((package / part).rglob("*.py"), key=lambda file: file.relative_to(package).parts)
        if not files:
            raise FileNotFoundError(
                f"numbarnn has no {part}: numbarnn.bench.speed.record.TIMED names what runs during a call"
            )
        for file in files:
            source = bare(file.read_text(encoding="utf-8"))
            digest.update(f"{file.relative_to(package).as_posix()}\n{source}\0".encode())
    return digest.hexdigest()[:16]


def bare(source):
    """Python's source without comments, docstrings and empty lines."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            text = node.body[0]
            lines[text.lineno - 1 : text.end_lineno] = [""] * (text.end_lineno - text.lineno + 1)
    return "\n".join(stripped for line in lines if (stripped := line.rstrip()))


def source_of(commit):
    """(commit or None, whether its tree was clean or None) of `info.commit`, which is "unknown" without git."""
    if commit in (None, "unknown"):
        return None, None
    return commit.removesuffix("-dirty"), not commit.endswith("-dirty")


# ------------------------------------------------------------------------------------------------------- the record
def as_record(rows, where, load, torch_method=TORCH_METHOD):
    """Everything measured, and what it was measured on; load: a `trust.Load` made before the first row."""
    found, load, device = info.collect(), load.as_record(), where.device
    commit, clean = source_of(found["commit"])
    turn_s = timing.GPU_TURN_S if device == "cuda" else timing.TURN_S
    method = load | {"rounds": where.rounds, "turn_s": turn_s, "threads": where.threads, "torch": torch_method}
    if device == "cuda":
        direct = cudnn.default_session().library.version_text if cudnn.why_not() is None else None
        of_torch = torch.backends.cudnn.version()
        method |= {"cudnn": CUDNN_METHOD | {"version": direct, "version_in_torch": of_torch}}
    else:
        method |= {"peak_flops": {dtype: cpu_peak(where.threads, dtype) for dtype in ("float32", "float64")}}
        method |= {"bandwidth": cpu_bandwidth(where.threads)}
    if where.memory and any("peak_bytes" in row for row in rows):
        method["memory"] = memory.method(device)
    machine = trust.machine_doubt(load, found["cpu"]["cores"])
    name = found["gpus"][0]["name"] if device == "cuda" and found["gpus"] else found["cpu"]["model"]
    return {
        "date": found["date"],
        "commit": commit or "none: numbarnn is not in a clone with git",
        "clean": clean,
        "kernels": kernels_digest(device),
        "driver": found["driver"],
        "device": device,
        "device_name": name,
        "environment": found,
        "method": method,
        "doubt": machine,
        "results": [row | {"doubts": trust.doubts(row, row["seconds"], machine)} for row in rows],
    }


def read(path):
    """A record from its file, whose rows get what they lack: schedule, tf32, paired ratios by the GPU's clock, ...

    None for a file of something else, such as the times of `numbarnn cells`.
    """
    record = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(record, dict) or any("saved_bytes" in row for row in record.get("results", [{"saved_bytes": 0}])):
        return None
    if "kernels" not in record:  # before 2026-11-22
        record["commit"], record["clean"] = source_of(record.get("commit"))
        record["kernels"] = None
    method, cores = record["method"], record["environment"]["cpu"]["cores"]
    record["doubt"] = trust.machine_doubt(method, cores)
    for row in record["results"]:
        row |= {"schedule": "auto", "tf32": False, "input_mode": "linear"} | row
        row |= {"left_out": {}, "notes": {}, "device_seconds": {}, "form": []} | row
        row |= {"compile_s": {}, "peak_bytes": {}} | row
        row |= {"device_ratio": ratios(row["device_seconds"]), "best_cudnn": best_cudnn(row["device_seconds"])}
    return record


# ------------------------------------------------------------------------------------------------------------ ratios
def medians(seconds):
    """Contender -> median of its times."""
    return {name: float(np.median(times)) for name, times in seconds.items()}


def ratios(seconds):
    """Contender -> median over rounds of numbarnn's time / the contender's in the same round."""
    ours = np.array(seconds.get("numbarnn", ()))
    return {name: float(np.median(ours / np.array(t))) for name, t in seconds.items() if name != "numbarnn"}


def best_cudnn(seconds):
    """The fastest of cuDNN's algorithms, None where there is none."""
    found = {name: middle for name, middle in medians(seconds).items() if is_cudnn(name)}
    return min(found, key=found.get, default=None)


def rival_of(row):
    """The contender that a row's ratio is about: the fastest of cuDNN's algorithms, or else PyTorch; None: nobody."""
    times = row["device_seconds"] or row["seconds"]
    return row.get("best_cudnn") or (TORCH if TORCH in times else None)
