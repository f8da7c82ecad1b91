"""`numbarnn cells`: the library's cells; with options, times of cells written as equations, beside the built-in LSTM's
and a loop of PyTorch's.

A row is a cell, a shape, a dtype, a pass and a schedule; all cells of a shape, nr.LSTM with the same schedules, and the
loops take turns (`timing`). A loop (`torch_loop`) is the same equations in eager PyTorch as its users write them.
Results are compared before any time is taken, and where they are wrong there is no time. The truth is what the loop
computes in float64. Over the first STEPS_COMPARED steps numbarnn's error may be twice that of the loop in the row's
dtype, or what `limit_of` allows. Over all steps it may be GROWTH times the loop's: a cell may be chaotic, and then
chance decides what becomes of a rounding error. A schedule that cannot run a cell is a row that says why.
"""

import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

import numbarnn
from numbarnn.bench import console
from numbarnn.bench.cases.cases import Case, make_instance
from numbarnn.bench.cases.passes import FORWARD, SHORT, TRAINING, WHOLE
from numbarnn.bench.cases.shapes import Shape
from numbarnn.bench.check import accuracy
from numbarnn.bench.named_cells import CELL_PLACES, COLUMNS, find, library_rows
from numbarnn.bench.peers import peers
from numbarnn.bench.peers.contender import Contender, torch
from numbarnn.bench.peers.torch_loop import LoopNetwork, why_not
from numbarnn.bench.peers.torch_peer import numpy_to_torch, torch_call, torch_synchronize, torch_to_numpy
from numbarnn.bench.speed import command as speed
from numbarnn.bench.speed import timing
from numbarnn.bench.speed.lineup import attempt, compare, said
from numbarnn.bench.speed.record import Row, times
from numbarnn.bench.speed.speed_table import milliseconds, print_rows, quotient
from numbarnn.cells import LSTM, Cell, tracing
from numbarnn.common import precision
from numbarnn.schedules import SCHEDULES

CELLS = ("lstm", "gru", "peephole_lstm", "layer_norm_lstm", "slstm", "sru")
SHAPES = (Shape(100, 32, 256, 256, 1),)
STEPS_COMPARED, GROWTH = 16, 10
TORCH_METHOD = {
    FORWARD: "a loop over time of eager operations (numbarnn.bench.peers.torch_loop), under torch.no_grad()",
    TRAINING: "the same and y.backward(dy), which gives the gradients of x, states and weights",
    "allow_tf32": False,
}


@dataclass(frozen=True, kw_only=True)
class CellTiming(Row):
    """One row. Contenders are "numbarnn" (the cell), "lstm" and "loop"; ratios are "cell/lstm" and "loop/cell".

    Attributes:
        saved_bytes: of the cell and of the LSTM: kept for backward, per step and unit.
        trace_s, first_call_s: seconds to trace the cell, and of the first call, which compiles.
        notes: why there is no LSTM or no loop, which then confirms no result.
    """

    saved_bytes: dict
    trace_s: float | None
    first_call_s: float | None = None
    notes: list = field(default_factory=list)


# ------------------------------------------------------------------------------------------------------- arguments
def add_arguments(parser):
    about = f"a cell of numbarnn.cells.library by its name; or {CELL_PLACES}, which is run; default {', '.join(CELLS)}"
    parser.add_argument("--cell", type=named_cells, metavar="CELL[,...]", help=about)
    speed.add_shape_argument(parser)
    speed.add_list_argument(parser, "--dtype", precision.DTYPES, ["float32"])
    speed.add_list_argument(parser, "--schedule", ("auto", *SCHEDULES), ["auto"])
    speed.add_machine_arguments(parser)
    parser.add_argument("--no-loop", action="store_true", help="take no times of the loop in PyTorch; it still checks")
    console.add_json_argument(parser, "times, ratios, agreement, device and versions")
    parser.set_defaults(nothing_asked=vars(parser.parse_args([])))


class Named(NamedTuple):
    """A cell, by the words with which it was asked for."""

    name: str
    cell: Cell
    trace_s: float | None


def named_cells(text):
    """An argparse type: cells, with commas between -> list of `Named`."""
    return [find_cell(name) for name in dict.fromkeys(part.strip() for part in text.split(","))]


