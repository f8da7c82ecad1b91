"""What is estimated of schedules, against the newest times that were recorded of each on an H200."""

from numbarnn.bench import record
from numbarnn.bench.shapes import FORWARD
from numbarnn.cells import CELLS
from numbarnn.engines.gpu import profiles
from numbarnn.schedules import SCHEDULES, Problem, choose
from numbarnn.schedules.estimate import pass_us

OFF = 0.3  # of a recorded time
OUTLIER = "gru", "float32", (150, 16, 256, 256, 1)  # its persistent kernels take up to three times the estimate
LOSS = 0.1  # of what "auto" takes against the best that was recorded; the worst is 8 %, LSTM (8, 128, 1024, 3 layers)


def recorded():
    """Cell, dtype, sizes and pass -> schedule -> newest recorded µs by the GPU's clock."""
    records = [record.read(path) for path in record.RESULTS.glob("h200-*.json")]
    found = {}
    for one in sorted(records, key=lambda one: one["date"]):
        for row in one["results"]:
            if row["ok"] and row["schedule"] in SCHEDULES and row["tf32"] is False:
                key = row["cell"], row["dtype"], tuple(row["shape"].values()), row["what"]
                found.setdefault(key, {})[row["schedule"]] = row["device_median_s"]["numbarnn"] * 1e6
    return found


def problem_of(cell, dtype, sizes, what):
    steps, batch, width, hidden, layers = sizes
    own = CELLS[cell], dtype, width, (hidden,) * layers, 1, steps, batch, what != FORWARD
    return Problem("cuda", *own, profile=profiles.get("h200"))


def test_persistent_times_are_estimated():
    times = {key: found["persistent"] for key, found in recorded().items() if "persistent" in found}
    assert len(times) >= 62
    for (*key, what), us in times.items():
        problem = problem_of(*key, what)
        estimated = sum(pass_us(problem, "persistent", backward) for backward in (False, True)[: 1 + problem.training])
        assert abs(estimated / us - 1) < OFF or tuple(key) == OUTLIER, (key, what, estimated, us)


def test_auto_loses_little_against_the_best_recorded():
    times = {key: found for key, found in recorded().items() if len(found) == len(SCHEDULES)}
    assert len(times) == 48
    for key, found in times.items():
        taken, _ = choose("auto").pick(problem_of(*key))
        assert found[taken.name] <= (1 + LOSS) * min(found.values()), (key, taken.name, found)
