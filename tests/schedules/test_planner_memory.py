"""What the persistent schedule remembers of other calls: plans are those that it would make anew."""

from dataclasses import replace
from itertools import cycle, product

import numpy as np

from general_cells import GENERAL, UNEVEN
from numbarnn.engines.gpu import profiles
from numbarnn.schedules.persistent import planner
from numbarnn.schedules.persistent.tables import make_tables
from plan_orders import problem_of
from planned_launches import Sized

BOTH_PASSES = (False, True)


def without_memory(problem, profile, first, last, backward):
    """`planner._best_launch`, every tiling considered for the problem's own T."""
    launch = planner._best_tiling(problem, profile, first, last, backward)
    launch = planner._with_fewer_turns(problem, profile, launch)
    columns = planner._columns(problem, first, last, backward, launch.tile)
    return replace(launch, estimate=planner.estimate_of(problem, profile, launch, columns))


def plans_or_refusal(plan, problem):
    try:
        return [plan(problem, problem.profile, backward) for backward in BOTH_PASSES]
    except planner.DoesNotFit as refusal:
        return str(refusal)


def sweep():
    """Problems of several cells and devices, each with ever other T and B, in a random order."""
    cells, rng = cycle(("lstm", "gru", "rnn_tanh", GENERAL["light"], UNEVEN["more"])), np.random.default_rng(0)
    hidden = ((512,), (256, 256, 256, 256), (33, 17, 40), (128, 128, 64))
    kinds = list(product(hidden, ("float32", "float16", "float64"), ("h200", "a100"), (1, 2)))
    for sizes, dtype, profile, directions in rng.permutation(np.array(kinds, object))[:10]:
        cell = next(cells)
        for T, B in zip(rng.choice([1, 2, 3, 8, 25, 50, 100, 1000, 1001], 3), rng.integers(1, 150, 3), strict=True):
            for steps, batch in ((T, B), (T, 64), (50, B)):
                profile_ = profiles.get(profile)
                yield problem_of(cell, dtype, sizes, int(batch), int(steps), profile_, directions=int(directions))


def test_plans_are_those_of_a_planner_without_memory(monkeypatch):
    problems = list(sweep())
    found = [plans_or_refusal(planner.plan_launches, problem) for problem in problems]
    monkeypatch.setattr(planner, "_best_launch", without_memory)
    for problem, plans in zip(problems, found, strict=True):
        assert plans == plans_or_refusal(planner.plan_launches.__wrapped__, problem)
    assert sum(isinstance(plans, list) for plans in found) > len(found) / 2


def test_another_T_considers_no_tiling_and_makes_no_table(monkeypatch):
    """Nor does another T have other rows."""
    considered, launch_of = [], planner._launch
    monkeypatch.setattr(planner, "_launch", lambda *given: considered.append(given) or launch_of(*given))
    tables, made = {}, []
    places = dict.fromkeys(product(range(3), range(2)), Sized(0, 0))
    for T in (17, 18, 1000):
        problem = problem_of("gru", "float16", (320, 320, 320), 13, T, profiles.get("h100"), directions=2)
        for backward in BOTH_PASSES:
            for launch in planner.plan_launches(problem, problem.profile, backward):
                tables.setdefault((backward, launch.first), []).append(make_tables(problem, launch, places))
        made.append(len(considered))
    assert made[0] > 0 and made == made[:1] * 3
    for first, *others in tables.values():
        assert len(others) == 2 and all(other is first for other in others)
