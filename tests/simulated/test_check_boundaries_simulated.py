"""The quick cases of `numbarnn check` cross the boundaries of kernels as they are launched in the simulator."""

import boundaries
from numbarnn.bench.cases import cases, spreads
from numbarnn.bench.check import command as check
from numbarnn.bench.peers import peers
from numbarnn.schedules import SCHEDULES


def test_quick_cases_cross_every_boundary_of_the_simulated_kernels():
    plan = check.plan_cases("sim", cases.ALL_CELLS, list(SCHEDULES), True)
    assert boundaries.missing(plan, "sim") == []
    assert "several launches, one after the other" in boundaries.missing(plan[:1], "sim")


def test_what_is_known_to_be_refused_is_refused_and_nothing_else():
    """`spreads.covering` counts on what a schedule runs."""
    for case, schedules in check.plan_cases("sim", cases.ALL_CELLS, list(SCHEDULES), True):
        instance = cases.make_instance(case)
        for schedule in schedules:
            layer = cases.make_layer(case, "sim", instance.parameters, schedule)
            try:
                layer.explain(peers.input_shape(instance))
            except RuntimeError:
                assert spreads.refuses(schedule, case), (schedule, case)
            else:
                assert not spreads.refuses(schedule, case), (schedule, case)
