"""Random arrays of one direction of a layer with two, as engines take them: to run time loops without a layer."""

from dataclasses import fields

import numpy as np

from numbarnn.cells.philox import dropout_masks
from numbarnn.engines import BackwardBuffers, ForwardBuffers


def normal(dtype, *shape, seed=0):
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def mask_words(p, seed, layer, call):
    """(mask, scale) of a layer's dropout."""
    scale, masks = dropout_masks(p, seed, layer + 1, call)
    return masks[layer], scale


def forward_buffers(cell, direction, T=7, B=3, H=33, save=True, dtype="float32"):
    """A forward pass before its first step; what it must write is NaN."""
    G, N = cell.num_gates, cell.num_private
    K = max(cell.num_saved, G) if save else G
    h = np.full((T + 2, B, 2 * H), np.nan, dtype)
    c = np.full((T + 2 if save else 2, B, 2 * N * H), np.nan, dtype)
    h[[0, -1]] = normal(dtype, 2, B, 2 * H)
    c[(0 if direction == 0 else T + 1) % len(c)] = normal(dtype, B, 2 * N * H, seed=1)
    ax, ah = normal(dtype, T, B, K * H, seed=2), np.full((B, G * H), np.nan, dtype)
    R = (normal(dtype, G * H, H, seed=3) / H**0.5).astype(dtype)
    b_w, b_r = normal(dtype, G * H, seed=4), normal(dtype, G * H, seed=5)
    return ForwardBuffers(cell, direction, save, h, c, ax, ah, R, b_w, b_r)


def backward_buffers(forward):
    """A backward pass before its first step, after the forward pass whose buffers these are."""
    cell, (T, B, _), H, dtype = forward.cell, forward.ax.shape, forward.R.shape[1], forward.h.dtype
    dax = forward.ax
    dah = dax if cell.same_gradient else np.full((T, B, cell.num_gates * H), np.nan, dtype)
    dh, dc = normal(dtype, B, H, seed=6), normal(dtype, B, cell.num_private * H, seed=7)
    dy = normal(dtype, T, B, 2 * H, seed=8)
    return BackwardBuffers(cell, forward.direction, dh, dc, dax, dah, dy, forward.h, forward.c, forward.R)


def moved(buffers, engine):
    """The same buffers on an engine; an array that stands for two stays one."""
    arrays = {}

    def move(value):
        if not isinstance(value, np.ndarray):
            return value
        return arrays.setdefault(id(value), engine.from_host(value))

    return type(buffers)(**{field.name: move(getattr(buffers, field.name)) for field in fields(buffers)})
