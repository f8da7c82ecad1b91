"""How a persistent forward kernel begins and ends: initial states from the call's arrays, final states to its results.

    begin_states(...)   # before the first step: a block publishes its units' initial h, for which others wait
    end_states(...)     # after the last one: it writes its units' final states
    leave(...)          # at last: the block that leaves last fills the results of a call that failed with NaN

So nothing stands between the launch and the end of the call. Each copy would be a node of the call's graph, and a node
takes longer than the copy itself.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numbarnn.common.precision import compute_dtype, is_half
from numbarnn.compile import storage, units
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.kernels.persistent import block, exchange

STAYS, POISONS, CLEARS = 0, 1, 2  # values of `Leaving.how`
HAS_H, HAS_C, C_IN_SLOTS = 1, 2, 4  # bits of `States.given`


class States(NamedTuple):
    """Initial and final states of a launch: tuples of flat arrays in the dtype of storage, one for all layers and
    directions or, where layers differ in size, one for each layer. They are empty where states are `copied`, those of c
    also where the cell has no private states.

    Attributes:
        h0: (D, B, H) of a layer, initial h. c0: (D, B, N*H), initial private states.
        hy, cy: the final ones.
        given: int32, which initial states there are, `HAS_H` and `HAS_C`. The others are zero, and any arrays stand in
            their place. With `C_IN_SLOTS` other kernels copy the private states to and from the layer's slots, as
            segments of a call hand them on unrounded.
    """

    h0: Any = ()
    c0: Any = ()
    hy: Any = ()
    cy: Any = ()
    given: Any = np.int32(0)


class Leaving(NamedTuple):
    """What the block does that leaves a launch last. It is empty where states are `copied`.

    Attributes:
        results: the call's results, flat arrays in the dtype of storage.
        told, caller: of the host, see `trouble.make_spoil`.
        count: (1,) int64, how many blocks have left; 0 between launches.
        how: int32. `STAYS`: nothing, as other tasks follow. `POISONS`: if the error flag is set, it fills the results
            with NaN and notifies the host. `CLEARS`: then it also clears the flag, which is zero between calls.
    """

    results: Any = ()
    told: Any = ()
    caller: Any = np.int64(0)
    count: Any = ()
    how: Any = np.int32(STAYS)


def copied(cell, projects):
    """Whether other kernels copy initial states to where steps read them, and final states from there.

    Blocks of a projection publish outputs, not units; cells with stages have no register to spare.

    Args:
        projects: whether h is a projection.
    """
    return bool(projects) or len(cell.stages) > 0


@cache
def _make_place():
    """Return a device function place_of(states, place) -> (number of the array in each tuple of `States`, number of the
    part in it).

    place: number of the layer and direction, and the number of directions.
    """

    def place_of(states, place):
        number, directions = place
        return (0, number) if len(states.hy) == 1 else (number // directions, number % directions)

    return jit(place_of, BACKEND)


@cache
def make_begin(cell, tile, save):
    """Return a device function begin(shared, h, c, states, place, slots, owned) that publishes the initial h of the
    block's units, and keeps their initial states in shared memory. With `save` it also stores the private ones, for
    backward.

    All threads of the block call it together; a barrier must follow.

    Args of begin:
        h, c: `block.Rows` of the layer's states, all slots. states: `States`. place: as of `_make_place`.
        slots: of the initial h and of the initial private states. owned: `block.Owned`.
    """
    dtype, number, N = tile.dtype, np.dtype(compute_dtype(tile.dtype)).type, cell.num_private
    U, P, SEQUENCES, STATES, has_c = tile.units, tile.pairs, tile.sequences, tile.states, cell.num_private > 0
    widen, narrow, of_state = storage.widen(dtype), storage.narrow(dtype), block.make_states(cell, dtype)
    store_state, whole, store_private = of_state.store, of_state.whole, of_state.store_private
    load_stored, no_private = units.loader(N, BACKEND, widen), units.zeros(N, BACKEND, compute_dtype(dtype))
    load_private, place_of = of_state.load_private, _make_place()
    publish, pair_of = exchange.make_publish(dtype, tile.aligned), block.make_pair(tile)

    def begin(shared, h, c, states, place, slots, owned):
        slot_h, slot_c = slots
        which, part = place_of(states, place)
        for b0 in range(owned.begin, owned.end, SEQUENCES):
            for i in range(P):
                pair, unit, b, valid = pair_of(i, b0, owned)
                stored = narrow(number(0))
                if valid:
                    private = no_private()
                    if states.given & HAS_H != 0:
                        stored = states.h0[which][(part * owned.batch + b) * owned.hidden + owned.unit + unit]
                    if has_c:
                        in_slot = (slot_c * owned.batch + b) * c.width + c.column + unit
                        if states.given & C_IN_SLOTS != 0:
                            private = load_private(c.array, in_slot, owned.hidden)
                        elif states.given & HAS_C != 0:
                            at = (part * owned.batch + b) * N * owned.hidden + owned.unit + unit
                            private = load_stored(states.c0[which], at, owned.hidden)
                        if save:
                            store_private(c.array, in_slot, owned.hidden, private)
                    at_state = STATES + ((b0 - owned.begin) * U + pair) * (1 + N)
                    store_state(shared, at_state, 1, whole(widen(stored), private))
                publish(h.array, (slot_h * owned.batch + b) * h.width + h.column + unit, stored, valid)

    return jit(begin, BACKEND)


@cache
def make_end(cell, tile, save):
    """Return a device function end(shared, c, states, place, final, owned) that writes the final states of the block's
    units.

    All threads of the block call it together, after a barrier behind the last step. final: slot of the final private
    states. Other arguments as of `make_begin`.
    """
    U, THREADS, STATES, N, has_c = tile.units, tile.threads, tile.states, cell.num_private, cell.num_private > 0
    narrow, load, place_of = storage.narrow(tile.dtype), units.loader(N, BACKEND), _make_place()
    store, store_private = units.storer(N, BACKEND, narrow), block.make_states(cell, tile.dtype).store_private

    def end(shared, c, states, place, final, owned):
        which, part = place_of(states, place)
        for pair in range(cuda.threadIdx.x, (owned.end - owned.begin) * U, THREADS):
            unit, b = pair % U, owned.begin + pair // U
            if unit < owned.units:
                at_state = STATES + pair * (1 + N)
                row = part * owned.batch + b
                states.hy[which][row * owned.hidden + owned.unit + unit] = narrow(shared[at_state])
                if has_c:
                    private = load(shared, at_state + 1, 1)
                    if states.given & C_IN_SLOTS == 0:
                        store(states.cy[which], row * N * owned.hidden + owned.unit + unit, owned.hidden, private)
                    elif not save:  # else the last step has
                        at = (final * owned.batch + b) * c.width + c.column + unit
                        store_private(c.array, at, owned.hidden, private)

    return jit(end, BACKEND)


@cache
def make_leave(dtype):
    """Return a device function leave(leaving, flag, failed): a block's last work, whether or not it failed.

    All threads of the block call it together. Args of leave: leaving, `Leaving`; flag, the call's error flag
    (`numbarnn.kernels.trouble`); failed, (1,) int32 in shared memory, written.
    """
    nan = np.uint16(0x7FFF) if is_half(dtype) else np.dtype(dtype).type(np.nan)
    load, store, one, none = ptx.load, ptx.store, np.int64(1), np.int64(0)

    def leave(leaving, flag, failed):
        if leaving.how == STAYS:
            return
        # All that the block has stored comes before its count; all that others have counted before what follows.
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            failed[0] = 0
            cuda.threadfence()
            if cuda.atomic.add(leaving.count, 0, one) == cuda.gridDim.x - 1:
                cuda.threadfence()
                leaving.count[0] = none
                code = load(flag, 0)
                if code != 0:
                    failed[0] = 1
                    if leaving.told[0] == 0:
                        leaving.told[0] = leaving.caller + code
                    if leaving.how == CLEARS:
                        store(flag, 0, none)
        cuda.syncthreads()
        if failed[0] != 0:
            for number in range(len(leaving.results)):
                result = leaving.results[number]
                for i in range(cuda.threadIdx.x, result.size, cuda.blockDim.x):
                    result[i] = nan

    return jit(leave, BACKEND)
