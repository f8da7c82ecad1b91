"""Cells from the literature, each in a few lines of equations, for `RNN(cell, ...)`.

W multiplies the input, R a state or a value computed from one, and b is a bias. `cell(library.slstm, heads=4)` makes a
cell with other hyperparameters, and `print(library.lem.equations)` prints the equations.
"""

from dataclasses import replace
from functools import cache

import numpy as np

from numbarnn.cells import functions
from numbarnn.cells.tracing import cell, step

from numbarnn.cells.functions import (  # isort: skip
    abs, columns, cumax, custom_derivative, drop_connect, dropout, elu, exp, eye, initial, layer_norm, maximum, relu,
    sigmoid, sized, softplus, stop_gradient, tanh, where, zoneout,
)  # fmt: skip

__all__ = [
    "additive_network", "antisymmetric", "cornn", "coupled_lstm", "delta_rule", "fast_grnn", "fast_rnn",
    "gated_antisymmetric", "gru", "gru_reset_before", "highway_lstm", "ind_rnn", "intersection", "janet",
    "layer_norm_gru", "layer_norm_lstm", "lem", "li_gru", "liquid_time_constant", "lmu", "low_rank_fast_grnn",
    "low_rank_rnn", "lsnn", "lstm", "lstm_with", "min_gru", "min_lstm", "minimal_gated_unit", "multiplicative_lstm",
    "on_lstm", "peephole_lstm", "phased_lstm", "projected_lstm", "qrnn", "recurrent_highway", "rnn_relu", "rnn_tanh",
    "slstm", "sru", "structurally_constrained", "tgru", "tlstm", "ugrnn",
]  # fmt: skip


