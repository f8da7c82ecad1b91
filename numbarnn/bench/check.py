"""`numbarnn check`: every engine that runs here, forward and backward, against float64 and PyTorch.

A case is run by every schedule in up to three modes: inference, single steps (inference, one call per step, the state
carried from call to call) and training. Every quantity of every mode is one comparison. An exception becomes a failed
comparison; a case that a schedule's planner refuses (a RuntimeError with the reason) is counted, and is no failure.
"""

import time
import traceback
from contextlib import contextmanager, nullcontext

import numpy as np

from numbarnn.bench import accuracy, cases, peers, report
from numbarnn.bench.accuracy import Comparison
from numbarnn.cells import precision

DEVICES = ("cpu", "sim", "cuda")
HALF_DEVICES = ("sim", "cuda")  # whose engines take float16 and bfloat16
ROWS_SHOWN = 40  # failures printed one by one; --json has them all
DROPOUT_SIGMAS = 5  # a right generator is further from its rate once in 1.7 million masks


def add_arguments(parser):
    """Adds the arguments of `numbarnn check`."""
    from numbarnn.schedules import SCHEDULES

    parser.add_argument(
        "--device",
        choices=[*DEVICES, "all"],
        default="all",
        help="the engine to check; all (the default): CPU, simulator, and CUDA where there is a GPU",
    )
    parser.add_argument(
        "--cell",
        type=report.comma_list(cases.CELLS),
        default=list(cases.CELLS),
        metavar="CELL[,CELL]",
        help=f"from {', '.join(cases.CELLS)}; default all",
    )
    parser.add_argument(
        "--schedule",
        type=report.comma_list(("auto", *SCHEDULES)),
        default=list(SCHEDULES),
        metavar="SCHEDULE[,SCHEDULE]",
        help=f"from auto, {', '.join(SCHEDULES)}; default all but auto, which takes one of them",
    )
    parser.add_argument("--quick", action="store_true", help="a small subset that still uses every option")
    parser.add_argument("--verbose", action="store_true", help="print the worst comparison of every case")
    parser.add_argument(
        "--progress",
        choices=["auto", "lines", "none"],
        default="auto",
        help="auto: bars on a terminal; lines: 'progress DONE TOTAL' on the error stream",
    )
    report.add_json_argument(parser, "one row per comparison")


def run(args):
    """Runs the checks, prints tables and a summary; returns 0 when every comparison passed, else 1."""
    from numbarnn.bench.child import SimulatorCheck

    begin = time.perf_counter()
    here, simulator = plan_devices(args.device)
    # At these sizes more threads only wait for each other.
    with report.Progress(args.progress) as progress, peers.torch_threads(1):
        child_check = SimulatorCheck(args.cell, args.schedule, args.quick, progress) if simulator else nullcontext()
        with child_check as child:
            comparisons = []
            for device in here:
                comparisons += check_device(device, args.cell, args.schedule, args.quick, progress)
            if child is not None:
                comparisons += child.result()
    if args.json:
        report.write_json(args.json, [comparison.as_row() for comparison in comparisons])
    print_comparisons(comparisons, args.verbose)
    failed = sum(not comparison.ok for comparison in comparisons)
    print_summary(comparisons, failed, time.perf_counter() - begin)
    return 1 if failed or all(comparison.refused for comparison in comparisons) else 0


def plan_devices(wanted):
    """Which devices to check in this process, and whether the simulator gets a process of its own."""
    from numbarnn import engines

    available = engines.available()
    if wanted == "all":
        here = [device for device in DEVICES if device in available]
        return here, "sim" not in available
    return ([], True) if wanted == "sim" and "sim" not in available else ([wanted], False)


def check_device(device, cells, schedules, quick, progress):
    """Every comparison of one device. The simulator is slow: there schedules after the first get the quick cases."""
    from numbarnn import engines

    try:
        engines.get(device)
    except Exception as exception:
        return [engine_failure(device, f"{type(exception).__name__}: {exception}")]
    todo = []
    for schedule in schedules:
        size = "quick" if quick or (device == "sim" and schedule != schedules[0]) else "full"
        todo += [(case, schedule) for cell in cells for case in cases.spread(cell, size)]
        if device in HALF_DEVICES:
            todo += [(case, schedule) for cell in cells for case in cases.half_precision(cell)]
    progress.start(device, len(todo))
    comparisons = []
    for case, schedule in todo:
        comparisons += check_case(case, device, schedule)
        progress.update(device)
    return comparisons


def engine_failure(device, message):
    """The comparison that stands for an engine that did not start."""
    return Comparison("-", "-", device, "-", "-", "engine", None, None, ok=False, message=message)


