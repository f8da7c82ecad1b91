"""`numbarnn check`: every engine that runs here, forward and backward, against float64, cuDNN and PyTorch.

A case is run by every schedule in up to three modes: inference, single steps (inference, one call per step, the state
carried from call to call) and training: where random numbers are drawn two calls, of which the second is compared.
Every quantity of every mode is one comparison. An exception becomes a failed comparison; a case that a schedule's
planner refuses (a RuntimeError with the reason) is counted, and is no failure. On CUDA cuDNN runs the same instances
(`cudnn_peer`); what it refuses, or does otherwise, is noted in its words.
"""

import gc
import time
import traceback
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np

from numbarnn import engines
from numbarnn.bench import console
from numbarnn.bench.cases import cases, spreads
from numbarnn.bench.check import accuracy, summary
from numbarnn.bench.check.accuracy import engine_failure
from numbarnn.bench.check.child import simulator_checks
from numbarnn.bench.check.expected import Expected, dropout_masks, flat_weights
from numbarnn.bench.peers import cudnn, peers
from numbarnn.common import install
from numbarnn.cuda.compiler import simulated
from numbarnn.engines.cpu.thread_pool import default_threads
from numbarnn.schedules import SCHEDULES
from numbarnn.schedules.persistent.schedule import NAME as PERSISTENT

DEVICES = ("cpu", "sim", "cuda")
QUICK = (
    "a small subset, in about 20 seconds on two cores: on every engine every schedule has every cell, forward and "
    "backward, and every option; sizes cross every boundary of the engines (tiles, chunks, blocks, threads). In the "
    "simulator schedules take turns in a cell's options. It leaves out most pairs of options, long sequences, "
    "gradients of one output alone, and some dtypes of some cells: what exactly, it says"
)
YOUNG_OBJECTS = 50_000  # that Python lets come before it looks for garbage: compiling makes a million that live on
DROPOUT_SIGMAS = 5  # a right generator is further from its rate once in 1.7 million masks


def add_arguments(parser):
    add, cells, schedules = parser.add_argument, cases.ALL_CELLS, ("auto", *SCHEDULES)
    engines = "the engine to check; all (the default): CPU, simulator, and CUDA where there is a GPU"
    add("--device", choices=[*DEVICES, "all"], default="all", help=engines)
    from_all = {"type": console.comma_list(cells), "default": list(cells), "metavar": "CELL[,CELL]"}
    add("--cell", **from_all, help=f"from {', '.join(cells)}; default all")
    from_all = {"type": console.comma_list(schedules), "default": list(SCHEDULES), "metavar": "SCHEDULE[,SCHEDULE]"}
    default = "default all but auto, which takes one of them"
    add("--schedule", **from_all, help=f"from {', '.join(schedules)}; {default}")
    add("--quick", action="store_true", help=QUICK)
    add("--verbose", action="store_true", help="print the worst comparison of every case")
    bars = "auto: bars on a terminal; lines: 'progress DONE TOTAL' on the error stream"
    add("--progress", choices=["auto", "lines", "none"], default="auto", help=bars)
    console.add_json_argument(parser, "one row per comparison")


def run(args):
    """Runs the checks, prints tables and a summary; returns 0 when every comparison passed, else 1."""
    begin, comparisons = time.perf_counter(), []
    (here, simulator), chosen = plan_devices(args.device), (args.cell, args.schedule, args.quick)
    # At these sizes more threads only wait for each other.
    with console.Progress(args.progress) as progress, peers.torch_threads(1), ExitStack() as afterwards:
        afterwards.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(YOUNG_OBJECTS)  # saves a tenth of the time
        # The quick check takes as long on the CPU, where it compiles, as in the simulator.
        processes = 1 if args.quick else default_threads()
        shares = shares_of_cells(args.cell, args.schedule, processes) if simulator else ()
        with simulator_checks(shares, args.schedule, args.quick, progress) as simulated:
            for device in here:
                comparisons += check_device(device, *chosen, progress)
            comparisons += simulated()
    seconds = time.perf_counter() - begin
    lacks = left_out(here + ["sim"] * simulator, args.cell, args.schedule) if args.quick else ""
    summary.print_comparisons(comparisons, args.verbose)
    if lacks:
        console.say_wrapped(lacks)
    if args.device == "all" and (problem := install.simulator_lacks()):
        console.say_wrapped(f"sim is left out: {problem}")
    summary.print_summary(comparisons, seconds)
    if args.json:
        console.write_json(args.json, [comparison.as_row() for comparison in comparisons])
    failed = any(not comparison.ok for comparison in comparisons)
    return 1 if failed or not any(comparison.compared for comparison in comparisons) else 0