# ------------------------------------------------------------------------------------ the built-in cells, as equations
# `numbarnn.cells.lstm`, `gru` and `rnn` have them by hand. Each sum has one bias here. Only GRU's n also has the
# recurrent bias, which r multiplies. LSTM and GRU have three rates of regularization in training, 0 by default: zoneout
# of states (Krueger et al. 2017, arXiv:1606.01305), dropout of the candidate (Semeniuta et al. 2016,
# arXiv:1603.05118), and DropConnect of R (Merity et al. 2018, arXiv:1708.02182).
@cell
def lstm(x, h, c, p, zoneout_h=0.0, zoneout_c=0.0, dropout_g=0.0, drop_R=0.0):
    """Long short-term memory with a forget gate. Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735.

    `cell(lstm, zoneout_h=0.05, zoneout_c=0.5)` makes a cell with zoneout.

    Args:
        zoneout_h, zoneout_c: probability that a unit of h, and of c, keeps its old value.
        dropout_g: probability that a unit of g is dropped.
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
    """Gated recurrent unit with the reset gate after the product, as in cuDNN. Cho et al. 2014, arXiv:1406.1078.

    zoneout_h, drop_R: see `lstm`. dropout_n: probability that a unit of n is dropped.
    """
    R = drop_connect(p.R, drop_R)
    r = sigmoid(p.W.r @ x + R.r @ h + p.b.r)
    z = sigmoid(p.W.z @ x + R.z @ h + p.b.z)
    n = tanh(p.W.n @ x + p.b.n + r * (R.n @ h + p.b.q))
    return zoneout((1 - z) * dropout(n, dropout_n) + z * h, h, zoneout_h)


@cell
def gru_reset_before(x, h, p):
    """Gated recurrent unit with the reset gate before the product. Cho et al. 2014, arXiv:1406.1078."""
    r = sigmoid(p.W.r @ x + p.R.r @ h + p.b.r)
    z = sigmoid(p.W.z @ x + p.R.z @ h + p.b.z)
    n = tanh(p.W.n @ x + p.R.n @ (r * h) + p.b.n)
    return (1 - z) * n + z * h


@cell
def rnn_tanh(x, h, p):
    """The vanilla RNN with tanh. Elman 1990, doi:10.1207/s15516709cog1402_1."""
    return tanh(p.W.h @ x + p.R.h @ h + p.b.h)


@cell
def rnn_relu(x, h, p):
    """The vanilla RNN with ReLU. Le et al. 2015, arXiv:1504.00941."""
    return relu(p.W.h @ x + p.R.h @ h + p.b.h)


# ------------------------------------------------------------------------------------------------- variants of the LSTM
@cache
def lstm_with_options(cell_clip, clip_propagate_nan=True):
    """Return `lstm.with_options`, the cell of `numbarnn.LSTM` with these options, as equations."""
    low, high = cell_clip

    def limited(c):
        if clip_propagate_nan:
            return where(c < low, low, where(c > high, high, c))
        return where(c >= low, where(c > high, high, c), low)

    @cell(name="lstm_clip")
    def clipped(x, h, c, p):
        i = sigmoid(p.W.i @ x + p.R.i @ h + p.b.i)
        f = sigmoid(p.W.f @ x + p.R.f @ h + p.b.f)
        g = tanh(p.W.g @ x + p.R.g @ h + p.b.g)
        o = sigmoid(p.W.o @ x + p.R.o @ h + p.b.o)
        c_new = f * limited(c) + i * g
        return o * tanh(limited(c_new)), c_new

    return clipped


@cell
def peephole_lstm(x, h, c, p):
    """LSTM whose gates see c: i and f see the old c, o the new one.

    Gers and Schmidhuber 2000, doi:10.1109/IJCNN.2000.861302, in the form of Graves 2013, arXiv:1308.0850, (7) to (11).
    """
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.peep_i * c + p.b.i)  # (7)
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.peep_f * c + p.b.f)  # (8)
    c_new = f * c + i * tanh(p.W.g @ x + p.R.g @ h + p.b.g)  # (9)
    o = sigmoid(p.W.o @ x + p.R.o @ h + p.peep_o * c_new + p.b.o)  # (10)
    return o * tanh(c_new), c_new  # (11)


def lstm_with(gate=sigmoid, candidate=tanh, output=tanh):
    """Return an LSTM with other activations. The same functions give the same object.

    Args:
        gate: activation of i, f and o, such as `numbarnn.hard_sigmoid`, a function of one traced value.
        candidate: activation of g. output: activation of c in h.
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
    """LSTM that forgets as much as it writes, f = 1 - i: CIFG, no peepholes. Greff et al. 2017, arXiv:1503.04069."""
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.b.i)
    g = tanh(p.W.g @ x + p.R.g @ h + p.b.g)
    o = sigmoid(p.W.o @ x + p.R.o @ h + p.b.o)
    c_new = (1 - i) * c + i * g
    return o * tanh(c_new), c_new


@cell
def projected_lstm(x, h, c, p):
    """LSTM with a projection to h, `RNN(projected_lstm, ..., proj_size=P)`. Sak et al. 2014, arXiv:1402.1128."""
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.b.i)
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.b.f)
    g = tanh(p.W.g @ x + p.R.g @ h + p.b.g)
    o = sigmoid(p.W.o @ x + p.R.o @ h + p.b.o)
    c_new = f * c + i * g
    return p.P.h @ (o * tanh(c_new)), c_new


@cell
def multiplicative_lstm(x, h, c, p):
    """LSTM whose gates see m, a product of linear functions of x and h. Krause et al. 2016, arXiv:1609.07959."""
    m = (p.W.m @ x) * (p.R.m @ h)
    i = sigmoid(p.W.i @ x + p.R.i @ m + p.b.i)
    f = sigmoid(p.W.f @ x + p.R.f @ m + p.b.f)
    g = tanh(p.W.g @ x + p.R.g @ m + p.b.g)
    o = sigmoid(p.W.o @ x + p.R.o @ m + p.b.o)
    c_new = f * c + i * g
    return o * tanh(c_new), c_new


@cell
def janet(x, h, p, beta=1.0):
    """LSTM with only a forget gate. Van der Westhuizen and Lasenby 2018, arXiv:1804.04849.

    Args:
        beta: shift of the gate's pre-activation for new input; a larger beta lets in more.
    """
    s = p.W.f @ x + p.R.f @ h + p.b.f
    c = tanh(p.W.c @ x + p.R.c @ h + p.b.c)
    return sigmoid(s) * h + (1 - sigmoid(s - beta)) * c


