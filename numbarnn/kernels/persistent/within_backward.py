"""What a step backward does between its products and the cell: the gradients of the cell's stages, the last one first.

As `within_forward` in reverse: for sums over units blocks exchange their parts of the sums' gradients (`across`), for a
product the gradients of its gates (`exchange`). What reaches a pair from later steps and from above is gathered once
per step and stays in registers, and so do the gradients of what later products multiplied.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from numbarnn.cells.definition import Given
from numbarnn.common.order import RESET, SKIP
from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage, units
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit, specialise
from numbarnn.kernels.persistent import block, exchange, products
from numbarnn.kernels.persistent.within import make_in_turn, make_multiply, make_stage_sums, make_sums
from numbarnn.kernels.step.given import make_draw, make_settings_of


class PairsOfStep(NamedTuple):
    """What a step needs of forward and from above, of the thread's pairs: local arrays, and where they come from.

    Attributes:
        saved: what the cell saved. h_before, h_after, c_before, c_after: states before and after the step.
        dy: the gradient of the layer's output, if it stands in an array.
        sums: over units, of a cell that has any.
    """

    saved: Any
    h_before: Any
    h_after: Any
    c_before: Any
    c_after: Any
    dy: Any
    sums: Any


class Own(NamedTuple):
    """Arrays of a block, and local ones of a thread.

    Attributes:
        shared: shared memory, laid out as `Tile` says.
        failed: shared (1,), whether a thread of the block has waited in vain.
        pairs: `PairsOfStep`. code_of, code_after: their step mask, and that of the step after. per_unit: their
            parameters.
        came: cells with stages, and projections: of each pair the gradient of the output, then those of h and of the
            private states that come from later steps.
        d_v: product stages: of each pair the gradients of what they multiply.
    """

    shared: Any
    failed: Any
    pairs: Any
    code_of: Any
    code_after: Any
    per_unit: Any
    came: Any
    d_v: Any


class About(NamedTuple):
    """What does not change from step to step: as of `within_forward.About`, and

    Attributes:
        reads_dy: whether the gradient of the output stands in `PairsOfStep.dy`.
        mask: row of the masks for dropout of the output; -1: none. outputs: the `block.Rows` of the output's gradient.
    """

    owned: Any
    split: Any
    working: Any
    stage_warps: Any
    reads_dy: Any
    mask: Any
    outputs: Any
    options: Any
    noise: Any
    trouble: Any


@cache
def _make_carried(cell, tile, inputs, masked):
    """A device function carried(own, about, turn, i): the gradient of the state that comes from later steps, of the
    thread's i-th pair, a valid one; that of h is kept in shared memory."""
    A, N, U, STATES = cell.num_recurrent, cell.num_private, tile.units, tile.states
    number = np.dtype(compute_dtype(tile.dtype)).type
    sums = products.make_sums(tile, 1, inputs or cell.num_products > 0 or tile.projects)
    PARTIALS, ROW_STRIDE = tile.partials, tile.row_stride
    pair_of, of_state = block.make_pair(tile), block.make_states(cell, tile.dtype)
    load_private, whole, no_private = of_state.load_private, of_state.whole, units.zeros(N, BACKEND, number.__name__)

    def carried(own, about, turn, i):
        shared, pair = own.shared, pair_of(i, turn.b0, about.owned)[0]
        at_state = STATES + ((turn.b0 - about.owned.begin) * U + pair) * (1 + N)
        d_h = shared[at_state]
        if A > 0 and turn.step > 0:
            d_h += sums(shared, PARTIALS + pair // U * ROW_STRIDE + pair % U, 0, about.split)[0]
        private = load_private(shared, at_state + 1, 1)
        if masked and own.code_after[i] == RESET:  # nothing comes from the step after
            d_h, private = number(0), no_private()
        shared[at_state] = d_h
        return whole(d_h, private)

    return jit(carried, BACKEND)


@cache
def _make_output(tile, inputs, drops):
    """A device function output_of(own, about, turn, i): the gradient of the output, of the thread's i-th pair, a valid
    one."""
    dtype, U, PARTIALS, ROW_STRIDE = tile.dtype, tile.units, tile.partials, tile.row_stride
    widen, sums, pair_of = storage.widen(dtype), products.make_sums(tile, 1, inputs), block.make_pair(tile)
    dropout_factor = block.make_dropout_factor(dtype)

    def output_of(own, about, turn, i):
        pair, unit, b, _ = pair_of(i, turn.b0, about.owned)
        output = widen(own.pairs.dy[i])
        if inputs and not about.reads_dy:
            output = sums(own.shared, PARTIALS + pair // U * ROW_STRIDE + unit, about.split, about.working)[0]
            if drops and about.mask >= 0:
                row = turn.t * about.owned.batch + b
                position = row * about.outputs.width + about.outputs.column + unit
                output *= dropout_factor(position, about.options.masks, about.mask, about.options.scale)
        return output

    return jit(output_of, BACKEND)


@cache
def make_d_state(cell, tile, inputs, masked):
    """A device function d_state_of(own, about, turn, i): the gradient of the state that comes from later steps, of the
    thread's i-th pair, a valid one. Of a cell with stages or a projection it takes what `make_gather` has gathered."""
    if not cell.stages and not tile.projects:
        return _make_carried(cell, tile, inputs, masked)
    return _make_gathered(cell)


def _make_gathered(cell):
    """`make_d_state`, of what has been gathered."""
    load, M = units.loader(cell.num_states, BACKEND), 1 + cell.num_states
    return jit(lambda own, about, turn, i: load(own.came, i * M + 1, 1), BACKEND)


@cache
def make_gather(cell, tile, inputs, drops, masked):
    """A device function gather(own, about, turn): what comes to the thread's pairs from later steps and from above, to
    where the functions of a cell with stages find it."""
    carried, output_of = _make_carried(cell, tile, inputs, masked), _make_output(tile, inputs, drops)
    store, pair_of, P, M = (
        units.storer(cell.num_states, BACKEND),
        block.make_pair(tile),
        tile.pairs,
        1 + cell.num_states,
    )

    def gather(own, about, turn):
        for i in range(P):
            _, _, _, valid = pair_of(i, turn.b0, about.owned)
            if valid:
                own.came[i * M] = output_of(own, about, turn, i)
                store(own.came, i * M + 1, 1, carried(own, about, turn, i))

    return jit(gather, BACKEND)


@cache
def make_arguments(cell, tile, inputs, drops, masked):
    """A device function arguments_of(own, about, turn, i, d_state): the arguments of the cell's backward for the
    thread's i-th pair, a valid one, and of those of its stages.

    Args:
        inputs, drops, masked: as of `forward.make_forward`.

    Args of arguments_of:
        d_state: what `make_d_state`'s function returns.
    """
    dtype, N, K, Q = tile.dtype, cell.num_private, cell.num_saved, cell.num_sums
    number, SEQUENCES, D_SUMS, M = np.dtype(compute_dtype(dtype)).type, np.uint64(tile.sequences), tile.stages, 2 + N
    widen, of_state = storage.widen(dtype), block.make_states(cell, dtype)
    load_private, whole, no_state = of_state.load_private, of_state.whole, of_state.zero
    draw, settings_of = make_draw(cell.noise, dtype, True), make_settings_of(len(cell.settings) > 0)
    load_saved, load_per_unit = units.loader(K, BACKEND, widen), block.make_load_parameters(cell, tile)
    load_sums, pair_of, has_sums, U = units.loader(Q, BACKEND), block.make_pair(tile), Q > 0, tile.units
    load_d_v, S = units.loader(cell.num_products, BACKEND), cell.num_products
    output_of = _make_output(tile, inputs, drops)
    if cell.stages or tile.projects:
        output_of = jit(lambda own, about, turn, i: own.came[i * M], BACKEND)

    def arguments_of(own, about, turn, i, d_state):
        pairs, owned = own.pairs, about.owned
        pair, unit, b, _ = pair_of(i, turn.b0, owned)
        output = output_of(own, about, turn, i)
        state = whole(widen(pairs.h_before[i]), load_private(pairs.c_before, i * N, 1))
        new_state = whole(widen(pairs.h_after[i]), load_private(pairs.c_after, i * N, 1))
        if masked and own.code_of[i] == RESET:
            state = no_state()
        element = np.uint64(b * owned.hidden + owned.unit + unit)
        random = draw(about.options.chances, about.noise, element, np.uint64(turn.t))
        sums = d_sums = ()
        if has_sums:
            sums = whole(number(owned.hidden), load_sums(pairs.sums, i * Q, 1))
            d_sums = load_sums(own.shared, np.uint64(D_SUMS + pair // U), SEQUENCES)
        given = Given(load_per_unit(own, unit, i), sums, random, settings_of(about.options))
        d_all = whole(d_state[0] + output, d_state[1:])
        return load_saved(pairs.saved, i * K, 1), state, new_state, d_all, load_d_v(own.d_v, i * S, 1), d_sums, given

    return jit(arguments_of, BACKEND)


@cache
def make_within(cell, tile, inputs, drops, masked):
    """A device function within(own, about, turn, exchanged): the gradients of all stages of a step, the last one first;
    of a cell without any it does nothing. What it takes and when it may be called: as `within_forward.make_within`."""
    stages = tuple(stage for stage in reversed(range(len(cell.stages))) if not cell.stages[stage].largest)
    if not stages:
        return jit(lambda own, about, turn, exchanged: None, BACKEND)
    arguments_of = make_arguments(cell, tile, inputs, drops, masked)

    def sums_of(numbers):
        return make_sums(cell, tile, numbers, tuple(_make_terms(cell, tile, stage, arguments_of) for stage in numbers))

    def product_of(stage):
        return _make_product(cell, tile, stage, _make_terms(cell, tile, stage, arguments_of), masked)

    return make_in_turn(cell, stages, sums_of, product_of)


@cache
def _make_terms(cell, tile, stage, arguments_of):
    """A device function terms(own, about, turn, i): a stage's terms of the sums' gradients, or the gradients of its
    gates, of the thread's i-th pair."""
    terms_of, d_state_of = specialise(cell.stages[stage].backward, tile.dtype, BACKEND), _make_gathered(cell)

    def terms(own, about, turn, i):
        return terms_of(*arguments_of(own, about, turn, i, d_state_of(own, about, turn, i)))

    return jit(terms, BACKEND)


def _make_product(cell, tile, stage, gradients_of, masked):
    """A device function of `make_within`'s arguments: a product stage. The gradients of its gates are published as
    those of the others; what their product with R gives is that of what was multiplied forward."""
    dtype, P, S, product = tile.dtype, tile.pairs, cell.num_products, cell.product_number(stage)
    A, first_gate, count = cell.num_ah, cell.first_of_stage(stage), len(cell.stages[stage].gates)
    no_gates = units.zeros(count, BACKEND, compute_dtype(dtype))
    publish, pair_of = exchange.make_publish_all(dtype, tile.aligned, count), block.make_pair(tile)
    multiply, sums = make_multiply(tile, product), make_stage_sums(tile, product, 1)

    def run(own, about, turn, exchanged):
        owned = about.owned
        for i in range(P):
            _, unit, b, valid = pair_of(i, turn.b0, owned)
            gates, row = no_gates(), (turn.t * owned.batch + b) * A + first_gate
            if valid and not (masked and own.code_of[i] == SKIP):
                gates = gradients_of(own, about, turn, i)
            publish(exchanged.published, row * owned.hidden + owned.unit + unit, owned.hidden, gates, valid)
        multiply(own, about, turn, exchanged)
        for i in range(P):
            number, _, _, valid = pair_of(i, turn.b0, owned)
            if valid:
                own.d_v[i * S + product] = sums(own, about, number)[0]
        return True

    return jit(run, BACKEND)
