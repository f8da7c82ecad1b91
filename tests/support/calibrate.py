"""Fits the planner's numbers (`numbarnn.schedules.calibration`) to recorded times, and says how well they meet them.

    python tests/support/calibrate.py numbarnn/bench/results/h200-2026-11-20-*.json

It prints what to write into that module, and changes nothing. An estimate is a sum of parts, each proportional to one
number (or to its reciprocal, where the number is a share of a rate). So the numbers are found by least squares of
relative errors, none below zero. Squares are divided by the error that is allowed: long sequences weigh more.

Some numbers stay as they are (`FIXED`): `LAYER_SHARE` is a factor of others, `NODE_US` was measured by itself, and the
other three are for cells with stages, which no record has. Rows are estimated with the launches that they were recorded
with (`launches_of`). Records of earlier kernels need the numbers of those kernels: `as_recorded`.
"""

import argparse
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from numbarnn.bench import console, record
from numbarnn.bench.shapes import FORWARD, with_tf32
from numbarnn.cells import CELLS
from numbarnn.engines.gpu import profiles
from numbarnn.schedules import SCHEDULES, auto, calibration, estimate
from numbarnn.schedules.persistent import costs, planner, residence, tilings
from numbarnn.schedules.persistent.launch import GIVEN
from numbarnn.schedules.problem import Problem

LONG, LIMIT, LIMIT_OF_SHORT = 100, 0.15, 0.25  # steps; shares of the recorded time that an estimate may be off
FIXED = ("LAYER_SHARE", "NODE_US", "WITHIN_SHARE", "STEP_SUMS_CLOCKS", "STEP_SUMS_UNIT_CLOCKS")
ROUNDS = 1000  # of the search for numbers, at most


def rows_of(paths):
    """The rows of records that have numbarnn's time by the GPU's clock. "auto" is left out: it is one of the others."""
    found = [row for path in paths for row in record.read(path)["results"]]
    return [row for row in found if row["ok"] and row["schedule"] in SCHEDULES and "numbarnn" in row["device_seconds"]]


def problem_of(row, profile):
    """The problem that a row is about, on a device of that profile. Records have built-in cells, in one direction."""
    sizes, training = row["shape"], row["what"] != FORWARD
    return Problem(
        "cuda", CELLS[row["cell"]], row["dtype"], sizes["I"], (sizes["H"],) * sizes["L"], 1, sizes["T"], sizes["B"],
        training, allow_tf32=row["tf32"] is True, splits_tf32=row["tf32"] == "3x", profile=profile,
    )  # fmt: skip


def recorded_us(row):
    return row["device_median_s"]["numbarnn"] * 1e6


def estimated_us(row, profile):
    problem = problem_of(row, profile)
    passes = (False, True) if problem.training else (False,)
    if row["schedule"] == "persistent":
        return sum(estimate.launches_us(problem, launches_of(row, problem, backward), backward) for backward in passes)
    return sum(estimate.pass_us(problem, row["schedule"], backward) for backward in passes)


def launches_of(row, problem, backward):
    """The launches of a pass. Whether the product of a launch's first input is one of its own is taken from the record:
    planned by the numbers that are fitted, it would change with them."""
    return tuple(
        planner._best_launch(
            problem, problem.profile, launch.first, launch.last, backward,
            given=not backward and GIVEN.format(launch.first) in row["plan"],
        )
        for launch in planner.plan_launches(problem, problem.profile, backward)
    )  # fmt: skip


def limit_of(row):
    """How far an estimate may be off."""
    return LIMIT if row["shape"]["T"] >= LONG else LIMIT_OF_SHORT


def name_of(row):
    """A row in words."""
    sizes = ",".join(map(str, row["shape"].values()))
    return f"{row['cell']} {sizes} {with_tf32(row['dtype'], row['tf32'])} {row['what']}"


# ---------------------------------------------------------------------------------------------------------- the fit
@contextmanager
def scaled(factors):
    """Estimates with numbers that make their parts so many times as long; factors: name of a number -> how many."""
    before = {}
    for name, factor in factors.items():
        table, key = _place(name)
        before[name] = table[key]
        with np.errstate(divide="ignore"):
            value = np.float64(table[key].value)
            table[key] = table[key]._replace(value=value / factor if table[key].divides else value * factor)
    _forget()
    try:
        yield
    finally:
        for name, number in before.items():
            table, key = _place(name)
            table[key] = number
        _forget()


