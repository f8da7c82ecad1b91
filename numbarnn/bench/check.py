"""`numbarnn check`: compare every engine that runs here, forward and backward, with float64, cuDNN and PyTorch.

Every schedule runs a case in up to three modes: inference, single steps (the state carried from call to call) and
training. If training draws random numbers, its second call is compared. Every quantity of every mode is a row, a dict.
An exception is a failed row. A case that a schedule cannot run is counted, but is no failure.

    cell, options, uses         the case in words, and the names of options that it uses
    engine, schedule, mode      mode: "inference", "single steps", "training" or REFUSED
    quantity, error, limit, ok  error is None if nothing could be compared; message says why
    torch_error, cudnn_error    peers' errors; ratio: error / cuDNN's error, or else PyTorch's
"""

import itertools
import textwrap
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from numbarnn import engines
from numbarnn.bench import accuracy, cases, console, spreads
from numbarnn.bench.expected import Expected, errors_of
from numbarnn.bench.peers import contender, cudnn, peers
from numbarnn.bench.peers.torch_peer import torch_threads
from numbarnn.common import install, precision
from numbarnn.schedules import SCHEDULES

DEVICES = ("cpu", "sim", "cuda")
REFUSED = "refused"  # the mode of a case that a schedule cannot run
QUICK = (
    "Run a subset, in about 20 seconds on two cores: every cell and option in every schedule, forward and backward. "
    "In the simulator the schedules share a cell's options. Most pairs of options, long sequences, gradients of one "
    "output alone, and some dtypes are left out."
)
TIMEOUT_S = 2400  # for the simulator's process: ten times what the full check takes on a slow core


def add_arguments(parser):
    """Add the options of `numbarnn check`."""
    add, names, schedules = parser.add_argument, cases.ALL_CELLS, ("auto", *SCHEDULES)
    about = "Engine to check. Default: all, which is CPU, simulator, and CUDA if there is a GPU."
    add("--device", choices=[*DEVICES, "all"], default="all", help=about)
    console.add_list_argument(parser, "--cell", names, list(names))
    console.add_list_argument(parser, "--schedule", schedules, list(SCHEDULES))
    add("--quick", action="store_true", help=QUICK)
    console.add_json_argument(parser, "one row per comparison")


def run(args):
    """Run the checks, print tables and a summary; return 0 when every comparison passed, else 1."""
    begin, rows = time.perf_counter(), []
    (here, simulator), chosen = plan_devices(args.device), (args.cell, args.schedule, args.quick)
    with torch_threads(1), ThreadPoolExecutor(1) as pool:  # at these sizes more threads win nothing
        simulated_rows = pool.submit(check_simulated, *chosen) if simulator else None
        for device in here:
            rows += check_device(device, *chosen)
        rows += simulated_rows.result() if simulator else []
    seconds = time.perf_counter() - begin
    print_tables(rows)
    if args.device == "all" and (problem := install.simulator_lacks()):
        console.say_wrapped(f"sim is left out: {problem}")
    print_summary(rows, seconds)
    if args.json:
        console.write_json(args.json, rows)
    return 0 if all(row["ok"] for row in rows) and any(map(compared, rows)) else 1


# --------------------------------------------------------------------------------------------------------------- plans
def plan_devices(wanted):
    """Return the devices to check in this process, and whether a second process checks the simulator."""
    if wanted != "all":
        return [wanted], False
    available = engines.available()
    return [device for device in DEVICES if device in available and device != "sim"], "sim" in available


def plan_cases(device, cells, schedules, quick):
    """Return pairs of a case and the schedules that run it.

    The simulator is slow: schedules after the first run the quick cases, and take turns in a quick check."""
    if quick and device == "sim":
        plans = []
        for start, cell in enumerate(cells):
            for turn, case in enumerate(spreads.all_cases(cell, "quick", device), start):
                for name in schedules if case.proj_size or case.cell_clip else [schedules[turn % len(schedules)]]:
                    lowered = name == "persistent" and case.dtype == "float64"  # its kernels have no float64
                    plans.append((replace(case, dtype="float32") if lowered else case, [name]))
        return plans
    sizes = {schedule: "quick" if quick or (device == "sim" and schedule != schedules[0]) else "full"
             for schedule in schedules}  # fmt: skip
    return [
        (case, [schedule for schedule in schedules if sizes[schedule] == size])
        for cell in cells
        for size in dict.fromkeys(sizes.values())
        for case in spreads.all_cases(cell, size, device)
    ]


def check_simulated(cells, schedules, quick):
    """Check cells in another process, in the simulator; return the rows, or a failed row if that does not finish."""
    arguments = ["check", "--device", "sim", "--cell", ",".join(cells)]
    arguments += ["--schedule", ",".join(schedules), *(["--quick"] if quick else [])]
    code, rows, said = console.run_apart(arguments, TIMEOUT_S)
    if code in (0, 1) and rows is not None:
        return rows
    return [engine_failure("sim", f"the simulator's process ended without results: {said}")]


