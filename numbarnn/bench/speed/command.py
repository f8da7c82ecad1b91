"""`numbarnn bench`: times against cuDNN and PyTorch on a GPU, against PyTorch and onnxruntime on the CPU.

A row is a cell, a shape, a dtype (on a GPU float32 with and without TF32), a pass and a schedule; the schedules of a
problem and its peers (`lineup`) take turns (`timing`). A time is the median over rounds, and a ratio the median over
rounds of the ratio within a round, so that a slow moment of the machine hits both sides. On a GPU the ratio is about
the fastest of cuDNN's algorithms, each called directly as a CUDA graph; PyTorch's choice stands beside it. Results are
compared before any time is taken, and where they are wrong there is no time. A schedule that cannot run a problem is a
row that says why, and a peer that cannot is named with its reason. What speaks against a time (`trust`) is in its row.
"""

import os
from dataclasses import asdict, dataclass, field

from numbarnn.bench import info, report
from numbarnn.bench.cases.cases import PEERS_CELLS, Case, make_problem
from numbarnn.bench.cases.shapes import SETS, TF32, Shape, parse_shape
from numbarnn.bench.peers import peers
from numbarnn.bench.peers.torch_peer import torch_tf32
from numbarnn.bench.speed import speed_table, timing
from numbarnn.bench.speed.lineup import compare, disagreement, line_up
from numbarnn.bench.speed.record import as_record, best_cudnn, medians, ratios
from numbarnn.bench.speed.speed_table import FORWARD, SHORT, TRAINING, milliseconds
from numbarnn.bench.speed.trust import Load, machine_doubt
from numbarnn.common import precision

ROUNDS = {"cpu": 7, "cuda": 5}

__all__ = ["FORWARD", "SETS", "SHORT", "TRAINING", "Shape", "as_record", "compare", "disagreement", "milliseconds"]


@dataclass(frozen=True)
class Timing:
    """One row; `refusal` says why there are no times.

    plan                          what numbarnn ran, and why
    tf32                          whether float32 products were allowed to be rounded to TF32, for everybody
    seconds, device_seconds       contender -> its time per call in each round: the host's clock, the GPU's
    median_s, device_median_s     their medians
    ratio, device_ratio           contender -> median over rounds of numbarnn's time per call / the contender's
    host_behind                   contender -> rounds in which the GPU may have waited for the host
    best_cudnn                    the contender that is the fastest of cuDNN's algorithms by the GPU's clock
    notes                         contender -> how it is called
    left_out                      contender -> why it has no times: in its own words, or what was wrong with its results
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
    tf32: bool = False
    plan: str | None = None
    seconds: dict = field(default_factory=dict)
    device_seconds: dict = field(default_factory=dict)
    median_s: dict = field(default_factory=dict)
    device_median_s: dict = field(default_factory=dict)
    ratio: dict = field(default_factory=dict)
    device_ratio: dict = field(default_factory=dict)
    host_behind: dict = field(default_factory=dict)
    best_cudnn: str | None = None
    notes: dict = field(default_factory=dict)
    left_out: dict = field(default_factory=dict)


def add_arguments(parser):
    """Adds the arguments of `numbarnn bench`."""
    from numbarnn.schedules import SCHEDULES

    shapes = parser.add_mutually_exclusive_group()
    add_shape_argument(shapes)
    shapes.add_argument("--set", choices=SETS, default="default", help=f"named shapes; {described_sets()}")
    add_list_argument(parser, "--cell", PEERS_CELLS, ["lstm", "gru"])
    add_list_argument(parser, "--dtype", precision.DTYPES, ["float32"])
    add_list_argument(parser, "--schedule", ("auto", *SCHEDULES), ["auto"])
    add_list_argument(parser, "--tf32", TF32, list(TF32), "; on a GPU, of float32: PyTorch's own default is on")
    add_machine_arguments(parser)
    report.add_json_argument(parser, "times, ratios, agreement, device and versions")


def described_sets():
    """The named sets in words; of a long one its number of shapes."""
    words = {name: f"{len(own)} shapes" if len(own) > 9 else " ".join(map(str, own)) for name, own in SETS.items()}
    return "; ".join(f"{name}: {own}" for name, own in words.items())


def add_shape_argument(parser):
    """Adds `--shape T,B,I,H,L`."""
    parser.add_argument(
        "--shape",
        type=parse_shape,
        action="append",
        metavar="T,B,I,H,L",
        help="steps, batch, input size, hidden size, layers; may be given several times",
    )


def add_list_argument(parser, option, choices, default, more=""):
    """Adds an option that takes several of `choices`."""
    parser.add_argument(
        option,
        type=report.comma_list(choices),
        default=default,
        metavar=f"{option[2:].upper()}[,...]",
        help=f"from {', '.join(choices)}; default {','.join(default)}{more}",
    )


def add_machine_arguments(parser):
    """Adds what says where times are taken, and how many."""
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument(
        "--threads",
        type=report.thread_count,
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
    """Takes the times and prints them; returns 1 when a time was refused or a peer's results are wrong, else 0."""
    if not peers.installed("torch"):
        raise report.MissingPackage("PyTorch", "numbarnn bench", "torch")
    choose_openblas_core(args.openblas_core)
    device = choose_device(args.device)
    threads, rounds = args.threads or info.core_count(), args.rounds or ROUNDS[device]
    set_up_torch_and_engine(device, threads)
    load = Load()
    if device == "cpu" and not peers.installed("onnx", "onnxruntime"):
        report.say("onnxruntime is left out: pip install onnx onnxruntime", error=True)
    todo = [
        (cell, shape, dtype, tf32)
        for cell in args.cell
        for shape in args.shape or SETS[args.set]
        for dtype in args.dtype
        for tf32 in tf32_of(dtype, device, args.tf32)
    ]
    timings = []
    with report.Progress() as progress:
        progress.start(f"bench on {device}", len(todo))
        for cell, shape, dtype, tf32 in todo:
            timings += time_problem(cell, shape, dtype, device, args.schedule, threads, rounds, tf32)
            progress.update(f"bench on {device}")
    rows = list(map(asdict, timings))
    speed_table.print_timings(rows, device, threads, machine_doubt(load.as_record(), info.core_count()))
    say_doubts(device, load)
    if args.json:
        report.write_json(args.json, as_record(rows, rounds, device, threads, load))
    return 0 if all(timing.ok and not disagreement(timing.agreement) for timing in timings) else 1


