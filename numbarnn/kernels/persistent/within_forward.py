"""What a step forward does between its products and the cell: the stages of a cell (`numbarnn.cells.definition.Stage`).

    arguments_of = make_arguments(...)     # what the cell's functions, and those of its stages, get of a pair
    within = make_within(...)              # all stages in turn; of a cell without any there is none

A step is then a row of stages, and between two of them blocks exchange something: for sums over units each block's part
of the sums (`across`), for a product the block's part of the vector that its rows of R multiply (`exchange`).
Pre-activations are gathered once per step, those of later products as they come, and stay in registers until the cell
has used them.
"""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.cells.definition import Given
from numbarnn.common.order import RESET
from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage, units
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit, specialise
from numbarnn.kernels.persistent import block, exchange, products
from numbarnn.kernels.persistent.within import make_in_turn, make_multiply, make_stage_sums, make_sums
from numbarnn.kernels.step.given import make_draw, make_settings_of


@cache
def make_gates(cell, tile, inputs, masked):
    """A device function gates_of(thread, role, number, i) -> (ax, ah): the pre-activations of the thread's i-th pair,
    the block's `number`-th, with biases; of ah those that multiply h."""
    G, A, U = cell.num_gates, cell.num_recurrent, tile.units
    PARTIALS, ROW_STRIDE, BIASES = tile.partials, tile.row_stride, tile.biases
    recurrent_sums = products.make_sums(tile, A, inputs or cell.num_products > 0 or tile.projects)
    input_sums = products.make_sums(tile, G, inputs)
    (_, add_biases_w), (load_biases_r, add_biases_r) = block.make_biases(tile, G), block.make_biases(tile, A)
    load_x = units.loader(G, BACKEND, storage.widen(tile.dtype))
    index = products.make_index(len(cell.stages) > 0 or tile.projects)
    keeps_biases, count = tile.keeps_biases, tile.unit_biases

    def gates_of(thread, role, number, i):
        shared, unit = thread.shared, number % U
        at, bias_w = PARTIALS + number // U * ROW_STRIDE + unit, BIASES + unit
        if keeps_biases:
            biases, bias_w, bias_r = thread.biases, i * count, i * count + G
        else:
            biases, bias_w, bias_r = shared, index(bias_w), index(bias_w + G * U)
        ah = add_biases_r(recurrent_sums(shared, at, 0, role.split), biases, bias_r)
        ax = load_x(thread.now, i * G, 1)
        if inputs and not role.reads:
            ax = input_sums(shared, at, role.split, role.working)
        ax = add_biases_w(ax, biases, bias_w)
        if masked and thread.code_of[i] == RESET:
            ah = load_biases_r(biases, bias_r)
        return ax, ah

    return jit(gates_of, BACKEND)


