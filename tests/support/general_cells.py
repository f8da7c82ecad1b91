"""General cells written by hand, with what the built-in ones do not have: vectors, unequal gates, stages, no R at all.

`STEPS` are their equations once more, without gates and stages: functions of PyTorch tensors, for autograd.
"""

from numbarnn.cells import Cell
from numbarnn.cells.definition import Stage
from numbarnn.cells.scalar import ONE, ZERO, d_sigmoid, d_tanh, sigmoid, tanh


# ------------------------------------------------- a stage of three gates; more gates of ah than of ax, and two vectors
def blend_gate(ax, ah, state, given):
    return sigmoid(ax[0] + ah[0] + given.per_unit[0] * state[1])


def blend_v(ax, ah, state, given):
    return blend_gate(ax, ah, state, given) * state[0]


def blend_forward(ax, ah, state, given):
    s = blend_gate(ax, ah, state, given)
    u, w = tanh(ax[1] + ah[1]), sigmoid(ax[2] + ah[2] + given.per_unit[1] * state[1])
    c = w * state[1] + s * u
    return (w * tanh(c) + given.per_unit[1] * ah[3], c), (s, u, w, ah[3])


def blend_inner(saved, state, new_state, d_state):
    """Gradients of c, and of what is inside of u and w."""
    s, u, w, _ = saved
    t = tanh(new_state[1])
    dc = d_state[1] + d_state[0] * w * d_tanh(t)
    return dc, dc * s * d_tanh(u), (d_state[0] * t + dc * state[1]) * d_sigmoid(w)


def blend_v_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    _, du, dw = blend_inner(saved, state, new_state, d_state)
    return du, dw, d_state[0] * given.per_unit[1]


def blend_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    s, u, w, e = saved
    h, c = state
    dc, du, dw = blend_inner(saved, state, new_state, d_state)
    ds = (dc * u + d_v[0] * h) * d_sigmoid(s)
    d_before = d_v[0] * s, dc * w + ds * given.per_unit[0] + dw * given.per_unit[1]
    return (ds, du, dw), (ds,), d_before, (ds * c, dw * c + d_state[0] * e)


BLEND = Cell(
    "blend", ("s", "u", "w"), ("h", "c"), ("s", "u", "w", "e"), blend_forward, blend_backward, same_gradient=False,
    recurrent=("s",), stages=(Stage(("u", "w", "e"), blend_v, blend_v_backward),), per_unit=("peep", "scale"),
    general=True,
)  # fmt: skip


def blend_step(product, states, per_unit):
    """A step's new states.

    product     (x, r): x(gate) is W of the gate times the step's input, r(gate, vector) R times a vector; with biases
    states      (B, H) each, h first
    vectors     (H,) each
    """
    (x, r), (h, c), (peep, scale) = product, states, per_unit
    s = (x(0) + r(0, h) + peep * c).sigmoid()
    u, w = (x(1) + r(1, s * h)).tanh(), (x(2) + r(2, s * h) + scale * c).sigmoid()
    c = w * c + s * u
    return w * c.tanh() + scale * r(3, s * h), c


# --------------------------------------------------------- two stages, the second of which needs the first's product
def chain_v(ax, ah, state, given):
    return sigmoid(ax[0] + ah[0]) * state[0]


def chain_w(ax, ah, state, given):
    return tanh(ax[1] + ah[1]) + given.per_unit[0] * state[0]


def chain_forward(ax, ah, state, given):
    r, k, z = sigmoid(ax[0] + ah[0]), tanh(ax[1] + ah[1]), sigmoid(ah[2])
    return (z * k + r * ah[3],), (r, k, z, ah[3])


def chain_w_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    r, k, z, _ = saved
    return d_state[0] * k * d_sigmoid(z), d_state[0] * r


def chain_k_backward(saved, d_state, d_v):
    return (d_state[0] * saved[2] + d_v[1]) * d_tanh(saved[1])


def chain_v_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    return (chain_k_backward(saved, d_state, d_v),)


def chain_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    r, _, _, n = saved
    dr, dk = (d_state[0] * n + d_v[0] * state[0]) * d_sigmoid(r), chain_k_backward(saved, d_state, d_v)
    return (dr, dk), (dr,), (d_v[0] * r + d_v[1] * given.per_unit[0],), (d_v[1] * state[0],)


CHAIN = Cell(
    "chain", ("r", "k"), ("h",), ("r", "k", "z", "n"), chain_forward, chain_backward, same_gradient=False,
    recurrent=("r",), per_unit=("pass",), general=True,
    stages=(Stage(("k",), chain_v, chain_v_backward), Stage(("z", "n"), chain_w, chain_w_backward)),
)  # fmt: skip


def chain_step(product, states, per_unit):
    """As `blend_step`."""
    (x, r), (h,), (passed,) = product, states, per_unit
    reset = (x(0) + r(0, h)).sigmoid()
    k = (x(1) + r(1, reset * h)).tanh()
    w = k + passed * h
    return (r(2, w).sigmoid() * k + reset * r(3, w),)


# ------------------------------------------------------------------------------------ no R; three states, one vector
def light_forward(ax, ah, state, given):
    _, c, n = state
    f, g = sigmoid(ax[0] + given.per_unit[0] * c), ax[1]
    new_c, new_n = f * c + (ONE - f) * g, f * n + (ONE - f) * c
    return (tanh(new_c) * new_n, new_c, new_n), (f, g)


def light_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    (f, g), (_, c, n), (_, new_c, new_n) = saved, state, new_state
    t = tanh(new_c)
    dn, dc = d_state[2] + d_state[0] * t, d_state[1] + d_state[0] * new_n * d_tanh(t)
    df = (dc * (c - g) + dn * (n - c)) * d_sigmoid(f)
    d_before = ZERO, dc * f + dn * (ONE - f) + df * given.per_unit[0], dn * f
    return (df, dc * (ONE - f)), (), d_before, (df * c,)


