"""The persistent schedule: all steps of several layers in one cooperative launch; see
`numbarnn.kernels.persistent.kernels`.

What runs where is the planner's (`planner.plan_launches`). Here its launches become plans, tables and kernel calls, on
the arrays of a pass. Products over all steps (x Wᵀ of a launch's first layer, dx, dW) stay tasks of their own.
"""

from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from numbarnn.common.precision import compute_dtype
from numbarnn.compile.storage import stored
from numbarnn.cuda.launch import LaunchConfig
from numbarnn.engines import Job
from numbarnn.kernels.persistent import kernels as persistent
from numbarnn.schedules.base import Schedule
from numbarnn.schedules.persistent import planner
from numbarnn.schedules.persistent.tables import Place, make_tables
from numbarnn.schedules.plan import BOTH, Plan, Task, covering, weight_tasks

NAME = "persistent"
PARTS = 8  # blocks of steps that a plan shows of each layer and direction; the kernel knows only steps
POLLS = 1 << 20  # looks at missing data before a kernel gives up, at least: about a second
POLLS_PER_STEP = 64  # more of them, as the first wait may be for all steps of other layers


def profile_of(problem):
    """The DeviceProfile to plan for.

    Raises:
        planner.DoesNotFit: the engine has no kernels, nothing is known of its device, or a step has to wait within.
    """
    if problem.engine == "cpu":
        raise planner.DoesNotFit(
            "schedule 'persistent' runs kernels on a GPU (device='cuda'), not on the CPU: use schedule='auto'"
        )
    if problem.projection or problem.cell.stages:
        raise planner.DoesNotFit(
            f"schedule 'persistent' has one product of h per step and then the cell, but this one, "
            f"{problem.cell.name!r}, has {_waits_within(problem)}: use schedule='wavefront' or 'stepwise'"
        )
    if problem.profile is None:
        raise planner.DoesNotFit("nothing is known of the device: the problem has no profile")
    return problem.profile


def _waits_within(problem):
    """For what blocks would wait within a step, as text."""
    cell, found = problem.cell, []
    if cell.num_sums:
        found.append("sums over units (such as layer norm)")
    if cell.num_products:
        products = cell.num_products + (cell.num_recurrent > 0)
        found.append(f"{products} products per step" if products > 1 else "a product of what a step computes first")
    if problem.projection:
        found.append("a projection")
    return " and ".join(found)


class Persistent(Schedule):
    """All steps of as many layers as fit in one launch."""

    name = NAME

    def launches(self, problem, backward):
        """The `planner.Launch`es of a pass.

        Raises:
            planner.DoesNotFit: with the numbers.
        """
        return planner.plan_launches(problem, profile_of(problem), backward)

    def plan_forward(self, problem):
        return _plan_forward(problem, self.launches(problem, False))

    def plan_backward(self, problem, weights=True, input_gradient=True):
        return _plan_backward(problem, self.launches(problem, True), weights, input_gradient)

    def plan_weights(self, problem):
        return _plan_weights(problem)

    def run_forward(self, work):
        if work.recurrent is not None:
            work.recurrent.join(work.flat)
        self._run(work, *_planned(work.problem, False), _ForwardLaunch)

    def run_backward(self, walk, weights=True):
        self._run(walk, *_planned(walk.problem, True, weights), _BackwardLaunch)

    def _run(self, work, plan, launches, kind):
        """The plan's tasks as jobs of the engine; all "steps" of a launch's layers are one."""
        work.may_fail()
        calls = [kind(work, launch) for launch in launches]
        for task in plan.last_of_each:
            if task.kind != "steps":
                work.make_room(task)
        for call in calls:
            call.make_room()
        key = (plan, *work.facts())
        work.engine.run_jobs(lambda: _jobs(work, plan, calls), key, work.arrays())
        for call in calls:
            call.forget()
        work.finish()


