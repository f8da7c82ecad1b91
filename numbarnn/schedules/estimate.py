"""Estimated times of whole passes, by every schedule: what "auto" compares.

    pass_us(problem, "persistent", backward=True)

A pass is its products over all steps, and its steps: launches of persistent kernels (`persistent.planner`), or for each
a product by cuBLAS and a kernel. The numbers behind it are those of `calibration`. Dropout and copies are left out.
"""

from numbarnn.schedules import calibration
from numbarnn.schedules.persistent.schedule import SCHEDULE as PERSISTENT
from numbarnn.schedules.products import product_us, rate_of
from numbarnn.schedules.stepwise import SCHEDULE as STEPWISE


def pass_us(problem, schedule, backward):
    """Microseconds of a pass of a problem with a profile.

    Args:
        schedule: "stepwise", "wavefront" or "persistent".

    Raises:
        RuntimeError: the schedule cannot run the problem.
    """
    if schedule == "persistent":
        return launches_us(problem, PERSISTENT.launches(problem, backward), backward)
    plan = STEPWISE.plan_backward(problem) if backward else STEPWISE.plan_forward(problem)
    return steps_us(problem, backward, schedule == "wavefront") + _products_us(problem, plan)


def launches_us(problem, launches, backward):
    """Microseconds of a pass by these `persistent.launch.Launch`es."""
    plan = PERSISTENT.plan_of(problem, launches, backward)
    return sum(launch.microseconds for launch in launches) + _products_us(problem, plan)


def _products_us(problem, plan):
    """Microseconds of the products over all steps in the plan of a pass."""
    return sum(product_us(task, problem) for task in plan.tasks)


def steps_us(problem, backward, overlapping):
    """Microseconds of all steps by a product of cuBLAS and a kernel each, and as much for each further product.

    Args:
        overlapping: whether layers of one direction run side by side, in part; their products do not.
    """
    cell, D = problem.cell, problem.directions
    kind, per_us = rate_of(problem)
    start, of_column = (table[kind, backward].value for table in (calibration.STEP_US, calibration.STEP_COLUMN_US))
    of_stages = [len(cell.stages[stage].gates) for stage in cell.product_stages]
    products = [cell.num_recurrent] * (cell.num_recurrent > 0) + of_stages  # gates of each
    in_turn, work = [], 0.0
    for hidden in problem.hidden_sizes:
        # Without a product it is one kernel.
        columns = [hidden * (gates if backward else 1) for gates in products]
        in_turn.append(sum(start + of_column * width for width in columns) if products else start / 2)
        work += D * problem.batch * cell.num_ah * hidden**2 / per_us / calibration.STEP_SHARE[kind].value
    share = calibration.LAYER_SHARE.value if overlapping and D == 1 else 1
    return problem.steps * (in_turn[0] + share * sum(in_turn[1:]) + work)