@cache
def make_arguments(cell, tile, inputs, masked, draws):
    """A device function arguments_of(thread, role, turn, i): the arguments of the cell's forward for the thread's i-th
    pair, a valid one, and of those of its stages. Of a cell with stages they take the gates that `make_within` has
    gathered.

    Args:
        inputs, masked: as of `forward.make_forward`. draws: noise is drawn.
    """
    dtype, U, N, Q = tile.dtype, tile.units, cell.num_private, cell.num_sums
    STATES, TOTALS = tile.states, tile.stages
    number_of, of_state = np.dtype(compute_dtype(dtype)).type, block.make_states(cell, dtype)
    load_state, no_state, whole = of_state.load, of_state.zero, of_state.whole
    draw, settings_of = make_draw(cell.noise, dtype, draws), make_settings_of(len(cell.settings) > 0)
    load_sums, pair_of = units.loader(Q, BACKEND), block.make_pair(tile)
    load_per_unit, short = block.make_load_parameters(cell, tile), len(cell.stages) > 0 or tile.projects
    index = products.make_index(short)
    SEQUENCES, ONE = (np.uint64(n) if short else n for n in (tile.sequences, 1))
    gates_of, has_sums = make_gates(cell, tile, inputs, masked), Q > 0
    if cell.stages:
        gates_of = _make_gathered(cell)

    def arguments_of(thread, role, turn, i):
        owned = role.owned
        number, unit, b, _ = pair_of(i, turn.b0, owned)
        ax, ah = gates_of(thread, role, number, i)
        state = load_state(thread.shared, index(STATES + ((turn.b0 - owned.begin) * U + number) * (1 + N)), ONE)
        if masked and thread.code_of[i] == RESET:
            state = no_state()
        element = np.uint64(b * owned.hidden + owned.unit + unit)
        random = draw(role.options.chances, role.noise, element, np.uint64(turn.t))
        sums = ()
        if has_sums:
            sums = whole(number_of(owned.hidden), load_sums(thread.shared, index(TOTALS + number // U), SEQUENCES))
        given = Given(load_per_unit(thread, unit, i), sums, random, settings_of(role.options))
        return ax, ah, state, given

    return jit(arguments_of, BACKEND)


def _make_gathered(cell):
    """`make_gates`, of what has been gathered; of ah all gates, of which those of later stages are not there yet."""
    G, A = cell.num_gates, cell.num_ah
    load_ax, load_ah = units.loader(G, BACKEND), units.loader(A, BACKEND)

    def gathered(thread, role, number, i):
        return load_ax(thread.gates, i * (G + A), 1), load_ah(thread.gates, i * (G + A) + G, 1)

    return jit(gathered, BACKEND)


@cache
def make_within(cell, tile, save, inputs, masked):
    """A device function within(thread, role, turn): all stages of a step, in turn; of a cell without any it
    does nothing.

    All threads of the block call it together, after a barrier behind the products; it ends with a barrier, after which
    `thread.failed` says whether one of them has waited in vain.

    Args:
        save, inputs, masked: as of `forward.make_forward`.
    """
    if not cell.stages:
        return jit(lambda thread, role, turn: None, BACKEND)
    arguments_of = make_arguments(cell, tile, inputs, masked, save and len(cell.noise) > 0)

    def sums_of(stages):
        return make_sums(cell, tile, stages, tuple(_make_terms(cell, tile, stage, arguments_of) for stage in stages))

    def product_of(stage):
        return _make_product(cell, tile, stage, arguments_of)

    run = make_in_turn(cell, range(len(cell.stages)), sums_of, product_of)
    G, A, P, keeps = cell.num_gates, cell.num_ah, tile.pairs, save and cell.num_sums > 0
    gates_of, pair_of, keep = make_gates(cell, tile, inputs, masked), block.make_pair(tile), _make_keep(cell, tile)
    store_ax, store_ah = units.storer(G, BACKEND), units.storer(cell.num_recurrent, BACKEND)

    def within(thread, role, turn):
        for i in range(P):
            number, _, _, valid = pair_of(i, turn.b0, role.owned)
            if valid:
                ax, ah = gates_of(thread, role, number, i)
                store_ax(thread.gates, i * (G + A), 1, ax)
                store_ah(thread.gates, i * (G + A) + G, 1, ah)
        run(thread, role, turn)
        if keeps:
            keep(thread, role, turn)

    return jit(within, BACKEND)


@cache
def _make_terms(cell, tile, stage, arguments_of):
    """A device function terms(thread, role, turn, i): a stage's terms of the sums, of the thread's i-th pair."""
    terms_of = specialise(cell.stages[stage].forward, tile.dtype, BACKEND)
    return jit(lambda thread, role, turn, i: terms_of(*arguments_of(thread, role, turn, i)), BACKEND)


def _make_product(cell, tile, stage, arguments_of):
    """A device function of `make_within`'s arguments: a product stage. Its vector is published as h is; what comes of
    it joins the pre-activations."""
    dtype, P, U, S, product = tile.dtype, tile.pairs, tile.units, cell.num_products, cell.product_number(stage)
    number, count, first_gate = (
        np.dtype(compute_dtype(dtype)).type, len(cell.stages[stage].gates), cell.first_of_stage(stage)
    )  # fmt: skip
    vector_of, narrow = specialise(cell.stages[stage].forward, dtype, BACKEND), storage.narrow(dtype)
    publish, pair_of = exchange.make_publish(dtype, tile.aligned), block.make_pair(tile)
    multiply, sums = make_multiply(tile, product), make_stage_sums(tile, product, count)
    _, add_biases = block.make_biases(tile, count)
    store, index = units.storer(count, BACKEND), products.make_index(bool(cell.stages))
    PRE, GATE, BIASES = cell.num_gates + cell.num_ah, cell.num_gates + first_gate, tile.biases

    def run(thread, role, turn):
        owned = role.owned
        for i in range(P):
            _, unit, b, valid = pair_of(i, turn.b0, owned)
            vector, row = number(0), (turn.t * owned.batch + b) * S + product
            if valid:
                vector = vector_of(*arguments_of(thread, role, turn, i))
            publish(role.published, row * owned.hidden + owned.unit + unit, narrow(vector), valid)
        multiply(thread, role, turn)
        for i in range(P):
            pair, unit, _, valid = pair_of(i, turn.b0, owned)
            if valid:
                ah = add_biases(sums(thread, role, pair), thread.shared, index(BIASES + GATE * U + unit))
                store(thread.gates, i * PRE + GATE, 1, ah)
        return True

    return jit(run, BACKEND)


def _make_keep(cell, tile):
    """A device function of `make_within`'s arguments: the layer's first block keeps the step's sums for backward."""
    Q, SEQUENCES, THREADS, TOTALS = cell.num_sums, tile.sequences, tile.threads, tile.stages
    index = products.make_index(bool(cell.stages))

    def keep(thread, role, turn):
        owned = role.owned
        if owned.unit == 0:
            for item in range(cuda.threadIdx.x, Q * SEQUENCES, THREADS):
                b = turn.b0 + item % SEQUENCES
                if b < owned.end:
                    at = (turn.t * owned.batch + b) * Q + item // SEQUENCES
                    role.kept_sums[index(at)] = thread.shared[index(TOTALS + item)]

    return jit(keep, BACKEND)
