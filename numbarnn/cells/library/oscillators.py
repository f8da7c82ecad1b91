"""Discretised differential equations: a step of time dt of coupled oscillators, or with a time scale of each unit."""

from numbarnn.cells.functions import sigmoid, tanh
from numbarnn.cells.tracing import cell


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
