"""Discretised differential equations: a step of coupled oscillators, with time scales of the units, of spiking ones."""

from numbarnn.cells.functions import abs, custom_derivative, exp, initial, maximum, sigmoid, stop_gradient, tanh, where
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
