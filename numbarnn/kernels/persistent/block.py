"""A block's work besides products, forward and backward: load its pairs' numbers, apply dropout."""

from types import SimpleNamespace

import numpy as np

from numbarnn.common.philox import philox
from numbarnn.common.precision import compute_dtype, compute_type, is_half
from numbarnn.compile import storage, units
from numbarnn.compile.specialise import specialise
from numbarnn.cuda import ptx
from numbarnn.cuda.backend import backend
from numbarnn.cuda.language import cuda
from numbarnn.kernels.device import device_function
from numbarnn.kernels.persistent.context import make_pair

PREFETCH_STEPS = 2  # how many steps ahead rows are prefetched


def stored_number(dtype):
    """Return the type of stored numbers, which is uint16 for float16 and bfloat16."""
    return np.uint16 if is_half(dtype) else compute_type(dtype)


def make_states(cell, dtype):
    """Make device functions for the states of a unit in memory: h, then the other states, in the dtype of sums.

    Returns:
        A namespace of load and store (all states), load_private and store_private (all but h, see `units`), whole(h,
        private), which joins both, zero() and no_private().
    """
    N, number = cell.num_private, compute_dtype(dtype)
    return SimpleNamespace(
        load=units.loader(1 + N),
        store=units.storer(1 + N),
        load_private=units.loader(N),
        store_private=units.storer(N),
        whole=units.joiner(),
        zero=units.zeros(1 + N, number),
        no_private=units.zeros(N, number),
    )


@device_function
def make_state_at(cell, tile):
    """Make state_at(owned, b0, number) -> where a pair's states are in shared memory, for sequences from b0 on."""
    STATES, U, size = tile.states, tile.units, cell.num_states
    return lambda owned, b0, number: STATES + ((b0 - owned.begin) * U + number) * size


# ---- biases and parameters per unit, once per call
@device_function
def make_share_biases(tile, G, A):
    """Make share_biases(shared, weights, bias_w, bias_r, owned), which copies the units' biases to shared memory.

    The biases are those of G gates of W x, then of A gates of R h. bias_w, bias_r: where the layer's biases begin in
    weights; if negative, biases are zero.
    """
    U, THREADS, BIASES, widen = tile.units, tile.threads, tile.biases, storage.widen(tile.dtype)
    zero = compute_type(tile.dtype)(0)

    def share_biases(shared, weights, bias_w, bias_r, owned):
        for row in range(cuda.threadIdx.x, (G + A) * U, THREADS):
            gate, unit = row // U, row % U
            begin = bias_w + gate * owned.hidden if gate < G else bias_r + (gate - G) * owned.hidden
            there = bias_w >= 0 if gate < G else bias_r >= 0
            if unit < owned.units:
                shared[BIASES + row] = widen(weights[begin + owned.unit + unit]) if there else zero

    return share_biases


@device_function
def make_own_biases(tile):
    """Make own_biases(into, shared, owned), which copies the biases of the thread's pairs to a local array, pair by
    pair."""
    U, P, THREADS, BIASES, count = tile.units, tile.pairs, tile.threads, tile.biases, tile.unit_biases
    load, store = units.loader(count), units.storer(count)

    def own_biases(into, shared, owned):
        for i in range(P):
            unit = (cuda.threadIdx.x + i * THREADS) % U
            if unit < owned.units:
                store(into, i * count, 1, load(shared, BIASES + unit, U))

    return own_biases


@device_function
def make_load_biases(tile, count):
    """Make load(shared, at) -> the biases of a unit's `count` gates, from `at` on.
    With `Tile.keeps_biases`, `shared` is the local array that `make_own_biases` has filled."""
    load, between = units.loader(count), 1 if tile.keeps_biases else tile.units
    return lambda shared, at: load(shared, at, between)


@device_function
def make_own_parameters(cell, tile):
    """Make own_parameters(thread, weights, start, owned), which loads the per-unit parameters of the block's units
    once. They begin at `start` of weights. They stay in registers, or with `Tile.unit_parameters` in shared memory."""
    dtype, U, P, THREADS, V = tile.dtype, tile.units, tile.pairs, tile.threads, cell.num_per_unit
    load, store = units.loader(V, storage.widen(dtype)), units.storer(V)
    PARAMETERS = tile.parameters

    def share_parameters(thread, weights, start, owned):
        for unit in range(cuda.threadIdx.x, owned.units, THREADS):
            store(thread.shared, PARAMETERS + unit, U, load(weights, start + owned.unit + unit, owned.hidden))

    def own_parameters(thread, weights, start, owned):
        for i in range(P):
            unit = (cuda.threadIdx.x + i * THREADS) % U
            if unit < owned.units:
                store(thread.per_unit, i * V, 1, load(weights, start + owned.unit + unit, owned.hidden))

    return share_parameters if tile.unit_parameters else own_parameters


