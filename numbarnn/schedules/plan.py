"""Plans: which (layer, direction, steps) runs when, as plain data. Executors walk them; tests and people read them."""

from dataclasses import dataclass, field

# Forward: "dropout" of a layer's input, "input" product of all its steps, "steps": the recurrence.
# Backward: "steps", "input": the gradient of the layer's input, "weights": of its parameters, "dropout".
KINDS = ("dropout", "input", "steps", "weights")
BOTH = -1  # the direction of a task that serves all directions of its layer


@dataclass(frozen=True)
class Task:
    """A piece of work, and the tasks that must be done before it.

    Attributes:
        kind: one of `KINDS`.
        layer: 0 is the first.
        direction: 0, 1, or `BOTH`.
        first, last: steps [first, last) in the order the direction walks them; of a task for both, times.
        needs: the tasks it waits for.
    """

    kind: str
    layer: int
    direction: int
    first: int
    last: int
    needs: tuple["Task", ...] = field(default=(), compare=False)  # a task is known by what it does

    def times(self, steps):
        """The slice of times 0 to T - 1 that the task's steps of the forward pass are, for T steps in all."""
        return slice(steps - self.last, steps - self.first) if self.direction == 1 else slice(self.first, self.last)

    def __str__(self):
        arrow = {0: "→", 1: "←", BOTH: "↔"}[self.direction]
        return f"{self.kind:<8} layer {self.layer} {arrow} steps {self.first}..{self.last}"


@dataclass(frozen=True)
class Plan:
    """Tasks in an order in which they may run.

    Attributes:
        schedule: name of the schedule that made it.
        backward: whether it is the plan of the backward pass.
        reason: why this schedule was taken.
        tasks: every task once, each after those it needs.
    """

    schedule: str
    backward: bool
    reason: str
    tasks: tuple[Task, ...]

    def check(self):
        """Raise ValueError unless every task stands once and after those it needs."""
        done = set()
        for task in self.tasks:
            if task in done:
                raise ValueError(f"the plan has a task twice: {task}")
            for need in task.needs:
                if need not in done:
                    raise ValueError(f"the plan runs '{task}' before '{need}', which it needs")
            done.add(task)

    def __str__(self):
        head = f"{self.schedule} {'backward' if self.backward else 'forward'}: {self.reason}"
        return "\n".join([head, *(f"  {number:3d}  {task}" for number, task in enumerate(self.tasks))])
