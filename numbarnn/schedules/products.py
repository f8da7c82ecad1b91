"""Estimated times of products over all steps, from the numbers in `calibration`."""

from numbarnn.common.precision import is_half
from numbarnn.schedules import calibration
from numbarnn.schedules.plan import BOTH


def product_us(task, problem):
    """Return the microseconds of a plan's task that is a product over its steps; 0 for dropout, which is small beside
    it."""
    if task.kind not in ("input", "weights"):
        return 0.0
    hidden, D = problem.hidden_sizes[task.layer], problem.directions
    inputs = D * problem.output_sizes[task.layer - 1] if task.layer else problem.input_size
    matrices = [(problem.cell.num_gates * hidden, inputs)]
    matrices += matrices_of_step(problem, hidden) if task.kind == "weights" else []
    directions = D if task.direction == BOTH else 1
    numbers, products = directions * sum(rows * width for rows, width in matrices), directions * len(matrices)
    count = (task.last - task.first) * problem.batch * numbers
    kind, per_us = rate_of(problem)
    return products * calibration.PRODUCT_US + count / per_us / calibration.PRODUCT_SHARE[kind]


def matrices_of_step(problem, hidden):
    """Return [(rows, columns), ...] of the matrices that a step of a layer of H units multiplies with, in order.
    They are R's rows of h, those of each product stage, and a projection."""
    cell, P = problem.cell, problem.projection
    of_h = [(cell.num_recurrent * hidden, P or hidden)] * (cell.num_recurrent > 0)
    of_stages = [(len(cell.stages[stage].gates) * hidden, hidden) for stage in cell.product_stages]
    return [*of_h, *of_stages, *[(P, hidden)] * (P > 0)]


def rate_of(problem):
    """Return (the kind of number in the calibration's tables, the device's multiply-adds per microsecond)."""
    profile, half = problem.profile, is_half(problem.dtype) and problem.profile.tensor_cores
    per_clock = profile.double_per_clock if problem.dtype == "float64" else profile.fma_per_clock
    per_clock = profile.mma_per_clock if half else per_clock
    return "half" if half else "float32", per_clock * profile.multiprocessors * profile.clock_ghz * 1e3
