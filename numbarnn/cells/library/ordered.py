"""Cells whose units have an order."""

from numbarnn.cells.functions import cumax, sigmoid, tanh
from numbarnn.cells.tracing import cell


@cell
def on_lstm(x, h, c, p):
    """Ordered neurons: two master gates, which rise and fall over the units, say which of them keep what they have, and
    which take in something new.

    Shen et al. 2019, arXiv:1810.09536, (9) to (14), with one master gate per unit (a chunk of 1).
    """
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.b.i)
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.b.f)
    o = sigmoid(p.W.o @ x + p.R.o @ h + p.b.o)
    candidate = tanh(p.W.g @ x + p.R.g @ h + p.b.g)
    master_f = cumax(p.W.master_f @ x + p.R.master_f @ h + p.b.master_f)  # (9)
    master_i = 1 - cumax(p.W.master_i @ x + p.R.master_i @ h + p.b.master_i)  # (10)
    overlap = master_f * master_i  # (11)
    c_new = (f * overlap + master_f - overlap) * c + (i * overlap + master_i - overlap) * candidate  # (12) to (14)
    return o * tanh(c_new), c_new
