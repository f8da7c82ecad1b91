"""Recorded problems run with their full B, I, H and L, and the kernels of their full T, for few steps."""

from dataclasses import replace
from itertools import product

from numbarnn.bench import cases
from numbarnn.bench.check import Comparer, run_training
from numbarnn.bench.expected import Expected
from numbarnn.bench.shapes import SETS
from numbarnn.schedules.persistent import planner

MULTIPROCESSORS = 132  # of an H100 and an H200
STEPS = 3  # the first, one between, and the last
CELLS, DTYPES = ("lstm", "gru"), ("float16", "float32")
#: Problems as (cell, dtype, Shape): the shapes where schedules differ, by each cell in each dtype.
PROBLEMS = tuple(product(CELLS, DTYPES, SETS["schedules"]))


def name_of(problem):
    """Return a problem as text: "lstm-float16-25,64,512,512,1"."""
    return "-".join(map(str, problem))


def run(problem, monkeypatch):
    """Train one batch of a problem by schedule "persistent" for STEPS steps, and compare with float64.

    Launches are those of the problem's own T: for 3 steps the planner would choose other tiles.

    Returns:
        (launches, comparisons): forward's and backward's `planner.Launch`es in a list, and a row of `check` for each
        result and gradient.

    Raises:
        RuntimeError: the schedule refuses the problem.
    """
    cell, dtype, shape = problem
    case = cases.Case(cell, STEPS, shape.B, shape.I, (shape.H,) * shape.L, gradients="y", dtype=dtype)
    plan, used = planner.plan_launches, []

    def plan_for_all_steps(problem, profile, backward):
        launches = plan(replace(problem, steps=shape.T), profile, backward)
        launches = tuple(replace(launch, steps=problem.steps) for launch in launches)
        used.extend(launch for launch in launches if launch not in used)
        return launches

    monkeypatch.setattr(planner, "plan_launches", plan_for_all_steps)
    instance, comparer = cases.make_instance(case), Comparer(case, "cuda", "persistent")
    layer = cases.make_layer(case, "cuda", instance.parameters, "persistent")
    results = run_training(layer, instance)
    expectation = Expected(instance, with_torch=False).of_training()
    comparer.compare("training", results, expectation, needed=expectation["truth"])
    return used, comparer.rows
