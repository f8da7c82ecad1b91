"""Times of the recorded questions, paired with cuDNN's algorithms called directly, each as a CUDA graph.

Results are compared before any time is taken: with PyTorch's in float64, and within twice the error of cuDNN's standard
algorithm. An answer's rows are those of a record of `numbarnn bench`.
"""

from dataclasses import asdict
from itertools import product
from math import exp, log

import conduct

from numbarnn.bench import console, info
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

ROUNDS = 3  # as many as a time that can be trusted needs
RECORDED = (("lstm", "float16"), ("lstm", "float32"), ("gru", "float16"), ("gru", "float32"))


def recorded(run):
    """Name -> (cell, dtype, allow_tf32, shape) of the recorded questions; in a small run of two tiny ones."""
    shapes = SETS["schedules"]
    kinds = RECORDED
    if run.small:
        shapes, kinds = [shapes[0]._replace(T=3, B=2, I=8, H=8)], RECORDED[:2]
    return {f"{cell} {shape} {dtype}": (cell, dtype, False, shape) for (cell, dtype), shape in product(kinds, shapes)}


def questions(run, of):
    """Name -> (cell, dtype, allow_tf32, shape, our schedules, cuDNN's algorithms)."""
    found = {}
    if of == "times":
        for name, one in recorded(run).items():
            found[name] = *one, ("persistent", "auto"), ("standard", "persist_static")
    elif of == "schedules":
        for name, one in recorded(run).items():
            several = one[-1].L > 1
            found[name] = *one, ("stepwise", "wavefront") if several else ("stepwise",), ()
    else:
        shapes = {one[-1]: None for one in recorded(run).values()}
        for dtype, tf32, own in (
            ("bfloat16", False, "auto"),
            ("float32", "3x", "persistent"),
            ("float32", True, "auto"),
        ):
            for shape in shapes:
                name = f"lstm {shape} {with_tf32(dtype, tf32)}"
                found[name] = "lstm", dtype, tf32, shape, (own,), ("standard", "persist_static")
        for name, one in recorded(run).items():
            found[f"{name} others"] = *one, ("persistent",), ("persist_dynamic", "persist_static_small_h")
    return found


def answer(name, run, of):
    """The rows of a question, one for each pass and schedule."""
    cell, dtype, tf32, shape, schedules, algorithms = questions(run, of)[name]
    case = Case(cell, shape.T, shape.B, shape.I, (shape.H,) * shape.L, gradients="y", dtype=dtype, allow_tf32=tf32)
    on_gpu = run.device == "cuda" and not run.small
    where = timing.Machine(run.device, info.core_count(), ROUNDS, usage=False, gpu_clock=on_gpu)
    load, instance = trust.Load(), make_instance(case)
    if on_gpu:
        exact = peers.torch_contender(instance.float64, train=True, device="cuda")
        truth = exact.results(exact.call())
        del exact
        torch.cuda.empty_cache()
    else:
        truth = reference_results(instance)
    about = {"cell": cell, "shape": shape.sizes, "dtype": dtype, "device": run.device, "tf32": tf32}
    rows = []
    for what in WHOLE:
        line = line_up(instance, truth, what, algorithms)
        found = speed.time_pass(instance, truth, about | {"what": what}, schedules, where, line)
        rows += map(asdict, found)
    made = {"results": rows} if run.small else record.as_record(rows, where, load)
    fine = [(row["ok"] or (bool(row["refusal"]) and row["refusal"].startswith("DoesNotFit"))) for row in rows]
    return {"ok": all(fine) and not any(disagreement(row["agreement"]) for row in rows), "record": made}


def line_up(instance, truth, what, algorithms):
    """The `LineUp` of cuDNN's algorithms; what is wanted of everybody is cuDNN's, or else the truth in the case's
    dtype."""
    case = instance.case
    contenders, refusals = cudnn_contenders(instance, what, algorithms) if algorithms else ([], {})
    wanted = {name: value for name, value in truth.items() if name in quantities(what, instance.parameters)}
    if contenders:
        given = contenders[0].results(contenders[0].call())
        wanted = {name: given[name] for name in wanted if name in given}
    else:
        kind = known_dtype(case.dtype)
        wanted = {name: [one.astype(kind) for one in value] if isinstance(value, list) else value.astype(kind)
                  for name, value in wanted.items()}  # fmt: skip
    line = LineUp([], wanted, left_out=refusals)
    line.add(contenders, case, truth)
    return line


def told(answers, of):
    """The best of our schedules against the best of cuDNN's algorithms, for each question and pass; and the mean."""
    lines, ratios = [], []
    for one in (one for one in answers if one.get("record")):
        passes = {}
        for row in one["record"]["results"]:
            passes.setdefault(row["what"], []).append(row)
        for what, rows in passes.items():
            ours, theirs = {row["schedule"]: times_of(row).get("numbarnn") for row in rows}, {}
            for row in rows:
                theirs |= {peer: time for peer, time in times_of(row).items() if peer != "numbarnn"}
            shown = ", ".join(
                f"{who} {1e6 * time:.0f}" if time else f"{who} -" for who, time in (ours | theirs).items()
            )
            if theirs and any(ours.values()):
                ratios.append(min(filter(None, ours.values())) / min(theirs.values()))
                shown += f" us, ratio {ratios[-1]:.2f}"
            lines.append(f"{one['question']} {SHORT[what]}: {shown}")
            lines += [f"    {row['schedule']}: {row['refusal'][:200]}" for row in rows if row["refusal"]]
    if ratios:
        mean = exp(sum(map(log, ratios)) / len(ratios))
        lines.insert(0, f"geometric mean of {len(ratios)} ratios {mean:.3f}; largest {max(ratios):.2f}")
    return lines


def times_of(row):
    return row["device_median_s"] or row["median_s"]


def write_record(folder, path):
    """Write all times of a folder of results as one record of `numbarnn bench`; return the exit code."""
    run = conduct.Run("cuda", False, str(folder))
    answers = [one for name in ("times", "more", "schedules") for one in conduct.read(run, name).values()]
    records = [one["record"] for one in answers if one.get("record")]
    if not records:
        console.say(f"{folder} has no times", error=True)
        return 1
    rows = [row for made in records for row in made["results"]]
    console.write_json(path, records[-1] | {"results": rows})
    return 0
