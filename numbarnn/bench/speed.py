"""`numbarnn bench`: times against PyTorch (cuDNN, on a GPU) and, for inference on the CPU, onnxruntime.

A row is a cell, a shape, a dtype, a pass and a schedule; the schedules of a problem and its peers take turns
(`timing`). A time is the median over rounds, and a ratio the median over rounds of the ratio within a round, so that a
slow moment of the machine hits both sides. Results are compared before any time is taken, and where they are wrong
there is no time: each may be at most twice as far as PyTorch's from what PyTorch computes in float64, or as far as
`accuracy.floor`. A schedule that cannot run a problem is a row that says why.
"""

import argparse
import os
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import numpy as np

from numbarnn.bench import accuracy, info, peers, report, timing
from numbarnn.bench.cases import PEERS_CELLS, Case, make_problem
from numbarnn.cells import precision

FORWARD, TRAINING = "forward", "forward+backward"
ROUNDS = {"cpu": 7, "cuda": 5}
SHORT = {FORWARD: "fwd", TRAINING: "fwd+bwd"}  # in the table
BUSY = 0.3  # load average per core before the start, above which times are marked as not to be trusted
# What PyTorch is asked for, as recorded with the times.
TORCH_METHOD = {
    FORWARD: "module.eval() under torch.no_grad(): on a GPU cuDNN's inference call",
    TRAINING: "module.train(): forward and y.backward(dy), which gives dx, dhx, dcx and all weight gradients",
    "allow_tf32": False,
}


class Shape(NamedTuple):
    """Sizes of a problem with layers of one size."""

    T: int
    B: int
    I: int  # noqa: E741
    H: int
    L: int

    def __str__(self):
        return ",".join(map(str, self))


#: Name -> shapes.
SETS = {
    "default": (
        Shape(25, 16, 512, 512, 1),
        Shape(50, 64, 512, 512, 1),
        Shape(100, 1, 256, 256, 1),
        Shape(8, 128, 1024, 1024, 3),
        Shape(3, 1, 255, 20, 2),
        Shape(1, 1, 512, 512, 1),
        Shape(50, 32, 128, 128, 2),
    ),
    "schedules": (  # where schedules differ: long or short, one layer or several
        Shape(1024, 16, 768, 768, 1),
        Shape(25, 16, 512, 512, 1),
        Shape(25, 32, 512, 512, 1),
        Shape(25, 64, 512, 512, 1),
        Shape(25, 64, 1024, 1024, 1),
        Shape(150, 16, 256, 256, 1),
        Shape(100, 64, 512, 512, 4),
        Shape(8, 128, 1024, 1024, 3),
    ),
}


@dataclass(frozen=True)
class Timing:
    """One row; `refusal` says why there are no times.

    plan                          what numbarnn ran, and why
    seconds, device_seconds       contender -> its time per call in each round: the host's clock, the GPU's
    median_s, device_median_s     their medians
    ratio                         contender -> median over rounds of numbarnn's time per call / the contender's
    """

    cell: str
    shape: dict
    dtype: str
    device: str
    what: str
    schedule: str
    ok: bool
    refusal: str | None
    agreement: list
    plan: str | None = None
    seconds: dict = field(default_factory=dict)
    device_seconds: dict = field(default_factory=dict)
    median_s: dict = field(default_factory=dict)
    device_median_s: dict = field(default_factory=dict)
    ratio: dict = field(default_factory=dict)


def parse_shape(text):
    """An argparse type: "25,16,512,512,1" -> Shape."""
    parts = text.split(",")
    if len(parts) != 5 or not all(part.strip().isdecimal() and int(part) >= 1 for part in parts):
        raise argparse.ArgumentTypeError(
            f"expected T,B,I,H,L, five whole numbers of at least 1 such as {SETS['default'][0]}; got {text!r}"
        )
    return Shape(*map(int, parts))