@device_function
def make_load_parameters(cell, tile):
    """Make load(thread, unit, i) -> the per-unit parameters of the thread's i-th pair, whose unit is `unit`."""
    V, U, PARAMETERS, load = cell.num_per_unit, tile.units, tile.parameters, units.loader(cell.num_per_unit)
    if tile.unit_parameters:
        return lambda thread, unit, i: load(thread.shared, PARAMETERS + unit, U)
    return lambda thread, unit, i: load(thread.per_unit, i * V, 1)


# ---- what a turn needs of its pairs, loaded in the turn before
@device_function
def make_fetch(tile, count):
    """Make fetch(into, rows, owned, t, b0), which loads `count` stored numbers of each of the thread's pairs. They are
    in the `Rows` of time or slot t. It computes nothing from them, so that the thread does not wait for the loads."""
    load, store = units.loader(count), units.storer(count)
    pair_of, P = make_pair(tile), tile.pairs

    def fetch(into, rows, owned, t, b0):
        for i in range(P):
            _, unit, b, valid = pair_of(owned, b0, i)
            if valid:
                at = (t * owned.batch + b) * rows.width + rows.column + unit
                store(into, i * count, 1, load(rows.array, at, owned.hidden))

    return fetch


@device_function
def make_fetch_sums(tile, count):
    """Make fetch_sums(into, sums, owned, t, b0), which loads `count` sums over units for each of the thread's pairs.
    sums is (T, B, count), flat: all units of a sequence share its sums."""
    load, store = units.loader(count), units.storer(count)
    pair_of, P = make_pair(tile), tile.pairs

    def fetch(into, sums, owned, t, b0):
        for i in range(P):
            _, _, b, valid = pair_of(owned, b0, i)
            if valid:
                store(into, i * count, 1, load(sums, (t * owned.batch + b) * count, 1))

    return fetch


@device_function
def make_prefetch(tile, count):
    """Make prefetch(rows, owned, t, b0, steps), which brings the numbers of `make_fetch` to the L2 cache if time t
    exists."""
    if count == 0:
        return lambda rows, owned, t, b0, steps: None
    ask, pair_of, P = ptx.prefetch, make_pair(tile), tile.pairs

    def prefetch(rows, owned, t, b0, steps):
        if 0 <= t and t < steps:
            for i in range(P):
                _, unit, b, valid = pair_of(owned, b0, i)
                if valid and unit == 0:  # the block's units are neighbors
                    at = (t * owned.batch + b) * rows.width + rows.column
                    for k in range(count):
                        ask(rows.array, at + k * owned.hidden)

    return prefetch


@device_function
def make_look_up(tile):
    """Make look_up(into, step_mask, slot, b0, end), which loads the step mask of the thread's pairs.
    step_mask is (slots, B), flat, and its slot begins at `slot`."""
    U, P, THREADS, SEQUENCES = tile.units, tile.pairs, tile.threads, tile.sequences

    def look_up(into, step_mask, slot, b0, end):
        for i in range(P):
            pair = cuda.threadIdx.x + i * THREADS
            b = b0 + pair // U
            if pair < U * SEQUENCES and b < end:
                into[i] = step_mask[slot + b]

    return look_up


# ---- dropout
@device_function
def make_dropout_factor(dtype):
    """Make factor(position, options, mask) -> 0 or the scale, as in `numbarnn.kernels.arrays.dropout`.
    options: `columns.Options` with masks and scale. mask: the row of masks."""
    random_words = specialise(philox, compute_dtype(dtype), backend())
    zero, low_bits, high_bits = compute_type(dtype)(0), np.uint64(0xFFFFFFFF), np.uint64(32)

    def factor(position, options, mask):
        masks = options.masks
        position = np.uint64(position) + masks[mask, 5]
        counter, lane = position // np.uint64(4), position % np.uint64(4)  # four numbers of each call of philox
        words = random_words(
            counter & low_bits, counter >> high_bits, masks[mask, 3], masks[mask, 4], masks[mask, 1], masks[mask, 2]
        )
        return options.scale if words[lane] >= masks[mask, 0] else zero

    return factor
