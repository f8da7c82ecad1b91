"""General cells that add up over the units of a sequence, or draw random numbers. Of `ladder`, `noisy` and `drawn`
backward is written by hand, too; the others' is derived.

`SUM_STEPS` are equations of cells by hand once more, without stages: functions of PyTorch tensors, for autograd, each
(product, states, per_unit, noise=()) -> new states, as in general_cells.py.

    noise       (B, H) each, or numbers
"""

import numbarnn as nr
from general_cells import of_equations
from numbarnn.cells import Cell
from numbarnn.cells.definition import Noise, Stage
from numbarnn.cells.scalar import ONE, TWO, d_sigmoid, d_tanh, sigmoid, sqrt, tanh

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
def inverse_deviation(total, count):
    return ONE / sqrt(total / count + EPSILON)


def ladder_s(ax, ah):
    return sigmoid(ax[0] + ah[0])


def ladder_first(ax, ah, state, given):
    return ladder_s(ax, ah) * state[1], given.per_unit[0] * state[0]


def ladder_v(ax, ah, state, given):
    return ladder_s(ax, ah) * state[0] - given.sums[1] / given.sums[0]


def ladder_k(ax, ah, sums):
    return tanh(ax[1] + ah[2] + sums[2] / sums[0])


def ladder_total(ax, ah, state, given):
    return (ladder_k(ax, ah, given.sums),)


def ladder_square(ax, ah, state, given):
    d = ladder_k(ax, ah, given.sums) - given.sums[3] / given.sums[0]
    return (d * d,)


def ladder_y(k, sums):
    return (k - sums[3] / sums[0]) * inverse_deviation(sums[4], sums[0])


def ladder_w(ax, ah, state, given):
    return sigmoid(ah[3]) * ladder_y(ladder_k(ax, ah, given.sums), given.sums)


def ladder_forward(ax, ah, state, given):
    s, k, g = ladder_s(ax, ah), ladder_k(ax, ah, given.sums), sigmoid(ah[3])
    c = s * state[1] + g * ladder_y(k, given.sums)
    t = tanh(c + ah[4])
    return (g * t + given.per_unit[0] * ah[1], c), (s, k, g, t, ah[1])


def ladder_o(saved, d_state):
    """Gradient of what is inside of t."""
    return d_state[0] * saved[2] * d_tanh(saved[3])


def ladder_w_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    return (ladder_o(saved, d_state),)


def ladder_y_backward(saved, d_state, d_v):
    """Gradient of g y."""
    return d_state[1] + ladder_o(saved, d_state) + d_v[1]


def ladder_square_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    dy, d, r = (
        ladder_y_backward(saved, d_state, d_v) * saved[2],
        saved[1] - given.sums[3] / given.sums[0],
        inverse_deviation(given.sums[4], given.sums[0]),
    )
    return (-dy * d * r * r * r / (TWO * given.sums[0]),)


def ladder_d_backward(saved, d_state, d_v, sums, d_square):
    dy = ladder_y_backward(saved, d_state, d_v) * saved[2]
    return dy * inverse_deviation(sums[4], sums[0]) + TWO * (saved[1] - sums[3] / sums[0]) * d_square


def ladder_total_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    return (-ladder_d_backward(saved, d_state, d_v, given.sums, d_sums[3]) / given.sums[0],)


def ladder_k_backward(saved, d_state, d_v, sums, d_sums):
    """Gradient of what is inside of k."""
    return (ladder_d_backward(saved, d_state, d_v, sums, d_sums[3]) + d_sums[2]) * d_tanh(saved[1])


def ladder_v_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    dg = d_state[0] * saved[3] + ladder_y_backward(saved, d_state, d_v) * ladder_y(saved[1], given.sums)
    return ladder_k_backward(saved, d_state, d_v, given.sums, d_sums), dg * d_sigmoid(saved[2])


def ladder_first_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    return -d_v[0] / given.sums[0], ladder_k_backward(saved, d_state, d_v, given.sums, d_sums) / given.sums[0]


