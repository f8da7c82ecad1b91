"""What estimates of times are made of: numbers that were fitted to recorded times, each with where it comes from.

The records are those of bench/results/h200-2026-11-20-*.json: times on one NVIDIA H200 with CUDA 13, of LSTM and GRU
in float16 and of LSTM in float32, by every schedule, forward and with backward, of the kernels of commit 0106d8d. The
kernels have changed since. A number holds for the kernels that it was fitted to; what a change of theirs should do to
the estimates is a change of a number here, with that change as its source, until times are recorded again.

All numbers of a kind were fitted together, by least squares of relative errors, none below zero. With them estimates
are within 14 % of all records of the persistent schedule, and within 13 % of those of stepwise and wavefront
(tests/schedules/test_calibration.py replays them). What cannot be told apart by these records is told by one number:
turns and their barriers are in `SUM_CLOCKS`, and all blocks had 8 warps.

Numbers in clocks and shares of a rate hold for other devices by their profiles; microseconds are taken as they are.
"""

from typing import NamedTuple

PERSISTENT = "fitted to 48 times of persistent, records h200-2026-11-20, commit 0106d8d"
STEPS = "fitted to 68 times of stepwise and wavefront, records h200-2026-11-20, commit 0106d8d"


class Number(NamedTuple):
    """A number.

    Attributes:
        value: itself. unit: in words.
        source: the records and the commit of the kernels that it was fitted to.
    """

    value: float
    unit: str
    source: str


# ---- a launch of a persistent kernel
LAUNCH_US = Number(0.4, "µs: a cooperative launch in a graph, besides loading weights", PERSISTENT)
# The loop over a warp's words waits for memory once for each: see `kernels.persistent.mma`, `warp_parts`.
LOAD_US = Number(0.49, "µs for each 32-bit word of weights of a lane, forward", PERSISTENT)
LOAD_BACKWARD_US = Number(0.52, "the same backward, where lanes walk along columns of R", PERSISTENT)
# ---- its steps
L2_SHARE = Number(0.71, "time of reading what is exchanged, in that of all blocks' bytes at the L2's rate", PERSISTENT)
MMA_SHARE = Number(0.78, "of the tensor cores' rate that products reach", PERSISTENT)
SHARED_SHARE = Number(0.72, "of shared memory's rate, weights of the tensor cores' products there", PERSISTENT)
FMA_SHARE = {
    "registers": Number(0.47, "of the rate of multiply-adds, weights in registers", PERSISTENT),
    "shared": Number(0.54, "of the rate of multiply-adds, weights in shared memory", PERSISTENT),
}
SUM_CLOCKS = Number(4.9, "clocks for each partial sum that the warps of a block read, one after another", PERSISTENT)
CELL_BACKWARD_US = Number(0.9, "µs for each (unit, sequence) of a thread: the cell's backward", PERSISTENT)
# ---- a product over all steps
PRODUCT_US = Number(7.9, "µs of a product besides its multiply-adds", PERSISTENT)
PRODUCT_SHARE = {
    # cuBLAS has faster instructions on sm_90 than `mma.sync`, whose rate profiles name.
    "half": Number(1.26, "of the rate of `mma.sync`", PERSISTENT),
    "float32": Number(0.54, "of the rate of multiply-adds", PERSISTENT),
}
# ---- a step by a product of cuBLAS and a kernel
STEP_US = {
    ("half", False): Number(4.97, "µs of a step forward, besides what grows", STEPS),
    ("half", True): Number(5.83, "the same backward", STEPS),
    ("float32", False): Number(4.91, "µs of a step forward, besides what grows", STEPS),
    ("float32", True): Number(8.68, "the same backward", STEPS),
}
#: A product of few rows waits for the sum along its columns: H of them forward, A H backward.
STEP_COLUMN_US = {
    ("half", False): Number(1.23e-3, "µs for each column of a step's product", STEPS),
    ("half", True): Number(1.37e-3, "the same backward", STEPS),
    ("float32", False): Number(14.6e-3, "µs for each column of a step's product", STEPS),
    ("float32", True): Number(0.83e-3, "the same backward", STEPS),
}
STEP_SHARE = {
    "half": Number(0.28, "of the rate of `mma.sync` that a step's products add", STEPS),
    "float32": Number(1.65, "of the rate of multiply-adds that a step's products add to their columns' time", STEPS),
}
LAYER_SHARE = Number(0.35, "of a step's time, what each further layer adds where layers overlap", STEPS)


def numbers():
    """Name -> Number of all of them."""
    found = {}
    for name, value in globals().items():
        if isinstance(value, Number):
            found[name] = value
        elif name.isupper() and isinstance(value, dict):
            found |= {f"{name}[{key!r}]": number for key, number in value.items()}
    return found
