"""An RNN with layer normalization, dropped weights and zoneout, forward and backward, in float64 NumPy.

It is the reference for custom cells, with the features that the cells of `cells.py` lack: sums over all units, per-unit
parameters, dropped weights and random numbers in a step. It has its own loops.

    (1)  a = W x + R h
    (2)  n = (a - mean(a)) / sqrt(variance(a) + EPS)      over all units
    (3)  g = tanh(gain * n + b)
    (4)  h = k * g + (1 - k) * h                          zoneout: k is 0 or 1; in inference the probability of 1

Layer normalization: Ba et al. 2016, arXiv:1607.06450. Zoneout: Krueger et al. 2017, arXiv:1606.01305. R is the
parameter times the mask of dropped weights.
"""

from dataclasses import dataclass

import numpy as np

from .loops import Gradients, Result
from .shapes import Options

EPS = 1e-5  # added to the variance
VECTORS = ("gain_h", "b_h")  # gain and b of (3)
KINDS = ("weight_ih", "weight_hh", *VECTORS)


@dataclass(frozen=True)
class Tape:
    """The data that `backward` needs; walks[layer][direction] is a list with a dict for each step."""

    parameters: dict
    inputs: list
    walks: list
    masks: list | None
    dropped: list | None
    live: np.ndarray


def forward(x, parameters, h0=None, *, dropped=None, kept=1.0, **options):
    """Run a stack of layers over a sequence.

    Args:
        x: (T, B, I)
        parameters: dict of arrays by names such as weight_ih_l0 and gain_h_l0_reverse.
        h0: list with one (D, B, H_l) per layer; None for zeros.
        dropped: masks of R, dropped[layer][direction] (H, H); None without.
        kept: k of (4), kept[layer][direction] (T, B, H), or one number for all.
        options: masks, lengths, resets, padding_value, see `numbarnn.reference.forward`.

    Returns a `Result`; cy is None.
    """
    options = Options(**options)
    masks, lengths, resets = options.masks, options.lengths, options.resets
    parameters = {name: np.asarray(array, np.float64) for name, array in parameters.items()}
    suffixes = ("", "_reverse") if "weight_hh_l0_reverse" in parameters else ("",)
    layers = sum(name.startswith("weight_hh") for name in parameters) // len(suffixes)
    T, B, _ = x.shape
    live = np.arange(T)[:, None] < (np.full(B, T) if lengths is None else lengths)  # (T, B)
    x = np.where(live[:, :, None], np.asarray(x, np.float64), 0.0)
    inputs, walks, hy = [], [], []
    for layer in range(layers):
        runs = []
        for direction, suffix in enumerate(suffixes):
            p = {kind: parameters[f"{kind}_l{layer}{suffix}"] for kind in KINDS}
            R = p["weight_hh"] if dropped is None else p["weight_hh"] * dropped[layer][direction]
            H = R.shape[1]
            h = np.zeros((B, H)) if h0 is None else np.asarray(h0[layer][direction], np.float64)
            k = np.full((T, B, H), kept) if np.isscalar(kept) else kept[layer][direction]
            runs.append(_walk(p, R, x, h, k, live, _begins(live, resets, direction), direction))
        y = np.concatenate([run[0] for run in runs], axis=2)
        inputs.append(x)
        walks.append([run[2] for run in runs])
        hy.append(np.stack([run[1] for run in runs]))
        x = y if masks is None or layer == layers - 1 else y * masks[layer]
    y = np.where(live[:, :, None], y, options.padding_value)
    return Result(y, hy, None, Tape(parameters, inputs, walks, masks, dropped, live))


def _begins(live, resets, direction):
    """Return (T, B) bools: the steps of a direction before which the state is set to zero."""
    begins = np.zeros(live.shape, bool)
    if resets is not None and direction == 0:
        begins = np.asarray(resets) & live
    elif resets is not None:  # a reset at t + 1 separates t + 1 and t
        begins[:-1] = np.asarray(resets)[1:] & live[1:]
    return begins


