"""`numbarnn bench --stream`: single steps, the state carried from one to the next, timed one by one.

A program that answers a stream waits for every call, and for the slowest of them: beside the median of all calls stands
their 99th percentile. numbarnn is there twice, as a call of the layer with one step and as `layer.stepper`; so is
PyTorch, as the module and as its cell for one step, with --compile also compiled. All walk over STEPS steps first, and
what they return is compared.
"""

import time
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from numbarnn.bench import console
from numbarnn.bench.cases.cases import Case, make_instance
from numbarnn.bench.cases.passes import STEP
from numbarnn.bench.cases.shapes import SETS
from numbarnn.bench.peers import peers, streams
from numbarnn.bench.peers.contender import Contender, torch
from numbarnn.bench.peers.torch_cells import NAME as COMPILED
from numbarnn.bench.peers.torch_peer import torch_tf32
from numbarnn.bench.speed import timing
from numbarnn.bench.speed.lineup import TORCH, attempt, compare, largest_trusted, said
from numbarnn.bench.speed.record import Row, ratios
from numbarnn.bench.speed.speed_table import print_rows, quotient, say_compile_times, say_left_out, say_verdict

CALLS = 2000  # of each contender, at least
STEPS = 8  # compared; timed calls take the same x again and again
TAIL = 99  # the percentile beside the median
OWN = ("numbarnn", "stepper")
TORCH_METHOD = {
    "torch": "module.eval(), called with one step, under torch.inference_mode()",
    "torch cell": "torch.nn.LSTMCell, GRUCell or RNNCell, one for each layer, under torch.inference_mode()",
    "torch.compile": "the same cells in one function, compiled (mode reduce-overhead on a GPU, default on the CPU)",
    "allow_tf32": "as each row's tf32 says",
}


@dataclass(frozen=True, kw_only=True)
class StreamTiming(Row):
    """One row: `seconds` are the medians of a round's calls, `median_s` those of all calls.

    Attributes:
        calls: how many each contender made. stepper_ratio: as `ratio`, of the stepper's times.
        p99_s: contender -> 99th percentile of all its calls; p99_seconds: of those of each round.
        tf32, input_mode, left_out: as of other rows.
    """

    tf32: bool | str = False
    input_mode: str = "linear"
    calls: int = 0
    p99_s: dict = field(default_factory=dict)
    p99_seconds: dict = field(default_factory=dict)
    stepper_ratio: dict = field(default_factory=dict)
    left_out: dict = field(default_factory=dict)


def shapes_of(args):
    """The shapes that arguments of the command ask for; WrongArguments where one has more than one step, or words."""
    named = "stream" if args.set in ("default", "quick") or args.shape else args.set
    if named not in SETS:
        raise console.WrongArguments(
            f"--stream takes one step at a time, --set {named} has problems of another kind: give --shape"
        )
    found = args.shape or SETS[named]
    if formed := [shape for shape in found if shape.form]:
        raise console.WrongArguments(
            f"--stream takes one step of a stack at a time, in one direction: got --shape {formed[0]}"
        )
    if long := [shape for shape in found if shape.T != 1]:
        raise console.WrongArguments(
            f"--stream takes one step at a time, so T must be 1 in --shape T,B,I,H,L: got {long[0]}"
        )
    return found


def time_stream(cell, shape, dtype, tf32, schedules, where):
    """The rows of one case, a row per schedule."""
    case = Case(cell, STEPS, shape.B, shape.I, (shape.H,) * shape.L, dtype=dtype, allow_tf32=tf32)
    row = {"cell": cell, "shape": shape.sizes, "dtype": dtype, "device": where.device, "tf32": tf32, "what": STEP}
    return [StreamTiming(**row, schedule=name, **measure(case, name, where)) for name in schedules]


def measure(case, schedule, where):
    """The fields of a row besides those that say what is timed."""
    instance, device = make_instance(case), where.device
    try:
        with torch_tf32(case.allow_tf32):
            exact = peers.torch_contender(instance.float64, False, device)
            return compared_and_timed(instance, exact.results(exact.call()), schedule, where)
    except Exception as exception:
        return {"ok": False, "refusal": said(exception)}


