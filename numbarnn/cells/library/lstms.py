"""Variants of the LSTM: peepholes, other functions, coupled gates, projection, one product more, exponential gates."""

from dataclasses import replace
from functools import cache

from numbarnn.cells import functions
from numbarnn.cells.functions import exp, maximum, sigmoid, softplus, tanh
from numbarnn.cells.tracing import cell


@cell
def peephole_lstm(x, h, c, p):
    """LSTM whose gates see c: i and f the one before the step, o the new one.

    Gers and Schmidhuber 2000, doi:10.1109/IJCNN.2000.861302, in the form of Graves 2013, arXiv:1308.0850, (7) to (11).
    """
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.peep_i * c + p.b.i)  # (7)
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.peep_f * c + p.b.f)  # (8)
    c_new = f * c + i * tanh(p.W.g @ x + p.R.g @ h + p.b.g)  # (9)
    o = sigmoid(p.W.o @ x + p.R.o @ h + p.peep_o * c_new + p.b.o)  # (10)
    return o * tanh(c_new), c_new  # (11)


def lstm_with(gate=sigmoid, candidate=tanh, output=tanh):
    """LSTM (see `numbarnn.cells.lstm`) with other functions, as those of ONNX' attribute `activations`; the same
    object for the same functions.

    Args:
        gate: of i, f and o: a function of one traced value, such as those of `numbarnn.cells.functions`.
        candidate: of g.
        output: of c, where h is made of it.
    """
    return _lstm_with(gate, candidate, output)


@cache
def _lstm_with(gate, candidate, output):
    @cell(name=f"lstm_with_{gate.__name__}_{candidate.__name__}_{output.__name__}")
    def lstm(x, h, c, p):
        i = gate(p.W.i @ x + p.R.i @ h + p.b.i)
        f = gate(p.W.f @ x + p.R.f @ h + p.b.f)
        g = candidate(p.W.g @ x + p.R.g @ h + p.b.g)
        o = gate(p.W.o @ x + p.R.o @ h + p.b.o)
        c_new = f * c + i * g
        return o * output(c_new), c_new

    return replace(lstm, origin=(lstm_with, (gate, candidate, output)))


@cell
def coupled_lstm(x, h, c, p):
    """LSTM that forgets as much as it takes in, f = 1 - i (ONNX: input_forget=1).

    Greff et al. 2017, arXiv:1503.04069, there "CIFG" with peepholes.
    """
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.b.i)
    g = tanh(p.W.g @ x + p.R.g @ h + p.b.g)
    o = sigmoid(p.W.o @ x + p.R.o @ h + p.b.o)
    c_new = (1 - i) * c + i * g
    return o * tanh(c_new), c_new


@cell
def projected_lstm(x, h, c, p):
    """LSTM whose h is a product of its output, and may be narrower than c: `RNN(projected_lstm, ..., proj_size=P)`.

    Sak et al. 2014, arXiv:1402.1128, without peepholes.
    """
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.b.i)
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.b.f)
    g = tanh(p.W.g @ x + p.R.g @ h + p.b.g)
    o = sigmoid(p.W.o @ x + p.R.o @ h + p.b.o)
    c_new = f * c + i * g
    return p.P.h @ (o * tanh(c_new)), c_new


@cell
def multiplicative_lstm(x, h, c, p):
    """LSTM whose gates see, in place of h, a vector m in which x has chosen among the transitions of h.

    Krause et al. 2016, arXiv:1609.07959. Its authors also tried tanh(o c) as output and g without tanh.
    """
    m = (p.W.m @ x) * (p.R.m @ h)
    i = sigmoid(p.W.i @ x + p.R.i @ m + p.b.i)
    f = sigmoid(p.W.f @ x + p.R.f @ m + p.b.f)
    g = tanh(p.W.g @ x + p.R.g @ m + p.b.g)
    o = sigmoid(p.W.o @ x + p.R.o @ m + p.b.o)
    c_new = f * c + i * g
    return o * tanh(c_new), c_new


@cell
def janet(x, h, p, beta=1.0):
    """LSTM with nothing but a forget gate, which lets in more than it keeps: "just another network".

    Van der Westhuizen and Lasenby 2018, arXiv:1804.04849.

    Args:
        beta: how much later new input is held back than old state is forgotten.
    """
    s = p.W.f @ x + p.R.f @ h + p.b.f
    c = tanh(p.W.c @ x + p.R.c @ h + p.b.c)
    return sigmoid(s) * h + (1 - sigmoid(s - beta)) * c


@cell
def slstm(x, h, c, n, m, p, heads=1):
    """LSTM with exponential gates, n to normalise c, and m to keep the exponents small: the sLSTM of xLSTM.

    Beck et al. 2024, arXiv:2405.04517, with f = σ, and gates scaled by e^-m. n is positive after a step.

    Args:
        heads: groups of units that do not see each other's h; `cell(slstm, heads=4)` is the paper's.
    """
    R = functions.heads(p.R, heads)
    z = tanh(p.W.z @ x + R.z @ h + p.b.z)
    o = sigmoid(p.W.o @ x + R.o @ h + p.b.o)
    log_i = p.W.i @ x + R.i @ h + p.b.i
    log_f = -softplus(-(p.W.f @ x + R.f @ h + p.b.f))  # log σ
    m_new = maximum(log_f + m, log_i)
    i = exp(log_i - m_new)
    f = exp(log_f + m - m_new)
    c_new = f * c + i * z
    n_new = f * n + i
    return o * c_new / n_new, c_new, n_new, m_new
