"""Cells with matrices of low rank, or of a smaller state, and numbers of which a layer has one, which are learned."""

from numbarnn.cells.functions import columns, initial, sigmoid, sized, tanh
from numbarnn.cells.tracing import cell


@cell
def low_rank_rnn(x, h, p, rank=2):
    """A random matrix R, of strength g, beside a structured one of low rank.

    Mastrogiuseppe and Ostojic 2018, arXiv:1711.09672.
    """
    return tanh(p.W.h @ x + p.scalar.g * (p.R.h @ h) + columns(p.m, rank) @ (p.n @ h) + p.b.h)


@cell
def fast_rnn(x, h, p):
    """FastRNN: a residual connection with two learned weights.

    Kusupati et al. 2018, arXiv:1901.02358, (2).
    """
    candidate = tanh(p.W.h @ x + p.R.h @ h + p.b.h)
    alpha, beta = initial(p.scalar.alpha, -3), initial(p.scalar.beta, 3)
    return sigmoid(alpha) * candidate + sigmoid(beta) * h


@cell
def low_rank_fast_grnn(x, h, p, rank=8):
    """FastGRNN as in the paper: W and R of low rank, both used by gate and candidate, and two learned numbers.

    Kusupati et al. 2018, arXiv:1901.02358, (3) and (4).
    """
    a = (columns(p.W1, rank) @ p.W2.T) @ x + (columns(p.R1, rank) @ p.R2.T) @ h
    z, candidate = sigmoid(a + p.b.z), tanh(a + p.b.h)
    return (sigmoid(p.scalar.zeta) * (1 - z) + sigmoid(p.scalar.nu)) * candidate + z * h


@cell
def structurally_constrained(x, h, s, p, context=40):
    """SCRN: a slow context s of its own size, whose rate alpha is learned.

    Mikolov et al. 2014, arXiv:1412.7753, (5) to (7).
    """
    s, alpha = sized(s, context), initial(p.scalar.alpha, 0.95)
    s_new = (1 - alpha) * (p.W.s @ x) + alpha * s
    return sigmoid(p.P @ s_new + p.W.h @ x + p.R.h @ h), s_new
