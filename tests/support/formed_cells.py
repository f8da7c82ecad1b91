"""Published cells, and smaller ones, whose matrices are expressions, that have one number per layer, or x itself; and
each once more as a step of PyTorch tensors in float64, written independently: autograd gives every gradient.

A step takes `w`, the parameters of a layer by the equations' names, x (B, I) and the states (B, H), and returns the new
states. I is H where x is used itself. H is 5.
"""

import numpy as np

import numbarnn as nr
from numbarnn.cells import library

CELLS = {}  # name -> (cell, step, "any", "H" or "more than H": what I is)


def pair(inputs="any", **hyperparameters):
    """Decorator of a step: it belongs to the cell of that name, of those above or of the library."""

    def register(step):
        name = step.__name__.removesuffix("_step")
        cell = globals().get(name) or getattr(library, name)
        CELLS[name] = (nr.cell(cell, **hyperparameters) if hyperparameters else cell), step, inputs
        return step

    return register


@pair(epsilon=0.3, gamma=0.1)
def antisymmetric_step(w, x, h):
    a = h @ (w["R.h"].T - w["R.h"]) - 0.1 * h + x @ w["W.h"].T + w["b.h"]
    return (h + 0.3 * a.tanh(),)


@pair(epsilon=0.3, gamma=0.1)
def gated_antisymmetric_step(w, x, h):
    a = h @ (w["R.h"].T - w["R.h"]) - 0.1 * h
    z = (a + x @ w["W.z"].T + w["b.z"]).sigmoid()
    return (h + 0.3 * z * (a + x @ w["W.h"].T + w["b.h"]).tanh(),)


@nr.cell
def learned_diffusion(x, h, p, epsilon=0.3):
    """The same with a diffusion that is learnt: one number per layer in a matrix."""
    A = p.R.a - p.R.a.T - p.scalar.gamma * nr.eye()
    z = nr.sigmoid(A @ h + p.V.z @ x + p.b.z)
    return h + epsilon * z * nr.tanh(A @ h + p.V.h @ x + p.b.h)


@pair()
def learned_diffusion_step(w, x, h):
    a = h @ (w["R.a"].T - w["R.a"]) - w["scalar.gamma"] * h
    z = (a + x @ w["V.z"].T + w["b.z"]).sigmoid()
    return (h + 0.3 * z * (a + x @ w["V.h"].T + w["b.h"]).tanh(),)


@nr.cell
def janet(x, h, c, p):
    """Van der Westhuizen and Lasenby 2018, arXiv:1804.04849, with beta learnt."""
    s = p.W.f @ x + p.R.f @ h + p.b.f
    g = nr.tanh(p.W.c @ x + p.R.c @ h + p.b.c)
    c_new = nr.sigmoid(s) * c + (1 - nr.sigmoid(s - nr.initial(p.scalar.beta, 1))) * g
    return c_new, c_new


@pair()
def janet_step(w, x, h, c):
    s, g = (x @ w[f"W.{k}"].T + h @ w[f"R.{k}"].T + w[f"b.{k}"] for k in "fc")
    c = s.sigmoid() * c + (1 - (s - w["scalar.beta"]).sigmoid()) * g.tanh()
    return c, c


@pair()
def fast_rnn_step(w, x, h):
    new = (x @ w["W.h"].T + h @ w["R.h"].T + w["b.h"]).tanh()
    return (w["scalar.alpha"].sigmoid() * new + w["scalar.beta"].sigmoid() * h,)


@pair(rank=2)
def low_rank_fast_grnn_step(w, x, h):
    a = x @ w["W2"] @ w["W1"].T + h @ w["R2"] @ w["R1"].T
    z = (a + w["b.z"]).sigmoid()
    return ((w["scalar.zeta"].sigmoid() * (1 - z) + w["scalar.nu"].sigmoid()) * (a + w["b.h"]).tanh() + z * h,)


