"""What `explain` says of plans, and which tiles three products of TF32 take."""

from dataclasses import replace
from itertools import product

import pytest

from numbarnn.cells.library import layer_norm_gru
from numbarnn.engines.gpu import profiles
from numbarnn.schedules import choose
from numbarnn.schedules.explain import explain
from numbarnn.schedules.persistent import planner
from plan_orders import problem_of

BOTH_PASSES = (False, True)


@pytest.mark.parametrize("backward", BOTH_PASSES)
def test_explanation_of_a_named_schedule(backward):
    problem = problem_of(hidden=(512, 512), dtype="float16", batch=64)
    explanation = explain(choose("persistent"), problem, backward)
    assert explanation.taken.schedule == "persistent" and explanation.why is None
    assert [option.schedule for option in explanation.others] == ["stepwise", "wavefront"]
    assert all(option.plan and option.microseconds is None for option in explanation.others)
    launches = planner.plan_launches(problem, problem.profile, backward)
    assert explanation.taken.launches == launches
    assert explanation.taken.microseconds == sum(launch.microseconds for launch in launches)
    text = str(explanation)
    assert text.startswith(f"persistent {'backward' if backward else 'forward'}: ")
    for launch in launches:
        assert launch.details in text and "of R" in text


def test_explanation_of_a_refusal():
    problem = problem_of(hidden=(8192,))
    with pytest.raises(RuntimeError, match="does not fit"):
        explain(choose("persistent"), problem, False)
    explanation = explain(choose("stepwise"), problem, False)
    (refused,) = [option for option in explanation.others if option.schedule == "persistent"]
    assert refused.plan is None and "1024.0 MiB" in refused.reason
    assert "instead, persistent: cannot run it: lstm with hidden size 8192" in str(explanation)


def test_explanation_on_the_cpu_does_not_alarm():
    on_cpu = replace(problem_of(), engine="cpu", profile=None)
    text = str(explain(choose("auto"), on_cpu, False))
    assert "persistent is for GPUs" in text and "cannot" not in text


def test_explanation_of_auto_says_why():
    for hidden in ((8192,), (4096,), (64, 64)):
        explanation = explain(choose("auto"), problem_of(hidden=hidden), False)
        assert explanation.why and f"(auto: {explanation.why})" in explanation.head
        assert {explanation.taken.schedule, *(option.schedule for option in explanation.others)} == {
            "stepwise", "wavefront", "persistent",
        }  # fmt: skip


@pytest.mark.parametrize("backward", BOTH_PASSES)
def test_what_a_step_is_made_of_where_it_is_more_than_a_product(backward):
    """By every schedule the same."""
    h, cell = "the product of h with R ({})", "the cell's equations"
    parts = {
        ("gru", 0): None,
        ("lstm", 256): [h.format("4 gates"), cell, "the product with W_hr"],
        ("gru_reset_before", 0): [h.format("2 gates"), "a further product with R (1 gate)", cell],
        (layer_norm_gru, 0): [h.format("3 gates"), "2 sums over units", "2 sums over units", cell],
    }
    for (name, projection), expected in parts.items():
        problem = problem_of(name, hidden=(512,), projection=projection)
        for schedule in ("persistent", "stepwise"):
            lines = str(explain(choose(schedule), problem, backward)).splitlines()
            found = [line for line in lines if line.startswith("  a step ")]
            if expected is None:
                assert not found
                continue
            way, order = ("backward", expected[::-1]) if backward else ("forward", expected)
            assert found == [f"  a step {way}: {', '.join(order)}"]


def test_long_plans_are_shortened():
    text = str(explain(choose("wavefront"), problem_of(hidden=(64,) * 4, steps=100), False))
    plan = choose("wavefront").plan_forward(problem_of(hidden=(64,) * 4, steps=100))
    assert f"... {len(plan.tasks) - 12} more" in text
    assert str(plan.tasks[0]) in text and str(plan.tasks[-1]) in text and len(text.splitlines()) < 20


# ------------------------------------------------------------------------------------------- float32 by three products
@pytest.mark.parametrize("backward", BOTH_PASSES)
@pytest.mark.parametrize("hidden, batch", list(product((256, 512, 768), (16, 64))))
def test_three_products_keep_to_tiles_that_spill_nothing(hidden, batch, backward):
    """Compiled for sm_90; and their estimate lies between FMA's and that of one product."""
    plain = problem_of(hidden=(hidden,), batch=batch)
    kinds = plain, replace(plain, splits_tf32=True), replace(plain, allow_tf32=True)
    (fma,), (three,), (one,) = [planner.plan_launches(kind, profiles.get("h200"), backward) for kind in kinds]
    assert (fma.tile.math, three.tile.math, one.tile.math) == ("fma", "tf32x3", "tf32")
    assert one.estimate.step < three.estimate.step < fma.estimate.step
    assert three.tile.warps <= 8 and three.tile.rows <= (64 if three.tile.n8 == 1 else 32)
    assert "no device" in three.details and "no device" not in one.details
