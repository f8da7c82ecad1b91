"""Cells whose state dicts were recorded by former versions, in which parameters stood elsewhere.

At commit 0e3432e biases of some gates only were parameters per unit, `b_i_l0` instead of rows of `bias_ih_l0`. At
9b6d3a7 a state that is x had to have H units, and what multiplied it was rows of `weight_hh_l0`.

`python tests/support/old_state_dicts.py FILE` wrote tests/data/former/state_dicts.npz at the first, states_of_x.npz at
the second: layers' state dicts, and what they compute, under "cell/name".
"""

import sys
from pathlib import Path

import numpy as np

import numbarnn as nr

INPUTS, HIDDEN, STEPS, BATCH = 2, 3, 4, 2


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


def recorded(name):
    """(state dict, x, y) of the recorded layer of that cell."""
    file = "states_of_x" if name in STATES_OF_X else "state_dicts"
    with np.load(Path(__file__).parents[1] / "data" / "former" / f"{file}.npz") as file:
        found = {key.split("/")[1]: file[key] for key in file if key.startswith(f"{name}/")}
    x, y = found.pop("x"), found.pop("y")
    return found, x, y


def record(path):
    """Write the file of that name."""
    found = {}
    for name in STATES_OF_X if Path(path).stem == "states_of_x" else CELLS.keys() - STATES_OF_X.keys():
        layer = layer_of(name)
        x = np.random.default_rng(0).standard_normal((STEPS, BATCH, layer.input_size))
        found |= {f"{name}/{key}": array for key, array in layer.state_dict().items()}
        found |= {f"{name}/x": x, f"{name}/y": layer(x)[0]}
    np.savez_compressed(path, **found)


if __name__ == "__main__":
    record(sys.argv[1])