def engine_failure(device, message):
    """Return the row for an engine that did not start or crashed."""
    fields = dict.fromkeys(("cell", "options", "schedule", "mode"), "-")
    return row_of(**fields, engine=device, quantity="engine", ok=False, message=message)


def row_of(**known):
    """Return a row with defaults for the fields that are not known."""
    row = dict.fromkeys(("error", "limit", "torch_error", "cudnn_error", "message")) | {"uses": (), "ok": True} | known
    peer = row["torch_error"] if row["cudnn_error"] is None else row["cudnn_error"]
    return row | {"ratio": None if None in (row["error"], peer) else accuracy.quotient(row["error"], peer, 1.0)}


def compared(row):
    return row["mode"] != REFUSED


# ------------------------------------------------------------------------------------------------------------- running
def check_device(device, cells, schedules, quick):
    """Return all rows of one device."""
    try:
        engines.get(device)
    except Exception as exception:
        return [engine_failure(device, f"{type(exception).__name__}: {exception}")]
    with_cudnn, rows = device == "cuda" and cudnn.why_not() is None, []
    for case, wanted in console.progress_bar(plan_cases(device, cells, schedules, quick), device):
        rows += check_case(case, device, wanted, with_cudnn)
    return rows


def check_case(case, device, schedules=("auto",), with_cudnn=False, with_torch=True):
    """Return all rows of one case on one device with these schedules."""
    rows, expected = [], None
    for schedule in schedules:
        comparer = Comparer(case, device, schedule)
        with comparer.catching("inference"):
            expected = expected or Expected(cases.make_instance(case), with_cudnn, with_torch)
            run_modes(comparer, expected)
        rows += comparer.rows
    return rows


def run_modes(comparer, expected):
    """Run and compare one case with one schedule in every mode."""
    instance, case = expected.instance, expected.instance.case
    layer = cases.make_layer(case, comparer.device, instance.parameters, comparer.schedule)
    T, B, width = instance.x.shape
    try:
        layer.explain((B, T, width) if case.batch_first else (T, B, width))
    except RuntimeError as reason:
        return comparer.add(REFUSED, "plan", message=str(reason), ok=True)
    returned = layer(*peers.inputs(layer, instance)[:2], **peers.call_options(instance))
    comparer.compare("inference", peers.numbarnn_outputs(layer, instance, *returned), expected.results())
    if case.T > 1 and not case.bidirectional and case.lengths != "packed":
        with comparer.catching("single steps"):
            comparer.compare("single steps", run_single_steps(layer, instance), expected.results())
    with comparer.catching("training"):
        expectation = expected.of_training()
        comparer.compare("training", run_training(layer, instance), expectation, needed=expectation["truth"])


def run_single_steps(layer, instance):
    """Return y, hy and cy of T calls of one step each; a sequence that has ended has length 0."""
    x, state, _ = peers.inputs(layer, instance)
    axis, ys = int(instance.case.batch_first), []
    for t in range(instance.case.T):
        step = slice(t, t + 1)
        y, state = layer(x[:, step] if axis else x[step], state, **peers.call_options(instance, step))
        ys.append(peers.to_host(layer, y))
    return peers.numbarnn_outputs(layer, instance, layer.engine.from_host(np.concatenate(ys, axis=axis)), state)


def run_training(layer, instance):
    """Return all results of forward and backward; those of a second call with random numbers or accumulation.

    Accumulated gradients include the first call's."""
    case, options = instance.case, peers.call_options(instance)
    x, state, dy = peers.inputs(layer, instance)
    dstate, dw = peers.to_engine_state(layer, instance.dhy, instance.dcy), None
    for _ in range(case.training_calls):
        y, final, tape = layer.forward(x, state, **options)
        results = peers.numbarnn_outputs(layer, instance, y, final)
        if not case.forward_only:
            gradients = layer.backward(tape, dy, dstate, dw=dw)
            dw = gradients.weights if case.accumulate else None
            results |= peers.numbarnn_gradients(layer, instance, gradients)
    return results


class Comparer:
    """Collect the rows of one case on one device with one schedule."""

    def __init__(self, case, device, schedule):
        self.case, self.device, self.schedule, self.rows = case, device, schedule, []

    def add(self, mode, quantity, error=None, limit=None, **more):
        """Add a row. By default `ok` is whether the error is at most the limit."""
        ok, message = error is not None and error <= (limit or 0), more.get("message")
        if message is None and error != error:
            message = "the result holds NaN"
        fields = {"cell": self.case.cell, "options": self.case.options, "uses": self.case.uses, "engine": self.device}
        fields |= {"schedule": self.schedule, "mode": mode, "quantity": quantity, "error": error, "limit": limit}
        self.rows.append(row_of(**fields | {"ok": ok} | more | {"message": message}))

    @contextmanager
    def catching(self, mode):
        """Turn an exception in a `with` block into a failed row, which says where it was raised."""
        try:
            yield
        except Exception as exception:
            place = traceback.extract_tb(exception.__traceback__)[-1]
            message = f"{type(exception).__name__}: {exception} ({place.filename}:{place.lineno})"
            self.add(mode, "exception", message=message)

    def compare(self, mode, results, expectation, needed=("y",)):
        """Compare every quantity of `results` with those of `Expected`. needed: quantities that must be there."""
        for quantity in needed:
            if quantity not in results:
                self.add(mode, quantity, message="no result for it")
        for quantity, value in results.items():
            message, wanted = "a result that was not expected", expectation["truth"].get(quantity)
            if wanted is None or (message := accuracy.shape_problem(value, wanted, self.case.dtype)):
                self.add(mode, quantity, message=message)
                continue
            errors = {peer: accuracy.trusted(self.case, e) for peer, e in errors_of(expectation, quantity).items()}
            limit = accuracy.limit(self.case, errors["torch"] if errors["cudnn"] is None else errors["cudnn"])
            peer_errors = {f"{peer}_error": error for peer, error in errors.items()}
            self.add(mode, quantity, accuracy.error(value, wanted), limit, **peer_errors)


