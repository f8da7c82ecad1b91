"""Persistent kernels: one cooperative launch runs all steps of several layers, forward or backward.

Every block owns some units of one layer and direction, keeps their weights on the chip (`slices`), and at each step

    loads what its own units need besides products                     (not waiting for anybody)
    waits for the state before the step, and for the layer's input     `gather`
    multiplies them with its weights                                   `multiply`
    runs the cell's equations for its units                            `specialise(cell.forward)`
    publishes its units' part of the new state                         `publish`

Nobody waits for a whole grid: a block waits for the numbers that it multiplies (`exchange`), so layer l + 1 follows one
step behind layer l, and the layers' steps run as a wavefront. All blocks are resident at once, as the launch is
cooperative. A cell without stages (`numbarnn.cells`) has A gates of h Rᵀ and G of x Wᵀ; where A is 0, blocks of a layer
do not wait for each other.

Which block does what stands in two tables, `blocks` here and `warps` in `slices`, that
`numbarnn.schedules.persistent.tables` fills. A block that waits in vain reports where (`trouble`) and leaves, and so
do all others as soon as they wait.
"""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.common.order import RESET, SKIP
from numbarnn.common.philox import philox
from numbarnn.common.precision import compute_dtype, is_half
from numbarnn.compile import storage, units
from numbarnn.compile.backend import BACKEND, kernel
from numbarnn.compile.specialise import backward_function, forward_function, jit, specialise
from numbarnn.cuda import ptx
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.persistent import exchange, products
from numbarnn.kernels.persistent.tiles import (
    COLUMN,
    COLUMN_STRIDE,
    COUNT,
    GROUP_STRIDE,
    GROUPS,
    KIND,
    RECURRENT,
    SHIFT,
    UNIT_STRIDE,
    VECTOR,
    WEIGHTS,
    WIDTH,
)
from numbarnn.kernels.step.given import make_draw
from numbarnn.kernels.trouble import OTHER_LAYER, make_report

# The columns of the table `blocks` (int64).
LAYER = 0  # among the layers of this launch
DIRECTION = 1
UNIT, UNITS = 2, 3  # the block's first unit of the layer, and how many it owns
HIDDEN = 4  # H of the layer
GATES_WIDTH = 5  # elements of a row of `gates`
BIAS_W, BIAS_R = 6, 7  # where its layer's biases begin in `weights`; -1: there are none
RECURRENT_WARPS = 8  # the first warps multiply the state before, the next ones the layer's input
WORKING_WARPS = 9  # both together; the others idle
READS_GATES = 10  # forward: x Wᵀ stands in `gates`; backward: dy stands in `dy`
MASK = 11  # row of `masks` for dropout between the layer and the next of this launch; -1: none
TROUBLE = 12  # `trouble.waited` of the block
SEQUENCE, END = 13, 14  # the block's sequences [SEQUENCE, END) of the batch
VECTORS = 15  # where the cell's parameters per unit begin in `weights`, if it has any
NOISE = 16  # row of `noise`; 0 where it is not read
BLOCK_COLUMNS = 17

PREFETCH_STEPS = 2  # rows that later steps read are asked for this many steps ahead