def find_cell(text):
    """The `Named` cell of a name in the library, of FILE.py:NAME or MODULE:NAME."""
    found = find(text)
    if not isinstance(found, tracing.TracedCell):
        return Named(text, found, None)
    begin = time.perf_counter()
    tracing.cell(found, save=found.save, name=found.name)
    return Named(text, found, time.perf_counter() - begin)


# --------------------------------------------------------------------------------------------------------- the command
def run(args):
    """Takes the times and prints them, or lists the library where no option says what to time; returns 1 when a time
    was refused, else 0."""
    nothing_asked = args.__dict__.pop("nothing_asked")
    if all(getattr(args, name) == value for name, value in nothing_asked.items() if name != "json"):
        return list_library(args)
    args.cell = args.cell or named_cells(",".join(CELLS))
    if not peers.installed("torch") and args.device == "cuda":
        raise console.MissingPackage("PyTorch", "the GPU's clock", "torch")
    where = speed.set_up(args)

    def time_one(shape, dtype, schedules, where):
        instances = [OwnInstance(named, shape, dtype, where.device) for named in args.cell]
        rows = [row for what in WHOLE for row in time_pass(instances, what, schedules, where, not args.no_loop)]
        return sorted(rows, key=lambda row: [instance.name for instance in instances].index(row.cell))

    todo = [(shape, dtype) for shape in args.shape or SHAPES for dtype in args.dtype]
    rows = speed.take_times(args, where, todo, time_one, print_timings, TORCH_METHOD)
    return 0 if all(row["ok"] for row in rows) else 1


def list_library(args):
    """Prints the library's cells; returns 0."""
    rows = library_rows()
    title = "Cells of numbarnn.cells.library; --cell NAME times one"
    console.print_table(title, COLUMNS, rows, right=("products",))
    if args.json:
        console.write_json(args.json, [dict(zip(COLUMNS, row, strict=True)) for row in rows])
    return 0


class OwnInstance:
    """Random arrays for a cell and a shape, C-contiguous, of a dtype.

    Attributes:
        name, cell, case: of the cell, and `Case` of an LSTM of the same sizes.
        parameters: name -> array: a new layer's.
        x, dy: (T, B, I), (T, B, H or P).
        states: one (L, B, H) per state, positive, as a normaliser has to be.
    """

    def __init__(self, named, shape, dtype, device):
        self.name, self.cell, self.trace_s, self.shape = named.name, named.cell, named.trace_s, shape
        self.asked_for, self._options = named, (dtype, device)
        self.case = Case("lstm", shape.T, shape.B, shape.I, (shape.H,) * shape.L, gradients="y", dtype=dtype)
        random = np.random.default_rng(0)
        try:
            layer = self.layer(device, "stepwise", precision.compute_dtype(dtype))
        except ValueError as error:
            raise console.WrongArguments(f"--cell {self.name} cannot have --shape {shape}: {error}") from error
        dtype = precision.numpy_dtype(dtype)
        self.parameters = {name: array.astype(dtype) for name, array in layer.state_dict().items()}
        if any(len(set(sizes)) > 1 for sizes in layer.stack.state_sizes):
            raise console.WrongArguments(
                f"--cell {self.name} has states of other sizes in each layer with --shape {shape}: take one layer"
            )
        widths = [sizes[0] for sizes in layer.stack.state_sizes]
        self.x = random.standard_normal((shape.T, shape.B, shape.I)).astype(dtype)
        self.dy = random.standard_normal((shape.T, shape.B, widths[0])).astype(dtype)
        self.states = [random.uniform(0.25, 1, (shape.L, shape.B, width)).astype(dtype) for width in widths]

    def layer(self, device, schedule, dtype=None):
        """A layer of its sizes, with parameters of its own."""
        sizes = {"input_size": self.shape.I, "hidden_size": self.shape.H, "num_layers": self.shape.L}
        options = {"dtype": dtype or self.case.dtype, "device": device, "schedule": schedule, "seed": 0}
        return numbarnn.RNN(self.cell, **sizes, **options)

    def to_compare(self):
        """The instances whose results are compared: itself, and before it a short one if it has many steps."""
        if self.shape.T <= STEPS_COMPARED:
            return [self]
        return [OwnInstance(self.asked_for, self.shape._replace(T=STEPS_COMPARED), *self._options), self]

    def named(self, form, states):
        """Name of each state in a form such as "d{}" -> its array."""
        states = states if isinstance(states, (list, tuple)) else (states,)
        return {form.format(name): state for name, state in zip(self.cell.states, states, strict=True)}


