"""`numbarnn bench --stream`: single steps, the state carried from one to the next, timed one by one.

A program that answers a stream waits for every call, and for the slowest of them: beside the median of all calls stands
their 99th percentile. numbarnn is there twice, as a call of the layer with one step and as `layer.stepper`; so is
PyTorch, as the module and as its cell for one step, with --compile also compiled. All walk over STEPS steps first, and
what they return is compared.
"""

import time

import numpy as np

from numbarnn.bench import console
from numbarnn.bench.cases.cases import Case, make_instance
from numbarnn.bench.cases.shapes import SETS, STEP
from numbarnn.bench.peers import onnx_peer, streams, torch_peer
from numbarnn.bench.peers.contender import Contender, installed, torch
from numbarnn.bench.peers.torch_peer import COMPILED, TORCH
from numbarnn.bench.speed import record, timing
from numbarnn.bench.speed.lineup import LineUp, disagreement, largest_trusted, said

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


def shapes_of(args):
    """Return the shapes that the command's options ask for; WrongArguments where one has more than one step."""
    named = "stream" if args.set in ("default", "quick") or args.shape else args.set
    if named not in SETS:
        raise console.WrongArguments(
            f"--stream takes one step at a time, --set {named} has problems of another kind: give --shape"
        )
    found = args.shape or SETS[named]
    for shape in found:
        if shape.form:
            raise console.WrongArguments(
                f"--stream takes one step of a stack at a time, in one direction: got --shape {shape}"
            )
        if shape.T != 1:
            raise console.WrongArguments(
                f"--stream takes one step at a time, so T must be 1 in --shape T,B,I,H,L: got {shape}"
            )
    return found


def time_stream(cell, shape, dtype, tf32, schedules, where):
    """Return the rows of one case, one per schedule.

    They have more than others: `calls` of each contender, `p99_s` of all calls, `p99_seconds` of those of each round,
    and `stepper_ratio`: as ratio, of the stepper's times. `seconds` are the medians of a round's calls.
    """
    instance = make_instance(Case(cell, STEPS, shape.B, shape.I, (shape.H,) * shape.L, dtype=dtype, allow_tf32=tf32))
    about = {"cell": cell, "shape": shape.sizes, "dtype": dtype, "device": where.device, "tf32": tf32, "what": STEP}
    rows = []
    for schedule in schedules:
        try:
            with torch_peer.torch_tf32(tf32), torch.inference_mode():
                found = compared_and_timed(instance, schedule, where)
        except Exception as exception:
            found = {"ok": False, "refusal": said(exception)}
        nothing = {"calls": 0, "p99_s": {}, "p99_seconds": {}, "stepper_ratio": {}}
        rows.append(record.row(**nothing | about | found, schedule=schedule))
    return rows


def compared_and_timed(instance, schedule, where):
    """Return the fields of a row besides those that say what is timed."""
    device, exact = where.device, torch_peer.torch_contender(instance.float64, False, where.device)
    rivals = [streams.torch_stream(instance, device), streams.torch_cell_stream(instance, device)]
    rivals += [streams.torch_cell_stream(instance, device, compiled=True)] if where.compiled else []
    if device == "cpu" and instance.case.dtype == "float32" and installed("onnx", "onnxruntime"):
        rivals.append(onnx_peer.onnxruntime_stream(instance, where.threads))
    line, compile_s, made = LineUp(instance.case, exact.results(exact.call()), rivals[0].walk()), {}, {}

    def add(one, **limits):
        """Compare what a stream computes as it walks, and keep it if that is right."""
        begin, contender = time.perf_counter(), Contender(one.name, one.walk, lambda found: found)
        try:
            rows = line.compare(contender, **limits)
            reason = disagreement(rows)
            line.agreement += rows if one.name != TORCH else []
        except Exception as exception:
            reason = said(exception)
        if reason:
            line.left_out[one.name] = reason
        else:
            made[one.name] = one
            compile_s.update({COMPILED: time.perf_counter() - begin} if one.name == COMPILED else {})

    for rival in rivals:
        add(rival, **({"limit_of": largest_trusted} if rival.name == TORCH else {}))
    for make in (streams.call_stream, streams.stepper_stream):
        add(make(instance, device, schedule))
    told = {"agreement": line.agreement, "left_out": line.left_out, "compile_s": compile_s}
    if lacking := [name for name in OWN if name not in made]:
        return {"ok": False, "refusal": line.left_out.pop(lacking[0])} | told
    seconds = timing.single_calls(list(made.values()), where.rounds, CALLS)
    return {"ok": True, "plan": made["numbarnn"].plan} | told | figures(seconds)


def figures(seconds):
    """Return the fields of a row with times; seconds: contender -> those of single calls (rounds, calls)."""
    middle, tails = ({name: np.percentile(found, percent, axis=1).tolist() for name, found in seconds.items()}
                     for percent in (50, TAIL))  # fmt: skip
    median_s, p99_s = ({name: float(np.percentile(found, percent)) for name, found in seconds.items()}
                       for percent in (50, TAIL))  # fmt: skip
    of_stepper = {name: times for name, times in middle.items() if name not in OWN} | {"numbarnn": middle["stepper"]}
    return {
        "calls": seconds["stepper"].size, "seconds": middle, "p99_seconds": tails, "median_s": median_s,
        "p99_s": p99_s, "stepper_ratio": record.ratios(of_stepper),
    }  # fmt: skip