def plan_devices(wanted):
    """(devices to check in this process, whether the simulator is checked in processes of its own).

    A process that was started to be the simulator starts no others, whatever is missing. If "all" was asked for, the
    simulator is left out where it lacks something.
    """
    available = engines.available()
    others = "sim" not in available and not simulated()
    if wanted == "all":
        return [device for device in DEVICES if device in available], others and install.simulator_lacks() is None
    return ([], True) if wanted == "sim" and others else ([wanted], False)


def shares_of_cells(cells, schedules, count):
    """The cells in at most `count` lists, for which the simulator takes about as long each."""
    work = {cell: sum(len(wanted) for _, wanted in plan_cases("sim", [cell], schedules, False)) for cell in cells}
    shares = [[] for _ in range(min(count, len(cells)))]
    for cell in sorted(cells, key=work.get, reverse=True):
        min(shares, key=lambda share: sum(map(work.get, share))).append(cell)
    return shares


def check_device(device, cells, schedules, quick, progress):
    """Every comparison of one device. The simulator is slow: there schedules after the first get the quick cases."""
    try:
        engines.get(device)
    except Exception as exception:
        return [engine_failure(device, f"{type(exception).__name__}: {exception}")]
    todo = plan_cases(device, cells, schedules, quick)
    progress.start(device, sum(len(wanted) for _, wanted in todo))
    with_cudnn = device == "cuda" and cudnn.why_not() is None
    checked = (check_case(case, device, wanted, with_cudnn, progress) for case, wanted in todo)
    return [comparison for comparisons in checked for comparison in comparisons]


def plan_cases(device, cells, schedules, quick):
    """Pairs of a case and the schedules that run it. The simulator is slow: see `check_device`."""
    if quick and device == "sim":
        runs, boundaries = (
            [(_run_by(name, case), name) for cell in cells for case in cases_of(cell, device) for name in schedules]
            for cases_of in (spreads.quick, spreads.boundary_cases)
        )
        by_case = {}
        for case, name in spreads.covering(runs, boundaries) + boundaries:
            by_case.setdefault(case, []).append(name)
        return list(by_case.items())
    sizes = {schedule: "quick" if quick or (device == "sim" and schedule != schedules[0]) else "full"
             for schedule in schedules}  # fmt: skip
    todo = []
    for cell in cells:
        for size in dict.fromkeys(sizes.values()):
            wanted = [schedule for schedule in schedules if sizes[schedule] == size]
            todo += [(case, wanted) for case in spreads.spread(cell, size, device)]
        todo += [(case, schedules) for case in spreads.boundary_cases(cell, device)]
        todo += [(case, schedules) for case in spreads.half_precision(cell, "quick" if quick else "full")]
    return todo


def _run_by(schedule, case):
    """The case as a schedule runs it: persistent kernels do not compute in float64."""
    return replace(case, dtype="float32") if schedule == PERSISTENT and case.dtype == "float64" else case


def left_out(devices, cells, schedules):
    """What --quick leaves out on some devices, in words."""
    said = []
    for device in devices:
        quick, full = (plan_cases(device, cells, schedules, size) for size in (True, False))
        said.append(f"on {device} {spreads.left_out(quick, full)}")
    return f"--quick is {'. '.join(said)}. numbarnn check without --quick runs them all."


def check_case(case, device, schedules=("auto",), with_cudnn=False, progress=None, with_torch=True):
    """Every comparison of one case on one device with these schedules, and what there is to note about peers."""
    comparisons, expected = [], None
    for schedule in schedules:
        comparer = Comparer(case, device, schedule)
        with comparer.catching("inference"):
            expected = expected or Expected(cases.make_instance(case), with_cudnn, with_torch)
            run_modes(comparer, expected)
        comparisons += comparer.comparisons
        if progress is not None:
            progress.update(device)
    about_peers = Comparer(case, device, "-")
    for name, said in expected.notes() if expected is not None else ():
        about_peers.add(accuracy.PEER, name, message=said, ok=True)
    return comparisons + about_peers.comparisons


def run_modes(comparer, expected):
    """Runs one case with one schedule in every mode, and compares."""
    instance, case = expected.instance, expected.instance.case
    layer = cases.make_layer(case, comparer.device, instance.parameters, comparer.schedule)
    if comparer.refuses(layer, instance):
        return
    if (wanted := flat_weights(instance)) is not None:
        comparer.compare_weights(layer, instance, wanted)
    returned = layer(*peers.inputs(layer, instance)[:2], **peers.call_options(instance))
    comparer.compare("inference", peers.numbarnn_outputs(layer, instance, *returned), expected.results())
    if case.T > 1 and not case.bidirectional and case.lengths != "packed":
        with comparer.catching("single steps"):
            comparer.compare("single steps", run_single_steps(layer, instance), expected.results())
    with comparer.catching("training"):
        results, masks = run_training(layer, instance)
        for call in range(case.training_calls) if case.masked else ():
            comparer.compare_masks(masks[call], dropout_masks(case, call), call)
        expectation = expected.of_training()
        comparer.compare("training", results, expectation, needed=expectation.truth)


