"""What blocks do besides products, forward and backward alike: loading what their pairs need, and dropping out.

A block works on *pairs* of a unit that it owns and a sequence, `tile.units * tile.sequences` of them at once, one after
the other; a thread has up to `tile.pairs` of these.
"""

from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numbarnn.common.philox import philox
from numbarnn.common.precision import compute_dtype, is_half
from numbarnn.compile import storage, units
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit, specialise
from numbarnn.cuda import ptx
from numbarnn.kernels.persistent.columns import BLOCK, GIVEN, RECURRENT, STAGE, WARP

PREFETCH_STEPS = 2  # rows that later steps read are asked for this many steps ahead


class Owned(NamedTuple):
    """What a block owns of its layer and direction.

    Attributes:
        unit, units: its first unit, and how many.
        hidden: H of the layer.
        begin, end: its sequences [begin, end) of the batch.
        batch: B.
    """

    unit: Any
    units: Any
    hidden: Any
    begin: Any
    end: Any
    batch: Any


class Share(NamedTuple):
    """What a warp multiplies at each step: its row of `warps` (`columns.Warp`), but where the weights stand.

    Attributes:
        recurrent: whether with its own layer's step before, not with another layer's numbers.
        given: whether with what was there before the launch, for which nobody waits.
        stage: the number of the product stage for which it does; less than 0 of other products.
        shift, width, column, columns: as there.
    """

    recurrent: Any
    given: Any
    stage: Any
    shift: Any
    width: Any
    column: Any
    columns: Any


class WithinStep(NamedTuple):
    """What blocks exchange within a step, and what of it is kept: tuples of flat arrays, one for each layer and
    direction; empty where the cell has none.

    Attributes:
        words: of sums over units, `across.Words.array`.
        sums: (T, B, Q) in the dtype of sums, which forward writes in training and backward reads.
        v: (T, B, S*H), forward: what rows of R of the S product stages multiply.
        projected: of projections, forward m, the cells' outputs, (T+2, B, D*H), one for each layer; backward the
            gradient of h in each step, (T, B, P).
    """

    words: Any = ()
    sums: Any = ()
    v: Any = ()
    projected: Any = ()


class Rows(NamedTuple):
    """An array with a row for each time or slot and each sequence.

    Attributes:
        array: (times, B, width), flat.
        width: elements of a row.
        column: of the block's first unit.
    """

    array: Any
    width: Any
    column: Any