@pair(context=2)
def structurally_constrained_step(w, x, h, s):
    alpha = w["scalar.alpha"]
    s = (1 - alpha) * (x @ w["W.s"].T) + alpha * s
    return (s @ w["P"].T + x @ w["W.h"].T + h @ w["R.h"].T).sigmoid(), s


@nr.cell
def small_context(x, h, s, c, p, context=2):
    """SCRN's context with a bias, a rate per unit and a matrix of its own; beside it a state of H units."""
    s = nr.sized(s, context)
    s_new = (1 - p.alpha) * nr.tanh(p.B @ x + p.b.s) + p.alpha * s + p.C @ s
    return nr.sigmoid(p.P @ s_new + p.A @ x + p.R @ h + p.b.h) + 0.1 * c, s_new, c * (p.P @ s)


@pair()
def small_context_step(w, x, h, s, c):
    new = (1 - w["alpha"]) * (x @ w["B"].T + w["b.s"]).tanh() + w["alpha"] * s + s @ w["C"].T
    return (new @ w["P"].T + x @ w["A"].T + h @ w["R"].T + w["b.h"]).sigmoid() + 0.1 * c, new, c * (s @ w["P"].T)


@pair()
def low_rank_rnn_step(w, x, h):
    connectivity = w["scalar.g"] * w["R.h"] + w["m"] @ w["n"]
    return ((x @ w["W.h"].T + h @ connectivity.T + w["b.h"]).tanh(),)


@pair("H")
def highway_lstm_step(w, x, h, c):
    i, f, o, t, g = (x @ w[f"W.{k}"].T + h @ w[f"R.{k}"].T + w[f"b.{k}"] for k in "ifotg")
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    t = t.sigmoid()
    return t * o.sigmoid() * c.tanh() + (1 - t) * x, c


@pair("H")
def intersection_step(w, x, y, h):
    y_in, h_in, g_y, g_h = (x @ w[f"W.{k}"].T + h @ w[f"R.{k}"].T + w[f"b.{k}"] for k in ("y", "h", "gy", "gh"))
    g_y, g_h = g_y.sigmoid(), g_h.sigmoid()
    return g_y * x + (1 - g_y) * y_in.tanh(), g_h * h + (1 - g_h) * h_in.tanh()


@pair()
def tgru_step(w, x, h, before):
    z, f, o = (x @ w[f"W.{k}"].T + before @ w[f"V.{k}"].T + w[f"b.{k}"] for k in "zfo")
    return f.sigmoid() * h + z * o.tanh(), x


@pair()
def tlstm_step(w, x, h, c, before):
    z, f, o = (x @ w[f"W.{k}"].T + before @ w[f"V.{k}"].T + w[f"b.{k}"] for k in "zfo")
    f = f.sigmoid()
    c = f * c + (1 - f) * z
    return c * o.tanh(), c, x


CELLS |= {f"{name}_of_wide_x": (*CELLS[name][:2], "more than H") for name in ("tgru", "tlstm")}


@nr.cell
def large_memory(x, h, m, c, p, size=15):
    """A memory of 3 H units that h is read from, and sees; beside it a state of H units."""
    m = nr.sized(m, size)
    m_new = p.keep * m + (1 - p.keep) * nr.tanh(p.B @ x + p.C @ m + p.D @ h + p.b.m)
    return nr.sigmoid(p.P @ m_new + p.W @ x + p.R @ h + p.b.h) + p.u * c, m_new, c * (p.Q @ m)


@pair()
def large_memory_step(w, x, h, m, c):
    new = w["keep"] * m + (1 - w["keep"]) * (x @ w["B"].T + m @ w["C"].T + h @ w["D"].T + w["b.m"]).tanh()
    return (new @ w["P"].T + x @ w["W"].T + h @ w["R"].T + w["b.h"]).sigmoid() + w["u"] * c, new, c * (m @ w["Q"].T)