def run_single_steps(layer, instance):
    """y, hy and cy of T calls of one step each; a sequence that is over has length 0 in its last calls."""
    x, state, _ = peers.inputs(layer, instance)
    axis, ys = int(instance.case.batch_first), []
    for t in range(instance.case.T):
        step = slice(t, t + 1)
        y, state = layer(x[:, step] if axis else x[step], state, **peers.call_options(instance, step))
        ys.append(peers.to_host(layer, y))
    y = layer.engine.from_host(np.concatenate(ys, axis=axis))
    return peers.numbarnn_outputs(layer, instance, y, state)


def run_training(layer, instance):
    """(results, masks): every result of forward and backward, and the dropout masks of each forward call, or None.

    A case that draws random numbers, or accumulates, makes two calls; results are those of the second. Where the case
    accumulates, gradients of parameters are added to those of the first.
    """
    case, options = instance.case, peers.call_options(instance)
    x, state, dy = peers.inputs(layer, instance)
    dstate = peers.to_engine_state(layer, instance.dhy, instance.dcy)
    dw, masks = None, []
    for _ in range(case.training_calls):
        y, final, tape = layer.forward(x, state, **options)
        masks.append(layer.dropout_masks(tape) if case.masked else None)
        results = peers.numbarnn_outputs(layer, instance, y, final)
        if not case.forward_only:
            gradients = layer.backward(tape, dy, dstate, dw=dw)
            dw = gradients.weights if case.accumulate else None
            results |= peers.numbarnn_gradients(layer, instance, gradients)
    return results, masks


class Comparer:
    """Collects the comparisons of one case on one device with one schedule."""

    def __init__(self, case, device, schedule):
        self.case, self.device, self.schedule = case, device, schedule
        self.comparisons = []

    def add(self, mode, quantity, error=None, limit=None, **more):
        """Adds one comparison. Unless `ok` is given, it passes where no message is and the error is in the limit."""
        about = self.case.cell, self.case.options, self.device, self.schedule, mode, quantity
        more = {"ok": more.get("message") is None and error is not None and error <= limit} | more
        if more.get("message") is None and error != error:
            more["message"] = "the result holds NaN"
        self.comparisons.append(accuracy.Comparison(*about, error, limit, uses=self.case.uses, **more))

    def refuses(self, layer, instance):
        """Whether the schedule cannot run the instance; then that is the case's only comparison, with the reason."""
        try:
            layer.explain(peers.input_shape(instance))
        except RuntimeError as reason:
            self.add(accuracy.REFUSED, "plan", message=str(reason), ok=True)
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

    def compare(self, mode, results, expectation, needed=("y",)):
        """Compares every quantity of `results` with float64; quantities in `needed` must be there."""
        for quantity in needed:
            if quantity not in results:
                self.add(mode, quantity, message="no result for it")
        for quantity, value in results.items():
            message, expected = "a result that was not expected", expectation.truth.get(quantity)
            if expected is None or (message := accuracy.shape_problem(value, expected, self.case.dtype)):
                self.add(mode, quantity, message=message)
                continue
            errors = {name: accuracy.trusted(self.case, e) for name, e in expectation.errors(quantity).items()}
            peer = errors["torch_error"] if errors["cudnn_error"] is None else errors["cudnn_error"]
            limit = accuracy.limit(self.case, peer)
            self.add(mode, quantity, accuracy.error(value, expected), limit, **errors)

    def compare_weights(self, layer, instance, wanted):
        """The layer's one buffer of parameters holds them bit for bit in cuDNN's order; names come in PyTorch's."""
        weights = layer.engine.to_host(layer.weights)
        message = accuracy.shape_problem(weights, wanted, self.case.dtype)
        if list(layer.parameters) != list(instance.parameters):
            message = f"parameters are {', '.join(layer.parameters)}; expected {', '.join(instance.parameters)}"
        self.add("inference", "weights", None if message else accuracy.error(weights, wanted), 0.0, message=message)

    def compare_masks(self, masks, wanted, call):
        """The masks of a training call are those of the independent generator, which gives about the wanted rate."""
        values = accuracy.flat(masks)
        wrong = np.abs(values - accuracy.flat(wanted))
        self.add("training", f"dropout mask of call {call}", float(wrong.max()), accuracy.eps(self.case.dtype))
        keep = 1 - self.case.dropout
        error = abs(float(np.mean(values != 0)) - keep)
        limit = DROPOUT_SIGMAS * float(np.sqrt(keep * (1 - keep) / values.size))
        self.add("training", f"dropout rate of call {call}", error, limit)
