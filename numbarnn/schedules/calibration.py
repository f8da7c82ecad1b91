"""The numbers behind estimated times.

They were fitted together, by least squares of relative errors, to 144 durations measured on one NVIDIA H200 with CUDA
13: LSTM and GRU in float16, LSTM in float32, every schedule, forward and with backward
(bench/results/h200-2026-11-20-*.json, of commit 0106d8d). The estimates are within 30 % of the newest record, but for
one problem; a test compares them. A comment says where a number has another source. Effects that the records cannot
separate share one number: turns and their barriers are in `SUM_CLOCKS`. A share of a rate may be above 1: the records
separate `MMA_SHARE` and `L2_SHARE` only in part, so one makes up for the other.

For another device, its profile converts clocks and shares of a rate; microseconds stay as they are. In tables, "half"
is float16 and bfloat16, and the flag says whether the number is of the backward pass.
"""

# ---- a launch of a persistent kernel
LAUNCH_US = 2.62  # a cooperative launch in a graph, besides loading weights
# For each 32-bit word of weights of a lane, forward and backward. A tenth of what was fitted, and not timed: since then
# a lane has all its loads on their way at once (`kernels.persistent.weights`).
LOAD_US = {False: 0.05, True: 0.053}
# A node of a graph, measured (bench/results/probe.json). The fitted numbers contain nodes beside launches that there
# are no more (`estimate._spared`).
NODE_US = 0.78
# ---- its steps
L2_SHARE = 1.05  # time of reading what is exchanged, in that of all blocks' bytes at the L2's rate
MMA_SHARE = 1.15  # of the tensor cores' rate that products reach
SHARED_SHARE = 0.757  # of shared memory's rate, if tensor cores' weights are there
FMA_SHARE = {"registers": 0.407, "shared": 0.456}  # of the rate of multiply-adds, by where weights are
WITHIN_SHARE = 1.0  # time of an exchange within a step, in that of the exchange of h; not timed
SUM_CLOCKS = 4.87  # for each partial sum that the warps of a block read, one after another
CELL_BACKWARD_US = 0.884  # for each (unit, sequence) of a thread: the cell's backward
# ---- a product over all steps
PRODUCT_US = 6.17  # besides its multiply-adds
# Of the rate of `mma.sync` (cuBLAS has faster instructions on sm_90), and of the rate of multiply-adds.
PRODUCT_SHARE = {"half": 1.33, "float32": 0.719}
# ---- a step by a product of cuBLAS and a kernel
STEP_US = {("half", False): 4.9, ("half", True): 5.16, ("float32", False): 5.78, ("float32", True): 8.58}
# Per column of a product of few rows, which waits for the sum along its columns: H forward, A H backward.
STEP_COLUMN_US = {
    ("half", False): 1.21e-3, ("half", True): 1.51e-3, ("float32", False): 13.4e-3, ("float32", True): 1.68e-3,
}  # fmt: skip
STEP_SHARE = {"half": 0.268, "float32": 0.905}  # of the rates of `PRODUCT_SHARE` that a step's products add
# Clocks of a step's kernel for each stage of sums over units, and for each unit of it; not timed: three barriers and 32
# loads from shared memory in a chain; a block goes through 256 units at a time, each time with a trip to the L2 cache.
STEP_SUMS_CLOCKS, STEP_SUMS_UNIT_CLOCKS = 1100.0, 2.3
LAYER_SHARE = 0.35  # of a step's time, what each further layer adds where layers overlap
