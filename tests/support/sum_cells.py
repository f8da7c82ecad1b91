"""General cells that add up over the units of a sequence, or draw random numbers. Of `drawn` backward is written by
hand, too; the others' is derived.

`SUM_STEPS` are equations of cells by hand once more, without stages: functions of PyTorch tensors, for autograd, each
(product, states, per_unit, noise=()) -> new states, as in general_cells.py.

    noise       (B, H) each, or numbers
"""

import numbarnn as nr
from general_cells import of_equations
from numbarnn.cells import Cell
from numbarnn.cells.definition import Noise
from numbarnn.cells.scalar import TWO

EPSILON = 0.1


# --------------------------------------------------------------- one sum: the mean is taken off the pre-activation
@of_equations
def centred(x, h, p):
    a = p.W.a @ x + p.R.a @ h
    return nr.tanh(a - nr.mean(a))


# ------------------------------------------------- two stages of sums in a row, the second needs the first: layer norm
@of_equations
def normed(x, h, p):
    a = p.W.a @ x + p.R.a @ h
    z = nr.sigmoid(p.W.z @ x + p.R.z @ h)
    d = a - nr.mean(a)
    u = nr.tanh(p.gain * d / nr.sqrt(nr.mean(d * d) + EPSILON) + p.shift)
    return u + z * (h - u)


# ------- sums (two at once), product, sums, sums, product; a private state, a vector, more gates of ah than of ax
@of_equations
def ladder(x, h, c, p):
    s = nr.sigmoid(p.W.s @ x + p.R.s @ h)
    v = s * h - nr.mean(p.passed * h)
    k = nr.tanh(p.W.k @ x + p.R.k @ v + nr.mean(s * c))
    g = nr.sigmoid(p.R.g @ v)
    d = k - nr.mean(k)
    y = d / nr.sqrt(nr.mean(d * d) + EPSILON)
    c_new = s * c + g * y
    return g * nr.tanh(c_new + p.R.o @ (g * y)) + p.passed * (p.R.e @ h), c_new


# ------------------------------- noise, some anew in each step, some for all: of h, of the update, and zoneout
@of_equations
def noisy(x, h, c, p):
    update, variational = nr.dropout(1 + 0 * h, 0.3), nr.dropout(1 + 0 * h, 0.25, each_step=False)
    u = nr.tanh(p.W.u @ x + variational * (p.R.u @ h))
    g = nr.sigmoid(p.W.g @ x + variational * (p.R.g @ h))
    c_new = c + update * g * (u - c)
    return nr.zoneout(nr.tanh(c_new), h, 0.4), c_new


# ------------------------------------------------------------------- noise in the terms of a sum, and in a vector
@of_equations
def noisy_mean(x, h, p):
    a = nr.dropout(p.W.a @ x + p.R.a @ h, 0.2)
    return nr.tanh(a - nr.mean(a) + p.R.p @ (nr.dropout(h, 0.5, each_step=False) + nr.mean(a)))


# --------------------------------------------------------- h says what was drawn: more numbers than a Philox has words
def drawn_forward(ax, ah, state, given):
    n = given.noise
    return (n[0] + TWO * (n[1] + TWO * (n[2] + TWO * (n[3] + TWO * (n[4] + TWO * (n[5] + TWO * n[6]))))),), ()


def drawn_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    """The gradient of ax is h once more, as backward draws it, times the gradient."""
    (h,), _ = drawn_forward((), (), (), given)
    return (h * d_state[0],), (), (d_state[0] - d_state[0],), ()


DRAWN = Cell(
    "drawn", ("a",), ("h",), (), drawn_forward, drawn_backward, same_gradient=False, recurrent=(), general=True,
    noise=tuple(Noise(0.1 + 0.1 * k, mean=0.5, each_step=k not in (2, 5)) for k in range(7)),
)  # fmt: skip


def drawn_step(product, states, per_unit, noise):
    return (sum(2**k * n for k, n in enumerate(noise)) + 0 * states[0],)


SUM_CELLS = {"centred": centred, "normed": normed, "ladder": ladder}
NOISE_CELLS = {"noisy": noisy, "noisy_mean": noisy_mean, "drawn": DRAWN}
SUM_STEPS = {"drawn": drawn_step}
