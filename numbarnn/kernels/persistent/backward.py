"""The backward kernel: `forward`'s walk in reverse, with the transposed weights.

A block owns the same units; what it waits for, multiplies and publishes are gradients of pre-activations. The gradient
of its units' state stays in shared memory from step to step.
"""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.common.order import SKIP
from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage, units
from numbarnn.compile.backend import BACKEND, kernel
from numbarnn.compile.specialise import backward_function, jit
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.persistent import block, exchange, products, projection, within_backward
from numbarnn.kernels.persistent.block import PREFETCH_STEPS, Rows
from numbarnn.kernels.persistent.columns import BLOCK, WARP
from numbarnn.kernels.persistent.exchange import Operand, Patience
from numbarnn.kernels.persistent.weights import Fragments, make_matrix
from numbarnn.kernels.persistent.within import Exchanged, OfWarp, Turn
from numbarnn.kernels.persistent.within_backward import About, Own, PairsOfStep
from numbarnn.kernels.trouble import OTHER_LAYER, make_report


@cache
def _make_fetch_step(tile, K, N, Q):
    """A device function fetch_step(pairs, rows, t, direction, b0, owned, outputs, reads_dy).

    Args of fetch_step:
        pairs: `PairsOfStep`, written.
        rows: `Rows` of what the cell saved, of h, c and dy; sums over units (T, B, Q), flat.
        outputs: those of the block, of which dy is read: `owned`, or if h is a projection others.
    """
    fetch_saved, fetch_h, fetch_c = (block.make_fetch(tile, count) for count in (K, 1, N))
    fetch_sums, has_sums = block.make_fetch_sums(tile, Q), Q > 0

    def fetch_step(pairs, rows, t, direction, b0, owned, outputs, reads_dy):
        saved, h, c, dy, sums = rows
        slot = t + 2 * direction  # of the states before the step; those after it are in slot t + 1
        fetch_saved(pairs.saved, saved, t, b0, owned)
        fetch_h(pairs.h_before, h, slot, b0, owned)
        fetch_h(pairs.h_after, h, t + 1, b0, owned)
        fetch_c(pairs.c_before, c, slot, b0, owned)
        fetch_c(pairs.c_after, c, t + 1, b0, owned)
        if reads_dy:
            fetch_h(pairs.dy, dy, t, b0, outputs)
        if has_sums:
            fetch_sums(pairs.sums, sums, t, b0, owned)

    return jit(fetch_step, BACKEND)


