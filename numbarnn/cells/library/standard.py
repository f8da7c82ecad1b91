"""The built-in cells, as equations from which everything else is derived: the same numbers, other code.

Their papers are in `numbarnn.cells.lstm`, `gru` and `rnn`, written by hand there. Each sum has one bias here; GRU's n
has the recurrent one too, which is inside the product with r.
"""

from numbarnn.cells.functions import relu, sigmoid, tanh
from numbarnn.cells.tracing import cell


@cell
def lstm(x, h, c, p):
    """Long short-term memory."""
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.b.i)
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.b.f)
    g = tanh(p.W.g @ x + p.R.g @ h + p.b.g)
    o = sigmoid(p.W.o @ x + p.R.o @ h + p.b.o)
    c_new = f * c + i * g
    return o * tanh(c_new), c_new


@cell
def gru(x, h, p):
    """Gated recurrent unit, its reset gate applied after the product."""
    r = sigmoid(p.W.r @ x + p.R.r @ h + p.b.r)
    z = sigmoid(p.W.z @ x + p.R.z @ h + p.b.z)
    n = tanh(p.W.n @ x + p.b.n + r * (p.R.n @ h + p.b.q))
    return (1 - z) * n + z * h


@cell
def gru_reset_before(x, h, p):
    """Gated recurrent unit, its reset gate applied before the product: a second product."""
    r = sigmoid(p.W.r @ x + p.R.r @ h + p.b.r)
    z = sigmoid(p.W.z @ x + p.R.z @ h + p.b.z)
    n = tanh(p.W.n @ x + p.R.n @ (r * h) + p.b.n)
    return (1 - z) * n + z * h


@cell
def rnn_tanh(x, h, p):
    """The vanilla RNN with tanh."""
    return tanh(p.W.h @ x + p.R.h @ h + p.b.h)


@cell
def rnn_relu(x, h, p):
    """The vanilla RNN with ReLU."""
    return relu(p.W.h @ x + p.R.h @ h + p.b.h)
