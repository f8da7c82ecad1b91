"""`numbarnn bench`: times against PyTorch and, for inference on the CPU, onnxruntime.

Contenders take turns within each of several rounds, in alternating order, with a gap before each turn in
which the others' threads go to sleep. A round gives each contender the median over its calls; a time is
the median over rounds, and a ratio the median over rounds of the ratio within a round, so that a slow
moment of the machine hits both sides. Results are compared with PyTorch's before any time is taken, and
where they differ there is no time.
"""

import argparse
import os
import time
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from numbarnn.bench import accuracy, info, peers, report
from numbarnn.bench.cases import CELLS, DTYPES, Case, make_problem

FORWARD, TRAINING = "forward", "forward+backward"
SHORT = {FORWARD: "fwd", TRAINING: "fwd+bwd"}  # in the table
GAP_S = 0.03  # after this, the threads of the other libraries have stopped spinning
WARM_S = 0.004  # calls before a turn's timed ones, so that threads and caches are awake again
TURN_S = 0.08  # timed calls per turn take about this long, and are at least one
CALLS_PER_TURN = (1, 2000)
SHORT_CALL_S, SHORT_CALLS_AT_ONCE = 1e-4, 10  # calls below this are timed ten at a time, for the clock's sake
BUSY = 0.3  # load average per core before the start, above which times are marked as not to be trusted
AGREEMENT_FLOORS = 1  # results agree when they differ by at most this many error floors


class Shape(NamedTuple):
    """Sizes of a problem with layers of one size."""

    T: int
    B: int
    I: int  # noqa: E741
    H: int
    L: int

    def __str__(self):
        return ",".join(map(str, self))


DEFAULT_SHAPES = (
    Shape(25, 16, 512, 512, 1),
    Shape(50, 64, 512, 512, 1),
    Shape(100, 1, 256, 256, 1),
    Shape(8, 128, 1024, 1024, 3),
    Shape(3, 1, 255, 20, 2),
    Shape(1, 1, 512, 512, 1),
    Shape(50, 32, 128, 128, 2),
)


@dataclass(frozen=True)
class Timing:
    """One row: a cell, shape and pass; `refusal` says why there are no times.

    seconds   contender -> its time in each round;  median_s, ratio: over rounds (ratio: numbarnn / contender)
    """

    cell: str
    shape: dict
    dtype: str
    device: str
    what: str
    ok: bool
    refusal: str | None
    agreement: list
    seconds: dict
    median_s: dict
    ratio: dict


def parse_shape(text):
    """An argparse type: "25,16,512,512,1" -> Shape."""
    parts = text.split(",")
    if len(parts) != 5 or not all(part.strip().isdecimal() and int(part) >= 1 for part in parts):
        raise argparse.ArgumentTypeError(
            f"expected T,B,I,H,L, five whole numbers of at least 1 such as {DEFAULT_SHAPES[0]}; got {text!r}"
        )
    return Shape(*map(int, parts))


