"""Strongly typed cells: no product with the state, which sees x of this step and, by V, of the step before."""

from numbarnn.cells.functions import sigmoid, tanh
from numbarnn.cells.tracing import cell


@cell
def tgru(x, h, x_before, p):
    """T-GRU; x of the step before is a state, of I units.

    Balduzzi and Ghifary 2016, arXiv:1602.02218, section 3.3.
    """
    z = p.W.z @ x + p.V.z @ x_before + p.b.z
    f = sigmoid(p.W.f @ x + p.V.f @ x_before + p.b.f)
    o = tanh(p.W.o @ x + p.V.o @ x_before + p.b.o)
    return f * h + z * o, x


@cell
def tlstm(x, h, c, x_before, p):
    """T-LSTM, whose output h is no part of what recurs; x of the step before is a state, of I units.

    Balduzzi and Ghifary 2016, arXiv:1602.02218, section 3.3.
    """
    z = p.W.z @ x + p.V.z @ x_before + p.b.z
    f = sigmoid(p.W.f @ x + p.V.f @ x_before + p.b.f)
    o = tanh(p.W.o @ x + p.V.o @ x_before + p.b.o)
    c_new = f * c + (1 - f) * z
    return c_new * o, c_new, x
