"""The forward kernel: one cooperative launch runs all steps of several layers. `backward` runs them in reverse.

Every block owns some units of one layer and direction, keeps their weights on the chip (`tile`), and at each step

    loads what its units need besides products                         (without waiting)
    waits for the previous state and for the layer's input             `exchange.make_gather`
    multiplies them by its weights                                     `products`
    exchanges what the cell's stages need of all units, if any         `within_forward`
    runs the cell's equations for its units                            `specialise(cell.forward)`
    publishes its units' part of the new state                         `exchange.make_publish`
    computes its part of h from that, if h is a projection             `projection`

There is no grid barrier: a block waits only for the numbers that it multiplies (`exchange`). Layer l + 1 follows one
step behind layer l, so the layers' steps run as a wavefront. The launch is cooperative, so that all blocks are
resident at once. A cell (`numbarnn.cells`) has A gates of ah, with its stages' gates, and G of ax. If A is 0 and
there are no stages, blocks of a layer do not wait for each other.

Two tables (`columns`) assign the work to blocks. A block that times out sets the error flag (`error_flag`) and
leaves, and so does every block that then waits. Arrays that a cell or call lacks are empty tuples. `ends` loads the
initial states, stores the final states, and fills a failed call's results with NaN.
"""

import numpy as np

from numbarnn.common.order import SKIP
from numbarnn.common.precision import compute_dtype, compute_type
from numbarnn.compile import storage, units
from numbarnn.compile.specialise import forward_function
from numbarnn.cuda import ptx
from numbarnn.cuda.backend import backend, per_backend
from numbarnn.cuda.language import cuda
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.persistent import block, context, ends, exchange, products, projection, within_forward
from numbarnn.kernels.persistent.block import PREFETCH_STEPS
from numbarnn.kernels.persistent.columns import BLOCK, STAGE
from numbarnn.kernels.persistent.context import Outputs, Role, Rows, Thread, Turn


