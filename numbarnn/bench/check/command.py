"""`numbarnn check`: every engine that runs here, forward and backward, against float64, cuDNN and PyTorch.

A case is run by every schedule in up to three modes: inference, single steps (inference, one call per step, the state
carried from call to call) and training: where random numbers are drawn two calls, of which the second is compared.
Every quantity of every mode is one comparison. An exception becomes a failed comparison; a case that a schedule's
planner refuses (a RuntimeError with the reason) is counted, and is no failure. On CUDA cuDNN runs the same instances
(`cudnn_peer`); what it refuses, or does otherwise, is noted in its words.
"""

import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

import numpy as np

from numbarnn import engines
from numbarnn.bench import console
from numbarnn.bench.cases import cases, spreads
from numbarnn.bench.check import accuracy, summary
from numbarnn.bench.check.accuracy import Comparison, engine_failure
from numbarnn.bench.check.expected import Expected, errors_of
from numbarnn.bench.peers import cudnn, peers
from numbarnn.bench.peers.torch_peer import torch_threads
from numbarnn.common import install
from numbarnn.cuda.compiler import simulated
from numbarnn.engines.cpu.thread_pool import default_threads
from numbarnn.schedules import SCHEDULES

DEVICES = ("cpu", "sim", "cuda")
QUICK = (
    "a small subset, in about 20 seconds on two cores: on every engine every schedule has every cell, forward and "
    "backward, and every option; sizes cross every boundary of the engines (tiles, chunks, blocks, threads). In the "
    "simulator schedules take turns in a cell's options. It leaves out most pairs of options, long sequences, "
    "gradients of one output alone, and some dtypes of some cells"
)
TIMEOUT_S = 1200  # of a simulator's process: about ten times what the full check takes on two slow cores


def add_arguments(parser):
    """Options of `numbarnn check`."""
    add, cells, schedules = parser.add_argument, cases.ALL_CELLS, ("auto", *SCHEDULES)
    engines = "the engine to check; all (the default): CPU, simulator, and CUDA where there is a GPU"
    add("--device", choices=[*DEVICES, "all"], default="all", help=engines)
    console.add_list_argument(parser, "--cell", cells, list(cells))
    console.add_list_argument(parser, "--schedule", schedules, list(SCHEDULES))
    add("--quick", action="store_true", help=QUICK)
    add("--verbose", action="store_true", help="print the worst comparison of every case")
    console.add_json_argument(parser, "one row per comparison")


def run(args):
    """Run the checks, print tables and a summary; returns 0 when every comparison passed, else 1."""
    begin, comparisons = time.perf_counter(), []
    (here, simulator), chosen = plan_devices(args.device), (args.cell, args.schedule, args.quick)
    # The quick check takes as long on the CPU, where it compiles, as in the simulator.
    shares = shares_of_cells(args.cell, args.schedule, 1 if args.quick else default_threads()) if simulator else ()
    # At these sizes more threads only wait for each other.
    with console.Progress() as progress, torch_threads(1):
        with ThreadPoolExecutor(max(1, len(shares))) as pool:
            simulated_ones = pool.map(lambda cells: check_simulated(cells, args.schedule, args.quick), shares)
            for device in here:
                comparisons += check_device(device, *chosen, progress)
            comparisons += chain.from_iterable(simulated_ones)
    seconds = time.perf_counter() - begin
    summary.print_comparisons(comparisons, args.verbose)
    if args.device == "all" and (problem := install.simulator_lacks()):
        console.say_wrapped(f"sim is left out: {problem}")
    summary.print_summary(comparisons, seconds)
    if args.json:
        console.write_json(args.json, [comparison.as_row() for comparison in comparisons])
    failed = any(not comparison.ok for comparison in comparisons)
    return 1 if failed or not any(comparison.compared for comparison in comparisons) else 0


# -------------------------------------------------------------------------------------------------------- what is run
def plan_devices(wanted):
    """Return (devices to check in this process, whether the simulator is checked in processes of its own).

    A process that was started to be the simulator starts no others, whatever is missing. If "all" was asked for, the
    simulator is left out where it lacks something.
    """
    available = engines.available()
    others = "sim" not in available and not simulated()
    if wanted == "all":
        return [device for device in DEVICES if device in available], others and install.simulator_lacks() is None
    return ([], True) if wanted == "sim" and others else ([wanted], False)


def shares_of_cells(cells, schedules, count):
    """Return the cells in at most `count` lists, for which the simulator takes about as long each."""
    work = {cell: sum(len(wanted) for _, wanted in plan_cases("sim", [cell], schedules, False)) for cell in cells}
    shares = [[] for _ in range(min(count, len(cells)))]
    for cell in sorted(cells, key=work.get, reverse=True):
        min(shares, key=lambda share: sum(map(work.get, share))).append(cell)
    return shares


def plan_cases(device, cells, schedules, quick):
    """Return pairs of a case and the schedules that run it.

    The simulator is slow: there schedules after the first get the quick cases, and take turns in a quick check.
    """
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
        more = spreads.boundary_cases(cell, device) + spreads.half_precision(cell, "quick" if quick else "full")
        todo += [(case, schedules) for case in more]
    return todo


def _run_by(schedule, case):
    """Return the case as a schedule runs it: persistent kernels do not compute in float64."""
    return replace(case, dtype="float32") if schedule == "persistent" and case.dtype == "float64" else case


