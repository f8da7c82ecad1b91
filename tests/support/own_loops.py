"""The cells of own_cells.py once more, as loops over time in PyTorch; see cell_loops.py."""

from functools import partial

import torch
from torch import sigmoid, tanh
from torch.nn.functional import gelu

from cell_loops import _distances, into, loop, maximum


@loop("h c", W="i f g", R="i f g", b="i f g", per_unit="sharpness")
def softmax_lstm(p, x, h, c, temperature=0.5):
    i = torch.softmax(into(p, "i", x, h) / temperature, dim=-1)
    c = sigmoid(into(p, "f", x, h)) * c + 3 * i * gelu(into(p, "g", x, h), approximate="tanh")
    return tanh(c - 0.5 * torch.logsumexp(p["sharpness"] * c, dim=-1, keepdim=True)), c


def spike(excess, slope):
    """1 where it is positive, with a slope that autograd is told."""
    _distances.append(float(excess.detach().abs().min()))
    value = (excess > 0).to(excess.dtype)
    told = slope.detach() * excess
    return value + told - told.detach()


@loop("z v a", W="v", R="v")
def lsnn(p, x, z, v, a, decay=0.9, slow=0.97, beta=0.7, dampening=0.3):
    reset = (z * (0.6 + beta * a)).detach()
    v = decay * v + x @ p["W.v"].T + z @ p["R.v"].T - reset
    a = slow * a + (1 - slow) * z
    excess = v - (0.6 + beta * a)
    return spike(excess, dampening * maximum(torch.zeros_like(excess), 1 - excess.abs())), v, a


@loop("h", W="r z n", R="r z n", b="r z n")
def truncated_gru(p, x, h):
    before = h.detach()
    r, z = sigmoid(into(p, "r", x, before)), sigmoid(into(p, "z", x, before))
    return ((1 - z) * tanh(into(p, "n", x, r * h)) + z * h,)


@loop("h t", W="a", R="a", b="a", per_unit="speed")
def waving(p, x, h, t):
    return tanh(into(p, "a", x, h) + torch.sin(p["speed"] * t)), t + 1


def phased_lstm(p, x, h, c, t, open_ratio=0.05, leak=0.001):
    phase = torch.remainder((t - p["shift"]) / p["log_period"].exp(), 1)
    for kink in (0, open_ratio / 2, open_ratio, 1):
        _distances.append(float((phase - kink).detach().abs().min()))
    rising, falling = 2 * phase / open_ratio, 2 - 2 * phase / open_ratio
    k = torch.where(phase < open_ratio / 2, rising, torch.where(phase < open_ratio, falling, leak * phase))
    candidate = sigmoid(into(p, "f", x, h)) * c + sigmoid(into(p, "i", x, h)) * tanh(into(p, "g", x, h))
    output = sigmoid(into(p, "o", x, h)) * tanh(candidate)
    return k * output + (1 - k) * h, k * candidate + (1 - k) * c, t + 1


@loop("h c", W="i f o g master_f master_i", R="i f o g master_f master_i", b="i f o g master_f master_i")
def on_lstm(p, x, h, c):
    i, f, o = (sigmoid(into(p, gate, x, h)) for gate in "ifo")
    master_f, master_i = (torch.softmax(into(p, f"master_{gate}", x, h), dim=-1).cumsum(dim=-1) for gate in "fi")
    master_i = 1 - master_i
    both = master_f * master_i
    keep, take = f * both + (master_f - both), i * both + (master_i - both)
    c = keep * c + take * tanh(into(p, "g", x, h))
    return o * tanh(c), c


PHASED = dict(W="i f o g", R="i f o g", b="i f o g", per_unit="log_period shift")
loop("h c t", **PHASED)(phased_lstm)
loop("h c t", **PHASED, name="phased_lstm_half_open")(partial(phased_lstm, open_ratio=0.5))
