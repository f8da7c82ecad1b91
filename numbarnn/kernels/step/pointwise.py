"""What a step does besides its matrix product: the cell, forward and backward, one thread per unit.

The kernels are made per cell by a factory and know no cell's equations: these are the cell's scalar functions. Unit
indices are unsigned (np.uintp): one that could be negative would be checked for it, at the cost of half the registers.

With arrays of 16 bits (`numbarnn.compile.storage`) equations are float32's, and c, ah, dh, dc are float32 in memory.

Kernels for masked steps read a code per step and sequence (`numbarnn.common.order`): the state before the step counts
as zero (RESET), or is carried through (SKIP). With projection the kernels see m, the cell's output before it, as h;
what stands between h and m is a product. Sums over units that a kernel's functions need are made in it, by one block
per sequence (`row_sums`).
"""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.common.order import SKIP
from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage, units
from numbarnn.compile.backend import BACKEND, TINY_LAUNCHES
from numbarnn.compile.specialise import backward_function, forward_function
from numbarnn.cuda.launch import Kernel, LaunchConfig
from numbarnn.kernels.step import unit_sums
from numbarnn.kernels.step.given import make_given_backward, make_given_forward

THREADS_PER_BLOCK = 128
MAX_GRID_Y = 65535


def launch_config(batch, hidden, together=0):
    """One thread per unit where the grid allows: units along x, sequences along y.

    Args:
        together: where sums over units are made, the most threads of the block that has all of a sequence; else 0.
    """
    if TINY_LAUNCHES:  # in the simulator a thread is dear; several blocks, so that their boundaries are crossed
        return LaunchConfig(grid=(1 if together else min(2, hidden), min(2, batch)), block=together or min(4, hidden))
    block = min(together or THREADS_PER_BLOCK, -(-hidden // 32) * 32)
    return LaunchConfig(grid=(1 if together else -(-hidden // block), min(batch, MAX_GRID_Y)), block=block)


@cache
def make_pointwise_forward(cell, dtype, save, masked=False):
    """The forward kernel of a cell for arrays of a dtype; with `save` it keeps what backward needs (training); with
    `masked` it reads step_mask."""
    forward, narrow = forward_function(cell, compute_dtype(dtype), BACKEND), storage.narrow(dtype)
    given = make_given_forward(cell, dtype, masked, draws=save)
    add_up = unit_sums.make_forward_sums(cell, cell.sums_before(len(cell.stages)), dtype, masked, draws=save)
    store_private = units.storer(cell.num_private, BACKEND)
    store_saved = units.storer(cell.num_saved, BACKEND, narrow)
    G, N = cell.num_gates, cell.num_private

    @cuda.jit
    def pointwise_forward_kernel(h, c, ax, ah, b_w, b_r, per_unit, sums, noise, step_mask, direction, t, before):
        """One step of one direction after all products: the cell's forward equations.

        Writes   h[t + 1] of h (T+2, B, D*H); private states c[t + 1] of c (T+2, B, D*N*H); in training ax[t]; those of
                 sums[t] of sums (T, B, Q) that come after all products
        Reads    ax[t] of ax (T, B, max(K, G)*H) = x Wᵀ, replaced in training by what the cell saves;
                 ah (B, A*H) = h[before] Rᵀ, A gates (G but for general cells); b_w (G*H,); b_r (A*H,); per_unit (V*H,);
                 h[before], c[before]; other sums[t]; noise (4,) in training; masked: step_mask[t + 1] of step_mask
                 (T+2, B)
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct, but where sums are made it is
                 one block wide
        Inference: c is (2, B, D*N*H), its slots modulo 2, and sums (1, B, Q)
        """
        H = np.uintp(b_w.shape[0] // G)
        h_first, c_first = np.uintp(direction) * H, np.uintp(direction * N) * H
        for b in range(cuda.blockIdx.y, ah.shape[0], cuda.gridDim.y):
            h_row, c_row, ax_row = h[t + 1, b], c[t + 1 if save else (t + 1) % 2, b], ax[t, b]
            rows = h[before, b], c[before if save else before % 2, b], ax_row, ah[b], sums[t if save else 0, b]
            code = step_mask[t + 1, b] if masked else 0
            parameters, where = (b_w, b_r, per_unit), (code, direction, b, t)
            add_up(rows, parameters, noise, where, H)
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                arguments, state = given(rows, parameters, noise, where, j, H)
                new_state, kept = forward(*arguments)
                if masked and code == SKIP:
                    new_state = state
                h_row[h_first + j] = narrow(new_state[0])
                store_private(c_row, c_first + j, H, new_state[1:])
                if save:
                    store_saved(ax_row, j, H, kept)

    words = ["training" if save else "inference", *["masked"] * masked]
    return Kernel(pointwise_forward_kernel, f"{cell.name}_pointwise_forward_{'_'.join(words)}")


@cache
def make_pointwise_backward(cell, dtype, masked=False, projected=False):
    """The backward kernel of a cell for arrays of a dtype; with `masked` it reads step_mask; `projected`: dh is all of
    the gradient of m, and dy is not read."""
    backward, narrow = backward_function(cell, compute_dtype(dtype), BACKEND), storage.narrow(dtype)
    given = make_given_backward(cell, dtype, masked, projected)
    add_up = unit_sums.make_backward_sums(cell, cell.sums_after(-1), dtype, masked, projected)
    counts = cell.num_gates, cell.num_recurrent, cell.num_per_unit
    store_gates, store_recurrent, store_per_unit = (units.storer(count, BACKEND, narrow) for count in counts)
    no_gates, no_recurrent, no_per_unit = (units.zeros(count, BACKEND, compute_dtype(dtype)) for count in counts)
    store_private, same_gradient = units.storer(cell.num_private, BACKEND), cell.same_gradient

    @cuda.jit
    def pointwise_backward_kernel(
        dh, dc, dax, dah, d_per_unit, dy, h, c, per_unit, d_v, sums, d_sums, noise, step_mask, direction, t, before
    ):
        """One step of one direction backward, before its product with R: the cell's backward equations.

        Writes   dax[t] of dax (T, B, max(K, G)*H), dah[t] of dah (T, B, A*H): gradients of x Wᵀ + b_w and h Rᵀ + b_r;
                 d_per_unit[t] of d_per_unit (T, B, V*H), if there are any; dh (B, H), dc (B, N*H): the gradient of the
                 state before the step but for its part through R; those of d_sums (B, Q) that come before all products
        Reads    dax[t], at first what the cell saved; dh, dc: the gradient of the step's state from later steps;
                 dy[t] of dy (T, B, D*H); states h (T+2, B, D*H), c (T+2, B, D*N*H) at t + 1 and `before`;
                 per_unit (V*H,); d_v (B, S*H) of S products; sums[t] of sums (T, B, Q); other d_sums; noise (4,);
                 masked: step_mask (T+2, B) at t + 1 and at the step after
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct, but where gradients of sums are
                 made it is one block wide
        Aliases  dah is dax (and not written) where the cell's two gradients are the same
        """
        H = np.uintp(dh.shape[1])
        for b in range(cuda.blockIdx.y, dh.shape[0], cuda.gridDim.y):
            dax_row, dah_row, d_per_unit_row, dh_row, dc_row = dax[t, b], dah[t, b], d_per_unit[t, b], dh[b], dc[b]
            states, dy_row = (h[before, b], h[t + 1, b], c[before, b], c[t + 1, b]), dy[0 if projected else t, b]
            rows = dax_row, states, dy_row, dh_row, dc_row, d_v[b], sums[t, b], d_sums[b]
            code = step_mask[t + 1, b] if masked else 0
            code_after = step_mask[2 * (t + 1) - before, b] if masked else 0
            where = code, code_after, direction, b, t
            add_up(rows, per_unit, noise, where, H)
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                arguments, carried = given(rows, per_unit, noise, where, j, H)
                d_ax, d_ah, d_before, d_own = backward(*arguments)
                if masked and code == SKIP:
                    d_ax, d_ah, d_before, d_own = no_gates(), no_recurrent(), carried, no_per_unit()
                dh_row[j] = d_before[0]
                store_private(dc_row, j, H, d_before[1:])
                store_gates(dax_row, j, H, d_ax)
                store_per_unit(d_per_unit_row, j, H, d_own)
                if not same_gradient:
                    store_recurrent(dah_row, j, H, d_ah)

    words = ["backward", *["masked"] * masked, *["projected"] * projected]
    return Kernel(pointwise_backward_kernel, f"{cell.name}_pointwise_{'_'.join(words)}")


def bind_forward(cell, h, c, ax, ah, b_w, b_r, per_unit, step_mask, direction, save, sums=None, noise=None):
    """The forward kernel bound to its arrays: a function f(t, before) that launches it; step_mask may be None."""
    kernel = make_pointwise_forward(cell, h.dtype.name, save, step_mask is not None)
    together = unit_sums.threads(cell, h.dtype.name, cell.sums_before(len(cell.stages)))
    config = launch_config(ah.shape[0], b_w.shape[0] // cell.num_gates, together)
    sums, noise = h if sums is None else sums, b_w if noise is None else noise
    arrays = (h, c, ax, ah, b_w, b_r, per_unit, sums, noise, no_step_mask(ah, step_mask))
    return kernel.bind(config, *map(storage.stored, arrays), np.int32(direction))


def bind_backward(
    cell,
    dh,
    dc,
    dax,
    dah,
    d_per_unit,
    dy,
    h,
    c,
    per_unit,
    d_v,
    step_mask,
    direction,
    sums=None,
    d_sums=None,
    noise=None,
):
    """The backward kernel bound to its arrays: a function f(t, before) that launches it.

    Args:
        d_per_unit, d_v, sums, d_sums, noise: None if the cell has no such.
        dy: None with projection.
        step_mask: None if no step is masked.
    """
    kernel = make_pointwise_backward(cell, h.dtype.name, step_mask is not None, dy is None)
    together = unit_sums.threads(cell, h.dtype.name, cell.sums_after(-1))
    d_per_unit, dy = dax if d_per_unit is None else d_per_unit, h if dy is None else dy
    d_v, sums, d_sums = dh if d_v is None else d_v, h if sums is None else sums, dh if d_sums is None else d_sums
    noise = per_unit if noise is None else noise
    arrays = (dh, dc, dax, dah, d_per_unit, dy, h, c, per_unit, d_v, sums, d_sums, noise, no_step_mask(dh, step_mask))
    return kernel.bind(launch_config(*dh.shape, together), *map(storage.stored, arrays), np.int32(direction))


def no_step_mask(array, step_mask):
    """Codes as a kernel that does not read them takes them: some array's bytes."""
    return array.view(np.uint8) if step_mask is None else step_mask
