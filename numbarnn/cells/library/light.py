"""Light recurrences: no product with the state, only weights per unit or none, so that units do not see each other.

Where a paper adds x itself (a highway), a product W x stands here: input and state need not have one size.
"""

from numbarnn.cells.functions import relu, sigmoid, tanh
from numbarnn.cells.tracing import cell


@cell
def ind_rnn(x, h, p):
    """IndRNN, with one recurrent weight per unit.

    Li et al. 2018, arXiv:1803.04831.
    """
    return relu(p.W.h @ x + p.u * h + p.b.h)


@cell
def sru(x, h, c, p):
    """Simple recurrent unit: gates see c through one weight per unit, and the output has a highway.

    Lei et al. 2018, arXiv:1709.02755.
    """
    f = sigmoid(p.W.f @ x + p.v.f * c + p.b.f)
    r = sigmoid(p.W.r @ x + p.v.r * c + p.b.r)
    c_new = f * c + (1 - f) * (p.W.x @ x)
    return r * c_new + (1 - r) * (p.W.y @ x), c_new


@cell
def qrnn(x, h, c, p):
    """Quasi-recurrent network with fo-pooling, whose convolution is one step wide.

    Bradbury et al. 2017, arXiv:1611.01576.
    """
    z = tanh(p.W.z @ x + p.b.z)
    f = sigmoid(p.W.f @ x + p.b.f)
    o = sigmoid(p.W.o @ x + p.b.o)
    c_new = f * c + (1 - f) * z
    return o * c_new, c_new


@cell
def min_gru(x, h, p):
    """GRU whose gate and candidate see x alone: minGRU.

    Feng et al. 2024, arXiv:2410.01201.
    """
    z = sigmoid(p.W.z @ x + p.b.z)
    return (1 - z) * h + z * (p.W.h @ x + p.b.h)


@cell
def min_lstm(x, h, p):
    """LSTM whose gates see x alone and add up to 1: minLSTM.

    Feng et al. 2024, arXiv:2410.01201.
    """
    f = sigmoid(p.W.f @ x + p.b.f)
    i = sigmoid(p.W.i @ x + p.b.i)
    return f / (f + i) * h + i / (f + i) * (p.W.h @ x + p.b.h)