@cell
def slstm(x, h, c, n, m, p, heads=1):
    """LSTM with exponential gates: the sLSTM of xLSTM, with f = σ. Beck et al. 2024, arXiv:2405.04517.

    n normalizes c and is positive after a step. Gates are scaled by e^-m, which keeps the exponents small.

    Args:
        heads: number of groups of units that do not see each other's h, 4 in the paper.
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


# -------------------------------------------------------------------------------------------------- layer normalization
# All gates share mean and variance, as in haste, https://github.com/lmnt-com/haste, where gain is gamma and shift beta.
@cell
def layer_norm_lstm(x, h, c, p, zoneout_h=0.0, drop_R=0.0):
    """LSTM with normalized products of x, products of h, and c. Ba et al. 2016, arXiv:1607.06450.

    zoneout_h, drop_R: see `lstm`.
    """
    R, gain_x, gain_h = drop_connect(p.R, drop_R), initial(p.gain_x, 1), initial(p.gain_h, 1)
    x_i, x_f, x_g, x_o = layer_norm(p.W.i @ x, p.W.f @ x, p.W.g @ x, p.W.o @ x)
    h_i, h_f, h_g, h_o = layer_norm(R.i @ h, R.f @ h, R.g @ h, R.o @ h)
    i = sigmoid(gain_x.i * x_i + gain_h.i * h_i + p.b.i)
    f = sigmoid(gain_x.f * x_f + gain_h.f * h_f + p.b.f)
    g = tanh(gain_x.g * x_g + gain_h.g * h_g + p.b.g)
    o = sigmoid(gain_x.o * x_o + gain_h.o * h_o + p.b.o)
    c_new = f * c + i * g
    h_new = o * tanh(initial(p.gain.c, 1) * layer_norm(c_new) + initial(p.shift.c, 0))
    return zoneout(h_new, h, zoneout_h), c_new


@cell
def layer_norm_gru(x, h, p, zoneout_h=0.0, drop_R=0.0):
    """GRU with normalized products of x and of h, reset gate after the product. Ba et al. 2016, arXiv:1607.06450.

    zoneout_h, drop_R: see `lstm`.
    """
    R, gain_x, gain_h = drop_connect(p.R, drop_R), initial(p.gain_x, 1), initial(p.gain_h, 1)
    x_r, x_z, x_n = layer_norm(p.W.r @ x, p.W.z @ x, p.W.n @ x)
    h_r, h_z, h_n = layer_norm(R.r @ h, R.z @ h, R.n @ h)
    r = sigmoid(gain_x.r * x_r + gain_h.r * h_r + p.b.r)
    z = sigmoid(gain_x.z * x_z + gain_h.z * h_z + p.b.z)
    n = tanh(gain_x.n * x_n + p.b.n + r * (gain_h.n * h_n + p.b.q))
    return zoneout((1 - z) * n + z * h, h, zoneout_h)


# ---------------------------------------------------------------------------------------------------------- other gates
@cell
def li_gru(x, h, p):
    """Light GRU: ReLU, no reset gate, a bias for batch normalization. Ravanelli et al. 2018, arXiv:1803.10225."""
    z = sigmoid(p.W.z @ x + p.R.z @ h + p.b.z)
    candidate = relu(p.W.h @ x + p.R.h @ h + p.b.h)
    return z * h + (1 - z) * candidate


@cell
def minimal_gated_unit(x, h, p):
    """GRU with one gate for reset and update. Zhou et al. 2016, arXiv:1603.09420."""
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.b.f)
    candidate = tanh(p.W.h @ x + p.R.h @ (f * h) + p.b.h)
    return (1 - f) * h + f * candidate


@cell
def ugrnn(x, h, p):
    """Update-gate RNN: a vanilla RNN with a gate. Collins, Sohl-Dickstein and Sussillo 2017, arXiv:1611.09913."""
    c = tanh(p.W.c @ x + p.R.c @ h + p.b.c)
    g = sigmoid(p.W.g @ x + p.R.g @ h + p.b.g)
    return g * h + (1 - g) * c


@cell
def fast_grnn(x, h, p):
    """FastGRNN, whose gate and candidate share matrices. Kusupati et al. 2018, arXiv:1901.02358.

    Here matrices have full rank, and ζ and ν are per unit. `low_rank_fast_grnn` is the paper's.
    """
    a = p.W.a @ x + p.R.a @ h
    z = sigmoid(a + p.b.z)
    candidate = tanh(a + p.b.h)
    return (sigmoid(p.zeta) * (1 - z) + sigmoid(p.nu)) * candidate + z * h


@cell
def additive_network(x, h, c, p):
    """Recurrent additive network: c is a weighted sum of W x. Lee, Levy and Zettlemoyer 2017, arXiv:1705.07393."""
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.b.i)
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.b.f)
    c_new = i * (p.W.c @ x) + f * c
    return tanh(c_new), c_new


@cell
def highway_lstm(x, h, c, p):
    """LSTM with a highway for x, of size H. Srivastava et al. 2015, arXiv:1505.00387, (3), around an LSTM."""
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.b.i)
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.b.f)
    o = sigmoid(p.W.o @ x + p.R.o @ h + p.b.o)
    t = sigmoid(p.W.t @ x + p.R.t @ h + p.b.t)
    c_new = f * c + i * tanh(p.W.g @ x + p.R.g @ h + p.b.g)
    return t * o * tanh(c_new) + (1 - t) * x, c_new


@cell
def intersection(x, y, h, p):
    """+RNN: y is the output to the layer above, h the state; x has size H. Collins et al. 2017, arXiv:1611.09913."""
    y_in = tanh(p.W.y @ x + p.R.y @ h + p.b.y)
    h_in = tanh(p.W.h @ x + p.R.h @ h + p.b.h)
    g_y = sigmoid(p.W.gy @ x + p.R.gy @ h + p.b.gy)
    g_h = sigmoid(p.W.gh @ x + p.R.gh @ h + p.b.gh)
    return g_y * x + (1 - g_y) * y_in, g_h * h + (1 - g_h) * h_in


# ---------------------------------------------------------------------------------------------------- light recurrences
# These have no product with the state, so that units do not see each other. Where a paper has a highway for x, we take
# W x, so that input and state may have different sizes.
@cell
def ind_rnn(x, h, p):
    """IndRNN, with one recurrent weight per unit. Li et al. 2018, arXiv:1803.04831."""
    return relu(p.W.h @ x + p.u * h + p.b.h)


@cell
def sru(x, h, c, p):
    """Simple recurrent unit: gates see c by one weight per unit; a highway for x. Lei et al. 2018, arXiv:1709.02755."""
    f = sigmoid(p.W.f @ x + p.v.f * c + p.b.f)
    r = sigmoid(p.W.r @ x + p.v.r * c + p.b.r)
    c_new = f * c + (1 - f) * (p.W.x @ x)
    return r * c_new + (1 - r) * (p.W.y @ x), c_new


@cell
def qrnn(x, h, c, p):
    """Quasi-recurrent network, fo-pooling, convolution of one step. Bradbury et al. 2017, arXiv:1611.01576."""
    z = tanh(p.W.z @ x + p.b.z)
    f = sigmoid(p.W.f @ x + p.b.f)
    o = sigmoid(p.W.o @ x + p.b.o)
    c_new = f * c + (1 - f) * z
    return o * c_new, c_new


@cell
def min_gru(x, h, p):
    """minGRU, whose gate and candidate see x only. Feng et al. 2024, arXiv:2410.01201."""
    z = sigmoid(p.W.z @ x + p.b.z)
    return (1 - z) * h + z * (p.W.h @ x + p.b.h)


@cell
def min_lstm(x, h, p):
    """minLSTM, whose gates see x only and are normalized. Feng et al. 2024, arXiv:2410.01201."""
    f = sigmoid(p.W.f @ x + p.b.f)
    i = sigmoid(p.W.i @ x + p.b.i)
    return f / (f + i) * h + i / (f + i) * (p.W.h @ x + p.b.h)


def recurrent_highway(depth=2):
    """Return a recurrent highway network. Zilly et al. 2017, arXiv:1607.03474, with carry gate 1 - t.

    Args:
        depth: number of highway layers in a step, from 1 on. The first one sees x.
    """
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise ValueError(f"depth must be an int of at least 1, the number of highway layers of a step, got {depth!r}")
    return _highway(depth)


@cache
def _highway(depth):
    @cell(name=f"recurrent_highway_{depth}")
    def highway(x, h, p):
        for layer in range(1, depth + 1):
            candidate = getattr(p.R, f"h{layer}") @ h + getattr(p.b, f"h{layer}")
            gate = getattr(p.R, f"t{layer}") @ h + getattr(p.b, f"t{layer}")
            if layer == 1:
                candidate, gate = p.W.h @ x + candidate, p.W.t @ x + gate
            t = sigmoid(gate)
            h = tanh(candidate) * t + h * (1 - t)
        return h

    return replace(highway, origin=(recurrent_highway, (depth,)))


# ------------------------------------------------------------------------ differential equations, and neurons that fire
@cell
def cornn(x, y, z, p, dt=0.1, gamma=1.0, epsilon=1.0):
    """coRNN: coupled oscillators with positions y and velocities z. Rusch and Mishra 2021, arXiv:2010.00951.

    Args:
        dt: time of a step. gamma: frequency. epsilon: damping, applied to the velocity before the step.
    """
    force = tanh(p.R.y @ y + p.R.z @ z + p.W.z @ x + p.b.z)
    z_new = z + dt * (force - gamma * y - epsilon * z)
    return y + dt * z_new, z_new


@cell
def lem(x, y, z, p, dt=0.5):
    """Long expressive memory: two states with learned time steps. Rusch et al. 2022, arXiv:2110.04744.

    Args:
        dt: the longest time step.
    """
    slow = dt * sigmoid(p.W.slow @ x + p.R.slow @ y + p.b.slow)
    fast = dt * sigmoid(p.W.fast @ x + p.R.fast @ y + p.b.fast)
    z_new = (1 - slow) * z + slow * tanh(p.W.z @ x + p.R.z @ y + p.b.z)
    y_new = (1 - fast) * y + fast * tanh(p.W.y @ x + p.R.y @ z_new + p.b.y)
    return y_new, z_new


@cell
def liquid_time_constant(x, h, p, dt=1.0, steps=2):
    """Liquid time constants: x and h determine how fast each unit moves towards its A.

    Hasani et al. 2020, arXiv:2006.04439, (1) by the fused solver (3), with a sigmoid f and τ = e^log_tau.

    Args:
        dt: time of a step. steps: number of the solver's steps in this time, each with one product.
    """
    rate, drive, part = exp(-initial(p.log_tau, 0)), p.W.f @ x + p.b.f, dt / steps
    for _ in range(steps):
        f = sigmoid(drive + p.R.f @ h)
        h = (h + part * f * p.A) / (1 + part * (rate + f))  # (3)
    return h


@cell
def lsnn(x, z, v, a, p, decay=0.9, slow=0.97, beta=0.7):
    """LSNN: neurons spike (z = 1) where v exceeds a threshold, which each spike raises for a while.

    Bellec et al. 2018, arXiv:1803.09574, (1) to (4), with its pseudo-derivative. No gradient flows through the reset.

    Args:
        decay, slow: factors of v, and of the adaptation a, in each step. beta: how much a raises the threshold.
    """
    threshold = 0.6 + beta * a
    v_new = decay * v + p.W.v @ x + p.R.v @ z - stop_gradient(z * threshold)
    a_new = slow * a + (1 - slow) * z
    excess = v_new - (0.6 + beta * a_new)
    z_new = custom_derivative(where(excess > 0, 1, 0), excess, 0.3 * maximum(0, 1 - abs(excess)))
    return z_new, v_new, a_new


# -------------------------------------------------------------------------------------- a memory of another size than h
@cell
def delta_rule(x, h, S, p, size=8):
    """Fast weights S, a matrix (size, size), which the delta rule moves towards S k = v; the output is h = S_new q.

    Schlag, Irie and Schmidhuber 2021, arXiv:2102.11174, (23) and (24), with φ(k) = elu(k) + 1 over its sum. S is
    a state of size² units, row after row. Constant matrices repeat a vector along rows or columns and sum up rows.

    Args:
        size: size of keys and values, and the hidden size.
    """
    S, one, ones = sized(S, size * size), np.eye(size), np.ones((size, 1))
    of_row, of_column = np.kron(one, ones), np.kron(ones, one)  # (size², size): v_i, and k_j, at (i, j)
    row_sum = of_row @ of_row.T  # at (i, j) the sum of row i
    k = elu((of_column @ p.W.k) @ x) + 1
    q = elu((of_column @ p.W.q) @ x) + 1
    k, q = k / (row_sum @ k), q / (row_sum @ q)
    beta = sigmoid((of_row @ p.W.beta) @ x)
    S_new = S + beta * ((of_row @ p.W.v) @ x - row_sum @ (S * k)) * k  # (23), (24)
    return of_row.T @ (S_new * q), S_new


def _legendre(order, theta):
    """Return A (order, order) and B (order, 1) of a step of m' = A m + B u, (2), during which u is constant."""
    i, j = np.arange(order)[:, None], np.arange(order)
    both = np.zeros((order + 1, order + 1))
    both[:order, :order] = np.where(i < j, -1.0, (-1.0) ** (i - j + 1)) * (2 * i + 1) / theta
    both[:order, order:] = (-1.0) ** i * (2 * i + 1) / theta
    halvings = max(0, int(np.ceil(np.log2(np.linalg.norm(both)))) + 4)  # e^M = (e^(M / 2^n))^(2^n)
    small = both / 2.0**halvings
    term = power = np.eye(order + 1)
    for number in range(1, 16):
        term = term @ small / number
        power = power + term
    power = np.linalg.matrix_power(power, 2**halvings)
    return power[:order, :order], power[:order, order:]