@contextmanager
def as_recorded():
    """Estimates of the kernels that the records are of, by the numbers that were fitted to them."""
    factors = {name: one.fitted / one.value for name, one in calibration.numbers().items() if one.fitted is not None}
    factors["NODE_US"] = 0.0  # no node was spared: the time of all is in the fitted numbers
    before = planner.MOST_N8, planner.LEAST_GAIN, tilings.MIXED_GAIN
    # Each warp had one accumulator, and tilings were compared without the wait for it.
    accumulators, clocks = residence.MOST_ACCUMULATORS, costs.MMA_CLOCKS
    residence.MOST_ACCUMULATORS, costs.MMA_CLOCKS = 1, 0
    # Nor did blocks multiply the input themselves, or have weights in two places.
    planner.MOST_N8, planner.LEAST_GAIN, tilings.MIXED_GAIN = 2, 1.0, 1.0
    try:
        with scaled(factors):
            yield
    finally:
        planner.MOST_N8, planner.LEAST_GAIN, tilings.MIXED_GAIN = before
        residence.MOST_ACCUMULATORS, costs.MMA_CLOCKS = accumulators, clocks
        _forget()


def _place(name):
    """(dict, key) where a number stands."""
    own = vars(calibration)
    if name in own:
        return own, name
    table, _, key = name.partition("[")
    return own[table], next(known for known in own[table] if f"{known!r}]" == key)


def _forget():
    planner.forget()
    auto._pick.cache_clear()


def fit(rows, profile):
    """Name -> fitted value of each number, as far as these rows have something to say about it."""
    names = [name for name in calibration.numbers() if name not in FIXED]
    with scaled(dict.fromkeys(names, 0.0)):
        rest = np.array([estimated_us(row, profile) for row in rows])
    parts = []
    for name in names:
        with scaled({other: float(other == name) for other in names}):
            parts.append(np.array([estimated_us(row, profile) for row in rows]) - rest)
    recorded = np.array([recorded_us(row) for row in rows])
    weight = 1 / recorded / np.sqrt([*map(limit_of, rows)])
    factors = least_squares(np.array(parts).T * weight[:, None], (recorded - rest) * weight)
    numbers = calibration.numbers()
    return {
        name: numbers[name].value / factor if numbers[name].divides else numbers[name].value * factor
        for name, factor in zip(names, factors, strict=True) if factor > 0
    }  # fmt: skip


def least_squares(a, b):
    """The x >= 0 with the least |a x - b|, by Lawson and Hanson (1974), chapter 23."""
    size = a.shape[1]
    x, free = np.zeros(size), np.zeros(size, bool)
    for _ in range(ROUNDS):
        slope = np.where(free, -np.inf, a.T @ (b - a @ x))
        if slope.max() <= 1e-9 * np.abs(a.T @ b).max():
            break
        free[slope.argmax()] = True
        while True:
            best = np.zeros(size)
            best[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            below = free & (best <= 0)
            if not below.any():
                x = best
                break
            step = min(x[below] / (x[below] - best[below]))
            x = x + step * (best - x)
            free &= x > 1e-12
            x[~free] = 0
    return x


def main(argv=None):
    """Prints the numbers, those of today beside them, and the rows that today's estimates miss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, nargs="+", metavar="FILE", help="records of numbarnn bench on a GPU")
    parser.add_argument("--profile", default="h200", choices=profiles.PROFILES, help="of the device; default h200")
    args = parser.parse_args(argv)
    profile, rows = profiles.get(args.profile), rows_of(args.records)
    fitted = fit(rows, profile)
    table = [[name, f"{number.value:.4g}", f"{fitted[name]:.4g}" if name in fitted else "-", number.unit]
             for name, number in calibration.numbers().items()]  # fmt: skip
    console.print_table("Numbers", ["number", "now", "fitted", "unit"], table, right=("now", "fitted"))
    off = {name_of(row) + " " + row["schedule"]: estimated_us(row, profile) / recorded_us(row) for row in rows}
    limits = map(limit_of, rows)
    far = [[name, f"{by:.2f}"] for (name, by), most in zip(off.items(), limits, strict=True) if abs(by - 1) > most]
    console.print_table(f"Estimated now / recorded, beyond the limits: {len(far)} of {len(off)}", ["row", "ratio"], far)
    return 0


if __name__ == "__main__":
    main()
