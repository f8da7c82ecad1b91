"""The backward kernel: the steps of `forward` in reverse, with the transposed weights.

A block owns the same units as forward. It waits for, multiplies and publishes gradients of pre-activations, and
keeps the gradient of its units' state in shared memory from step to step.
"""

import numpy as np

from numbarnn.common.order import SKIP
from numbarnn.common.precision import compute_dtype, compute_type
from numbarnn.compile import storage, units
from numbarnn.compile.specialise import backward_function
from numbarnn.cuda.backend import backend, per_backend
from numbarnn.cuda.language import cuda
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.device import device_function
from numbarnn.kernels.persistent import block, context, ends, exchange, products, projection, within_backward
from numbarnn.kernels.persistent.block import PREFETCH_STEPS
from numbarnn.kernels.persistent.columns import BLOCK, RECURRENT, STAGE
from numbarnn.kernels.persistent.context import Outputs, Role, Rows, Thread, Turn


@device_function
def _make_fetch_step(tile, K, N, Q):
    """Make fetch_step(thread, role, rows, outputs, direction, t, b0), which loads what the cell needs besides products.

    Args of fetch_step:
        rows: `Rows` of saved values, of h and of c. outputs: `Owned`, the block's outputs, whose dy is read.
    """
    fetch_saved, fetch_h, fetch_c = (block.make_fetch(tile, count) for count in (K, 1, N))
    fetch_sums, has_sums = block.make_fetch_sums(tile, Q), Q > 0

    def fetch_step(thread, role, rows, outputs, direction, t, b0):
        (saved, h, c), owned = rows, role.owned
        slot = t + 2 * direction  # of the states before the step; slot t + 1 has those after it
        fetch_saved(thread.saved, saved, owned, t, b0)
        fetch_h(thread.h_before, h, owned, slot, b0)
        fetch_h(thread.h_after, h, owned, t + 1, b0)
        fetch_c(thread.c_before, c, owned, slot, b0)
        fetch_c(thread.c_after, c, owned, t + 1, b0)
        if role.reads_gates:
            fetch_h(thread.dy, role.d_output, outputs, t, b0)
        if has_sums:
            fetch_sums(thread.sums, role.kept_sums, owned, t, b0)

    return fetch_step


