"""The persistent schedule: all steps of several layers in one cooperative launch; see
`numbarnn.kernels.persistent.forward`.

What runs where is the planner's (`planner.plan_launches`). Here its launches become tasks of a plan, and kernel calls
on the arrays of a pass. Products over all steps (x Wᵀ of a launch's first layer, dx, dW) stay tasks of their own.
"""

from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from numbarnn.common.precision import compute_dtype
from numbarnn.compile.storage import stored
from numbarnn.cuda.launch import LaunchConfig
from numbarnn.engines import Job
from numbarnn.kernels.persistent import backward, forward
from numbarnn.schedules.base import Schedule
from numbarnn.schedules.persistent import planner
from numbarnn.schedules.persistent.tables import Place, make_tables
from numbarnn.schedules.plan import BOTH, Plan, Task, weight_tasks

NAME = "persistent"
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
            work.recurrent.join()
        self._run(work, self.plan_forward(work.problem), _ForwardCall)

    def run_backward(self, walk, weights=True):
        self._run(walk, self.plan_backward(walk.problem, weights), _BackwardCall)

    def _run(self, work, plan, kind):
        """The plan's tasks as jobs of the engine."""
        work.may_fail()
        calls = {task: kind(work, task.launch) for task in plan.tasks if task.kind == "launch"}
        for task in plan.last_of_each:
            if task not in calls:
                work.allocate_for(task)
        for call in calls.values():
            call.make_room()
        work.engine.run_jobs(lambda: _jobs(work, plan, calls), (plan, *work.facts()), work.arrays())
        for call in calls.values():
            call.forget()
        work.finish()


def _jobs(work, plan, calls):
    """A `Job` per task of the plan, and the pass's copies."""
    jobs = [
        Job(task.lane, needs, calls[task].bind if task in calls else partial(work.bind, task))
        for task, needs in zip(plan.tasks, plan.needs, strict=True)
    ]
    return work.between_copies(jobs, [number for number, task in enumerate(plan.tasks) if task in calls])


SCHEDULE = Persistent()


# ------------------------------------------------------------------------------------------------------------ plans
@lru_cache(maxsize=256)
def _plan_forward(problem, launches):
    """The forward plan: each launch after the input products of its first layer."""
    tasks, below = [], ()
    for launch in launches:
        if problem.dropping and launch.first:
            tasks.append(Task("dropout", launch.first, BOTH, 0, problem.steps, below))
            below = (tasks[-1],)
        products = [Task("input", launch.first, d, 0, problem.steps, below) for d in range(problem.directions)]
        below = (_launch_task(launch, products),)
        tasks += [*products, *below]
    return Plan(NAME, False, _reason(launches), tuple(tasks), concurrent=True)


@lru_cache(maxsize=256)
def _plan_backward(problem, launches, weights, input_gradient):
    """The backward plan: the launches, from the last layer down, each before the products over all steps of its
    layers."""
    tasks, above = [], ()
    for launch in launches:
        walk = _launch_task(launch, above)
        tasks.append(walk)
        if launch.first > 0 or input_gradient:
            tasks.append(Task("input", launch.first, BOTH, 0, problem.steps, (walk,)))
            above = (tasks[-1],)
        if problem.dropping and launch.first:
            tasks.append(Task("dropout", launch.first, BOTH, 0, problem.steps, above))
            above = (tasks[-1],)
        for layer in reversed(launch.layer_range) if weights else ():
            needs = ((walk,),) * problem.directions
            tasks += weight_tasks(layer, problem.directions, problem.steps, problem.dropping, needs)
    return Plan(NAME, True, _reason(launches), tuple(tasks), concurrent=True)


@lru_cache(maxsize=256)
def _plan_weights(problem):
    """The plan of the parameters' gradients alone."""
    layers, directions = range(problem.layers), problem.directions
    tasks = [task for layer in layers for task in weight_tasks(layer, directions, problem.steps, problem.dropping)]
    return Plan(NAME, True, "one product per matrix", tuple(tasks))


def _launch_task(launch, needs):
    """The task of a `planner.Launch`: all steps of its layers, in both directions."""
    return Task("launch", launch.first, BOTH, 0, launch.steps, tuple(needs), launch=launch)


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


def _present(array):
    """An array as kernels take it; () if it is None."""
    return () if array is None else array


def _flat(array):
    """An array, or a list of arrays as a tuple, as kernels take them: one-dimensional, halves as their bits."""
    return tuple(map(_flat, array)) if isinstance(array, list) else stored(array.reshape(-1))


