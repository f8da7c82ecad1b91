"""What a cell's functions are given, from memory: device functions made per cell, for all kernels with one thread per
unit.

`rows` are rows of arrays, those of a step and sequence that `where` names. With projection what stands for h is m,
the cell's output before it.
"""

from functools import cache

import numpy as np

from numbarnn.common.order import RESET
from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage, units
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit


@cache
def make_draw(noise, dtype, draws):
    """A device function draw(words, position, t), see `units.noise_loader`; where nothing is drawn it returns means."""
    if draws:
        return units.noise_loader(noise, BACKEND, compute_dtype(dtype))
    mean = units.mean_noise(noise, BACKEND, compute_dtype(dtype))
    return jit(lambda words, position, t: mean(), BACKEND)


@cache
def make_load_sums(count, dtype):
    """A device function load(row, H): (H as a number, the row's sums), of a cell without any ()."""
    if count == 0:
        return jit(lambda row, H: (), BACKEND)
    number, load, whole = np.dtype(compute_dtype(dtype)).type, units.loader(count, BACKEND), units.joiner(BACKEND)
    first, next_one = np.uintp(0), np.uintp(1)
    return jit(lambda row, H: whole(number(H), load(row, first, next_one)), BACKEND)


@cache
def make_given_forward(cell, dtype, masked, draws):
    """A device function given(rows, parameters, noise, where, j, H): the arguments of a cell's forward for unit j, and
    of those of its stages; and the state that a skipped step carries on.

    Args of given:
        rows: of h and c before the step, of ax, ah and sums.
        parameters: b_w, b_r, per_unit.
        noise: words to draw from, which `draws`.
        where: (code, direction, b, t), the code of the step.
    """
    widen, number = storage.widen(dtype), compute_dtype(dtype)
    load_ax = units.biased_loader(cell.num_gates, BACKEND, widen, widen)
    load_ah = units.biased_loader(cell.num_ah, BACKEND, None, widen)
    load_after_reset = units.reset_loader(cell.num_recurrent, cell.num_ah, BACKEND, None, widen)
    load_per_unit, load_private = (
        units.loader(cell.num_per_unit, BACKEND, widen),
        units.loader(cell.num_private, BACKEND),
    )
    load_sums, draw = make_load_sums(cell.num_sums, dtype), make_draw(cell.noise, dtype, draws)
    no_state, whole, N = units.zeros(cell.num_states, BACKEND, number), units.joiner(BACKEND), cell.num_private

    def given(rows, parameters, noise, where, j, H):
        h_before, c_before, ax_row, ah_row, sums_row = rows
        b_w, b_r, per_unit = parameters
        code, direction, b, t = where
        h_unit, c_unit = np.uintp(direction) * H + j, np.uintp(direction * N) * H + j
        state = whole(widen(h_before[h_unit]), load_private(c_before, c_unit, H))
        pre_activations = load_ah(ah_row, b_r, j, H)
        if masked and code == RESET:
            state, pre_activations = no_state(), load_after_reset(ah_row, b_r, j, H)
        drawn = draw(noise, np.uint64(b) * np.uint64(H) + np.uint64(j), np.uint64(t))
        per_unit = load_per_unit(per_unit, j, H)
        return (load_ax(ax_row, b_w, j, H), pre_activations, state, per_unit, load_sums(sums_row, H), drawn), state

    return jit(given, BACKEND)


@cache
def make_given_backward(cell, dtype, masked, projected):
    """A device function given(rows, per_unit, noise, where, j, H): the arguments of a cell's backward for unit j, and
    of those of its stages; and the gradient of the state that a skipped step carries on.

    Args of given:
        rows: of dax, what the cell saved; a tuple of h before and after the step and c before and after it; of dy, dh,
            dc, d_v, sums and d_sums. `projected`: dh is all of the gradient of m, and dy is not read.
        where: (code, code_after, direction, b, t), step_mask of the step and of the one after it.
    """
    widen, number = storage.widen(dtype), compute_dtype(dtype)
    load_private, load_saved = units.loader(cell.num_private, BACKEND), units.loader(cell.num_saved, BACKEND, widen)
    load_per_unit, load_d_v = units.loader(cell.num_per_unit, BACKEND, widen), units.loader(cell.num_products, BACKEND)
    load_sums, draw = make_load_sums(cell.num_sums, dtype), make_draw(cell.noise, dtype, True)
    load_d_sums, first, next_one = units.loader(cell.num_sums, BACKEND), np.uintp(0), np.uintp(1)
    no_state, no_private = (units.zeros(count, BACKEND, number) for count in (cell.num_states, cell.num_private))
    zero, whole, N = np.dtype(number).type(0), units.joiner(BACKEND), cell.num_private

    def given(rows, per_unit, noise, where, j, H):
        dax_row, (h_before, h_row, c_before, c_row), dy_row, dh_row, dc_row, d_v_row, sums_row, d_sums_row = rows
        code, code_after, direction, b, t = where
        h_unit, c_unit = np.uintp(direction) * H + j, np.uintp(direction * N) * H + j
        state = whole(widen(h_before[h_unit]), load_private(c_before, c_unit, H))
        new_state = whole(widen(h_row[h_unit]), load_private(c_row, c_unit, H))
        d_h, d_private = dh_row[j], load_private(dc_row, j, H)
        if masked:
            if code == RESET:
                state = no_state()
            if code_after == RESET:  # nothing comes from the step after
                d_h, d_private = d_h if projected else zero, no_private()
        d_output = d_h if projected else widen(dy_row[h_unit]) + d_h
        drawn = draw(noise, np.uint64(b) * np.uint64(H) + np.uint64(j), np.uint64(t))
        arguments = (
            load_saved(dax_row, j, H), state, new_state, whole(d_output, d_private), load_d_v(d_v_row, j, H),
            load_per_unit(per_unit, j, H), load_sums(sums_row, H), load_d_sums(d_sums_row, first, next_one), drawn,
        )  # fmt: skip
        return arguments, whole(d_h, d_private)

    return jit(given, BACKEND)
