"""What the persistent schedule remembers of other calls: plans are those that it would make anew."""

from itertools import cycle, product

import numpy as np
import pytest

from general_cells import GENERAL, UNEVEN
from numbarnn.engines.gpu import profiles
from numbarnn.schedules.persistent import planner, tilings
from numbarnn.schedules.persistent.tables import make_tables
from plan_orders import problem_of
from planned_launches import Sized

BOTH_PASSES = (False, True)


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


def test_plans_are_those_of_a_planner_without_memory():
    problems = list(sweep())
    found = [plans_or_refusal(planner.plan_launches, problem) for problem in problems]
    for problem, plans in zip(problems, found, strict=True):
        planner.forget()
        assert plans == plans_or_refusal(planner.plan_launches, problem)
    assert sum(isinstance(plans, list) for plans in found) > len(found) / 2


@pytest.fixture
def calls(monkeypatch):
    """A function that counts the calls of a function of `tilings` from now on: calls(name) -> a list of arguments."""

    def count(name):
        given, function = [], getattr(tilings, name)
        monkeypatch.setattr(tilings, name, lambda *arguments: given.append(arguments) or function(*arguments))
        return given

    return count


def test_another_T_considers_no_tiling_and_makes_no_table(calls, monkeypatch):
    """Nor does another T have other rows."""
    considered, tables, made = calls("_fitting"), {}, []
    places = dict.fromkeys(product(range(3), range(2)), Sized(0, 0))
    monkeypatch.setattr(planner, "LEAST_GAIN", 1.0)  # whether blocks multiply the input themselves is asked once more
    for T in (17, 18, 1000):
        problem = problem_of("gru", "float16", (320, 320, 320), 13, T, profiles.get("h100"), directions=2)
        for backward in BOTH_PASSES:
            for launch in planner.plan_launches(problem, problem.profile, backward):
                tables.setdefault((backward, launch.first), []).append(make_tables(problem, launch, places))
        made.append(len(considered))
    assert made[0] > 0 and made == made[:1] * 3
    for first, *others in tables.values():
        assert len(others) == 2 and all(other is first for other in others)


@pytest.mark.parametrize("hidden, mixed", [((512,) * 4, False), ((2048,), True)], ids=("one place", "several"))
def test_another_B_makes_no_tile(calls, monkeypatch, hidden, mixed):
    """But where weights are in several places, and shared memory has room for other chunks of them beside states."""
    plain, placed = calls("_plain_tile"), calls("mixed_tile")
    monkeypatch.setattr(planner, "LEAST_GAIN", 1.0)  # as above

    def made_by(batches):
        before = len(plain), len(placed)
        for B in batches:
            problem = problem_of("lstm", "float16", hidden, B, 50, profiles.get("h100"))
            planner.plan_launches(problem, problem.profile, False)
        return len(plain) - before[0], len(placed) - before[1]

    planner.forget()
    first, first_placed = made_by((3, 100))
    then, then_placed = made_by((17, 18, 40, 16, 8, 99))
    assert first > 0 and then == 0
    assert (first_placed > then_placed > 0) if mixed else then_placed == 0
