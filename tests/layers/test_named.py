"""Parameters by the names of the cell's equations: views, gradients, state dicts."""

import copy
import pickle

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.cells import library

INPUTS, HIDDEN = 2, 3


@nr.cell
def one_gate_without_bias(x, h, c, p):
    i = nr.sigmoid(p.W.i @ x + p.R.i @ h + p.peep * c + p.b.i)
    c_new = (1 - i) * c + i * nr.tanh(p.W.g @ x + p.R.g @ h)
    o = nr.sigmoid(p.W.o @ x + p.R.o @ h + p.b.o)
    return o * nr.tanh(c_new), c_new


@nr.cell
def names_that_clash(x, h, p):
    a = nr.tanh(p.W.a @ x + p.V.a @ x + p.R.a @ h + p.b.a)
    return a * nr.sigmoid(p.U.a @ (p.scale * h) + p.shift)


@nr.cell
def every_gate_has_one(x, h, c, p):
    c_new = p.keep * c + nr.tanh(p.W.g @ x + p.R.g @ h + p.b.g)
    return nr.sigmoid(p.W.o @ x + p.R.o @ h + p.b.o) * c_new, c_new


@nr.cell
def filtered_x(x, h, before, p):
    new = x + p.a * (p.U.x @ before + p.b.x)
    return nr.tanh(p.W.h @ new + p.R.h @ h + p.V.h @ x + p.b.h), p.A.x @ x + new


#: Name -> (cell, options of a layer): gates without biases, per-unit parameters, a state that is x, a projection.
CELLS = {
    "one_gate_without_bias": (one_gate_without_bias, {"num_layers": 2, "bidirectional": True}),
    "names_that_clash": (names_that_clash, {"bidirectional": True}),
    "every_gate_has_one": (every_gate_has_one, {"num_layers": 2}),
    "filtered_x": (filtered_x, {"num_layers": 2}),
    "projected_lstm": (library.projected_lstm, {"proj_size": 2}),
}


def layer_of(name, seed=0):
    """A new layer of the cell of that name."""
    cell, options = CELLS[name]
    inputs = HIDDEN if name == "filtered_x" else INPUTS
    return nr.RNN(cell, inputs, HIDDEN, dtype="float64", device="cpu", seed=seed, **options)


def by_equations(cell, layer, x):
    """y (T, B, H) of one layer and direction, by the equations themselves on NumPy arrays."""
    p, state, y = layer.named.p(), [np.zeros((size, x.shape[1])) for (size,) in layer.stack.state_sizes], []
    for x_t in x:
        state = cell.function(x_t.T, *state, p, **cell.hyperparameters)
        state = state if isinstance(state, tuple) else (state,)
        y.append(state[0].T)
    return np.stack(y)


EVERY_CELL = {name: cell for name, (cell, _) in CELLS.items()} | {
    name: getattr(library, name)
    for name in ("lstm", "gru", "minimal_gated_unit", "multiplicative_lstm", "peephole_lstm", "sru", "cornn")
}


@pytest.mark.parametrize("name", EVERY_CELL)
def test_equations_take_the_parameters_of_every_cell(name):
    """Cells with several products, biases of some gates, none of R, a projection."""
    cell = EVERY_CELL[name]
    layer = nr.RNN(cell, 2, 3, dtype="float64", device="cpu", seed=1)
    x = np.random.default_rng(0).standard_normal((5, 2, 2))
    np.testing.assert_allclose(layer(x)[0], by_equations(cell, layer, x), rtol=1e-13, atol=1e-14)
    rows = {name: len(names) * 3 for name, names in cell.rows.items() if name != "weight_hr"}
    assert rows == {name: len(layer.parameters[f"{name}_l0"]) for name in rows}
    assert set(layer.named) == {*sum(cell.rows.values(), ()), *cell.parameters.own}


