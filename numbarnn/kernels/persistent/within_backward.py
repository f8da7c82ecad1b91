"""The gradients of the cell's stages, from the last stage to the first, between a backward step's products and the
cell.

This reverses `within_forward`: blocks exchange their parts of the gradients of sums over units (`across`), and for a
product the gradients of its gates (`exchange`). A pair's gradients from later steps and from above are gathered once
per step and stay in registers, and so do the gradients of later products' vectors.
"""

import numpy as np

from numbarnn.cells.definition import Given
from numbarnn.common.order import RESET, SKIP
from numbarnn.common.precision import compute_dtype, compute_type
from numbarnn.compile import storage, units
from numbarnn.compile.specialise import specialise
from numbarnn.cuda.backend import backend
from numbarnn.kernels.device import device_function
from numbarnn.kernels.persistent import block, exchange, products
from numbarnn.kernels.persistent.context import make_pair
from numbarnn.kernels.persistent.within import make_multiply, make_stage_sums, make_stages, make_sums
from numbarnn.kernels.step.unit_values import make_draw


@device_function
def _make_carried(cell, tile, inputs, masked):
    """Make carried(thread, role, turn, i) -> the state's gradient from later steps, for the thread's i-th pair if
    valid. It also stores the gradient of h in shared memory."""
    A, U = cell.num_recurrent, tile.units
    zero = compute_type(tile.dtype)(0)
    sums = products.make_sums(tile, 1, inputs or cell.num_products > 0 or tile.projects)
    PARTIALS, ROW_STRIDE, state_at = tile.partials, tile.row_stride, block.make_state_at(cell, tile)
    pair_of, of_state = make_pair(tile), block.make_states(cell, tile.dtype)
    load_private, whole, no_private = of_state.load_private, of_state.whole, of_state.no_private

    def carried(thread, role, turn, i):
        shared, pair = thread.shared, pair_of(role.owned, turn.b0, i)[0]
        at = state_at(role.owned, turn.b0, pair)
        d_h = shared[at]
        if A > 0 and turn.step > 0:
            d_h += sums(shared, PARTIALS + pair // U * ROW_STRIDE + pair % U, 0, role.recurrent_warps)[0]
        private = load_private(shared, at + 1, 1)
        if masked and thread.code_after[i] == RESET:  # no gradient comes from the next step
            d_h, private = zero, no_private()
        shared[at] = d_h
        return whole(d_h, private)

    return carried


@device_function
def _make_output(tile, inputs, drops):
    """Make output_of(thread, role, turn, i) -> the output's gradient, for the thread's i-th pair if valid."""
    dtype, U, PARTIALS, ROW_STRIDE = tile.dtype, tile.units, tile.partials, tile.row_stride
    widen, sums, pair_of = storage.widen(dtype), products.make_sums(tile, 1, inputs), make_pair(tile)
    dropout_factor = block.make_dropout_factor(dtype)

    def output_of(thread, role, turn, i):
        pair, unit, b, _ = pair_of(role.owned, turn.b0, i)
        output = widen(thread.dy[i])
        if inputs and not role.reads_gates:
            place = PARTIALS + pair // U * ROW_STRIDE + unit
            output = sums(thread.shared, place, role.recurrent_warps, role.working_warps)[0]
            if drops and role.mask >= 0:
                row = turn.t * role.owned.batch + b
                position = row * role.d_output.width + role.d_output.column + unit
                output *= dropout_factor(position, role.options, role.mask)
        return output

    return output_of


def gathers(cell, tile):
    """Return whether a pair's gradients are gathered in `Thread.d_after` before the cell runs."""
    return len(cell.stages) > 0 or tile.projects


@device_function
def make_d_state(cell, tile, inputs, masked):
    """Make d_state_of(thread, role, turn, i) -> the state's gradient from later steps, for the thread's i-th pair if
    valid. For a cell with stages or a projection, `make_gather` must have gathered it."""
    if not gathers(cell, tile):
        return _make_carried(cell, tile, inputs, masked)
    load, M = units.loader(cell.num_states), 1 + cell.num_states
    return lambda thread, role, turn, i: load(thread.d_after, i * M + 1, 1)


@device_function
def make_gather(cell, tile, inputs, drops, masked):
    """Make gather(thread, role, turn), which stores the gradients of the thread's pairs from later steps and from
    above. The functions of a cell with stages read them in `Thread.d_after`."""
    carried, output_of = _make_carried(cell, tile, inputs, masked), _make_output(tile, inputs, drops)
    store, pair_of, P, M = units.storer(cell.num_states), make_pair(tile), tile.pairs, 1 + cell.num_states

    def gather(thread, role, turn):
        for i in range(P):
            _, _, _, valid = pair_of(role.owned, turn.b0, i)
            if valid:
                thread.d_after[i * M] = output_of(thread, role, turn, i)
                store(thread.d_after, i * M + 1, 1, carried(thread, role, turn, i))

    return gather


@device_function
def make_arguments(cell, tile, inputs, drops, masked):
    """Make arguments_of(thread, role, turn, i, d_state) -> the arguments of the cell's backward for the thread's i-th
    pair.

    The pair must be valid. Stages take the same arguments. d_state is the result of `make_d_state`'s function.

    Args:
        inputs, drops, masked: as for `forward.make_forward`.
    """
    dtype, N, K, Q = tile.dtype, cell.num_private, cell.num_saved, cell.num_sums
    number, SEQUENCES, D_SUMS, M = compute_type(dtype), np.uint64(tile.sequences), tile.stages, 2 + N
    widen, of_state = storage.widen(dtype), block.make_states(cell, dtype)
    load_private, whole, no_state = of_state.load_private, of_state.whole, of_state.zero
    draw = make_draw(cell.noise, dtype, True)
    load_saved, load_per_unit = units.loader(K, widen), block.make_load_parameters(cell, tile)
    load_sums, pair_of, has_sums, U = units.loader(Q), make_pair(tile), Q > 0, tile.units
    load_d_v, S = units.loader(cell.num_products), cell.num_products
    output_of = _make_came(M) if gathers(cell, tile) else _make_output(tile, inputs, drops)

    def arguments_of(thread, role, turn, i, d_state):
        owned = role.owned
        pair, unit, b, _ = pair_of(owned, turn.b0, i)
        output = output_of(thread, role, turn, i)
        state = whole(widen(thread.h_before[i]), load_private(thread.c_before, i * N, 1))
        new_state = whole(widen(thread.h_after[i]), load_private(thread.c_after, i * N, 1))
        if masked and thread.code_of[i] == RESET:
            state = no_state()
        element = np.uint64(b * owned.hidden + owned.unit + unit)
        random = draw(role.options.chances, role.noise, element, np.uint64(turn.t))
        sums = d_sums = ()
        if has_sums:
            sums = whole(number(owned.hidden), load_sums(thread.sums, i * Q, 1))
            d_sums = load_sums(thread.shared, np.uint64(D_SUMS + pair // U), SEQUENCES)
        given = Given(load_per_unit(thread, unit, i), sums, random)
        d_all, d_v = whole(d_state[0] + output, d_state[1:]), load_d_v(thread.d_v, i * S, 1)
        return load_saved(thread.saved, i * K, 1), state, new_state, d_all, d_v, d_sums, given

    return arguments_of


@device_function
def _make_came(M):
    """Make output_of(thread, role, turn, i) for gathered gradients, M numbers per pair."""
    return lambda thread, role, turn, i: thread.d_after[i * M]


@device_function
def make_within(cell, tile, inputs, drops, masked):
    """Make within(thread, role, turn), which computes the gradients of all stages of a step, the last stage first.
    Without stages it does nothing. Arguments and calling rules: as for `within_forward.make_within`."""
    stages = tuple(stage for stage in reversed(range(len(cell.stages))) if not cell.stages[stage].largest)
    if not stages:
        return lambda thread, role, turn: None
    arguments_of = make_arguments(cell, tile, inputs, drops, masked)
    d_state_of = make_d_state(cell, tile, inputs, masked)

    def terms_of(stage):
        return _make_terms(cell, tile, stage, arguments_of, d_state_of)

    def sums_of(numbers):
        return make_sums(cell, tile, numbers, tuple(map(terms_of, numbers)))

    def product_of(stage):
        return _make_product(cell, tile, stage, terms_of(stage), masked)

    return make_stages(cell, stages, sums_of, product_of)


@device_function
def _make_terms(cell, tile, stage, arguments_of, d_state_of):
    """Make terms(thread, role, turn, i) -> for the thread's i-th pair a stage's terms of the gradients of sums, or the
    gradients of its gates."""
    terms_of = specialise(cell.stages[stage].backward, tile.dtype, backend())

    def terms(thread, role, turn, i):
        return terms_of(*arguments_of(thread, role, turn, i, d_state_of(thread, role, turn, i)))

    return terms


@device_function
def _make_product(cell, tile, stage, gradients_of, masked):
    """Make run(thread, role, turn), which runs a product stage backward.
    It publishes the gradients of the stage's gates. Their product with R is the gradient of the vector of the stage."""
    dtype, P, S, product = tile.dtype, tile.pairs, cell.num_products, cell.product_number(stage)
    A, first_gate, count = cell.num_ah, cell.first_of_stage(stage), len(cell.stages[stage].gates)
    no_gates = units.zeros(count, compute_dtype(dtype))
    publish, pair_of = exchange.make_publish_all(dtype, tile.aligned, count), make_pair(tile)
    multiply, sums = make_multiply(tile, product), make_stage_sums(tile, product, 1)

    def run(thread, role, turn):
        owned = role.owned
        for i in range(P):
            _, unit, b, valid = pair_of(owned, turn.b0, i)
            gates, row = no_gates(), (turn.t * owned.batch + b) * A + first_gate
            if valid and not (masked and thread.code_of[i] == SKIP):
                gates = gradients_of(thread, role, turn, i)
            publish(role.published, row * owned.hidden + owned.unit + unit, owned.hidden, gates, valid)
        multiply(thread, role, turn)
        for i in range(P):
            number, _, _, valid = pair_of(owned, turn.b0, i)
            if valid:
                thread.d_v[i * S + product] = sums(thread, role, number)[0]

    return run