def ladder_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    s, _, _, _, e = saved
    dk, dc = ladder_k_backward(saved, d_state, d_v, given.sums, d_sums), d_state[1] + ladder_o(saved, d_state)
    ds = ((dc + d_sums[0]) * state[1] + d_v[0] * state[0]) * d_sigmoid(s)
    d_before = d_v[0] * s + d_sums[1] * given.per_unit[0], (dc + d_sums[0]) * s
    return (ds, dk), (ds, d_state[0] * given.per_unit[0]), d_before, (d_state[0] * e + d_sums[1] * state[0],)


LADDER = Cell(
    "ladder", ("s", "k"), ("h", "c"), ("s", "k", "g", "t", "e"), ladder_forward, ladder_backward, same_gradient=False,
    recurrent=("s", "e"), per_unit=("pass",), general=True, stages=(
        Stage((), ladder_first, ladder_first_backward, sums=("p", "q")),
        Stage(("k", "g"), ladder_v, ladder_v_backward),
        Stage((), ladder_total, ladder_total_backward, sums=("total",)),
        Stage((), ladder_square, ladder_square_backward, sums=("squares",)),
        Stage(("o",), ladder_w, ladder_w_backward),
    ),
)  # fmt: skip


def ladder_step(product, states, per_unit, noise=()):
    (x, r), (h, c), (passed,) = product, states, per_unit
    s = (x(0) + r(0, h)).sigmoid()
    v = s * h - (s * c).mean(dim=1, keepdim=True)
    k, g = (x(1) + r(2, v) + (passed * h).mean(dim=1, keepdim=True)).tanh(), r(3, v).sigmoid()
    d = k - k.mean(dim=1, keepdim=True)
    y = d / (d.square().mean(dim=1, keepdim=True) + EPSILON).sqrt()
    c = s * c + g * y
    return g * (c + r(4, g * y)).tanh() + passed * r(1, h), c


# ------------------------------- noise, some anew in each step, some for all: of h, of the update, and zoneout
def noisy_forward(ax, ah, state, given):
    u, g = tanh(ax[0] + given.noise[1] * ah[0]), sigmoid(ax[1] + given.noise[1] * ah[1])
    c = state[1] + given.noise[0] * g * (u - state[1])
    return (given.noise[2] * tanh(c) + (ONE - given.noise[2]) * state[0], c), (u, g)


def noisy_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    u, g = saved
    dc = d_state[1] + d_state[0] * given.noise[2] * d_tanh(tanh(new_state[1]))
    du, dg = dc * given.noise[0] * g * d_tanh(u), dc * given.noise[0] * (u - state[1]) * d_sigmoid(g)
    d_before = d_state[0] * (ONE - given.noise[2]), dc * (ONE - given.noise[0] * g)
    return (du, dg), (du * given.noise[1], dg * given.noise[1]), d_before, ()


NOISY = Cell(
    "noisy", ("u", "g"), ("h", "c"), ("u", "g"), noisy_forward, noisy_backward, same_gradient=False, general=True,
    noise=(Noise(0.3, kept=1 / 0.7), Noise(0.25, kept=1 / 0.75, each_step=False), Noise(0.4, mean=0.6)),
)  # fmt: skip


def noisy_step(product, states, per_unit, noise):
    (x, r), (h, c), (update, variational, zoneout) = product, states, noise
    u, g = (x(0) + variational * r(0, h)).tanh(), (x(1) + variational * r(1, h)).sigmoid()
    c = c + update * g * (u - c)
    return zoneout * c.tanh() + (1 - zoneout) * h, c


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


SUM_CELLS = {"centred": centred, "normed": normed, "ladder": LADDER}
NOISE_CELLS = {"noisy": NOISY, "noisy_mean": noisy_mean, "drawn": DRAWN}
SUM_STEPS = {
    "ladder": ladder_step,
    "noisy": noisy_step,
    "drawn": drawn_step,
}
