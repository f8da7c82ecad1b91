"""Cells whose state dicts were recorded before parameters had stable places (commit 0e3432e): biases of some gates only
were parameters per unit then, `b_i_l0` instead of rows of `bias_ih_l0`.

`python tests/support/old_state_dicts.py FILE` wrote tests/data/former/state_dicts.npz there: layers' state dicts, and
what they compute, under "cell/name".
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


CELLS = {
    "one_gate_without_bias": (one_gate_without_bias, {"num_layers": 2, "bidirectional": True}),
    "one_recurrent_bias": (one_recurrent_bias, {"num_layers": 2}),
    "names_that_clash": (names_that_clash, {"bidirectional": True}),
    "every_gate_has_one": (every_gate_has_one, {"num_layers": 2}),
    "projecting": (projecting, {"proj_size": 2}),
}


def layer_of(name, seed=0):
    """A new layer of the cell of that name."""
    cell, options = CELLS[name]
    return nr.RNN(cell, INPUTS, HIDDEN, dtype="float64", device="cpu", seed=seed, **options)


def recorded(name):
    """(state dict, x, y) of the recorded layer of that cell."""
    with np.load(Path(__file__).parents[1] / "data" / "former" / "state_dicts.npz") as file:
        found = {key.split("/")[1]: file[key] for key in file if key.startswith(f"{name}/")}
    x, y = found.pop("x"), found.pop("y")
    return found, x, y


def record(path):
    """Write the file."""
    found, x = {}, np.random.default_rng(0).standard_normal((STEPS, BATCH, INPUTS))
    for name in CELLS:
        layer = layer_of(name)
        found |= {f"{name}/{key}": array for key, array in layer.state_dict().items()}
        found |= {f"{name}/x": x, f"{name}/y": layer(x)[0]}
    np.savez_compressed(path, **found)


if __name__ == "__main__":
    record(sys.argv[1])