# --------------------------------------------------------------------------------------------------------- contenders
def numbarnn_contender(instance, train, device, schedule):
    """A numbarnn layer of the cell: inference, or forward and backward with dy."""
    layer = instance.layer(device, schedule)
    layer.load_state_dict(instance.parameters)
    x, dy, *states = map(layer.engine.from_host, (instance.x, instance.dy, *instance.states))

    def results(y, final, gradients=None):
        found = {"y": y} | instance.named("final {}", final)
        if train:
            found |= {"dx": gradients.x} | instance.named("d{}", gradients.state) | gradients.params
        return {name: peers.to_host(layer, value) for name, value in found.items()}

    state = tuple(states) if len(states) > 1 else states[0]
    return peers.layer_contender(f"{instance.name} {schedule}", layer, (x, state, dy if train else None), results)


def loop_contender(instance, train, device, dtype=None):
    """The loop in PyTorch at the same work; dtype "float64": of the same numbers."""

    def tensor(array):
        return numpy_to_torch(array.astype(dtype) if dtype else array, device).requires_grad_(train)

    parameters = {name: array.astype(dtype) if dtype else array for name, array in instance.parameters.items()}
    network = LoopNetwork(instance.cell, instance.shape.H, parameters, instance.shape.L, device)
    x, states, dy = tensor(instance.x), [tensor(state) for state in instance.states], tensor(instance.dy).detach()
    weights = [leaf.requires_grad_(train) for leaf in network.leaves.values()]

    def results(returned):
        y, finals = returned
        found = {"y": y} | instance.named("final {}", [torch.stack(parts) for parts in zip(*finals, strict=True)])
        if train:
            gradients = [torch.zeros_like(state) if state.grad is None else state.grad for state in states]
            found |= {"dx": x.grad} | instance.named("d{}", gradients)
        found = {name: torch_to_numpy(value) for name, value in found.items()}
        return found | network.gradients() if train else found

    call = torch_call(lambda: network(x, states), [x, *states, *weights], dy if train else None)
    return Contender(f"{instance.name} loop", call, results, torch_synchronize(device))


def limit_of(steps, times, case, loop_error):
    """The largest error that passes: so many times the loop's, or the floor of so many steps of an LSTM, as each stage
    of a cell counts as one. In float64 twice that floor: the loop, which then is the truth, errs as much."""
    return max(accuracy.floor(case) * steps * (2 if case.dtype == "float64" else 1), times * loop_error)


# -------------------------------------------------------------------------------------------------------------- timing
def time_pass(instances, what, schedules, where, with_loops):
    """The rows of one pass, whose contenders take turns."""
    train, case, device = what == TRAINING, instances[0].case, where.device
    begun = {instance.name: begin(instance, train, device, schedules) for instance in instances}
    contenders = [contender for rows, _ in begun.values() for contender, _ in rows if contender]
    lstms, lacking = {}, {}
    for schedule in schedules if contenders else ():
        try:
            lstm = peers.numbarnn_contender(make_instance(case), train, device, schedule)
            lstms[schedule] = replace(lstm, name=f"nr.LSTM {schedule}")
        except Exception as exception:
            lacking[schedule] = [f"no LSTM: {said(exception)}"]
    loops = {name: loop for name, (rows, loop) in begun.items() if loop and with_loops and any(c for c, _ in rows)}
    turns = timing.take_turns([*contenders, *lstms.values(), *loops.values()], where.rounds, device == "cuda")
    timings = []
    for instance in instances:
        about = {"cell": instance.name, "shape": instance.shape.sizes, "dtype": case.dtype, "device": device}
        size = precision.itemsize(case.dtype)
        saved = {"cell": instance.cell.num_saved * size, "lstm": LSTM.num_saved * size}
        about |= {"what": what, "saved_bytes": saved, "trace_s": instance.trace_s}
        for contender, row in begun[instance.name][0]:
            if contender:
                row["notes"] = row["notes"] + lacking.get(row["schedule"], [])
                own = {"numbarnn": contender, "lstm": lstms.get(row["schedule"]), "loop": loops.get(instance.name)}
                own = {name: turns[one.name] for name, one in own.items() if one}
                row |= times(own) | {"ratio": ratios(own), "plan": contender.plan}
            timings.append(CellTiming(**about, **row))
    return timings


