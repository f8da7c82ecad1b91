"""One time step of each cell, forward and backward, in float64 NumPy.

A step is cut at its two matrix products, which loops.py computes for every cell in the same way:

    ax = W x + b_w          from the step's input x               (B, G*H)
    ah = R h_prev + b_r     from the state of the step before     (B, G*H)

The rest is elementwise and written here. `*` multiplies element by element, σ is the logistic function, and a subscript
picks a gate's H columns of ax or ah. In backward, dv is the derivative of the loss with respect to v. All arrays are
float64; every state and gate is (B, H).

    forward(ax, ah, h_prev, c_prev) -> h, c, saved      saved: a dict of the values that backward needs
    backward(dh, dc, saved) -> dax, dah, dh_prev, dc_prev

The argument dh includes every path through h, and dc every path through c but the one from c to h in this step. The
result dh_prev does not include the path through R h_prev; loops.py adds Rᵀ dah. Cells without a cell state pass on c
and dc, which have size 0.

With a projection, loops.py multiplies an LSTM's h by W_hr. `clipped_lstm` clips the cell state. A GRU that resets the
state before the product has a second product in a step, see `Reset`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np


@dataclass(frozen=True)
class Reset:
    """The vector v that a cell's last gate sees in place of h_prev: ah_n = R_n v + b_rn.

    forward(ax, ah, h_prev) -> v               reads the other gates' ah
    backward(dv, saved) -> da_r, dh_prev       da_r is dax_r and dah_r of the first gate, r; dh_prev the part through v
    """

    forward: Callable
    backward: Callable


@dataclass(frozen=True)
class Cell:
    """A cell: the number of gates G, whether it has a cell state c, and one step, forward and backward."""

    gates: int
    has_c: bool
    forward: Callable
    backward: Callable
    reset: Reset | None = None


def sigmoid(a):
    """Return σ(a) = 1 / (1 + exp(-a)), written so that exp never overflows."""
    e = np.exp(-np.abs(a))
    return np.where(a >= 0, 1 / (1 + e), e / (1 + e))


# ------------------------------------------------------------------------------------------------------- LSTM
def no_clip(c):
    """Return the cell state unchanged, and a mask of the elements beyond the bounds: none."""
    return c, np.zeros(c.shape, bool)


def lstm_forward(ax, ah, h_prev, c_prev, clip=no_clip):
    """Long short-term memory: Hochreiter & Schmidhuber 1997, doi 10.1162/neco.1997.9.8.1735.

    With the forget gate of Gers, Schmidhuber & Cummins 2000, doi 10.1162/089976600300015015. Gate order i f g o.

        (1)  i = σ(ax_i + ah_i)            input gate: how much of the candidate is written
        (2)  f = σ(ax_f + ah_f)            forget gate: how much of the old cell state is kept
        (3)  g = tanh(ax_g + ah_g)         candidate
        (4)  o = σ(ax_o + ah_o)            output gate: how much of the cell state is shown
        (5)  c = f * clip(c_prev) + i * g  cell state, which may exceed the bounds
        (6)  h = o * tanh(clip(c))         hidden state, the step's output

    clip: `no_clip`, or the function in `clipped_lstm`.
    """
    a_i, a_f, a_g, a_o = np.split(ax + ah, 4, axis=1)
    i, f, g, o = sigmoid(a_i), sigmoid(a_f), np.tanh(a_g), sigmoid(a_o)  # (1) (2) (3) (4)
    read, held_prev = clip(c_prev)
    c = f * read + i * g  # (5)
    shown, held = clip(c)
    h = o * np.tanh(shown)  # (6)
    saved = {"i": i, "f": f, "g": g, "o": o, "c": c, "c_prev": c_prev, "read": read, "shown": shown}
    return h, c, saved | {"held": held, "held_prev": held_prev}


def lstm_backward(dh, dc, saved):
    """Backward of `lstm_forward`, by the chain rule from (6) up to (1).

    Uses σ' = σ (1 - σ) and tanh' = 1 - tanh². da is with respect to ax + ah, so it is both dax and dah.

        (7)   dc      = dc + dh * o * (1 - tanh²(clip(c)))    the next step's dc, plus that from (6),
                                                              which is 0 where c is beyond the bounds
        (8)   da_o    = dh * tanh(clip(c)) * o * (1 - o)      from (6) through (4)
        (9)   da_i    = dc * g * i * (1 - i)                  from (5) through (1)
        (10)  da_f    = dc * clip(c_prev) * f * (1 - f)       from (5) through (2)
        (11)  da_g    = dc * i * (1 - g²)                     from (5) through (3)
        (12)  dc_prev = dc * f                                from (5), with the dc of (7);
                                                              0 where c_prev is beyond the bounds
    """
    i, f, g, o = saved["i"], saved["f"], saved["g"], saved["o"]
    tanh_c = np.tanh(saved["shown"])
    dc = dc + np.where(saved["held"], 0, dh * o * (1 - tanh_c**2))  # (7)
    da_o = dh * tanh_c * o * (1 - o)  # (8)
    da_i = dc * g * i * (1 - i)  # (9)
    da_f = dc * saved["read"] * f * (1 - f)  # (10)
    da_g = dc * i * (1 - g**2)  # (11)
    da = np.concatenate([da_i, da_f, da_g, da_o], axis=1)
    return da, da, 0, np.where(saved["held_prev"], 0, dc * f)  # (12)


def clipped_lstm(lower, upper, propagate_nan=True):
    """Return the LSTM that clips its cell state between two bounds wherever it reads it, as cudnnRNNSetClip does.

        clip(c) = min(max(c, lower), upper)

    cuDNN 9.19 on an H200 does the same (tests/data/cudnn-lstm-clip*.npz). The gradient passes where c is at a bound.
    Without propagate_nan, NaN becomes `lower`.
    """
    maximum, minimum = (np.maximum, np.minimum) if propagate_nan else (np.fmax, np.fmin)

    def clip(c):
        clipped = minimum(maximum(c, lower), upper)
        return clipped, (clipped != c) & ~np.isnan(clipped)

    return Cell(4, True, partial(lstm_forward, clip=clip), lstm_backward)


# -------------------------------------------------------------------------------------------------------- GRU
def gru_forward(ax, ah, h_prev, c_prev):
    """Gated recurrent unit: Cho et al. 2014, arXiv 1406.1078, eqs. (5)-(8), in the form of cuDNN and PyTorch.

    Cho et al. reset the state before the product, R_n (r * h_prev). Here r multiplies the product and its bias, so that
    all three gates share one product R h_prev, and n has two distinct biases. Gate order r z n.

        (1)  r = σ(ax_r + ah_r)               reset gate: how much of the old state the candidate sees
        (2)  z = σ(ax_z + ah_z)               update gate: how much of the old state is kept
        (3)  n = tanh(ax_n + r * ah_n)        candidate
        (4)  h = (1 - z) * n + z * h_prev     hidden state, the step's output
    """
    ax_r, ax_z, ax_n = np.split(ax, 3, axis=1)
    ah_r, ah_z, ah_n = np.split(ah, 3, axis=1)
    r, z = sigmoid(ax_r + ah_r), sigmoid(ax_z + ah_z)  # (1) (2)
    n = np.tanh(ax_n + r * ah_n)  # (3)
    h = (1 - z) * n + z * h_prev  # (4)
    return h, c_prev, {"r": r, "z": z, "n": n, "ah_n": ah_n, "h_prev": h_prev}


def gru_backward(dh, dc, saved):
    """Backward of `gru_forward`, by the chain rule from (4) up to (1).

    (5)  dax_n   = dh * (1 - z) * (1 - n²)             from (4) through (3)
    (6)  dah_n   = dax_n * r                           from (3)
    (7)  da_r    = dax_n * ah_n * r * (1 - r)          from (3) through (1): both dax_r and dah_r
    (8)  da_z    = dh * (h_prev - n) * z * (1 - z)     from (4) through (2): both dax_z and dah_z
    (9)  dh_prev = dh * z                              from (4)
    """
    r, z, n = saved["r"], saved["z"], saved["n"]
    dax_n = dh * (1 - z) * (1 - n**2)  # (5)
    dah_n = dax_n * r  # (6)
    da_r = dax_n * saved["ah_n"] * r * (1 - r)  # (7)
    da_z = dh * (saved["h_prev"] - n) * z * (1 - z)  # (8)
    dax = np.concatenate([da_r, da_z, dax_n], axis=1)
    dah = np.concatenate([da_r, da_z, dah_n], axis=1)
    return dax, dah, dh * z, dc  # (9)


# ------------------------------------------------------------------------------------- GRU, reset before the product
def reset_forward(ax, ah, h_prev):
    """Compute v of Cho et al.'s (8): Keras' reset_after=False, ONNX' linear_before_reset=0.

    (1)  r = σ(ax_r + ah_r)
    (2)  v = r * h_prev              what R_n multiplies: ah_n = R_n v + b_rn
    """
    H = h_prev.shape[1]
    return sigmoid(ax[:, :H] + ah[:, :H]) * h_prev  # (1) (2)


def reset_backward(dv, saved):
    """Backward of `reset_forward`.

    (8)  da_r    = dv * h_prev * r * (1 - r)        from (2) through (1): both dax_r and dah_r
    (9)  dh_prev = dv * r                           from (2)
    """
    r = saved["r"]
    return dv * saved["h_prev"] * r * (1 - r), dv * r  # (8) (9)


def gru_reset_before_forward(ax, ah, h_prev, c_prev):
    """Compute the step with ah_n = R_n v + b_rn. Gate order r z n.

    (3)  z = σ(ax_z + ah_z)
    (4)  n = tanh(ax_n + ah_n)                with the ah_n of (2)
    (5)  h = (1 - z) * n + z * h_prev
    """
    ax_r, ax_z, ax_n = np.split(ax, 3, axis=1)
    ah_r, ah_z, ah_n = np.split(ah, 3, axis=1)
    r, z = sigmoid(ax_r + ah_r), sigmoid(ax_z + ah_z)  # (1) (3)
    n = np.tanh(ax_n + ah_n)  # (4)
    h = (1 - z) * n + z * h_prev  # (5)
    return h, c_prev, {"r": r, "z": z, "n": n, "h_prev": h_prev}


def gru_reset_before_backward(dh, dc, saved):
    """Backward of `gru_reset_before_forward`. The gradient of r is 0 here; `reset_backward` computes it from dv.

    (6)  da_n    = dh * (1 - z) * (1 - n²)             from (5) through (4): both dax_n and dah_n
    (7)  da_z    = dh * (h_prev - n) * z * (1 - z)     from (5) through (3): both dax_z and dah_z
    (10) dh_prev = dh * z                              from (5)
    """
    z, n = saved["z"], saved["n"]
    da_n = dh * (1 - z) * (1 - n**2)  # (6)
    da_z = dh * (saved["h_prev"] - n) * z * (1 - z)  # (7)
    da = np.concatenate([np.zeros_like(da_z), da_z, da_n], axis=1)
    return da, da, dh * z, dc  # (10)


# -------------------------------------------------------------------------------------------------------- RNN
def rnn_tanh_forward(ax, ah, h_prev, c_prev):
    """The simple recurrent network: Elman 1990, doi 10.1207/s15516709cog1402_1.

    (1)  h = tanh(ax + ah)
    """
    h = np.tanh(ax + ah)  # (1)
    return h, c_prev, {"h": h}


def rnn_tanh_backward(dh, dc, saved):
    """Backward of `rnn_tanh_forward`.

    (2)  da = dh * (1 - h²)        both dax and dah
    """
    da = dh * (1 - saved["h"] ** 2)  # (2)
    return da, da, 0, dc


def rnn_relu_forward(ax, ah, h_prev, c_prev):
    """The simple recurrent network with rectified units: Le, Jaitly & Hinton 2015, arXiv 1504.00941.

    (1)  h = max(0, a),  a = ax + ah
    """
    a = ax + ah
    return np.maximum(a, 0), c_prev, {"a": a}  # (1)


def rnn_relu_backward(dh, dc, saved):
    """Backward of `rnn_relu_forward`; the derivative at a = 0 is 0, as in PyTorch.

    (2)  da = dh where a > 0, else 0        both dax and dah
    """
    da = dh * (saved["a"] > 0)  # (2)
    return da, da, 0, dc


CELLS = {
    "lstm": Cell(4, True, lstm_forward, lstm_backward),
    "gru": Cell(3, False, gru_forward, gru_backward),
    "gru_reset_before": Cell(
        3, False, gru_reset_before_forward, gru_reset_before_backward, Reset(reset_forward, reset_backward)
    ),
    "rnn_tanh": Cell(1, False, rnn_tanh_forward, rnn_tanh_backward),
    "rnn_relu": Cell(1, False, rnn_relu_forward, rnn_relu_backward),
}
