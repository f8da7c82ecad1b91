"""Steps with further products (`numbarnn.cells.definition.Stage`): what lies between them, one thread per unit."""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.common.order import SKIP
from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage, units
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import specialise
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.step import unit_sums
from numbarnn.kernels.step.given import make_given_backward, make_given_forward
from numbarnn.kernels.step.pointwise import launch_config, no_step_mask


@cache
def make_stage_forward(cell, stage, dtype, masked=False, draws=False):
    """The forward kernel of a cell's product (the stage's number) for arrays of a dtype; with `masked` it reads
    step_mask;
    `draws`: noise is drawn."""
    vector_of, narrow = specialise(cell.stages[stage].forward, compute_dtype(dtype), BACKEND), storage.narrow(dtype)
    given = make_given_forward(cell, dtype, masked, draws)
    add_up = unit_sums.make_forward_sums(cell, cell.sums_before(stage), dtype, masked, draws)
    G, product = cell.num_gates, cell.product_number(stage)

    @cuda.jit
    def stage_forward_kernel(v, h, c, ax, ah, b_w, b_r, per_unit, sums, noise, step_mask, direction, save, t, before):
        """The vector that a stage's rows of R multiply, after the products before it.

        Writes   v[t] of v (T, B, S*H), the product's columns, and those of sums[t] of sums (T, B, Q) that come right
                 before it; without `save` v[0], sums[0]
        Reads    ax[t] of ax (T, B, max(K, G)*H), ah (B, A*H), b_w (G*H,), b_r (A*H,), per_unit (V*H,); h[before] of h
                 (T+2, B, D*H), c[before] of c (T+2, B, D*N*H), without `save` its slots modulo 2; earlier sums; noise
                 (4,); masked: step_mask[t + 1] of step_mask (T+2, B)
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct, but where sums are made it is
                 one block wide
        """
        H = np.uintp(b_w.shape[0] // G)
        v_first = np.uintp(product) * H
        for b in range(cuda.blockIdx.y, ah.shape[0], cuda.gridDim.y):
            now = t if save else 0
            v_row, rows = v[now, b], (h[before, b], c[before if save else before % 2, b], ax[t, b], ah[b], sums[now, b])
            code = step_mask[t + 1, b] if masked else 0
            parameters, where = (b_w, b_r, per_unit), (code, direction, b, t)
            add_up(rows, parameters, noise, where, H)
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                arguments, _ = given(rows, parameters, noise, where, j, H)
                v_row[v_first + j] = narrow(vector_of(*arguments))

    words = [f"{cell.name}_stage{stage}_forward", *["drawing"] * draws, *["masked"] * masked]
    return Kernel(stage_forward_kernel, "_".join(words), source_key=str(stage))


@cache
def make_stage_backward(cell, stage, dtype, masked=False, projected=False):
    """The backward kernel of a cell's product (the stage's number) for arrays of a dtype; with `masked` it reads
    step_mask;
    `projected`: dh is all of the gradient of m, and dy is not read."""
    gradients_of, narrow = specialise(cell.stages[stage].backward, compute_dtype(dtype), BACKEND), storage.narrow(dtype)
    given = make_given_backward(cell, dtype, masked, projected)
    add_up = unit_sums.make_backward_sums(cell, cell.sums_after(stage), dtype, masked, projected)
    count, first_gate = len(cell.stages[stage].gates), cell.first_of_stage(stage)
    store_gates, no_gates = units.storer(count, BACKEND, narrow), units.zeros(count, BACKEND, compute_dtype(dtype))

    @cuda.jit
    def stage_backward_kernel(
        dah, dax, dh, dc, dy, h, c, per_unit, d_v, sums, d_sums, noise, step_mask, direction, t, before
    ):
        """The gradients of a stage's gates, before their product with R.

        Writes   the stage's columns of dah[t] of dah (T, B, A*H); those of d_sums (B, Q) that come right after it
        Reads    dax[t] of dax (T, B, max(K, G)*H), what the cell saved; dh (B, H), dc (B, N*H); dy[t] (T, B, D*H);
                 states h (T+2, B, D*H), c (T+2, B, D*N*H) at t + 1 and `before`; per_unit (V*H,); d_v (B, S*H) and
                 d_sums, of the stages after this one; sums[t] of sums (T, B, Q); noise (4,); masked: step_mask (T+2,
                 B) at t + 1 and at the step after
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct, but where gradients of sums are
                 made it is one block wide
        """
        H = np.uintp(dh.shape[1])
        dah_first = np.uintp(first_gate) * H
        for b in range(cuda.blockIdx.y, dh.shape[0], cuda.gridDim.y):
            dah_row, dy_row = dah[t, b], dy[0 if projected else t, b]
            states = h[before, b], h[t + 1, b], c[before, b], c[t + 1, b]
            rows = dax[t, b], states, dy_row, dh[b], dc[b], d_v[b], sums[t, b], d_sums[b]
            code = step_mask[t + 1, b] if masked else 0
            code_after = step_mask[2 * (t + 1) - before, b] if masked else 0
            where = code, code_after, direction, b, t
            add_up(rows, per_unit, noise, where, H)
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                arguments, _ = given(rows, per_unit, noise, where, j, H)
                gates = gradients_of(*arguments)
                if masked and code == SKIP:
                    gates = no_gates()
                store_gates(dah_row, dah_first + j, H, gates)

    words = [f"{cell.name}_stage{stage}_backward", *["masked"] * masked, *["projected"] * projected]
    return Kernel(stage_backward_kernel, "_".join(words), source_key=str(stage))


def bind_forward(cell, stage, v, h, c, ax, ah, b_w, b_r, per_unit, step_mask, direction, save, sums=None, noise=None):
    """The forward kernel bound to its arrays: a function f(t, before) that launches it; step_mask may be None."""
    kernel = make_stage_forward(cell, stage, h.dtype.name, step_mask is not None, noise is not None)
    together = unit_sums.threads(cell, h.dtype.name, cell.sums_before(stage))
    config = launch_config(ah.shape[0], b_w.shape[0] // cell.num_gates, together)
    sums, noise = h if sums is None else sums, b_w if noise is None else noise
    arrays = (v, h, c, ax, ah, b_w, b_r, per_unit, sums, noise, no_step_mask(ah, step_mask))
    return kernel.bind(config, *map(storage.stored, arrays), np.int32(direction), np.int32(save))


def bind_backward(
    cell, stage, dah, dax, dh, dc, dy, h, c, per_unit, d_v, step_mask, direction, sums=None, d_sums=None, noise=None
):
    """The backward kernel bound to its arrays: a function f(t, before) that launches it; step_mask may be None, and dy
    with projection."""
    kernel = make_stage_backward(cell, stage, h.dtype.name, step_mask is not None, dy is None)
    together = unit_sums.threads(cell, h.dtype.name, cell.sums_after(stage))
    dy, sums, d_sums = h if dy is None else dy, h if sums is None else sums, dh if d_sums is None else d_sums
    noise = per_unit if noise is None else noise
    arrays = (dah, dax, dh, dc, dy, h, c, per_unit, d_v, sums, d_sums, noise, no_step_mask(dh, step_mask))
    return kernel.bind(launch_config(*dh.shape, together), *map(storage.stored, arrays), np.int32(direction))
