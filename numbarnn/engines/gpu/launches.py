"""Bind persistent kernels to the arrays of a launch."""

from dataclasses import replace

import numpy as np

from numbarnn.compile.storage import stored
from numbarnn.cuda.launch import LaunchConfig
from numbarnn.kernels.persistent import backward, ends, forward
from numbarnn.kernels.persistent.context import WithinStep
from numbarnn.kernels.persistent.tile import PIECE_BYTES
from numbarnn.schedules.persistent.planner import variant
from numbarnn.schedules.persistent.tables import make_options, make_tables

POLLS = 1 << 20  # polls before a wait times out, about a second
POLLS_PER_STEP = 64  # further polls per step and layer, since the first wait may be for all steps of other layers


def bind(engine, args):
    """Return a function without arguments that runs a launch, for `LaunchArrays` with the engine's arrays."""
    problem, launch = args.problem, args.launch
    if not all(engine.address(array) % PIECE_BYTES == 0 for array in args.aligned):
        launch = replace(launch, tile=replace(launch.tile, aligned=False))
    tile = launch.tile
    if tile.aligned and not _are_aligned(engine, args.weights, args.places):
        tile = replace(tile, weights_aligned=False)
    kinds = variant(problem, args.launch)
    if launch.backward:
        kernel = backward.make_backward(problem.cell, tile, *kinds)
    else:
        kernel = forward.make_forward(problem.cell, tile, problem.training, *kinds)
    told, caller = engine.notice_of(args.caller)
    leaving = ends.Leaving(told, np.int64(caller if args.tells else -1), args.exits, np.int32(args.clears))
    step_mask, noise, masks, scale = args.options
    options = make_options(problem, launch, _flat(step_mask), noise, masks, scale)
    tables = tuple(map(engine.constant, make_tables(problem, launch, args.places)))
    polls = min(POLLS + POLLS_PER_STEP * problem.steps * problem.layers, 2**31 - 1)
    sizes = tuple(map(np.int32, (problem.directions, problem.steps, problem.batch, polls)))
    config = LaunchConfig(launch.blocks, tile.threads, launch.shared_bytes, cooperative=True)
    arrays = *_flat(args.arrays), _flat(leaving), _flat(args.weights)
    bound = kernel.bind(config, *arrays, options, tables, sizes, args.error_flag)
    _require_room(bound, launch)
    return bound


def _require_room(bound, launch):
    """Raise RuntimeError if the device cannot hold all of a launch's blocks at once. The simulator always can."""
    fit = getattr(bound, "resident_blocks", lambda: launch.blocks)()
    if fit < launch.blocks:
        raise RuntimeError(
            f"a persistent launch needs {launch.blocks} blocks of {launch.tile.threads} threads and "
            f"{launch.shared_bytes} bytes of shared memory at the same time, but the device has room for {fit} (less "
            f"than usual on a part of a GPU, by MPS or MIG): use schedule='wavefront' or 'stepwise'"
        )


def _flat(array):
    """Return an array flat, with 16-bit numbers as uint16; lists and tuples of arrays as tuples of flat arrays."""
    if array is None:
        return None
    if isinstance(array, WithinStep | ends.States | ends.Leaving):
        return type(array)(*map(_flat, array))
    if isinstance(array, np.int32 | np.int64):
        return array
    return tuple(map(_flat, array)) if isinstance(array, list | tuple) else stored(array.reshape(-1))


def _are_aligned(engine, array, places):
    """Return whether all matrices that kernels read begin at multiples of 16 bytes.
    Matrices in a view, or behind parameters of odd sizes, may not."""
    first, size = engine.address(array), array.dtype.itemsize
    starts = [at for place in places.values() for at in (place.W, place.R, place.W_hr) if at >= 0]
    return all((first + at * size) % 16 == 0 for at in starts)