LIGHT = Cell(
    "light", ("f", "g"), ("h", "c", "n"), ("f", "g"), light_forward, light_backward, same_gradient=False,
    recurrent=(), per_unit=("peep",), general=True,
)  # fmt: skip


def light_step(product, states, per_unit):
    """As `blend_step`."""
    (x, _), (_, c, n), (peep,) = product, states, per_unit
    f = (x(0) + peep * c).sigmoid()
    new_c, new_n = f * c + (1 - f) * x(1), f * n + (1 - f) * c
    return new_c.tanh() * new_n, new_c, new_n


# ------------------------------------------------ one product, with as many gates as x has; three vectors: an LSTM
def peephole_forward(ax, ah, state, given):
    i, f = (
        sigmoid(ax[0] + ah[0] + given.per_unit[0] * state[1]),
        sigmoid(ax[1] + ah[1] + given.per_unit[1] * state[1]),
    )
    g = tanh(ax[2] + ah[2])
    c = f * state[1] + i * g
    o = sigmoid(ax[3] + ah[3] + given.per_unit[2] * c)
    return (o * tanh(c), c), (i, f, g, o)


def peephole_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    (i, f, g, o), c, t = saved, state[1], tanh(new_state[1])
    do = d_state[0] * t * d_sigmoid(o)
    dc = d_state[1] + d_state[0] * o * d_tanh(t) + do * given.per_unit[2]
    di, df = dc * g * d_sigmoid(i), dc * c * d_sigmoid(f)
    gates = (di, df, dc * i * d_tanh(g), do)
    return (
        gates,
        gates,
        (ZERO, dc * f + di * given.per_unit[0] + df * given.per_unit[1]),
        (di * c, df * c, do * new_state[1]),
    )


PEEPHOLE = Cell(
    "peephole", ("i", "f", "g", "o"), ("h", "c"), ("i", "f", "g", "o"), peephole_forward, peephole_backward,
    per_unit=("peep_i", "peep_f", "peep_o"), general=True,
)  # fmt: skip


def peephole_step(product, states, per_unit):
    """As `blend_step`."""
    (x, r), (h, c), (peep_i, peep_f, peep_o) = product, states, per_unit
    i, f = (x(0) + r(0, h) + peep_i * c).sigmoid(), (x(1) + r(1, h) + peep_f * c).sigmoid()
    c = f * c + i * (x(2) + r(2, h)).tanh()
    return (x(3) + r(3, h) + peep_o * c).sigmoid() * c.tanh(), c


# -------------------------------------------------------------------- no stages; fewer gates of ah than of ax, a vector
def fewer_forward(ax, ah, state, given):
    s, u, w = sigmoid(ax[0] + given.per_unit[0] * state[1]), tanh(ax[1] + ah[0]), sigmoid(ax[2])
    c = s * state[1] + w * u
    return (w * tanh(c), c), (s, u, w)


def fewer_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    (s, u, w), c, t = saved, state[1], tanh(new_state[1])
    dc = d_state[1] + d_state[0] * w * d_tanh(t)
    ds, du, dw = dc * c * d_sigmoid(s), dc * w * d_tanh(u), (d_state[0] * t + dc * u) * d_sigmoid(w)
    return (ds, du, dw), (du,), (ZERO, dc * s + ds * given.per_unit[0]), (ds * c,)


FEWER = Cell(
    "fewer", ("s", "u", "w"), ("h", "c"), ("s", "u", "w"), fewer_forward, fewer_backward, same_gradient=False,
    recurrent=("u",), per_unit=("peep",), general=True,
)  # fmt: skip


def fewer_step(product, states, per_unit):
    """As `blend_step`."""
    (x, r), (h, c), (peep,) = product, states, per_unit
    s, u, w = (x(0) + peep * c).sigmoid(), (x(1) + r(0, h)).tanh(), x(2).sigmoid()
    c = s * c + w * u
    return w * c.tanh(), c


# ------------------------------------------------------------------------------- no stages; more gates of ah than of ax
def more_forward(ax, ah, state, given):
    r, u, z = sigmoid(ah[0]), tanh(ax[0] + sigmoid(ah[0]) * ah[1]), sigmoid(ah[2])
    return ((ONE - z) * u + z * state[0],), (r, u, z, ah[1])


def more_backward(saved, state, new_state, d_state, d_v, d_sums, given):
    (r, u, z, k), d = saved, d_state[0]
    du, dz = d * (ONE - z) * d_tanh(u), d * (state[0] - u) * d_sigmoid(z)
    return (du,), (du * k * d_sigmoid(r), du * r, dz), (d * z,), ()


MORE = Cell(
    "more", ("u",), ("h",), ("r", "u", "z", "k"), more_forward, more_backward, same_gradient=False,
    recurrent=("r", "k", "z"), general=True,
)  # fmt: skip


def more_step(product, states, per_unit):
    """As `blend_step`."""
    (x, r), (h,) = product, states
    u, z = (x(0) + r(0, h).sigmoid() * r(1, h)).tanh(), r(2, h).sigmoid()
    return ((1 - z) * u + z * h,)


GENERAL = {"blend": BLEND, "chain": CHAIN, "light": LIGHT, "peephole": PEEPHOLE}
UNEVEN = {"fewer": FEWER, "more": MORE}
STEPS = {
    "blend": blend_step,
    "chain": chain_step,
    "light": light_step,
    "peephole": peephole_step,
    "fewer": fewer_step,
    "more": more_step,
}
