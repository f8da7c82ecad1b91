"""`numbarnn bench`: compare times with cuDNN and PyTorch on a GPU, with PyTorch and onnxruntime on the CPU.

A row is a cell, a shape, a dtype (on a GPU float32 with and without TF32), a pass and a schedule. Schedules and peers
(`lineup`) take turns (`timing`). A time is the median over rounds. A ratio is the median of the ratios within a round,
as a slow moment of the machine hits both sides. On a GPU the main ratio is to the fastest of cuDNN's algorithms, each
called directly as a CUDA graph. Only contenders whose results are right are timed.
"""

from contextlib import ExitStack
from functools import partial

from numbarnn import engines
from numbarnn.bench import console, info, memory, record, stream, tables, timing
from numbarnn.bench.cases import PEERS_CELLS, Case, make_instance
from numbarnn.bench.cells import CELL_PLACES, LIBRARY
from numbarnn.bench.custom_cells import CustomInstance, named_cells
from numbarnn.bench.lineup import attempt, disagreement, line_up, said
from numbarnn.bench.peers import peers, torch_peer
from numbarnn.bench.peers.contender import installed, made_again, torch
from numbarnn.bench.shapes import DEEPBENCH, FORWARD, SEMANTICS, SETS, STEP, TF32, WHOLE, parse_shape
from numbarnn.common import precision
from numbarnn.schedules import SCHEDULES

ROUNDS = {"cpu": 7, "cuda": 5}
THREADS_PER_CORE = 4  # more threads would wait for each other without end
QUICK, QUICK_ROUNDS = "quick", 5
USUAL_CELLS = ["lstm", "gru"]


def add_arguments(parser):
    """Add the options of `numbarnn bench`."""
    add, shapes = parser.add_argument, parser.add_mutually_exclusive_group()
    about = "Steps, batch, input size, hidden size, layers; then bidirectional, lengths (T/2 to T steps) if wanted. "
    about += "May be repeated."
    shapes.add_argument("--shape", type=parse_shape, action="append", metavar="T,B,I,H,L", help=about)
    sets = {name: f"{len(own)} shapes" if len(own) > 9 else " ".join(map(str, own)) for name, own in SETS.items()}
    sets = "; ".join(f"{name}: {own}" for name, own in sets.items())
    counts = {name: sum(map(len, own.values())) for name, own in DEEPBENCH.items()}
    sets += "; DeepBench's problems, with skip input and each pass timed separately: "
    sets += ", ".join(f"{name} ({count})" for name, count in counts.items())
    shapes.add_argument("--set", choices=[*SETS, *DEEPBENCH], default="default", help=f"Named shapes. {sets}.")
    about = f"Use the set {QUICK!r} and at most {QUICK_ROUNDS} rounds: two to three minutes on two cores."
    shapes.add_argument("--quick", action="store_const", const=QUICK, dest="set", help=about)
    about = f"Run one step per call: median and 99th percentile of at least {stream.CALLS} calls. Shapes have T=1; "
    add("--stream", action="store_true", help=about + "default: the set stream.")
    about = "Run only rows whose 'cell T,B,I,H,L dtype' contains this text, such as 'lstm 25,16' or float64. May be "
    add("--only", action="append", metavar="TEXT", help=about + "repeated, for any of them.")
    about = (
        f"One or more of {', '.join(PEERS_CELLS)}; or a cell of {LIBRARY} by name, or {CELL_PLACES} (which is run), "
    )
    about += f"timed next to the LSTM and a loop in PyTorch. Default: {','.join(USUAL_CELLS)}; for DeepBench's "
    add("--cell", type=named_cells, metavar="CELL[,...]", help=about + "sets, all of theirs.")
    console.add_list_argument(parser, "--dtype", precision.DTYPES, ["float32"])
    console.add_list_argument(parser, "--schedule", ("auto", *SCHEDULES), ["auto"])
    about = " For float32 on a GPU; PyTorch's default is on. 3x is numbarnn's alone, peers run with off."
    console.add_list_argument(parser, "--tf32", TF32, ["off", "on"], about)
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="Default: auto.")
    about = "CPU threads for every contender. Default: all cores."
    add("--threads", type=console.at_least_1, metavar="N", help=about)
    rounds = ", ".join(f"{number} on {device}" for device, number in ROUNDS.items())
    add("--rounds", type=console.at_least_1, metavar="N", help=f"Number of rounds. Default: {rounds}.")
    console.add_json_argument(parser, "times, ratios, agreement, device and versions")


