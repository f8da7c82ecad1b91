"""`numbarnn bench`: times against cuDNN and PyTorch on a GPU, against PyTorch and onnxruntime on the CPU.

A row is a cell, a shape, a dtype (on a GPU float32 with and without TF32), a pass and a schedule; the schedules of a
instance and its peers (`lineup`) take turns (`timing`). A time is the median over rounds, and a ratio the median over
rounds of the ratio within a round, so that a slow moment of the machine hits both sides. On a GPU the ratio is about
the fastest of cuDNN's algorithms, each called directly as a CUDA graph; PyTorch's choice stands beside it. Results are
compared before any time is taken, and where they are wrong there is no time. A schedule that cannot run a case is a
row that says why, and a peer that cannot is named with its reason. What speaks against a time (`trust`) is in its row.
"""

from dataclasses import asdict, dataclass, field
from functools import partial

from numbarnn import engines
from numbarnn.bench import console, info
from numbarnn.bench.cases.cases import PEERS_CELLS, Case, make_instance
from numbarnn.bench.cases.passes import FORWARD, USUAL
from numbarnn.bench.cases.shapes import DEEPBENCH, SEMANTICS, SETS, TF32, parse_shape, parse_sizes
from numbarnn.bench.peers import peers
from numbarnn.bench.peers.contender import made_again, torch
from numbarnn.bench.peers.torch_peer import torch_tf32
from numbarnn.bench.speed import memory, speed_table, stream, timing
from numbarnn.bench.speed.lineup import attempt, compare, disagreement, line_up, said
from numbarnn.bench.speed.record import TORCH_METHOD, Row, as_record, best_cudnn, ratios, times
from numbarnn.bench.speed.trust import Load, machine_doubt
from numbarnn.common import precision
from numbarnn.schedules import SCHEDULES

ROUNDS = {"cpu": 7, "cuda": 5}
THREADS_PER_CORE = 4  # at most: of many more, each waits for others that have no core
QUICK, QUICK_ROUNDS = "quick", 5
USUAL_CELLS = ["lstm", "gru"]


@dataclass(frozen=True, kw_only=True)
class Timing(Row):
    """One row.

    Attributes:
        tf32: whether float32 products were allowed to be rounded to TF32, for everybody; "3x": ours computed as
            three products of TF32 each (`allow_tf32`), those of peers not rounded.
        input_mode: "linear", or "skip": layer 0 has no W. form: words of `shapes.FORMS`.
        device_ratio: as `ratio`, by the GPU's clock. best_cudnn: the fastest of cuDNN's algorithms by it.
        host_behind: contender -> rounds in which the GPU may have waited for the host.
        notes: contender -> how it is called. left_out: contender -> why it has no times.
        peak_bytes: contender -> memory of a call, as the record's method says.
    """

    tf32: bool | str = False
    input_mode: str = "linear"
    device_ratio: dict = field(default_factory=dict)
    host_behind: dict = field(default_factory=dict)
    best_cudnn: str | None = None
    notes: dict = field(default_factory=dict)
    left_out: dict = field(default_factory=dict)
    form: tuple = ()
    peak_bytes: dict = field(default_factory=dict)


def add_arguments(parser):
    shapes = parser.add_mutually_exclusive_group()
    about = "; behind them words: bidirectional, lengths (of T/2 to T steps), chain (layers of which each is called)"
    add_shape_argument(shapes, parse_shape, about)
    sets = {name: f"{len(own)} shapes" if len(own) > 9 else " ".join(map(str, own)) for name, own in SETS.items()}
    sets = "; ".join(f"{name}: {own}" for name, own in sets.items())
    counts = {name: sum(map(len, own.values())) for name, own in DEEPBENCH.items()}
    sets += "; DeepBench's problems as it takes them, with skip input and each pass apart: "
    sets += ", ".join(f"{name} ({count})" for name, count in counts.items())
    shapes.add_argument("--set", choices=[*SETS, *DEEPBENCH], default="default", help=f"named shapes; {sets}")
    about = f"the set {QUICK!r} and at most {QUICK_ROUNDS} rounds: two to three minutes on two cores"
    shapes.add_argument("--quick", action="store_const", const=QUICK, dest="set", help=about)
    about = f"one step at a time, as in a stream: median and 99th percentile of {stream.CALLS} single calls or more; "
    about += "shapes with T=1, by default those of the set stream"
    parser.add_argument("--stream", action="store_true", help=about)
    about = (
        "also torch.compile: PyTorch's cells for one step, in a loop over time; it compiles for ten seconds or more "
    )
    about += "for each row, which no time has in it"
    parser.add_argument("--compile", action="store_true", help=about)
    about = "only the rows whose 'cell T,B,I,H,L dtype' has this text in it, such as 'lstm 25,16' or float64; may be "
    parser.add_argument("--only", action="append", metavar="TEXT", help=about + "given several times, for any of them")
    add_list_argument(parser, "--cell", PEERS_CELLS, USUAL_CELLS, "; of DeepBench's sets, all that they have")
    parser.set_defaults(cell=None)  # which of the two it is, the set says
    add_list_argument(parser, "--dtype", precision.DTYPES, ["float32"])
    add_list_argument(parser, "--schedule", ("auto", *SCHEDULES), ["auto"])
    about = "; on a GPU, of float32: PyTorch's own default is on; 3x: ours alone, peers as with off"
    add_list_argument(parser, "--tf32", TF32, ["off", "on"], about)
    add_machine_arguments(parser)
    console.add_json_argument(parser, "times, ratios, agreement, device and versions")


