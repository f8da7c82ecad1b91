"""Load a persistent kernel's initial states and store its final states, or their gradients.

    begin(...)   # before the first step, a block publishes the initial h of its units, for which other blocks wait
    end(...)     # after the last step, it writes the final states of its units
    leave(...)   # the block that leaves last fills a failed call's results with NaN

The kernel copies states itself, since each copy outside would be a graph node, which takes longer than the copy.
"""

from typing import NamedTuple

import numpy as np

from numbarnn.common.precision import compute_type, is_half
from numbarnn.compile import storage, units
from numbarnn.cuda import ptx
from numbarnn.cuda.language import cuda
from numbarnn.kernels.device import device_function
from numbarnn.kernels.persistent.block import make_state_at, make_states
from numbarnn.kernels.persistent.context import Array, Number, make_pair
from numbarnn.kernels.persistent.exchange import make_publish

HAS_H, HAS_C = 1, 2  # bits of `States.given`


class States(NamedTuple):
    """Initial and final states of a launch, or their gradients, as tuples of flat arrays.

    Each array belongs to all layers and directions, or to one layer. Arrays of c are empty if the cell has only h.

    Attributes:
        first_h: (D, B, P) of a layer. first_c: (D, B, N*H). last_h, last_c: the same shapes, written by the launch.
        given: int32, bits `HAS_H` and `HAS_C` of the initial states that exist. Others are zero and not read.
    """

    first_h: tuple = ()
    first_c: tuple = ()
    last_h: tuple = ()
    last_c: tuple = ()
    given: Number = np.int32(0)


class Leaving(NamedTuple):
    """The work of the last block to leave a launch whose error flag is set.

    Attributes:
        told, caller: host memory, which receives the error code if `caller` is not negative (see `error_flag`).
        count: (1,) int64, number of blocks that have left; 0 between launches.
        clears: int32, whether to clear the flag, which is zero between calls.
    """

    told: Array = ()
    caller: Number = np.int64(-1)
    count: Array = ()
    clears: Number = np.int32(0)


