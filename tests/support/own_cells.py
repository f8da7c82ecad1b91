"""Cells as papers write them that are not in the library: of functions that its cells do without. Their loops are in
own_loops.py."""

from numbarnn import (  # isort: skip
    abs, cell, custom_derivative, exp, gelu, log_sigmoid, logsumexp, maximum, sigmoid, softmax, sin, stop_gradient,
    step, tanh, where,
)  # fmt: skip

from numbarnn.cells import library


@cell
def softmax_lstm(x, h, c, p, temperature=0.5):
    """LSTM whose input gates share what they let in, and whose output sees c relative to that of the other units."""
    i = softmax((p.W.i @ x + p.R.i @ h + p.b.i) / temperature)
    f = exp(log_sigmoid(p.W.f @ x + p.R.f @ h + p.b.f))
    g = gelu(p.W.g @ x + p.R.g @ h + p.b.g, approximate="tanh")
    c_new = f * c + 3 * i * g
    return tanh(c_new - 0.5 * logsumexp(p.sharpness * c_new)), c_new


@cell
def adaptive_spiking(x, z, v, a, p, decay=0.9, slow=0.97, beta=0.7, dampening=0.3):
    """Neurons that fire where v exceeds a threshold, which each spike raises for a while: LSNN.

    Bellec et al. 2018, arXiv:1803.09574, (1) to (4), with its pseudo-derivative; no gradient flows through the reset.
    """
    threshold = 0.6 + beta * a
    v_new = decay * v + p.W.v @ x + p.R.v @ z - stop_gradient(z * threshold)
    a_new = slow * a + (1 - slow) * z
    excess = v_new - (0.6 + beta * a_new)
    z_new = custom_derivative(where(excess > 0, 1, 0), excess, dampening * maximum(0, 1 - abs(excess)))
    return z_new, v_new, a_new


@cell
def truncated_gru(x, h, p):
    """GRU whose gates do not pass gradients to the state before: stop_gradient in front of a product."""
    before = stop_gradient(h)
    r = sigmoid(p.W.r @ x + p.R.r @ before + p.b.r)
    z = sigmoid(p.W.z @ x + p.R.z @ before + p.b.z)
    n = tanh(p.W.n @ x + p.R.n @ (r * h) + p.b.n)
    return (1 - z) * n + z * h


@cell
def waving(x, h, p, t=step):
    """A rhythm of each unit's own, known to all by the number of the step."""
    return tanh(p.W.a @ x + p.R.a @ h + p.b.a + sin(p.speed * t))


phased_lstm_half_open = cell(library.phased_lstm, open_ratio=0.5, name="phased_lstm_half_open")
OWN = {one.name: one for one in (softmax_lstm, adaptive_spiking, truncated_gru, waving, phased_lstm_half_open)}
