"""Cells from the literature, each in a few lines of equations, for `RNN(cell, ...)`.

W multiplies the input, R a state or a value computed from one, and b is a bias. `cell(library.slstm, heads=4)` makes a
cell with other hyperparameters, and `print(library.lem.equations)` prints its equations. The guide to custom cells
lists all of them with their papers.
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


# ----------------------------------------------- the built-in cells, as equations from which everything else is derived
# Their papers are in `numbarnn.cells.lstm`, `gru` and `rnn`, written by hand there. Each sum has one bias here; GRU's n
# has the recurrent one too, which is inside the product with r. LSTM and GRU have probabilities for three ways of
# forgetting in training, 0 by default: zoneout of states (Krueger et al. 2017, arXiv:1606.01305), dropout of the
# candidate (Semeniuta et al. 2016, arXiv:1603.05118), and DropConnect of R (Merity et al. 2018, arXiv:1708.02182).
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
    """Gated recurrent unit, its reset gate applied after the product; n is dropped with probability dropout_n,
    zoneout_h, drop_R: see `lstm`.

    Cho et al. 2014, arXiv:1406.1078, in cuDNN's form.
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


# ------------------------------------------------------------------------------------------------- variants of the LSTM
@cache
def lstm_with_limits(low, high, propagate_nan):
    """Make the equations of `numbarnn.LSTM(cell_clip=(low, high), clip_propagate_nan=propagate_nan)`, which limits c
    where it is read."""

    def limited(c):
        if propagate_nan:
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
    """LSTM with exponential gates, n to normalize c, and m to keep the exponents small: the sLSTM of xLSTM.

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


# -------------------------------------------------------------------------------------------------- layer normalization
# Each norm is over all gates together, as haste has them, https://github.com/lmnt-com/haste, where `gain` is called
# gamma and `shift` beta.
@cell
def layer_norm_lstm(x, h, c, p, zoneout_h=0.0, drop_R=0.0):
    """LSTM with its products of x, those of h, and c normalized; gains begin at 1. zoneout_h, drop_R: see `lstm`.

    Ba et al. 2016, arXiv:1607.06450.
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
    """GRU with its products of x and those of h normalized; reset gate after the product; gains begin at 1. zoneout_h,
    drop_R: see `lstm`.

    Ba et al. 2016, arXiv:1607.06450.
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
    """Light GRU: no reset gate, and ReLU (of which the paper normalizes W x over the batch; here a bias stands there).

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


# ---------------------------------------------------------------------------------------------------- light recurrences
# No product with the state, only weights per unit or none, so that units do not see each other. Where a paper adds x
# itself (a highway), a product W x stands here: input and state need not have one size.
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