@per_backend
def make_backward(cell, tile, inputs, drops, masked=False, exact=False):
    """Make the backward kernel. Arguments: as for `forward.make_forward`; `exact` is for all states' gradients."""
    dtype, math_dtype, number = tile.dtype, compute_dtype(tile.dtype), compute_type(tile.dtype)
    U, P, WARPS, THREADS, SEQUENCES = tile.units, tile.pairs, tile.warps, tile.threads, tile.sequences
    G, A, N, K, V = cell.num_gates, cell.num_ah, cell.num_private, cell.num_saved, cell.num_per_unit
    Q, staged, projects = cell.num_sums, len(cell.stages) > 0, tile.projects
    has_sums, has_products = Q > 0, cell.num_products > 0
    multiplies, separate, draws = inputs or A > 0, not cell.same_gradient, len(cell.noise) > 0
    PARTIALS, BETWEEN_WARPS, gathers = tile.partials, tile.between_warps, within_backward.gathers(cell, tile)
    # Sizes of local arrays: constants, and at least 1.
    words, n8, on_the_way = max(1, tile.fragment_words), tile.n8, tile.chunks_on_the_way
    stored_number, PK, PN, PV = block.stored_number(dtype), max(1, P * K), max(1, P * N), max(1, P * V)
    PQ, P_CAME, PS = P * Q, P * (2 + N), P * cell.num_products
    of_h = cell.num_recurrent  # gates of ah outside the stages

    kinds = cell, tile, inputs, drops, masked
    product, decode = products.make_product(tile), context.make_decode()
    load_weights, multiply, pair_of = product.load, product.step, context.make_pair(tile)
    own_parameters, look_up = block.make_own_parameters(cell, tile), block.make_look_up(tile)
    fetch_step, prefetch = _make_fetch_step(tile, K, N, Q), block.make_prefetch(tile, K)
    load_first, store_last = (make(cell, dtype, exact, exact) for make in (ends.make_load_first, ends.make_store_last))
    leave, poison = ends.make_leave(), ends.make_poison(dtype)
    poison_states = ends.make_poison(math_dtype if exact else dtype)
    d_state_of, gather = within_backward.make_d_state(cell, tile, inputs, masked), within_backward.make_gather(*kinds)
    within, arguments_of = within_backward.make_within(*kinds), within_backward.make_arguments(*kinds)
    project, outputs_of = projection.make_backward(*kinds), projection.make_owned()
    publish_ax, publish_ah = (exchange.make_publish_all(dtype, tile.aligned, count) for count in (G, of_h))
    backward, of_state = backward_function(cell, dtype, backend()), block.make_states(cell, dtype)
    narrow, state_at = storage.narrow(dtype), block.make_state_at(cell, tile)
    load_state, store_state, whole = of_state.load, of_state.store, of_state.whole
    store_private = of_state.store_private
    no_gates, no_recurrent, no_per_unit = (units.zeros(count, math_dtype) for count in (G, of_h, V))
    store_per_unit = units.storer(V, narrow)

    @cuda.jit(launch_bounds=(THREADS, 1))
    def persistent_backward_kernel(
        dah, dax, saved, gradients, within_step, states, leaving, weights, options, tables, sizes, error_flag
    ):
        """Compute all steps of some layers backward.

        Writes   dah[l D + d] (T, B, A*H), the gradient of h Rᵀ; dax[l D + d] (T, B, G*H), the gradient of x Wᵀ, if the
                 cell's two differ; of gradients d_per_unit[l D + d] (T, B, V*H); the gradients of the initial states in
                 states, an `ends.States`; of within_step, a `context.WithinStep`, what stages exchange; error_flag (1,)
                 if it timed out; the last block what `ends.Leaving` says
        Reads    of gradients dy (T, B, D*H) of the last layer; the final states' gradients in states; forward's results
                 in saved, h[l], c[l] and gates[l D + d], and in within_step; weights; options, tables, sizes: as of the
                 forward kernel
        Launch   cooperative, one block per row of `blocks`; all arrays but the tables flat; dah, dax and what stages
                 exchange full of UNWRITTEN
        With a projection dy and the gradients of h are P wide in place of H, and h[l] are the cells' outputs m[l].
        """
        (h, c, gates), (dy, d_per_unit) = saved, gradients
        directions, steps, batch, limit = sizes
        thread = Thread(
            cuda.shared.array(0, number, alignment=16), cuda.shared.array(1, np.int32),
            cuda.local.array(words, np.uint32), cuda.local.array((n8, on_the_way, 4), np.uint32),
            cuda.local.array(P, np.uint8), cuda.local.array(PV, number), cuda.local.array(P, np.uint8), (), (), (),
            cuda.local.array(PK, stored_number), cuda.local.array(P, stored_number), cuda.local.array(P, stored_number),
            cuda.local.array(PN, number), cuda.local.array(PN, number), cuda.local.array(P, stored_number),
            cuda.local.array(PQ, number) if has_sums else (), cuda.local.array(P_CAME, number) if gathers else (),
            cuda.local.array(PS, number) if has_products else (),
        )  # fmt: skip
        shared, timed_out = thread.shared, thread.timed_out

        row, owned, warp, recurrent_warps, working_warps = decode(tables, batch)
        layer, direction, hidden, unit0 = row[BLOCK.layer], row[BLOCK.direction], owned.hidden, owned.unit
        place, width = layer * directions + direction, row[BLOCK.width] if projects else hidden
        outputs_owned = outputs_of(owned, row[BLOCK.outputs]) if projects else owned
        # Rows of what the cell saved, of h, c and dy
        saved_rows = Rows(gates[place] if K > 0 else (), row[BLOCK.gates_width], unit0)
        h_rows = Rows(h[layer], directions * hidden, direction * hidden + unit0)
        c_rows = Rows(c[layer] if N > 0 else (), N * directions * hidden, direction * N * hidden + unit0)
        rows, outputs = (saved_rows, h_rows, c_rows), ()
        if projects:
            outputs = Outputs(outputs_owned, Rows(within_step.projected[place], width, unit0))
        role = Role(
            row, owned, warp, weights, (dah + dax + within_step.projected)[warp.operand], limit, error_flag,
            recurrent_warps, working_warps, row[BLOCK.stage_warps], row[BLOCK.reads_gates] != 0, options,
            options.noise[row[BLOCK.noise]] if draws else (), row[BLOCK.mask],
            within_step.words[place] if has_sums else (), within_step.sums[place] if has_sums else (),
            dah[place] if has_products else (), outputs, Rows(dy, directions * width, direction * width + unit0),
        )  # fmt: skip

        if cuda.threadIdx.x == 0:
            timed_out[0] = 0
        if multiplies:
            load_weights(thread, role)
        for at in range(cuda.threadIdx.x, WARPS * BETWEEN_WARPS, THREADS):
            shared[PARTIALS + at] = number(0)
        for pair in range(cuda.threadIdx.x, (owned.end - owned.begin) * U, THREADS):
            unit, b = pair % U, owned.begin + pair // U
            if unit < owned.units:  # the gradient of the state, so far
                has_h = unit < outputs_owned.units
                d_h, private = load_first(states, owned, (place, directions), width, unit, b, has_h)
                store_state(shared, state_at(owned, owned.begin, pair), 1, whole(d_h, private))
        own_parameters(thread, weights, row[BLOCK.per_unit], owned)
        move = 2 * direction - 1  # in time, from step to step
        step, t, b0 = 0, (0 if direction == 1 else steps - 1), owned.begin
        fetch_step(thread, role, rows, outputs_owned, direction, t, b0)
        cuda.syncthreads()

        while step <= steps:  # the last one only carries the gradient to the initial state
            turn = Turn(step, t, b0)
            if masked:
                slots = direction * (steps + 2)
                look_up(thread.code_of, options.step_mask, (slots + t + 1) * batch, b0, owned.end)
                look_up(thread.code_after, options.step_mask, (slots + t + 2 - 2 * direction) * batch, b0, owned.end)
            # 1. Multiply, each warp its part: none from later steps at first, none from above at last.
            works = multiplies and warp.columns > 0 and not ((has_products or projects) and warp.kind >= STAGE)
            if works and (step > 0 if warp.kind == RECURRENT else step < steps):
                multiply(thread, role, turn)
            cuda.syncthreads()
            if projects:
                project(thread, role, turn, step == steps)
            elif gathers:
                gather(thread, role, turn)
            if staged and step < steps:
                within(thread, role, turn)
            # 2. Run the cell for the block's units.
            for i in range(P):
                pair, unit, b, valid = pair_of(owned, b0, i)
                d_ax, d_ah, at_state = no_gates(), no_recurrent(), state_at(owned, b0, pair)
                if valid:
                    d_state = d_state_of(thread, role, turn, i)
                    if step < steps:
                        d_ax, d_ah, d_before, d_own = backward(*arguments_of(thread, role, turn, i, d_state))
                        if masked and thread.code_of[i] == SKIP:
                            d_ax, d_ah, d_before, d_own = no_gates(), no_recurrent(), d_state, no_per_unit()
                        if V > 0:
                            store_per_unit(
                                d_per_unit[place], (t * batch + b) * V * hidden + unit0 + unit, hidden, d_own
                            )
                        if projects:  # which has carried the gradient of h
                            store_private(shared, at_state + 1, 1, d_before[1:])
                        else:
                            store_state(shared, at_state, 1, d_before)
                    elif masked:  # no gradient reaches an initial state that counted as zero
                        store_private(shared, at_state + 1, 1, d_state[1:])
                if step < steps:
                    at = t * batch + b
                    if of_h > 0:
                        publish_ah(dah[place], at * A * hidden + unit0 + unit, hidden, d_ah, valid)
                    if separate:
                        publish_ax(dax[place], at * G * hidden + unit0 + unit, hidden, d_ax, valid)
            # After the cell, which would wait for this read. Results of a failed call are overwritten.
            if timed_out[0] != 0:
                break
            # 3. Fetch what the cell needs next besides products.
            b0 += SEQUENCES
            if b0 >= owned.end:
                step, t, b0 = step + 1, t + move, owned.begin
            if step < steps:
                fetch_step(thread, role, rows, outputs_owned, direction, t, b0)
                prefetch(saved_rows, owned, t + PREFETCH_STEPS * move, b0, steps)
            cuda.syncthreads()

        for pair in range(cuda.threadIdx.x, (owned.end - owned.begin) * U, THREADS):
            unit, b = pair % U, owned.begin + pair // U
            if unit < owned.units:
                d_state, has_h = load_state(shared, state_at(owned, owned.begin, pair), 1), unit < outputs_owned.units
                store_last(states, owned, (place, directions), width, unit, b, has_h, (d_state[0], d_state[1:]))
        if leave(thread, leaving, error_flag):
            if A > 0:
                poison(dah)
            if separate:
                poison(dax)
            if projects:
                poison(within_step.projected)
            if V > 0:
                poison(d_per_unit)
            poison_states(states.last_h)
            if N > 0:
                poison_states(states.last_c)

    return Kernel(
        persistent_backward_kernel,
        f"{cell.name}_persistent_backward",
        source_key=f"{exact} {tile} {inputs} {drops} {masked}",
    )