def check_case(case, device, schedule="auto"):
    """Every comparison of one case on one device with one schedule."""
    comparer = Comparer(case, device, schedule)
    with comparer.catching("inference"):
        problem = cases.make_problem(case)
        layer = cases.make_layer(case, device, problem.parameters, schedule)
        if comparer.refuses(layer, problem):
            return comparer.comparisons
        truth, torch = expected_results(problem)
        comparer.compare("inference", run_inference(layer, problem), truth, torch)
        if case.T > 1 and not case.bidirectional:
            with comparer.catching("single steps"):
                comparer.compare("single steps", run_single_steps(layer, problem), truth, torch)
        with comparer.catching("training"):
            results, masks = run_training(layer, problem)
            if case.masked:
                comparer.compare_masks(masks)
                truth, torch = expected_results(problem, masks)
            if case.accumulate:
                truth, torch = doubled(truth, problem.parameters), doubled(torch, problem.parameters)
            comparer.compare("training", results, truth, torch, needed=truth)
    return comparer.comparisons


class Comparer:
    """Collects the comparisons of one case on one device with one schedule."""

    def __init__(self, case, device, schedule):
        self.case, self.device, self.schedule = case, device, schedule
        self.comparisons = []

    def add(self, mode, quantity, error=None, limit=None, torch_error=None, message=None):
        """Adds one comparison; it passes when there is no message and the error is at most the limit."""
        ok = message is None and error is not None and error <= limit
        if message is None and error != error:
            message = "the result holds NaN"
        about = self.case.cell, self.case.options, self.device, self.schedule, mode, quantity
        self.comparisons.append(Comparison(*about, error, limit, ok, torch_error, message))

    def refuses(self, layer, problem):
        """Whether the schedule cannot run the problem; then that is the case's only comparison, with the reason."""
        try:
            layer.explain(peers.input_shape(problem))
        except RuntimeError as reason:
            about = self.case.cell, self.case.options, self.device, self.schedule, accuracy.REFUSED, "plan"
            self.comparisons.append(Comparison(*about, None, None, ok=True, message=str(reason)))
            return True
        return False

    @contextmanager
    def catching(self, mode):
        """A context in which an exception becomes a failed comparison: what it was, and where."""
        try:
            yield
        except Exception as exception:
            place = traceback.extract_tb(exception.__traceback__)[-1]
            message = f"{type(exception).__name__}: {exception} ({place.filename}:{place.lineno})"
            self.add(mode, "exception", message=message)

    def compare(self, mode, results, truth, torch, needed=("y",)):
        """Compares every quantity of `results` with float64; quantities in `needed` must be there."""
        for quantity in needed:
            if quantity not in results:
                self.add(mode, quantity, message="no result for it")
        for quantity, value in results.items():
            if quantity not in truth:
                self.add(mode, quantity, message="a result that was not expected")
                continue
            expected = truth[quantity]
            message = accuracy.shape_problem(value, expected, self.case.dtype)
            if message:
                self.add(mode, quantity, message=message)
                continue
            torch_error = None if torch is None else accuracy.error(torch[quantity], expected)
            limit = accuracy.limit(self.case, torch_error)
            self.add(mode, quantity, accuracy.error(value, expected), limit, torch_error)

    def compare_masks(self, masks):
        """The masks hold 0 and 1/(1-p) only, in numbers that a fair generator of that rate may give."""
        keep = 1 - self.case.dropout
        values = accuracy.flat(masks)
        wrong = np.minimum(np.abs(values), np.abs(values * keep - 1))
        self.add("training", "dropout mask", float(wrong.max()), accuracy.eps(self.case.dtype))
        error = abs(float(np.mean(values != 0)) - keep)
        self.add(
            "training",
            "dropout rate",
            error,
            DROPOUT_SIGMAS * float(np.sqrt(keep * (1 - keep) / values.size)),
        )


# ---- what is expected ----


def expected_results(problem, masks=None):
    """The float64 reference's results by quantity, and PyTorch's (None where it is not installed)."""
    torch = peers.torch_results(problem, masks) if peers.installed("torch") else None
    return reference_results(problem, masks), torch


def reference_results(problem, masks=None):
    """Results of `numbarnn.reference`, forward and backward, by quantity."""
    from numbarnn import reference

    forward = reference.forward(problem.case.cell, problem.x, problem.parameters, problem.h0, problem.c0, masks=masks)
    gradients = reference.backward(forward, problem.dy, problem.dhy, problem.dcy)
    results = {"y": forward.y, "hy": forward.hy, "dx": gradients.dx, "dhx": gradients.dhx}
    if problem.case.cell == "lstm":
        results |= {"cy": forward.cy, "dcx": gradients.dcx}
    return results | gradients.params


def doubled(results, parameters):
    """Results with the gradient of every parameter twice as large: two equal backward passes, added up."""
    if results is None:
        return None
    return {name: 2 * value if name in parameters else value for name, value in results.items()}


