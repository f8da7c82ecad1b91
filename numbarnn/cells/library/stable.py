"""Cells whose gradients neither vanish nor explode, by the form of their matrix: A = R - Rᵀ - gamma I."""

from numbarnn.cells.functions import eye, sigmoid, tanh
from numbarnn.cells.tracing import cell


@cell
def antisymmetric(x, h, p, epsilon=0.01, gamma=0.01):
    """AntisymmetricRNN: a step of size epsilon of a stable differential equation, with diffusion gamma.

    Chang et al. 2019, arXiv:1902.09689, (10).
    """
    return h + epsilon * tanh((p.R.h - p.R.h.T - gamma * eye()) @ h + p.W.h @ x + p.b.h)


@cell
def gated_antisymmetric(x, h, p, epsilon=0.01, gamma=0.01):
    """The same with a gate, which sees h through the same matrix.

    Chang et al. 2019, arXiv:1902.09689, (11).
    """
    A = p.R.h - p.R.h.T - gamma * eye()
    z = sigmoid(A @ h + p.W.z @ x + p.b.z)
    return h + epsilon * z * tanh(A @ h + p.W.h @ x + p.b.h)
