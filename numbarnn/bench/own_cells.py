"""`numbarnn cells`: times of cells written as equations, beside the built-in LSTM's and a loop of PyTorch's.

A row is a cell, a shape, a dtype, a pass and a schedule; all cells of a shape, nr.LSTM with the same schedules, and the
loops take turns (`timing`). A loop (`torch_loop`) is the same equations in eager PyTorch as its users write them.
numbarnn's results are compared with it before any time is taken, and where they are wrong there is no time. Over the
first STEPS_COMPARED steps each may be at most twice as far as the loop's from what the loop computes in float64, or as
far as `limit_of` allows; over all of them, where a cell may be chaotic and what becomes of a rounding error is chance,
GROWTH times as far. A schedule that cannot run a cell is a row that says why.
"""

from dataclasses import asdict, dataclass, field, replace
from functools import partial

import numpy as np

from numbarnn.bench import info, named_cells, report
from numbarnn.bench.cases.cases import Case, make_problem
from numbarnn.bench.check import accuracy
from numbarnn.bench.peers import peers
from numbarnn.bench.peers.contender import Contender
from numbarnn.bench.peers.torch_loop import LoopNetwork, why_not
from numbarnn.bench.peers.torch_peer import numpy_to_torch, torch_to_numpy
from numbarnn.bench.speed import command as speed
from numbarnn.bench.speed import timing
from numbarnn.bench.speed.command import FORWARD, SHORT, TRAINING, Shape, milliseconds, said
from numbarnn.common import precision

CELLS = ("lstm", "gru", "peephole_lstm", "layer_norm_lstm", "slstm", "sru")
SHAPES = (Shape(100, 32, 256, 256, 1),)
SAVED_BY_LSTM = 4  # values per step and unit
STEPS_COMPARED, GROWTH = 16, 10
TORCH_METHOD = {
    FORWARD: "a loop over time of eager operations (numbarnn.bench.peers.torch_loop), under torch.no_grad()",
    TRAINING: "the same and y.backward(dy), which gives the gradients of x, states and weights",
    "allow_tf32": False,
}


