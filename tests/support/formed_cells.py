"""Cells whose matrices are expressions, which have one number per layer, or x itself; H is 5."""

import numpy as np

import numbarnn as nr
from numbarnn.cells import library


@nr.cell
def learned_diffusion(x, h, p, epsilon=0.3):
    """The same with a diffusion that is learnt: one number per layer in a matrix."""
    A = p.R.a - p.R.a.T - p.scalar.gamma * nr.eye()
    z = nr.sigmoid(A @ h + p.V.z @ x + p.b.z)
    return h + epsilon * z * nr.tanh(A @ h + p.V.h @ x + p.b.h)


@nr.cell
def janet(x, h, c, p):
    """Van der Westhuizen and Lasenby 2018, arXiv:1804.04849, with beta learnt."""
    s = p.W.f @ x + p.R.f @ h + p.b.f
    g = nr.tanh(p.W.c @ x + p.R.c @ h + p.b.c)
    c_new = nr.sigmoid(s) * c + (1 - nr.sigmoid(s - nr.initial(p.scalar.beta, 1))) * g
    return c_new, c_new


@nr.cell
def small_context(x, h, s, c, p, context=2):
    """SCRN's context with a bias, a rate per unit and a matrix of its own; beside it a state of H units."""
    s = nr.sized(s, context)
    s_new = (1 - p.alpha) * nr.tanh(p.B @ x + p.b.s) + p.alpha * s + p.C @ s
    return nr.sigmoid(p.P @ s_new + p.A @ x + p.R @ h + p.b.h) + 0.1 * c, s_new, c * (p.P @ s)


@nr.cell
def large_memory(x, h, m, c, p, size=15):
    """A memory of 3 H units that h is read from, and sees; beside it a state of H units."""
    m = nr.sized(m, size)
    m_new = p.keep * m + (1 - p.keep) * nr.tanh(p.B @ x + p.C @ m + p.D @ h + p.b.m)
    return nr.sigmoid(p.P @ m_new + p.W @ x + p.R @ h + p.b.h) + p.u * c, m_new, c * (p.Q @ m)


@nr.cell
def traced_activity(x, h, s, p, size=7):
    """A slow trace of what h is, expanded to more units, with a rate of the layer: no step multiplies it."""
    s = nr.sized(s, size)
    h_new = nr.tanh(p.W.h @ x + (p.R.h - p.R.h.T) @ h + p.b.h)
    rate = nr.sigmoid(p.scalar.rate)
    return h_new, rate * s + (1 - rate) * nr.tanh(p.E @ h + p.F @ x + p.b.s)


@nr.cell
def projected_beside_memory(x, h, c, m, p, size=9):
    """An LSTM with a projection, and a state of more units than c that sees it."""
    m = nr.sized(m, size)
    i, f, g, o = (getattr(p.W, k) @ x + getattr(p.R, k) @ h + getattr(p.b, k) for k in "ifgo")
    c_new = nr.sigmoid(f) * c + nr.sigmoid(i) * nr.tanh(g)
    return p.P.h @ (nr.sigmoid(o) * nr.tanh(c_new)), c_new, nr.tanh(p.V @ x + p.U @ h) + 0.5 * m


RECURRENT, WITHOUT = 2, 1  # of Sak et al.'s projection: rows that recur, and rows that do not
OF_RECURRENT = np.repeat([[1.0] * RECURRENT + [0.0] * WITHOUT], 5, axis=0)  # (H, P)


@nr.cell
def sak_lstm(x, h, c, p, seen=OF_RECURRENT):
    """Sak et al. 2014, arXiv:1402.1128, eqs. (7) to (13): h is the recurrent projection beside the other, which no gate
    sees."""
    i = nr.sigmoid(p.W.i @ x + (seen * p.R.i) @ h + p.peep.i * c + p.b.i)
    f = nr.sigmoid(p.W.f @ x + (seen * p.R.f) @ h + p.peep.f * c + p.b.f)
    c_new = f * c + i * nr.tanh(p.W.c @ x + (seen * p.R.c) @ h + p.b.c)
    o = nr.sigmoid(p.W.o @ x + (seen * p.R.o) @ h + p.peep.o * c_new + p.b.o)
    return p.P.h @ (o * nr.tanh(c_new)), c_new


# ----------------------------------------------------------------------------------------------- every form by itself
OF_PROJECTION = np.linspace(0.5, 2, 15).reshape(3, 5)
MASK = np.tril(np.arange(25.0).reshape(5, 5) / 10, 1)


