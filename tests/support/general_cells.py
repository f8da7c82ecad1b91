"""General cells with what the built-in ones do not have: vectors, unequal gates, stages, no R at all, sums over units,
random numbers. All but `drawn`, whose backward is written by hand, are made of equations (`of_equations`).
"""

from dataclasses import fields

import numbarnn as nr
from numbarnn.cells import Cell
from numbarnn.cells.definition import Noise
from numbarnn.cells.scalar import TWO
from numbarnn.cells.tracing import cell

EPSILON = 0.1
EQUATIONS = {}  # name -> the cell as it is made of its equations


def of_equations(function):
    """A cell of equations, with the biases and parameters' places that its layer's user wants, as written by hand."""
    made = EQUATIONS[function.__name__] = cell(function)
    return Cell(**{one.name: getattr(made, one.name) for one in fields(Cell)} | {"bias": None, "layout": None})


# ------------------------------------------------- a stage of three gates; more gates of ah than of ax, and two vectors
@of_equations
def blend(x, h, c, p):
    s = nr.sigmoid(p.W.s @ x + p.R.s @ h + p.peep * c)
    v = s * h
    u, w = nr.tanh(p.W.u @ x + p.R.u @ v), nr.sigmoid(p.W.w @ x + p.R.w @ v + p.scale * c)
    new_c = w * c + s * u
    return w * nr.tanh(new_c) + p.scale * (p.R.e @ v), new_c


# --------------------------------------------------------- two stages, the second of which needs the first's product
@of_equations
def chain(x, h, p):
    r = nr.sigmoid(p.W.r @ x + p.R.r @ h)
    k = nr.tanh(p.W.k @ x + p.R.k @ (r * h))
    w = k + p.passed * h
    return nr.sigmoid(p.R.z @ w) * k + r * (p.R.n @ w)


# ------------------------------------------------------------------------------------ no R; three states, one vector
@of_equations
def light(x, h, c, n, p):
    f = nr.sigmoid(p.W.f @ x + p.peep * c)
    new_c, new_n = f * c + (1 - f) * (p.W.g @ x), f * n + (1 - f) * c
    return nr.tanh(new_c) * new_n, new_c, new_n


# ------------------------------------------------ one product, with as many gates as x has; three vectors: an LSTM
@of_equations
def peephole(x, h, c, p):
    i = nr.sigmoid(p.W.i @ x + p.R.i @ h + p.peep_i * c)
    f = nr.sigmoid(p.W.f @ x + p.R.f @ h + p.peep_f * c)
    new_c = f * c + i * nr.tanh(p.W.g @ x + p.R.g @ h)
    return nr.sigmoid(p.W.o @ x + p.R.o @ h + p.peep_o * new_c) * nr.tanh(new_c), new_c


# -------------------------------------------------------------------- no stages; fewer gates of ah than of ax, a vector
@of_equations
def fewer(x, h, c, p):
    s = nr.sigmoid(p.W.s @ x + p.peep * c)
    u, w = nr.tanh(p.W.u @ x + p.R.u @ h), nr.sigmoid(p.W.w @ x)
    new_c = s * c + w * u
    return w * nr.tanh(new_c), new_c


# ------------------------------------------------------------------------------- no stages; more gates of ah than of ax
@of_equations
def more(x, h, p):
    r, k = nr.sigmoid(p.R.r @ h), p.R.k @ h
    z = nr.sigmoid(p.R.z @ h)
    return (1 - z) * nr.tanh(p.W.u @ x + r * k) + z * h


# --------------------------------------------------------------- one sum: the mean is taken off the pre-activation
@of_equations
def centered(x, h, p):
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


WRITTEN = {
    one.name: one
    for one in (
        blend, chain, light, peephole, fewer, more, centered, normed, ladder, noisy, noisy_mean, DRAWN,
    )
}  # fmt: skip