# -------------------------------------------------------------------------------------------------------------- output
ROWS_SHOWN, LETTERS_SHOWN = 40, 400  # failures that are listed, and letters of a message; --json has them all
NUMBERS = ("checks", "worst", "PyTorch", "cuDNN", "limit", "ratio")
LEGEND = (
    "worst: the error nearest to its limit, with the peers' errors there; ratio: the median of error / the peer's "
    "error (cuDNN's where it ran, else PyTorch's)"
)


def by_run(rows):
    """Group rows that compare results: (engine, cell, schedule, dtype) -> rows, sorted."""
    groups = {}
    for row in filter(compared, rows):
        dtype = next((dtype for dtype in precision.DTYPES if dtype in row["options"].split()), "-")
        groups.setdefault((row["engine"], row["cell"], row["schedule"], dtype), []).append(row)
    return dict(sorted(groups.items()))


def number(value):
    return "-" if value is None else f"{value:.1e}"


def group_cells(rows):
    """Return the table cells that summarize rows: "result", NUMBERS and "at"."""
    worst = max(rows, key=lambda row: (not row["ok"], accuracy.share_of_limit(row["error"], row["limit"])))
    ratios = sorted(row["ratio"] for row in rows if row["ratio"] is not None and row["ratio"] == row["ratio"])
    ratio = f"{ratios[(len(ratios) - 1) // 2]:.2f}" if ratios else "-"
    errors = (number(worst[name]) for name in ("error", "torch_error", "cudnn_error", "limit"))
    result = "ok" if all(row["ok"] for row in rows) else "FAILED"
    return [result, str(len(rows)), *errors, ratio, worst["quantity"]]


def print_tables(rows):
    """Print a line per engine, cell, schedule and dtype, and the failures."""
    columns = ["result", "engine", "cell", "schedule", "dtype", *NUMBERS, "at"]
    lines = [[cells[0], *key, *cells[1:]] for key, some in by_run(rows).items() for cells in [group_cells(some)]]
    kept = [i for i, column in enumerate(columns) if column not in NUMBERS or any(line[i] != "-" for line in lines)]
    shown = [columns[i] for i in kept], [[line[i] for i in kept] for line in lines], NUMBERS
    console.print_table("Error against float64", *shown)
    console.say_wrapped(LEGEND)
    if failures := [row for row in rows if not row["ok"]]:
        shown, names = [], ("cell", "engine", "schedule", "options", "mode", "quantity")
        for row in failures[:ROWS_SHOWN]:
            happened = row["message"] or f"{number(row['error'])} > {number(row['limit'])}"
            shown.append([*map(row.get, names), textwrap.shorten(happened, LETTERS_SHOWN, placeholder=" ...")])
        more = f" (the first {ROWS_SHOWN} of {len(failures)})" if len(failures) > ROWS_SHOWN else ""
        console.print_table(f"Failures{more}", [*names, "what happened"], shown)


def print_summary(rows, seconds):
    refusals = {}
    for row in itertools.filterfalse(compared, rows):
        refusals.setdefault((row["schedule"], row["engine"]), []).append(row)
    for (schedule, engine), refused in refusals.items():
        such = "such as {cell} {options}: {message}".format(**refused[0])
        console.say_wrapped(f"{schedule} refuses {len(refused)} cases on {engine}, {such}")
    if any(row["engine"] == "cuda" for row in rows) and (reason := cudnn.why_not()):
        console.say_wrapped(f"without cuDNN: {reason}")
    failed, total = sum(not row["ok"] for row in rows), sum(map(compared, rows))
    against = ["float64"] + ["cuDNN"] * any(row["cudnn_error"] is not None for row in rows)
    against += ["PyTorch" if contender.installed("torch") else "nothing else (PyTorch is not installed)"]
    how = f"{failed} of {total} comparisons FAILED" if failed else f"all {total} passed"
    where = ", ".join(sorted({row["engine"] for row in rows})) or "no engine"
    console.say_wrapped(f"numbarnn check: {how}, on {where}, against {' and '.join(against)}, in {seconds:.0f} s")
