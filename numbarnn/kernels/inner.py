"""What a step with two products (`numbarnn.cells.definition.Inner`) does between them, one thread per unit."""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.cells import specialise, units
from numbarnn.cells.order import RESET
from numbarnn.cells.precision import compute_dtype
from numbarnn.kernels import storage
from numbarnn.kernels.launch import Kernel
from numbarnn.kernels.pointwise import launch_config, no_codes
from numbarnn.kernels.target import TARGET


@cache
def make_inner_forward(cell, dtype, masked=False):
    """The forward kernel of a cell for arrays of a dtype; with `masked` it reads codes."""
    inner = specialise(cell.inner.forward, compute_dtype(dtype), TARGET)
    widen, narrow = storage.widen(dtype), storage.narrow(dtype)
    load_ax = units.biased_loader(cell.num_outer, TARGET, widen, widen)
    load_ah = units.biased_loader(cell.num_outer, TARGET, None, widen)
    load_bias, load_private = units.loader(cell.num_outer, TARGET, widen), units.loader(cell.num_private, TARGET)
    no_state, whole = units.zeros(cell.num_states, TARGET, compute_dtype(dtype)), units.joiner(TARGET)
    G, N = cell.num_gates, cell.num_private

    @cuda.jit
    def inner_forward_kernel(v, h, c, ax, ah, b_w, b_r, codes, direction, save, t, before):
        """What the last gates of a step multiply, after the product of the first gates.

        Writes   v[t] of v (T, B, H); without `save` v[0]
        Reads    ax[t] of ax (T, B, max(K, G)*H), ah (B, G*H), b_w, b_r (G*H,): the first gates; h[before] of h
                 (T+2, B, D*H), c[before] of c (T+2, B, D*N*H), without `save` its slots modulo 2; masked: codes[t + 1]
                 of codes (T+2, B)
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct
        """
        H = np.uintp(ah.shape[1] // G)
        h_first, c_first = np.uintp(direction) * H, np.uintp(direction * N) * H
        for b in range(cuda.blockIdx.y, ah.shape[0], cuda.gridDim.y):
            v_row, h_before, c_before = v[t if save else 0, b], h[before, b], c[before if save else before % 2, b]
            ax_row, ah_row = ax[t, b], ah[b]
            code = codes[t + 1, b] if masked else 0
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                state = whole(widen(h_before[h_first + j]), load_private(c_before, c_first + j, H))
                pre_activations = load_ah(ah_row, b_r, j, H)
                if masked and code == RESET:
                    state, pre_activations = no_state(), load_bias(b_r, j, H)
                v_row[j] = narrow(inner(load_ax(ax_row, b_w, j, H), pre_activations, state))

    return Kernel(inner_forward_kernel, f"{cell.name}_inner_forward{'_masked' if masked else ''}")


@cache
def make_inner_backward(cell, dtype, masked=False):
    """The backward kernel of a cell for arrays of a dtype; with `masked` it reads codes."""
    inner = specialise(cell.inner.backward, compute_dtype(dtype), TARGET)
    widen, narrow = storage.widen(dtype), storage.narrow(dtype)
    load_kept = units.loader(cell.num_outer, TARGET, widen)
    store_gates = units.storer(cell.num_outer, TARGET, narrow)
    load_private, whole = units.loader(cell.num_private, TARGET), units.joiner(TARGET)
    no_state, N = units.zeros(cell.num_states, TARGET, compute_dtype(dtype)), cell.num_private

    @cuda.jit
    def inner_backward_kernel(dh, dax, dv, h, c, codes, direction, t, before):
        """The first gates' gradients of a step, after the product of the last gates' with their part of R.

        Writes   the first gates of dax[t] of dax (T, B, max(K, G)*H); adds to dh (B, H) what comes through v
        Reads    the same, as the cell's backward left it; dv (B, H); h[before] of h (T+2, B, D*H), c[before] of c
                 (T+2, B, D*N*H); masked: codes[t + 1] of codes (T+2, B)
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct
        """
        H = np.uintp(dh.shape[1])
        h_first, c_first = np.uintp(direction) * H, np.uintp(direction * N) * H
        for b in range(cuda.blockIdx.y, dh.shape[0], cuda.gridDim.y):
            h_before, c_before, dax_row, dh_row, dv_row = h[before, b], c[before, b], dax[t, b], dh[b], dv[b]
            code = codes[t + 1, b] if masked else 0
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                state = whole(widen(h_before[h_first + j]), load_private(c_before, c_first + j, H))
                if masked and code == RESET:
                    state = no_state()
                d_ax, d_h = inner(load_kept(dax_row, j, H), dv_row[j], state)
                store_gates(dax_row, j, H, d_ax)
                dh_row[j] += d_h

    return Kernel(inner_backward_kernel, f"{cell.name}_inner_backward{'_masked' if masked else ''}")


def bind_forward(cell, v, h, c, ax, ah, b_w, b_r, codes, direction, save):
    """The forward kernel bound to its arrays: a function f(t, before) that launches it; codes may be None."""
    kernel = make_inner_forward(cell, h.dtype.name, codes is not None)
    config = launch_config(ah.shape[0], ah.shape[1] // cell.num_gates)
    arrays = (storage.stored(array) for array in (v, h, c, ax, ah, b_w, b_r, no_codes(ah, codes)))
    return kernel.bind(config, *arrays, np.int32(direction), np.int32(save))


def bind_backward(cell, dh, dax, dv, h, c, codes, direction):
    """The backward kernel bound to its arrays: a function f(t, before) that launches it; codes may be None."""
    kernel = make_inner_backward(cell, h.dtype.name, codes is not None)
    arrays = (storage.stored(array) for array in (dh, dax, dv, h, c, no_codes(dh, codes)))
    return kernel.bind(launch_config(*dh.shape), *arrays, np.int32(direction))