def test_equations_that_name_what_is_no_parameter():
    def idle(x, h, p):
        p.W.idle @ x
        return nr.tanh(p.W.a @ x + p.R.a @ h)

    cell = nr.cell(idle)
    p = nr.RNN(cell, 2, 3, device="cpu", seed=0).named.p()
    with pytest.raises(AttributeError, match=r"p has no 'idle', only a: .* no new state depends on"):
        cell.function(np.ones((2, 1)), np.ones((3, 1)), p)
    assert list(vars(copy.deepcopy(p))) == ["W", "R"]


def test_names_are_views_of_their_rows():
    layer = nr.RNN(library.multiplicative_lstm, 2, 3, device="cpu", seed=0)
    assert library.multiplicative_lstm.rows["weight_hh"] == ("R.m", "R.i", "R.f", "R.g", "R.o")
    matrix = layer.named["R.f"]
    assert matrix.shape == (3, 3) and np.shares_memory(matrix, layer.weights)
    np.testing.assert_array_equal(matrix, layer.parameters["weight_hh_l0"][6:9])
    matrix[...] = 7
    assert (layer.parameters["weight_hh_l0"][6:9] == 7).all() and (layer.parameters["weight_hh_l0"] == 7).sum() == 9
    layer.named["b.f"] = np.arange(3)
    np.testing.assert_array_equal(layer.state_dict(named=True)["b.f"], np.arange(3))
    assert layer.named["l0.R.f"] is matrix or np.shares_memory(layer.named["l0.R.f"], matrix)
    assert "R.f" in layer.named and "R.x" not in layer.named and len(layer.named) == len(list(layer.named))


def test_gradients_have_the_same_names():
    layer = nr.RNN(CELLS["one_gate_without_bias"][0], 2, 3, dtype="float64", device="cpu", seed=0)
    x = np.random.default_rng(0).standard_normal((4, 2, 2))
    y, _, tape = layer.forward(x)
    grads = layer.backward(tape, np.ones_like(y))
    assert list(grads.named) == list(layer.named)
    np.testing.assert_array_equal(grads.named["b.o"], grads.params["bias_ih_l0"][3:])
    before, step = layer(x)[0].sum(), 1e-6
    layer.named["b.o"][1] += step
    assert abs((layer(x)[0].sum() - before) / step - grads.named["b.o"][1]) < 1e-5
    with pytest.raises(TypeError, match="gradients cannot be assigned by name"):
        grads.named["b.o"] = 0
    y, _, tape = layer.forward(x)
    with pytest.raises(ValueError, match="there are no gradients of parameters"):
        layer.backward(tape, np.ones_like(y), need=("x",)).named  # noqa: B018


def test_assigning_checks():
    layer = nr.RNN(CELLS["every_gate_has_one"][0], 2, 3, device="cpu", seed=0)
    with pytest.raises(ValueError, match=r"named\['R.g'\] must have shape \(3, 3\), but has \(3, 2\)"):
        layer.named["R.g"] = np.zeros((3, 2))
    layer.named["R.g"] = np.zeros((3, 3))
    assert not layer.named["R.g"].any()


@pytest.mark.parametrize("name", CELLS)
def test_state_dicts_in_both_forms_and_copies(name):
    layer, other = layer_of(name, seed=0), layer_of(name, seed=1)
    x = np.random.default_rng(0).standard_normal((3, 2, layer.input_size))
    other.load_state_dict(layer.state_dict(named=True))
    np.testing.assert_array_equal(other.weights, layer.weights)
    np.testing.assert_array_equal(other(x)[0], layer(x)[0])
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        np.testing.assert_array_equal(copied(x)[0], layer(x)[0])
        copied.weights[...] = 0
    assert layer.weights.any()


def test_cells_say_their_parameters_with_shapes():
    assert repr(library.gru).endswith("parameters W.r W.z W.n (H, I), R.r R.z R.n (H, H), b.r b.z b.n b.q (H,)>")
    assert "peep_i peep_f peep_o (H,)" in nr.show(library.peephole_lstm)
    assert nr.cells.get("gru").rows["bias_hh"] == ("b_r.r", "b_r.z", "b_r.n")