@nr.cell
def sums_and_scalings(x, h, c, p):
    """Differences, quotients, negation; the transpose of what is formed; one matrix for x's sum and for h."""
    W = -(p.W.a + 2 * p.W.b) / p.scalar.s
    R = (p.R.a - 0.5 * p.R.b.T * p.scalar.t).T
    return nr.tanh(W @ x + R @ h), nr.sigmoid(p.W.a @ x + R @ c) * p.u


@nr.cell
def products_and_masks(x, h, c, p):
    """Products of squares and of three, element by element with another parameter and with a constant; the same matrix
    with three vectors, one of them made within the step."""
    R = p.R.a @ nr.columns(p.D, 3) @ p.E + p.R.b * p.R.c
    v = nr.tanh(p.W.a @ x + R @ h + MASK @ c)
    return v * (p.R.a @ c), nr.tanh((MASK * p.R.d) @ h + p.R.a @ v + p.R.a @ h + p.scalar.b)


@nr.cell
def of_input(x, h, p):
    """x itself in sums over units, in a product, with a bias that is one number, and times the identity."""
    a = nr.layer_norm(x + h) + nr.eye() @ x
    return nr.tanh(p.R.a @ (a * x) + x + p.scalar.b + (p.W.a - nr.eye()) @ x) + 0.1 * (nr.eye() @ h)


@nr.cell
def low_rank_projection(x, h, c, p):
    """An LSTM whose projection is of low rank, with a constant within: the matrix that makes h is an expression."""
    i, f, g, o = (getattr(p.W, k) @ x + getattr(p.R, k) @ h + getattr(p.b, k) for k in "ifgo")
    c_new = nr.sigmoid(f) * c + nr.sigmoid(i) * nr.tanh(g)
    return (nr.columns(p.A, 2) @ p.B * OF_PROJECTION) @ (nr.sigmoid(o) * nr.tanh(c_new)), c_new


PERIODS, RATES = np.array([1, 1, 2, 2, 4]), 1 / np.geomspace(1, 20, 5)  # of each unit


@nr.cell
def leaky(x, h, p):
    """Units with time constants, which are not learned. Of Jaeger 2002, and each of its own."""
    return (1 - RATES) * h + RATES * nr.tanh(p.W.a @ x + p.R.a @ h + p.b.a)


@nr.cell
def clockwork(x, h, p, t=nr.step):
    """Units that change every so many steps, each its own. Koutník et al. 2014, arXiv:1402.3511, with all of R."""
    return nr.where(t % PERIODS < 1, nr.tanh(p.W.a @ x + p.R.a @ h + p.b.a), h)


@nr.cell
def running(x, h, c, p):
    """Sums up to each unit of two values, and of x."""
    a = p.W.a @ x + p.R.a @ h
    c_new = 0.5 * c + nr.cumsum(nr.tanh(a)) / 4 + nr.cumsum(p.u * c) / 8
    return nr.tanh(c_new + RATES), c_new


#: Name -> (cell, what I is: "any", "H" or "more than H").
CELLS = {
    "antisymmetric": (nr.cell(library.antisymmetric, epsilon=0.3, gamma=0.1), "any"),
    "gated_antisymmetric": (nr.cell(library.gated_antisymmetric, epsilon=0.3, gamma=0.1), "any"),
    "learned_diffusion": (learned_diffusion, "any"),
    "janet": (janet, "any"),
    "fast_rnn": (library.fast_rnn, "any"),
    "low_rank_fast_grnn": (nr.cell(library.low_rank_fast_grnn, rank=2), "any"),
    "structurally_constrained": (nr.cell(library.structurally_constrained, context=2), "any"),
    "small_context": (small_context, "any"),
    "low_rank_rnn": (library.low_rank_rnn, "any"),
    "highway_lstm": (library.highway_lstm, "H"),
    "intersection": (library.intersection, "H"),
    "tgru": (library.tgru, "any"),
    "tlstm": (library.tlstm, "any"),
    "tgru_of_wide_x": (library.tgru, "more than H"),
    "tlstm_of_wide_x": (library.tlstm, "more than H"),
    "large_memory": (large_memory, "any"),
    "delta_rule": (nr.cell(library.delta_rule, size=5), "any"),
    "lmu": (nr.cell(library.lmu, order=3, theta=7.0), "any"),
    "liquid_time_constant": (nr.cell(library.liquid_time_constant, dt=0.6, steps=3), "any"),
    "traced_activity": (traced_activity, "any"),
    "projected_beside_memory": (projected_beside_memory, "any"),
    "sak_lstm": (sak_lstm, "any"),
    "sums_and_scalings": (sums_and_scalings, "any"),
    "products_and_masks": (products_and_masks, "any"),
    "of_input": (of_input, "H"),
    "leaky": (leaky, "any"),
    "clockwork": (clockwork, "any"),
    "running": (running, "any"),
    "low_rank_projection": (low_rank_projection, "any"),
}