def add_shape_argument(parser, kind=parse_sizes, more=""):
    about = f"steps, batch, input size, hidden size, layers{more}; may be given several times"
    parser.add_argument("--shape", type=kind, action="append", metavar="T,B,I,H,L", help=about)


def add_list_argument(parser, option, choices, default, more=""):
    """Adds an option that takes several of `choices`."""
    about = f"from {', '.join(choices)}; default {','.join(default)}{more}"
    kind, shown = console.comma_list(choices), f"{option[2:].upper()}[,...]"
    parser.add_argument(option, type=kind, default=default, metavar=shown, help=about)


def add_machine_arguments(parser):
    """Adds what says where times are taken, and how many."""
    add = parser.add_argument
    add("--device", choices=["auto", "cpu", "cuda"], default="auto")
    add("--threads", type=console.thread_count, metavar="N", help="CPU threads for every contender; default all cores")
    rounds = ", ".join(f"{number} on {device}" for device, number in ROUNDS.items())
    add("--rounds", type=console.positive_int, metavar="N", help=f"default {rounds}")


def run(args):
    """Takes the times and prints them; returns 1 when a time was refused or a peer's results are wrong, else 0."""
    if not peers.installed("torch"):
        raise console.MissingPackage("PyTorch", "numbarnn bench", "torch")
    if args.set == QUICK and not args.shape:
        args.rounds = min(args.rounds or QUICK_ROUNDS, QUICK_ROUNDS)
    problems = problems_of(args)
    where = set_up(args)._replace(compiled=args.compile)
    if where.device == "cpu" and not peers.installed("onnx", "onnxruntime"):
        console.say("onnxruntime is left out: pip install onnx onnxruntime", error=True)
    todo = [
        (cell, shape, dtype, TF32[tf32])
        for cell, shape in problems
        for dtype in args.dtype
        for tf32 in (args.tf32 if dtype == "float32" and where.device == "cuda" else ["off"])
    ]
    if args.only:
        todo = [case for case in todo if any(text in " ".join(map(str, case[:3])) for text in args.only)]
        if not todo:
            raise console.WrongArguments(
                f"--only {' '.join(args.only)} leaves nothing: rows are called 'lstm 25,16,512,512,1 float32'"
            )
    if args.stream:
        time_one, show, method = stream.time_stream, stream.print_streams, stream.TORCH_METHOD
    else:
        semantics = USUAL if args.shape else SEMANTICS.get(args.set, USUAL)
        time_one, show, method = partial(time_case, semantics=semantics), speed_table.print_timings, TORCH_METHOD
    rows = take_times(args, where, todo, time_one, show, method)
    return 0 if all(row["ok"] and not disagreement(row["agreement"]) for row in rows) else 1


def problems_of(args):
    """(cell, shape) of each problem that is asked for; WrongArguments where there is none, or --stream refuses one."""
    if args.stream:
        shapes = stream.shapes_of(args)
    elif args.shape or args.set in SETS:
        shapes = args.shape or SETS[args.set]
    else:
        own = DEEPBENCH[args.set]
        cells = [cell for cell in args.cell or own if cell in own]
        if not cells:
            raise console.WrongArguments(
                f"--set {args.set} has problems of {', '.join(own)}: got --cell {','.join(args.cell)}"
            )
        return [(cell, shape) for cell in cells for shape in own[cell]]
    return [(cell, shape) for cell in args.cell or USUAL_CELLS for shape in shapes]


def set_up(args):
    """The `timing.Machine` that `add_machine_arguments` describe, with PyTorch and the CPU engine set up for it."""
    cores, device = info.core_count(), choose_device(args.device) if peers.installed("torch") else "cpu"
    if args.threads and args.threads > (most := THREADS_PER_CORE * cores):
        raise console.CannotRun(
            f"--threads {args.threads}: this process may use {cores} cores, where so many would wait for each other "
            f"without end: take at most {most}"
        )
    where = timing.Machine(device, args.threads or cores, args.rounds or ROUNDS[device], gpu_clock=device == "cuda")
    if peers.installed("torch"):
        torch.set_num_threads(where.threads)  # onnxruntime takes it per session
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # float32 that is float32
    if device == "cpu":
        engines.get("cpu").set_num_threads(where.threads)
    return where