@cell
def lmu(x, h, m, p, order=16, theta=64.0):
    """Legendre memory unit: m approximates the last `theta` steps of a number u by Legendre polynomials.

    Voelker, Kajić and Eliasmith 2019 (NeurIPS), (1) to (8), with A and B discretised by zero-order hold.

    Args:
        order: number of polynomials, the size of m. theta: number of steps.
    """
    A, B = _legendre(order, theta)
    m = sized(m, order)
    u = (B @ p.e.x) @ x + (B @ p.e.h) @ h  # B times (6), without m
    m_new = (A + B @ initial(p.e.m, 0)) @ m + u  # (4)
    return tanh(p.W.h @ x + p.R.h @ h + p.M @ m_new), m_new  # (7)


@cell
def phased_lstm(x, h, c, p, t=step, open_ratio=0.05, leak=0.001):
    """Phased LSTM: each unit has a period, and is updated in a part of it. Neil et al. 2016, arXiv:1610.09513.

    The equations are the paper's (7) to (10), without peepholes and for regularly spaced steps. A unit's period is
    e^log_period, at first about one step.

    Args:
        open_ratio: part of a period in which the gate k is open. In the first half of this part, k rises from 0 to 1;
            in the second half it falls to 0.
        leak: slope of the closed gate: k is leak times the phase, which runs from 0 to 1 in a period.
    """
    period = exp(p.log_period)
    phase = (t - p.shift) % period / period
    opening, closing = 2 / open_ratio * phase, 2 - 2 / open_ratio * phase
    k = where(phase < open_ratio / 2, opening, where(phase < open_ratio, closing, leak * phase))
    i = sigmoid(p.W.i @ x + p.R.i @ h + p.b.i)
    f = sigmoid(p.W.f @ x + p.R.f @ h + p.b.f)
    o = sigmoid(p.W.o @ x + p.R.o @ h + p.b.o)
    candidate = f * c + i * tanh(p.W.g @ x + p.R.g @ h + p.b.g)
    return k * o * tanh(candidate) + (1 - k) * h, k * candidate + (1 - k) * c


