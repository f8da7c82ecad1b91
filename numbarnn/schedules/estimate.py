"""Estimated times of whole passes, by every schedule: what "auto" compares.

    pass_us(problem, "persistent", backward=True)

A pass is its products over all steps, and its steps: launches of persistent kernels (`persistent.planner`), or for each
a product by cuBLAS and a kernel. The numbers behind it are those of `calibration`. Dropout and copies are left out.
"""

from numbarnn.schedules import calibration
from numbarnn.schedules.persistent.schedule import SCHEDULE as PERSISTENT
from numbarnn.schedules.products import matrices_of_step, product_us, rate_of
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
    found = sum(launch.microseconds for launch in launches) + _products_us(problem, plan)
    spared = calibration.NODE_US.value * _spared(problem, backward)
    return max(found - spared, calibration.NODE_US.value)


def _spared(problem, backward):
    """Return how many nodes of a pass there are no more, each a copy or fill: launches read first states and write last
    ones, and fill the results of a call that failed with NaN (`numbarnn.kernels.persistent.ends`)."""
    states, rounds = 1 + (problem.cell.num_private > 0), problem.dtype != problem.state_dtype
    if backward:
        return states * (1 + rounds) + 1
    return 2 * problem.layers * problem.directions * states + (1 if problem.training else 2)


def _products_us(problem, plan):
    """Microseconds of the products over all steps in the plan of a pass."""
    return sum(product_us(task, problem) for task in plan.tasks)


def steps_us(problem, backward, overlapping):
    """Microseconds of all steps by a product of cuBLAS and a kernel each, and as much for each further product; and
    what these kernels take to add up over units.

    Args:
        overlapping: whether layers of one direction run side by side, in part; their products do not.
    """
    D = problem.directions
    kind, per_us = rate_of(problem)
    start, of_column = (table[kind, backward].value for table in (calibration.STEP_US, calibration.STEP_COLUMN_US))
    in_turn, work = [], 0.0
    for hidden in problem.hidden_sizes:
        matrices = matrices_of_step(problem, hidden)
        columns = [rows if backward else width for rows, width in matrices]
        # Without a product it is one kernel.
        in_turn.append(sum(start + of_column * width for width in columns) if matrices else start / 2)
        in_turn[-1] += _sums_us(problem, hidden, backward)
        numbers = sum(rows * width for rows, width in matrices)
        work += D * problem.batch * numbers / per_us / calibration.STEP_SHARE[kind].value
    share = calibration.LAYER_SHARE.value if overlapping and D == 1 else 1
    return problem.steps * (in_turn[0] + share * sum(in_turn[1:]) + work)


def _sums_us(problem, hidden, backward):
    """Microseconds in which a step's kernels add up over a layer's units: in one block for each sequence, and one stage
    after another."""
    # Nothing flows back through the largest of terms.
    stages = sum(1 for stage in problem.cell.stages if stage.sums and not (backward and stage.largest))
    clocks = calibration.STEP_SUMS_CLOCKS.value + calibration.STEP_SUMS_UNIT_CLOCKS.value * hidden
    return stages * clocks / (problem.profile.clock_ghz * 1e3)