def _jobs(work, plan, calls):
    """A `Job` per task of the plan, but one per launch for all "steps" tasks of its layers; and the pass's copies."""
    launch_of = {layer: n for n, call in enumerate(calls) for layer in range(call.launch.first, call.launch.last)}
    jobs, job_of_task, job_of_launch = [], {}, {}
    for task in plan.tasks:
        if task.kind != "steps":
            job_of_task[task] = len(jobs)
            needs = tuple(dict.fromkeys(job_of_task[need] for need in task.needs))
            jobs.append(Job(task.lane, needs, partial(work.bind, task)))
        elif launch_of[task.layer] not in job_of_launch:
            number = launch_of[task.layer]
            steps = [task for task in plan.tasks if task.kind == "steps" and launch_of[task.layer] == number]
            needs = {job_of_task[need] for task in steps for need in task.needs if need not in steps}
            job_of_launch[number] = len(jobs)
            job_of_task |= dict.fromkeys(steps, len(jobs))
            jobs.append(Job(("launches",), tuple(sorted(needs)), calls[number].bind))
    return work.between_copies(jobs, sorted(job_of_launch.values()))


SCHEDULE = Persistent()


@lru_cache(maxsize=256)
def _planned(problem, backward, weights=True):
    """(plan, launches) of a pass."""
    plan = SCHEDULE.plan_backward(problem, weights) if backward else SCHEDULE.plan_forward(problem)
    return plan, SCHEDULE.launches(problem, backward)


# ------------------------------------------------------------------------------------------------------------ plans
@lru_cache(maxsize=256)
def _plan_forward(problem, launches):
    """The forward plan: per launch the first layer's input product, then its layers' steps, block by block."""
    tasks, outputs = [], {}  # (layer, direction) -> its tasks
    for launch in launches:
        below = tuple(outputs[launch.first - 1, d][-1] for d in range(problem.directions)) if launch.first else ()
        if problem.dropping and launch.first:
            tasks.append(Task("dropout", launch.first, BOTH, 0, problem.steps, below))
            below = (tasks[-1],)
        products = [Task("input", launch.first, d, 0, problem.steps, below) for d in range(problem.directions)]
        tasks += products
        waits = {(launch.first, d): (product,) for d, product in enumerate(products)}
        tasks += _steps(problem, range(launch.first, launch.last), False, outputs, waits)
    return Plan(NAME, False, _reason(launches), tuple(tasks), concurrent=True)


@lru_cache(maxsize=256)
def _plan_backward(problem, launches, weights, input_gradient):
    """The backward plan: per launch its layers' steps, from the last layer down, then products over all steps."""
    tasks, outputs, above = [], {}, ()
    for launch in launches:
        layers, waits = range(launch.last - 1, launch.first - 1, -1), {}
        waits = {(launch.last - 1, d): above for d in range(problem.directions)}
        tasks += _steps(problem, layers, True, outputs, waits)
        walked = tuple(outputs[launch.first, d][-1] for d in range(problem.directions))
        if launch.first > 0 or input_gradient:
            tasks.append(Task("input", launch.first, BOTH, 0, problem.steps, walked))
            above = (tasks[-1],)
        if problem.dropping and launch.first:
            tasks.append(Task("dropout", launch.first, BOTH, 0, problem.steps, above))
            above = (tasks[-1],)
        for layer in layers if weights else ():
            needs = tuple((outputs[layer, d][-1],) for d in range(problem.directions))
            tasks += weight_tasks(layer, problem.directions, problem.steps, problem.dropping, needs)
    return Plan(NAME, True, _reason(launches), tuple(tasks), concurrent=True)


@lru_cache(maxsize=256)
def _plan_weights(problem):
    """The plan of the parameters' gradients alone."""
    layers, directions = range(problem.layers), problem.directions
    tasks = [task for layer in layers for task in weight_tasks(layer, directions, problem.steps, problem.dropping)]
    return Plan(NAME, True, "one product per matrix", tuple(tasks))


