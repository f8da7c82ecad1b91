"""The quick cases of `numbarnn check` cross the boundaries of kernels as they are launched in the simulator."""

import boundaries
from numbarnn.bench.cases import cases
from numbarnn.bench.check import command as check
from numbarnn.schedules import SCHEDULES


def test_quick_cases_cross_every_boundary_of_the_simulated_kernels():
    plan = check.plan_cases("sim", cases.ALL_CELLS, list(SCHEDULES), True)
    assert boundaries.missing(plan, "sim") == []
    assert "several launches, one after the other" in boundaries.missing(plan[:1], "sim")


def test_every_schedule_runs_every_quick_case():
    """`spreads.covering` counts on it."""
    for case, schedules in check.plan_cases("sim", cases.ALL_CELLS, list(SCHEDULES), True):
        instance, sizes = cases.make_instance(case), (case.T, case.B, case.input_size)
        for schedule in schedules:
            layer = cases.make_layer(case, "sim", instance.parameters, schedule)
            assert schedule in layer.explain((case.B, case.T, case.input_size) if case.batch_first else sizes)
