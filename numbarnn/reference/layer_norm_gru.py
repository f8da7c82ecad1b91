"""A GRU with layer normalisation, dropped weights and zoneout, forward and backward: float64 NumPy, by hand.

It stands for the cells that are written as equations: it has what the cells of `cells.py` lack, sums over all units,
parameters per unit, weights that are dropped and random numbers in a step. Its loops are its own too.

    (1)  a = N(W x),  q = N(R h)               N: minus the mean, over the standard deviation, of all 3 H together
    (2)  r = σ(u_r * a_r + v_r * q_r + b_r)    reset gate; u: `gain_x`, v: `gain_h`
    (3)  z = σ(u_z * a_z + v_z * q_z + b_z)    update gate
    (4)  s = v_n * q_n + b_q
    (5)  n = tanh(u_n * a_n + b_n + r * s)     candidate
    (6)  g = (1 - z) * n + z * h
    (7)  h = k * g + (1 - k) * h               zoneout: k is 0 or 1; in inference the probability of 1

Layer normalisation: Ba et al. 2016, arXiv:1607.06450, on the products as haste has it; zoneout: Krueger et al. 2017,
arXiv:1606.01305. R is what the caller gives: with dropped weights the parameter times their mask.
"""

from dataclasses import dataclass

import numpy as np

from .cells import sigmoid
from .loops import Gradients, Result

EPS = 1e-5  # added to the variance
GATES = ("r", "z", "n")
VECTORS = ("gain_x_r", "gain_x_z", "gain_x_n", "gain_h_r", "gain_h_z", "gain_h_n", "b_r", "b_z", "b_n", "b_q")
KINDS = ("weight_ih", "weight_hh", *VECTORS)


@dataclass(frozen=True)
class Tape:
    """What `backward` needs: parameters, what each place (layer, direction) walked through, the masks and rates."""

    parameters: dict
    inputs: list
    walks: list
    masks: list | None
    dropped: list | None
    live: np.ndarray


def forward(x, parameters, h0=None, *, masks=None, dropped=None, kept=1.0, lengths=None, resets=None, padding_value=0):
    """Run a stack of layers over a sequence.

    x            (T, B, I)
    parameters   dict of arrays by a layer's names, weight_ih_l0, gain_x_r_l0 and so on, with _reverse
    h0           list with one (D, B, H_l) per layer; None: zeros
    masks        dropout between layers, as in `numbarnn.reference.forward`
    dropped      dropped[layer][direction] (3 H, H), what R is multiplied by; None: nothing is dropped
    kept         k of (7): kept[layer][direction] (T, B, H), or one number for all
    lengths, resets, padding_value   as in `numbarnn.reference.forward`

    Returns a `Result`; cy is None.
    """
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
    y = np.where(live[:, :, None], y, padding_value)
    return Result(y, hy, None, Tape(parameters, inputs, walks, masks, dropped, live))


def _begins(live, resets, direction):
    """(T, B): the steps of a direction before which the state counts as zero."""
    begins = np.zeros(live.shape, bool)
    if resets is not None and direction == 0:
        begins = np.asarray(resets) & live
    elif resets is not None:  # nothing crosses from time t + 1 to t where the sequence begins anew at t + 1
        begins[:-1] = np.asarray(resets)[1:] & live[1:]
    return begins


def _normed(a):
    """N(a) of (1), and one over its standard deviation."""
    inverse = 1 / np.sqrt(a.var(axis=1, keepdims=True) + EPS)
    return (a - a.mean(axis=1, keepdims=True)) * inverse, inverse


def _normed_backward(d, normed, inverse):
    """The gradient of a from that of N(a)."""
    return inverse * (d - d.mean(axis=1, keepdims=True) - normed * (d * normed).mean(axis=1, keepdims=True))


def _walk(p, R, x, h, kept, live, begins, direction):
    """One layer and direction: y (T, B, H), zero in padding; the final h; and its steps in the order of the walk."""
    y, steps = np.zeros((*live.shape, R.shape[1])), []
    for t in range(len(x))[:: -1 if direction else 1]:
        before = np.where(begins[t][:, None], 0.0, h)
        a, a_inverse = _normed(x[t] @ p["weight_ih"].T)  # (1)
        q, q_inverse = _normed(before @ R.T)
        (a_r, a_z, a_n), (q_r, q_z, q_n) = np.split(a, 3, axis=1), np.split(q, 3, axis=1)
        r = sigmoid(p["gain_x_r"] * a_r + p["gain_h_r"] * q_r + p["b_r"])  # (2)
        z = sigmoid(p["gain_x_z"] * a_z + p["gain_h_z"] * q_z + p["b_z"])  # (3)
        s = p["gain_h_n"] * q_n + p["b_q"]  # (4)
        n = np.tanh(p["gain_x_n"] * a_n + p["b_n"] + r * s)  # (5)
        g = (1 - z) * n + z * before  # (6)
        h = np.where(live[t][:, None], kept[t] * g + (1 - kept[t]) * before, h)  # (7)
        y[t] = np.where(live[t][:, None], h, 0.0)
        steps.append(
            {"t": t, "before": before, "begins": begins[t], "kept": kept[t], "R": R, "r": r, "z": z, "s": s, "n": n}
            | {"a": a, "q": q, "a_inverse": a_inverse, "q_inverse": q_inverse}
        )
    return y, h, steps


def backward(result, dy=None, dhy=None, dcy=None):
    """Derivatives of the loss, given those of y (T, B, D*H_last), and of hy, one (D, B, H_l) per layer; None: zero.

    Returns `Gradients`; dcx is None.
    """
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
    """The chain rule from (7) up to (1), for the sequences that live; adds to the arrays of d. Returns dx and the
    gradient of the state before the step."""
    r, z, s, n, kept, before = (step[name] for name in ("r", "z", "s", "n", "kept", "before"))
    live, H = live[:, None], n.shape[1]
    dh_new = np.where(live, dh + dy, 0.0)
    dg = dh_new * kept  # (7)
    d_before = dh_new * (1 - kept) + dg * z  # (7) (6)
    dz = dg * (before - n) * z * (1 - z)  # (6) through (3)
    dn = dg * (1 - z) * (1 - n**2)  # (6) through (5)
    ds, dr = dn * r, dn * s * r * (1 - r)  # (5), and through (2)
    d_gates = {"r": (dr, dr), "z": (dz, dz), "n": (dn, ds)}  # what multiplies the gains of x and of h
    d_a, d_q = np.empty((len(x), 3 * H)), np.empty((len(x), 3 * H))
    for number, (gate, (d_x, d_h)) in enumerate(d_gates.items()):
        own = slice(number * H, (number + 1) * H)
        d[f"gain_x_{gate}"][...] += (d_x * step["a"][:, own]).sum(axis=0)
        d[f"gain_h_{gate}"][...] += (d_h * step["q"][:, own]).sum(axis=0)
        d[f"b_{gate}"][...] += d_x.sum(axis=0)
        d_a[:, own], d_q[:, own] = d_x * p[f"gain_x_{gate}"], d_h * p[f"gain_h_{gate}"]
    d["b_q"][...] += ds.sum(axis=0)
    d_a = _normed_backward(d_a, step["a"], step["a_inverse"])  # (1)
    d_q = _normed_backward(d_q, step["q"], step["q_inverse"])
    d["weight_ih"][...] += d_a.T @ x
    d["weight_hh"][...] += d_q.T @ before
    d_before = np.where(step["begins"][:, None], 0.0, d_before + d_q @ step["R"])
    return d_a @ p["weight_ih"], np.where(live, d_before, dh)
