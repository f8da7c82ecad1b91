"""The kernels that a planner cuts for a problem and a device: those that `numbarnn kernels` and the tests compile.

There are as many persistent kernels as there are cuts. These are those of a few problems, which between them have every
dtype, every way to multiply, every built-in cell, cells with fewer gates of ah than of ax or none, one layer and
several, one direction and two, aligned rows and others.
"""

from functools import cache

import numpy as np

from numbarnn import cells
from numbarnn.cells.library import additive_network, peephole_lstm, sru
from numbarnn.common.precision import compute_dtype
from numbarnn.engines.gpu import profiles
from numbarnn.kernels.catalog import ShippedKernel, zeros
from numbarnn.kernels.persistent import kernels as persistent
from numbarnn.kernels.persistent.tiles import WARP_COLUMNS
from numbarnn.schedules import Problem
from numbarnn.schedules.persistent import planner

STEPS = 100


def problem(cell, dtype, hidden_sizes, batch, directions=1, training=True, dropout=0.0, **options):
    """A Problem of so many layers; I = H."""
    cell, size = cells.get(cell), hidden_sizes[0]
    return Problem("cuda", cell, dtype, size, hidden_sizes, directions, STEPS, batch, training, dropout, **options)


PROBLEMS = (
    problem("lstm", "float16", (768,), 16),
    problem("lstm", "float16", (1024,), 64),
    problem("lstm", "float16", (512,) * 4, 64, dropout=0.2),
    problem("lstm", "float32", (512,), 64),
    problem("lstm", "float32", (512,), 64, training=False),
    problem("lstm", "float32", (64, 64, 64), 8, dropout=0.2),
    problem("lstm", "float16", (768,), 16, padded=True),
    problem(peephole_lstm, "float16", (768,), 16),
    problem(additive_network, "float16", (768, 768), 16),
    problem(sru, "float32", (512,), 64),
    problem("gru", "float32", (256,), 16, directions=2),
    problem("gru", "bfloat16", (130, 67), 16),
    problem("rnn_relu", "float16", (512,), 1),
    problem("rnn_tanh", "float64", (100,), 17),
)


def profile_for(cc):
    """The DeviceProfile that stands for devices of a compute capability."""
    return profiles.get("h200" if cc >= (9, 0) else "a100")


@cache
def persistent_kernels(cc):
    """The ShippedKernels of `PROBLEMS`, as the planner cuts them for a device of a compute capability."""
    shipped = {}
    for each in PROBLEMS:
        for backward in (False, True) if each.training else (False,):
            for launch in planner.plan_launches(each, profile_for(cc), backward):
                one = persistent_kernel(each, launch)
                shipped.setdefault((one.dtype, id(one.kernel), one.signature), one)
    return tuple(shipped.values())


def persistent_kernel(problem, launch):
    """The ShippedKernel of a `planner.Launch` of a problem."""
    cell, dtype, layers = problem.cell, problem.dtype, launch.last - launch.first
    several, places = layers > 1, layers * problem.directions
    options = several, several and problem.dropping, problem.masked
    numbers, sums = zeros(dtype, 1), zeros(compute_dtype(dtype), 1)
    if launch.backward:
        kernel = persistent.make_backward(cell, launch.cut, *options)
        gradients = (numbers,) * (places * (1 if cell.same_gradient else 2))
        states, d_states = ((numbers,) * layers, (sums,) * layers), ((sums,) * places,) * 2
        d_per_unit = (numbers,) * (places if cell.per_unit else 1)
        arrays = gradients, *states, (numbers,) * places, d_per_unit, numbers, *d_states, numbers
    else:
        kernel = persistent.make_forward(cell, launch.cut, problem.training, *options)
        arrays = (numbers,) * (2 * layers), (sums,) * layers, (numbers,) * places, numbers
    noise, masks, scale = np.zeros((1, 4), np.uint64), np.zeros((1, 5), np.uint64), sums.dtype.type(0)
    blocks = np.zeros((1, persistent.BLOCK_COLUMNS), np.int64)
    warps = np.zeros((1, launch.cut.warps, WARP_COLUMNS), np.int64)
    trouble = np.zeros(1, np.int64)
    return ShippedKernel(
        kernel, dtype, _words(problem, launch), launch.cut.threads,
        (*arrays, np.zeros(1, np.uint8), noise, masks, scale, blocks, warps, trouble), launch.shared_bytes,
    )  # fmt: skip


def _words(problem, launch):
    """What tells the launch from others of the same kernel and dtype: h512_512_b64, or layer1_of_h512_512_b64."""
    layers = range(launch.first, launch.last)
    words = [] if len(layers) == problem.layers else [f"layer{'_'.join(map(str, layers))}_of"]
    words += [f"h{'_'.join(map(str, problem.hidden_sizes))}", f"b{problem.batch}"]
    words += ["bidirectional"] if problem.directions == 2 else []
    words += ["dropout"] if problem.dropping else []
    words += ["masked"] if problem.masked else []
    return "_".join(words)