@pair(size=5)
def delta_rule_step(w, x, h, S):
    """By matrices, for each sequence by itself."""
    import torch

    k, q = (torch.nn.functional.elu(x @ w[f"W.{name}"].T) + 1 for name in "kq")
    k, q = k / k.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    v, beta, S = x @ w["W.v"].T, (x @ w["W.beta"].T).sigmoid(), S.reshape(-1, 5, 5)
    S = S + torch.einsum("bi,bj->bij", beta * (v - torch.einsum("bij,bj->bi", S, k)), k)
    return torch.einsum("bij,bj->bi", S, q), S.flatten(1)


@pair(order=3, theta=7.0)
def lmu_step(w, x, h, m):
    import torch

    A = torch.tensor([[-1.0, -1, -1], [3, -3, -3], [-5, 5, -5]], dtype=torch.float64) / 7
    B = torch.tensor([[1.0], [-3], [5]], dtype=torch.float64) / 7
    held = torch.linalg.matrix_exp(A)
    B = torch.linalg.solve(A, (held - torch.eye(3, dtype=torch.float64)) @ B)
    u = x @ w["e.x"].T + h @ w["e.h"].T + m @ w["e.m"].T
    m = m @ held.T + u @ B.T
    return (x @ w["W.h"].T + h @ w["R.h"].T + m @ w["M"].T).tanh(), m


@pair(dt=0.6, steps=3)
def liquid_time_constant_step(w, x, h):
    for _ in range(3):
        f = (x @ w["W.f"].T + w["b.f"] + h @ w["R.f"].T).sigmoid()
        h = (h + 0.2 * f * w["A"]) / (1 + 0.2 * (1 / w["log_tau"].exp() + f))
    return (h,)


@nr.cell
def traced_activity(x, h, s, p, size=7):
    """A slow trace of what h is, expanded to more units, with a rate of the layer: no step multiplies it."""
    s = nr.sized(s, size)
    h_new = nr.tanh(p.W.h @ x + (p.R.h - p.R.h.T) @ h + p.b.h)
    rate = nr.sigmoid(p.scalar.rate)
    return h_new, rate * s + (1 - rate) * nr.tanh(p.E @ h + p.F @ x + p.b.s)


@pair()
def traced_activity_step(w, x, h, s):
    rate = w["scalar.rate"].sigmoid()
    new = rate * s + (1 - rate) * (h @ w["E"].T + x @ w["F"].T + w["b.s"]).tanh()
    return (x @ w["W.h"].T + h @ (w["R.h"] - w["R.h"].T).T + w["b.h"]).tanh(), new


@nr.cell
def projected_beside_memory(x, h, c, m, p, size=9):
    """An LSTM with a projection, and a state of more units than c that sees it."""
    m = nr.sized(m, size)
    i, f, g, o = (getattr(p.W, k) @ x + getattr(p.R, k) @ h + getattr(p.b, k) for k in "ifgo")
    c_new = nr.sigmoid(f) * c + nr.sigmoid(i) * nr.tanh(g)
    return p.P.h @ (nr.sigmoid(o) * nr.tanh(c_new)), c_new, nr.tanh(p.V @ x + p.U @ h) + 0.5 * m


@pair()
def projected_beside_memory_step(w, x, h, c, m):
    i, f, g, o = (x @ w[f"W.{k}"].T + h @ w[f"R.{k}"].T + w[f"b.{k}"] for k in "ifgo")
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return (o.sigmoid() * c.tanh()) @ w["P.h"].T, c, (x @ w["V"].T + h @ w["U"].T).tanh() + 0.5 * m


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


@pair()
def sak_lstm_step(w, x, h, c):
    r = h[:, :RECURRENT]
    i, f, g, o = (x @ w[f"W.{k}"].T + r @ w[f"R.{k}"][:, :RECURRENT].T + w[f"b.{k}"] for k in "ifco")
    i, f = (i + w["peep.i"] * c).sigmoid(), (f + w["peep.f"] * c).sigmoid()
    c = f * c + i * g.tanh()
    m = (o + w["peep.o"] * c).sigmoid() * c.tanh()
    return m @ w["P.h"].T, c


