"""What a step does besides its matrix product: the cell, forward and backward, one thread per unit.

The kernels are made per cell by a factory and know no cell's equations: these are the cell's scalar functions. Unit
indices are unsigned (np.uintp): one that could be negative would be checked for it, at the cost of half the registers.

With arrays of 16 bits (`numbarnn.kernels.storage`) equations are float32's, and c, ah, dh, dc are float32 in memory.

Kernels for masked steps read a code per step and sequence (`numbarnn.cells.order`): the state before the step counts as
zero (RESET), or is carried through (SKIP). With projection the kernels see m, the cell's output before it, as h; what
stands between h and m is a product.
"""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.cells import units
from numbarnn.cells.definition import backward_function, forward_function
from numbarnn.cells.order import RESET, SKIP
from numbarnn.cells.precision import compute_dtype
from numbarnn.kernels import storage
from numbarnn.kernels.launch import Kernel, LaunchConfig
from numbarnn.kernels.target import TARGET, TINY_LAUNCHES

THREADS_PER_BLOCK = 128
MAX_GRID_Y = 65535


def launch_config(batch, hidden):
    """One thread per unit where the grid allows: units along x, sequences along y."""
    if TINY_LAUNCHES:  # in the simulator a thread is dear; several blocks, so that their boundaries are crossed
        return LaunchConfig(grid=(min(2, hidden), min(2, batch)), block=min(4, hidden))
    block = min(THREADS_PER_BLOCK, -(-hidden // 32) * 32)
    return LaunchConfig(grid=(-(-hidden // block), min(batch, MAX_GRID_Y)), block=block)


@cache
def make_pointwise_forward(cell, dtype, save, masked=False):
    """The forward kernel of a cell for arrays of a dtype; with `save` it keeps what backward needs (training); with
    `masked` it reads codes."""
    forward = forward_function(cell, compute_dtype(dtype), TARGET)
    widen, narrow = storage.widen(dtype), storage.narrow(dtype)
    load_ax = units.biased_loader(cell.num_gates, TARGET, widen, widen)
    load_ah = units.biased_loader(cell.num_recurrent, TARGET, None, widen)
    load_after_reset = units.reset_loader(cell.num_outer, cell.num_recurrent, TARGET, None, widen)
    load_vectors = units.loader(cell.num_vectors, TARGET, widen)
    load_private, whole = units.loader(cell.num_private, TARGET), units.joiner(TARGET)
    store_private = units.storer(cell.num_private, TARGET)
    store_saved = units.storer(cell.num_saved, TARGET, narrow)
    G, N, no_state = cell.num_gates, cell.num_private, units.zeros(cell.num_states, TARGET, compute_dtype(dtype))

    @cuda.jit
    def pointwise_forward_kernel(h, c, ax, ah, b_w, b_r, vectors, codes, direction, t, before):
        """One step of one direction after all products: the cell's forward equations.

        Writes   h[t + 1] of h (T+2, B, D*H); private states c[t + 1] of c (T+2, B, D*N*H); in training ax[t]
        Reads    ax[t] of ax (T, B, max(K, G)*H) = x Wᵀ, replaced in training by what the cell saves;
                 ah (B, A*H) = h[before] Rᵀ, A gates (G but for general cells); b_w (G*H,); b_r (A*H,); vectors (V*H,);
                 h[before], c[before]; masked: codes[t + 1] of codes (T+2, B)
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct
        Inference: c is (2, B, D*N*H), its slots modulo 2
        """
        H = np.uintp(b_w.shape[0] // G)
        h_first, c_first = np.uintp(direction) * H, np.uintp(direction * N) * H
        for b in range(cuda.blockIdx.y, ah.shape[0], cuda.gridDim.y):
            h_row, h_before = h[t + 1, b], h[before, b]
            c_row, c_before = c[t + 1 if save else (t + 1) % 2, b], c[before if save else before % 2, b]
            ax_row, ah_row = ax[t, b], ah[b]
            code = codes[t + 1, b] if masked else 0
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                h_unit, c_unit = h_first + j, c_first + j
                state = whole(widen(h_before[h_unit]), load_private(c_before, c_unit, H))
                pre_activations = load_ah(ah_row, b_r, j, H)
                if masked and code == RESET:
                    state, pre_activations = no_state(), load_after_reset(ah_row, b_r, j, H)
                new_state, kept = forward(
                    load_ax(ax_row, b_w, j, H), pre_activations, state, load_vectors(vectors, j, H), (), ()
                )
                if masked and code == SKIP:
                    new_state = state
                h_row[h_unit] = narrow(new_state[0])
                store_private(c_row, c_unit, H, new_state[1:])
                if save:
                    store_saved(ax_row, j, H, kept)

    words = ["training" if save else "inference", *["masked"] * masked]
    return Kernel(pointwise_forward_kernel, f"{cell.name}_pointwise_forward_{'_'.join(words)}")


@cache
def make_pointwise_backward(cell, dtype, masked=False, projected=False):
    """The backward kernel of a cell for arrays of a dtype; with `masked` it reads codes; `projected`: dh is all of the
    gradient of m, and dy is not read."""
    backward = backward_function(cell, compute_dtype(dtype), TARGET)
    widen, narrow = storage.widen(dtype), storage.narrow(dtype)
    load_private, whole = units.loader(cell.num_private, TARGET), units.joiner(TARGET)
    load_saved = units.loader(cell.num_saved, TARGET, widen)
    store_private = units.storer(cell.num_private, TARGET)
    store_gates, store_outer = (units.storer(count, TARGET, narrow) for count in (cell.num_gates, cell.num_outer))
    load_vectors, store_vectors = (
        units.loader(cell.num_vectors, TARGET, widen),
        units.storer(cell.num_vectors, TARGET, narrow),
    )
    load_d_v = units.loader(len(cell.stages), TARGET)
    N, same_gradient = cell.num_private, cell.same_gradient
    no_state, no_private, no_gates, no_outer, no_vectors = (
        units.zeros(count, TARGET, compute_dtype(dtype))
        for count in (cell.num_states, N, cell.num_gates, cell.num_outer, cell.num_vectors)
    )
    zero = np.dtype(compute_dtype(dtype)).type(0)

    @cuda.jit
    def pointwise_backward_kernel(dh, dc, dax, dah, d_vectors, dy, h, c, vectors, d_v, codes, direction, t, before):
        """One step of one direction backward, before its product with R: the cell's backward equations.

        Writes   dax[t] of dax (T, B, max(K, G)*H), dah[t] of dah (T, B, A*H): gradients of x Wᵀ + b_w and h Rᵀ + b_r;
                 d_vectors[t] of d_vectors (T, B, V*H), if there are any; dh (B, H), dc (B, N*H): the gradient of the
                 state before the step but for its part through R
        Reads    dax[t], at first what the cell saved; dh, dc: the gradient of the step's state from later steps;
                 dy[t] of dy (T, B, D*H); states h (T+2, B, D*H), c (T+2, B, D*N*H) at t + 1 and `before`;
                 vectors (V*H,); d_v (B, S*H) of S stages; masked: codes (T+2, B) at t + 1 and at the step after
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct
        Aliases  dah is dax (and not written) where the cell's two gradients are the same
        """
        H = np.uintp(dh.shape[1])
        h_first, c_first = np.uintp(direction) * H, np.uintp(direction * N) * H
        for b in range(cuda.blockIdx.y, dh.shape[0], cuda.gridDim.y):
            h_row, h_before, c_row, c_before = h[t + 1, b], h[before, b], c[t + 1, b], c[before, b]
            dy_row, dh_row, dc_row = dy[0 if projected else t, b], dh[b], dc[b]
            dax_row, dah_row, d_vectors_row, d_v_row = dax[t, b], dah[t, b], d_vectors[t, b], d_v[b]
            code = codes[t + 1, b] if masked else 0
            code_after = codes[2 * (t + 1) - before, b] if masked else 0
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                h_unit, c_unit = h_first + j, c_first + j
                state = whole(widen(h_before[h_unit]), load_private(c_before, c_unit, H))
                new_state = whole(widen(h_row[h_unit]), load_private(c_row, c_unit, H))
                d_h, d_private = dh_row[j], load_private(dc_row, j, H)
                if masked:
                    if code == RESET:
                        state = no_state()
                    if code_after == RESET:  # nothing comes from the step after
                        d_h, d_private = d_h if projected else zero, no_private()
                d_output = d_h if projected else widen(dy_row[h_unit]) + d_h
                d_ax, d_ah, d_before, d_vector = backward(
                    load_saved(dax_row, j, H), state, new_state, whole(d_output, d_private), load_d_v(d_v_row, j, H),
                    load_vectors(vectors, j, H), (), (), (),
                )  # fmt: skip
                if masked and code == SKIP:
                    d_ax, d_ah, d_before, d_vector = no_gates(), no_outer(), whole(d_h, d_private), no_vectors()
                dh_row[j] = d_before[0]
                store_private(dc_row, j, H, d_before[1:])
                store_gates(dax_row, j, H, d_ax)
                store_vectors(d_vectors_row, j, H, d_vector)
                if not same_gradient:
                    store_outer(dah_row, j, H, d_ah)

    words = ["backward", *["masked"] * masked, *["projected"] * projected]
    return Kernel(pointwise_backward_kernel, f"{cell.name}_pointwise_{'_'.join(words)}")


def bind_forward(cell, h, c, ax, ah, b_w, b_r, vectors, codes, direction, save):
    """The forward kernel bound to its arrays: a function f(t, before) that launches it; codes may be None."""
    kernel = make_pointwise_forward(cell, h.dtype.name, save, codes is not None)
    config = launch_config(ah.shape[0], b_w.shape[0] // cell.num_gates)
    arrays = (storage.stored(array) for array in (h, c, ax, ah, b_w, b_r, vectors, no_codes(ah, codes)))
    return kernel.bind(config, *arrays, np.int32(direction))


def bind_backward(cell, dh, dc, dax, dah, d_vectors, dy, h, c, vectors, d_v, codes, direction):
    """The backward kernel bound to its arrays: a function f(t, before) that launches it.

    Args:
        d_vectors, d_v: None if the cell has no vectors, or no stages.
        dy: None with projection.
        codes: None if no step is masked.
    """
    kernel = make_pointwise_backward(cell, h.dtype.name, codes is not None, dy is None)
    d_vectors, dy = dax if d_vectors is None else d_vectors, h if dy is None else dy
    d_v = dh if d_v is None else d_v
    arrays = (dh, dc, dax, dah, d_vectors, dy, h, c, vectors, d_v, no_codes(dh, codes))
    return kernel.bind(launch_config(*dh.shape), *map(storage.stored, arrays), np.int32(direction))


def no_codes(array, codes):
    """Codes as a kernel that does not read them takes them: some array's bytes."""
    return array.view(np.uint8) if codes is None else codes