def recurrent_highway(depth=2):
    """Recurrent highway network: a step is `depth` highway layers, of which the first sees x; the same object for the
    same depth.

    Zilly et al. 2017, arXiv:1607.03474, with carry gate 1 - t.

    Args:
        depth: layers, from 1 on; each after the first is one more product.
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
    """Coupled oscillators, y their positions and z their velocities: coRNN.

    Rusch and Mishra 2021, arXiv:2010.00951, damping the velocity before the step.

    Args:
        dt: step of time.
        gamma: frequency.
        epsilon: damping.
    """
    force = tanh(p.R.y @ y + p.R.z @ z + p.W.z @ x + p.b.z)
    z_new = z + dt * (force - gamma * y - epsilon * z)
    return y + dt * z_new, z_new


@cell
def lem(x, y, z, p, dt=0.5):
    """Long expressive memory: two states, each with a learned time step, and y sees the new z through a product.

    Rusch et al. 2022, arXiv:2110.04744.

    Args:
        dt: the longest step of time.
    """
    slow = dt * sigmoid(p.W.slow @ x + p.R.slow @ y + p.b.slow)
    fast = dt * sigmoid(p.W.fast @ x + p.R.fast @ y + p.b.fast)
    z_new = (1 - slow) * z + slow * tanh(p.W.z @ x + p.R.z @ y + p.b.z)
    y_new = (1 - fast) * y + fast * tanh(p.W.y @ x + p.R.y @ z_new + p.b.y)
    return y_new, z_new


@cell
def liquid_time_constant(x, h, p, dt=1.0, steps=2):
    """Liquid time constants: x and h say how fast each unit goes, and how far, to its A.

    Hasani et al. 2020, arXiv:2006.04439, (1) by its fused solver (3), with f a sigmoid and τ = e^log_tau.

    Args:
        dt: time of a step. steps: of the solver in that time; each is a product.
    """
    rate, drive, part = exp(-initial(p.log_tau, 0)), p.W.f @ x + p.b.f, dt / steps
    for _ in range(steps):
        f = sigmoid(drive + p.R.f @ h)
        h = (h + part * f * p.A) / (1 + part * (rate + f))  # (3)
    return h


@cell
def lsnn(x, z, v, a, p, decay=0.9, slow=0.97, beta=0.7):
    """Neurons that fire, z, where v exceeds a threshold, which each spike raises for a while: LSNN.

    Bellec et al. 2018, arXiv:1803.09574, (1) to (4), with its pseudo-derivative; no gradient flows through the reset.

    Args:
        decay, slow: what v, and the adaptation a, keep of themselves. beta: how much a raises the threshold.
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
    """Fast weights S, a matrix (size, size), that are corrected towards v where k points: h = S_new q; the hidden size
    is `size`.

    Schlag, Irie and Schmidhuber 2021, arXiv:2102.11174, (23) and (24), with φ(k) = elu(k) + 1 over its sum. Here S is a
    state of size² units, row after row: constant matrices repeat a vector along its rows or columns, and sum up rows.

    Args:
        size: of keys and of values.
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
    """A (order, order) and B (order, 1) of a step of m' = A m + B u, of (2), with u held during it."""
    i, j = np.arange(order)[:, None], np.arange(order)
    both = np.zeros((order + 1, order + 1))
    both[:order, :order] = np.where(i < j, -1.0, (-1.0) ** (i - j + 1)) * (2 * i + 1) / theta
    both[:order, order:] = (-1.0) ** i * (2 * i + 1) / theta
    halvings = max(0, int(np.ceil(np.log2(np.linalg.norm(both)))) + 4)  # e^M is (e^(M / 2^n))^(2^n)
    small = both / 2.0**halvings
    term = power = np.eye(order + 1)
    for number in range(1, 16):
        term = term @ small / number
        power = power + term
    power = np.linalg.matrix_power(power, 2**halvings)
    return power[:order, :order], power[:order, order:]


@cell
def lmu(x, h, m, p, order=16, theta=64.0):
    """Legendre memory unit: m holds the last `theta` steps of a number u, by as many Legendre polynomials as `order`.

    Voelker, Kajić and Eliasmith 2019 (NeurIPS), (1) to (8), with A and B discretised by zero-order hold.

    Args:
        order: size of the memory. theta: steps that it reaches back.
    """
    A, B = _legendre(order, theta)
    m = sized(m, order)
    u = (B @ p.e.x) @ x + (B @ p.e.h) @ h  # B times (6), without m
    m_new = (A + B @ initial(p.e.m, 0)) @ m + u  # (4)
    return tanh(p.W.h @ x + p.R.h @ h + p.M @ m_new), m_new  # (7)


@cell
def phased_lstm(x, h, c, p, t=step, open_ratio=0.05, leak=0.001):
    """Phased LSTM: each unit has a clock, and takes in something while a phase of it is open.

    Neil, Pfeiffer and Liu 2016, arXiv:1610.09513, (7) to (10), without peepholes, at regular times. A unit's period is
    e^log_period, so that it is positive; layers of numbarnn begin with periods of about one step.

    Args:
        open_ratio: the share of a period in which the gate is open; half of it opens, half of it closes.
        leak: how much passes when it is closed, at the end of a period.
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


# --------------------------------------------------------------------------------------- stable by the form of a matrix
# Gradients neither vanish nor explode: A = R - Rᵀ - gamma I.
@cell
def antisymmetric(x, h, p, epsilon=0.01, gamma=0.01):
    """AntisymmetricRNN: a step of size epsilon of a stable differential equation, with diffusion gamma.

    Chang et al. 2019, arXiv:1902.09689, (10).
    """
    return h + epsilon * tanh((p.R.h - p.R.h.T - gamma * eye()) @ h + p.W.h @ x + p.b.h)


@cell
def gated_antisymmetric(x, h, p, epsilon=0.01, gamma=0.01):
    """The antisymmetric RNN with a gate, which sees h through the same matrix.

    Chang et al. 2019, arXiv:1902.09689, (11).
    """
    A = p.R.h - p.R.h.T - gamma * eye()
    z = sigmoid(A @ h + p.W.z @ x + p.b.z)
    return h + epsilon * z * tanh(A @ h + p.W.h @ x + p.b.h)


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


# --------------------------------------------------------------------------- low rank, a smaller state, learned numbers
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