def add_arguments(parser):
    """Adds the arguments of `numbarnn bench`."""
    from numbarnn.schedules import SCHEDULES

    shapes = parser.add_mutually_exclusive_group()
    add_shape_argument(shapes)
    described = "; ".join(f"{name}: {' '.join(map(str, shapes))}" for name, shapes in SETS.items())
    shapes.add_argument("--set", choices=SETS, default="default", help=f"named shapes; {described}")
    add_list_argument(parser, "--cell", PEERS_CELLS, ["lstm", "gru"])
    add_list_argument(parser, "--dtype", precision.DTYPES, ["float32"])
    add_list_argument(parser, "--schedule", ("auto", *SCHEDULES), ["auto"])
    add_machine_arguments(parser)
    report.add_json_argument(parser, "times, ratios, agreement, device and versions")


def add_shape_argument(parser):
    """Adds `--shape T,B,I,H,L`."""
    parser.add_argument(
        "--shape",
        type=parse_shape,
        action="append",
        metavar="T,B,I,H,L",
        help="steps, batch, input size, hidden size, layers; may be given several times",
    )


def add_list_argument(parser, option, choices, default):
    """Adds an option that takes several of `choices`."""
    parser.add_argument(
        option,
        type=report.comma_list(choices),
        default=default,
        metavar=f"{option[2:].upper()}[,...]",
        help=f"from {', '.join(choices)}; default {','.join(default)}",
    )


def add_machine_arguments(parser):
    """Adds what says where times are taken, and how many."""
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument(
        "--threads",
        type=report.positive_int,
        metavar="N",
        help="CPU threads for every contender; default all cores",
    )
    parser.add_argument(
        "--openblas-core",
        metavar="NAME",
        help="the CPU family numbarnn's OpenBLAS takes its kernels from, such as Haswell or SkylakeX; 'auto' looks at "
        "the processor even if OPENBLAS_CORETYPE is set; default as the environment says",
    )
    rounds = ", ".join(f"{number} on {device}" for device, number in ROUNDS.items())
    parser.add_argument("--rounds", type=report.positive_int, metavar="N", help=f"default {rounds}")


def run(args):
    """Takes the times and prints them; returns 1 when a time was refused, else 0."""
    if not peers.installed("torch"):
        raise report.MissingPackage("PyTorch", "numbarnn bench", "torch")
    choose_openblas_core(args.openblas_core)
    device = choose_device(args.device)
    threads, rounds = args.threads or info.core_count(), args.rounds or ROUNDS[device]
    set_up_torch_and_engine(device, threads)
    load = load_average()
    if device == "cpu" and not peers.installed("onnx", "onnxruntime"):
        report.say("onnxruntime is left out: pip install onnx onnxruntime", error=True)
    shapes = args.shape or SETS[args.set]
    todo = [(cell, shape, dtype) for cell in args.cell for shape in shapes for dtype in args.dtype]
    timings = []
    with report.Progress() as progress:
        progress.start(f"bench on {device}", len(todo))
        for cell, shape, dtype in todo:
            timings += time_problem(cell, shape, dtype, device, args.schedule, threads, rounds)
            progress.update(f"bench on {device}")
    if args.json:
        report.write_json(args.json, as_record(timings, rounds, device, threads, load))
    print_timings(timings, device, threads)
    say_doubts(device, load)
    return 0 if all(timing.ok for timing in timings) else 1


def say_doubts(device, load):
    """Says what speaks against the times: a processor taken for another one, or a machine that was busy."""
    if device == "cpu" and (notice := info.forced_core_notice()):
        report.say(notice)
    if load is not None and load > BUSY * info.core_count():
        report.say(f"the machine was busy with something else (load {load:.1f}): these times are not to be trusted")


def choose_openblas_core(name):
    """Set the environment variable that OpenBLAS reads when the CPU engine loads it; None leaves it as it is."""
    if name == "auto":
        os.environ.pop("OPENBLAS_CORETYPE", None)
    elif name is not None:
        os.environ["OPENBLAS_CORETYPE"] = name


