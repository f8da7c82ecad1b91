"""Which (layer, direction, steps) runs when: plans as data, and their executors."""

from numbarnn.schedules import stepwise
from numbarnn.schedules.execution import BackwardPass, ForwardPass
from numbarnn.schedules.plan import Plan, Task

#: Name -> module with plan_forward, plan_backward and plan_weights.
SCHEDULES = {stepwise.NAME: stepwise}

__all__ = ["SCHEDULES", "BackwardPass", "ForwardPass", "Plan", "Task", "choose"]


def choose(schedule):
    """The schedule of that name; "auto" is the fastest that runs the problem, at present always "stepwise".

    Raises:
        ValueError: no such schedule.
    """
    if schedule == "auto":
        return stepwise
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        raise ValueError(f"schedule must be 'auto' or one of {', '.join(SCHEDULES)}, not {schedule!r}")
    return SCHEDULES[schedule]
