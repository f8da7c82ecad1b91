"""The persistent schedule: all steps of several layers in one cooperative launch.

`numbarnn.kernels.persistent.forward` explains the kernel. `planner.plan_launches` decides what runs where. This module
turns launches into tasks of a plan, and `numbarnn.programs.launches` binds them to arrays. Products over all steps (x
Wᵀ of a launch's first layer, dx, dW) are separate tasks.
"""

from dataclasses import replace
from functools import lru_cache

from numbarnn.schedules import stepwise
from numbarnn.schedules.base import Schedule
from numbarnn.schedules.persistent import planner
from numbarnn.schedules.plan import BOTH, Plan, Task, weight_tasks

NAME = "persistent"


def profile_of(problem):
    """Return the DeviceProfile to plan for.

    Raises:
        planner.DoesNotFit: the engine has no kernels or no profile; or h is wider than a layer's cell, although blocks
            own as many outputs as units (PyTorch and cuDNN have no such h); or the call returns all states.
    """
    if problem.engine == "cpu":
        raise planner.DoesNotFit(
            "schedule 'persistent' runs kernels on a GPU (device='cuda'), not on the CPU: use schedule='auto'"
        )
    if problem.projection > min(problem.hidden_sizes):
        raise planner.DoesNotFit(
            f"schedule 'persistent' has no projections to more numbers than a layer has units, and "
            f"{problem.cell.name!r} has one of {min(problem.hidden_sizes)} units to {problem.projection} here: use "
            f"schedule='wavefront' or 'stepwise'"
        )
    if problem.keeps_states:
        raise planner.DoesNotFit(
            "schedule 'persistent' keeps no state but h of every step, which output_states asks for: use "
            "schedule='wavefront' or 'stepwise'"
        )
    if problem.profile is None:
        raise planner.DoesNotFit("nothing is known of the device: the problem has no profile")
    return problem.profile


class Persistent(Schedule):
    """All steps of as many layers as fit in one launch."""

    name = NAME

    def launches(self, problem, backward):
        """Return the `persistent.launch.Launch`es of a pass.

        Raises:
            planner.DoesNotFit: with the numbers.
        """
        return planner.plan_launches(problem, profile_of(problem), backward)

    def plan_of(self, problem, launches, backward, weights=True, input_gradient=True):
        """Return the plan of a pass by these launches; `weights`, `input_gradient`: as of `plan_backward`."""
        if backward:
            return _plan_backward(problem, launches, weights, input_gradient)
        return _plan_forward(problem, launches)

    def plan_forward(self, problem):
        return self.plan_of(problem, self.launches(problem, False), False)

    def plan_backward(self, problem, weights=True, input_gradient=True):
        return self.plan_of(problem, self.launches(problem, True), True, weights, input_gradient)

    def plan_weights(self, problem):
        plan = stepwise.SCHEDULE.plan_weights(problem)
        return replace(plan, schedule=NAME, reason="one product per matrix", concurrent=True)


SCHEDULE = Persistent()


# ------------------------------------------------------------------------------------------------------------ plans
@lru_cache(maxsize=256)
def _plan_forward(problem, launches):
    """Return the forward plan: each launch after its first layer's input products, unless blocks compute them."""
    tasks, below = [], ()
    for launch in launches:
        if problem.dropping and launch.first:
            tasks.append(Task("dropout", launch.first, BOTH, 0, problem.steps, below))
            below = (tasks[-1],)
        directions = () if launch.tile.given else range(problem.directions)
        products = [Task("input", launch.first, d, 0, problem.steps, below) for d in directions]
        below = (_launch_task(launch, products or below),)
        tasks += [*products, *below]
    return Plan(NAME, False, _reason(launches), tuple(tasks), concurrent=True)


@lru_cache(maxsize=256)
def _plan_backward(problem, launches, weights, input_gradient):
    """Return the backward plan: the launches, from the last layer down, each before the products over all its steps."""
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


def _launch_task(launch, needs):
    """Return the task of a `persistent.launch.Launch`: all steps of its layers, in both directions."""
    return Task("launch", launch.first, BOTH, 0, launch.steps, tuple(needs), launch=launch)


def _reason(launches):
    count = "one launch" if len(launches) == 1 else f"{len(launches)} launches"
    return f"{count}; " + "; ".join(map(str, launches))