def _steps(problem, layers, backward, outputs, waits):
    """The "steps" tasks of one launch, in an order in which they may run; notes them in `outputs`.

    A layer's block of steps needs the block before, and of the layer that it reads those that cover the same times.
    """
    size = max(1, -(-problem.steps // PARTS))
    firsts = range(0, problem.steps, size)
    for layer in layers:
        other = layer + 1 if backward else layer - 1  # the layer that it reads
        for direction in range(problem.directions):
            made = outputs[layer, direction] = []
            for first in firsts:
                last = min(first + size, problem.steps)
                needs = made[-1:] + list(waits.get((layer, direction), ()))
                if other in layers:
                    times = Task("steps", layer, direction, first, last).times(problem.steps, backward)
                    walks = (outputs[other, d] for d in range(problem.directions))
                    needs += [covering(walk, times, problem.steps, backward)[-1] for walk in walks]
                made.append(Task("steps", layer, direction, first, last, tuple(needs)))
    tasks = [task for layer in layers for d in range(problem.directions) for task in outputs[layer, d]]
    if problem.directions == 1:  # as they run: along the anti-diagonals
        tasks.sort(key=lambda task: (task.first // size + list(layers).index(task.layer), task.first))
    return tasks


def _reason(launches):
    count = "one launch" if len(launches) == 1 else f"{len(launches)} launches"
    return f"{count}; " + "; ".join(map(str, launches))


# --------------------------------------------------------------------------------------------------------- launching
def _weights(work):
    """(array, places): the array that has all of the pass's weights; (layer, direction) -> their Place in it."""
    engine, flat, made = work.engine, work.flat, work.recurrent
    start, size = engine.address(flat), flat.dtype.itemsize

    def offset(view):
        """Elements from the buffer's start; -1 for what is not in it."""
        elements = (engine.address(view) - start) // size
        return elements if 0 <= elements < flat.size else -1

    places = {
        (layer, direction): Place(
            *(offset(part[kind]) if kind in part else -1 for kind in ("W", "R", "b_w", "b_r", "per_unit"))
        )
        for layer, parts in enumerate(work.weights)
        for direction, part in enumerate(parts)
    }
    if made is None:
        return flat, places
    return made.array, {place: replace(found, R=made.start(place)) for place, found in places.items()}


def _noise(work):
    """The words of the cell's random numbers, (places, 4), as kernels take them."""
    return work.engine.constant(np.zeros((1, 4), np.uint64)) if work.noise is None else work.noise


def _masks(work):
    """(scale, words) of dropout, as kernels take them."""
    number = np.dtype(compute_dtype(work.problem.dtype)).type
    if work.masks is None:
        return number(0), work.engine.constant(np.zeros((1, 5), np.uint64))
    return number(work.scale), work.masks


class _Launch:
    """A `planner.Launch` on the arrays of a pass.

    Attributes:
        launch, problem, engine: see there.
        layers: its layers; places: their (layer, direction) pairs, in order.
    """

    def __init__(self, work, launch):
        self.work, self.launch, self.problem, self.engine = work, launch, work.problem, work.engine
        self.layers = range(launch.first, launch.last)
        self.places = [(layer, d) for layer in self.layers for d in range(self.problem.directions)]

    def make_room(self):
        """Make the arrays that the kernel writes, on the caller's stream."""
        raise NotImplementedError

    def bind(self):
        """A function without arguments that runs the kernel."""
        raise NotImplementedError

    def forget(self):
        """Let go of what is needed no more once the kernel was launched."""

    def _bind(self, kernel, exchanged, tape, vectors, *arrays):
        """The kernel bound to its arrays; what is exchanged is marked before each call.

        Args:
            exchanged: arrays whose numbers blocks wait for.
            tape: the ForwardPass, with the weights.
            vectors, arrays: the kernel's first arguments, arrays or lists of arrays; then come weights and the rest.
        """
        problem, launch, engine = self.problem, self.launch, self.engine
        weights, places = _weights(tape)
        tables = make_tables(problem, launch, places)
        scale, masks = _masks(tape)
        step_mask = engine.constant(np.zeros(1, np.uint8)) if tape.step_mask is None else tape.step_mask
        bound = kernel.bind(
            LaunchConfig(launch.blocks, launch.cut.threads, launch.shared_bytes, cooperative=True),
            *(_flat(array) for array in (vectors, *arrays, weights, step_mask)),
            _noise(tape), masks, scale, *map(engine.constant, tables), self.work.trouble,
        )  # fmt: skip
        sizes = problem.directions, problem.steps, problem.batch, _limit(problem)

        def run():
            for array in exchanged:
                if array.size:
                    engine.mark_unwritten(array)
            bound(*sizes)

        return run

    def _kernel(self, make, *options):
        several = len(self.layers) > 1
        drops = several and self.problem.dropping
        return make(self.problem.cell, self.launch.cut, *options, several, drops, self.problem.masked)


class _ForwardLaunch(_Launch):
    """Of a `ForwardPass`."""

    @property
    def _keeps(self):
        return self.problem.training and self.problem.cell.num_saved > 0

    def _dropped(self):
        """The dropped-out outputs that the launch makes: layer below -> array."""
        return {layer - 1: self.work.input(layer) for layer in self.layers[1:]} if self.problem.dropping else {}

    def make_room(self):
        self._dropped()
        for place in self.places:
            if self._keeps or place[0] == self.launch.first:
                self.work.gates_of(*place)

    def bind(self):
        work, dropped = self.work, self._dropped()
        nothing = work.flat[:0]
        outputs = [work.output(layer) for layer in self.layers]
        vectors = [work.h[layer] for layer in self.layers] + [dropped.get(layer, nothing) for layer in self.layers]
        gates = [work.gates.get(place, nothing) for place in self.places]
        kernel = self._kernel(persistent.make_forward, self.problem.training)
        states = [work.c[layer] for layer in self.layers]
        return self._bind(kernel, [*outputs, *dropped.values()], work, vectors, states, gates)

    def forget(self):
        for place in self.places:
            if not self._keeps:
                self.work.gates.pop(place, None)


class _BackwardLaunch(_Launch):
    """Of a `BackwardPass`."""

    def make_room(self):
        for place in self.places:
            self.work.separate_gradients(*place)
            if self.problem.cell.per_unit:
                self.work.d_per_unit_of(*place)

    def bind(self):
        walk, tape = self.work, self.work.tape
        gradients = [walk.separate_gradients(*place) for place in self.places]
        vectors = [array for both in zip(*gradients, strict=True) for array in both]  # those of h Rᵀ first
        nothing = tape.flat[:0]
        gates = [tape.gates.get(place, nothing) for place in self.places]
        h, c = ([states[layer] for layer in self.layers] for states in (tape.h, tape.c))
        dh, dc = ([states[layer][d] for layer, d in self.places] for states in (walk.dh, walk.dc))
        kernel, dy = self._kernel(persistent.make_backward), walk.dy[self.launch.last - 1]
        d_per_unit = [walk.d_per_unit_of(*place) for place in self.places] if self.problem.cell.per_unit else [nothing]
        return self._bind(kernel, vectors, tape, vectors, h, c, gates, d_per_unit, dy, dh, dc)


def _flat(array):
    """An array, or a list of arrays as a tuple, as kernels take them: one-dimensional, halves as their bits."""
    return tuple(map(_flat, array)) if isinstance(array, list) else stored(array.reshape(-1))


def _limit(problem):
    """How often a kernel looks for missing data before it gives up."""
    return min(POLLS + POLLS_PER_STEP * problem.steps * problem.layers, 2**31 - 1)