@device_function
def _make_place():
    """Make place_of(arrays, owned, place, b, size) -> (an array's index in a tuple of `States`, where sequence b begins
    in it). place: (number of the layer and direction, number of directions). size: numbers per sequence."""

    def place_of(arrays, owned, place, b, size):
        number, directions = place
        which, part = (0, number) if len(arrays) == 1 else (number // directions, number % directions)
        return which, (part * owned.batch + b) * size

    return place_of


def _conversions(dtype, exact):
    """Return (widen, narrow) for states of the caller: between the storage dtype and sums, or none if `exact`."""
    same = units.unchanged()
    return (same, same) if exact else (storage.widen(dtype), storage.narrow(dtype))


@device_function
def make_load_first(cell, dtype, exact_h, exact_c):
    """Make load_first(states, owned, place, width, unit, b, has_h) -> (initial h, other initial states) of a unit.

    Args:
        exact_h, exact_c: whether these states have the dtype of sums, as segments of a call pass them on unrounded.

    Args of load_first:
        place: see `_make_place`. width: of h. has_h: whether the block owns that number of h.
    """
    N, (widen, _), of_state = cell.num_private, _conversions(dtype, exact_h), make_states(cell, dtype)
    load, place_of = units.loader(N, _conversions(dtype, exact_c)[0]), _make_place()
    zero, no_private, has_c = compute_type(dtype)(0), of_state.no_private, N > 0

    def load_first(states, owned, place, width, unit, b, has_h):
        h, private = zero, no_private()
        if has_h and states.given & HAS_H != 0:
            which, at = place_of(states.first_h, owned, place, b, width)
            h = widen(states.first_h[which][at + owned.unit + unit])
        if has_c and states.given & HAS_C != 0:
            which, at = place_of(states.first_c, owned, place, b, N * owned.hidden)
            private = load(states.first_c[which], at + owned.unit + unit, owned.hidden)
        return h, private

    return load_first


@device_function
def make_store_last(cell, dtype, exact_h, exact_c):
    """Make store_last(states, owned, place, width, unit, b, has_h, (h, private)), which writes a unit's final states.
    Arguments: as for `make_load_first`."""
    N, (_, narrow), place_of = cell.num_private, _conversions(dtype, exact_h), _make_place()
    store, has_c = units.storer(N, _conversions(dtype, exact_c)[1]), N > 0

    def store_last(states, owned, place, width, unit, b, has_h, state):
        h, private = state
        if has_h:
            which, at = place_of(states.last_h, owned, place, b, width)
            states.last_h[which][at + owned.unit + unit] = narrow(h)
        if has_c:
            which, at = place_of(states.last_c, owned, place, b, N * owned.hidden)
            store(states.last_c[which], at + owned.unit + unit, owned.hidden, private)

    return store_last


@device_function
def make_leave():
    """Make leave(thread, leaving, error_flag) -> whether the call has failed and this block leaves last. The last block
    must then fill the launch's results with NaN (`make_poison`). All threads of the block call it together."""
    load, store, one, none = ptx.load, ptx.store, np.int64(1), np.int64(0)

    def leave(thread, leaving, error_flag):
        # The block's stores precede its count; other blocks' counts precede what follows.
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            thread.timed_out[0] = 0
            cuda.threadfence()
            if cuda.atomic.add(leaving.count, 0, one) == cuda.gridDim.x - 1:
                cuda.threadfence()
                leaving.count[0] = none
                code = load(error_flag, 0)
                if code != 0:
                    thread.timed_out[0] = 1
                    if leaving.caller >= 0 and leaving.told[0] == 0:
                        leaving.told[0] = leaving.caller + code
                    if leaving.clears != 0:
                        store(error_flag, 0, none)
        cuda.syncthreads()
        return thread.timed_out[0] != 0

    return leave


@device_function
def make_poison(dtype):
    """Make poison(arrays), which fills the flat arrays of a non-empty tuple with NaN."""
    nan = np.uint16(0x7FFF) if is_half(dtype) else np.dtype(dtype).type(np.nan)

    def poison(arrays):
        for number in range(len(arrays)):
            array = arrays[number]
            for i in range(cuda.threadIdx.x, array.size, cuda.blockDim.x):
                array[i] = nan

    return poison


# ---- forward: states that blocks publish
@device_function
def make_begin(cell, tile, save, exact):
    """Make begin(thread, states, owned, outputs, place, rows, slots), which publishes the initial h of the block's
    units.

    It stores their initial states in shared memory, and with `save` the other states for backward. All threads of
    the block call it together, and a barrier must follow.

    Args of begin:
        outputs: how many numbers of h the block owns.
        rows: `context.Rows` of the layer's h and of its other states, all slots.
        slots: slots of the initial states in `rows`.
    """
    dtype, N, P, SEQUENCES, projects = tile.dtype, cell.num_private, tile.pairs, tile.sequences, tile.projects
    number, narrow, of_state = compute_type(dtype), storage.narrow(dtype), make_states(cell, dtype)
    store_state, whole, store_private = of_state.store, of_state.whole, of_state.store_private
    load_first, state_at, keeps = make_load_first(cell, dtype, False, exact), make_state_at(cell, tile), save and N > 0
    publish, pair_of = make_publish(dtype, tile.aligned), make_pair(tile)

    def begin(thread, states, owned, outputs, place, rows, slots):
        (h, c), (slot_h, slot_c), width = rows, slots, rows[0].width // place[1]
        for b0 in range(owned.begin, owned.end, SEQUENCES):
            for i in range(P):
                pair, unit, b, valid = pair_of(owned, b0, i)
                own_h = number(0)
                if valid:
                    own_h, private = load_first(states, owned, place, width, unit, b, unit < outputs)
                    if keeps:
                        at = (slot_c * owned.batch + b) * c.width + c.column + unit
                        store_private(c.array, at, owned.hidden, private)
                    kept = number(0) if projects else own_h
                    store_state(thread.shared, state_at(owned, b0, pair), 1, whole(kept, private))
                at = (slot_h * owned.batch + b) * h.width + h.column + unit
                publish(h.array, at, narrow(own_h), valid and unit < outputs)

    return begin


@device_function
def make_end(cell, tile, exact):
    """Make end(thread, states, owned, outputs, place, h, slot), which writes the final states of the block's units.

    All threads of the block call it together, after a barrier behind the last step. slot: of the final h. Other
    arguments: as for `make_begin`.
    """
    U, THREADS, of_state = tile.units, tile.threads, make_states(cell, tile.dtype)
    widen, state_at, load_private = storage.widen(tile.dtype), make_state_at(cell, tile), of_state.load_private
    store_last, zero = make_store_last(cell, tile.dtype, False, exact), compute_type(tile.dtype)(0)

    def end(thread, states, owned, outputs, place, h, slot):
        for pair in range(cuda.threadIdx.x, (owned.end - owned.begin) * U, THREADS):
            unit, b = pair % U, owned.begin + pair // U
            if unit < owned.units:
                own_h = zero
                if unit < outputs:  # the block has published it
                    own_h = widen(h.array[(slot * owned.batch + b) * h.width + h.column + unit])
                private = load_private(thread.shared, state_at(owned, owned.begin, pair) + 1, 1)
                store_last(states, owned, place, h.width // place[1], unit, b, unit < outputs, (own_h, private))

    return end