def add_arguments(parser):
    """Adds the arguments of `numbarnn bench`."""
    parser.add_argument(
        "--shape",
        type=parse_shape,
        action="append",
        metavar="T,B,I,H,L",
        help="steps, batch, input size, hidden size, layers; may be given several times; default: "
        + " ".join(map(str, DEFAULT_SHAPES)),
    )
    cells = f"from {', '.join(CELLS)}; default lstm,gru"
    parser.add_argument(
        "--cell", type=report.comma_list(CELLS), default=["lstm", "gru"], metavar="CELL[,CELL]", help=cells
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
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
    parser.add_argument("--rounds", type=report.positive_int, default=7, metavar="N", help="default 7")
    report.add_json_argument(parser, "times, ratios, agreement, device and versions")


def run(args):
    """Takes the times and prints them; returns 1 when a time was refused, else 0."""
    if not peers.installed("torch"):
        raise report.MissingPackage("PyTorch", "numbarnn bench", "torch")
    choose_openblas_core(args.openblas_core)
    device = choose_device(args.device)
    threads = args.threads or info.core_count()
    set_threads(threads)
    load = load_average()
    if device == "cpu" and not peers.installed("onnx", "onnxruntime"):
        report.say("onnxruntime is left out: pip install onnx onnxruntime", error=True)
    todo = [
        (cell, shape, what)
        for cell in args.cell
        for shape in args.shape or DEFAULT_SHAPES
        for what in (FORWARD, TRAINING)
    ]
    timings = []
    with report.Progress() as progress:
        progress.start(f"bench on {device}", len(todo))
        for cell, shape, what in todo:
            timings.append(time_one(cell, shape, args.dtype, device, what, threads, args.rounds))
            progress.update(f"bench on {device}")
    if args.json:
        report.write_json(args.json, as_record(timings, args, device, threads, load))
    print_timings(timings, device, threads, args.dtype)
    if device == "cpu" and (notice := info.forced_core_notice()):
        report.say(notice)
    if load is not None and load > BUSY * info.core_count():
        report.say(f"the machine was busy with something else (load {load:.1f}): these times are not to be trusted")
    return 0 if all(timing.ok for timing in timings) else 1


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


def set_threads(threads):
    """The same number of CPU threads for PyTorch and numbarnn; onnxruntime takes it per session."""
    import torch

    from numbarnn import engines

    torch.set_num_threads(threads)
    engines.get("cpu").set_num_threads(threads)


def time_one(cell, shape, dtype, device, what, threads, rounds):
    """One row: the contenders at one problem, refused when numbarnn or onnxruntime differs from PyTorch."""
    case = Case(cell, shape.T, shape.B, shape.I, (shape.H,) * shape.L, gradients="y", dtype=dtype)
    about = {"cell": cell, "shape": shape._asdict(), "dtype": dtype, "device": device, "what": what}
    try:
        contenders = line_up(make_problem(case), device, what, threads)
        agreement = compare(case, contenders)
    except Exception as exception:
        return refused(about, f"{type(exception).__name__}: {exception}", [])
    wrong = [row for row in agreement if not row["ok"]]
    if wrong:
        worst = max(wrong, key=lambda row: row["error"] if row["error"] == row["error"] else float("inf"))
        said = worst["message"] or f"differs by {worst['error']:.1e}, more than {worst['limit']:.1e}"
        return refused(about, f"{worst['contender']}'s {worst['quantity']}: {said}", agreement)
    seconds = take_turns(contenders, rounds)
    ours = np.array(seconds["numbarnn"])
    return Timing(
        **about,
        ok=True,
        refusal=None,
        agreement=agreement,
        seconds=seconds,
        median_s={name: float(np.median(times)) for name, times in seconds.items()},
        ratio={name: float(np.median(ours / np.array(times))) for name, times in seconds.items() if name != "numbarnn"},
    )


def refused(about, reason, agreement):
    """A row without times."""
    return Timing(**about, ok=False, refusal=reason, agreement=agreement, seconds={}, median_s={}, ratio={})


def line_up(problem, device, what, threads):
    """The contenders for a problem: numbarnn, PyTorch and, for float32 inference on the CPU, onnxruntime."""
    import torch

    if device == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # numbarnn's float32 is float32; so is PyTorch's then
    train = what == TRAINING
    contenders = [
        peers.numbarnn_contender(problem, train, device),
        peers.torch_contender(problem, train, device),
    ]
    single = problem.case.dtype == "float32"
    if device == "cpu" and single and not train and peers.installed("onnx", "onnxruntime"):
        contenders.append(peers.onnxruntime_contender(problem, threads))
    return contenders


def compare(case, contenders):
    """Each contender against PyTorch: rows with contender, quantity, error, limit, ok, message."""
    results = {contender.name: contender.results(contender.call()) for contender in contenders}
    expected, rows = results.pop("torch"), []
    limit = AGREEMENT_FLOORS * accuracy.floor(case)
    for name, found in results.items():
        for quantity, value in expected.items():
            missing = quantity not in found
            message = "no result" if missing else accuracy.shape_problem(found[quantity], value, case.dtype)
            error = float("nan") if message else accuracy.error(found[quantity], value)
            row = {"contender": name, "quantity": quantity, "error": error, "limit": limit}
            rows.append(row | {"ok": error <= limit, "message": message})
    return rows


def take_turns(contenders, rounds):
    """Contender -> seconds per call in each round."""
    calls = {contender.name: calls_per_turn(contender) for contender in contenders}
    seconds = {contender.name: [] for contender in contenders}
    for i in range(rounds):
        for contender in contenders if i % 2 == 0 else contenders[::-1]:
            time.sleep(GAP_S)
            seconds[contender.name].append(one_turn(contender, *calls[contender.name]))
    return seconds


def calls_per_turn(contender):
    """How many samples a turn takes, and how many calls each sample times at once."""
    begin = time.perf_counter()
    timed(contender, 1)
    enough = 1 + int(TURN_S / 4 / max(time.perf_counter() - begin, 1e-7))
    per_call = timed(contender, min(enough, CALLS_PER_TURN[1])) / min(enough, CALLS_PER_TURN[1])
    calls = int(np.clip(TURN_S / per_call, *CALLS_PER_TURN))
    at_once = SHORT_CALLS_AT_ONCE if per_call < SHORT_CALL_S else 1
    return max(1, calls // at_once), at_once


def one_turn(contender, samples, at_once):
    """Median over samples of the seconds per call, after a few calls that are not timed."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_S:
        timed(contender, at_once)
    return float(np.median([timed(contender, at_once) / at_once for _ in range(samples)]))


def timed(contender, calls):
    """Seconds for some calls, from an idle device to an idle device."""
    contender.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        contender.call()
    contender.synchronize()
    return time.perf_counter() - begin


def as_record(timings, args, device, threads, load):
    """Everything measured, and what it was measured on."""
    found = info.collect()
    method = {
        "load_average_before": load,
        "rounds": args.rounds,
        "gap_s": GAP_S,
        "turn_s": TURN_S,
        "threads": threads,
        "dtype": args.dtype,
    }
    name = found["gpus"][0]["name"] if device == "cuda" and found["gpus"] else found["cpu"]["model"]
    where = {"date": found["date"], "device": device, "device_name": name, "environment": found}
    return where | {"method": method, "results": [asdict(timing) for timing in timings]}


def print_timings(timings, device, threads, dtype):
    """The table of times, refusals in their place, and a summary line."""
    peer_names = [name for name in ("torch", "onnxruntime") if any(name in t.median_s for t in timings)]
    shown = [name.replace("onnxruntime", "onnxrt") for name in peer_names]
    columns = ["cell", "T,B,I,H,L", "pass", "numbarnn", *shown, *(f"/ {name}" for name in shown)]
    columns += ["result"]
    rows = []
    for t in timings:
        cells = [t.cell, ",".join(map(str, t.shape.values())), SHORT[t.what]]
        cells += [milliseconds(t.median_s.get(name)) for name in ("numbarnn", *peer_names)]
        cells += [f"{t.ratio[name]:.2f}" if name in t.ratio else "-" for name in peer_names]
        rows.append([*cells, "ok" if t.ok else f"REFUSED: {t.refusal}"])
    where = f"{threads} CPU threads" if device == "cpu" else "the GPU"
    title = f"Milliseconds per call, {dtype}, {where}; a ratio below 1: numbarnn is faster"
    report.print_table(title, columns, rows, right=columns[3:-1], wrap=("pass", "result"))
    refusals = sum(not t.ok for t in timings)
    verdict = f"{refusals} of {len(timings)} REFUSED" if refusals else f"all {len(timings)} agree with PyTorch"
    report.say(f"numbarnn bench: {verdict}")


def milliseconds(seconds):
    """A time for the table, with three digits that count."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3f}" if seconds < 1e-2 else f"{seconds * 1e3:.1f}"
