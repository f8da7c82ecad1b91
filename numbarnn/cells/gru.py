"""Gated recurrent unit: cuDNN's form, and the original form.

Cho et al. 2014, arXiv:1406.1078. cuDNN and PyTorch apply the reset gate after the recurrent product, so that R h' is
one product, and have two biases. Gate order r z n. With ax = W x + b_w and ah = R h' + b_r, where h' is the previous
step's:

    r = σ(ax_r + ah_r)      z = σ(ax_z + ah_z)                             (1)
    q = ah_n                n = tanh(ax_n + r q)                           (2)
    h = (1 - z) n + z h'  = n + z (h' - n)                                 (3)

Backward, given dh:

    dz = dh (h' - n) z (1 - z)                                             (4)
    dn = dh (1 - z) (1 - n²)                                               (5)
    dr = dn q r (1 - r)     dq = dn r                                      (6)
    dh' = dh z + Rᵀ [dr dz dq]                                             (7)

The gradients of the pre-activations are dr, dz, dn for W x and dr, dz, dq for R h'. They differ in the last gate, and
so do the gradients of the two biases. A single recurrent bias is part of q in (2): cudnn.h says of
CUDNN_RNN_SINGLE_REC_BIAS "one recurrent bias in recurrent GEMM". We assume that cuDNN computes this
(`tests/support/cudnn_assumptions.py`).

Cho et al. reset the state before the product (Keras: reset_after=False; ONNX: linear_before_reset=0), so that a step
has two products. The n gate of ah is then R_n v + b_rn:

    v = r h'                n = tanh(ax_n + ah_n)                          (2a)
    dv = R_nᵀ dn            dr = dv h' r (1 - r)                           (6a)
    dh' = dh z + dv r + [R_r R_z]ᵀ [dr dz]                                 (7a)
"""

from numbarnn.cells.definition import Cell, Stage
from numbarnn.cells.scalar import d_sigmoid, d_tanh, sigmoid, tanh


def reset_gate(ax, ah):
    """Compute r of (1)."""
    return sigmoid(ax[0] + ah[0])


def update_gate(ax, ah):
    """Compute z of (1)."""
    return sigmoid(ax[1] + ah[1])


def mix(n, z, h):
    """Compute h, (3)."""
    return n + z * (h - n)


def mix_backward(dh, n, z, h):
    """Compute dz and dn, (4) and (5)."""
    return dh * (h - n) * d_sigmoid(z), (dh - dh * z) * d_tanh(n)


def gru_forward(ax, ah, state):
    """Compute one step of one unit: (1) to (3)."""
    (h,) = state
    r = reset_gate(ax, ah)  # (1)
    z = update_gate(ax, ah)
    q = ah[2]  # (2)
    n = tanh(ax[2] + r * q)
    return (mix(n, z, h),), (r, z, n, q)


def gru_backward(saved, state, new_state, d_state):
    """Compute one step of one unit backward: (4) to (7) without the matrix product with Rᵀ."""
    r, z, n, q = saved
    (h_before,) = state
    (dh,) = d_state
    dz, dn = mix_backward(dh, n, z, h_before)  # (4) (5)
    dr = dn * q * d_sigmoid(r)  # (6)
    dq = dn * r
    return (dr, dz, dn), (dr, dz, dq), (dh * z,)  # (7)


GRU = Cell("gru", ("r", "z", "n"), ("h",), ("r", "z", "n", "q"), gru_forward, gru_backward, same_gradient=False)


# --------------------------------------------------------------------------------------- reset before the product
def reset_forward(ax, ah, state, given):
    """Compute v of (2a)."""
    return reset_gate(ax, ah) * state[0]


def reset_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    """Compute dn of (5), the gradient of R_n v."""
    _, z, n = saved
    return (mix_backward(d_state[0], n, z, state[0])[1],)


def gru_reset_before_forward(ax, ah, state, given):
    """Compute one step of one unit: (1), n of (2a), (3)."""
    (h,) = state
    z = update_gate(ax, ah)
    n = tanh(ax[2] + ah[2])
    return (mix(n, z, h),), (reset_gate(ax, ah), z, n)


def gru_reset_before_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    """Compute one step of one unit backward: (4), (5), (6a) and (7a) without the products with Rᵀ."""
    r, z, n = saved
    (h_before,) = state
    (dh,) = d_state
    dz, dn = mix_backward(dh, n, z, h_before)  # (4) (5)
    dr = d_v[0] * h_before * d_sigmoid(r)  # (6a)
    return (dr, dz, dn), (dr, dz), (dh * z + d_v[0] * r,), ()


GRU_RESET_BEFORE = Cell(
    "gru_reset_before", ("r", "z", "n"), ("h",), ("r", "z", "n"), gru_reset_before_forward, gru_reset_before_backward,
    same_gradient=False, recurrent=("r", "z"), stages=(Stage(("n",), reset_forward, reset_backward),), general=True,
)  # fmt: skip