def tf32_of(dtype, device, wanted):
    """With and without TF32, of what is wanted; where there is none, only without."""
    return [TF32[word] for word in wanted] if dtype == "float32" and device == "cuda" else [False]


def say_doubts(device, load):
    """Says what speaks against all times: a processor taken for another one, or a machine that was busy."""
    if device == "cpu" and (notice := info.forced_core_notice()):
        report.say(notice)
    if doubt := machine_doubt(load.as_record(), info.core_count()):
        by = "these times" if device == "cpu" else "times by the host's clock"
        report.say(f"the machine was busy with something else ({doubt}): {by} are not to be trusted")


def choose_openblas_core(name):
    """Set the environment variable that OpenBLAS reads when the CPU engine loads it; None leaves it as it is."""
    if name == "auto":
        os.environ.pop("OPENBLAS_CORETYPE", None)
    elif name is not None:
        os.environ["OPENBLAS_CORETYPE"] = name


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


def time_problem(cell, shape, dtype, device, schedules, threads, rounds, tf32=False):
    """The rows of one problem, a row per pass and schedule."""
    sizes = shape.T, shape.B, shape.I, (shape.H,) * shape.L
    case = Case(cell, *sizes, gradients="y", dtype=dtype, allow_tf32=tf32)
    about = {"cell": cell, "shape": shape._asdict(), "dtype": dtype, "device": device, "tf32": tf32}
    try:
        problem = make_problem(case)
        exact = peers.torch_contender(problem.float64, train=True, device=device)
        truth = exact.results(exact.call())
    except Exception as exception:
        reason = said(exception)
        return [refused(about | {"what": w, "schedule": s}, reason) for w in SHORT for s in schedules]
    timings = []
    for what in SHORT:
        with torch_tf32(tf32):
            timings += time_pass(problem, truth, about | {"what": what}, schedules, threads, rounds)
    return timings


def time_pass(problem, truth, about, schedules, threads, rounds):
    """The rows of one pass of a problem, a row per schedule."""
    train, device = about["what"] == TRAINING, about["device"]
    try:
        peers_here = line_up(problem, truth, train, device, threads)
    except Exception as exception:
        return [refused(about | {"schedule": schedule}, said(exception)) for schedule in schedules]
    about = about | {"left_out": peers_here.left_out}
    contenders, agreements, refusals = {}, {}, {}
    for schedule in schedules:
        try:
            ours = peers.numbarnn_contender(problem, train, device, schedule)
            agreements[schedule] = compare(problem.case, ours, truth, peers_here.results)
        except Exception as exception:
            refusals[schedule] = said(exception)
            continue
        if reason := disagreement(agreements[schedule]):
            refusals[schedule] = reason
        else:
            contenders[schedule] = ours
    everybody = [*contenders.values(), *peers_here.rivals]
    turns = timing.take_turns(everybody, rounds, device == "cuda") if contenders else {}
    rows = []
    for schedule in schedules:
        row, agreement = about | {"schedule": schedule}, agreements.get(schedule, []) + peers_here.agreement
        if schedule in refusals:
            rows.append(refused(row, refusals[schedule], agreement))
        else:
            ours = contenders[schedule]
            own = {"numbarnn": turns[ours.name]} | {rival.name: turns[rival.name] for rival in peers_here.rivals}
            notes = {rival.name: rival.note for rival in peers_here.rivals if rival.note}
            rows.append(timed_row(row | {"plan": ours.plan, "notes": notes}, own, agreement))
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
    return Timing(
        **about,
        ok=True,
        refusal=None,
        agreement=agreement,
        seconds=seconds,
        device_seconds=device_seconds,
        median_s=medians(seconds),
        device_median_s=medians(device_seconds),
        ratio=ratios(seconds),
        device_ratio=ratios(device_seconds),
        host_behind={name: turn.behind for name, turn in turns.items() if turn.device},
        best_cudnn=best_cudnn(device_seconds),
    )
