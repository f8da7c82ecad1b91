"""Launches of persistent kernels on the arrays of a pass: the task "launch" of the persistent schedule."""

from dataclasses import replace

import numpy as np

from numbarnn.compile.storage import stored
from numbarnn.cuda.launch import LaunchConfig
from numbarnn.kernels.persistent import backward, ends, forward
from numbarnn.kernels.persistent.context import WithinStep
from numbarnn.kernels.persistent.tile import PIECE_BYTES
from numbarnn.passes.executor import part_of_state
from numbarnn.schedules.persistent.planner import variant
from numbarnn.schedules.persistent.tables import Place, make_options, make_tables

POLLS = 1 << 20  # looks at missing data before a kernel gives up, at least: about a second
POLLS_PER_STEP = 64  # more of them, as the first wait may be for all steps of other layers


def bind_forward(work, launch):
    """A function without arguments that runs a `planner.Launch` of a `ForwardPass`."""
    problem, layers, cell = work.problem, launch.layer_range, work.problem.cell
    kinds = several, drops, *_ = variant(problem, launch)
    keeps, keeps_sums = (problem.training and count > 0 for count in (cell.num_saved, cell.num_sums))
    dropped = [work.input(layer) for layer in layers[1:]] if several and drops else []
    given = [work.input(layers[0])] if launch.tile.given else []
    ax = [work.ax[layers[0], direction] for direction in range(0 if given else problem.directions)]
    m = [work.m[layer] for layer in layers if problem.projection]
    v, words = [work.v[place] for place in launch.places if cell.num_products], _words(work, launch)
    arrays = (
        [work.h[layer] for layer in layers],
        dropped + given,
        [work.c[layer] for layer in layers if cell.num_private],
        [work.gates[place] for place in launch.places] if keeps else ax,
        WithinStep(words, [work.sums[place] for place in launch.places if keeps_sums], v, m),
        _states(problem, launch, (work.hx, work.cx), (work.hy, work.cy)),
        _leaving(work, launch, clears=not problem.training),
    )

    def make_kernel(tile):
        return forward.make_forward(cell, tile, problem.training, *kinds)

    aligned = all(work.engine.address(x) % PIECE_BYTES == 0 for x in given)
    launch = launch if aligned else replace(launch, tile=replace(launch.tile, aligned=False))
    exchanged = [*(work.h[layer] for layer in layers), *dropped, *words, *v, *(of_layer[1:-1] for of_layer in m)]
    return _bound(work, work, launch, make_kernel, exchanged, arrays)


def bind_backward(work, launch):
    """A function without arguments that runs a `planner.Launch` of a `BackwardPass`."""
    tape, cell, layers, places = work.tape, work.problem.cell, launch.layer_range, launch.places
    # Without those of a cell that has no ah; where both are the same, once.
    dah = [work.dah[place] for place in places if cell.num_ah]
    dax = [work.dax[place] for place in places if not cell.same_gradient]
    dht = [work.dht[place] for place in places if work.problem.projection]
    words = _words(work, launch)
    h = tape.m if dht else tape.h  # what the cells' equations gave
    arrays = (
        dah,
        dax,
        (
            [h[layer] for layer in layers],
            [tape.c[layer] for layer in layers if cell.num_private],
            [tape.gates[place] for place in places if cell.num_saved],
        ),
        (work.dy_of(launch.last - 1), [work.d_per_unit[place] for place in places if cell.per_unit]),
        WithinStep(words, [tape.sums[place] for place in places if cell.num_sums], projected=dht),
        _states(work.problem, launch, (work.dhy, work.dcy), (work.dhx, work.dcx)),
        _leaving(work, launch, clears=False),
    )

    def make_kernel(tile):
        return backward.make_backward(cell, tile, *variant(work.problem, launch))

    return _bound(work, tape, launch, make_kernel, [*dah, *dax, *dht, *words], arrays)


def _states(problem, launch, first, last):
    """The `ends.States` of a launch, with arrays in lists.

    Args:
        first, last: h and c of the whole call, with which it begins, or None, and which it leaves.
    """
    each = any(type(state) is list for state in (*first, *last))  # an array for each layer, or one for all

    def arrays(state):
        if not each:
            return [state[launch.first * problem.directions : launch.last * problem.directions]]
        return [part_of_state(problem, state, layer) for layer in launch.layer_range]

    given, found = 0, []
    for bit, state, other in zip((ends.HAS_H, ends.HAS_C), first, last, strict=True):
        if other is None:  # there are no private states
            found.append(((), ()))
            continue
        given |= 0 if state is None else bit
        found.append((arrays(other if state is None else state), arrays(other)))
    (first_h, last_h), (first_c, last_c) = found
    return ends.States(first_h, first_c, last_h, last_c, np.int32(given))


