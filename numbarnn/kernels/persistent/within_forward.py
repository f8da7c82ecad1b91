"""The cell's stages (`numbarnn.cells.definition.Stage`) between a forward step's products and the cell.

    arguments_of = make_arguments(...)     # the arguments of the cell's and its stages' functions for a pair
    within = make_within(...)              # runs all stages of a step in order

Between two stages blocks exchange numbers. For sums over units they exchange each block's part of the sums
(`across`), for a product each block's part of the vector that the stage's rows of R multiply (`exchange`).
Pre-activations are gathered once per step, those of later products when they arrive, and stay in registers until the
cell has used them.
"""

import numpy as np

from numbarnn.cells.definition import Given
from numbarnn.common.order import RESET
from numbarnn.common.precision import compute_type
from numbarnn.compile import storage, units
from numbarnn.compile.specialise import specialise
from numbarnn.cuda.backend import backend
from numbarnn.cuda.language import cuda
from numbarnn.kernels.device import device_function
from numbarnn.kernels.persistent import block, exchange, products
from numbarnn.kernels.persistent.context import make_pair
from numbarnn.kernels.persistent.within import make_multiply, make_stage_sums, make_stages, make_sums
from numbarnn.kernels.step.unit_values import make_draw


@device_function
def make_gates(cell, tile, inputs, masked):
    """Make gates_of(thread, role, number, i) -> (ax, ah), the thread's i-th pair's pre-activations with biases.
    number: of the pair in the block. ah has only the gates that multiply h."""
    G, A, U = cell.num_gates, cell.num_recurrent, tile.units
    PARTIALS, ROW_STRIDE, BIASES = tile.partials, tile.row_stride, tile.biases
    recurrent_sums = products.make_sums(tile, A, inputs or cell.num_products > 0 or tile.projects)
    input_sums = products.make_sums(tile, G, inputs)
    load_w, load_r = block.make_load_biases(tile, G), block.make_load_biases(tile, A)
    add_w, add_r = units.adder(G), units.adder(A)
    load_x = units.loader(G, storage.widen(tile.dtype))
    index = products.make_index(len(cell.stages) > 0 or tile.projects)
    keeps_biases, count = tile.keeps_biases, tile.unit_biases

    def gates_of(thread, role, number, i):
        shared, unit = thread.shared, number % U
        at, bias_w = PARTIALS + number // U * ROW_STRIDE + unit, BIASES + unit
        if keeps_biases:
            biases, bias_w, bias_r = thread.biases, i * count, i * count + G
        else:
            biases, bias_w, bias_r = shared, index(bias_w), index(bias_w + G * U)
        ah = add_r(recurrent_sums(shared, at, 0, role.recurrent_warps), load_r(biases, bias_r))
        ax = load_x(thread.x_product, i * G, 1)
        if inputs and not role.reads_gates:
            ax = input_sums(shared, at, role.recurrent_warps, role.working_warps)
        ax = add_w(ax, load_w(biases, bias_w))
        if masked and thread.code_of[i] == RESET:
            ah = load_r(biases, bias_r)
        return ax, ah

    return gates_of


