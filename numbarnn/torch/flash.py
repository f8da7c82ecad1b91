"""FlashRNN's function `flashrnn`, with its argument names and shapes (Pöppel et al. 2024, arXiv:2412.07752).

The caller computes the input product Wx. Letters: B batch, T steps, G gates, N heads, D units per head, S states, h
first.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from numbarnn.cells import tracing
from numbarnn.cells.functions import exp, heads, maximum, sigmoid, softplus, tanh, where
from numbarnn.torch.calls import call
from numbarnn.torch.core import CallSettings
from numbarnn.torch.networks import Network


def _slstm(x, h, c, n, m, p, count=1):
    """sLSTM (Beck et al. 2024, arXiv:2405.04517) in FlashRNN's form: if n is 0, m begins with i; n is at least 1."""
    R = heads(p.R, count)
    log_i = p.W.i @ x + R.i @ h + p.b.i
    log_f = m - softplus(-(p.W.f @ x + R.f @ h + p.b.f))  # log σ(f) + m
    z = tanh(p.W.z @ x + R.z @ h + p.b.z)
    o = sigmoid(p.W.o @ x + R.o @ h + p.b.o)
    m_new = where(n == 0.0, log_i, maximum(log_i, log_f))
    i, f = exp(log_i - m_new), exp(log_f - m_new)
    c_new = f * c + i * z
    n_new = maximum(f * n + i, 1.0)
    return o * c_new / n_new, c_new, n_new, m_new


def _lstm(x, h, c, p, count=1):
    """Compute an LSTM with one bias per gate."""
    R = heads(p.R, count)
    i = sigmoid(p.W.i @ x + R.i @ h + p.b.i)
    f = sigmoid(p.W.f @ x + R.f @ h + p.b.f)
    z = tanh(p.W.z @ x + R.z @ h + p.b.z)
    o = sigmoid(p.W.o @ x + R.o @ h + p.b.o)
    c_new = f * c + i * z
    return o * tanh(c_new), c_new


def _gru(x, h, p, count=1):
    """GRU; g is the recurrent part of the candidate and has a separate bias."""
    R = heads(p.R, count)
    g = R.g @ h + p.b_g
    r = sigmoid(p.W.r @ x + R.r @ h + p.b.r)
    z = sigmoid(p.W.z @ x + R.z @ h + p.b.z)
    n = tanh(p.W.n @ x + p.b.n + r * g)
    return z * h + (1 - z) * n


def _elman(x, h, p, count=1):
    """Compute a vanilla RNN."""
    return tanh(p.W.g @ x + heads(p.R, count).g @ h + p.b.g)


FUNCTIONS = {"slstm": _slstm, "lstm": _lstm, "gru": _gru, "elman": _elman}
GATES = {"slstm": (4, 4, 4), "lstm": (4, 4, 4), "gru": (3, 3, 4), "elman": (1, 1, 1)}  # of Wx, R and b
STATES = {"slstm": 4, "lstm": 2, "gru": 1, "elman": 1}


def _network(function, heads, units):
    """Return the `Network` of a function with N heads of D units."""
    return _new_network(function, heads, units)


# torch.compile must not trace it. `torch.compiler.assume_constant_result` does this too, but would load TorchDynamo.
_network._dynamo_marked_constant = True


@cache
def _new_network(function, heads, units):
    cell, hidden = tracing.cell(FUNCTIONS[function], count=heads, name=f"flash_{function}_{heads}"), heads * units
    return Network(cell, GATES[function][0] * hidden, hidden, input_mode="given")


def flashrnn(
    Wx: Tensor, R: Tensor, b: Tensor, states: Tensor | None = None, function: str = "lstm", config: None = None,
    backend: Any = None, dtype: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute all states of every step, and the last ones.

    Args:
        Wx: (B, T, G, N, D), W x of each gate. Gates are i, f, z, o of "lstm" and "slstm"; r, z, n of "gru"; one of
            "elman".
        R: (G, N, D, D), the recurrent matrix of each gate and head, one row per unit. Gates of "gru" are g, r, z, where
            g is the recurrent part of the candidate n.
        b: (G, N, D), one bias per gate. Gates of "gru" are g, r, z, n.
        states: (S, B, 1, N, D), the initial states: h of "gru" and "elman", h and c of "lstm", h, c, n and m of
            "slstm". None is zero.
        function: "slstm", "lstm", "gru" or "elman".
        config: must be None.
        backend, dtype: FlashRNN's arguments, ignored. Results have Wx' dtype and device.

    Returns:
        states: the states of every step, (S, B, T, N, D); h is states[0].
        last: the states after the last step, (S, B, 1, N, D).

    Raises:
        ValueError: an unknown function, a config, or shapes that do not go together.
    """
    sizes = _sizes(Wx, R, b, states, function, config)
    (batch, steps, heads, units), hidden = sizes, sizes[2] * sizes[3]
    network = _network(function, heads, units)
    parameters = {"weight_hh_l0": R.reshape(-1, units)} | _biases(function, b)
    weights = [parameters[part.name].reshape(part.shape) for part in network.parts]
    h, *private = (None,) if states is None else states.reshape(len(states), 1, batch, hidden)
    x = Wx.reshape(batch, steps, -1).transpose(0, 1).contiguous()  # both passes read this copy
    y, last, *every = call(network, CallSettings(output_states=network.private > 0), x, h, private or None, weights)
    every = torch.stack([one.transpose(0, 1) for one in (y, *(state for part in every for state in part))])
    last = torch.stack(last).reshape(-1, batch, 1, heads, units)
    return every.reshape(-1, batch, steps, heads, units), last


def _biases(function, b):
    """Return name -> bias for each bias parameter. In a GRU only g has a recurrent bias."""
    if function == "gru":
        return {"bias_hh_l0": b[0], "bias_ih_l0": b[1:]}
    return {"bias_ih_l0": b}


def _sizes(Wx, R, b, states, function, config):
    """Return (B, T, N, D); raise ValueError unless all shapes go together."""
    if function not in FUNCTIONS:
        raise ValueError(f"function must be one of {', '.join(map(repr, FUNCTIONS))}, not {function!r}")
    if config is not None:
        raise ValueError(f"config must be None, got {config!r}: FlashRNN's kernel options do not exist here")
    if Wx.dim() != 5:
        raise ValueError(f"Wx must have shape (B, T, G, N, D), but has {tuple(Wx.shape)}")
    (batch, steps, gates, count, units), (of_x, of_R, of_b) = Wx.shape, GATES[function]
    of_states = STATES[function], batch, 1, count, units
    expected = {"R": (of_R, count, units, units), "b": (of_b, count, units), "states": of_states}
    if gates != of_x:
        raise ValueError(f"Wx must have the {of_x} gates of {function!r}, but has shape {tuple(Wx.shape)}")
    for name, tensor in (("R", R), ("b", b), ("states", states)):
        if tensor is not None and tensor.shape != expected[name]:
            raise ValueError(f"{name} must have shape {expected[name]}, but has {tuple(tensor.shape)}")
    return batch, steps, count, units
