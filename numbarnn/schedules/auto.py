"""Choose a schedule: "auto" takes the one that is expected to be fastest, and says why."""

from functools import lru_cache

from numbarnn.schedules import estimate, stepwise, wavefront
from numbarnn.schedules.persistent import planner
from numbarnn.schedules.persistent import schedule as persistent

_doubts = {}  # identifies a launch's kernel on a device -> why it is not trusted


def doubt(problem, launches, why):
    """Stop using the persistent kernels of these launches; "auto" takes other schedules from now on."""
    _doubts.update({_kernel_of(problem, launch): why for launch in launches})
    _pick.cache_clear()


def _kernel_of(problem, launch):
    return problem.profile, problem.cell, launch.tile, launch.backward, planner.variant(problem, launch)


@lru_cache(maxsize=1024)
def _pick(problem):
    """Return (schedule, why) for a problem."""
    if problem.engine != "cuda":
        return stepwise.SCHEDULE, f"{problem.engine} works on one layer and direction at a time"
    several = problem.layers * problem.directions > 1
    other = wavefront.SCHEDULE if several else stepwise.SCHEDULE
    passes = (False, True) if problem.training else (False,)
    try:
        launches = [launch for backward in passes for launch in persistent.SCHEDULE.launches(problem, backward)]
    except planner.DoesNotFit as reason:
        return other, f"persistent cannot run it: {reason}"
    for launch in launches:
        if why := _doubts.get(_kernel_of(problem, launch)):
            return other, why
    ours, theirs = (
        sum(estimate.pass_us(problem, name, backward) for backward in passes) for name in (persistent.NAME, other.name)
    )
    of = "forward and backward together" if problem.training else "forward"
    chosen = other if ours > theirs else persistent.SCHEDULE
    return chosen, f"{of}, persistent takes about {ours:.0f} µs, {other.name} {theirs:.0f} µs"


class Auto:
    """Picks a schedule for each problem; the picked one makes the plans."""

    name = "auto"
    pick = staticmethod(_pick)


AUTO = Auto()