def compared_and_timed(instance, truth, schedule, where):
    """The same; truth: PyTorch's results in float64."""
    case, device, line, left_out, agreement = instance.case, where.device, [], {}, []
    with_onnx = device == "cpu" and case.dtype == "float32" and peers.installed("onnx", "onnxruntime")
    rivals = [streams.torch_stream(instance, device), streams.torch_cell_stream(instance, device)]
    rivals += [streams.torch_cell_stream(instance, device, compiled=True)] if where.compiled else []
    rivals += [streams.onnxruntime_stream(instance, where.threads)] if with_onnx else []

    def compared(make, **limits):
        return attempt(make, lambda one: compare(case, as_contender(one), truth, wanted, **limits))

    with torch.inference_mode():
        wanted, compile_s = rivals[0].walk(), {}
        for rival in rivals:
            begin = time.perf_counter()
            limits = {"limit_of": largest_trusted} if rival.name == TORCH else {}
            made, rows, reason = compared(lambda rival=rival: rival, **limits)
            agreement += rows if rival.name != TORCH else []
            if reason:
                left_out[rival.name] = reason
            else:
                line.append(made)
                compile_s |= {COMPILED: time.perf_counter() - begin} if made.name == COMPILED else {}
        for make in (streams.stepper_stream, streams.call_stream):
            made, rows, refusal = compared(partial(make, instance, device, schedule))
            agreement += rows
            if refusal:
                return {"ok": False, "refusal": refusal, "agreement": agreement, "left_out": left_out}
            line.insert(0, made)
        seconds = timing.single_calls(line, where.rounds, CALLS)
    told = {"agreement": agreement, "left_out": left_out, "plan": line[0].plan, "compile_s": compile_s}
    return {"ok": True, **told, **figures(seconds)}


def as_contender(stream):
    """A stream's walk, as `compare` wants it."""
    return Contender(stream.name, stream.walk, lambda found: found, stream.synchronize)


def figures(seconds):
    """The fields of a `StreamTiming` with times; seconds: contender -> those of single calls (rounds, calls)."""

    def of_rounds(percent):
        return {name: np.percentile(found, percent, axis=1).tolist() for name, found in seconds.items()}

    def of_all(percent):
        return {name: float(np.percentile(found, percent)) for name, found in seconds.items()}

    middle = of_rounds(50)
    of_stepper = {name: times for name, times in middle.items() if name not in OWN} | {"numbarnn": middle["stepper"]}
    return {
        "calls": seconds["stepper"].size, "seconds": middle, "p99_seconds": of_rounds(TAIL), "median_s": of_all(50),
        "p99_s": of_all(TAIL), "ratio": ratios(middle), "stepper_ratio": ratios(of_stepper),
    }  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- the table
LABELS = {
    "numbarnn": "call", "stepper": "stepper", "torch": "torch", "torch cell": "torch cell",
    "torch.compile": "compiled", "onnxruntime": "onnxrt",
}  # fmt: skip


def print_streams(rows, where, doubt):
    """The table of single calls, and a summary line; arguments as of `speed_table.print_timings`."""
    names = [name for name in LABELS if any(name in row["median_s"] for row in rows)]
    rivals = [name for name in names if name not in OWN]
    columns = [LABELS[name] for name in names] + [f"/ {LABELS[name]}" for name in rivals]
    cells = []
    for row in rows:
        middle, tail = row["median_s"], row["p99_s"]
        times = [f"{middle[n] * 1e6:.1f} / {tail[n] * 1e6:.1f}" if n in middle else "-" for n in names]
        found = [quotient(row["stepper_ratio"].get(name)) for name in rivals]
        cells.append([*times, *found])
    calls = max(row["calls"] for row in rows)
    title = f"Microseconds of single steps, median / 99th percentile of {calls} calls, the host's clock"
    title += f", {where.threads} CPU threads" if where.device == "cpu" else ", until the GPU is idle"
    title += "; a ratio of the stepper's below 1: it is faster"
    print_rows(title, rows, columns, cells, doubt)
    say_left_out(rows)
    say_compile_times(rows)
    say_verdict(rows, doubt)
