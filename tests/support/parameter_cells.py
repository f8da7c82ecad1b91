"""Cells whose parameters stand in several arrays: some gates without biases, per-unit ones, states that are x."""

import numbarnn as nr

INPUTS, HIDDEN = 2, 3


@nr.cell
def one_gate_without_bias(x, h, c, p):
    i = nr.sigmoid(p.W.i @ x + p.R.i @ h + p.peep * c + p.b.i)
    c_new = (1 - i) * c + i * nr.tanh(p.W.g @ x + p.R.g @ h)
    o = nr.sigmoid(p.W.o @ x + p.R.o @ h + p.b.o)
    return o * nr.tanh(c_new), c_new


@nr.cell
def one_recurrent_bias(x, h, p):
    r = nr.sigmoid(p.W.r @ x + p.R.r @ h + p.b.r)
    z = nr.sigmoid(p.W.z @ x + p.R.z @ h + p.b.z)
    n = nr.tanh(p.W.n @ x + p.b.n + r * (p.R.n @ h + p.b_r.n))
    return (1 - z) * n + z * h


@nr.cell
def names_that_clash(x, h, p):
    a = nr.tanh(p.W.a @ x + p.V.a @ x + p.R.a @ h + p.b.a)
    return a * nr.sigmoid(p.U.a @ (p.scale * h) + p.shift)


@nr.cell
def every_gate_has_one(x, h, c, p):
    c_new = p.keep * c + nr.tanh(p.W.g @ x + p.R.g @ h + p.b.g)
    return nr.sigmoid(p.W.o @ x + p.R.o @ h + p.b.o) * c_new, c_new


@nr.cell
def projecting(x, h, c, p):
    c_new = nr.sigmoid(p.W.f @ x + p.R.f @ h + p.b.f) * c + nr.tanh(p.W.g @ x + p.R.g @ h)
    return p.P.h @ nr.tanh(c_new), c_new


@nr.cell
def strongly_typed(x, h, before, p):
    z = p.W.z @ x + p.V.z @ before + p.b.z
    f = nr.sigmoid(p.W.f @ x + p.V.f @ before + p.b.f)
    return f * h + z * nr.tanh(p.W.o @ x + p.V.o @ before + p.b.o), x


@nr.cell
def filtered_x(x, h, before, p):
    new = x + p.a * (p.U.x @ before + p.b.x)
    return nr.tanh(p.W.h @ new + p.R.h @ h + p.V.h @ x + p.b.h), p.A.x @ x + new


STATES_OF_X = {
    "strongly_typed": (strongly_typed, {"num_layers": 2}),
    "filtered_x": (filtered_x, {"num_layers": 2}),
}
CELLS = STATES_OF_X | {
    "one_gate_without_bias": (one_gate_without_bias, {"num_layers": 2, "bidirectional": True}),
    "one_recurrent_bias": (one_recurrent_bias, {"num_layers": 2}),
    "names_that_clash": (names_that_clash, {"bidirectional": True}),
    "every_gate_has_one": (every_gate_has_one, {"num_layers": 2}),
    "projecting": (projecting, {"proj_size": 2}),
}


def layer_of(name, seed=0):
    """A new layer of the cell of that name."""
    cell, options = CELLS[name]
    inputs = HIDDEN if name in STATES_OF_X else INPUTS
    return nr.RNN(cell, inputs, HIDDEN, dtype="float64", device="cpu", seed=seed, **options)
