"""The quick cases of `numbarnn check` cross the boundaries of kernels as they are launched in the simulator."""

import boundaries
from numbarnn.bench.cases import cases
from numbarnn.bench.check import command as check
from numbarnn.schedules import SCHEDULES


def test_quick_cases_cross_every_boundary_of_the_simulated_kernels():
    plan = [pair for cell in cases.ALL_CELLS for pair in check.plan_cases("sim", cell, list(SCHEDULES), True)]
    assert boundaries.missing(plan, "sim") == []
    assert "several launches, one after the other" in boundaries.missing(plan[:1], "sim")
