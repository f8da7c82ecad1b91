"""Plan which (layer, direction, steps) runs when, as data."""

from numbarnn.schedules import stepwise, wavefront
from numbarnn.schedules.auto import AUTO
from numbarnn.schedules.base import Schedule
from numbarnn.schedules.persistent.schedule import SCHEDULE as PERSISTENT
from numbarnn.schedules.plan import Plan, Span, Task
from numbarnn.schedules.problem import Problem

#: Name -> `Schedule`.
SCHEDULES = {schedule.name: schedule for schedule in (stepwise.SCHEDULE, wavefront.SCHEDULE, PERSISTENT)}

__all__ = ["SCHEDULES", "Plan", "Problem", "Schedule", "Span", "Task", "choose"]


def choose(schedule):
    """Return the schedule of a name; "auto" takes for each problem the one expected to be fastest.

    Raises:
        ValueError: no such schedule.
    """
    if schedule == AUTO.name:
        return AUTO
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        raise ValueError(
            f"schedule must be 'auto' or one of {', '.join(SCHEDULES)} (or 'loop' of numbarnn.torch's modules), not "
            f"{schedule!r}"
        )
    return SCHEDULES[schedule]
