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

With cell clip (cudnnRNNSetClip) c is limited wherever it is read, and no gradient passes where c is beyond the bounds.
The state c itself is not limited:

    k(c) = min(max(c, lclip), rclip)
    c = f k(c') + i g       h = o tanh(k(c))                               (3a)
    dc += dh o (1 - tanh²(k(c)))   but 0 where c is beyond the bounds     (4a)
    df = dc k(c') f (1 - f)        do = dh tanh(k(c)) o (1 - o)            (5a)
    dc' = dc f                     but 0 where c' is beyond the bounds    (7a)

cuDNN 9.19 computes these equations to the last bits of float64 (tests/data/cudnn-lstm-clip*.npz, recorded on an H200);
its documentation does not give them.
"""

from functools import cache
from math import inf
from types import FunctionType

from numbarnn.cells.definition import Cell
from numbarnn.cells.scalar import ZERO, clip, clip_nan, d_sigmoid, d_tanh, sigmoid, tanh, within, within_nan
from numbarnn.common.precision import is_number


def lstm_forward(ax, ah, state):
    """Compute one step of one unit: (1) to (3)."""
    _, c = state
    i = sigmoid(ax[0] + ah[0])  # (1)
    f = sigmoid(ax[1] + ah[1])
    g = tanh(ax[2] + ah[2])  # (2)
    o = sigmoid(ax[3] + ah[3])
    c = f * c + i * g  # (3)
    h = o * tanh(c)
    return (h, c), (i, f, g, o)


def lstm_backward(saved, state, new_state, d_state):
    """Compute one step of one unit backward: (4) to (7) without the matrix product with Rᵀ."""
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
# `clipped` copies the functions below with other values of these names.
LCLIP, RCLIP, LIMIT, WITHIN = -inf, inf, clip, within


def clipped_forward(ax, ah, state):
    """Compute one step of one unit: (1), (2), (3a)."""
    (_, c), gates = lstm_forward(ax, ah, (state[0], LIMIT(state[1], LCLIP, RCLIP)))
    return (gates[3] * tanh(LIMIT(c, LCLIP, RCLIP)), c), gates


def clipped_backward(saved, state, new_state, d_state):
    """Compute one step of one unit backward: (4a) to (7a)."""
    (dh, dc), (_, c_before), (_, c), o = d_state, state, new_state, saved[3]
    before, limited = (ZERO, LIMIT(c_before, LCLIP, RCLIP)), (ZERO, LIMIT(c, LCLIP, RCLIP))
    d_limited = WITHIN(c, LCLIP, RCLIP, dh), dc
    (di, df, dg, _), _, (_, dc) = lstm_backward(saved, before, limited, d_limited)
    gates = (di, df, dg, dh * tanh(limited[1]) * d_sigmoid(o))
    return gates, gates, (ZERO, WITHIN(c_before, LCLIP, RCLIP, dc))


@cache
def clipped(lclip, rclip, propagate_nan=True):
    """Return the LSTM that limits c to [lclip, rclip] wherever it reads c; without propagate_nan NaN becomes lclip."""
    names = {"LCLIP": float(lclip), "RCLIP": float(rclip)}
    names |= {"LIMIT": clip, "WITHIN": within} if propagate_nan else {"LIMIT": clip_nan, "WITHIN": within_nan}
    functions = [
        FunctionType(one.__code__, one.__globals__ | names, one.__name__) for one in (clipped_forward, clipped_backward)
    ]
    varied_by = ("cell_clip", (lclip, rclip)), *([] if propagate_nan else [("clip_propagate_nan", False)])
    name = "lstm_clip" + "_no_nan" * (not propagate_nan)
    return Cell(name, LSTM.gates, LSTM.states, LSTM.saved, *functions, varied_by=varied_by)


def with_options(cell_clip=None, clip_propagate_nan=True):
    """Return the LSTM with these options of `numbarnn.LSTM`."""
    if not isinstance(clip_propagate_nan, bool):
        raise TypeError(f"clip_propagate_nan must be True or False, not {clip_propagate_nan!r}")
    return LSTM if cell_clip is None else clipped(*_limits(cell_clip), clip_propagate_nan)


def _limits(value):
    """Return (lclip, rclip) as floats."""
    pair = (-value, value) if is_number(value) else value
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(is_number, pair)):
        raise TypeError(f"cell_clip must be None, a positive number or a pair (lclip, rclip), not {value!r}")
    lclip, rclip = map(float, pair)
    if not lclip < rclip:
        raise ValueError(f"cell_clip must have lclip < rclip (a number c stands for -c and c), but is {value!r}")
    return lclip, rclip