@cache
def make_decode():
    """A device function decode(tables, batch) -> (own, part, owned, share, split, working).

    own, part: the block's row of `blocks` and its warp's of `warps`. owned, share: of these `Owned` and `Share`.
    split, working: the first warps, before `split`, leave sums of the recurrent product, those before `working` the
        others.
    """

    def decode(tables, batch):
        blocks, warps = tables
        own, part = blocks[cuda.blockIdx.x], warps[cuda.blockIdx.x, cuda.threadIdx.x // 32]
        owned = Owned(own[BLOCK.unit], own[BLOCK.units], own[BLOCK.hidden], own[BLOCK.sequence], own[BLOCK.end], batch)
        recurrent, given = part[WARP.kind] == RECURRENT, part[WARP.kind] == GIVEN
        columns, stage = np.int32(part[WARP.columns]), np.int32(part[WARP.kind]) - np.int32(STAGE)
        share = Share(recurrent, given, stage, part[WARP.shift], part[WARP.width], part[WARP.column], columns)
        split, working = np.int32(own[BLOCK.recurrent_warps]), np.int32(own[BLOCK.working_warps])
        return own, part, owned, share, split, working

    return jit(decode, BACKEND)


@cache
def stored_number(dtype):
    """The type of numbers as they are stored: uint16 for halves."""
    return np.uint16 if is_half(dtype) else np.dtype(compute_dtype(dtype)).type


@cache
def make_states(cell, dtype):
    """Device functions for the states of a unit in memory: h, then the private ones, as numbers.

    Returns:
        A namespace of load, store: of all of them; load_private, store_private: of all but h (see `units`); whole(h,
        private): both together; zero().
    """
    N = cell.num_private
    return SimpleNamespace(
        load=units.loader(1 + N, BACKEND),
        store=units.storer(1 + N, BACKEND),
        load_private=units.loader(N, BACKEND),
        store_private=units.storer(N, BACKEND),
        whole=units.joiner(BACKEND),
        zero=units.zeros(1 + N, BACKEND, compute_dtype(dtype)),
    )


@cache
def make_biases(tile, count):
    """Device functions (load(shared, at), add(values, shared, at)): the biases of a unit's `count` gates, the first of
    which stands at `at`; and the values with their biases added. With `Tile.keeps_biases` `shared` is the local array
    of `make_own_biases`."""
    load_values, add_values = units.loader(count, BACKEND), units.adder(count, BACKEND)
    U = 1 if tile.keeps_biases else tile.units
    load = jit(lambda shared, at: load_values(shared, at, U), BACKEND)
    return load, jit(lambda values, shared, at: add_values(values, load(shared, at)), BACKEND)


@cache
def make_share_biases(tile, G, A):
    """A device function share_biases(shared, weights, bias_w, bias_r, owned): the biases of the block's units, of G
    gates of W x and then of A gates of R h, to shared memory.

    bias_w, bias_r: where the layer's biases begin in weights; below 0 there are none, and zeros stand for them.
    """
    U, THREADS, BIASES, widen = tile.units, tile.threads, tile.biases, storage.widen(tile.dtype)
    zero = np.dtype(compute_dtype(tile.dtype)).type(0)

    def share_biases(shared, weights, bias_w, bias_r, owned):
        for row in range(cuda.threadIdx.x, (G + A) * U, THREADS):
            gate, unit = row // U, row % U
            begin = bias_w + gate * owned.hidden if gate < G else bias_r + (gate - G) * owned.hidden
            there = bias_w >= 0 if gate < G else bias_r >= 0
            if unit < owned.units:
                shared[BIASES + row] = widen(weights[begin + owned.unit + unit]) if there else zero

    return jit(share_biases, BACKEND)


@cache
def make_own_biases(tile):
    """Return a device function own_biases(into, shared, owned) that copies the biases of the thread's pairs from shared
    memory to a local array, where they stay: all biases of the first pair, then of the next."""
    U, P, THREADS, BIASES, count = tile.units, tile.pairs, tile.threads, tile.biases, tile.unit_biases
    load, store = units.loader(count, BACKEND), units.storer(count, BACKEND)

    def own_biases(into, shared, owned):
        for i in range(P):
            unit = (cuda.threadIdx.x + i * THREADS) % U
            if unit < owned.units:
                store(into, i * count, 1, load(shared, BIASES + unit, U))

    return jit(own_biases, BACKEND)


@cache
def make_pair(tile):
    """A device function pair_of(i, b0, owned) -> (number, unit, b, valid): the thread's i-th pair of those of the
    sequences from b0 on; the unit counts from the block's first."""
    U, THREADS, SEQUENCES = tile.units, tile.threads, tile.sequences

    def pair_of(i, b0, owned):
        number = cuda.threadIdx.x + i * THREADS
        unit, b = number % U, b0 + number // U
        return number, unit, b, number < U * SEQUENCES and unit < owned.units and b < owned.end

    return jit(pair_of, BACKEND)


@cache
def make_fetch(tile, count):
    """A device function fetch(into, rows, t, b0, owned).

    It loads `count` numbers of each of the thread's pairs, as they are stored, from the `Rows` of time or slot t, and
    does nothing with them, so that nothing waits for them.
    """
    load, store, pair_of, P = units.loader(count, BACKEND), units.storer(count, BACKEND), make_pair(tile), tile.pairs

    def fetch(into, rows, t, b0, owned):
        for i in range(P):
            _, unit, b, valid = pair_of(i, b0, owned)
            if valid:
                at = (t * owned.batch + b) * rows.width + rows.column + unit
                store(into, i * count, 1, load(rows.array, at, owned.hidden))

    return jit(fetch, BACKEND)


@cache
def make_fetch_sums(tile, count):
    """A device function fetch(into, sums, t, b0, owned), as `make_fetch`'s: `count` sums over units, which are the same
    for all units of a sequence, of sums (T, B, count), flat."""
    load, store, pair_of, P = units.loader(count, BACKEND), units.storer(count, BACKEND), make_pair(tile), tile.pairs

    def fetch(into, sums, t, b0, owned):
        for i in range(P):
            _, _, b, valid = pair_of(i, b0, owned)
            if valid:
                store(into, i * count, 1, load(sums, (t * owned.batch + b) * count, 1))

    return jit(fetch, BACKEND)


@cache
def make_prefetch(tile, count):
    """A device function prefetch(rows, t, b0, owned), that brings the numbers of `make_fetch` to the L2 cache."""
    if count == 0:
        return jit(lambda rows, t, b0, owned: None, BACKEND)
    ask, pair_of, P = ptx.prefetch, make_pair(tile), tile.pairs

    def prefetch(rows, t, b0, owned):
        for i in range(P):
            _, unit, b, valid = pair_of(i, b0, owned)
            if valid and unit == 0:  # the block's units are neighbours
                at = (t * owned.batch + b) * rows.width + rows.column
                for k in range(count):
                    ask(rows.array, at + k * owned.hidden)

    return jit(prefetch, BACKEND)


@cache
def make_look_up(tile):
    """A device function look_up(into, step_mask, slot, b0, end): the step mask of the thread's pairs; step_mask
    (slots, B), flat, a slot begins at `slot`."""
    U, P, THREADS, SEQUENCES = tile.units, tile.pairs, tile.threads, tile.sequences

    def look_up(into, step_mask, slot, b0, end):
        for i in range(P):
            pair = cuda.threadIdx.x + i * THREADS
            b = b0 + pair // U
            if pair < U * SEQUENCES and b < end:
                into[i] = step_mask[slot + b]

    return jit(look_up, BACKEND)


@cache
def make_own_parameters(cell, tile):
    """A device function own_parameters(into, weights, start, owned): the cell's parameters per unit, which begin at
    `start` of weights, for the thread's pairs: they are the same in every step. With `Tile.unit_parameters` `into` is
    shared memory, and gets those of the block's units."""
    dtype, U, P, THREADS, V = tile.dtype, tile.units, tile.pairs, tile.threads, cell.num_per_unit
    load, store = units.loader(V, BACKEND, storage.widen(dtype)), units.storer(V, BACKEND)
    PARAMETERS, in_shared = tile.parameters, tile.unit_parameters > 0

    def share_parameters(into, weights, start, owned):
        for unit in range(cuda.threadIdx.x, owned.units, THREADS):
            store(into, PARAMETERS + unit, U, load(weights, start + owned.unit + unit, owned.hidden))

    if in_shared:
        return jit(share_parameters, BACKEND)

    def own_parameters(into, weights, start, owned):
        for i in range(P):
            unit = (cuda.threadIdx.x + i * THREADS) % U
            if unit < owned.units:
                store(into, i * V, 1, load(weights, start + owned.unit + unit, owned.hidden))

    return jit(own_parameters, BACKEND)


@cache
def make_load_parameters(cell, tile):
    """A device function load(thread, unit, i): those of the thread's i-th pair, of a unit of the block; thread: has
    `shared` and `per_unit`, where `make_own_parameters`' function has left them."""
    V, U, PARAMETERS = cell.num_per_unit, tile.units, tile.parameters
    load = units.loader(V, BACKEND)
    if tile.unit_parameters:
        return jit(lambda thread, unit, i: load(thread.shared, PARAMETERS + unit, U), BACKEND)
    return jit(lambda thread, unit, i: load(thread.per_unit, i * V, 1), BACKEND)


@cache
def make_dropout_factor(dtype):
    """A device function factor(position, masks, mask, scale): 0 or `scale`, as `numbarnn.kernels.arrays.dropout` has
    it.

    masks, scale: what `numbarnn.common.philox.dropout_masks` returns; mask: the row.
    """
    random_words = specialise(philox, compute_dtype(dtype), BACKEND)
    zero, low_bits, high_bits = np.dtype(compute_dtype(dtype)).type(0), np.uint64(0xFFFFFFFF), np.uint64(32)

    def factor(position, masks, mask, scale):
        position = np.uint64(position) + masks[mask, 5]
        counter, lane = position // np.uint64(4), position % np.uint64(4)  # four numbers of each call of philox
        words = random_words(
            counter & low_bits, counter >> high_bits, masks[mask, 3], masks[mask, 4], masks[mask, 1], masks[mask, 2]
        )
        return scale if words[lane] >= masks[mask, 0] else zero

    return jit(factor, BACKEND)