def run(args):
    """Take and print times; return 1 if a time was refused or a peer's results are wrong, else 0."""
    if not installed("torch"):
        raise console.MissingPackage("PyTorch", "numbarnn bench", "torch")
    if args.set == QUICK and not args.shape:
        args.rounds = min(args.rounds or QUICK_ROUNDS, QUICK_ROUNDS)
    problems, where = problems_of(args), machine_of(args)
    if where.device == "cpu" and not installed("onnx", "onnxruntime"):
        console.say("onnxruntime is left out: pip install onnx onnxruntime", error=True)
    todo = [
        (cell, shape, dtype, TF32[tf32])
        for cell, shape in problems
        for dtype in args.dtype
        for tf32 in (args.tf32 if dtype == "float32" and where.device == "cuda" else ["off"])
        if not args.only or any(text in f"{cell} {shape} {dtype}" for text in args.only)
    ]
    if not todo:
        said = f"--only {' '.join(args.only)} leaves nothing: rows are called 'lstm 25,16,512,512,1 float32'"
        raise console.WrongArguments(said)
    semantics = ("linear", WHOLE) if args.shape else SEMANTICS.get(args.set, ("linear", WHOLE))
    semantics = ("linear", (STEP,)) if args.stream else semantics
    load, rows = record.Load(), []
    for arguments in console.progress_bar(todo, f"bench on {where.device}"):
        rows += time_case(*arguments, args.schedule, where, semantics)
    doubt = record.machine_doubt(load.as_record(), info.core_count())
    tables.print_rows(rows, where, doubt, args.stream and -(-stream.CALLS // where.rounds) * where.rounds)
    if where.device == "cpu" and (notice := info.forced_core_notice()):
        console.say(notice)
    if doubt:
        by = "these times" if where.device == "cpu" else "times by the host's clock"
        console.say(f"the machine was busy with something else ({doubt}): {by} are in doubt")
    if args.json:
        console.write_json(args.json, record.as_record(rows, where, load))
    return 0 if all(row["ok"] and not disagreement(row["agreement"]) for row in rows) else 1


def problems_of(args):
    """Return (cell, shape) of each requested problem. Raise WrongArguments if there is none."""
    if args.set in DEEPBENCH and not (args.stream or args.shape):
        by_cell = DEEPBENCH[args.set]
        cells = [cell for cell in args.cell or by_cell if cell in by_cell]
        if not cells:
            asked = ",".join(map(str, args.cell))
            raise console.WrongArguments(f"--set {args.set} has problems of {', '.join(by_cell)}: got --cell {asked}")
        return [(cell, shape) for cell in cells for shape in by_cell[cell]]
    shapes, cells = stream.shapes_of(args) if args.stream else args.shape or SETS[args.set], args.cell or USUAL_CELLS
    formed = next((f"--shape {shape}" for shape in shapes if shape.form), None)
    got, others = "--stream" if args.stream else formed, [cell for cell in cells if cell not in PEERS_CELLS]
    if got and others:
        raise console.WrongArguments(f"--cell {others[0]} is timed over whole sequences, in one direction: got {got}")
    return [(cell, shape) for cell in cells for shape in shapes]


def machine_of(args):
    """Return the `timing.Machine` for the options; set the threads of PyTorch and the CPU engine."""
    cores, device = info.core_count(), choose_device(args.device)
    if args.threads and args.threads > (most := THREADS_PER_CORE * cores):
        raise console.CannotRun(
            f"--threads {args.threads}: this process may use {cores} cores, where so many would wait for each other "
            f"without end: take at most {most}"
        )
    threads, rounds = args.threads or cores, args.rounds or ROUNDS[device]
    torch.set_num_threads(threads)  # onnxruntime takes it per session
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # float32 that is float32
    if device == "cpu":
        engines.get("cpu").set_num_threads(threads)
    return timing.Machine(device, threads, rounds, gpu_clock=device == "cuda")


def choose_device(wanted):
    """Return the device to time on: "cpu" or "cuda". On CUDA, PyTorch must have it too."""
    ours, theirs = "cuda" in engines.available(), torch.cuda.is_available()
    if wanted == "cuda" and not ours:
        raise console.CannotRun(f"device 'cuda' cannot be used: {engines.why_not('cuda')}")
    if wanted == "cuda" and not theirs:
        raise console.CannotRun(f"PyTorch {torch.__version__} does not reach the GPU: install its CUDA build")
    return "cuda" if wanted != "cpu" and ours and theirs else "cpu"


def time_case(cell, shape, dtype, tf32, schedules, where, semantics=("linear", WHOLE)):
    """Return the rows of one case, one per pass and schedule; semantics: input mode and passes."""
    mode, passes = semantics
    fields = {"cell": str(cell), "shape": shape.sizes, "form": shape.form, "dtype": dtype, "device": where.device}
    fields |= {"tf32": tf32, "input_mode": mode}

    def refused(exception, *passes):
        why = fields | {"ok": False, "refusal": said(exception)}
        return [record.row(**why, what=what, schedule=schedule) for what in passes for schedule in schedules]

    try:
        make, lined_up = entrants(cell, shape, dtype, tf32, where, semantics)
    except console.WrongArguments:
        raise
    except Exception as exception:
        return refused(exception, *passes)
    rows = []
    for what in passes:
        with ExitStack() as stack:
            stack.enter_context(torch_peer.torch_tf32(tf32))
            if what == STEP:
                stack.enter_context(torch.inference_mode())
            try:
                line = lined_up(what, where)
            except Exception as exception:
                rows += refused(exception, what)
            else:
                rows += time_pass(make, line, fields | {"what": what}, schedules, where)
    return rows


def entrants(cell, shape, dtype, tf32, where, semantics):
    """Return two functions: (pass, device, schedule) -> numbarnn's contender, and (pass, where) -> `LineUp`."""
    if cell not in PEERS_CELLS:
        instance = CustomInstance(cell, shape, dtype, where.device)
        return instance.contender, instance.line_up
    (mode, passes), steps = semantics, stream.STEPS if STEP in semantics[1] else shape.T
    options = {"gradients": "y", "dtype": dtype, "allow_tf32": tf32, "input_mode": mode} | shape.options
    instance = make_instance(Case(cell, steps, shape.B, shape.I, (shape.H,) * shape.L, **options))
    trains = any(what not in (FORWARD, STEP) for what in passes)
    exact = torch_peer.torch_contender(instance.float64, trains, where.device)
    truth = exact.results(exact.call())
    if STEP in passes:
        return partial(stream.stepper_stream, instance), partial(stream.line_up, instance, truth)
    return partial(peers.numbarnn_contender, instance), partial(line_up, instance, truth)


def time_pass(make, line, fields, schedules, where):
    """Time one pass; return a row per schedule. make: (pass, device, schedule) -> numbarnn's contender."""
    what, steps = fields["what"], stream.CALLS if fields["what"] == STEP else 0
    ours = {schedule: attempt(partial(made_again, partial(make, what, where.device, schedule)), line.compare)
            for schedule in schedules}  # fmt: skip
    everybody = {contender.name: contender for contender, _, _ in ours.values() if contender}
    turns, peak_bytes = {}, {}
    if everybody:
        everybody |= {rival.name: rival for rival in line.rivals}
        turns = timing.take_turns(list(everybody.values()), where.rounds, where.gpu_clock, steps)
        if where.memory and not steps:  # after the times: it returns the memory that engines keep for calls
            peak_bytes = memory.peaks(everybody, where.device)
    rows = []
    for schedule, (contender, agreement, refusal) in ours.items():
        row = fields | {"schedule": schedule, "ok": contender is not None, "refusal": refusal}
        row |= {"agreement": agreement + line.agreement, "left_out": line.left_out}
        if contender:
            names = {"numbarnn": contender.name} | {rival.name: rival.name for rival in line.rivals}
            shown = {label: turns[name] for label, name in names.items()}
            row["plan"] = contender.plan
            for field, times in (("seconds", "call"), ("p99_seconds", "tail"), ("device_seconds", "device")):
                row[field] = {label: getattr(turn, times) for label, turn in shown.items() if getattr(turn, times)}
            row["host_behind"] = {label: shown[label].behind for label in row["device_seconds"]}
            row["notes"] = {rival.name: rival.note for rival in line.rivals if rival.note}
            row["peak_bytes"] = {label: peak_bytes[name] for label, name in names.items() if name in peak_bytes}
        rows.append(record.row(**row))
    return rows
