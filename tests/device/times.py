"""Time the recorded problems, paired with cuDNN's algorithms called directly, each as a CUDA graph.

Before, results must be within twice the error of cuDNN's standard algorithm. DIR/record.json has all rows.
"""

from functools import partial
from itertools import product
from pathlib import Path

from numbarnn.bench import console, info, record, timing
from numbarnn.bench.cases import Case, make_instance
from numbarnn.bench.expected import reference_results
from numbarnn.bench.lineup import LineUp, disagreement, largest_trusted
from numbarnn.bench.peers import peers, torch_peer
from numbarnn.bench.peers.cudnn_peer import cudnn_contenders
from numbarnn.bench.shapes import SETS, SHORT, WHOLE, quantities, with_tf32
from numbarnn.bench.speed import time_pass

FULL, ROUNDED = (("float16", False), ("float32", False)), (("bfloat16", False), ("float32", "3x"), ("float32", True))
BASE, OTHERS = ("standard", "persist_static"), ("persist_dynamic", "persist_static_small_h")


def problems(run, cells=("lstm", "gru"), dtypes=FULL):
    """Name -> Case of the recorded shapes; of one tiny shape in a small run. dtypes: (dtype, allow_tf32)."""
    shapes = [SETS["schedules"][0]._replace(T=3, B=2, I=8, H=8)] if run.small else SETS["schedules"]
    found = {}
    for cell, (dtype, tf32), shape in product(cells[:1] if run.small else cells, dtypes, shapes):
        sizes = shape.T, shape.B, shape.I, (shape.H,) * shape.L
        case = Case(cell, *sizes, gradients="y", dtype=dtype, allow_tf32=tf32)
        found[f"{cell} {shape} {with_tf32(dtype, tf32)}"] = case
    return found


def questions(run, part):
    found, recorded = {}, problems(run)
    for name, case in (problems(run, ("lstm",), ROUNDED) if part == "more" else recorded).items():
        own = {"times": ("persistent", "auto"), "schedules": ("stepwise", "wavefront")[: case.L]}
        own["more"] = ("persistent" if case.allow_tf32 == "3x" else "auto",)
        found[name] = partial(timed, run, case, own[part], () if part == "schedules" else BASE)
    others = recorded if part == "more" else {}
    return found | {
        f"{name} others": partial(timed, run, case, ("persistent",), OTHERS) for name, case in others.items()
    }


def timed(run, case, schedules, algorithms=()):
    """The rows of a problem, one for each pass and schedule, next to cuDNN's algorithms."""
    on_gpu, instance, load = run.device == "cuda" and not run.small, make_instance(case), record.Load()
    machine = timing.Machine(run.device, info.core_count(), rounds=3, memory=False, gpu_clock=on_gpu)
    exact = torch_peer.torch_contender(instance.float64, train=True, device="cuda") if on_gpu else None
    truth = exact.results(exact.call()) if on_gpu else reference_results(instance)
    about = {"cell": case.cell, "dtype": case.dtype, "tf32": case.allow_tf32, "device": run.device}
    about["shape"] = {"T": case.T, "B": case.B, "I": case.input_size, "H": case.hidden[0], "L": case.L}
    rows, told, ratios = [], [], []
    for what in WHOLE:
        line = line_up(instance, truth, what, algorithms)
        make = partial(peers.numbarnn_contender, instance)
        of_pass = time_pass(make, line, about | {"what": what}, schedules, machine)
        rows += of_pass
        of_row = {row["schedule"]: row["device_median_s"] or row["median_s"] for row in of_pass}
        ours = {schedule: found["numbarnn"] for schedule, found in of_row.items() if found}
        theirs = {peer: s for found in of_row.values() for peer, s in found.items() if peer != "numbarnn"}
        ratios += [min(ours.values()) / min(theirs.values())] if ours and theirs else []
        text = ", ".join(f"{who} {1e6 * s:.0f} us" for who, s in (ours | theirs).items())
        told.append(f"{SHORT[what]}: {text}{f', ratio {ratios[-1]:.2f}' if ours and theirs else ''}")
        refused = {row["schedule"]: row["refusal"] for row in of_pass if row["refusal"]} | line.left_out
        told += [f"  {who}: {reason[:200]}" for who, reason in refused.items()]
    fine = [row["ok"] or (row["refusal"] or "").startswith("DoesNotFit") for row in rows]
    ok = all(fine) and not any(disagreement(row["agreement"]) for row in rows)
    made = {"results": rows} if run.small else record.as_record(rows, machine, load)
    return {"ok": ok, "told": told, "ratios": ratios, "record": made}


def line_up(instance, truth, what, algorithms):
    """The `LineUp` of cuDNN's algorithms. Everybody's error is compared with that of the first, or else with none."""
    contenders, refusals = cudnn_contenders(instance, what, algorithms) if algorithms else ([], {})
    results = contenders[0].results(contenders[0].call()) if contenders else truth
    wanted = {name: results[name] for name in quantities(what, instance.parameters) if name in results}
    line = LineUp(instance.case, truth, wanted, left_out=refusals)
    for contender in contenders:
        line.add(contender.name, lambda contender=contender: contender, largest_trusted)
    return line


def write_record(run):
    """Write all times as one record of `numbarnn bench`."""
    parts = ("times", "more", "schedules")
    if records := [one["record"] for part in parts for one in run.answers(part).values() if one.get("record")]:
        rows = [row for made in records for row in made["results"]]
        console.write_json(Path(run.out, "record.json"), records[-1] | {"results": rows})