# ---- what numbarnn computes ----


def run_inference(layer, problem):
    """y, hy and cy of one call."""
    x, state = layer_inputs(layer, problem)
    return peers.numbarnn_outputs(layer, problem.case, *layer(x, state))


def run_single_steps(layer, problem):
    """y, hy and cy of T calls of one step each."""
    x, state = layer_inputs(layer, problem)
    axis, ys = int(problem.case.batch_first), []
    for t in range(problem.case.T):
        y, state = layer(x[:, t : t + 1] if axis else x[t : t + 1], state)
        ys.append(peers.to_host(layer, y))
    y = layer.engine.from_host(np.concatenate(ys, axis=axis))
    return peers.numbarnn_outputs(layer, problem.case, y, state)


def run_training(layer, problem):
    """Every result of forward and backward, and the dropout masks (None where there is no dropout)."""
    case = problem.case
    x, state = layer_inputs(layer, problem)
    dy, dstate = layer_gradients(layer, problem)
    dw = None
    if case.accumulate:
        _, _, tape = layer.forward(x, state)
        dw = layer.backward(tape, dy, dstate).weights
    y, final, tape = layer.forward(x, state)
    results = peers.numbarnn_outputs(layer, case, y, final)
    masks = layer.dropout_masks(tape) if case.masked else None
    gradients = layer.backward(tape, dy, dstate, dw=dw)
    return results | peers.numbarnn_gradients(layer, case, gradients), masks


def layer_inputs(layer, problem):
    """x and the initial state as the layer takes them."""
    x = peers.to_engine(layer, problem.case, problem.x)
    return x, peers.to_engine_state(layer, problem.case, problem.h0, problem.c0)


def layer_gradients(layer, problem):
    """dy and the final state's gradient as the layer takes them."""
    dy = peers.to_engine(layer, problem.case, problem.dy)
    return dy, peers.to_engine_state(layer, problem.case, problem.dhy, problem.dcy)


# ---- what is printed ----


def print_comparisons(comparisons, verbose=False):
    """A row per cell, engine, schedule and dtype (per case when verbose); then a table of failures."""
    groups = {}
    for comparison in comparisons:
        words = comparison.options.split()
        what = comparison.options if verbose else next((d for d in precision.DTYPES if d in words), "-")
        what = f"{what}, refused" if comparison.refused else what
        groups.setdefault((comparison.cell, comparison.engine, comparison.schedule, what), []).append(comparison)
    rows = []
    for key, group in groups.items():
        worst = max(group, key=lambda c: (not c.ok, not c.quantity.startswith("dropout"), c.share))
        failed = sum(not comparison.ok for comparison in group)
        result = "FAILED" if failed else "refused" if worst.refused else "ok"
        rows.append([*key, len(group), number(worst.error), number(worst.limit), worst.quantity, result])
    options = "options" if verbose else "dtype"
    columns = ["cell", "engine", "schedule", options, "checks", "worst", "limit", "at", "result"]
    right = ("checks", "worst", "limit")
    report.print_table("Error against float64", columns, rows, right, wrap=("options", "at"))
    failures = [comparison for comparison in comparisons if not comparison.ok]
    if failures:
        rows = [
            [
                c.cell,
                c.engine,
                c.options,
                c.mode,
                c.quantity,
                c.message or f"{number(c.error)} > {number(c.limit)}",
            ]
            for c in failures[:ROWS_SHOWN]
        ]
        more = f" (the first {ROWS_SHOWN} of {len(failures)})" if len(failures) > ROWS_SHOWN else ""
        columns = ["cell", "engine", "options", "mode", "quantity", "what happened"]
        report.print_table(f"Failures{more}", columns, rows, wrap=("options", "mode", "what happened"))


def number(value):
    """An error or a limit for the table."""
    return "-" if value is None else f"{value:.1e}"


def print_summary(comparisons, failed, seconds):
    """The last lines: what schedules refused, and the verdict."""
    engines = sorted({comparison.engine for comparison in comparisons})
    refused = [comparison for comparison in comparisons if comparison.refused]
    for schedule in dict.fromkeys(comparison.schedule for comparison in refused):
        own = [comparison for comparison in refused if comparison.schedule == schedule]
        report.say(f"{schedule} refuses {len(own)} cases, such as {own[0].cell} {own[0].options}: {own[0].message}")
    total = len(comparisons) - len(refused)
    against = "float64 and PyTorch" if peers.installed("torch") else "float64 (PyTorch is not installed)"
    verdict = f"{failed} of {total} comparisons FAILED" if failed else f"all {total} passed"
    on = ", ".join(engines) or "no engine"
    report.say(f"numbarnn check: {verdict}, on {on}, against {against}, in {seconds:.0f} s")