@device_function
def make_arguments(cell, tile, inputs, masked, draws):
    """Make arguments_of(thread, role, turn, i) -> the arguments of the cell's forward for the thread's i-th pair if
    valid.

    Stages take the same arguments. For a cell with stages, `make_within` must have gathered the gates.

    Args:
        inputs, masked: as for `forward.make_forward`. draws: draw random numbers.
    """
    dtype, U, Q = tile.dtype, tile.units, cell.num_sums
    TOTALS, number_of, of_state = tile.stages, compute_type(dtype), block.make_states(cell, dtype)
    load_state, no_state, whole = of_state.load, of_state.zero, of_state.whole
    draw = make_draw(cell.noise, dtype, draws)
    load_sums, pair_of, state_at = units.loader(Q), make_pair(tile), block.make_state_at(cell, tile)
    load_per_unit, short = block.make_load_parameters(cell, tile), len(cell.stages) > 0 or tile.projects
    index = products.make_index(short)
    SEQUENCES, ONE = (np.uint64(n) if short else n for n in (tile.sequences, 1))
    gates_of, has_sums = make_gates(cell, tile, inputs, masked), Q > 0
    if cell.stages:
        gates_of = _make_gathered(cell)

    def arguments_of(thread, role, turn, i):
        owned = role.owned
        number, unit, b, _ = pair_of(owned, turn.b0, i)
        ax, ah = gates_of(thread, role, number, i)
        state = load_state(thread.shared, index(state_at(owned, turn.b0, number)), ONE)
        if masked and thread.code_of[i] == RESET:
            state = no_state()
        element = np.uint64(b * owned.hidden + owned.unit + unit)
        random = draw(role.options.chances, role.noise, element, np.uint64(turn.t))
        sums = ()
        if has_sums:
            sums = whole(number_of(owned.hidden), load_sums(thread.shared, index(TOTALS + number // U), SEQUENCES))
        return ax, ah, state, Given(load_per_unit(thread, unit, i), sums, random)

    return arguments_of


@device_function
def _make_gathered(cell):
    """Make gates_of(thread, role, number, i) for gathered gates. Gates of later stages in ah are not valid yet."""
    G, A = cell.num_gates, cell.num_ah
    load_ax, load_ah = units.loader(G), units.loader(A)

    def gathered(thread, role, number, i):
        return load_ax(thread.gates, i * (G + A), 1), load_ah(thread.gates, i * (G + A) + G, 1)

    return gathered


@device_function
def make_within(cell, tile, save, inputs, masked):
    """Make within(thread, role, turn), which runs all stages of a step in order; without stages it does nothing.

    All threads of the block call it together, after a barrier behind the products. It ends with a barrier, after
    which `thread.timed_out` is set if a thread timed out.

    Args:
        save, inputs, masked: as for `forward.make_forward`.
    """
    if not cell.stages:
        return lambda thread, role, turn: None
    arguments_of = make_arguments(cell, tile, inputs, masked, save and len(cell.noise) > 0)

    def sums_of(stages):
        return make_sums(cell, tile, stages, tuple(_make_terms(cell, tile, stage, arguments_of) for stage in stages))

    def product_of(stage):
        return _make_product(cell, tile, stage, arguments_of)

    run = make_stages(cell, range(len(cell.stages)), sums_of, product_of)
    G, A, P, keeps = cell.num_gates, cell.num_ah, tile.pairs, save and cell.num_sums > 0
    gates_of, pair_of, keep = make_gates(cell, tile, inputs, masked), make_pair(tile), _make_keep(cell, tile)
    store_ax, store_ah = units.storer(G), units.storer(cell.num_recurrent)

    def within(thread, role, turn):
        for i in range(P):
            number, _, _, valid = pair_of(role.owned, turn.b0, i)
            if valid:
                ax, ah = gates_of(thread, role, number, i)
                store_ax(thread.gates, i * (G + A), 1, ax)
                store_ah(thread.gates, i * (G + A) + G, 1, ah)
        run(thread, role, turn)
        if keeps:
            keep(thread, role, turn)

    return within


@device_function
def _make_terms(cell, tile, stage, arguments_of):
    """Make terms(thread, role, turn, i) -> a stage's terms of its sums for the thread's i-th pair."""
    terms_of = specialise(cell.stages[stage].forward, tile.dtype, backend())
    return lambda thread, role, turn, i: terms_of(*arguments_of(thread, role, turn, i))


@device_function
def _make_product(cell, tile, stage, arguments_of):
    """Make run(thread, role, turn), which publishes a product stage's vector and adds its product to ah."""
    dtype, P, U, S, product = tile.dtype, tile.pairs, tile.units, cell.num_products, cell.product_number(stage)
    number, count, first_gate = compute_type(dtype), len(cell.stages[stage].gates), cell.first_of_stage(stage)
    vector_of, narrow = specialise(cell.stages[stage].forward, dtype, backend()), storage.narrow(dtype)
    publish, pair_of = exchange.make_publish(dtype, tile.aligned), make_pair(tile)
    multiply, sums = make_multiply(tile, product), make_stage_sums(tile, product, count)
    load_biases, add = block.make_load_biases(tile, count), units.adder(count)
    store, index = units.storer(count), products.make_index(bool(cell.stages))
    PRE, GATE, BIASES = cell.num_gates + cell.num_ah, cell.num_gates + first_gate, tile.biases

    def run(thread, role, turn):
        owned = role.owned
        for i in range(P):
            _, unit, b, valid = pair_of(owned, turn.b0, i)
            vector, row = number(0), (turn.t * owned.batch + b) * S + product
            if valid:
                vector = vector_of(*arguments_of(thread, role, turn, i))
            publish(role.published, row * owned.hidden + owned.unit + unit, narrow(vector), valid)
        multiply(thread, role, turn)
        for i in range(P):
            pair, unit, _, valid = pair_of(owned, turn.b0, i)
            if valid:
                ah = add(sums(thread, role, pair), load_biases(thread.shared, index(BIASES + GATE * U + unit)))
                store(thread.gates, i * PRE + GATE, 1, ah)

    return run


@device_function
def _make_keep(cell, tile):
    """Make keep(thread, role, turn), by which the layer's first block stores the step's sums for backward."""
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

    return keep
