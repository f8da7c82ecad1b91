"""Time the recorded problems, paired with cuDNN's algorithms called directly, each as a CUDA graph.

Results are compared before any time is taken: with PyTorch's in float64, and within twice the error of cuDNN's standard
algorithm. The rows of all answers are DIR/record.json too, a record of `numbarnn bench`.
"""

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path

from numbarnn.bench import info
from numbarnn.bench.cases.cases import Case, make_instance
from numbarnn.bench.cases.passes import SHORT, WHOLE, quantities
from numbarnn.bench.cases.shapes import SETS, with_tf32
from numbarnn.bench.check.expected import reference_results
from numbarnn.bench.peers import peers
from numbarnn.bench.peers.contender import torch
from numbarnn.bench.peers.cudnn_peer import cudnn_contenders
from numbarnn.bench.speed import command as speed
from numbarnn.bench.speed import record, timing, trust
from numbarnn.bench.speed.lineup import LineUp, disagreement
from numbarnn.common.precision import known_dtype

ROUNDS = 3  # the fewest that a record may have
BASE, OTHERS = ("standard", "persist_static"), ("persist_dynamic", "persist_static_small_h")


def recorded(run):
    """Name -> Case of the recorded problems; two tiny ones in a small run."""
    cells = (("lstm", "float16"), ("lstm", "float32"), ("gru", "float16"), ("gru", "float32"))
    shapes = SETS["schedules"]
    if run.small:
        shapes, cells = [shapes[0]._replace(T=3, B=2, I=8, H=8)], cells[:2]
    return dict(named(cell, shape, dtype) for (cell, dtype), shape in product(cells, shapes))


def named(cell, shape, dtype, tf32=False):
    case = Case(cell, shape.T, shape.B, shape.I, (shape.H,) * shape.L, gradients="y", dtype=dtype, allow_tf32=tf32)
    return f"{cell} {shape} {with_tf32(dtype, tf32)}", case


def questions(run, part):
    """Name -> (Case, our schedules, cuDNN's algorithms)."""
    problems = recorded(run)
    if part == "times":
        return {name: (case, ("persistent", "auto"), BASE) for name, case in problems.items()}
    if part == "schedules":
        return {name: (case, ("stepwise", "wavefront")[: case.L], ()) for name, case in problems.items()}
    shapes = dict.fromkeys(shape_of(case) for case in problems.values())
    dtypes = ("bfloat16", False, "auto"), ("float32", "3x", "persistent"), ("float32", True, "auto")
    found = {}
    for (dtype, tf32, schedule), shape in product(dtypes, shapes):
        name, case = named("lstm", shape, dtype, tf32)
        found[name] = case, (schedule,), BASE
    return found | {f"{name} others": (case, ("persistent",), OTHERS) for name, case in problems.items()}


def shape_of(case):
    return SETS["schedules"][0]._replace(T=case.T, B=case.B, I=case.I, H=case.hidden[0], L=case.L)


def answer(name, run, part):
    """The rows of a problem, one for each pass and schedule."""
    case, schedules, algorithms = questions(run, part)[name]
    on_gpu = run.device == "cuda" and not run.small
    machine = timing.Machine(run.device, info.core_count(), ROUNDS, usage=False, gpu_clock=on_gpu)
    load, instance = trust.Load(), make_instance(case)
    if on_gpu:
        exact = peers.torch_contender(instance.float64, train=True, device="cuda")
        truth = exact.results(exact.call())
        del exact
        torch.cuda.empty_cache()
    else:
        truth = reference_results(instance)
    about = {"cell": case.cell, "shape": shape_of(case).sizes, "dtype": case.dtype, "device": run.device}
    rows, told, ratios = [], [], []
    for what in WHOLE:
        line = line_up(instance, truth, what, algorithms)
        of_pass = speed.time_pass(
            instance, truth, about | {"tf32": case.allow_tf32, "what": what}, schedules, machine, line
        )
        rows += map(asdict, of_pass)
        ours = {row.schedule: times_of(row).get("numbarnn") for row in of_pass}
        theirs = {peer: s for row in of_pass for peer, s in times_of(row).items() if peer != "numbarnn"}
        text = ", ".join(f"{who} {1e6 * s:.0f}" if s else f"{who} -" for who, s in (ours | theirs).items())
        if theirs and any(ours.values()):
            ratios.append(min(filter(None, ours.values())) / min(theirs.values()))
            text += f", ratio {ratios[-1]:.2f}"
        told.append(f"{name} {SHORT[what]}, us: {text}")
        told += [f"  {row.schedule}: {row.refusal[:200]}" for row in of_pass if row.refusal]
        told += [f"  {peer}: {reason[:200]}" for peer, reason in line.left_out.items()]
    made = {"results": rows} if run.small else record.as_record(rows, machine, load)
    fine = [row["ok"] or (row["refusal"] or "").startswith("DoesNotFit") for row in rows]
    ok = all(fine) and not any(disagreement(row["agreement"]) for row in rows)
    return {"ok": ok, "told": told, "ratios": ratios, "record": made}


def times_of(row):
    """Contender -> seconds, by the GPU's clock where there is one."""
    return row.device_median_s or row.median_s


def line_up(instance, truth, what, algorithms):
    """The `LineUp` of cuDNN's algorithms. Everybody is compared with the first, or else with the rounded truth."""
    case = instance.case
    contenders, refusals = cudnn_contenders(instance, what, algorithms) if algorithms else ([], {})
    wanted = {name: value for name, value in truth.items() if name in quantities(what, instance.parameters)}
    if contenders:
        results = contenders[0].results(contenders[0].call())
        wanted = {name: results[name] for name in wanted if name in results}
    else:
        dtype = known_dtype(case.dtype)
        for name, value in wanted.items():
            several = isinstance(value, list)
            wanted[name] = [one.astype(dtype) for one in value] if several else value.astype(dtype)
    line = LineUp([], wanted, left_out=refusals)
    line.add(contenders, case, truth)
    return line


def write_record(run):
    """Write all times as one record of `numbarnn bench`."""
    answers = [one for part in ("times", "more", "schedules") for one in run.answers(part).values()]
    if records := [one["record"] for one in answers if "record" in one]:
        rows = [row for made in records for row in made["results"]]
        Path(run.out, "record.json").write_text(json.dumps(records[-1] | {"results": rows}))
