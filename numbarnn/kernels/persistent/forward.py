"""The forward kernel: one cooperative launch runs all steps of several layers. `backward` has the same walk in reverse.

Every block owns some units of one layer and direction, keeps their weights on the chip (`tile`), and at each step

    loads what its own units need besides products                     (not waiting for anybody)
    waits for the state before the step, and for the layer's input     `gather`
    multiplies them with its weights                                   `multiply`
    exchanges what the cell's stages need of all units, if it has any  `within_forward`
    runs the cell's equations for its units                            `specialise(cell.forward)`
    publishes its units' part of the new state                         `publish`
    makes its part of h of that, if h is a projection                  `projection`

Nobody waits for a whole grid: a block waits for the numbers that it multiplies (`exchange`), so layer l + 1 follows one
step behind layer l, and the layers' steps run as a wavefront. All blocks are resident at once, as the launch is
cooperative. A cell (`numbarnn.cells`) has A gates of ah, those of its stages among them, and G of ax; where A is 0 and
there are no stages, blocks of a layer do not wait for each other.

Which block does what stands in two tables (`columns`). A block that waits in vain reports where (`trouble`) and leaves,
and so do all others as soon as they wait. What a cell or a call does not have is an empty tuple in place of its arrays.
Before the first step blocks publish their part of the initial state, after the last one they write the final state
(`ends`). Only for cells with stages and for projections other kernels copy these (`ends.copied`). If the call ends with
the launch, the block that leaves last fills the results of a call that failed with NaN.
"""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.common.order import SKIP
from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage, units
from numbarnn.compile.backend import BACKEND, kernel
from numbarnn.compile.specialise import forward_function
from numbarnn.cuda import ptx
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.persistent import block, ends, exchange, products, projection, within_forward
from numbarnn.kernels.persistent.block import PREFETCH_STEPS, Rows
from numbarnn.kernels.persistent.columns import BLOCK, WARP
from numbarnn.kernels.persistent.exchange import Operand, Patience
from numbarnn.kernels.persistent.weights import Fragments, make_matrix
from numbarnn.kernels.persistent.within import Role, Thread, Turn
from numbarnn.kernels.trouble import OTHER_LAYER, make_report