def _walk(p, R, x, h, kept, live, begins, direction):
    """Run one layer and direction; return y (T, B, H), zero in padding, the final h, and the steps in their order."""
    y, steps = np.zeros((*live.shape, R.shape[1])), []
    for t in range(len(x))[:: -1 if direction else 1]:
        before = np.where(begins[t][:, None], 0.0, h)
        a = x[t] @ p["weight_ih"].T + before @ R.T  # (1)
        inverse = 1 / np.sqrt(a.var(axis=1, keepdims=True) + EPS)
        n = (a - a.mean(axis=1, keepdims=True)) * inverse  # (2)
        g = np.tanh(p["gain_h"] * n + p["b_h"])  # (3)
        h = np.where(live[t][:, None], kept[t] * g + (1 - kept[t]) * before, h)  # (4)
        y[t] = np.where(live[t][:, None], h, 0.0)
        known = {"t": t, "before": before, "begins": begins[t], "kept": kept[t], "R": R, "g": g, "n": n}
        steps.append(known | {"inverse": inverse})
    return y, h, steps


def backward(result, dy=None, dhy=None, dcy=None):
    """Return the `Gradients` for dy (T, B, D*H_last) and dhy, one (D, B, H_l) per layer; None is zero. dcx is None."""
    tape = result.tape
    live = tape.live[:, :, None]
    dy = np.zeros(result.y.shape) if dy is None else np.where(live, np.asarray(dy, np.float64), 0.0)
    params = {name: np.zeros(array.shape) for name, array in tape.parameters.items()}
    dhx = [np.zeros(h.shape) for h in result.hy]
    for layer in reversed(range(len(tape.walks))):
        directions, x = tape.walks[layer], tape.inputs[layer]
        dx = np.zeros(x.shape)
        for direction, (steps, d_own) in enumerate(zip(directions, np.split(dy, len(directions), axis=2), strict=True)):
            suffix = ("", "_reverse")[direction]
            names = {kind: f"{kind}_l{layer}{suffix}" for kind in KINDS}
            p, d = ({kind: group[name] for kind, name in names.items()} for group in (tape.parameters, params))
            dh = np.zeros(dhx[layer][direction].shape)
            dh = dh if dhy is None else dh + np.asarray(dhy[layer][direction], np.float64)
            for step in reversed(steps):
                dx_step, dh = _step_backward(p, d, x[step["t"]], step, tape.live[step["t"]], d_own[step["t"]], dh)
                dx[step["t"]] += dx_step
            dhx[layer][direction] = dh
            if tape.dropped is not None:  # R was the parameter times its mask
                d["weight_hh"] *= tape.dropped[layer][direction]
        dy = dx if tape.masks is None or layer == 0 else dx * tape.masks[layer - 1]
    return Gradients(dx, dhx, None, params)


def _step_backward(p, d, x, step, live, dy, dh):
    """Apply the chain rule from (4) up to (1) where `live`; add to the arrays of d; return dx and the previous dh."""
    n, live = step["n"], live[:, None]
    dh_new = np.where(live, dh + dy, 0.0)
    ds = dh_new * step["kept"] * (1 - step["g"] ** 2)  # (4) (3)
    d["gain_h"][...] += (ds * n).sum(axis=0)
    d["b_h"][...] += ds.sum(axis=0)
    dn = ds * p["gain_h"]
    da = step["inverse"] * (dn - dn.mean(axis=1, keepdims=True) - n * (dn * n).mean(axis=1, keepdims=True))  # (2)
    d["weight_ih"][...] += da.T @ x  # (1)
    d["weight_hh"][...] += da.T @ step["before"]
    d_before = dh_new * (1 - step["kept"]) + da @ step["R"]
    d_before = np.where(step["begins"][:, None], 0.0, d_before)
    return da @ p["weight_ih"], np.where(live, d_before, dh)
