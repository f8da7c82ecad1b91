"""LSTM and GRU with layer normalisation (Ba et al. 2016, arXiv:1607.06450), each norm over all gates together, as haste
has them: https://github.com/lmnt-com/haste, where `gain` is called gamma and `shift` beta.
"""

from numbarnn.cells.functions import drop_connect, initial, layer_norm, sigmoid, tanh, zoneout
from numbarnn.cells.tracing import cell


@cell
def layer_norm_lstm(x, h, c, p, zoneout_h=0.0, drop_R=0.0):
    """LSTM with its products of x, those of h, and c normalised; gains begin at 1.

    Ba et al. 2016, arXiv:1607.06450.

    Args:
        zoneout_h: probability that h stays what it was.
        drop_R: probability that an element of R is dropped.
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
    """GRU with its products of x and those of h normalised; reset gate after the product; gains begin at 1.

    Ba et al. 2016, arXiv:1607.06450.

    Args:
        zoneout_h: probability that h stays what it was.
        drop_R: probability that an element of R is dropped.
    """
    R, gain_x, gain_h = drop_connect(p.R, drop_R), initial(p.gain_x, 1), initial(p.gain_h, 1)
    x_r, x_z, x_n = layer_norm(p.W.r @ x, p.W.z @ x, p.W.n @ x)
    h_r, h_z, h_n = layer_norm(R.r @ h, R.z @ h, R.n @ h)
    r = sigmoid(gain_x.r * x_r + gain_h.r * h_r + p.b.r)
    z = sigmoid(gain_x.z * x_z + gain_h.z * h_z + p.b.z)
    n = tanh(gain_x.n * x_n + p.b.n + r * (gain_h.n * h_n + p.b.q))
    return zoneout((1 - z) * n + z * h, h, zoneout_h)
