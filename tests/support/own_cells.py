"""Cells as papers write them, most not in the library: of functions that its other cells do without. Their loops are in
own_loops.py."""

from numbarnn import (  # isort: skip
    cell, exp, gelu, log_sigmoid, logsumexp, sigmoid, softmax, sin, stop_gradient, step, tanh,
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
OWN = {one.name: one for one in (softmax_lstm, library.lsnn, truncated_gru, waving, phased_lstm_half_open)}