@cache
def make_dropout_factor(dtype):
    """A device function factor(position, masks, mask, scale): 0 or `scale`, as `numbarnn.kernels.arrays.dropout` has
    it.

    masks, scale: what `numbarnn.common.philox.dropout_masks` returns; mask: the row.
    """
    random_words = specialise(philox, compute_dtype(dtype), BACKEND)
    zero, low_bits, high_bits = np.dtype(compute_dtype(dtype)).type(0), np.uint64(0xFFFFFFFF), np.uint64(32)

    def factor(position, masks, mask, scale):
        group = np.uint64(position // 4)
        words = random_words(
            group & low_bits, group >> high_bits, masks[mask, 3], masks[mask, 4], masks[mask, 1], masks[mask, 2]
        )
        return scale if words[position % 4] >= masks[mask, 0] else zero

    return jit(factor, BACKEND)


@cache
def _make_fetch(cut, count):
    """A device function fetch(into, rows, t, first, end, batch, width, hidden, first_unit, units).

    It loads `count` numbers of each of the thread's pairs, as they are stored, from row t of rows (T, B, width), and
    does nothing with them, so that nothing waits for them.
    """
    load, store, U, P, THREADS, SEQUENCES = (
        units.loader(count, BACKEND), units.storer(count, BACKEND), cut.units, cut.pairs, cut.threads, cut.sequences,
    )  # fmt: skip

    def fetch(into, rows, t, first, end, batch, width, hidden, first_unit, num_units):
        for i in range(P):
            pair = cuda.threadIdx.x + i * THREADS
            unit, b = pair % U, first + pair // U
            if pair < U * SEQUENCES and unit < num_units and b < end:
                store(into, i * count, 1, load(rows, (t * batch + b) * width + first_unit + unit, hidden))

    return jit(fetch, BACKEND)


@cache
def _make_prefetch(cut, count):
    """A device function with the arguments of `_make_fetch`'s but the first, that brings the same numbers to the L2
    cache."""
    ask, U, P, THREADS, SEQUENCES = ptx.prefetch, cut.units, cut.pairs, cut.threads, cut.sequences

    def prefetch(rows, t, first, end, batch, width, hidden, first_unit, num_units):
        for i in range(P):
            pair = cuda.threadIdx.x + i * THREADS
            unit, b = pair % U, first + pair // U
            if pair < U * SEQUENCES and unit == 0 and b < end:  # the block's units are neighbours
                at = (t * batch + b) * width + first_unit
                for k in range(count):
                    ask(rows, at + k * hidden)

    return jit(prefetch, BACKEND)


@cache
def _make_look_up(cut):
    """A device function look_up(into, step_mask, row, first, end): the step_mask of the thread's pairs, from the row
    of step_mask that begins there."""
    U, P, THREADS, SEQUENCES = cut.units, cut.pairs, cut.threads, cut.sequences

    def look_up(into, step_mask, row, first, end):
        for i in range(P):
            pair = cuda.threadIdx.x + i * THREADS
            b = first + pair // U
            if pair < U * SEQUENCES and b < end:
                into[i] = step_mask[row + b]

    return jit(look_up, BACKEND)


@cache
def _make_own_vectors(cell, cut):
    """A device function own_vectors(into, weights, start, hidden, units): the cell's parameters of the units of the
    thread's pairs, which are the same in every step."""
    dtype, U, P, THREADS = cut.dtype, cut.units, cut.pairs, cut.threads
    load, store = (
        units.loader(cell.num_per_unit, BACKEND, storage.widen(dtype)),
        units.storer(cell.num_per_unit, BACKEND),
    )
    V = cell.num_per_unit

    def own_vectors(into, weights, start, hidden, num_units):
        for i in range(P):
            unit = (cuda.threadIdx.x + i * THREADS) % U
            if unit < num_units:
                store(into, i * V, 1, load(weights, start + unit, hidden))

    return jit(own_vectors, BACKEND)


@cache
def make_forward(cell, cut, save, inputs, drops, masked=False):
    """The forward kernel.

    Args:
        cell: any `Cell` without stages.
        cut: the `slices.Slice` of all blocks.
        save: training: keep all private states, and what the cell saves.
        inputs: whether some layers multiply their input themselves (all but the first of the launch).
        drops: whether there is dropout between layers.
        masked: whether some steps are not ordinary (`numbarnn.common.order`).
    """
    dtype, U, P, WARPS, THREADS, SEQUENCES = cut.dtype, cut.units, cut.pairs, cut.warps, cut.threads, cut.sequences
    G, A, N, K = cell.num_gates, cell.num_recurrent, cell.num_private, cell.num_saved
    multiplies = inputs or A > 0
    number = np.dtype(compute_dtype(dtype)).type
    no_state = units.zeros(1 + N, BACKEND, compute_dtype(dtype))
    forward, own_vectors = forward_function(cell, compute_dtype(dtype), BACKEND), _make_own_vectors(cell, cut)
    V, load_per_unit = cell.num_per_unit, units.loader(cell.num_per_unit, BACKEND)
    PV = max(1, P * V)
    widen, narrow = storage.widen(dtype), storage.narrow(dtype)
    product, input_sums = products.make_product(cut), products.make_sums(cut, G, inputs)
    load_weights, multiply, outer_sums = product.load, product.step, products.make_sums(cut, A, inputs)
    publish, dropout_factor = exchange.make_publish(dtype, cut.aligned), make_dropout_factor(dtype)
    stored_number = np.uint16 if is_half(dtype) else number
    load_gates, store_saved = units.loader(G, BACKEND, widen), units.storer(K, BACKEND, narrow)
    load_tuple, add, fetch = units.loader(G, BACKEND), units.adder(G, BACKEND), _make_fetch(cut, G)
    load_recurrent_gates, add_recurrent, draw = (
        units.loader(A, BACKEND),
        units.adder(A, BACKEND),
        make_draw(cell.noise, dtype, save),
    )
    prefetch, look_up = _make_prefetch(cut, G), _make_look_up(cut)
    load_private, store_private = units.loader(N, BACKEND), units.storer(N, BACKEND)
    whole, report = units.joiner(BACKEND), make_report()
    fragment_words = max(1, cut.fragment_words) if cut.resident == "registers" else 1
    gathered, tiles, PG = cut.gathered, cut.tiles, P * G
    row_stride, partials, between_warps = cut.row_stride, cut.partials, cut.between_warps  # in shared memory
    bias_w, bias_r, most_biases, states = cut.biases, cut.biases + G * U, max(G, A) * U, cut.states

    @kernel(launch_bounds=(THREADS, 1))
    def persistent_forward_kernel(
        vectors,
        c,
        gates,
        weights,
        step_mask,
        noise,
        masks,
        scale,
        blocks,
        warps,
        trouble,
        directions,
        steps,
        batch,
        limit,
    ):
        """All steps of some layers forward.

        Writes   vectors[l] (T+2, B, D*H), layer l's h, times 0 to T-1; vectors[L + l] (T, B, D*H), the same dropped
                 out, if there is dropout above l; c[l] (T+2, B, D*N*H), without `save` (2, B, D*N*H) and only the last;
                 gates[l D + d] (T, B, width) with `save`; trouble (1,) if it waited in vain
        Reads    gates[d] of the first layer = x Wᵀ; initial states in vectors[l] and c[l]; weights; the tables;
                 masked: step_mask (D, T+2, B); noise (places, 4), if the cell has any, with `save`
        Launch   cooperative, one block per row of `blocks`; all arrays flat; h and dropped-out h full of UNWRITTEN
        """
        shared, failed = cuda.shared.array(0, number, alignment=16), cuda.shared.array(1, np.int32)
        fragments = cuda.local.array(fragment_words, np.uint32)
        words = cuda.local.array((tiles, gathered, 4), np.uint32)
        now = cuda.local.array(PG, stored_number)  # x Wᵀ of the thread's pairs
        code_of = cuda.local.array(P, np.uint8)  # likewise
        per_unit = cuda.local.array(PV, number)

        thread, block = cuda.threadIdx.x, cuda.blockIdx.x
        warp = thread // 32
        layer, direction, hidden = blocks[block, LAYER], blocks[block, DIRECTION], blocks[block, HIDDEN]
        first_unit, num_units = blocks[block, UNIT], blocks[block, UNITS]
        gates_width, reads_gates = blocks[block, GATES_WIDTH], blocks[block, READS_GATES] != 0
        split, working = np.int32(blocks[block, RECURRENT_WARPS]), np.int32(blocks[block, WORKING_WARPS])
        mask, begin, end = blocks[block, MASK], blocks[block, SEQUENCE], blocks[block, END]
        words_of_noise = noise[blocks[block, NOISE]]
        h, layer_c, layer_gates = vectors[layer], c[layer], gates[layer * directions + direction]
        width, private_row = directions * hidden, directions * N * hidden
        own_h, own_c = direction * hidden + first_unit, direction * N * hidden + first_unit  # columns of unit 0
        vector = vectors[warps[block, warp, VECTOR]]
        shift, vector_width = warps[block, warp, SHIFT], warps[block, warp, WIDTH]
        column, count = warps[block, warp, COLUMN], np.int32(warps[block, warp, COUNT])
        recurrent = warps[block, warp, KIND] == RECURRENT

        if thread == 0:
            failed[0] = 0
        if multiplies:
            load_weights(
                fragments, weights, shared, warps[block, warp, WEIGHTS], num_units, warps[block, warp, GROUPS],
                warps[block, warp, GROUP_STRIDE], warps[block, warp, UNIT_STRIDE], warps[block, warp, COLUMN_STRIDE],
                count,
            )  # fmt: skip
        cuda.syncthreads()  # weights may have passed through where biases, sums and states go
        for at in range(thread, WARPS * between_warps, THREADS):
            shared[partials + at] = number(0)
        for row in range(thread, most_biases, THREADS):
            j = row // U * hidden + first_unit + row % U
            if row % U < num_units:
                at_w, at_r = blocks[block, BIAS_W], blocks[block, BIAS_R]
                if row < G * U:
                    shared[bias_w + row] = widen(weights[at_w + j]) if at_w >= 0 else number(0)
                if row < A * U:
                    shared[bias_r + row] = widen(weights[at_r + j]) if at_r >= 0 else number(0)
        initial = 0 if direction == 0 else steps + 1
        initial_c = initial if save else initial % 2
        for pair in range(thread, (end - begin) * U, THREADS):
            unit, b = pair % U, begin + pair // U
            if unit < num_units:
                at = states + pair * (1 + N)
                shared[at] = widen(h[(initial * batch + b) * width + own_h + unit])
                private = load_private(layer_c, (initial_c * batch + b) * private_row + own_c + unit, hidden)
                store_private(shared, at + 1, 1, private)
        own_vectors(per_unit, weights, blocks[block, VECTORS] + first_unit, hidden, num_units)
        t = 0 if direction == 0 else steps - 1
        if reads_gates:
            fetch(now, layer_gates, t, begin, end, batch, gates_width, hidden, first_unit, num_units)
        cuda.syncthreads()

        move = 1 - 2 * direction  # in time, from step to step
        t -= move
        for step in range(steps):
            t += move
            for first in range(begin, end, SEQUENCES):
                if masked:
                    look_up(code_of, step_mask, (direction * (steps + 2) + t + 1) * batch, first, end)
                # 1. The products, each warp its part
                if multiplies and count > 0:
                    wait = 0 if recurrent and step == 0 else 1
                    if not multiply(
                        fragments, words, shared, partials + warp * between_warps, vector, t + shift, batch, first, end,
                        vector_width, column, count, wait, limit, trouble,
                    ):  # fmt: skip
                        report(trouble, blocks[block, TROUBLE] + step + (0 if recurrent else OTHER_LAYER))
                        failed[0] = 1
                cuda.syncthreads()
                if failed[0] != 0:
                    return
                # 2. The cell, for the block's units
                for i in range(P):
                    pair = thread + i * THREADS
                    unit, b = pair % U, first + pair // U
                    valid = pair < U * SEQUENCES and unit < num_units and b < end
                    new_h, position, own = number(0), np.int64(0), states + ((first - begin) * U + pair) * (1 + N)
                    if valid:
                        at = partials + pair // U * row_stride + unit
                        ah = add_recurrent(
                            outer_sums(shared, at, 0, split), load_recurrent_gates(shared, bias_r + unit, U)
                        )
                        ax = load_gates(now, i * G, 1)
                        if inputs and not reads_gates:
                            ax = input_sums(shared, at, split, working)
                        ax = add(ax, load_tuple(shared, bias_w + unit, U))
                        state = whole(shared[own], load_private(shared, own + 1, 1))
                        if masked and code_of[i] == RESET:
                            state, ah = no_state(), load_recurrent_gates(shared, bias_r + unit, U)
                        random = draw(words_of_noise, np.uint64(b * hidden + first_unit + unit), np.uint64(t))
                        new_state, kept = forward(ax, ah, state, load_per_unit(per_unit, i * V, 1), (), random)
                        if masked and code_of[i] == SKIP:
                            new_state = state
                        new_h, position = new_state[0], (t * batch + b) * width + own_h + unit
                    stored = narrow(new_h)
                    publish(h, position + batch * width, stored, valid)
                    if drops and mask >= 0:
                        factor = dropout_factor(position, masks, mask, scale)
                        publish(vectors[len(c) + layer], position, narrow(widen(stored) * factor), valid)
                    if valid:
                        shared[own] = widen(stored)
                        store_private(shared, own + 1, 1, new_state[1:])
                        if save:
                            at = (t * batch + b) * gates_width + first_unit + unit
                            store_saved(layer_gates, at, hidden, kept)
                        if save or step == steps - 1:
                            slot = t + 1 if save else (t + 1) % 2
                            store_private(
                                layer_c, (slot * batch + b) * private_row + own_c + unit, hidden, new_state[1:]
                            )
                # 3. What the cell will need next besides products
                if reads_gates:
                    last = first + SEQUENCES >= end
                    next_step, next_first = (step + 1, begin) if last else (step, first + SEQUENCES)
                    if next_step < steps:
                        next_t = t + move if last else t
                        fetch(
                            now, layer_gates, next_t, next_first, end, batch, gates_width, hidden, first_unit, num_units
                        )
                        ahead = next_t + PREFETCH_STEPS * move
                        if 0 <= ahead and ahead < steps:
                            prefetch(
                                layer_gates, ahead, next_first, end, batch, gates_width, hidden, first_unit, num_units
                            )
                cuda.syncthreads()

    name = f"{cell.name}_persistent_forward_{'training' if save else 'inference'}"
    return Kernel(persistent_forward_kernel, name, source_key=f"{cut} {inputs} {drops} {masked}")


@cache
def make_backward(cell, cut, inputs, drops, masked=False):
    """The backward kernel: the same walk in reverse, with the transposed weights. Arguments as for `make_forward`."""
    dtype, U, P, WARPS, THREADS, SEQUENCES = cut.dtype, cut.units, cut.pairs, cut.warps, cut.threads, cut.sequences
    G, A, N, K, same_gradient = cell.num_gates, cell.num_recurrent, cell.num_private, cell.num_saved, cell.same_gradient
    multiplies = inputs or A > 0
    number = np.dtype(compute_dtype(dtype)).type
    backward, own_vectors = backward_function(cell, compute_dtype(dtype), BACKEND), _make_own_vectors(cell, cut)
    V, load_per_unit = cell.num_per_unit, units.loader(cell.num_per_unit, BACKEND)
    PV, store_per_unit = max(1, P * V), units.storer(V, BACKEND, storage.narrow(dtype))
    widen = storage.widen(dtype)
    product, sums = products.make_product(cut), products.make_sums(cut, 1, inputs)
    load_weights, multiply = product.load, product.step
    publish_gates, publish_recurrent = (exchange.make_publish_all(dtype, cut.aligned, count) for count in (G, A))
    dropout_factor, look_up, draw = make_dropout_factor(dtype), _make_look_up(cut), make_draw(cell.noise, dtype, True)
    no_gates, no_recurrent, no_state, no_private, no_per_unit = (
        units.zeros(count, BACKEND, compute_dtype(dtype)) for count in (G, A, 1 + N, N, V)
    )
    load_saved, fetch, prefetch = units.loader(K, BACKEND, widen), _make_fetch(cut, K), _make_prefetch(cut, K)
    fetch_one = _make_fetch(cut, 1)
    stored_number = np.uint16 if is_half(dtype) else number
    load_private, store_private = units.loader(N, BACKEND), units.storer(N, BACKEND)
    whole, report = units.joiner(BACKEND), make_report()
    fragment_words = max(1, cut.fragment_words) if cut.resident == "registers" else 1
    gathered, tiles = cut.gathered, cut.tiles
    PK, PN = max(1, P * K), max(1, P * N)  # sizes of local arrays: constants, and at least 1
    fetch_private = _make_fetch(cut, N)

    def fetch_all(own, rows, t, direction, first, end, batch, sizes, columns, num_units, reads_dy):
        saved, h_before, h_after, before, after, above = own
        layer_gates, layer_h, layer_c, dy = rows
        gates_width, width, private_row, hidden = sizes
        first_unit, own_h, own_c = columns
        slot = t + 2 * direction
        fetch(saved, layer_gates, t, first, end, batch, gates_width, hidden, first_unit, num_units)
        fetch_one(h_before, layer_h, slot, first, end, batch, width, hidden, own_h, num_units)
        fetch_one(h_after, layer_h, t + 1, first, end, batch, width, hidden, own_h, num_units)
        fetch_private(before, layer_c, slot, first, end, batch, private_row, hidden, own_c, num_units)
        fetch_private(after, layer_c, t + 1, first, end, batch, private_row, hidden, own_c, num_units)
        if reads_dy:
            fetch_one(above, dy, t, first, end, batch, width, hidden, own_h, num_units)

    fetch_all = jit(fetch_all, BACKEND)
    row_stride, partials, between_warps, states = cut.row_stride, cut.partials, cut.between_warps, cut.states

    @kernel(launch_bounds=(THREADS, 1))
    def persistent_backward_kernel(
        vectors, h, c, gates, d_per_unit, dy, dh, dc, weights, step_mask, noise, masks, scale, blocks, warps, trouble,
        directions, steps, batch, limit,
    ):  # fmt: skip
        """All steps of some layers backward.

        Writes   vectors[l D + d] (T, B, A*H), the gradient of h Rᵀ; vectors[(L + l) D + d] (T, B, G*H), that of x Wᵀ,
                 if the cell's two differ; dh[l D + d] (B, H), dc[l D + d] (B, N*H), first the gradient of the final
                 state, then of the initial one; d_per_unit[l D + d] (T, B, V*H), if the cell has parameters per unit;
                 trouble (1,) if it waited in vain
        Reads    dy (T, B, D*H) of the last layer; what forward left in h, c, gates; weights; the tables; masked:
                 step_mask (D, T+2, B); noise (places, 4), if the cell has any
        Launch   cooperative, one block per row of `blocks`; all arrays flat; vectors full of UNWRITTEN
        """
        shared, failed = cuda.shared.array(0, number, alignment=16), cuda.shared.array(1, np.int32)
        fragments = cuda.local.array(fragment_words, np.uint32)
        words = cuda.local.array((tiles, gathered, 4), np.uint32)
        # Of the thread's pairs: what the cell saved, states before and after the step, the gradient of the output.
        saved, above = cuda.local.array(PK, stored_number), cuda.local.array(P, stored_number)
        h_before, h_after = cuda.local.array(P, stored_number), cuda.local.array(P, stored_number)
        before, after = cuda.local.array(PN, number), cuda.local.array(PN, number)
        code_of, code_after = cuda.local.array(P, np.uint8), cuda.local.array(P, np.uint8)  # of this step, of the next
        per_unit = cuda.local.array(PV, number)

        thread, block = cuda.threadIdx.x, cuda.blockIdx.x
        warp = thread // 32
        layer, direction, hidden = blocks[block, LAYER], blocks[block, DIRECTION], blocks[block, HIDDEN]
        first_unit, num_units = blocks[block, UNIT], blocks[block, UNITS]
        gates_width, reads_dy = blocks[block, GATES_WIDTH], blocks[block, READS_GATES] != 0
        split, working = np.int32(blocks[block, RECURRENT_WARPS]), np.int32(blocks[block, WORKING_WARPS])
        mask, begin, end = blocks[block, MASK], blocks[block, SEQUENCE], blocks[block, END]
        words_of_noise = noise[blocks[block, NOISE]]
        place = layer * directions + direction
        layer_h, layer_c, layer_gates, layer_dh, layer_dc = h[layer], c[layer], gates[place], dh[place], dc[place]
        width, private_row = directions * hidden, directions * N * hidden
        own_h, own_c = direction * hidden + first_unit, direction * N * hidden + first_unit  # columns of unit 0
        vector = vectors[warps[block, warp, VECTOR]]
        shift, vector_width = warps[block, warp, SHIFT], warps[block, warp, WIDTH]
        column, count = warps[block, warp, COLUMN], np.int32(warps[block, warp, COUNT])
        recurrent = warps[block, warp, KIND] == RECURRENT

        if thread == 0:
            failed[0] = 0
        if multiplies:
            load_weights(
                fragments, weights, shared, warps[block, warp, WEIGHTS], num_units, warps[block, warp, GROUPS],
                warps[block, warp, GROUP_STRIDE], warps[block, warp, UNIT_STRIDE], warps[block, warp, COLUMN_STRIDE],
                count,
            )  # fmt: skip
        cuda.syncthreads()  # weights may have passed through where sums and gradients go
        for at in range(thread, WARPS * between_warps, THREADS):
            shared[partials + at] = number(0)
        for pair in range(thread, (end - begin) * U, THREADS):  # the gradient of the state, so far
            unit, b = pair % U, begin + pair // U
            if unit < num_units:
                at = states + pair * (1 + N)
                shared[at] = layer_dh[b * hidden + first_unit + unit]
                store_private(shared, at + 1, 1, load_private(layer_dc, b * N * hidden + first_unit + unit, hidden))
        own_vectors(per_unit, weights, blocks[block, VECTORS] + first_unit, hidden, num_units)
        mine = (saved, h_before, h_after, before, after, above)
        rows, sizes = (layer_gates, layer_h, layer_c, dy), (gates_width, width, private_row, hidden)
        columns = (first_unit, own_h, own_c)
        t = 0 if direction == 1 else steps - 1
        fetch_all(mine, rows, t, direction, begin, end, batch, sizes, columns, num_units, reads_dy)
        cuda.syncthreads()

        move = 2 * direction - 1  # in time, from step to step
        t -= move
        for step in range(steps + 1):  # the last one only carries the gradient to the initial state
            t += move
            for first in range(begin, end, SEQUENCES):
                if masked:
                    slots = direction * (steps + 2)
                    look_up(code_of, step_mask, (slots + t + 1) * batch, first, end)
                    look_up(code_after, step_mask, (slots + t + 2 - 2 * direction) * batch, first, end)
                # 1. The products, each warp its part: none from later steps at first, none from above at last
                if multiplies and count > 0 and ((recurrent and step > 0) or (not recurrent and step < steps)):
                    if not multiply(
                        fragments, words, shared, partials + warp * between_warps, vector, t + shift, batch, first, end,
                        vector_width, column, count, 1, limit, trouble,
                    ):  # fmt: skip
                        report(trouble, blocks[block, TROUBLE] + step + (0 if recurrent else OTHER_LAYER))
                        failed[0] = 1
                cuda.syncthreads()
                if failed[0] != 0:
                    return
                # 2. The cell, for the block's units
                for i in range(P):
                    pair = thread + i * THREADS
                    unit, b = pair % U, first + pair // U
                    valid = pair < U * SEQUENCES and unit < num_units and b < end
                    d_ax, d_ah, own = no_gates(), no_recurrent(), states + ((first - begin) * U + pair) * (1 + N)
                    at = partials + pair // U * row_stride + unit
                    if valid:
                        d_h = shared[own]
                        if A > 0 and step > 0:
                            d_h += sums(shared, at, 0, split)[0]
                        private = load_private(shared, own + 1, 1)
                        if masked and code_after[i] == RESET:  # nothing comes from the step after
                            d_h, private = number(0), no_private()
                        shared[own] = d_h
                        if step < steps:
                            output = widen(above[i])
                            if inputs and not reads_dy:
                                output = sums(shared, at, split, working)[0]
                                if drops and mask >= 0:
                                    position = (t * batch + b) * width + own_h + unit
                                    output *= dropout_factor(position, masks, mask, scale)
                            state = whole(widen(h_before[i]), load_private(before, i * N, 1))
                            new_state = whole(widen(h_after[i]), load_private(after, i * N, 1))
                            if masked and code_of[i] == RESET:
                                state = no_state()
                            d_state = whole(d_h + output, private)
                            random = draw(words_of_noise, np.uint64(b * hidden + first_unit + unit), np.uint64(t))
                            d_ax, d_ah, d_before, d_own = backward(
                                load_saved(saved, i * K, 1), state, new_state, d_state, (),
                                load_per_unit(per_unit, i * V, 1), (), (), random,
                            )  # fmt: skip
                            if masked and code_of[i] == SKIP:
                                d_ax, d_ah, d_before, d_own = (
                                    no_gates(), no_recurrent(), whole(d_h, private), no_per_unit(),
                                )  # fmt: skip
                            if V > 0:
                                row = (t * batch + b) * V * hidden + first_unit + unit
                                store_per_unit(d_per_unit[place], row, hidden, d_own)
                            shared[own] = d_before[0]
                            store_private(shared, own + 1, 1, d_before[1:])
                    if step < steps:
                        at = (t * batch + b) * A * hidden + first_unit + unit
                        publish_recurrent(vectors[place], at, hidden, d_ah, valid)
                        if not same_gradient:
                            at = (t * batch + b) * G * hidden + first_unit + unit
                            publish_gates(vectors[len(gates) + place], at, hidden, d_ax, valid)
                # 3. What the cell will need next besides products
                last = first + SEQUENCES >= end
                next_step, next_first = (step + 1, begin) if last else (step, first + SEQUENCES)
                if next_step < steps:
                    next_t = t + move if last else t
                    fetch_all(
                        mine, rows, next_t, direction, next_first, end, batch, sizes, columns, num_units, reads_dy
                    )
                    ahead = next_t + PREFETCH_STEPS * move
                    if 0 <= ahead and ahead < steps:
                        prefetch(layer_gates, ahead, next_first, end, batch, gates_width, hidden, first_unit, num_units)
                cuda.syncthreads()

        for pair in range(thread, (end - begin) * U, THREADS):
            unit, b = pair % U, begin + pair // U
            if unit < num_units:
                at = states + pair * (1 + N)
                layer_dh[b * hidden + first_unit + unit] = shared[at]
                store_private(layer_dc, b * N * hidden + first_unit + unit, hidden, load_private(shared, at + 1, 1))

    name = f"{cell.name}_persistent_backward"
    return Kernel(persistent_backward_kernel, name, source_key=f"{cut} {inputs} {drops} {masked}")