@cell
def on_lstm(x, h, c, p):
    """Ordered neurons: two master gates, which rise or fall over the units, choose which units are kept or written.

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


# --------------------------------------------------------------------------------------- stable by the form of a matrix
# Gradients neither vanish nor explode: A = R - Rᵀ - gamma I.
@cell
def antisymmetric(x, h, p, epsilon=0.01, gamma=0.01):
    """AntisymmetricRNN: a step of a stable differential equation. Chang et al. 2019, arXiv:1902.09689, (10).

    Args:
        epsilon: step size. gamma: diffusion.
    """
    return h + epsilon * tanh((p.R.h - p.R.h.T - gamma * eye()) @ h + p.W.h @ x + p.b.h)


@cell
def gated_antisymmetric(x, h, p, epsilon=0.01, gamma=0.01):
    """AntisymmetricRNN with a gate that sees h through the same matrix. Chang et al. 2019, arXiv:1902.09689, (11)."""
    A = p.R.h - p.R.h.T - gamma * eye()
    z = sigmoid(A @ h + p.W.z @ x + p.b.z)
    return h + epsilon * z * tanh(A @ h + p.W.h @ x + p.b.h)


@cell
def tgru(x, h, x_before, p):
    """T-GRU, with the previous x (I,) as a state. Balduzzi and Ghifary 2016, arXiv:1602.02218, section 3.3."""
    z = p.W.z @ x + p.V.z @ x_before + p.b.z
    f = sigmoid(p.W.f @ x + p.V.f @ x_before + p.b.f)
    o = tanh(p.W.o @ x + p.V.o @ x_before + p.b.o)
    return f * h + z * o, x


@cell
def tlstm(x, h, c, x_before, p):
    """T-LSTM, with the previous x (I,) as a state. Balduzzi and Ghifary 2016, arXiv:1602.02218, section 3.3."""
    z = p.W.z @ x + p.V.z @ x_before + p.b.z
    f = sigmoid(p.W.f @ x + p.V.f @ x_before + p.b.f)
    o = tanh(p.W.o @ x + p.V.o @ x_before + p.b.o)
    c_new = f * c + (1 - f) * z
    return c_new * o, c_new, x


# --------------------------------------------------------------------------- low rank, a smaller state, learned numbers
@cell
def low_rank_rnn(x, h, p, rank=2):
    """A random matrix g R plus a low-rank matrix m n. Mastrogiuseppe and Ostojic 2018, arXiv:1711.09672."""
    return tanh(p.W.h @ x + p.scalar.g * (p.R.h @ h) + columns(p.m, rank) @ (p.n @ h) + p.b.h)


@cell
def fast_rnn(x, h, p):
    """FastRNN: a residual connection with two learned weights. Kusupati et al. 2018, arXiv:1901.02358, (2)."""
    candidate = tanh(p.W.h @ x + p.R.h @ h + p.b.h)
    alpha, beta = initial(p.scalar.alpha, -3), initial(p.scalar.beta, 3)
    return sigmoid(alpha) * candidate + sigmoid(beta) * h


@cell
def low_rank_fast_grnn(x, h, p, rank=8):
    """FastGRNN with low-rank W and R and two learned numbers. Kusupati et al. 2018, arXiv:1901.02358, (3) and (4)."""
    a = (columns(p.W1, rank) @ p.W2.T) @ x + (columns(p.R1, rank) @ p.R2.T) @ h
    z, candidate = sigmoid(a + p.b.z), tanh(a + p.b.h)
    return (sigmoid(p.scalar.zeta) * (1 - z) + sigmoid(p.scalar.nu)) * candidate + z * h


@cell
def structurally_constrained(x, h, s, p, context=40):
    """SCRN: a slow context s with its own size and a learned rate. Mikolov et al. 2014, arXiv:1412.7753, (5) to (7)."""
    s, alpha = sized(s, context), initial(p.scalar.alpha, 0.95)
    s_new = (1 - alpha) * (p.W.s @ x) + alpha * s
    return sigmoid(p.P @ s_new + p.W.h @ x + p.R.h @ h), s_new