def _leaving(work, launch, clears):
    """The `ends.Leaving` of a launch; the last one of a pass tells the host, and may clear the flag."""
    told, caller = work.engine.notice_of(work.caller)
    tells = launch is work.final_launch
    return ends.Leaving(told, np.int64(caller if tells else -1), work.exits, np.int32(tells and clears))


def _words(work, launch):
    """The words of a launch's sums over units, by place."""
    return [work.words[place] for place in launch.places if work.problem.cell.num_sums]


def _bound(work, tape, launch, make_kernel, exchanged, arrays):
    """The launch's kernel bound to its arrays; what is exchanged is marked before each call.

    Args:
        tape: the ForwardPass, with the weights.
        make_kernel: `Tile` -> the kernel.
        exchanged: arrays whose numbers blocks wait for.
        arrays: the kernel's first arguments, in lists and tuples; then come weights and the rest.
    """
    problem, engine = work.problem, work.engine
    weights, places = _weights(tape)
    other = launch.tile.aligned and not _are_aligned(engine, weights, places)
    kernel = make_kernel(replace(launch.tile, weights_aligned=False) if other else launch.tile)
    options = make_options(problem, launch, _flat(tape.step_mask), tape.noise, tape.masks, tape.scale)
    tables = tuple(map(engine.constant, make_tables(problem, launch, places)))
    polls = min(POLLS + POLLS_PER_STEP * problem.steps * problem.layers, 2**31 - 1)
    sizes = tuple(map(np.int32, (problem.directions, problem.steps, problem.batch, polls)))
    tile = launch.tile
    config = LaunchConfig(launch.blocks, tile.threads, launch.shared_bytes, cooperative=True)
    bound = kernel.bind(config, *_flat(arrays), _flat(weights), options, tables, sizes, work.trouble)

    _require_room(bound, launch)

    def run():
        for array in exchanged:
            engine.mark_unwritten(array)
        bound()

    return run


def _require_room(bound, launch):
    """Raise RuntimeError where the device does not hold all of a launch's blocks at once; the simulator does."""
    fit = getattr(bound, "resident_blocks", lambda: launch.blocks)()
    if fit < launch.blocks:
        raise RuntimeError(
            f"a persistent launch has {launch.blocks} blocks, of {launch.tile.threads} threads and "
            f"{launch.shared_bytes} bytes of shared memory each, which must run at the same time, and the device has "
            f"room for {fit} (a share of a GPU, by MPS or MIG, has less than the whole): use schedule='wavefront' or "
            f"'stepwise'"
        )


def _flat(array):
    """An array as kernels take it, one-dimensional, halves as their bits; lists and tuples of arrays as tuples."""
    if array is None:
        return None
    if isinstance(array, WithinStep | ends.States | ends.Leaving):
        return type(array)(*map(_flat, array))
    if isinstance(array, np.int32 | np.int64):
        return array
    return tuple(map(_flat, array)) if isinstance(array, list | tuple) else stored(array.reshape(-1))


def _weights(tape):
    """(array, places): the array that has all of the pass's weights; (layer, direction) -> their Place in it."""
    engine, flat, made = tape.engine, tape.flat, tape.recurrent
    start, size = engine.address(flat), flat.dtype.itemsize

    def offset(view):
        """Elements from the buffer's start; -1 for what is not in it."""
        elements = -1 if view is None else (engine.address(view) - start) // size
        return elements if 0 <= elements < flat.size else -1

    places = {
        (layer, direction): Place(**{kind: offset(getattr(part, kind)) for kind in Place.__annotations__})
        for layer, parts in enumerate(tape.weights)
        for direction, part in enumerate(parts)
    }
    if made is None:
        return flat, places
    return made.array, {place: replace(found, R=made.start(place)) for place, found in places.items()}


def _are_aligned(engine, array, places):
    """Whether all matrices that kernels keep begin at multiples of 16 bytes: in an array that is a view, or has
    parameters of odd sizes before them, they need not."""
    first, size = engine.address(array), array.dtype.itemsize
    starts = [at for place in places.values() for at in (place.W, place.R, place.W_hr) if at >= 0]
    return all((first + at * size) % 16 == 0 for at in starts)
