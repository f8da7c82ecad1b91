"""The cell's part of a step, forward and backward, with one thread per unit.

A factory makes the kernels of each cell around the cell's scalar functions. Unit indices are unsigned (np.uintp),
since checks for negative indices would cost half of the registers. With 16-bit arrays (`numbarnn.compile.storage`)
equations compute in float32, and c, ah, dh and dc are float32 in memory.

Kernels take the groups of `numbarnn.kernels.step.groups`. A kernel's docstring names the arrays that it uses, and in
brackets the condition for optional ones. Masked kernels read the step mask (`numbarnn.common.order`): the previous
state counts as zero (RESET), or is carried over (SKIP). With projection, kernels get the cell's output m as h and dm
as dh (`states_of_cell`), and a product leads from m to h. A kernel computes the sums over units that its functions
need, with one block per sequence (`unit_sums`).
"""

import numpy as np

from numbarnn.common.order import SKIP
from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage, units
from numbarnn.compile.specialise import backward_function, forward_function
from numbarnn.cuda.backend import backend, per_backend
from numbarnn.cuda.language import cuda
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.grid import launch_config
from numbarnn.kernels.step import unit_sums, unit_values
from numbarnn.kernels.step.groups import backward_arguments, forward_arguments, gradients_of_cell


@per_backend
def make_pointwise_forward(cell, dtype, save, masked=False):
    """Make the forward kernel of a cell for arrays of a dtype.

    Args:
        save: keep what backward needs (training). masked: read the step mask.
    """
    forward, narrow = forward_function(cell, dtype, backend()), storage.narrow(dtype)
    where_of, rows_of = unit_values.make_where(masked), unit_values.make_forward_rows(cell)
    values_of = unit_values.make_values_forward(cell, dtype, masked, draws=save)
    add_up = unit_sums.make_forward_sums(cell, cell.sums_before(len(cell.stages)), dtype, masked, draws=save)
    store_private = units.storer(cell.num_private)
    store_saved = units.storer(cell.num_saved, narrow)
    G, N, keeps = cell.num_gates, cell.num_private, save and cell.num_saved > 0

    @cuda.jit
    def pointwise_forward_kernel(parameters, states, saved, scratch, options, direction, t, before):
        """Compute the cell's forward equations of one step of one direction, after all products.

        Writes   states: h[t + 1], c[t + 1]; saved: gates[t] (training, cells that save), the sums[t] (cells with
        sums)
                 that follow all products
        Reads    parameters: b_w, b_r, per_unit (cells with any); states: h[before], c[before]; scratch: ax[t] = x
        Wᵀ,
                 ah = h[before] Rᵀ; saved: other sums[t]; options: step_mask[t + 1] (masked), noise (cells that draw, in
                 training)
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct, but one block wide for sums
        Aliases  gates may be the memory of ax
        Inference: c is (2, B, D*N*H), its slots modulo 2, unless the call keeps all slots; sums is (1, B, Q)
        """
        H = np.uintp(parameters.b_w.shape[0] // G)
        h_first, c_first = np.uintp(direction) * H, np.uintp(direction * N) * H
        for b in range(cuda.blockIdx.y, scratch.ah.shape[0], cuda.gridDim.y):
            rows = rows_of(states, saved, scratch, t, before, b, save)
            where = where_of(options, direction, t, before, b)
            h_row, c_row = states.h[t + 1, b], states.c[t + 1 if save or states.c.shape[0] > 2 else (t + 1) % 2, b]
            add_up(rows, parameters, options, where, H)
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                arguments, state = values_of(rows, parameters, options, where, j, H)
                new_state, kept = forward(*arguments)
                if masked and where.code == SKIP:
                    new_state = state
                h_row[h_first + j] = narrow(new_state[0])
                store_private(c_row, c_first + j, H, new_state[1:])
                if keeps:
                    store_saved(saved.gates[t, b], j, H, kept)

    words = ["training" if save else "inference", *["masked"] * masked]
    return Kernel(pointwise_forward_kernel, f"{cell.name}_pointwise_forward_{'_'.join(words)}")


@per_backend
def make_pointwise_backward(cell, dtype, masked=False, projected=False, with_states=False):
    """Make the backward kernel of a cell for arrays of a dtype.

    Args:
        masked: read the step mask. projected: dh is the complete gradient of m, and there is no dy.
        with_states: every step's cell states have a gradient.
    """
    backward, narrow = backward_function(cell, dtype, backend()), storage.narrow(dtype)
    where_of, rows_of = unit_values.make_where(masked), unit_values.make_backward_rows(cell, projected, with_states)
    values_of = unit_values.make_values_backward(cell, dtype, masked, projected, with_states)
    add_up = unit_sums.make_backward_sums(cell, cell.sums_after(-1), dtype, (masked, projected, with_states))
    counts = cell.num_gates, cell.num_recurrent, cell.num_per_unit
    store_gates, store_recurrent, store_per_unit = (units.storer(count, narrow) for count in counts)
    no_gates, no_recurrent, no_per_unit = (units.zeros(count, compute_dtype(dtype)) for count in counts)
    store_private = units.storer(cell.num_private)
    same_gradient, has_per_unit = cell.same_gradient, cell.num_per_unit > 0

    @cuda.jit
    def pointwise_backward_kernel(parameters, states, saved, gradients, scratch, options, direction, t, before):
        """Compute the cell's backward equations of one step of one direction, before the product with R.

        Writes   gradients: dax[t] of x Wᵀ + b_w, dah[t] of h Rᵀ + b_r (unless it is dax), d_per_unit[t] (cells with
                 such parameters); dh, dc of the state before the step, without the part through R; scratch: the d_sums
                 (cells with sums) that precede all products
        Reads    saved: gates[t], sums[t]; gradients: dh, dc, of the step's state from later steps, dy[t] (not
                 projected), d_states[t] (with_states); states: h, c at t + 1 and `before`; parameters: per_unit;
                 scratch: d_v (cells with further products), other d_sums; options: step_mask (masked) at t + 1 and at
                 the next step, noise (cells that draw)
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct, but one block wide for sums
        Aliases  dax may be the memory of gates
        """
        H = np.uintp(gradients.dh.shape[1])
        for b in range(cuda.blockIdx.y, gradients.dh.shape[0], cuda.gridDim.y):
            rows = rows_of(states, saved, gradients, scratch, t, before, b)
            where = where_of(options, direction, t, before, b)
            add_up(rows, parameters, options, where, H)
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                arguments, carried = values_of(rows, parameters, options, where, j, H)
                d_ax, d_ah, d_before, d_own = backward(*arguments)
                if masked and where.code == SKIP:
                    d_ax, d_ah, d_before, d_own = no_gates(), no_recurrent(), carried, no_per_unit()
                rows.dh[j] = d_before[0]
                store_private(rows.dc, j, H, d_before[1:])
                store_gates(gradients.dax[t, b], j, H, d_ax)
                if has_per_unit:
                    store_per_unit(gradients.d_per_unit[t, b], j, H, d_own)
                if not same_gradient:
                    store_recurrent(gradients.dah[t, b], j, H, d_ah)

    words = ["backward", *["masked"] * masked, *["projected"] * projected, *["states"] * with_states]
    return Kernel(pointwise_backward_kernel, f"{cell.name}_pointwise_{'_'.join(words)}")


def forward_config(buffers, stages):
    """Return the LaunchConfig of a forward kernel that computes the sums of some stages (their numbers)."""
    cell = buffers.cell
    together = unit_sums.threads(cell, buffers.states.h.dtype.name, stages)
    return launch_config(len(buffers.scratch.ah), len(buffers.parameters.b_w) // cell.num_gates, together)


def backward_flags(buffers):
    """Return the flags (masked, projected, with_states) of `BackwardBuffers`."""
    masked, projected = buffers.options.step_mask is not None, buffers.states.m is not None
    return masked, projected, buffers.gradients.d_states is not None


def backward_config(buffers, stages):
    """Return the LaunchConfig of a backward kernel that computes the gradients of some stages' sums."""
    together = unit_sums.threads(buffers.cell, buffers.states.h.dtype.name, stages)
    return launch_config(*gradients_of_cell(buffers).dh.shape, together)


def bind_forward(buffers):
    """Return f(t, before), which launches the forward kernel on a direction's `ForwardBuffers`."""
    cell, masked = buffers.cell, buffers.options.step_mask is not None
    kernel = make_pointwise_forward(cell, buffers.states.h.dtype.name, buffers.save, masked)
    config = forward_config(buffers, cell.sums_before(len(cell.stages)))
    return kernel.bind(config, *forward_arguments(buffers))


def bind_backward(buffers):
    """Return f(t, before), which launches the backward kernel on a direction's `BackwardBuffers`."""
    cell = buffers.cell
    kernel = make_pointwise_backward(cell, buffers.states.h.dtype.name, *backward_flags(buffers))
    return kernel.bind(backward_config(buffers, cell.sums_after(-1)), *backward_arguments(buffers))
