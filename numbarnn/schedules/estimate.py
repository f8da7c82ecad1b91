"""Estimate the time of a pass by each schedule, for "auto" to compare.

    pass_us(problem, "persistent", backward=True)

A pass consists of some products over all steps at once, and of the steps themselves. These are launches of persistent
kernels (`persistent.planner`), or a cuBLAS product and a kernel each. The numbers come from `calibration`. Dropout and
copies are left out.
"""

from numbarnn.schedules import calibration
from numbarnn.schedules.persistent.schedule import SCHEDULE as PERSISTENT
from numbarnn.schedules.products import matrices_of_step, product_us, rate_of
from numbarnn.schedules.stepwise import SCHEDULE as STEPWISE


def pass_us(problem, schedule, backward):
    """Return the microseconds of a pass of a problem with a profile.

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
    """Return the microseconds of a pass by these `persistent.launch.Launch`es."""
    plan = PERSISTENT.plan_of(problem, launches, backward)
    total = sum(launch.microseconds for launch in launches) + _products_us(problem, plan)
    spared = calibration.NODE_US * _spared(problem, backward)
    return max(total - spared, calibration.NODE_US)


def _spared(problem, backward):
    """Return how many copies and fills a pass with launches spares as graph nodes.
    Launches read first states and write last ones, and fill a failed call's results with NaN
    (`numbarnn.kernels.persistent.ends`)."""
    states, rounds = 1 + (problem.cell.num_private > 0), problem.dtype != problem.state_dtype
    if backward:
        return states * (1 + rounds) + 1
    return 2 * problem.layers * problem.directions * states + (1 if problem.training else 2)


def _products_us(problem, plan):
    """Return the microseconds of the products over all steps in the plan of a pass."""
    return sum(product_us(task, problem) for task in plan.tasks)


def steps_us(problem, backward, overlapping):
    """Return the microseconds of all steps: a cuBLAS product and a kernel each, more for further products and sums.

    Args:
        overlapping: whether layers of one direction run side by side, in part; their products do not.
    """
    D = problem.directions
    kind, per_us = rate_of(problem)
    start, of_column = calibration.STEP_US[kind, backward], calibration.STEP_COLUMN_US[kind, backward]
    in_turn, work = [], 0.0
    for hidden in problem.hidden_sizes:
        matrices = matrices_of_step(problem, hidden)
        columns = [rows if backward else width for rows, width in matrices]
        # Without a product it is one kernel.
        in_turn.append(sum(start + of_column * width for width in columns) if matrices else start / 2)
        in_turn[-1] += _sums_us(problem, hidden, backward)
        numbers = sum(rows * width for rows, width in matrices)
        work += D * problem.batch * numbers / per_us / calibration.STEP_SHARE[kind]
    share = calibration.LAYER_SHARE if overlapping and D == 1 else 1
    return problem.steps * (in_turn[0] + share * sum(in_turn[1:]) + work)


def _sums_us(problem, hidden, backward):
    """Return the microseconds in which a step's kernels add up over a layer's units.
    Each sequence has one block, and stages follow each other."""
    # No gradient flows through a maximum.
    stages = sum(1 for stage in problem.cell.stages if stage.sums and not (backward and stage.largest))
    clocks = calibration.STEP_SUMS_CLOCKS + calibration.STEP_SUMS_UNIT_CLOCKS * hidden
    return stages * clocks / (problem.profile.clock_ghz * 1e3)