def begin(instance, train, device, schedules):
    """([(contender or None, what is known of the row) of each schedule], the loop or None): all results are compared
    here."""
    reason = why_not(instance.cell, train) or (None if peers.installed("torch") else "PyTorch is not installed")
    notes = [f"no loop, so that results were not compared: {reason}"] if reason else []
    loop, references, rows = None, [], []
    try:
        if not reason:
            loop = loop_contender(instance, train, device)
            references = [reference(one, train, device) for one in instance.to_compare()]
    except Exception as exception:
        refused = {"notes": notes, "ok": False, "refusal": f"the loop in PyTorch: {said(exception)}"}
        return [(None, refused | {"schedule": schedule}) for schedule in schedules], None
    for schedule in schedules:
        row = {"schedule": schedule, "notes": notes}

        def make(schedule=schedule, row=row):
            contender = numbarnn_contender(instance, train, device, schedule)
            row["first_call_s"] = timing.timed(contender, 1)
            return contender

        def rows_of(contender, schedule=schedule):
            for one, *expected in references:
                ours = contender if one is instance else numbarnn_contender(one, train, device, schedule)
                yield from compare(one.case, ours, *expected)

        contender, agreement, refusal = attempt(make, rows_of)
        rows.append((contender, row | {"agreement": agreement, "refusal": refusal, "ok": refusal is None}))
    return rows, loop


def reference(instance, train, device):
    """(instance, what its loop computes in float64, what it computes in the instance's dtype, judge of an error)."""
    loop, exact = (loop_contender(instance, train, device, dtype) for dtype in (None, "float64"))
    times = 2 if instance.shape.T <= STEPS_COMPARED else GROWTH
    judge = partial(limit_of, 1 + len(instance.cell.stages), times)
    return instance, exact.results(exact.call()), loop.results(loop.call()), judge


def ratios(turns):
    """The ratio of the cell to the LSTM, and of the loop to the cell, where they have turns: medians over rounds."""
    pairs = {"cell/lstm": ("numbarnn", "lstm"), "loop/cell": ("loop", "numbarnn")}
    return {
        name: float(np.median(np.divide(turns[one].call, turns[other].call)))
        for name, (one, other) in pairs.items()
        if one in turns and other in turns
    }


def print_timings(rows, where, doubt):
    """The table of times, refusals in their place, what the notes say, and a summary line: see `speed.take_times`."""
    gpu, shown = where.device == "cuda", ("numbarnn", "lstm", "loop")
    columns = ["numbarnn", "LSTM", "cell/LSTM", "loop", "loop/cell"]
    columns += [f"{name} on GPU" for name in ("numbarnn", "LSTM", "loop")] if gpu else []
    columns += ["saved", "trace", "first call"]
    table = []
    for row in rows:
        ours, lstm, loop = (milliseconds(row["median_s"].get(name)) for name in shown)
        to_lstm, to_loop = (quotient(row["ratio"].get(name)) for name in ("cell/lstm", "loop/cell"))
        cells = [ours, lstm, to_lstm, loop, to_loop]
        cells += [milliseconds(row["device_median_s"].get(name)) for name in shown] if gpu else []
        cells += ["{cell}/{lstm}".format(**row["saved_bytes"])]
        cells += [milliseconds(row["trace_s"]), milliseconds(row["first_call_s"])]
        table.append(cells)
    clock = "the GPU, float32 without TF32" if gpu else f"{where.threads} CPU threads"
    title = f"Milliseconds, {clock}; loop: eager PyTorch; saved: bytes per step and unit, the cell's/the LSTM's"
    print_rows(title, rows, columns, table, doubt)
    for words in dict.fromkeys(f"{r['cell']}, {SHORT[r['what']]}: {note}" for r in rows for note in r["notes"]):
        console.say(words)
    refusals, unchecked = sum(not row["ok"] for row in rows), sum(row["ok"] and not row["agreement"] for row in rows)
    verdict = f"{refusals} of {len(rows)} REFUSED" if refusals else f"{len(rows) - unchecked} rows agree with loops"
    console.say(f"numbarnn cells: {verdict}" + (f", {unchecked} not compared" if unchecked else ""))
