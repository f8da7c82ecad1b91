"""The built-in cells, as equations from which everything else is derived: the same numbers, other code.

Their papers are in `numbarnn.cells.lstm`, `gru` and `rnn`, written by hand there. Each sum has one bias here; GRU's n
has the recurrent one too, which is inside the product with r. LSTM and GRU have probabilities for three ways of
forgetting in training, 0 by default: zoneout of states (Krueger et al. 2017, arXiv:1606.01305), dropout of the
candidate (Semeniuta et al. 2016, arXiv:1603.05118), and DropConnect of R (Merity et al. 2018, arXiv:1708.02182).
"""

from numbarnn.cells.functions import drop_connect, dropout, relu, sigmoid, tanh, zoneout
from numbarnn.cells.tracing import cell


@cell
def lstm(x, h, c, p, zoneout_h=0.0, zoneout_c=0.0, dropout_g=0.0, drop_R=0.0):
    """Long short-term memory: `cell(lstm, zoneout_h=0.05, zoneout_c=0.5)` is one with zoneout.

    Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735, with a forget gate.

    Args:
        zoneout_h, zoneout_c: probability that h, and c, stay what they were.
        dropout_g: probability that g is dropped.
        drop_R: probability that an element of R is dropped.
    """
    R = drop_connect(p.R, drop_R)
    i = sigmoid(p.W.i @ x + R.i @ h + p.b.i)
    f = sigmoid(p.W.f @ x + R.f @ h + p.b.f)
    g = tanh(p.W.g @ x + R.g @ h + p.b.g)
    o = sigmoid(p.W.o @ x + R.o @ h + p.b.o)
    c_new = zoneout(f * c + i * dropout(g, dropout_g), c, zoneout_c)
    return zoneout(o * tanh(c_new), h, zoneout_h), c_new


@cell
def gru(x, h, p, zoneout_h=0.0, dropout_n=0.0, drop_R=0.0):
    """Gated recurrent unit, its reset gate applied after the product.

    Cho et al. 2014, arXiv:1406.1078, in cuDNN's form.

    Args:
        zoneout_h: probability that h stays what it was.
        dropout_n: probability that n is dropped.
        drop_R: probability that an element of R is dropped.
    """
    R = drop_connect(p.R, drop_R)
    r = sigmoid(p.W.r @ x + R.r @ h + p.b.r)
    z = sigmoid(p.W.z @ x + R.z @ h + p.b.z)
    n = tanh(p.W.n @ x + p.b.n + r * (R.n @ h + p.b.q))
    return zoneout((1 - z) * dropout(n, dropout_n) + z * h, h, zoneout_h)


@cell
def gru_reset_before(x, h, p):
    """Gated recurrent unit, its reset gate applied before the product: a second product.

    Cho et al. 2014, arXiv:1406.1078.
    """
    r = sigmoid(p.W.r @ x + p.R.r @ h + p.b.r)
    z = sigmoid(p.W.z @ x + p.R.z @ h + p.b.z)
    n = tanh(p.W.n @ x + p.R.n @ (r * h) + p.b.n)
    return (1 - z) * n + z * h


@cell
def rnn_tanh(x, h, p):
    """The vanilla RNN with tanh.

    Elman 1990, doi:10.1207/s15516709cog1402_1.
    """
    return tanh(p.W.h @ x + p.R.h @ h + p.b.h)


@cell
def rnn_relu(x, h, p):
    """The vanilla RNN with ReLU.

    Le et al. 2015, arXiv:1504.00941.
    """
    return relu(p.W.h @ x + p.R.h @ h + p.b.h)
