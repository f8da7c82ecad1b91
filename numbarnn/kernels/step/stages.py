"""The stages of a step with further products (`numbarnn.cells.definition.Stage`), with one thread per unit."""

import numpy as np

from numbarnn.common.order import SKIP
from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage, units
from numbarnn.compile.specialise import specialise
from numbarnn.cuda.backend import backend, per_backend
from numbarnn.cuda.language import cuda
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.step import groups, unit_sums, unit_values
from numbarnn.kernels.step.pointwise import backward_config, backward_flags, forward_config


@per_backend
def make_stage_forward(cell, stage, dtype, masked=False, draws=False):
    """Make the forward kernel of a cell's stage (its number) for arrays of a dtype.

    Args:
        masked: read the step mask. draws: draw random numbers.
    """
    vector_of, narrow = specialise(cell.stages[stage].forward, dtype, backend()), storage.narrow(dtype)
    where_of, rows_of = unit_values.make_where(masked), unit_values.make_forward_rows(cell)
    values_of = unit_values.make_values_forward(cell, dtype, masked, draws)
    add_up = unit_sums.make_forward_sums(cell, cell.sums_before(stage), dtype, masked, draws)
    G, product = cell.num_gates, cell.product_number(stage)

    @cuda.jit
    def stage_forward_kernel(parameters, states, saved, scratch, options, direction, save, t, before):
        """Compute the vector that a stage's rows of R multiply, after the products before it.

        Writes   saved: the product's columns of v[t], the sums[t] (cells with sums) right before it; without `save` of
                 v[0], sums[0]
        Reads    parameters: b_w, b_r, per_unit (cells with any); states: h[before], c[before], without `save` c's slots
                 modulo 2; scratch: ax[t], ah; saved: earlier sums; options: step_mask[t + 1] (masked), noise (cells
                 that draw, in training)
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct, but one block wide for sums
        """
        H = np.uintp(parameters.b_w.shape[0] // G)
        v_first = np.uintp(product) * H
        for b in range(cuda.blockIdx.y, scratch.ah.shape[0], cuda.gridDim.y):
            rows = rows_of(states, saved, scratch, t, before, b, save)
            where = where_of(options, direction, t, before, b)
            v_row = saved.v[t if save else 0, b]
            add_up(rows, parameters, options, where, H)
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                arguments, _ = values_of(rows, parameters, options, where, j, H)
                v_row[v_first + j] = narrow(vector_of(*arguments))

    words = [f"{cell.name}_stage{stage}_forward", *["drawing"] * draws, *["masked"] * masked]
    return Kernel(stage_forward_kernel, "_".join(words), source_key=str(stage))


@per_backend
def make_stage_backward(cell, stage, dtype, masked=False, projected=False, with_states=False):
    """Make the backward kernel of a cell's stage (its number) for arrays of a dtype.
    Flags: as for `pointwise.make_pointwise_backward`."""
    gradients_of, narrow = specialise(cell.stages[stage].backward, dtype, backend()), storage.narrow(dtype)
    where_of, rows_of = unit_values.make_where(masked), unit_values.make_backward_rows(cell, projected, with_states)
    values_of = unit_values.make_values_backward(cell, dtype, masked, projected, with_states)
    add_up = unit_sums.make_backward_sums(cell, cell.sums_after(stage), dtype, (masked, projected, with_states))
    count, first_gate = len(cell.stages[stage].gates), cell.first_of_stage(stage)
    store_gates, no_gates = units.storer(count, narrow), units.zeros(count, compute_dtype(dtype))

    @cuda.jit
    def stage_backward_kernel(parameters, states, saved, gradients, scratch, options, direction, t, before):
        """Compute the gradients of a stage's gates, before their product with R.

        Writes   gradients: the stage's columns of dah[t]; scratch: the d_sums (cells with sums) right after it
        Reads    saved: gates[t], sums[t]; gradients: dh, dc, dy[t] (not projected), d_states[t] (with_states); states:
                 h, c at t + 1 and `before`; parameters: per_unit (cells with any); scratch: d_v and d_sums of later
                 stages; options: step_mask (masked) at t + 1 and at the next step, noise (cells that draw)
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct, but one block wide for sums
        """
        H = np.uintp(gradients.dh.shape[1])
        dah_first = np.uintp(first_gate) * H
        for b in range(cuda.blockIdx.y, gradients.dh.shape[0], cuda.gridDim.y):
            rows = rows_of(states, saved, gradients, scratch, t, before, b)
            where = where_of(options, direction, t, before, b)
            add_up(rows, parameters, options, where, H)
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                arguments, _ = values_of(rows, parameters, options, where, j, H)
                gates = gradients_of(*arguments)
                if masked and where.code == SKIP:
                    gates = no_gates()
                store_gates(gradients.dah[t, b], dah_first + j, H, gates)

    words = ["masked"] * masked + ["projected"] * projected + ["states"] * with_states
    words.insert(0, f"{cell.name}_stage{stage}_backward")
    return Kernel(stage_backward_kernel, "_".join(words), source_key=str(stage))


def forward_arguments(buffers):
    """Return the forward kernel's arguments without t and before, for training and inference."""
    parameters, states, saved, *others = groups.forward_arguments(buffers)
    return parameters, states, saved._replace(gates=None), *others, np.int32(buffers.save)


def bind_forward(buffers, stage):
    """Return f(t, before), which launches the stage's forward kernel on a direction's `ForwardBuffers`."""
    cell, options = buffers.cell, buffers.options
    masked, draws = options.step_mask is not None, options.noise is not None
    kernel = make_stage_forward(cell, stage, buffers.states.h.dtype.name, masked, draws)
    return kernel.bind(forward_config(buffers, cell.sums_before(stage)), *forward_arguments(buffers))


def bind_backward(buffers, stage):
    """Return f(t, before), which launches the stage's backward kernel on a direction's `BackwardBuffers`."""
    cell = buffers.cell
    kernel = make_stage_backward(cell, stage, buffers.states.h.dtype.name, *backward_flags(buffers))
    return kernel.bind(backward_config(buffers, cell.sums_after(stage)), *groups.backward_arguments(buffers))
