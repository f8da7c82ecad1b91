"""Explain a schedule's plan for a problem, and what others would do, for `layer.explain` and `numbarnn plan`."""

from dataclasses import dataclass

from numbarnn.common.words import counted
from numbarnn.schedules import SCHEDULES
from numbarnn.schedules.plan import Plan

FIRST_SHOWN, LAST_SHOWN = 8, 4  # tasks of a long plan


def wider(problem):
    """Yield a line for each layer that has a state of more units than h."""
    for layer, (units, width) in enumerate(zip(problem.units, problem.hidden_sizes, strict=False)):
        if width > units:
            yield f"layer {layer}: kernels have {width} units, as many as its largest state; h has {units}"


def step_lines(problem, backward):
    """Yield a line that says for what a step waits, if it is more than one product with h."""
    cell, waits = problem.cell, []
    if products := len(cell.product_stages):
        waits.append(counted(products, "further product"))
    if sums := len(cell.stages) - products:
        waits.append(f"{counted(sums, 'round')} of sums over units")
    waits += ["a projection"] * (problem.projection > 0)
    if waits:
        yield f"a step {'backward' if backward else 'forward'} also waits for {', '.join(waits)}"


@dataclass(frozen=True)
class Option:
    """A schedule for one pass of a problem.

    Attributes:
        schedule: its name. plan: its plan; None if it cannot run the problem.
        refusal: why it cannot run the problem; None if it can.
    """

    schedule: str
    plan: Plan | None
    refusal: str | None = None

    @property
    def launches(self):
        """The plan's `persistent.launch.Launch`es, if it is persistent; else none."""
        return tuple(task.launch for task in self.plan.tasks if task.kind == "launch") if self.plan else ()

    @property
    def microseconds(self):
        """Estimated time of its launches; None if there is no estimate."""
        return sum(launch.microseconds for launch in self.launches) if self.launches else None

    @property
    def reason(self):
        """Its plan's reason, or why it cannot run the problem."""
        return f"cannot run it: {self.refusal}" if self.plan is None else self.plan.reason


@dataclass(frozen=True)
class Explanation:
    """Which schedule runs a pass, and why.

    Attributes:
        problem, backward: the pass. taken: the `Option` that runs.
        why: it was taken; None if it was asked for by name. others: the options of all other schedules.
    """

    problem: object
    backward: bool
    taken: Option
    why: str | None
    others: tuple[Option, ...]

    @property
    def head(self):
        """The schedule and why, as one line."""
        why = "" if self.why is None else f" (auto: {self.why})"
        direction = "backward" if self.backward else "forward"
        return f"{self.taken.schedule} {direction}: {self.taken.plan.reason}{why}"

    def __str__(self):
        lines = [self.head, *(f"  {line}" for line in step_lines(self.problem, self.backward))]
        for launch in self.taken.launches:
            lines.append(f"  {launch.layers}: {launch.details}")
        for option in self.others:
            if option.plan is None and self.problem.engine == "cpu":  # nothing is amiss
                lines.append(f"  {option.schedule} is for GPUs: `numbarnn plan` shows what one would do")
            else:
                lines.append(f"  instead, {option.schedule}: {option.reason}")
        return "\n".join([*lines, *task_lines(self.taken.plan)])


def task_lines(plan):
    """Return the plan's tasks as numbered lines; of a long plan the first and the last."""
    lines = [f"  {number:3d}  {task}" for number, task in enumerate(plan.tasks)]
    left_out = len(lines) - FIRST_SHOWN - LAST_SHOWN
    return lines if left_out <= 1 else [*lines[:FIRST_SHOWN], f"  ... {left_out} more", *lines[-LAST_SHOWN:]]


def explain(schedule, problem, backward):
    """Return the `Explanation` of a pass.

    Args:
        schedule: a `Schedule`, as `numbarnn.schedules.choose` returns it.

    Raises:
        RuntimeError: the schedule cannot run the problem; says why, with the numbers.
    """
    chosen, why = schedule.pick(problem)
    option = option_of(chosen, problem, backward)
    others = tuple(_try(other, problem, backward) for other in SCHEDULES.values() if other.name != chosen.name)
    return Explanation(problem, backward, option, why, others)


def option_of(schedule, problem, backward):
    """Return a schedule's `Option` for a pass.

    Raises:
        RuntimeError: the schedule cannot run the problem; says why, with the numbers.
    """
    plan = schedule.plan_backward(problem) if backward else schedule.plan_forward(problem)
    return Option(schedule.name, plan)


def _try(schedule, problem, backward):
    """Return a schedule's `Option` for a pass, also if it cannot run it."""
    try:
        return option_of(schedule, problem, backward)
    except RuntimeError as reason:
        return Option(schedule.name, None, refusal=str(reason))
