"""Gather the arrays of persistent launches: the task "launch" of the persistent schedule."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from numbarnn.kernels.persistent import ends
from numbarnn.kernels.persistent.context import WithinStep
from numbarnn.programs.states import part_of_state
from numbarnn.schedules.persistent.planner import variant
from numbarnn.schedules.persistent.tables import WeightOffsets


@dataclass
class LaunchArrays:
    """The arrays and settings of a launch.

    Attributes:
        problem: of the call. launch: the `persistent.launch.Launch`.
        arrays: the kernel's first arguments, in lists and tuples; weights and the rest follow.
        aligned: callers' arrays that the kernel reads in vectors, so they must start at multiples of 16 bytes.
        weights: the array with all weights. places: (layer, direction) -> its `WeightOffsets` in that array.
        options: (step_mask, noise, masks, scale), see `schedules.persistent.tables.make_options`.
        error_flag, exits: (1,) int64: the error flag, and the number of blocks that have finished.
        caller: the layer's description, for error messages. tells: whether the launch reports a failed call to the
            host.
        clears: whether it then clears the flag.
    """

    has_views: ClassVar = True

    problem: Any
    launch: Any
    arrays: tuple
    aligned: list
    weights: Any
    places: dict
    options: tuple
    error_flag: Any
    exits: Any
    caller: str
    tells: bool
    clears: bool


def forward_arrays(forward, launch):
    """Return the `LaunchArrays` of a `persistent.launch.Launch` in a `programs.forward.Forward`."""
    f, problem, layers, cell = forward, forward.problem, launch.layer_range, forward.problem.cell
    has_inputs, drops, *_ = variant(problem, launch)
    keeps, keeps_sums = (problem.training and count > 0 for count in (cell.num_saved, cell.num_sums))
    dropped = [f.layer_input(layer) for layer in layers[1:]] if has_inputs and drops else []
    inputs = [f.layer_input(layers[0])] if launch.tile.given else []
    ax = [f.ax[layers[0], direction] for direction in range(0 if inputs else problem.directions)]
    m = [f.m[layer] for layer in layers if problem.projection]
    v, words = [f.v[place] for place in launch.places if cell.num_products], _words(f, launch)
    arrays = (
        [f.h[layer] for layer in layers],
        dropped + inputs,
        [f.c[layer] for layer in layers if cell.num_private],
        [f.gates[place] for place in launch.places] if keeps else ax,
        WithinStep(words, [f.sums[place] for place in launch.places if keeps_sums], v, m),
        _states(problem, launch, (f.hx, f.cx), (f.hy, f.cy)),
    )
    f.exchanged += [*(f.h[layer] for layer in layers), *dropped, *words, *v, *(of_layer[1:-1] for of_layer in m)]
    return _launch_arrays(f, f, launch, arrays, inputs, clears=not problem.training)


def backward_arrays(backward, launch):
    """Return the `LaunchArrays` of a `persistent.launch.Launch` in a `programs.backward.Backward`."""
    b, tape, cell, layers, places = backward, backward.tape, backward.problem.cell, launch.layer_range, launch.places
    # Without those of a cell that has no ah; where both are the same, once.
    dah = [b.dah[place] for place in places if cell.num_ah]
    dax = [b.dax[place] for place in places if not cell.same_gradient]
    dht = [b.dht[place] for place in places if b.problem.projection]
    words = _words(b, launch)
    h = tape.m if dht else tape.h  # with a projection, the cell's output is m
    arrays = (
        dah,
        dax,
        (
            [h[layer] for layer in layers],
            [tape.c[layer] for layer in layers if cell.num_private],
            [tape.gates[place] for place in places if cell.num_saved],
        ),
        (b.dy_of(launch.last - 1), [b.d_per_unit[place] for place in places if cell.per_unit]),
        WithinStep(words, [tape.sums[place] for place in places if cell.num_sums], projected=dht),
        _states(b.problem, launch, (b.dhy, b.dcy), (b.dhx, b.dcx)),
    )
    b.exchanged += [*dah, *dax, *dht, *words]
    return _launch_arrays(b, tape, launch, arrays, [], clears=False)


def _launch_arrays(program, tape, launch, arrays, aligned, clears):
    """Return the `LaunchArrays` of a forward or backward program; tape: the `Forward` with the weights."""
    weights, places = _weights(tape)
    options = tape.step_mask, tape.noise, tape.masks, tape.scale
    tells = launch is program.final_launch
    return LaunchArrays(
        program.problem, launch, arrays, aligned, weights, places, options, program.error_flag,
        program.exits, program.caller, tells, tells and clears,
    )  # fmt: skip


def _states(problem, launch, first, last):
    """Return a launch's `ends.States`, with arrays in lists. first: the whole call's h and c at its start, None for
    zero. last: at its end."""
    each = any(type(state) is list for state in (*first, *last))  # an array for each layer, or one for all

    def arrays(state):
        if not each:
            return [state[launch.first * problem.directions : launch.last * problem.directions]]
        return [part_of_state(problem, state, layer) for layer in launch.layer_range]

    bits, states = 0, []
    for bit, state, other in zip((ends.HAS_H, ends.HAS_C), first, last, strict=True):
        if other is None:  # there are no private states
            states.append(((), ()))
            continue
        bits |= 0 if state is None else bit
        states.append((arrays(other if state is None else state), arrays(other)))
    (first_h, last_h), (first_c, last_c) = states
    return ends.States(first_h, first_c, last_h, last_c, np.int32(bits))


def _words(program, launch):
    """Return the arrays through which blocks exchange sums over units, one per layer and direction."""
    return [program.words[place] for place in launch.places if program.problem.cell.num_sums]


def _weights(tape):
    """Return the array with all weights, and (layer, direction) -> its `WeightOffsets` in it."""
    array = tape.flat if tape.recurrent is None else tape.recurrent.array

    def offset(view):
        """Elements from the array's start; -1 for what is not in it."""
        return view.offset // view.itemsize if view is not None and view.buffer is tape.flat.buffer else -1

    places = {
        (layer, direction): {kind: offset(getattr(part, kind)) for kind in WeightOffsets.__annotations__}
        for layer, parts in enumerate(tape.weights)
        for direction, part in enumerate(parts)
    }
    if tape.recurrent is not None:
        for place, offsets in places.items():
            offsets["R"] = tape.recurrent.start(place)
    return array, {place: WeightOffsets(**offsets) for place, offsets in places.items()}
