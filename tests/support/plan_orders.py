"""Problems to plan, and a schedule whose tasks run in another order: whatever their needs allow gives the same bits."""

import random
from dataclasses import replace

from numbarnn import cells
from numbarnn.engines.gpu import profiles
from numbarnn.schedules import Problem, Schedule


def problem_of(cell="lstm", dtype="float32", hidden=(512,), batch=16, steps=25, profile="h200", **options):
    """A Problem on a profile (or its name); I is the first hidden size."""
    options = {"directions": 1, "training": True, "dropout": 0.0} | options
    profile = profiles.get(profile)
    return Problem(
        "cuda", cells.get(cell), dtype, hidden[0], hidden, steps=steps, batch=batch, profile=profile, **options
    )


def shuffled(plan, seed):
    """The plan with its tasks in a random order that keeps their needs, to be run one after another in that order."""
    order, waiting, done = random.Random(seed), list(enumerate(plan.needs)), set()
    tasks = []
    while waiting:
        ready = [(number, needs) for number, needs in waiting if done.issuperset(needs)]
        taken = order.choice(ready)
        waiting.remove(taken)
        done.add(taken[0])
        tasks.append(plan.tasks[taken[0]])
    return replace(plan, tasks=tuple(tasks))


class Shuffled(Schedule):
    """Another schedule's plans, shuffled."""

    def __init__(self, schedule, seed):
        self.name, self.schedule, self.seed = f"shuffled {schedule.name}", schedule, seed

    def plan_forward(self, problem):
        return shuffled(self.schedule.plan_forward(problem), self.seed)

    def plan_backward(self, problem, weights=True, input_gradient=True):
        return shuffled(self.schedule.plan_backward(problem, weights, input_gradient), self.seed)

    def plan_weights(self, problem):
        return shuffled(self.schedule.plan_weights(problem), self.seed)
