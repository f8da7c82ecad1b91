"""The vanilla RNN (Elman 1990, doi:10.1207/s15516709cog1402_1), with tanh or ReLU, as in cuDNN.

With ax = W x + b_w and ah = R h' + b_r, where h' is the previous step's:

    h = φ(ax + ah)                                                         (1)
    da = dh φ'(a), from h itself: 1 - h² for tanh, [h > 0] for ReLU        (2)
    dh' = Rᵀ da                                                            (3)
"""

from numbarnn.cells.definition import Cell
from numbarnn.cells.scalar import ZERO, d_relu, d_tanh, relu, tanh


def rnn_tanh_forward(ax, ah, state):
    """Compute one step of one unit: (1)."""
    return (tanh(ax[0] + ah[0]),), ()


def rnn_tanh_backward(saved, state, new_state, d_state):
    """Compute one step of one unit backward: (2)."""
    gates = (d_state[0] * d_tanh(new_state[0]),)
    return gates, gates, (ZERO,)


def rnn_relu_forward(ax, ah, state):
    """Compute one step of one unit: (1)."""
    return (relu(ax[0] + ah[0]),), ()


def rnn_relu_backward(saved, state, new_state, d_state):
    """Compute one step of one unit backward: (2)."""
    gates = (d_state[0] * d_relu(new_state[0]),)
    return gates, gates, (ZERO,)


RNN_TANH = Cell("rnn_tanh", ("h",), ("h",), (), rnn_tanh_forward, rnn_tanh_backward)
RNN_RELU = Cell("rnn_relu", ("h",), ("h",), (), rnn_relu_forward, rnn_relu_backward)