def take_times(args, where, todo, time_one, show, torch_method):
    """The rows of all there is to do, as dicts: taken, shown and, where --json says so, written.

    Args:
        todo: tuples of arguments of `time_one`: (*arguments, schedules, where) -> list of `Row`.
        show: prints (rows, where, what `machine_doubt` says).
    """
    load, rows, title = Load(), [], f"{args.command} on {where.device}"
    with console.Progress() as progress:
        progress.start(title, len(todo))
        for arguments in todo:
            rows += map(asdict, time_one(*arguments, args.schedule, where))
            progress.update(title)
    doubt = machine_doubt(load.as_record(), info.core_count())
    show(rows, where, doubt)
    if where.device == "cpu" and (notice := info.forced_core_notice()):
        console.say(notice)
    if doubt:
        by = "these times" if where.device == "cpu" else "times by the host's clock"
        console.say(f"the machine was busy with something else ({doubt}): {by} are in doubt")
    if args.json:
        console.write_json(args.json, as_record(rows, where, load, torch_method))
    return rows


def choose_device(wanted):
    """The device to time on: "cpu" or "cuda". On CUDA, PyTorch must have it too."""
    ours, theirs = "cuda" in engines.available(), torch.cuda.is_available()
    if wanted == "cuda" and not (ours and theirs):
        if not ours:
            raise console.CannotRun(f"device 'cuda' cannot be used: {engines.why_not('cuda')}")
        raise console.CannotRun(f"PyTorch {torch.__version__} does not reach the GPU: install its CUDA build")
    return "cuda" if wanted != "cpu" and ours and theirs else "cpu"


def time_case(cell, shape, dtype, tf32, schedules, where, semantics=USUAL):
    """The rows of one case, a row per pass and schedule."""
    mode, passes = semantics
    sizes = shape.T, shape.B, shape.I, (shape.H,) * shape.L
    case = Case(cell, *sizes, gradients="y", dtype=dtype, allow_tf32=tf32, input_mode=mode, **shape.options)
    about = {"cell": cell, "shape": shape.sizes, "form": shape.form, "dtype": dtype}
    about |= {"device": where.device, "tf32": tf32, "input_mode": mode}
    try:
        instance = make_instance(case)
        exact = peers.torch_contender(instance.float64, train=passes != (FORWARD,), device=where.device)
        truth = exact.results(exact.call())
    except Exception as exception:
        about |= {"ok": False, "refusal": said(exception)}
        return [Timing(**about, what=what, schedule=schedule) for what in passes for schedule in schedules]
    timings = []
    for what in passes:
        with torch_tf32(tf32):
            timings += time_pass(instance, truth, about | {"what": what}, schedules, where)
    return timings


def time_pass(instance, truth, about, schedules, where, line=None):
    """The rows of one pass of an instance, a row per schedule; line: the peers, a `LineUp`; None: all there are."""
    what, device = about["what"], where.device
    try:
        line = line or line_up(instance, truth, what, where)
    except Exception as exception:
        return [Timing(**about, schedule=schedule, ok=False, refusal=said(exception)) for schedule in schedules]
    ours = {
        schedule: attempt(
            lambda schedule=schedule: made_again(partial(peers.numbarnn_pass, instance, what, device, schedule)),
            lambda contender: compare(instance.case, contender, truth, line.results),
        )
        for schedule in schedules
    }
    contenders = [contender for contender, _, _ in ours.values() if contender]
    turns, peak_bytes = {}, {}
    if contenders:
        everybody = {contender.name: contender for contender in [*contenders, *line.rivals]}
        turns = timing.take_turns(list(everybody.values()), where.rounds, where.gpu_clock)
        if where.memory:  # after the times: what engines keep for calls is given back
            peak_bytes = memory.peaks(everybody, device)
    rows = []
    for schedule, (contender, agreement, refusal) in ours.items():
        row = about | {"schedule": schedule, "ok": contender is not None, "refusal": refusal}
        row |= {"agreement": agreement + line.agreement, "left_out": line.left_out}
        if contender:
            names = {"numbarnn": contender.name} | {rival.name: rival.name for rival in line.rivals}
            own = {shown: turns[name] for shown, name in names.items()}
            row |= {"plan": contender.plan, "notes": {rival.name: rival.note for rival in line.rivals if rival.note}}
            row |= times(own)
            row |= {"ratio": ratios(row["seconds"]), "device_ratio": ratios(row["device_seconds"])}
            row["host_behind"] = {name: own[name].behind for name in row["device_seconds"]}
            row["best_cudnn"] = best_cudnn(row["device_seconds"])
            row["compile_s"] = {rival.name: rival.compile_s for rival in line.rivals if rival.compile_s is not None}
            row["peak_bytes"] = {shown: peak_bytes[name] for shown, name in names.items() if name in peak_bytes}
        rows.append(Timing(**row))
    return rows
