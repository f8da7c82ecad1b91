"""Long short-term memory.

Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; with the forget gate of Gers, Schmidhuber and Cummins
2000, doi:10.1162/089976600300015015; two biases and gate order i f g o as in cuDNN. With ax = W x + b_w and
ah = R h' + b_r, where h' and c' are the previous step's:

    i = σ(ax_i + ah_i)      f = σ(ax_f + ah_f)                             (1)
    g = tanh(ax_g + ah_g)   o = σ(ax_o + ah_o)                             (2)
    c = f c' + i g          h = o tanh(c)                                  (3)

Backward, given dh and dc (the gradient that reaches c from the next step):

    dc += dh o (1 - tanh²(c))                                              (4)
    di = dc g i (1 - i)     df = dc c' f (1 - f)                           (5)
    dg = dc i (1 - g²)      do = dh tanh(c) o (1 - o)                      (6)
    dc' = dc f              dh' = Rᵀ [di df dg do]                         (7)

di, df, dg, do are the gradients of the gates' pre-activations, for W x as for R h'.

With cell clip (cudnnRNNSetClip) c is limited before h is computed from it, and where it was, no gradient reaches what
it was computed from:

    c = min(max(f c' + i g, lclip), rclip)                                 (3a)
    di = df = dg = dc' = 0 where c is lclip or rclip                       (5a)

That cuDNN's gradient is (5a), and what it makes of NaN, is an assumption (`tests/support/cudnn_assumptions.py`).
"""

from functools import cache
from math import inf
from types import FunctionType

from numbarnn.cells.definition import Cell
from numbarnn.cells.scalar import ZERO, clip, clip_nan, d_sigmoid, d_tanh, inside, sigmoid, tanh


def lstm_forward(ax, ah, state):
    """One step of one unit: (1) to (3)."""
    _, c = state
    i = sigmoid(ax[0] + ah[0])  # (1)
    f = sigmoid(ax[1] + ah[1])
    g = tanh(ax[2] + ah[2])  # (2)
    o = sigmoid(ax[3] + ah[3])
    c = f * c + i * g  # (3)
    h = o * tanh(c)
    return (h, c), (i, f, g, o)


def lstm_backward(saved, state, new_state, d_state):
    """One step of one unit backward: (4) to (7) but for Rᵀ, which is a matrix product."""
    i, f, g, o = saved
    _, c_before = state
    _, c = new_state
    dh, dc = d_state
    tanh_c = tanh(c)
    dc = dc + dh * o * d_tanh(tanh_c)  # (4)
    di = dc * g * d_sigmoid(i)  # (5)
    df = dc * c_before * d_sigmoid(f)
    dg = dc * i * d_tanh(g)  # (6)
    do = dh * tanh_c * d_sigmoid(o)
    gates = (di, df, dg, do)
    return gates, gates, (ZERO, dc * f)  # (7)


LSTM = Cell("lstm", ("i", "f", "g", "o"), ("h", "c"), ("i", "f", "g", "o"), lstm_forward, lstm_backward)


# ---------------------------------------------------------------------------------------------------- with cell clip
LCLIP, RCLIP, LIMIT = -inf, inf, clip  # `clipped` gives copies of these functions other ones


def clipped_forward(ax, ah, state):
    """One step of one unit: (1), (2), (3a)."""
    (_, c), gates = lstm_forward(ax, ah, state)
    c = LIMIT(c, LCLIP, RCLIP)  # (3a)
    return (gates[3] * tanh(c), c), gates


def clipped_backward(saved, state, new_state, d_state):
    """One step of one unit backward: (4) to (7), with (5a)."""
    (di, df, dg, do), _, (_, dc) = lstm_backward(saved, state, new_state, d_state)
    c = new_state[1]
    di, df, dg = inside(c, LCLIP, RCLIP, di), inside(c, LCLIP, RCLIP, df), inside(c, LCLIP, RCLIP, dg)  # (5a)
    gates = (di, df, dg, do)
    return gates, gates, (ZERO, inside(c, LCLIP, RCLIP, dc))


@cache
def clipped(lclip, rclip, propagate_nan=True):
    """Return the LSTM whose c is limited to [lclip, rclip] at each step.

    Args:
        propagate_nan: NaN stays NaN; else it becomes lclip.
    """
    own = {"LCLIP": float(lclip), "RCLIP": float(rclip), "LIMIT": clip if propagate_nan else clip_nan}
    functions = [
        FunctionType(one.__code__, one.__globals__ | own, one.__name__) for one in (clipped_forward, clipped_backward)
    ]
    return Cell("lstm_clip" + "_no_nan" * (not propagate_nan), LSTM.gates, LSTM.states, LSTM.saved, *functions)
