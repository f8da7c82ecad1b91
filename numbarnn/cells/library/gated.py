"""Gated cells with fewer gates than the GRU, or other ones."""

from numbarnn.cells.functions import relu, sigmoid, tanh
from numbarnn.cells.tracing import cell


@cell
def li_gru(x, h, p):
    """Light GRU: no reset gate, and ReLU (of which the paper normalises W x over the batch; here a bias stands there).

    Ravanelli et al. 2018, arXiv:1803.10225.
    """
    z = sigmoid(p.W.z @ x + p.R.z @ h + p.b.z)
    candidate = relu(p.W.h @ x + p.R.h @ h + p.b.h)
    return z * h + (1 - z) * candidate


@cell
def minimal_gated_unit(x, h, p):
    """GRU with one gate for reset and update.

    Zhou et al. 2016, arXiv:1603.09420.
    """
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.b.f)
    candidate = tanh(p.W.h @ x + p.R.h @ (f * h) + p.b.h)
    return (1 - f) * h + f * candidate


@cell
def ugrnn(x, h, p):
    """Update-gate RNN: between an identity and a vanilla RNN.

    Collins, Sohl-Dickstein and Sussillo 2017, arXiv:1611.09913.
    """
    c = tanh(p.W.c @ x + p.R.c @ h + p.b.c)
    g = sigmoid(p.W.g @ x + p.R.g @ h + p.b.g)
    return g * h + (1 - g) * c


@cell
def fast_grnn(x, h, p):
    """FastGRNN: gate and candidate share their matrices.

    Kusupati et al. 2018, arXiv:1901.02358, with full matrices, and ζ and ν per unit (there one number each).
    """
    a = p.W.a @ x + p.R.a @ h
    z = sigmoid(a + p.b.z)
    candidate = tanh(a + p.b.h)
    return (sigmoid(p.zeta) * (1 - z) + sigmoid(p.nu)) * candidate + z * h


@cell
def additive_network(x, h, c, p):
    """Recurrent additive network: what enters c is a product of x alone, so that c is a weighted sum of inputs.

    Lee, Levy and Zettlemoyer 2017, arXiv:1705.07393.
    """
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.b.i)
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.b.f)
    c_new = i * (p.W.c @ x) + f * c
    return tanh(c_new), c_new


@cell
def highway_lstm(x, h, c, p):
    """LSTM past which x may go; x has as many numbers as h.

    Srivastava et al. 2015, arXiv:1505.00387, (3), around an LSTM.
    """
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.b.i)
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.b.f)
    o = sigmoid(p.W.o @ x + p.R.o @ h + p.b.o)
    t = sigmoid(p.W.t @ x + p.R.t @ h + p.b.t)
    c_new = f * c + i * tanh(p.W.g @ x + p.R.g @ h + p.b.g)
    return t * o * tanh(c_new) + (1 - t) * x, c_new


@cell
def intersection(x, y, h, p):
    """+RNN: the output y goes up the layers, from x, which has as many numbers, and h along the time.

    Collins et al. 2017, arXiv:1611.09913, (12) to (17).
    """
    y_in = tanh(p.W.y @ x + p.R.y @ h + p.b.y)
    h_in = tanh(p.W.h @ x + p.R.h @ h + p.b.h)
    g_y = sigmoid(p.W.gy @ x + p.R.gy @ h + p.b.gy)
    g_h = sigmoid(p.W.gh @ x + p.R.gh @ h + p.b.gh)
    return g_y * x + (1 - g_y) * y_in, g_h * h + (1 - g_h) * h_in