def load_average():
    """Processes that wanted a core during the last minute; None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def choose_device(wanted):
    """The device to time on: "cpu" or "cuda". On CUDA, PyTorch must have it too."""
    import torch

    from numbarnn import engines

    ours, theirs = "cuda" in engines.available(), torch.cuda.is_available()
    if wanted == "cuda" and not (ours and theirs):
        lacking = "numbarnn's CUDA engine does not run here (see numbarnn info)" if not ours else ""
        raise report.CannotRun(lacking or f"PyTorch {torch.__version__} does not reach the GPU: install its CUDA build")
    return "cuda" if wanted != "cpu" and ours and theirs else "cpu"


def set_up_torch_and_engine(device, threads):
    """The same for both: a number of CPU threads (onnxruntime takes it per session), and float32 that is float32."""
    from numbarnn import engines

    if peers.installed("torch"):
        import torch

        torch.set_num_threads(threads)
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    if device == "cpu":
        engines.get("cpu").set_num_threads(threads)


def time_problem(cell, shape, dtype, device, schedules, threads, rounds):
    """The rows of one problem, a row per pass and schedule."""
    case = Case(cell, shape.T, shape.B, shape.I, (shape.H,) * shape.L, gradients="y", dtype=dtype)
    about = {"cell": cell, "shape": shape._asdict(), "dtype": dtype, "device": device}
    try:
        problem = make_problem(case)
        exact = peers.torch_contender(problem.float64, train=True, device=device)
        truth = exact.results(exact.call())
    except Exception as exception:
        reason = said(exception)
        return [refused(about | {"what": w, "schedule": s}, reason) for w in SHORT for s in schedules]
    timings = []
    for what in SHORT:
        timings += time_pass(problem, truth, about | {"what": what}, schedules, threads, rounds)
    return timings


def time_pass(problem, truth, about, schedules, threads, rounds):
    """The rows of one pass of a problem, a row per schedule."""
    train, device = about["what"] == TRAINING, about["device"]
    try:
        rivals, torch, rival_agreement = line_up(problem, truth, train, device, threads)
        if reason := disagreement(rival_agreement):
            raise ArithmeticError(reason)
    except Exception as exception:
        return [refused(about | {"schedule": schedule}, said(exception)) for schedule in schedules]
    contenders, agreements, refusals = {}, {}, {}
    for schedule in schedules:
        agreements[schedule] = list(rival_agreement)
        try:
            ours = peers.numbarnn_contender(problem, train, device, schedule)
            agreements[schedule] += compare(problem.case, ours, truth, torch)
        except Exception as exception:
            refusals[schedule] = said(exception)
            continue
        if reason := disagreement(agreements[schedule]):
            refusals[schedule] = reason
        else:
            contenders[schedule] = ours
    turns = timing.take_turns([*contenders.values(), *rivals], rounds, device == "cuda") if contenders else {}
    rows = []
    for schedule in schedules:
        row = about | {"schedule": schedule}
        if schedule in refusals:
            rows.append(refused(row, refusals[schedule], agreements[schedule]))
        else:
            own = {"numbarnn": turns[contenders[schedule].name]} | {rival.name: turns[rival.name] for rival in rivals}
            rows.append(timed_row(row | {"plan": contenders[schedule].plan}, own, agreements[schedule]))
    return rows


def said(exception):
    """An exception as a refusal."""
    return f"{type(exception).__name__}: {exception}"


def refused(about, reason, agreement=()):
    """A row without times."""
    return Timing(**about, ok=False, refusal=reason, agreement=list(agreement))


def timed_row(about, turns, agreement):
    """A row with the times of its contenders, numbarnn among them."""
    seconds = {name: turn.call for name, turn in turns.items()}
    device_seconds = {name: turn.device for name, turn in turns.items() if turn.device}
    ours = np.array(seconds["numbarnn"])
    return Timing(
        **about,
        ok=True,
        refusal=None,
        agreement=agreement,
        seconds=seconds,
        device_seconds=device_seconds,
        median_s={name: float(np.median(times)) for name, times in seconds.items()},
        device_median_s={name: float(np.median(times)) for name, times in device_seconds.items()},
        ratio={name: float(np.median(ours / np.array(times))) for name, times in seconds.items() if name != "numbarnn"},
    )


def line_up(problem, truth, train, device, threads):
    """PyTorch and, for float32 inference on the CPU, onnxruntime: contenders, PyTorch's results, onnxruntime's rows."""
    torch = peers.torch_contender(problem, train, device)
    results = torch.results(torch.call())
    if device == "cuda" or train or problem.case.dtype != "float32" or not peers.installed("onnx", "onnxruntime"):
        return [torch], results, []
    onnxruntime = peers.onnxruntime_contender(problem, threads)
    return [torch, onnxruntime], results, compare(problem.case, onnxruntime, truth, results)


def compare(case, contender, truth, torch, limit_of=accuracy.limit):
    """A contender's results against float64: rows with contender, quantity, error, PyTorch's error, limit, ok, message.

    Args:
        truth: PyTorch's results in float64; torch: in the case's dtype, with the quantities that are wanted.
        limit_of: (case, PyTorch's error) -> the largest error that passes.
    """
    found, rows = contender.results(contender.call()), []
    for quantity, value in torch.items():
        missing = quantity not in found
        message = "no result" if missing else accuracy.shape_problem(found[quantity], value, case.dtype)
        error = float("nan") if message else accuracy.error(found[quantity], truth[quantity])
        torch_error = accuracy.error(value, truth[quantity])
        limit = limit_of(case, torch_error)
        row = {"contender": contender.name, "quantity": quantity, "error": error, "torch_error": torch_error}
        rows.append(row | {"limit": limit, "ok": error <= limit, "message": message})
    return rows


def disagreement(agreement):
    """The worst of the rows that are wrong, in words; None where none is."""
    wrong = [row for row in agreement if not row["ok"]]
    if not wrong:
        return None
    worst = max(wrong, key=lambda row: row["error"] if row["error"] == row["error"] else float("inf"))
    how = worst["message"] or f"is {worst['error']:.1e} from float64, more than {worst['limit']:.1e}"
    return f"{worst['contender']}'s {worst['quantity']}: {how}"


def as_record(timings, rounds, device, threads, load, torch_method=TORCH_METHOD):
    """Everything measured, and what it was measured on; torch_method: what PyTorch was asked for."""
    found = info.collect()
    method = {
        "load_average_before": load,
        "rounds": rounds,
        "turn_s": timing.GPU_TURN_S if device == "cuda" else timing.TURN_S,
        "threads": threads,
        "torch": torch_method,
    }
    name = found["gpus"][0]["name"] if device == "cuda" and found["gpus"] else found["cpu"]["model"]
    where = {key: found[key] for key in ("date", "commit", "driver")} | {"device": device, "device_name": name}
    return where | {"environment": found, "method": method, "results": [asdict(timing) for timing in timings]}


def print_timings(timings, device, threads):
    """The table of times, refusals in their place, and a summary line."""
    shown = {"numbarnn": "numbarnn"} | {
        name: label
        for name, label in (("torch", "torch"), ("onnxruntime", "onnxrt"))
        if any(name in t.median_s for t in timings)
    }
    rival_labels = {name: label for name, label in shown.items() if name != "numbarnn"}
    gpu = device == "cuda"
    columns = ["cell", "T,B,I,H,L", "dtype", "pass", "schedule", *shown.values()]
    columns += [*(f"/ {label}" for label in rival_labels.values()), "us/step"]
    columns += [*(f"{label} on GPU" for label in shown.values())] if gpu else []
    rows = []
    for t in timings:
        schedule = f"auto: {t.plan.split()[0]}" if t.schedule == "auto" and t.plan else t.schedule
        cells = [t.cell, ",".join(map(str, t.shape.values())), t.dtype, SHORT[t.what], schedule]
        cells += [milliseconds(t.median_s.get(name)) for name in shown]
        cells += [f"{t.ratio[name]:.2f}" if name in t.ratio else "-" for name in rival_labels]
        cells += [f"{t.median_s['numbarnn'] * 1e6 / t.shape['T']:.1f}" if t.ok else "-"]
        cells += [milliseconds(t.device_median_s.get(name)) for name in shown] if gpu else []
        rows.append([*cells, "ok" if t.ok else f"REFUSED: {t.refusal}"])
    where = "the GPU, float32 without TF32" if gpu else f"{threads} CPU threads"
    title = f"Milliseconds per call, {where}; a ratio below 1: numbarnn is faster; us/step: numbarnn's call / T"
    report.print_table(title, [*columns, "result"], rows, right=columns[5:], wrap=("pass", "result"))
    refusals = sum(not t.ok for t in timings)
    verdict = f"{refusals} of {len(timings)} REFUSED" if refusals else f"all {len(timings)} agree with PyTorch"
    report.say(f"numbarnn bench: {verdict}")


def milliseconds(seconds):
    """A time for the table, with three digits that count."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3f}" if seconds < 1e-2 else f"{seconds * 1e3:.1f}"