@dataclass(frozen=True)
class CellTiming:
    """One row; `refusal` says why there are no times. Contenders are "numbarnn" (the cell), "lstm" and "loop".

    plan                          what numbarnn ran, and why
    notes                         why there is no LSTM or no loop, which then confirms no result
    saved_bytes                   of the cell and of the LSTM: kept for backward, per step and unit
    trace_s, first_call_s         seconds to trace the cell, and of the first call, in which kernels are compiled or
                                  taken from the disk
    seconds, device_seconds       contender -> its time per call in each round: the host's clock, the GPU's
    median_s, device_median_s     their medians
    ratio                         "cell/lstm" and "loop/cell", medians over rounds
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
    saved_bytes: dict
    trace_s: float | None
    first_call_s: float | None = None
    notes: list = field(default_factory=list)
    plan: str | None = None
    seconds: dict = field(default_factory=dict)
    device_seconds: dict = field(default_factory=dict)
    median_s: dict = field(default_factory=dict)
    device_median_s: dict = field(default_factory=dict)
    ratio: dict = field(default_factory=dict)


# ------------------------------------------------------------------------------------------------------- arguments
def add_arguments(parser):
    """Adds the arguments of `numbarnn cells`."""
    from numbarnn.schedules import SCHEDULES

    parser.add_argument(
        "--cell",
        type=named_cells.parse,
        default=",".join(CELLS),
        metavar="CELL[,...]",
        help="a cell of numbarnn.cells.library by its name; or FILE.py:NAME, or MODULE:NAME; default %(default)s",
    )
    speed.add_shape_argument(parser)
    speed.add_list_argument(parser, "--dtype", precision.DTYPES, ["float32"])
    speed.add_list_argument(parser, "--schedule", ("auto", *SCHEDULES), ["auto"])
    speed.add_machine_arguments(parser)
    parser.add_argument("--no-loop", action="store_true", help="take no times of the loop in PyTorch; it still checks")
    report.add_json_argument(parser, "times, ratios, agreement, device and versions")


# --------------------------------------------------------------------------------------------------------- the command
def run(args):
    """Takes the times and prints them; returns 1 when a time was refused, else 0."""
    speed.choose_openblas_core(args.openblas_core)
    with_torch = peers.installed("torch")
    if not with_torch and args.device == "cuda":
        raise report.MissingPackage("PyTorch", "the GPU's clock", "torch")
    device = speed.choose_device(args.device) if with_torch else "cpu"
    threads, rounds = args.threads or info.core_count(), args.rounds or speed.ROUNDS[device]
    speed.set_up_torch_and_engine(device, threads)
    load_before = speed.Load()
    todo = [(shape, dtype) for shape in args.shape or SHAPES for dtype in args.dtype]
    timings = []
    with report.Progress() as progress:
        progress.start(f"cells on {device}", len(todo))
        for shape, dtype in todo:
            problems = [OwnProblem(named, shape, dtype, device) for named in args.cell]
            timings += time_shape(problems, device, args.schedule, rounds, with_torch, not args.no_loop)
            progress.update(f"cells on {device}")
    print_timings(timings, device, threads)
    speed.say_doubts(device, load_before)
    if args.json:
        rows = [asdict(row) for row in timings]
        report.write_json(args.json, speed.as_record(rows, rounds, device, threads, load_before, TORCH_METHOD))
    return 0 if all(timing.ok for timing in timings) else 1


class OwnProblem:
    """Random arrays for a cell and a shape, C-contiguous, of a dtype.

    Attributes:
        name, cell, case: of the cell, and `Case` of an LSTM of the same sizes.
        parameters: name -> array: a new layer's.
        x, dy: (T, B, I), (T, B, H or P).
        states: one (L, B, H) per state, positive, as a normaliser has to be.
    """

    def __init__(self, named, shape, dtype, device, seed=0):
        self.name, self.cell, self.trace_s, self.shape = named.name, named.cell, named.trace_s, shape
        self.asked_for, self._options = named, (dtype, device, seed)
        self.case = Case("lstm", shape.T, shape.B, shape.I, (shape.H,) * shape.L, gradients="y", dtype=dtype)
        random = np.random.default_rng(seed)
        try:
            layer = self.layer(device, "stepwise", precision.compute_dtype(dtype))
        except ValueError as problem:
            raise report.CannotRun(f"{self.name} cannot have the sizes {shape}: {problem}") from problem
        dtype = precision.numpy_dtype(dtype)
        self.parameters = {name: array.astype(dtype) for name, array in layer.state_dict().items()}
        widths = [layer.stack.output_sizes[0]] + [shape.H] * self.cell.num_private
        self.x = random.standard_normal((shape.T, shape.B, shape.I)).astype(dtype)
        self.dy = random.standard_normal((shape.T, shape.B, widths[0])).astype(dtype)
        self.states = [random.uniform(0.25, 1, (shape.L, shape.B, width)).astype(dtype) for width in widths]

    def layer(self, device, schedule, dtype=None):
        """A layer of its sizes, with parameters of its own."""
        import numbarnn

        sizes = {"input_size": self.shape.I, "hidden_size": self.shape.H, "num_layers": self.shape.L}
        options = {"dtype": dtype or self.case.dtype, "device": device, "schedule": schedule, "seed": 0}
        return numbarnn.RNN(self.cell, **sizes, **options)

    def to_compare(self):
        """Itself, and before it a short one if it has many steps."""
        if self.shape.T <= STEPS_COMPARED:
            return [self]
        return [OwnProblem(self.asked_for, self.shape._replace(T=STEPS_COMPARED), *self._options), self]

    def named(self, form, states):
        """Name of each state in a form such as "d{}" -> its array."""
        return {form.format(name): state for name, state in zip(self.cell.states, states, strict=True)}

    def saved_bytes(self):
        """What the cell and the LSTM keep for backward, per step and unit."""
        size = precision.itemsize(self.case.dtype)
        return {"cell": self.cell.num_saved * size, "lstm": SAVED_BY_LSTM * size}


# --------------------------------------------------------------------------------------------------------- contenders
def numbarnn_contender(problem, train, device, schedule):
    """A numbarnn layer of the cell: inference, or forward and backward with dy."""
    layer = problem.layer(device, schedule)
    plan = layer.explain(problem.x.shape).splitlines()[1]
    layer.load_state_dict(problem.parameters)
    x, dy, *states = map(layer.engine.from_host, (problem.x, problem.dy, *problem.states))
    state = tuple(states) if len(states) > 1 else states[0]

    def forward():
        return layer(x, state)

    def forward_and_backward():
        y, final, tape = layer.forward(x, state)
        return y, final, layer.backward(tape, dy)

    def results(returned):
        y, final, *gradients = returned
        found = {"y": y} | problem.named("final {}", final if isinstance(final, tuple) else (final,))
        for one in gradients:
            state = one.state if isinstance(one.state, tuple) else (one.state,)
            found |= {"dx": one.x} | problem.named("d{}", state) | one.params
        return {name: peers.to_host(layer, value) for name, value in found.items()}

    synchronize = getattr(layer.engine, "synchronize", lambda: None)
    call = forward_and_backward if train else forward
    return Contender(f"{problem.name} {schedule}", call, results, synchronize, plan)


def lstm_contender(shape, dtype, train, device, schedule):
    """The built-in LSTM of the same sizes."""
    case = Case("lstm", shape.T, shape.B, shape.I, (shape.H,) * shape.L, gradients="y", dtype=dtype)
    contender = peers.numbarnn_contender(make_problem(case), train, device, schedule)
    return replace(contender, name=f"nr.LSTM {schedule}")


def loop_contender(problem, train, device, dtype=None):
    """The loop in PyTorch at the same work; dtype "float64": of the same numbers."""
    import torch

    def tensor(array):
        return numpy_to_torch(array.astype(dtype) if dtype else array, device).requires_grad_(train)

    parameters = {name: array.astype(dtype) if dtype else array for name, array in problem.parameters.items()}
    network = LoopNetwork(problem.cell, problem.shape.H, parameters, problem.shape.L, device)
    x, states, dy = tensor(problem.x), [tensor(state) for state in problem.states], tensor(problem.dy).detach()
    weights = [leaf.requires_grad_(train) for leaf in network.leaves.values()]

    def forward():
        with torch.no_grad():
            return network(x, states)

    def forward_and_backward():
        for leaf in (x, *states, *weights):
            leaf.grad = None
        y, finals = network(x, states)
        y.backward(dy)
        return y, finals

    def results(returned):
        y, finals = returned
        found = {"y": y} | problem.named("final {}", [torch.stack(parts) for parts in zip(*finals, strict=True)])
        if train:
            gradients = [torch.zeros_like(state) if state.grad is None else state.grad for state in states]
            found |= {"dx": x.grad} | problem.named("d{}", gradients)
        found = {name: torch_to_numpy(value) for name, value in found.items()}
        return found | network.gradients() if train else found

    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    return Contender(f"{problem.name} loop", forward_and_backward if train else forward, results, synchronize)


def limit_of(steps, times, case, loop_error):
    """The largest error that passes, of a cell whose step counts as so many of an LSTM's: each of its stages is one;
    so many times the loop's.

    In float64 the loop is the truth, and errs as much.
    """
    return max(accuracy.floor(case) * steps * (2 if case.dtype == "float64" else 1), times * loop_error)


# -------------------------------------------------------------------------------------------------------------- timing
def time_shape(problems, device, schedules, rounds, with_torch, with_loops):
    """The rows of all cells of a shape and dtype: a row per cell, pass and schedule."""
    rows = [
        row for what in SHORT for row in time_pass(problems, what, device, schedules, rounds, with_torch, with_loops)
    ]
    order = [problem.name for problem in problems]
    return sorted(rows, key=lambda row: order.index(row.cell))


def time_pass(problems, what, device, schedules, rounds, with_torch, with_loops):
    """The rows of one pass, whose contenders take turns."""
    train, case, shape = what == TRAINING, problems[0].case, problems[0].shape
    begun = {problem.name: begin(problem, train, device, schedules, with_torch) for problem in problems}
    contenders = [row["contender"] for rows, _ in begun.values() for row in rows if row["contender"]]
    lstms, lacking = {}, {}
    for schedule in schedules if contenders else ():
        try:
            lstms[schedule] = lstm_contender(shape, case.dtype, train, device, schedule)
        except Exception as exception:
            lacking[schedule] = f"no LSTM: {said(exception)}"
    loops = {name: loop for name, (rows, loop) in begun.items() if loop and with_loops and any(r["ok"] for r in rows)}
    turns = timing.take_turns([*contenders, *lstms.values(), *loops.values()], rounds, device == "cuda")
    timings = []
    for problem in problems:
        about = {"cell": problem.name, "shape": shape._asdict(), "dtype": case.dtype, "device": device, "what": what}
        about |= {"saved_bytes": problem.saved_bytes(), "trace_s": problem.trace_s}
        for row in begun[problem.name][0]:
            contender, schedule = row.pop("contender"), row["schedule"]
            if contender is not None:
                row["notes"] += [lacking[schedule]] if schedule in lacking else []
                own = {"numbarnn": contender, "lstm": lstms.get(schedule), "loop": loops.get(problem.name)}
                row |= times({name: turns[one.name] for name, one in own.items() if one}) | {"plan": contender.plan}
            timings.append(CellTiming(**about, **row))
    return timings


def begin(problem, train, device, schedules, with_torch):
    """([what is known of each schedule's row, with its contender or None], the loop or None): all results are compared
    here."""
    reason, loop, references = why_not(problem.cell, train), None, []
    reason = reason or (None if with_torch else "PyTorch is not installed")
    notes = [f"no loop, so that results were not compared: {reason}"] if reason else []
    rows = []
    try:
        if not reason:
            loop = loop_contender(problem, train, device)
            references = [reference(one, train, device) for one in problem.to_compare()]
    except Exception as exception:
        refusal = f"the loop in PyTorch: {said(exception)}"
        return [row_of(schedule, notes, refusal) for schedule in schedules], None
    for schedule in schedules:
        row = row_of(schedule, notes)
        try:
            contender = numbarnn_contender(problem, train, device, schedule)
            row["first_call_s"] = timing.timed(contender, 1)
            for one, *expected in references:
                ours = contender if one is problem else numbarnn_contender(one, train, device, schedule)
                row["agreement"] += speed.compare(one.case, ours, *expected)
            row["refusal"] = speed.disagreement(row["agreement"])
            row["contender"] = None if row["refusal"] else contender
        except Exception as exception:
            row["refusal"] = said(exception)
        rows.append(row | {"ok": row["refusal"] is None})
    return rows, loop


def reference(problem, train, device):
    """(problem, what its loop computes in float64, what it computes in the problem's dtype, judge of an error)."""
    loop, exact = (loop_contender(problem, train, device, dtype) for dtype in (None, "float64"))
    times = 2 if problem.shape.T <= STEPS_COMPARED else GROWTH
    judge = partial(limit_of, 1 + len(problem.cell.stages), times)
    return problem, exact.results(exact.call()), loop.results(loop.call()), judge


def row_of(schedule, notes, refusal=None):
    """What is known of a row at first."""
    return {
        "schedule": schedule, "notes": list(notes), "agreement": [], "refusal": refusal, "ok": False, "contender": None,
    }  # fmt: skip


def times(turns):
    """The fields of a row with times."""
    seconds = {name: turn.call for name, turn in turns.items()}
    device_seconds = {name: turn.device for name, turn in turns.items() if turn.device}
    pairs = [pair for pair in (("numbarnn", "lstm"), ("loop", "numbarnn")) if set(pair) <= set(seconds)]
    return {
        "seconds": seconds,
        "device_seconds": device_seconds,
        "median_s": {name: float(np.median(values)) for name, values in seconds.items()},
        "device_median_s": {name: float(np.median(values)) for name, values in device_seconds.items()},
        "ratio": {
            f"{one}/{other}".replace("numbarnn", "cell"): float(np.median(np.divide(seconds[one], seconds[other])))
            for one, other in pairs
        },
    }


def print_timings(timings, device, threads):
    """The table of times, refusals in their place, what the notes say, and a summary line."""
    gpu, shown = device == "cuda", ("numbarnn", "lstm", "loop")
    columns = ["cell", "T,B,I,H,L", "dtype", "pass", "schedule", "numbarnn", "LSTM", "cell/LSTM", "loop", "loop/cell"]
    columns += [f"{name} on GPU" for name in ("numbarnn", "LSTM", "loop")] if gpu else []
    columns += ["saved", "trace", "first call"]
    rows = []
    for t in timings:
        schedule = f"auto: {t.plan.split()[0]}" if t.schedule == "auto" and t.plan else t.schedule
        ours, lstm, loop = (milliseconds(t.median_s.get(name)) for name in shown)
        ratios = [f"{t.ratio[name]:.2f}" if name in t.ratio else "-" for name in ("cell/lstm", "loop/cell")]
        cells = [t.cell, ",".join(map(str, t.shape.values())), t.dtype, SHORT[t.what], schedule]
        cells += [ours, lstm, ratios[0], loop, ratios[1]]
        cells += [milliseconds(t.device_median_s.get(name)) for name in shown] if gpu else []
        cells += ["{cell}/{lstm}".format(**t.saved_bytes)]
        cells += [milliseconds(t.trace_s), milliseconds(t.first_call_s)]
        rows.append([*cells, "ok" if t.ok else f"REFUSED: {t.refusal}"])
    where = "the GPU, float32 without TF32" if gpu else f"{threads} CPU threads"
    title = f"Milliseconds, {where}; loop: eager PyTorch; saved: bytes per step and unit, the cell's/the LSTM's"
    report.print_table(title, [*columns, "result"], rows, right=columns[5:], wrap=("pass", "result"))
    for words in dict.fromkeys(f"{t.cell}, {SHORT[t.what]}: {note}" for t in timings for note in t.notes):
        report.say(words)
    refusals, unchecked = sum(not t.ok for t in timings), sum(t.ok and not t.agreement for t in timings)
    verdict = (
        f"{refusals} of {len(timings)} REFUSED" if refusals else f"{len(timings) - unchecked} rows agree with loops"
    )
    report.say(f"numbarnn cells: {verdict}" + (f", {unchecked} not compared" if unchecked else ""))