@cache
def make_backward(cell, tile, inputs, drops, masked=False):
    """The backward kernel. Arguments as for `forward.make_forward`."""
    dtype, math_dtype, number = tile.dtype, compute_dtype(tile.dtype), np.dtype(compute_dtype(tile.dtype)).type
    U, P, WARPS, THREADS, SEQUENCES = tile.units, tile.pairs, tile.warps, tile.threads, tile.sequences
    G, A, N, K, V = cell.num_gates, cell.num_ah, cell.num_private, cell.num_saved, cell.num_per_unit
    Q, staged, has_sums, has_products = cell.num_sums, len(cell.stages) > 0, cell.num_sums > 0, cell.num_products > 0
    in_shared = tile.unit_parameters > 0
    multiplies, separate = inputs or A > 0, not cell.same_gradient
    PARTIALS, STATES = tile.partials, tile.states  # in shared memory
    BETWEEN_WARPS = tile.between_warps
    # Sizes of local arrays: constants, and at least 1.
    fragment_words, fragment_word = max(1, tile.fragment_words), np.uint32
    octets, on_the_way, stored_number = tile.octets, tile.chunks_on_the_way, block.stored_number(dtype)
    PK, PN, PV, PQ, P_CAME = max(1, P * K), max(1, P * N), max(1, P * V), P * Q, P * (2 + N)
    PS, of_h = P * cell.num_products, cell.num_recurrent  # gates of ah that are not a stage's
    projects, shares_warps, gathers = tile.projects, has_products or tile.projects, staged or tile.projects

    product, report = products.make_product(tile), make_report()
    load_weights, multiply, matrix_of = product.load, product.step, make_matrix()
    publish_ax, publish_ah = (exchange.make_publish_all(dtype, tile.aligned, count) for count in (G, of_h))

    backward, kinds = backward_function(cell, dtype, BACKEND), (inputs, drops, masked)
    d_state_of = within_backward.make_d_state(cell, tile, inputs, masked)
    gather = within_backward.make_gather(cell, tile, *kinds)
    within, arguments_of = (
        make(cell, tile, *kinds) for make in (within_backward.make_within, within_backward.make_arguments)
    )
    project, outputs_of = projection.make_backward(cell, tile, *kinds), projection.make_owned()
    Outputs, narrow, of_state = projection.Outputs, storage.narrow(dtype), block.make_states(cell, dtype)
    store_state, whole, load_private, store_private = (
        of_state.store, of_state.whole, of_state.load_private, of_state.store_private
    )  # fmt: skip
    no_gates, no_recurrent, no_per_unit = (units.zeros(count, BACKEND, math_dtype) for count in (G, of_h, V))
    store_per_unit, own_parameters = units.storer(V, BACKEND, narrow), block.make_own_parameters(cell, tile)
    decode, pair_of, look_up = block.make_decode(), block.make_pair(tile), block.make_look_up(tile)
    fetch_step, prefetch = _make_fetch_step(tile, K, N, Q), block.make_prefetch(tile, K)
    has_c, has_saved, draws, has_ah, has_per_unit = N > 0, K > 0, len(cell.noise) > 0, of_h > 0, V > 0

    @kernel(launch_bounds=(THREADS, 1))
    def persistent_backward_kernel(
        dah, dax, states, gates, gradients, within_step, weights, options, tables, sizes, trouble
    ):
        """All steps of some layers backward.

        Writes   dah[l D + d] (T, B, A*H), the gradient of h Rᵀ; dax[l D + d] (T, B, G*H), that of x Wᵀ, if the cell's
                 two differ; of gradients dh[l D + d] (B, H) and dc[l D + d] (B, N*H), first the gradient of the final
                 state, then of the initial one, and d_per_unit[l D + d] (T, B, V*H); of within_step, a
                 `block.WithinStep`, what stages exchange; trouble (1,) if it waited in vain
        Reads    dy (T, B, D*H) of the last layer; what forward left in states, h[l] and c[l], in gates[l D + d] and in
                 within_step; weights; options, tables, sizes: as of the forward kernel
        Launch   cooperative, one block per row of `blocks`; all arrays but the tables flat; dah, dax and what stages
                 exchange full of UNWRITTEN
        With a projection dy and dh are P wide in place of H, and h[l] are the cells' outputs m[l].
        """
        h, c = states
        dy, dh, dc, d_per_unit = gradients
        directions, steps, batch, limit = sizes
        shared, failed = cuda.shared.array(0, number, alignment=16), cuda.shared.array(1, np.int32)
        registers = cuda.local.array(fragment_words, fragment_word)
        loaded = cuda.local.array((octets, on_the_way, 4), np.uint32)
        pairs = PairsOfStep(
            cuda.local.array(PK, stored_number), cuda.local.array(P, stored_number), cuda.local.array(P, stored_number),
            cuda.local.array(PN, number), cuda.local.array(PN, number), cuda.local.array(P, stored_number),
            cuda.local.array(PQ, number) if has_sums else (),
        )  # fmt: skip
        code_of, code_after = cuda.local.array(P, np.uint8), cuda.local.array(P, np.uint8)  # of this step, of the next
        per_unit = cuda.local.array(PV, number)
        came = cuda.local.array(P_CAME, number) if gathers else ()
        d_v = cuda.local.array(PS, number) if has_products else ()

        thread = cuda.threadIdx.x
        warp = thread // 32
        own, part, owned, share, split, working = decode(tables, batch)
        layer, direction, hidden, unit0 = own[BLOCK.layer], own[BLOCK.direction], owned.hidden, owned.unit
        begin, end = owned.begin, owned.end
        reads_dy, mask = own[BLOCK.reads_gates] != 0, own[BLOCK.mask]
        noise_row = options.noise[own[BLOCK.noise]] if draws else ()
        # Rows of what the cell saved, of h, c and dy; the gradient of the state; what the block's warp multiplies
        place, width = layer * directions + direction, own[BLOCK.width] if projects else hidden
        outputs_owned = outputs_of(owned, own[BLOCK.outputs]) if projects else owned
        saved_rows = Rows(gates[place] if has_saved else (), own[BLOCK.gates_width], unit0)
        h_rows = Rows(h[layer], directions * hidden, direction * hidden + unit0)
        c_rows = Rows(c[layer] if has_c else (), N * directions * hidden, direction * N * hidden + unit0)
        sums = within_step.sums[place] if has_sums else ()
        rows = (saved_rows, h_rows, c_rows, Rows(dy, directions * width, direction * width + unit0), sums)
        own_dh, own_dc = dh[place], dc[place] if has_c else ()
        exchanged = (dah + dax + within_step.projected)[part[WARP.operand]]
        of_thread = Own(shared, failed, pairs, code_of, code_after, per_unit, came, d_v)
        about = About(
            owned, split, working, own[BLOCK.stage_warps], reads_dy, mask, rows[3], options, noise_row,
            own[BLOCK.trouble],
        )  # fmt: skip
        words, own_dah = within_step.words[place] if has_sums else (), dah[place] if has_products else ()
        fragments = Fragments(registers, weights, matrix_of(part))
        of_warp = OfWarp(fragments, loaded, share, exchanged) if shares_warps else ()
        of_stages = Exchanged(words, sums, own_dah, of_warp, Patience(1, limit, trouble)) if gathers else ()
        if projects:
            outputs = Outputs(outputs_owned, Rows(within_step.projected[place], width, unit0))

        if thread == 0:
            failed[0] = 0
        if multiplies:
            load_weights(fragments, shared)
        for at in range(thread, WARPS * BETWEEN_WARPS, THREADS):
            shared[PARTIALS + at] = number(0)
        for pair in range(thread, (end - begin) * U, THREADS):  # the gradient of the state, so far
            unit, b = pair % U, begin + pair // U
            if unit < owned.units:
                private = load_private(own_dc, b * N * hidden + unit0 + unit, hidden)
                d_h = number(0)
                if not projects or unit < outputs_owned.units:
                    d_h = own_dh[b * width + unit0 + unit]
                d_state = whole(d_h, private)
                store_state(shared, STATES + pair * (1 + N), 1, d_state)
        own_parameters(shared if in_shared else per_unit, weights, own[BLOCK.per_unit], owned)
        t = 0 if direction == 1 else steps - 1
        fetch_step(pairs, rows, t, direction, begin, owned, outputs_owned, reads_dy)
        cuda.syncthreads()

        move = 2 * direction - 1  # in time, from step to step
        t -= move
        for step in range(steps + 1):  # the last one only carries the gradient to the initial state
            t += move
            for b0 in range(begin, end, SEQUENCES):
                if masked:
                    slots = direction * (steps + 2)
                    look_up(code_of, options.step_mask, (slots + t + 1) * batch, b0, end)
                    look_up(code_after, options.step_mask, (slots + t + 2 - 2 * direction) * batch, b0, end)
                # 1. The products, each warp its part: none from later steps at first, none from above at last
                recurrent = share.recurrent
                works = multiplies and share.columns > 0 and not (shares_warps and share.stage >= 0)
                if works and ((recurrent and step > 0) or (not recurrent and step < steps)):
                    slot = t + share.shift
                    what = Operand(exchanged, slot, b0, end, batch, share.width, share.column, share.columns)
                    partial = PARTIALS + warp * BETWEEN_WARPS
                    if not multiply(fragments, loaded, shared, partial, what, Patience(1, limit, trouble)):
                        report(trouble, own[BLOCK.trouble] + step + (0 if share.recurrent else OTHER_LAYER))
                        failed[0] = 1
                cuda.syncthreads()
                turn = Turn(step, t, b0)
                if failed[0] != 0:
                    return
                if projects:
                    project(of_thread, about, turn, of_stages, outputs, step == steps)
                    if failed[0] != 0:
                        return
                if staged:
                    if not projects:
                        gather(of_thread, about, turn)
                    if step < steps:
                        within(of_thread, about, turn, of_stages)
                        if failed[0] != 0:
                            return
                # 2. The cell, for the block's units
                for i in range(P):
                    pair, unit, b, valid = pair_of(i, b0, owned)
                    d_ax, d_ah = no_gates(), no_recurrent()
                    at_state = STATES + ((b0 - begin) * U + pair) * (1 + N)
                    if valid:
                        d_state = d_state_of(of_thread, about, turn, i)
                        if step < steps:
                            d_ax, d_ah, d_before, d_own = backward(*arguments_of(of_thread, about, turn, i, d_state))
                            if masked and code_of[i] == SKIP:
                                d_ax, d_ah, d_before, d_own = no_gates(), no_recurrent(), d_state, no_per_unit()
                            if has_per_unit:
                                at = (t * batch + b) * V * hidden + unit0 + unit
                                store_per_unit(d_per_unit[place], at, hidden, d_own)
                            if projects:  # which has carried the gradient of h
                                store_private(shared, at_state + 1, 1, d_before[1:])
                            else:
                                store_state(shared, at_state, 1, d_before)
                    if step < steps:
                        row = t * batch + b
                        if has_ah:
                            publish_ah(dah[place], row * A * hidden + unit0 + unit, hidden, d_ah, valid)
                        if separate:
                            publish_ax(dax[place], row * G * hidden + unit0 + unit, hidden, d_ax, valid)
                # 3. What the cell will need next besides products
                last = b0 + SEQUENCES >= end
                next_step, next_b0 = (step + 1, begin) if last else (step, b0 + SEQUENCES)
                if next_step < steps:
                    next_t = t + move if last else t
                    fetch_step(pairs, rows, next_t, direction, next_b0, owned, outputs_owned, reads_dy)
                    ahead = next_t + PREFETCH_STEPS * move
                    if 0 <= ahead and ahead < steps:
                        prefetch(saved_rows, ahead, next_b0, owned)
                cuda.syncthreads()

        for pair in range(thread, (end - begin) * U, THREADS):
            unit, b = pair % U, begin + pair // U
            if unit < owned.units:
                at = STATES + pair * (1 + N)
                if not projects or unit < outputs_owned.units:
                    own_dh[b * width + unit0 + unit] = shared[at]
                store_private(own_dc, b * N * hidden + unit0 + unit, hidden, load_private(shared, at + 1, 1))

    name = f"{cell.name}_persistent_backward"
    return Kernel(persistent_backward_kernel, name, source_key=f"{tile} {inputs} {drops} {masked}")
