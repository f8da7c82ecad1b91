"""Plans: which (layer, direction, steps) runs when, as plain data to print, draw and run."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from numbarnn.common.order import step_time
from numbarnn.common.words import counted

# Forward: "dropout" of a layer's input, "input" product of its steps (if steps do not compute it themselves), "steps":
# the recurrence.
# Backward: "steps", "input": the gradient of the layer's input, "dropout" of that gradient, "weights": the gradients of
# the layer's parameters, "remake": recompute the layer's input after dropout for them, as forward does not keep it.
# The persistent schedule has "launch" instead of "steps": the recurrence of all steps of consecutive layers.
KINDS = ("dropout", "input", "steps", "launch", "remake", "weights")
BOTH = -1  # the direction of a task that serves all directions of its layer


@dataclass(frozen=True)
class Task:
    """A piece of work, and the tasks that must finish before it.

    Attributes:
        kind: one of `KINDS`. layer: 0 is the first. direction: 0, 1, or `BOTH`.
        first, last: steps [first, last), in the order in which the direction runs in this pass. For `BOTH`, these are
            times: in backward, time 0 is the first direction's last step.
        needs: the tasks it waits for.
        launch: the `persistent.launch.Launch` of a "launch": its layers, of which `layer` is the first, and its blocks.
    """

    kind: str
    layer: int
    direction: int
    first: int
    last: int
    needs: tuple["Task", ...] = field(default=(), compare=False)  # tasks are equal if they do the same
    launch: Any = field(default=None, compare=False)

    @property
    def lane(self):
        """(layer, direction, "steps" or "products"): tasks of one lane never run at the same time.
        A direction's recurrence has a separate lane, so that it does not wait for products that others need. All
        launches are in one lane, ("launches",)."""
        if self.kind == "launch":
            return ("launches",)
        return self.layer, max(self.direction, 0), "steps" if self.kind == "steps" else "products"

    def times(self, steps, backward=False):
        """Return the slice of times 0 to T - 1 of the task's steps in the forward or backward pass."""
        if self.direction == BOTH:
            return slice(self.first, self.last)
        first, _ = step_time(self.first, steps, self.direction, backward)
        last, _ = step_time(self.last - 1, steps, self.direction, backward)
        return slice(first, last + 1) if first <= last else slice(last, first + 1)

    @property
    def has_steps(self):
        """Return whether it runs steps of the recurrence."""
        return self.kind in ("steps", "launch")

    @cached_property
    def places(self):
        """Return the task's (layer, direction) pairs; for a launch those of all its layers."""
        return [(self.layer, self.direction)] if self.launch is None else self.launch.places

    def __str__(self):
        if self.kind == "launch":
            blocks = counted(self.launch.blocks, "block")
            return f"launch   {self.launch.layers} ↔ steps {self.first}..{self.last} in {blocks}"
        arrow = {0: "→", 1: "←", BOTH: "↔"}[self.direction]
        return f"{self.kind:<8} layer {self.layer} {arrow} steps {self.first}..{self.last}"


class Span(NamedTuple):
    """The time that a task takes in `Plan.timeline`, in the unit of its cost."""

    task: Task
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Plan:
    """Tasks in an order in which they may run. Plans compare by identity.

    Attributes:
        schedule: name of the schedule that made it. backward: whether it is for the backward pass.
        reason: why this schedule was chosen. tasks: each task once, after those it needs.
        concurrent: whether tasks of different lanes may run at the same time.
    """

    schedule: str
    backward: bool
    reason: str
    tasks: tuple[Task, ...]
    concurrent: bool = False

    def check(self):
        """Raise ValueError unless every task stands once and after those it needs."""
        done = set()
        for task in self.tasks:
            if task in done:
                raise ValueError(f"the plan contains the task '{task}' twice")
            for need in task.needs:
                if need not in done:
                    raise ValueError(f"the plan runs '{task}' before '{need}', which it needs")
            done.add(task)

    def without_weights(self, frozen):
        """Return the plan without the parameters' gradients of some (layer, direction) pairs.
        Inputs that only these would recompute are left out too."""
        left = [task for task in self.tasks if task.kind != "weights" or (task.layer, task.direction) not in frozen]
        needed = {need for task in left for need in task.needs}
        return replace(self, tasks=tuple(task for task in left if task.kind != "remake" or task in needed))

    @cached_property
    def needs(self):
        """Return, for each task, the positions in `tasks` of those it needs."""
        position = {task: number for number, task in enumerate(self.tasks)}
        return tuple([tuple(map(position.__getitem__, task.needs)) for task in self.tasks])

    @cached_property
    def has_steps(self):
        return not {task.kind for task in self.tasks}.isdisjoint(("steps", "launch"))

    @cached_property
    def has_launches(self):
        return self.final_launch is not None

    @cached_property
    def final_launch(self):
        """Return the last `persistent.launch.Launch`, or None."""
        return next((task.launch for task in reversed(self.tasks) if task.launch is not None), None)

    def timeline(self, cost=lambda task: 1):
        """Return a list of one `Span` per task, in the plan's order: the earliest that needs and lanes allow.

        Args:
            cost: function task -> how long it takes.
        """
        spans, free = [], {}
        for task, needs in zip(self.tasks, self.needs, strict=True):
            lane = task.lane if self.concurrent else None
            start = max([free.get(lane, 0), *(spans[need].end for need in needs)])
            spans.append(Span(task, start, start + cost(task)))
            free[lane] = spans[-1].end
        return spans

    def __str__(self):
        head = f"{self.schedule} {'backward' if self.backward else 'forward'}: {self.reason}"
        return "\n".join([head, *(f"  {number:3d}  {task}" for number, task in enumerate(self.tasks))])


def with_times(tasks, steps, backward):
    """Return [(task, first of its times, end of its times)] for T `steps` of a forward or backward pass, for
    `covering`."""
    slices = [task.times(steps, backward) for task in tasks]
    return [(task, times.start, times.stop) for task, times in zip(tasks, slices, strict=True)]


def covering(timed, times):
    """Return the tasks of `with_times` that work on any of the times (a slice)."""
    start, stop = times.start, times.stop
    return tuple([task for task, first, end in timed if first < stop and start < end])


def weight_tasks(layer, directions, steps, dropout, needs=((), ())):
    """Return the tasks for the gradients of a layer's parameters, one per direction over all steps.

    Args:
        dropout: whether the layer's input had dropout.
        needs: per direction, the tasks that give the gradients of the pre-activations.
    """
    remake = [Task("remake", layer, BOTH, 0, steps)] if dropout and layer > 0 else []
    return remake + [Task("weights", layer, d, 0, steps, (*remake, *needs[d])) for d in range(directions)]
