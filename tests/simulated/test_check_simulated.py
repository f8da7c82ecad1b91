"""The quick cases of `numbarnn check` run by every schedule in the simulator."""

from numbarnn.bench.cases import cases
from numbarnn.bench.check import command as check
from numbarnn.schedules import SCHEDULES


def test_every_schedule_runs_every_quick_case():
    """`spreads.covering` counts on it."""
    for case, schedules in check.plan_cases("sim", cases.ALL_CELLS, list(SCHEDULES), True):
        instance, sizes = cases.make_instance(case), (case.T, case.B, case.input_size)
        for schedule in schedules:
            layer = cases.make_layer(case, "sim", instance.parameters, schedule)
            assert schedule in layer.explain((case.B, case.T, case.input_size) if case.batch_first else sizes)
