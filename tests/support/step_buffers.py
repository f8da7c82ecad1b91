"""Random arrays of one direction of a layer with two, as engines take them: to run time loops without a layer."""

from dataclasses import fields
from itertools import pairwise

import numpy as np

from numbarnn.cells.definition import Chances
from numbarnn.common.order import RESET, SKIP
from numbarnn.common.philox import dropout_masks, noise_words
from numbarnn.kernels.step.groups import (
    BackwardBuffers,
    ForwardBuffers,
    Gradients,
    Options,
    Parameters,
    Saved,
    Scratch,
    States,
)
from row_cases import expected_step_mask


def normal(dtype, *shape, seed=0):
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def nans(dtype, *shape):
    """What has not been written."""
    return np.full(shape, np.nan, dtype)


def mask_words(p, seed, layer, call, first=0):
    """(mask, scale) of a layer's dropout, for what begins with that element."""
    scale, masks = dropout_masks(p, seed, call, [first] * (layer + 1))
    return masks[layer], scale


# What steps may be: options of `forward_buffers`.
KINDS = {
    "ordinary": {},
    "masked": {"masked": True},
    "projected": {"projection": 0},
    "masked_and_projected": {"masked": True, "projection": 0},
}


def codes_of(direction, T, B):
    """(T + 2, B), the direction's step_mask of sequences that are long and short, and begin anew at times, also at
    0."""
    lengths, resets = [T, T // 2 + 1, 0, T - 1][:B], np.random.default_rng(0).random((T, B)) < 0.4
    resets[0, :2] = True
    return np.ascontiguousarray(expected_step_mask(2, lengths, resets)[direction])


def forward_buffers(
    cell, direction, T=7, B=3, H=33, save=True, dtype="float32", masked=False, projection=0, spoiled=False
):
    """A forward pass before its first step; what it must write is NaN.

    spoiled: what skipped steps and those that are reset must not read is NaN too.
    """
    G, A, N, P = cell.num_gates, cell.num_ah, cell.num_private, projection or H
    K = max(cell.num_saved, G) if save else G
    h = np.full((T + 2, B, 2 * P), np.nan, dtype)
    c = np.full((T + 2 if save else 2, B, 2 * N * H), np.nan, dtype)
    h[[0, -1]] = normal(dtype, 2, B, 2 * P)
    c[(0 if direction == 0 else T + 1) % len(c)] = normal(dtype, B, 2 * N * H, seed=1)
    ax, ah = normal(dtype, T, B, K * H, seed=2), np.full((B, A * H), np.nan, dtype)
    R = (normal(dtype, A * H, P, seed=3) / H**0.5).astype(dtype)
    b_w, b_r = normal(dtype, G * H, seed=4), normal(dtype, A * H, seed=5)
    step_mask, m, v, W_hr, per_unit = None, None, None, None, None
    if masked:
        step_mask = codes_of(direction, T, B)
        if spoiled:
            ax[step_mask[1:-1] == SKIP] = np.nan
            if direction == 0:  # backward never begins with a reset
                h[0, step_mask[1] == RESET] = c[0, step_mask[1] == RESET] = np.nan
    if projection:
        m = np.full((T + 2, B, 2 * H), np.nan, dtype)
        m[[0, -1]] = 0
        W_hr = (normal(dtype, P, H, seed=9) / H**0.5).astype(dtype)
    if cell.per_unit:
        per_unit = normal(dtype, cell.num_per_unit * H, seed=10)
    if cell.num_products:
        v = np.full((T if save else 1, B, cell.num_products * H), np.nan, dtype)
    parameters = Parameters(R, b_w, b_r, W_hr=W_hr, per_unit=per_unit)
    sums = np.full((T if save else 1, B, cell.num_sums), np.nan, dtype) if cell.num_sums else None
    noise = noise_words(0x123456789ABCDEF, 3, 7)[2].copy() if cell.noise and save else None
    saved, scratch = Saved(ax if save else None, v, sums), Scratch(ax, ah)
    options = Options(step_mask, noise, chances_of(cell, dtype, save))
    return ForwardBuffers(cell, direction, save, parameters, States(h, c, m), saved, scratch, options)


def chances_of(cell, dtype, training):
    """The `Chances` of a cell's random numbers, None without any."""
    number = np.dtype(dtype).type
    thresholds = tuple(np.uint64(round(one.rate * 2**32)) for one in cell.noise) if training else None
    values = tuple(number(one.kept if training else one.mean) for one in cell.noise)
    return Chances(thresholds, values) if cell.noise else None


def backward_buffers(forward, spoiled=False):
    """A backward pass before its first step, after the forward pass whose buffers these are."""
    cell, parameters, states = forward.cell, forward.parameters, forward.states
    dax, (T, B, _), (rows, P) = forward.scratch.ax, forward.scratch.ax.shape, parameters.R.shape
    H, dtype = parameters.b_w.size // cell.num_gates, states.h.dtype
    dah = dax if cell.same_gradient else np.full((T, B, rows), np.nan, dtype)
    dh, dc = normal(dtype, B, P, seed=6), normal(dtype, B, cell.num_private * H, seed=7)
    dy, dht, dm, d_v, d_per_unit = normal(dtype, T, B, 2 * P, seed=8), None, None, None, None
    if spoiled:
        dy[forward.options.step_mask[1:-1] == SKIP] = np.nan
    if states.m is not None:
        dht, dm = np.full((T, B, P), np.nan, dtype), np.full((B, H), np.nan, dtype)
    if forward.saved.v is not None:
        d_v = np.full((B, cell.num_products * H), np.nan, dtype)
    if parameters.per_unit is not None:
        d_per_unit = np.full((T, B, parameters.per_unit.size), np.nan, dtype)
    d_sums = np.full((B, cell.num_sums), np.nan, dtype) if cell.num_sums else None
    gradients, scratch = Gradients(dh, dc, dax, dah, dy, dht, d_per_unit), Scratch(dm=dm, d_v=d_v, d_sums=d_sums)
    saved = forward.saved._replace(gates=dax)
    return BackwardBuffers(cell, forward.direction, parameters, states, saved, gradients, scratch, forward.options)


def walk(engine, cell, direction, cuts=(0, 7), spoiled=False, **kind):
    """(forward's buffers, all results of forward and backward) of a direction, run in pieces."""
    forward = forward_buffers(cell, direction, spoiled=spoiled, **kind)
    run = engine.forward_steps(forward)
    for first, last in pairwise(cuts):
        run(first, last)
    kept = [array.copy() for array in results(forward)]
    backward = backward_buffers(forward, spoiled)
    run = engine.backward_steps(backward)
    for first, last in pairwise(cuts):
        run(first, last)
    return forward, kept + results(backward)


def with_arrays(buffers, **arrays):
    """The buffers with other arrays, each named as in its group."""
    groups = {field.name: getattr(buffers, field.name) for field in fields(buffers)}
    for name, group in groups.items():
        own = {key: arrays[key] for key in arrays if key in getattr(group, "_fields", ())}
        if own:
            groups[name] = group._replace(**own)
    return type(buffers)(**groups)


def results(buffers):
    """What a pass has written of its direction, without what is left open: saved values of skipped steps."""
    if isinstance(buffers, ForwardBuffers):
        kept = [array.copy() for array in (buffers.scratch.ax, buffers.saved.v) if array is not None]
        step_mask = buffers.options.step_mask
        if step_mask is not None:
            for array in kept:
                array[step_mask[1:-1] == SKIP] = 0
        states = [array for array in buffers.states if array is not None]
        return [*kept, *(np.split(array, 2, axis=2)[buffers.direction][1:-1] for array in states)]
    gradients, dm = buffers.gradients, buffers.scratch.dm
    H = (gradients.dh if dm is None else dm).shape[1]  # dh is that of P numbers with projection
    dax, dah = gradients.dax[..., : H * buffers.cell.num_gates], gradients.dah[..., : len(buffers.parameters.R)]
    others = [array for array in (gradients.dht, gradients.d_per_unit) if array is not None]
    return [gradients.dh, gradients.dc, dax, dah, *others]
