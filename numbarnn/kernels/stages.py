"""Steps with further products (`numbarnn.cells.definition.Stage`): what lies between them, one thread per unit."""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.cells import specialise, units
from numbarnn.cells.order import RESET, SKIP
from numbarnn.cells.precision import compute_dtype
from numbarnn.kernels import storage
from numbarnn.kernels.launch import Kernel
from numbarnn.kernels.pointwise import launch_config, no_codes
from numbarnn.kernels.target import TARGET


@cache
def make_stage_forward(cell, stage, dtype, masked=False):
    """The forward kernel of a cell's stage (its number) for arrays of a dtype; with `masked` it reads codes."""
    vector_of = specialise(cell.stages[stage].forward, compute_dtype(dtype), TARGET)
    widen, narrow = storage.widen(dtype), storage.narrow(dtype)
    load_ax = units.biased_loader(cell.num_gates, TARGET, widen, widen)
    load_ah = units.biased_loader(cell.num_recurrent, TARGET, None, widen)
    load_after_reset = units.reset_loader(cell.num_outer, cell.num_recurrent, TARGET, None, widen)
    load_vectors, load_private = units.loader(cell.num_vectors, TARGET, widen), units.loader(cell.num_private, TARGET)
    no_state, whole = units.zeros(cell.num_states, TARGET, compute_dtype(dtype)), units.joiner(TARGET)
    G, N = cell.num_gates, cell.num_private

    @cuda.jit
    def stage_forward_kernel(v, h, c, ax, ah, b_w, b_r, vectors, codes, direction, save, t, before):
        """The vector that a stage's rows of R multiply, after the products before it.

        Writes   v[t] of v (T, B, S*H), the stage's columns; without `save` v[0]
        Reads    ax[t] of ax (T, B, max(K, G)*H), ah (B, A*H), b_w (G*H,), b_r (A*H,), vectors (V*H,); h[before] of h
                 (T+2, B, D*H), c[before] of c (T+2, B, D*N*H), without `save` its slots modulo 2; masked: codes[t + 1]
                 of codes (T+2, B)
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct
        """
        H = np.uintp(b_w.shape[0] // G)
        h_first, c_first, v_first = np.uintp(direction) * H, np.uintp(direction * N) * H, np.uintp(stage) * H
        for b in range(cuda.blockIdx.y, ah.shape[0], cuda.gridDim.y):
            v_row, h_before, c_before = v[t if save else 0, b], h[before, b], c[before if save else before % 2, b]
            ax_row, ah_row = ax[t, b], ah[b]
            code = codes[t + 1, b] if masked else 0
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                state = whole(widen(h_before[h_first + j]), load_private(c_before, c_first + j, H))
                pre_activations = load_ah(ah_row, b_r, j, H)
                if masked and code == RESET:
                    state, pre_activations = no_state(), load_after_reset(ah_row, b_r, j, H)
                value = vector_of(
                    load_ax(ax_row, b_w, j, H), pre_activations, state, load_vectors(vectors, j, H), (), ()
                )
                v_row[v_first + j] = narrow(value)

    name = f"{cell.name}_stage{stage}_forward{'_masked' if masked else ''}"
    return Kernel(stage_forward_kernel, name, source_key=str(stage))


@cache
def make_stage_backward(cell, stage, dtype, masked=False):
    """The backward kernel of a cell's stage (its number) for arrays of a dtype; with `masked` it reads codes."""
    gradients_of = specialise(cell.stages[stage].backward, compute_dtype(dtype), TARGET)
    widen, narrow = storage.widen(dtype), storage.narrow(dtype)
    load_private, load_saved = units.loader(cell.num_private, TARGET), units.loader(cell.num_saved, TARGET, widen)
    load_vectors, load_d_v = units.loader(cell.num_vectors, TARGET, widen), units.loader(len(cell.stages), TARGET)
    count = len(cell.stages[stage].gates)
    store_gates, whole = units.storer(count, TARGET, narrow), units.joiner(TARGET)
    no_state, no_private, no_gates = (
        units.zeros(number, TARGET, compute_dtype(dtype)) for number in (cell.num_states, cell.num_private, count)
    )
    zero, N = np.dtype(compute_dtype(dtype)).type(0), cell.num_private
    first_gate = cell.first_of_stage(stage)

    @cuda.jit
    def stage_backward_kernel(dah, dax, dh, dc, dy, h, c, vectors, d_v, codes, direction, t, before):
        """The gradients of a stage's gates, before their product with R.

        Writes   the stage's columns of dah[t] of dah (T, B, A*H)
        Reads    dax[t] of dax (T, B, max(K, G)*H), what the cell saved; dh (B, H), dc (B, N*H); dy[t] (T, B, D*H);
                 states h (T+2, B, D*H), c (T+2, B, D*N*H) at t + 1 and `before`; vectors (V*H,); d_v (B, S*H), of the
                 stages after this one; masked: codes (T+2, B) at t + 1 and at the step after
        Launch   2-D, grid-stride over units (x) and sequences (y); any grid is correct
        """
        H = np.uintp(dh.shape[1])
        h_first, c_first, dah_first = np.uintp(direction) * H, np.uintp(direction * N) * H, np.uintp(first_gate) * H
        for b in range(cuda.blockIdx.y, dh.shape[0], cuda.gridDim.y):
            h_row, h_before, c_row, c_before = h[t + 1, b], h[before, b], c[t + 1, b], c[before, b]
            dax_row, dah_row, dy_row, dh_row, dc_row, d_v_row = dax[t, b], dah[t, b], dy[t, b], dh[b], dc[b], d_v[b]
            code = codes[t + 1, b] if masked else 0
            code_after = codes[2 * (t + 1) - before, b] if masked else 0
            for j in range(np.uintp(cuda.grid(1)), H, np.uintp(cuda.gridsize(1))):
                state = whole(widen(h_before[h_first + j]), load_private(c_before, c_first + j, H))
                new_state = whole(widen(h_row[h_first + j]), load_private(c_row, c_first + j, H))
                d_h, d_private = dh_row[j], load_private(dc_row, j, H)
                if masked and code == RESET:
                    state = no_state()
                if masked and code_after == RESET:  # nothing comes from the step after
                    d_h, d_private = zero, no_private()
                d_state = whole(widen(dy_row[h_first + j]) + d_h, d_private)
                gates = gradients_of(
                    load_saved(dax_row, j, H), state, new_state, d_state, load_d_v(d_v_row, j, H),
                    load_vectors(vectors, j, H), (), (), (),
                )  # fmt: skip
                if masked and code == SKIP:
                    gates = no_gates()
                store_gates(dah_row, dah_first + j, H, gates)

    name = f"{cell.name}_stage{stage}_backward{'_masked' if masked else ''}"
    return Kernel(stage_backward_kernel, name, source_key=str(stage))


def bind_forward(cell, stage, v, h, c, ax, ah, b_w, b_r, vectors, codes, direction, save):
    """The forward kernel bound to its arrays: a function f(t, before) that launches it; codes may be None."""
    kernel = make_stage_forward(cell, stage, h.dtype.name, codes is not None)
    config = launch_config(ah.shape[0], b_w.shape[0] // cell.num_gates)
    arrays = (v, h, c, ax, ah, b_w, b_r, vectors, no_codes(ah, codes))
    return kernel.bind(config, *map(storage.stored, arrays), np.int32(direction), np.int32(save))


def bind_backward(cell, stage, dah, dax, dh, dc, dy, h, c, vectors, d_v, codes, direction):
    """The backward kernel bound to its arrays: a function f(t, before) that launches it; codes may be None."""
    kernel = make_stage_backward(cell, stage, h.dtype.name, codes is not None)
    arrays = (dah, dax, dh, dc, dy, h, c, vectors, d_v, no_codes(dh, codes))
    return kernel.bind(launch_config(*dh.shape), *map(storage.stored, arrays), np.int32(direction))
