"""Gated recurrent unit, cuDNN's form.

Cho et al. 2014, arXiv:1406.1078, with the reset gate applied after the recurrent product (so that R h' is one product)
and two biases, as in cuDNN and PyTorch; gate order r z n. With ax = W x + b_w and ah = R h' + b_r, where h' is the
previous step's:

    r = σ(ax_r + ah_r)      z = σ(ax_z + ah_z)                             (1)
    q = ah_n                n = tanh(ax_n + r q)                           (2)
    h = (1 - z) n + z h'  = n + z (h' - n)                                 (3)

Backward, given dh:

    dz = dh (h' - n) z (1 - z)                                             (4)
    dn = dh (1 - z) (1 - n²)                                               (5)
    dr = dn q r (1 - r)     dq = dn r                                      (6)
    dh' = dh z + Rᵀ [dr dz dq]                                             (7)

The pre-activations' gradients are dr, dz, dn on the side of W x and dr, dz, dq on the side of R h': they differ in the
last gate, and so do the gradients of the two biases.
"""

from numbarnn.cells.definition import Cell
from numbarnn.cells.scalar import d_sigmoid, d_tanh, sigmoid, tanh


def gru_forward(ax, ah, state):
    """One step of one unit: (1) to (3)."""
    (h,) = state
    r = sigmoid(ax[0] + ah[0])  # (1)
    z = sigmoid(ax[1] + ah[1])
    q = ah[2]  # (2)
    n = tanh(ax[2] + r * q)
    h = n + z * (h - n)  # (3)
    return (h,), (r, z, n, q)


def gru_backward(saved, state, new_state, d_state):
    """One step of one unit backward: (4) to (7) but for Rᵀ, which is a matrix product."""
    r, z, n, q = saved
    (h_before,) = state
    (dh,) = d_state
    dz = dh * (h_before - n) * d_sigmoid(z)  # (4)
    dn = (dh - dh * z) * d_tanh(n)  # (5)
    dr = dn * q * d_sigmoid(r)  # (6)
    dq = dn * r
    return (dr, dz, dn), (dr, dz, dq), (dh * z,)  # (7)


GRU = Cell("gru", ("r", "z", "n"), ("h",), ("r", "z", "n", "q"), gru_forward, gru_backward, same_gradient=False)