@cache
def make_forward(cell, tile, save, inputs, drops, masked=False):
    """The forward kernel.

    Args:
        cell: any `Cell`.
        tile: the `Tile` of all blocks.
        save: training: keep all private states, and what the cell saves.
        inputs: whether some layers multiply their input themselves: all but the first of the launch, or with
            `Tile.given` all.
        drops: whether there is dropout between layers.
        masked: whether some steps are not ordinary (`numbarnn.common.order`).
    """
    dtype, number = tile.dtype, np.dtype(compute_dtype(tile.dtype)).type
    U, P, WARPS, THREADS, SEQUENCES = tile.units, tile.pairs, tile.warps, tile.threads, tile.sequences
    G, A, N, K, V = cell.num_gates, cell.num_ah, cell.num_private, cell.num_saved, cell.num_per_unit
    keep_order = ptx.keep_order
    reads, inputs = not tile.given, inputs or tile.given  # reads: the first layer x Wᵀ, which was there before
    multiplies, keeps = inputs or A > 0, save and K > 0
    PARTIALS, STATES = tile.partials, tile.states  # in shared memory
    BETWEEN_WARPS = tile.between_warps
    # Sizes of local arrays: constants, and at least 1.
    fragment_words, fragment_word = max(1, tile.fragment_words), np.uint32
    octets, on_the_way, stored_number = tile.octets, tile.chunks_on_the_way, block.stored_number(dtype)
    PG, PV, staged, has_sums = P * G, P * V, len(cell.stages) > 0, cell.num_sums > 0
    PB, keeps_biases, own_biases = P * tile.unit_biases, tile.keeps_biases, block.make_own_biases(tile)
    share_biases = block.make_share_biases(tile, G, A)
    PRE, keeps_sums, has_products = P * (G + A), save and has_sums, cell.num_products > 0
    projects, shares_warps = tile.projects, has_products or tile.projects
    in_shared, waits_within, has_per_unit = tile.unit_parameters > 0, staged or projects, V > 0
    copied = ends.copied(cell, tile.projects)

    product, report = products.make_product(tile), make_report()
    load_weights, multiply, matrix_of = product.load, product.step, make_matrix()
    begin_states, end_states = ends.make_begin(cell, tile, save), ends.make_end(cell, tile, save)
    leave = ends.make_leave(dtype)
    publish, dropout_factor = exchange.make_publish(dtype, tile.aligned), block.make_dropout_factor(dtype)

    has_c, draws = N > 0, save and len(cell.noise) > 0
    forward, within = (
        forward_function(cell, dtype, BACKEND),
        within_forward.make_within(cell, tile, save, inputs, masked),
    )
    arguments_of = within_forward.make_arguments(cell, tile, inputs, masked, draws)
    project, outputs_of = projection.make_forward(cell, tile, drops, masked), projection.make_owned()
    drops, Outputs = drops and not projects, projection.Outputs
    widen, narrow, of_state = storage.widen(dtype), storage.narrow(dtype), block.make_states(cell, dtype)
    store_state, whole = of_state.store, of_state.whole
    load_private, store_private = of_state.load_private, of_state.store_private
    store_saved, own_parameters = units.storer(K, BACKEND, narrow), block.make_own_parameters(cell, tile)
    decode, pair_of, look_up = block.make_decode(), block.make_pair(tile), block.make_look_up(tile)
    fetch, prefetch = block.make_fetch(tile, G), block.make_prefetch(tile, G)

    @kernel(launch_bounds=(THREADS, 1))
    def persistent_forward_kernel(
        h, dropped, c, gates, within_step, states, leaving, weights, options, tables, sizes, trouble
    ):
        """All steps of some layers forward.

        Writes   h[l] (T+2, B, D*H), layer l's output, slots 1 to T, and its initial state; dropped[l] (T, B, D*H), the
                 same dropped out, of all layers but the last, if there is dropout, and then the first layer's input,
                 with `Tile.given`; c[l] (T+2, B, D*N*H) with `save`; final states in states, an `ends.States`; what the
                 cell saves to gates[l D + d] (T, B, width) with `save`; of within_step, a `block.WithinStep`, what
                 stages exchange; trouble (1,) if it waited in vain; the last block what `ends.Leaving` says
        Reads    gates[d] of the first layer = x Wᵀ; initial states in states; weights;
                 options: `columns.Options`
                 tables: blocks (blocks, columns) and warps (blocks, warps, columns), see `columns`
                 sizes: D, T, B, and how often to look for what is missing, int32
        Launch   cooperative, one block per row of `blocks`; all arrays but the tables flat; h, dropped, and what stages
                 exchange full of UNWRITTEN
        Where states are `copied`, initial ones stand in h[l] and c[l], and final ones are left there; without `save`
        c[l] is then (2, B, D*N*H). With a projection h and dropped are P wide in place of H, and the cells' outputs m
        are in within_step.
        """
        directions, steps, batch, limit = sizes
        shared, failed = cuda.shared.array(0, number, alignment=16), cuda.shared.array(1, np.int32)
        registers = cuda.local.array(fragment_words, fragment_word)
        loaded = cuda.local.array((octets, on_the_way, 4), np.uint32)
        now = cuda.local.array(PG, stored_number)  # x Wᵀ of the thread's pairs
        code_of = cuda.local.array(P, np.uint8) if masked else ()  # likewise
        positions = cuda.local.array(P, np.int64)  # likewise, where their output of the step goes
        per_unit = cuda.local.array(PV, number) if has_per_unit else ()
        pre_activations = cuda.local.array(PRE, number) if staged else ()
        biases = cuda.local.array(PB, number) if keeps_biases else ()

        thread = cuda.threadIdx.x
        warp = thread // 32
        own, part, owned, share, split, working = decode(tables, batch)
        layer, direction, hidden, unit0 = own[BLOCK.layer], own[BLOCK.direction], owned.hidden, owned.unit
        begin, end = owned.begin, owned.end
        reads_gates, mask = own[BLOCK.reads_gates] != 0, own[BLOCK.mask]
        noise_row, place = options.noise[own[BLOCK.noise]] if draws else (), layer * directions + direction
        # Rows of h, of private states and of gates, and what the block's warp multiplies
        m = within_step.projected[layer] if projects else h[layer]  # what the cell's equations give
        m_rows = Rows(m, directions * hidden, direction * hidden + unit0)
        c_rows = Rows(c[layer] if has_c else (), directions * N * hidden, direction * N * hidden + unit0)
        gates_of = gates[place if keeps else direction] if keeps or reads else ()
        gate_rows = Rows(gates_of, own[BLOCK.gates_width], unit0)
        exchanged = (h + dropped + within_step.v + within_step.projected)[part[WARP.operand]]
        fragments, outputs = Fragments(registers, weights, matrix_of(part)), ()
        if projects:
            h_rows = Rows(h[layer], directions * own[BLOCK.width], direction * own[BLOCK.width] + unit0)
            outputs = Outputs(outputs_of(owned, own[BLOCK.outputs]), h_rows, 2 * direction, dropped, layer, mask)
        role = Role(
            owned, split, working, own[BLOCK.stage_warps], own[BLOCK.trouble], reads_gates, options, noise_row,
            share, fragments, exchanged, Patience(1, limit, trouble), within_step.words[place] if has_sums else (),
            within_step.sums[place] if keeps_sums else (), within_step.v[place] if has_products else (), outputs,
        )  # fmt: skip
        of_thread = Thread(shared, failed, loaded, code_of, per_unit, (), now, pre_activations, biases)

        if thread == 0:
            failed[0] = 0
        initial = 0 if direction == 0 else steps + 1
        initial_c = initial if save else initial % 2
        if not copied:
            # First of all, as others wait for it.
            begin_states(shared, m_rows, c_rows, states, (place, directions), (initial, initial_c), owned)
        if multiplies:
            load_weights(fragments, shared)
        for at in range(thread, WARPS * BETWEEN_WARPS, THREADS):
            shared[PARTIALS + at] = number(0)
        share_biases(shared, weights, own[BLOCK.bias_w], own[BLOCK.bias_r], owned)
        if copied:
            for pair in range(thread, (end - begin) * U, THREADS):
                unit, b = pair % U, begin + pair // U
                if unit < owned.units:
                    first_h = number(0)
                    if not projects:
                        first_h = widen(m_rows.array[(initial * batch + b) * m_rows.width + m_rows.column + unit])
                    at = (initial_c * batch + b) * c_rows.width + c_rows.column + unit
                    state = whole(first_h, load_private(c_rows.array, at, hidden))
                    store_state(shared, STATES + pair * (1 + N), 1, state)
        if has_per_unit:
            own_parameters(shared if in_shared else per_unit, weights, own[BLOCK.per_unit], owned)
        t = 0 if direction == 0 else steps - 1
        if reads and reads_gates:
            fetch(now, gate_rows, t, begin, owned)
        cuda.syncthreads()

        move = 1 - 2 * direction  # in time, from step to step
        t -= move
        if keeps_biases:
            own_biases(biases, shared, owned)
        for step in range(steps):
            t += move
            for b0 in range(begin, end, SEQUENCES):
                if masked:
                    look_up(code_of, options.step_mask, (direction * (steps + 2) + t + 1) * batch, b0, end)
                for i in range(P):  # before the wait for others, not after it
                    _, unit, b, _ = pair_of(i, b0, owned)
                    positions[i] = ((t + 1) * batch + b) * m_rows.width + m_rows.column + unit
                # 1. The products, each warp its part
                if multiplies and share.columns > 0 and not (shares_warps and share.stage >= 0):
                    slot = t + share.shift
                    what = Operand(exchanged, slot, b0, end, batch, share.width, share.column, share.columns)
                    there = (not reads and share.given) or (copied and share.recurrent and step == 0)
                    patience = Patience(0 if there else 1, limit, trouble)
                    partial = PARTIALS + warp * BETWEEN_WARPS
                    if not multiply(fragments, loaded, shared, partial, what, patience):
                        report(trouble, own[BLOCK.trouble] + step + (0 if share.recurrent else OTHER_LAYER))
                        failed[0] = 1
                cuda.syncthreads()
                if waits_within and failed[0] != 0:
                    return
                turn = Turn(step, t, b0)
                if staged:
                    within(of_thread, role, turn)
                    if failed[0] != 0:
                        return
                # 2. The cell, for the block's units
                for i in range(P):
                    pair, unit, b, valid = pair_of(i, b0, owned)
                    new_h, position = number(0), np.int64(0)
                    at_state = np.uint64(STATES + ((b0 - begin) * U + pair) * (1 + N))
                    if valid:
                        arguments = arguments_of(of_thread, role, turn, i)
                        new_state, kept = forward(*arguments)
                        if masked and code_of[i] == SKIP:
                            new_state = arguments[2]
                        new_h, position = new_state[0], positions[i]
                    stored = narrow(new_h)
                    publish(m_rows.array, position, stored, valid)
                    keep_order(np.int32(thread))  # others wait for it: before the places of what is kept are computed
                    if drops and mask >= 0:
                        position -= batch * m_rows.width if valid else 0
                        factor = dropout_factor(position, options.masks, mask, options.scale)
                        publish(dropped[layer], position, narrow(widen(stored) * factor), valid)
                    if valid:
                        store_state(shared, at_state, np.uint64(1), whole(widen(stored), new_state[1:]))
                        if save:
                            at = np.uint64((t * batch + b) * gate_rows.width + gate_rows.column + unit)
                            store_saved(gate_rows.array, at, np.uint64(hidden), kept)
                        if save or (copied and step == steps - 1):
                            slot = t + 1 if save else (t + 1) % 2
                            at = np.uint64((slot * batch + b) * c_rows.width + c_rows.column + unit)
                            store_private(c_rows.array, at, np.uint64(hidden), new_state[1:])
                if projects:
                    project(of_thread, role, turn)
                    if failed[0] != 0:
                        return
                # Not before the cell, which would wait for this. Results of a call that failed are overwritten.
                if failed[0] != 0:
                    if not copied:
                        leave(leaving, trouble, failed)
                    return
                # 3. What the cell will need next besides products
                if reads and reads_gates:
                    last = b0 + SEQUENCES >= end
                    next_step, next_b0 = (step + 1, begin) if last else (step, b0 + SEQUENCES)
                    if next_step < steps:
                        next_t = t + move if last else t
                        fetch(now, gate_rows, next_t, next_b0, owned)
                        ahead = next_t + PREFETCH_STEPS * move
                        if 0 <= ahead and ahead < steps:
                            prefetch(gate_rows, ahead, next_b0, owned)
                cuda.syncthreads()

        if not copied:
            final = steps if direction == 0 else 1
            end_states(shared, c_rows, states, (place, directions), final if save else final % 2, owned)
            leave(leaving, trouble, failed)

    name = f"{cell.name}_persistent_forward_{'training' if save else 'inference'}"
    return Kernel(persistent_forward_kernel, name, source_key=f"{tile} {inputs} {drops} {masked}")
