"""Estimates against recorded times: the numbers of `numbarnn.schedules.calibration` replay the records they are from.

The records are of older kernels (`calibration` says of which commit). A number that was changed with the kernels since
no longer replays them; the tests of the records have the one that was fitted.
"""

import json
import re
from dataclasses import replace
from functools import cache

import pytest

import calibrate
from numbarnn.bench import planned
from numbarnn.bench.record import RESULTS
from numbarnn.cells.library import layer_norm_gru
from numbarnn.engines.gpu import profiles
from numbarnn.schedules import SCHEDULES, auto, calibration
from numbarnn.schedules.estimate import pass_us
from numbarnn.schedules.persistent import planner

RECORDS = sorted(RESULTS.glob("h200-2026-11-20-*.json"))
H200 = profiles.get("h200")
LOSS = 0.05  # of what "auto" takes against the best that was recorded
LAUNCHES = re.compile(r"layers? 0(?: to (\d+))? in (\d+) blocks of (\d+) units and (\d+) sequences")


@cache
def rows():
    """All rows with times, but those of "auto"."""
    return calibrate.rows_of(RECORDS)


def problem_of(row):
    return calibrate.problem_of(row, H200)


def estimated_us(row):
    return calibrate.estimated_us(row, H200)


@pytest.fixture
def as_recorded():
    with calibrate.as_recorded():
        yield


@pytest.mark.usefixtures("as_recorded")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_recorded_times_are_estimated(schedule):
    own = [row for row in rows() if row["schedule"] == schedule]
    assert len(own) == 48
    wrong = {}
    for row in own:
        limit = calibrate.limit_of(row)
        ratio = estimated_us(row) / calibrate.recorded_us(row)
        if abs(ratio - 1) > limit:
            wrong[calibrate.name_of(row)] = f"{ratio:.2f} of {calibrate.recorded_us(row):.0f} µs, limit {limit:.0%}"
    assert not wrong


@pytest.mark.usefixtures("as_recorded")
def test_estimates_are_of_the_launches_that_were_recorded():
    """Else they would be compared with times of something else."""
    for row in rows():
        if row["schedule"] == "persistent":
            (last, *sizes) = LAUNCHES.search(row["plan"]).groups()
            problem = problem_of(row)
            first = planner.plan_launches(problem, problem.profile, False)[0]
            assert [first.last - 1, first.blocks, first.tile.units, first.sequences] == [
                int(last or 0), *map(int, sizes)
            ], calibrate.name_of(row)  # fmt: skip


@pytest.mark.usefixtures("as_recorded")
def test_auto_loses_little_against_the_best_recorded():
    times = {}
    for row in rows():
        times.setdefault(calibrate.name_of(row), {})[row["schedule"]] = row
    assert len(times) == 48
    losses = {}
    for name, by_schedule in times.items():
        taken, _ = auto._pick(problem_of(by_schedule["stepwise"]))
        best = min(map(calibrate.recorded_us, by_schedule.values()))
        loss = calibrate.recorded_us(by_schedule[taken.name]) / best - 1
        if loss > LOSS:
            losses[name] = f"{taken.name} is {loss:.0%} slower than the best"
    assert not losses


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


@pytest.mark.full
@pytest.mark.usefixtures("as_recorded")
def test_the_numbers_are_those_that_are_fitted():
    """By the records alone, not by hand: to the three digits that are written down, and what these do to others."""
    numbers, fitted = calibration.numbers(), calibrate.fit(rows(), H200)
    assert numbers.keys() - fitted.keys() == {*calibrate.FIXED}  # of which there is no record
    off = {name: value / numbers[name].value for name, value in fitted.items()}
    assert all(abs(ratio - 1) < 0.02 for ratio in off.values()), off


def test_every_number_counts():
    """What takes longer makes some estimate longer, and is what it was afterwards. Of sums over
    units there is no record. Nodes that there are no more make estimates shorter."""
    large = next(row for row in rows() if calibrate.name_of(row) == "lstm 25,16,512,512,1 float16 forward")
    large = large | {"shape": large["shape"] | {"H": 2048}, "schedule": "persistent"}
    summing = replace(planned.problem(layer_norm_gru, "float16", (512,), 16), profile=H200)

    def estimates():
        yield from (pass_us(summing, name, False) for name in SCHEDULES)
        yield from map(estimated_us, [large, *rows()[::7]])

    before, numbers = [*estimates()], calibration.numbers()
    for name in numbers:
        with calibrate.scaled({name: 2.0}):
            after = [*estimates()]
        longer, shorter = (after, before) if name != "NODE_US" else (before, after)
        assert any(more > 1.0001 * less for more, less in zip(longer, shorter, strict=True)), name
    assert calibration.numbers() == numbers and [*estimates()] == before


@pytest.mark.usefixtures("as_recorded")
def test_the_command_prints_what_to_write_down(monkeypatch, capsys):
    asked, fitted = [], {name: number.value for name, number in calibration.numbers().items()}
    monkeypatch.setattr(calibrate, "fit", lambda *given: asked.append(given) or fitted)
    assert calibrate.main([*map(str, RECORDS)]) == 0
    assert asked == [(rows(), H200)]
    said = capsys.readouterr().out
    assert "SUM_CLOCKS" in said and "0 of 144" in " ".join(said.split())