class _Call:
    """A `planner.Launch` on the arrays of a pass.

    Attributes:
        work: the pass. launch, problem, engine: see there.
        layers: its layers; places: their (layer, direction) pairs, in order.
    """

    def __init__(self, work, launch):
        self.work, self.launch, self.problem, self.engine = work, launch, work.problem, work.engine
        self.layers = launch.layer_range
        self.places = [(layer, d) for layer in self.layers for d in range(self.problem.directions)]

    def make_room(self):
        """Make the arrays that the kernel writes, on the caller's stream."""
        raise NotImplementedError

    def bind(self):
        """A function without arguments that runs the kernel."""
        raise NotImplementedError

    def forget(self):
        """Let go of what is needed no more once the kernel was launched."""

    @property
    def _drops(self):
        """Whether the kernel drops out between layers."""
        return self.problem.dropping and len(self.layers) > 1

    def _of_each(self, arrays, kept=True):
        """The layers' arrays, a list; an empty one if the cell has none (`kept` is False)."""
        return [arrays[layer] for layer in self.layers] if kept else []

    def _kernel(self, make, *options):
        several = len(self.layers) > 1
        return make(self.problem.cell, self.launch.tile, *options, several, self._drops, self.problem.masked)

    def _bind(self, kernel, exchanged, tape, *arrays):
        """The kernel bound to its arrays; what is exchanged is marked before each call.

        Args:
            exchanged: arrays whose numbers blocks wait for.
            tape: the ForwardPass, with the weights.
            arrays: the kernel's first arguments, already `_flat`; then come weights and the rest.
        """
        problem, launch, engine = self.problem, self.launch, self.engine
        weights, places = _weights(tape)
        tables = tuple(map(engine.constant, make_tables(problem, launch, places)))
        step_mask = () if tape.step_mask is None else _flat(tape.step_mask)
        masks, scale = (
            (tape.masks, np.dtype(compute_dtype(problem.dtype)).type(tape.scale)) if self._drops else ((), ())
        )
        options = step_mask, _present(tape.noise), masks, scale
        sizes = tuple(map(np.int32, (problem.directions, problem.steps, problem.batch, _limit(problem))))
        config = LaunchConfig(launch.blocks, launch.tile.threads, launch.shared_bytes, cooperative=True)
        bound = kernel.bind(config, *arrays, _flat(weights), options, tables, sizes, self.work.trouble)

        def run():
            for array in exchanged:
                engine.mark_unwritten(array)
            bound()

        return run


class _ForwardCall(_Call):
    """Of a `ForwardPass`."""

    @property
    def _keeps(self):
        return self.problem.training and self.problem.cell.num_saved > 0

    def _dropped(self):
        """The dropped-out outputs that the launch makes, of all layers but the last."""
        return [self.work.input(layer) for layer in self.layers[1:]] if self._drops else []

    def make_room(self):
        for layer in self.layers[1:]:
            self.work.allocate("dropout", layer, BOTH)
        for place in self.places:
            self.work.allocate("launch", *place)

    def bind(self):
        work, dropped = self.work, self._dropped()
        with_gates = self.places if self._keeps else self.places[: self.problem.directions]  # of the first layer
        gates = work.gates if self._keeps else work.ax
        return self._bind(
            self._kernel(forward.make_forward, self.problem.training),
            [*(work.output(layer) for layer in self.layers), *dropped],
            work,
            _flat(self._of_each(work.h)),
            _flat(dropped),
            _flat(self._of_each(work.c, self.problem.cell.num_private)),
            _flat([gates[place] for place in with_gates]),
        )

    def forget(self):
        for place in self.places:
            self.work.release(*place)


class _BackwardCall(_Call):
    """Of a `BackwardPass`."""

    def make_room(self):
        for place in self.places:
            self.work.allocate("launch", *place)

    def bind(self):
        walk, tape, cell = self.work, self.work.tape, self.problem.cell
        # Without those of a cell that has no ah; where both are the same, once.
        dah = [walk.dah[place] for place in self.places] if cell.num_recurrent else []
        dax = [] if cell.same_gradient else [walk.dax[place] for place in self.places]
        states = self._of_each(tape.h), self._of_each(tape.c, cell.num_private)
        dh, dc = (list(parts) for parts in zip(*(walk.state_gradients(*place) for place in self.places), strict=True))
        d_per_unit = [walk.d_per_unit[place] for place in self.places] if cell.per_unit else []
        return self._bind(
            self._kernel(backward.make_backward),
            [*dah, *dax],
            tape,
            _flat(dah),
            _flat(dax),
            tuple(map(_flat, states)),
            _flat([tape.gates[place] for place in self.places] if cell.num_saved else []),
            tuple(map(_flat, (walk.dy_of(self.launch.last - 1), dh, dc if cell.num_private else [], d_per_unit))),
        )


def _limit(problem):
    """How often a kernel looks for missing data before it gives up."""
    return min(POLLS + POLLS_PER_STEP * problem.steps * problem.layers, 2**31 - 1)