@per_backend
def make_forward(cell, tile, save, inputs, drops, masked=False, exact=False):
    """Make the forward kernel.

    Args:
        cell: any `Cell`. tile: the `Tile` of all blocks. save: whether to keep what backward needs (training).
        inputs: whether some layers multiply their input themselves: all but the launch's first layer, or all with
            `Tile.given`.
        drops: whether there is dropout between layers.
        masked: whether some steps are skipped or reset (`numbarnn.common.order`).
        exact: whether initial and final cell states have the dtype of sums, without rounding.
    """
    dtype, number = tile.dtype, compute_type(tile.dtype)
    P, WARPS, THREADS, SEQUENCES = tile.pairs, tile.warps, tile.threads, tile.sequences
    G, A, N, K, V = cell.num_gates, cell.num_ah, cell.num_private, cell.num_saved, cell.num_per_unit
    reads, inputs = not tile.given, inputs or tile.given  # reads: the first layer reads x Wᵀ
    multiplies, keeps, staged, projects = inputs or A > 0, save and K > 0, len(cell.stages) > 0, tile.projects
    has_sums, has_products, draws = cell.num_sums > 0, cell.num_products > 0, save and len(cell.noise) > 0
    PARTIALS, BETWEEN_WARPS, keeps_biases = tile.partials, tile.between_warps, tile.keeps_biases
    # Sizes of local arrays: constants, and at least 1.
    words, n8, on_the_way = max(1, tile.fragment_words), tile.n8, tile.chunks_on_the_way
    stored_number, PG, PV, PB, PRE = block.stored_number(dtype), P * G, P * V, P * tile.unit_biases, P * (G + A)

    product, decode, keep_order = products.make_product(tile), context.make_decode(), ptx.keep_order
    load_weights, multiply, pair_of = product.load, product.step, context.make_pair(tile)
    share_biases, own_biases = block.make_share_biases(tile, G, A), block.make_own_biases(tile)
    own_parameters, look_up = block.make_own_parameters(cell, tile), block.make_look_up(tile)
    fetch, prefetch, state_at = block.make_fetch(tile, G), block.make_prefetch(tile, G), block.make_state_at(cell, tile)
    begin_states, end_states = ends.make_begin(cell, tile, save, exact), ends.make_end(cell, tile, exact)
    leave, poison = ends.make_leave(), ends.make_poison(dtype)
    poison_c = ends.make_poison(compute_dtype(dtype) if exact else dtype)
    within = within_forward.make_within(cell, tile, save, inputs, masked)
    arguments_of = within_forward.make_arguments(cell, tile, inputs, masked, draws)
    project, outputs_of = projection.make_forward(cell, tile, drops, masked), projection.make_owned()
    publish, dropout_factor = exchange.make_publish(dtype, tile.aligned), block.make_dropout_factor(dtype)
    forward, of_state = forward_function(cell, dtype, backend()), block.make_states(cell, dtype)
    widen, narrow, store_state, whole = storage.widen(dtype), storage.narrow(dtype), of_state.store, of_state.whole
    store_private, store_saved = of_state.store_private, units.storer(K, narrow)

    @cuda.jit(launch_bounds=(THREADS, 1))
    def persistent_forward_kernel(
        h, dropped, c, gates, within_step, states, leaving, weights, options, tables, sizes, error_flag
    ):
        """Compute all steps of some layers forward.

        Writes   h[l] (T+2, B, D*H), layer l's output, slots 1 to T, and its initial state; dropped[l] (T, B, D*H), h[l]
                 after dropout, for all layers but the last if there is dropout, then with `Tile.given` the launch's
                 input; c[l] (T+2, B, D*N*H) with `save`; final states in states, an `ends.States`; what the cell saves
                 in gates[l D + d] (T, B, width) with `save`; in within_step, a `context.WithinStep`, what stages
                 exchange; error_flag (1,) after a timeout; the last block what `ends.Leaving` says
        Reads    gates[d] of the first layer = x Wᵀ; initial states in states; weights; options, a `columns.Options`;
                 tables: blocks (blocks, columns) and warps (blocks, warps, columns), see `columns`;
                 sizes: D, T, B, and the most polls of a wait, int32
        Launch   cooperative, one block per row of `blocks`; all arrays but the tables flat; h, dropped, and what stages
                 exchange full of UNWRITTEN
        With a projection h and dropped are P wide in place of H, and within_step has the cells' outputs m.
        """
        directions, steps, batch, limit = sizes
        thread = Thread(
            cuda.shared.array(0, number, alignment=16), cuda.shared.array(1, np.int32),
            cuda.local.array(words, np.uint32), cuda.local.array((n8, on_the_way, 4), np.uint32),
            cuda.local.array(P, np.uint8) if masked else (), cuda.local.array(PV, number) if V > 0 else (), (),
            cuda.local.array(PG, stored_number), cuda.local.array(PRE, number) if staged else (),
            cuda.local.array(PB, number) if keeps_biases else (),
        )  # fmt: skip
        positions = cuda.local.array(P, np.int64)  # where the output of the thread's pairs goes
        shared, timed_out, x_product = thread.shared, thread.timed_out, thread.x_product

        row, owned, warp, recurrent_warps, working_warps = decode(tables, batch)
        layer, direction, hidden, unit0 = row[BLOCK.layer], row[BLOCK.direction], owned.hidden, owned.unit
        reads_gates, mask = row[BLOCK.reads_gates] != 0, row[BLOCK.mask]
        place = layer * directions + direction
        # Rows of what the cell's equations give: h, or with a projection m; of cell states and of gates
        m_rows = Rows(
            within_step.projected[layer] if projects else h[layer], directions * hidden, direction * hidden + unit0
        )
        c_rows = Rows(c[layer] if N > 0 else (), directions * N * hidden, direction * N * hidden + unit0)
        gates_of = gates[place if keeps else direction] if keeps or reads else ()
        gate_rows = Rows(gates_of, row[BLOCK.gates_width], unit0)
        h_rows, outputs = m_rows, ()
        if projects:
            h_rows = Rows(h[layer], directions * row[BLOCK.width], direction * row[BLOCK.width] + unit0)
            of_layer = dropped[layer if drops and mask >= 0 else 0] if drops else ()
            outputs = Outputs(outputs_of(owned, row[BLOCK.outputs]), h_rows, 2 * direction, of_layer)
        role = Role(
            row, owned, warp, weights, (h + dropped + within_step.v + within_step.projected)[warp.operand], limit,
            error_flag, recurrent_warps, working_warps, row[BLOCK.stage_warps], reads_gates, options,
            options.noise[row[BLOCK.noise]] if draws else (), mask, within_step.words[place] if has_sums else (),
            within_step.sums[place] if save and has_sums else (), within_step.v[place] if has_products else (), outputs,
        )  # fmt: skip

        if cuda.threadIdx.x == 0:
            timed_out[0] = 0
        initial, final = (0, steps) if direction == 0 else (steps + 1, 1)
        at_ends = (place, directions)
        begin_states(thread, states, owned, row[BLOCK.outputs], at_ends, (h_rows, c_rows), (initial, initial))
        if multiplies:
            load_weights(thread, role)
        for at in range(cuda.threadIdx.x, WARPS * BETWEEN_WARPS, THREADS):
            shared[PARTIALS + at] = number(0)
        share_biases(shared, weights, row[BLOCK.bias_w], row[BLOCK.bias_r], owned)
        if V > 0:
            own_parameters(thread, weights, row[BLOCK.per_unit], owned)
        move = 1 - 2 * direction  # in time, from step to step
        step, t, b0 = 0, (0 if direction == 0 else steps - 1), owned.begin
        if reads and reads_gates:
            fetch(x_product, gate_rows, owned, t, b0)
        cuda.syncthreads()
        if keeps_biases:
            own_biases(thread.biases, shared, owned)

        while step < steps:
            turn = Turn(step, t, b0)
            if masked:
                look_up(thread.code_of, options.step_mask, (direction * (steps + 2) + t + 1) * batch, b0, owned.end)
            for i in range(P):  # before the wait for others, not after it
                _, unit, b, _ = pair_of(owned, b0, i)
                positions[i] = ((t + 1) * batch + b) * m_rows.width + m_rows.column + unit
            # 1. Multiply, each warp its part.
            if multiplies and warp.columns > 0 and not ((has_products or projects) and warp.kind >= STAGE):
                multiply(thread, role, turn)
            cuda.syncthreads()
            if staged:
                within(thread, role, turn)
            # 2. Run the cell for the block's units.
            for i in range(P):
                pair, unit, b, valid = pair_of(owned, b0, i)
                new_h, position, at_state = number(0), np.int64(0), np.uint64(state_at(owned, b0, pair))
                if valid:
                    arguments = arguments_of(thread, role, turn, i)
                    new_state, kept = forward(*arguments)
                    if masked and thread.code_of[i] == SKIP:
                        new_state = arguments[2]
                    new_h, position = new_state[0], positions[i]
                stored = narrow(new_h)
                publish(m_rows.array, position, stored, valid)
                keep_order(np.int32(cuda.threadIdx.x))  # other blocks wait for this store: it stays first
                if drops and not projects and mask >= 0:
                    position -= batch * m_rows.width if valid else 0
                    factor = dropout_factor(position, options, mask)
                    publish(dropped[layer], position, narrow(widen(stored) * factor), valid)
                if valid:
                    store_state(shared, at_state, np.uint64(1), whole(widen(stored), new_state[1:]))
                    if save:
                        at = np.uint64((t * batch + b) * gate_rows.width + gate_rows.column + unit)
                        store_saved(gate_rows.array, at, np.uint64(hidden), kept)
                        at = np.uint64(((t + 1) * batch + b) * c_rows.width + c_rows.column + unit)
                        store_private(c_rows.array, at, np.uint64(hidden), new_state[1:])
            if projects:
                project(thread, role, turn)
            # After the cell, which would wait for this read. Results of a failed call are overwritten.
            if timed_out[0] != 0:
                break
            # 3. Fetch what the cell needs next besides products.
            b0 += SEQUENCES
            if b0 >= owned.end:
                step, t, b0 = step + 1, t + move, owned.begin
            if reads and reads_gates and step < steps:
                fetch(x_product, gate_rows, owned, t, b0)
                prefetch(gate_rows, owned, t + PREFETCH_STEPS * move, b0, steps)
            cuda.syncthreads()

        if timed_out[0] == 0:
            end_states(thread, states, owned, row[BLOCK.outputs], at_ends, h_rows, final)
        if leave(thread, leaving, error_flag):
            poison(h)
            poison(states.last_h)
            if N > 0:
                poison_c(states.last_c)

    name = f"{cell.name}_persistent_forward_{'training' if save else 'inference'}"
    return Kernel(persistent_forward_kernel, name, source_key=f"{exact} {tile} {inputs} {drops} {masked}")