# ----------------------------------------------------------------------------------------------- every form by itself
OF_PROJECTION = np.linspace(0.5, 2, 15).reshape(3, 5)
MASK = np.tril(np.arange(25.0).reshape(5, 5) / 10, 1)


@nr.cell
def sums_and_scalings(x, h, c, p):
    """Differences, quotients, negation; the transpose of what is formed; one matrix for x's sum and for h."""
    W = -(p.W.a + 2 * p.W.b) / p.scalar.s
    R = (p.R.a - 0.5 * p.R.b.T * p.scalar.t).T
    return nr.tanh(W @ x + R @ h), nr.sigmoid(p.W.a @ x + R @ c) * p.u


@pair()
def sums_and_scalings_step(w, x, h, c):
    R = (w["R.a"] - 0.5 * w["scalar.t"] * w["R.b"].T).T
    W = -(w["W.a"] + 2 * w["W.b"]) / w["scalar.s"]
    return (x @ W.T + h @ R.T).tanh(), (x @ w["W.a"].T + c @ R.T).sigmoid() * w["u"]


@nr.cell
def products_and_masks(x, h, c, p):
    """Products of squares and of three, element by element with another parameter and with a constant; the same matrix
    with three vectors, one of them made within the step."""
    R = p.R.a @ nr.columns(p.D, 3) @ p.E + p.R.b * p.R.c
    v = nr.tanh(p.W.a @ x + R @ h + MASK @ c)
    return v * (p.R.a @ c), nr.tanh((MASK * p.R.d) @ h + p.R.a @ v + p.R.a @ h + p.scalar.b)


@pair()
def products_and_masks_step(w, x, h, c):
    import torch

    mask = torch.tensor(MASK)
    R = w["R.a"] @ w["D"] @ w["E"] + w["R.b"] * w["R.c"]
    v = (x @ w["W.a"].T + h @ R.T + c @ mask.T).tanh()
    new = h @ (mask * w["R.d"]).T + (v + h) @ w["R.a"].T + w["scalar.b"]
    return v * (c @ w["R.a"].T), new.tanh()


@nr.cell
def of_input(x, h, p):
    """x itself in sums over units, in a product, with a bias that is one number, and times the identity."""
    a = nr.layer_norm(x + h) + nr.eye() @ x
    return nr.tanh(p.R.a @ (a * x) + x + p.scalar.b + (p.W.a - nr.eye()) @ x) + 0.1 * (nr.eye() @ h)


@pair("H")
def of_input_step(w, x, h):
    import torch

    a = torch.nn.functional.layer_norm(x + h, x.shape[1:]) + x
    return (((a * x) @ w["R.a"].T + w["scalar.b"] + x @ w["W.a"].T).tanh() + 0.1 * h,)


@nr.cell
def low_rank_projection(x, h, c, p):
    """An LSTM whose projection is of low rank, with a constant within: the matrix that makes h is an expression."""
    i, f, g, o = (getattr(p.W, k) @ x + getattr(p.R, k) @ h + getattr(p.b, k) for k in "ifgo")
    c_new = nr.sigmoid(f) * c + nr.sigmoid(i) * nr.tanh(g)
    return (nr.columns(p.A, 2) @ p.B * OF_PROJECTION) @ (nr.sigmoid(o) * nr.tanh(c_new)), c_new


@pair()
def low_rank_projection_step(w, x, h, c):
    import torch

    i, f, g, o = (x @ w[f"W.{k}"].T + h @ w[f"R.{k}"].T + w[f"b.{k}"] for k in "ifgo")
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return (o.sigmoid() * c.tanh()) @ (w["A"] @ w["B"] * torch.tensor(OF_PROJECTION)).T, c
