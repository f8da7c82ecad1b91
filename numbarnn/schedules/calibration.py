"""The numbers behind estimated times, fitted to recorded times, each with its source.

The records are bench/results/h200-2026-11-20-*.json: times on one NVIDIA H200 with CUDA 13. They cover LSTM and GRU in
float16 and LSTM in float32, every schedule, forward and with backward. The kernels were those of commit 0106d8d, and
have changed since. A number holds for the kernels that it was fitted to. Where kernels have become faster, the number
was changed by hand: its source says why, and the fitted number stands beside it until times are recorded again. So far
only the time to load weights was changed. A number that no record covers says so in its source.

All numbers were fitted together by `python tests/support/calibrate.py`: least squares of relative errors, none below
zero. The fitted numbers bring all 144 estimates within 13 % of the records for T of at least 100, and within 20 %
below; tests/schedules/test_calibration.py replays them. Effects that these records cannot separate share one number:
turns and their barriers are in `SUM_CLOCKS`, and all blocks had 8 warps. `MMA_SHARE` and `L2_SHARE` trade off in part,
so one of them may be above 1.

Numbers in clocks and shares of a rate hold for other devices by their profiles; microseconds are taken unchanged.
"""

from typing import NamedTuple

FITTED = "fitted to 144 times, records h200-2026-11-20, commit 0106d8d"
LOADS_TOGETHER = (
    "a tenth of what was fitted, not timed: since 2026-11-23 a lane has all its loads on their way at once, 3 to 12 "
    "instructions per word; before, the loop had 50 to 210 and waited for memory at each word "
    "(kernels.persistent.weights)"
)


class Number(NamedTuple):
    """A number of the calibration.

    Attributes:
        value: the number. unit: in words. source: the records and the commit of the kernels that it was fitted to.
        divides: whether it is a share of a rate that is reached: more of it takes less time.
        fitted: what the records gave, if kernels have changed since; None if that is `value`.
    """

    value: float
    unit: str
    source: str
    divides: bool = False
    fitted: float | None = None


# ---- a launch of a persistent kernel
LAUNCH_US = Number(2.62, "µs: a cooperative launch in a graph, besides loading weights", FITTED)
LOAD_US = Number(0.05, "µs for each 32-bit word of weights of a lane, forward", LOADS_TOGETHER, fitted=0.494)
LOAD_BACKWARD_US = Number(0.053, "the same backward, where lanes walk along columns of R", LOADS_TOGETHER, fitted=0.534)
NODE_US = Number(
    0.78,
    "µs: a node of a graph. The fitted numbers contain nodes beside launches that there are no more "
    "(`estimate._spared`)",
    "measured on an H200, 1000 nodes (bench/results/probe.json)",
)
# ---- its steps
L2_SHARE = Number(1.05, "time of reading what is exchanged, in that of all blocks' bytes at the L2's rate", FITTED)
MMA_SHARE = Number(1.15, "of the tensor cores' rate that products reach", FITTED, divides=True)
SHARED_SHARE = Number(
    0.757, "of shared memory's rate, weights of the tensor cores' products there", FITTED, divides=True
)
FMA_SHARE = {
    "registers": Number(0.407, "of the rate of multiply-adds, weights in registers", FITTED, divides=True),
    "shared": Number(0.456, "of the rate of multiply-adds, weights in shared memory", FITTED, divides=True),
}
WITHIN_SHARE = Number(
    1.0,
    "time of an exchange within a step, for sums over units, in that of the exchange of h",
    "not timed: no device has run kernels that exchange something within a step",
)
SUM_CLOCKS = Number(4.87, "clocks for each partial sum that the warps of a block read, one after another", FITTED)
CELL_BACKWARD_US = Number(0.884, "µs for each (unit, sequence) of a thread: the cell's backward", FITTED)
# ---- a product over all steps
PRODUCT_US = Number(6.17, "µs of a product besides its multiply-adds", FITTED)
PRODUCT_SHARE = {
    # cuBLAS has faster instructions on sm_90 than `mma.sync`, whose rate profiles name
    "half": Number(1.33, "of the rate of `mma.sync`", FITTED, divides=True),
    "float32": Number(0.719, "of the rate of multiply-adds", FITTED, divides=True),
}
# ---- a step by a product of cuBLAS and a kernel
STEP_US = {
    ("half", False): Number(4.9, "µs of a step forward, besides what grows", FITTED),
    ("half", True): Number(5.16, "the same backward", FITTED),
    ("float32", False): Number(5.78, "µs of a step forward, besides what grows", FITTED),
    ("float32", True): Number(8.58, "the same backward", FITTED),
}
# Time per column of a product of few rows, which waits for the sum along its columns: H forward, A H backward.
STEP_COLUMN_US = {
    ("half", False): Number(1.21e-3, "µs for each column of a step's product", FITTED),
    ("half", True): Number(1.51e-3, "the same backward", FITTED),
    ("float32", False): Number(13.4e-3, "µs for each column of a step's product", FITTED),
    ("float32", True): Number(1.68e-3, "the same backward", FITTED),
}
STEP_SHARE = {
    "half": Number(0.268, "of the rate of `mma.sync` that a step's products add", FITTED, divides=True),
    "float32": Number(
        0.905, "of the rate of multiply-adds that a step's products add to their columns' time", FITTED, divides=True
    ),
}
STEP_SUMS_CLOCKS = Number(
    1100.0,
    "clocks of a step's kernel for each stage of sums over units, besides what grows",
    "not timed: three barriers, and some 32 loads from shared memory that wait for each other (kernels.step.unit_sums)",
)
STEP_SUMS_UNIT_CLOCKS = Number(
    2.3,
    "clocks for each unit of such a stage",
    "not timed: the one block of a sequence goes through 256 units at a time, each time a trip to the L2 cache of 600 "
    "clocks",
)
LAYER_SHARE = Number(0.35, "of a step's time, what each further layer adds where layers overlap", FITTED)


def numbers():
    """Return all numbers: name -> Number."""
    named = {}
    for name, value in globals().items():
        if isinstance(value, Number):
            named[name] = value
        elif name.isupper() and isinstance(value, dict):
            named |= {f"{name}[{key!r}]": number for key, number in value.items()}
    return named