def check_simulated(cells, schedules, quick):
    """Return the comparisons of some cells in the simulator; one failed comparison where its process did not start,
    died or took too long."""
    arguments = ["check", "--device", "sim", "--cell", ",".join(cells)]
    arguments += ["--schedule", ",".join(schedules), *(["--quick"] if quick else [])]
    code, rows, said = console.run_simulated(arguments, TIMEOUT_S)
    if code in (0, 1) and rows is not None:
        return [Comparison.from_row(row) for row in rows]
    return [engine_failure("sim", f"the simulator's process ended without results: {said}")]


# -------------------------------------------------------------------------------------------------------- how it is run
def check_device(device, cells, schedules, quick, progress):
    """Return every comparison of one device."""
    try:
        engines.get(device)
    except Exception as exception:
        return [engine_failure(device, f"{type(exception).__name__}: {exception}")]
    todo, comparisons = plan_cases(device, cells, schedules, quick), []
    with_cudnn = device == "cuda" and cudnn.why_not() is None
    progress.start(device, len(todo))
    for case, wanted in todo:
        comparisons += check_case(case, device, wanted, with_cudnn)
        progress.update(device)
    return comparisons


def check_case(case, device, schedules=("auto",), with_cudnn=False, with_torch=True):
    """Return every comparison of one case on one device with these schedules, and what there is to note about peers."""
    comparisons, expected = [], None
    for schedule in schedules:
        comparer = Comparer(case, device, schedule)
        with comparer.catching("inference"):
            expected = expected or Expected(cases.make_instance(case), with_cudnn, with_torch)
            run_modes(comparer, expected)
        comparisons += comparer.comparisons
    about_peers = Comparer(case, device, "-")
    for name, said in expected.notes() if expected is not None else ():
        about_peers.add(accuracy.PEER, name, message=said, ok=True)
    return comparisons + about_peers.comparisons


def run_modes(comparer, expected):
    """Run one case with one schedule in every mode, and compare."""
    instance, case = expected.instance, expected.instance.case
    layer = cases.make_layer(case, comparer.device, instance.parameters, comparer.schedule)
    T, B, width = instance.x.shape
    try:
        layer.explain((B, T, width) if case.batch_first else (T, B, width))
    except RuntimeError as reason:
        return comparer.add(accuracy.REFUSED, "plan", message=str(reason), ok=True)
    returned = layer(*peers.inputs(layer, instance)[:2], **peers.call_options(instance))
    comparer.compare("inference", peers.numbarnn_outputs(layer, instance, *returned), expected.results())
    if case.T > 1 and not case.bidirectional and case.lengths != "packed":
        with comparer.catching("single steps"):
            comparer.compare("single steps", run_single_steps(layer, instance), expected.results())
    with comparer.catching("training"):
        expectation = expected.of_training()
        comparer.compare("training", run_training(layer, instance), expectation, needed=expectation["truth"])


def run_single_steps(layer, instance):
    """Return y, hy and cy of T calls of one step each; a sequence that is over has length 0 in its last calls."""
    x, state, _ = peers.inputs(layer, instance)
    axis, ys = int(instance.case.batch_first), []
    for t in range(instance.case.T):
        step = slice(t, t + 1)
        y, state = layer(x[:, step] if axis else x[step], state, **peers.call_options(instance, step))
        ys.append(peers.to_host(layer, y))
    return peers.numbarnn_outputs(layer, instance, layer.engine.from_host(np.concatenate(ys, axis=axis)), state)


def run_training(layer, instance):
    """Return every result of forward and backward.

    A case that draws random numbers, or accumulates, makes two calls; results are those of the second. Where the case
    accumulates, gradients of parameters are added to those of the first.
    """
    case, options = instance.case, peers.call_options(instance)
    x, state, dy = peers.inputs(layer, instance)
    dstate = peers.to_engine_state(layer, instance.dhy, instance.dcy)
    dw = None
    for _ in range(case.training_calls):
        y, final, tape = layer.forward(x, state, **options)
        results = peers.numbarnn_outputs(layer, instance, y, final)
        if not case.forward_only:
            gradients = layer.backward(tape, dy, dstate, dw=dw)
            dw = gradients.weights if case.accumulate else None
            results |= peers.numbarnn_gradients(layer, instance, gradients)
    return results


class Comparer:
    """Collects the comparisons of one case on one device with one schedule."""

    def __init__(self, case, device, schedule):
        self.case, self.device, self.schedule, self.comparisons = case, device, schedule, []

    def add(self, mode, quantity, error=None, limit=None, **more):
        """Add one comparison. Unless `ok` is given, it passes where no message is and the error is in the limit."""
        about = self.case.cell, self.case.options, self.device, self.schedule, mode, quantity
        more = {"ok": more.get("message") is None and error is not None and error <= limit} | more
        if more.get("message") is None and error != error:
            more["message"] = "the result holds NaN"
        self.comparisons.append(Comparison(*about, error, limit, uses=self.case.uses, **more))

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
        """Compare every quantity of `results` with those of `Expected`; quantities in `needed` must be there."""
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
            told = {f"{peer}_error": error for peer, error in errors.items()}
            self.add(mode, quantity, accuracy.error(value, wanted), limit, **told)
