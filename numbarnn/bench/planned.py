"""Make persistent kernels without a GPU, tiled for a problem and a device, so that they can be compiled."""

from functools import cache

import numpy as np

from numbarnn import cells
from numbarnn.common.precision import compute_dtype
from numbarnn.cuda.launch import Kernel
from numbarnn.engines.gpu import profiles
from numbarnn.kernels import catalog, minimal
from numbarnn.kernels.catalog import ShippedKernel, zeros
from numbarnn.kernels.persistent import backward, ends, forward
from numbarnn.kernels.persistent.columns import Block, Warp
from numbarnn.kernels.persistent.context import WithinStep
from numbarnn.schedules import Problem
from numbarnn.schedules.persistent import planner
from numbarnn.schedules.persistent.tables import make_options

STEPS = 100


def problem(cell, dtype, hidden_sizes, batch, directions=1, training=True, dropout=0.0, **options):
    """Return a Problem with these layers; I = H."""
    cell, size = cells.get(cell), hidden_sizes[0]
    return Problem("cuda", cell, dtype, size, hidden_sizes, directions, STEPS, batch, training, dropout, **options)


# Every dtype of persistent kernels; they compile within a minute.
PROBLEMS = (
    problem("lstm", "float16", (768,), 16),
    problem("gru", "bfloat16", (130, 67), 16),
    problem("rnn_tanh", "float32", (100,), 17),
)


def profile_for(cc):
    """Return a DeviceProfile with this compute capability."""
    return profiles.get("h200" if cc >= (9, 0) else "a100")


def kernels_of(problems, cc):
    """Return the ShippedKernels that the planner launches for problems on a device of a compute capability."""
    shipped = {}
    for each in problems:
        for is_backward in (False, True) if each.training else (False,):
            for launch in planner.plan_launches(each, profile_for(cc), is_backward):
                one = persistent_kernel(each, launch)
                shipped.setdefault((one.dtype, id(one.kernel), one.signature), one)
    return tuple(shipped.values())


def named_kernels(cc):
    """Return all kernels that `numbarnn kernels` finds by name."""
    return [*catalog.shipped_kernels(), *kernels_of(PROBLEMS, cc), minimal_kernel()]


@cache
def minimal_kernel():
    """Return the ShippedKernel of `kernels.minimal`, for 64 units."""
    arguments = zeros("float32", 64), zeros("float32", 1, 1, 64), zeros("float32", 64, 64)
    return ShippedKernel(Kernel(minimal.make_rnn(64)), "float32", "", minimal.THREADS, arguments)


def persistent_kernel(problem, launch):
    """Return the ShippedKernel of a `persistent.launch.Launch` of a problem."""
    cell, dtype, layers, D = problem.cell, problem.dtype, len(launch.layer_range), problem.directions
    places, options = layers * D, planner.variant(problem, launch)
    numbers, sums = zeros(dtype, 1), zeros(compute_dtype(dtype), 1)
    c = (sums,) * layers if cell.num_private else ()
    words = (np.zeros(1, np.int64),) * (places if cell.num_sums else 0)
    vectors = (numbers,) * (places if cell.num_products and not launch.backward else 0)
    projected = (numbers,) * ((places if launch.backward else layers) if problem.projection else 0)
    within = WithinStep(words, (sums,) * (places if cell.num_sums and problem.training else 0), vectors, projected)
    if launch.backward:
        kernel = backward.make_backward(cell, launch.tile, *options)
        dah = (numbers,) * (places if cell.num_ah else 0)
        dax = (numbers,) * (0 if cell.same_gradient else places)
        saved, d_per_unit = ((numbers,) * (places if there else 0) for there in (cell.num_saved, cell.per_unit))
        arrays = dah, dax, ((numbers,) * layers, c, saved), (numbers, d_per_unit), within
    else:
        kernel = forward.make_forward(cell, launch.tile, problem.training, *options)
        keeps = problem.training and cell.num_saved
        dropped = (numbers,) * ((layers - 1 if options[1] else 0) + launch.tile.given)
        gates = (numbers,) * (places if keeps else 0 if launch.tile.given else D)
        arrays = (numbers,) * layers, dropped, c, gates, within
    drawn = np.zeros(1, np.uint8), np.zeros((1, 4), np.uint64), np.zeros((1, 5), np.uint64), 0  # and the scale
    blocks = np.zeros((1, len(Block._fields)), np.int64)
    warps = np.zeros((1, launch.tile.warps, len(Warp._fields)), np.int64)
    arguments = (
        *arrays, *_ends(problem, layers, numbers), numbers, make_options(problem, launch, *drawn), (blocks, warps),
        (np.int32(0),) * 4, np.zeros(1, np.int64),
    )  # fmt: skip
    return ShippedKernel(kernel, dtype, _words(problem, launch), launch.tile.threads, arguments, launch.shared_bytes)


def _ends(problem, layers, numbers):
    h, word = (numbers,) * (1 if len(set(problem.hidden_sizes)) == 1 else layers), np.zeros(1, np.int64)
    c = h if problem.cell.num_private else ()
    return ends.States(h, c, h, c), ends.Leaving(word, np.int64(0), word)


def _words(problem, launch):
    """Return a launch's name: h512_512_b64, or layer1_of_h512_512_b64."""
    layers = launch.layer_range
    words = [] if len(layers) == problem.layers else [f"layer{'_'.join(map(str, layers))}_of"]
    words += [f"h{'_'.join(map(str, problem.hidden_sizes))}", f"b{problem.batch}"]
    words += [f"proj{problem.projection}"] if problem.projection else []
    words += ["bidirectional"] if problem.directions == 2 else []
    words += ["dropout"] if problem.dropping else []
    words += ["masked"] if problem.masked else []
    return "_".join(words)
