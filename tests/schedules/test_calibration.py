"""Estimates against recorded times: the numbers of `numbarnn.schedules.calibration` replay the records they are from.

The records are of older kernels (`calibration` says of which commit). A number that was changed on purpose since, with
another source, no longer replays them: then the limits below hold for what is left, until times are recorded again.
"""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from numbarnn.bench import speed
from numbarnn.bench.cases.passes import FORWARD
from numbarnn.bench.speed import record
from numbarnn.cells import CELLS
from numbarnn.engines.gpu import profiles
from numbarnn.schedules import SCHEDULES, auto, calibration, estimate
from numbarnn.schedules.persistent import planner
from numbarnn.schedules.problem import Problem

RESULTS = Path(speed.__file__).parents[1] / "results"
RECORDS = sorted(RESULTS.glob("h200-2026-11-20-*.json"))
LONG, LIMIT, LIMIT_OF_SHORT = 100, 0.15, 0.25  # steps; shares of the recorded time
LOSS = 0.05  # of what "auto" takes against the best that was recorded
LAUNCHES = re.compile(r"layers? 0(?: to (\d+))? in (\d+) blocks of (\d+) units and (\d+) sequences")


@cache
def rows():
    """All rows with times, but those of "auto", which is one of the others."""
    found = [row for path in RECORDS for row in record.read(path)["results"]]
    return [row for row in found if row["ok"] and row["schedule"] != "auto"]


def problem_of(row):
    sizes, training = row["shape"], row["what"] != FORWARD
    return Problem(
        "cuda", CELLS[row["cell"]], row["dtype"], sizes["I"], (sizes["H"],) * sizes["L"], 1, sizes["T"], sizes["B"],
        training, profile=profiles.get("h200"),
    )  # fmt: skip


def estimated_us(row):
    problem = problem_of(row)
    passes = (False, True) if problem.training else (False,)
    return sum(estimate.pass_us(problem, row["schedule"], backward) for backward in passes)


def recorded_us(row):
    return row["device_median_s"]["numbarnn"] * 1e6


def name_of(row):
    return f"{row['cell']} {','.join(map(str, row['shape'].values()))} {row['dtype']} {row['what']}"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_recorded_times_are_estimated(schedule):
    own = [row for row in rows() if row["schedule"] == schedule]
    assert len(own) == 48
    wrong = {}
    for row in own:
        limit = LIMIT if row["shape"]["T"] >= LONG else LIMIT_OF_SHORT
        ratio = estimated_us(row) / recorded_us(row)
        if abs(ratio - 1) > limit:
            wrong[name_of(row)] = f"{ratio:.2f} of {recorded_us(row):.0f} µs, limit {limit:.0%}"
    assert not wrong


def test_estimates_are_of_the_launches_that_were_recorded():
    """Else they would be compared with times of something else."""
    for row in rows():
        if row["schedule"] == "persistent":
            (last, *sizes) = LAUNCHES.search(row["plan"]).groups()
            problem = problem_of(row)
            first = planner.plan_launches(problem, problem.profile, False)[0]
            assert [first.last - 1, first.blocks, first.tile.units, first.sequences] == [
                int(last or 0), *map(int, sizes)
            ], name_of(row)  # fmt: skip


def test_auto_loses_little_against_the_best_recorded():
    times = {}
    for row in rows():
        times.setdefault(name_of(row), {})[row["schedule"]] = row
    assert len(times) == 48
    losses = {}
    for name, by_schedule in times.items():
        taken, _ = auto._pick(problem_of(by_schedule["stepwise"]))
        best = min(map(recorded_us, by_schedule.values()))
        loss = recorded_us(by_schedule[taken.name]) / best - 1
        if loss > LOSS:
            losses[name] = f"{taken.name} is {loss:.0%} slower than the best"
    assert not losses


def test_auto_takes_the_wavefront_where_float32_has_four_layers():
    row = next(row for row in rows() if name_of(row) == "lstm 100,64,512,512,4 float32 forward+backward")
    schedule, why = auto._pick(problem_of(row))
    assert schedule.name == "wavefront" and re.fullmatch(r"persistent would take \d+ µs in all, wavefront \d+ µs", why)


def test_every_number_has_its_source():
    commits = {json.loads(path.read_text())["commit"][:7] for path in RECORDS}
    numbers = calibration.numbers()
    assert len(numbers) > 20
    for name, number in numbers.items():
        assert number.value > 0 and number.unit, name
        if "records h200-2026-11-20" in number.source:
            assert any(commit in number.source for commit in commits), name
        else:
            assert number.source, name


@pytest.mark.parametrize("name", ["LAUNCH_US", "LOAD_US", "L2_SHARE", "MMA_SHARE", "SUM_CLOCKS", "PRODUCT_US"])
def test_every_number_counts(name, monkeypatch):
    """What takes longer, or reaches less of a rate, makes the estimate longer."""
    row = next(row for row in rows() if row["schedule"] == "persistent" and row["dtype"] == "float16")
    before, number = estimated_us(row), getattr(calibration, name)
    worse = number.value / 2 if name == "MMA_SHARE" else number.value * 2
    monkeypatch.setattr(calibration, name, number._replace(value=worse))
    for cached in (planner.plan_launches, planner._best_launch):
        cached.cache_clear()
    try:
        assert estimated_us(row) > before
    finally:
        for cached in (planner.plan_launches, planner._best_launch):
            cached.cache_clear()
