"""The library's cells against their equations run by PyTorch (cell_loops.py), whose gradients are its autograd's."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import numbarnn
from cell_loops import Loop
from equations import BUILT_IN_TOO, LIBRARY, cell_of, loop_of
from formed_cells import CELLS as FORMED
from numbarnn import cells
from numbarnn.cells import functions, library
from numbarnn.cells.definition import Given
from numpy_engine import NumpyEngine


def test_all_cells_are_tested():
    """Here, or those whose kernels read what is formed of parameters with formed_cells.py."""
    formed = {cell.definition for cell, *_ in FORMED.values()}
    for name in library.__all__:
        if not name.endswith(("_with", "highway")):
            found = getattr(library, name)
            assert found in {cell_of(one) for one in LIBRARY} or found.definition in formed, name


# ------------------------------------------------------------------------------------------------ the equations
OWN = [name for name in LIBRARY if not cell_of(name).own_derivatives]


# Each one's kernels are compared with PyTorch's autograd in test_conformance.py; here every sixth, or all if `full`.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if number % 6 else []) for number, name in enumerate(OWN)]
)
def test_equations_on_arrays_and_differences_are_what_numpys_engine_computes(name):
    cell = cell_of(name)
    assert numbarnn.gradcheck(cell, device=NumpyEngine(), **({"proj_size": 3} if cell.projected else {})).ok


@pytest.mark.parametrize(
    "name, values",
    [("janet", {"beta": 0.25}), ("cornn", {"dt": 0.3, "gamma": 2.0, "epsilon": 0.5}), ("lem", {"dt": 1.0})],
)
def test_hyperparameters(name, values):
    """A cell made anew with other ones computes what its equations do with them, and not what it did before."""
    made, x = numbarnn.cell(cell_of(name), **values), np.random.default_rng(0).standard_normal((5, 2, 3))
    layer, before = (numbarnn.RNN(one, 3, 4, dtype="float64", device="cpu", seed=0) for one in (made, cell_of(name)))
    parameters = {key.removeprefix("l0."): torch.tensor(array) for key, array in layer.named.items()}
    expected, _ = Loop(made).run(
        [parameters], torch.tensor(x), [torch.zeros(1, 2, 4, dtype=torch.float64)] * made.num_states
    )
    np.testing.assert_allclose(layer(x)[0], expected.numpy(), rtol=1e-12, atol=1e-14)
    assert np.abs(before(x)[0] - layer(x)[0]).max() > 1e-3
    assert made.hyperparameters == values and made.name != cell_of(name).name


def test_a_cells_function_has_its_own_hyperparameters():
    """Also of one that is made of it, by `cell` or within other equations."""
    slow = numbarnn.cell(library.cornn, dt=0.3)
    within = numbarnn.cell(lambda x, y, z, p: slow.function(x, y, z, p), name="within")
    layer = numbarnn.RNN(slow, 3, 4, dtype="float64", device="cpu", seed=0)
    x = np.random.default_rng(0).standard_normal((1, 2, 3))
    for cell in (slow, numbarnn.cell(slow), numbarnn.cell(slow.function), within):
        y, z = cell.function(x[0].T, np.zeros((4, 2)), np.zeros((4, 2)), layer.named.p())
        np.testing.assert_allclose(y.T, layer(x)[0][0], rtol=1e-13)
        np.testing.assert_allclose(y, 0.3 * z)
    assert "dt=0.3" in str(inspect.signature(slow.function)) and "dt=0.1" in str(
        inspect.signature(library.cornn.function)
    )
    assert numbarnn.cell(slow, gamma=2.0).hyperparameters == {"dt": 0.3, "gamma": 2.0, "epsilon": 1.0}


def test_equations_with_heads_run_on_arrays():
    """`heads` of an array, and of a group of arrays."""
    rng = np.random.default_rng(0)
    matrix, vector = rng.standard_normal((6, 2)), rng.standard_normal(6)
    dense = numbarnn.heads(matrix, 3)
    assert np.count_nonzero(dense) == 12
    for head in range(3):
        own = slice(2 * head, 2 * head + 2)
        np.testing.assert_allclose((dense @ vector)[own], matrix[own] @ vector[own])

    class Group:
        a = matrix

    np.testing.assert_array_equal(numbarnn.heads(Group, 3).a, dense)
    with pytest.raises(ValueError, match="a matrix of 4 heads must have a multiple of 4 rows, got 6"):
        numbarnn.heads(matrix, 4)


def step_of(cell, ax, ah, state, per_unit, d_state, d_v):
    """(new_state, d_ax, d_ah of the gates that multiply h, the state's gradient) of one step."""
    more = (Given(per_unit),) if cell.general else ()
    new_state, saved = cell.forward(ax, ah, state, *more)
    gradients = cell.backward(saved, state, new_state, d_state, *((d_v, (), *more) if cell.general else ()))
    return new_state, *gradients[:3]


@pytest.mark.parametrize("name", BUILT_IN_TOO)
def test_derived_equals_hand_written(name):
    """One step, without products: the derived functions and those written by hand."""
    hand, derived = cells.get(name), getattr(library, name)
    rng = np.random.default_rng(0)
    ax, ah = (tuple(rng.standard_normal((len(hand.gates), 100))) for _ in range(2))
    state, d_state = (tuple(rng.standard_normal((hand.num_states, 100))) for _ in range(2))
    d_v = tuple(rng.standard_normal((len(hand.stages), 100)))
    per_unit = tuple(np.zeros((len(derived.per_unit), 100)))
    expected = step_of(hand, ax, ah, state, (), d_state, d_v)
    found = step_of(derived, ax, ah, state, per_unit, d_state, d_v)
    for parts, others in zip(found, expected, strict=True):
        for part, other in zip(parts, others, strict=True):
            np.testing.assert_allclose(part, other, rtol=1e-13, atol=1e-14)


# ------------------------------------------------------------------------------------------------- as papers have them
RECORDED = Path(__file__).parents[1] / "data" / "library_cells.json"


def second_output(name):
    """y (H,) of the second step of a layer whose parameters, x and states are simple numbers."""
    made = getattr(library, name)
    H = 8 if name == "delta_rule" else 4
    layer = numbarnn.RNN(made if isinstance(made, cells.Cell) else made(), 4, H, dtype="float64", device="cpu")

    def numbers(shape):
        return (np.sin(np.arange(1.0, 1 + np.prod(shape))) / 2).reshape(shape)

    layer.load_state_dict({key: numbers(value.shape) for key, value in layer.state_dict().items()})
    shapes = [
        one[0] if isinstance(one, list) else one for one in (layer.stack.h_shapes(1), *layer.stack.private_shapes(1))
    ]
    states = tuple(map(numbers, shapes))
    return layer(numbers((2, 1, 4)), states if len(states) > 1 else states[0])[0][1, 0]


def test_numbers_are_those_of_loops_written_from_the_papers():
    """Recorded when each cell agreed, values and gradients, with a loop in PyTorch written from its paper."""
    recorded = json.loads(RECORDED.read_text())
    assert [*recorded] == library.__all__
    for name, expected in recorded.items():
        np.testing.assert_allclose(second_output(name), expected, rtol=1e-9, atol=1e-12, err_msg=name)


# ---------------------------------------------------------------------------------------------------------- factories
def test_factories_return_the_same_object():
    assert library.recurrent_highway(3) is library.recurrent_highway(depth=3)
    assert library.lstm_with() is library.lstm_with(functions.sigmoid, output=functions.tanh)


@pytest.mark.parametrize("depth", (0, -1, 1.5, "2", None, True))
def test_depth_is_checked(depth):
    with pytest.raises(ValueError, match="depth must be an int of at least 1"):
        library.recurrent_highway(depth)


# ----------------------------------------------------------------------------------------------- loops of the equations
T, B, I, H = 6, 3, 4, 5  # noqa: E741 - the legend's letters


def numbers(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def make(name, directions=1):
    """(loop, one dict of parameters per direction, x, states), the states positive."""
    loop = loop_of(name)
    generator = torch.Generator().manual_seed(1)
    parameters = [
        {name: torch.randn(shape, dtype=torch.float64, generator=generator) / 2 for name, shape in shapes.items()}
        for shapes in [loop.shapes(I, H)] * directions
    ]
    return (
        loop,
        parameters,
        numbers(T, B, I),
        [numbers(directions, B, H).abs() + k for k in range(len(loop.cell.states))],
    )


def pytorchs(kind, gates, parameters, **options):
    """A torch.nn module with a loop's parameters; b.q is the recurrent bias of n."""
    module = getattr(torch.nn, kind)(I, H, bidirectional=len(parameters) == 2, dtype=torch.float64, **options)
    for suffix, p in zip(("", "_reverse"), parameters, strict=False):
        last = p.get("b.q", torch.zeros(H, dtype=torch.float64))
        values = {
            "weight_ih": torch.cat([p[f"W.{gate}"] for gate in gates]),
            "weight_hh": torch.cat([p[f"R.{gate}"] for gate in gates]),
            "bias_ih": torch.cat([p[f"b.{gate}"] for gate in gates]),
            "bias_hh": torch.cat([*[torch.zeros_like(last)] * (len(gates) - 1), last]),
        }
        for parameter, value in values.items():
            getattr(module, f"{parameter}_l0{suffix}").data[...] = value
    return module


@pytest.mark.parametrize("directions", (1, 2))
@pytest.mark.parametrize(
    "name, kind, gates, options",
    [
        ("library lstm", "LSTM", "ifgo", {}),
        ("library gru", "GRU", "rzn", {}),
        ("library rnn_tanh", "RNN", "h", {}),
        ("library rnn_relu", "RNN", "h", {"nonlinearity": "relu"}),
    ],
)
def test_built_in_cells_are_pytorchs(name, kind, gates, options, directions):
    loop, parameters, x, states = make(name, directions)
    expected, final = pytorchs(kind, gates, parameters, **options)(x, tuple(states) if kind == "LSTM" else states[0])
    y, found = loop.run(parameters, x, states)
    torch.testing.assert_close(y, expected)
    for part, other in zip(found, final if kind == "LSTM" else (final,), strict=True):
        torch.testing.assert_close(part, other)


def test_slstm_without_its_stabiliser():
    """m changes the scale of c and n alone: h is that of plain exponential gates."""
    loop, (p,), x, (h, c, n, m) = make("slstm")
    y, _ = loop.run([p], x, [h, c, n, m])
    h, c, n = h[0], c[0] * torch.exp(m[0]), n[0] * torch.exp(m[0])
    for t in range(T):
        z, i, f, o = (x[t] @ p[f"W.{gate}"].T + h @ p[f"R.{gate}"].T + p[f"b.{gate}"] for gate in "zifo")
        c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
        n = torch.sigmoid(f) * n + torch.exp(i)
        h = torch.sigmoid(o) * c / n
        torch.testing.assert_close(y[t], h)


def test_a_highway_of_depth_one_is_a_coupled_gated_step():
    """It is the update-gate RNN, whose gate is 1 - t."""
    loop, (p,), x, (h,) = make("recurrent_highway 1")
    y, _ = loop.run([p], x, [h])
    other = {f"W.{g}": p[f"W.{t}"] for g, t in (("c", "h"), ("g", "t"))}
    other |= {f"{kind}.{g}": p[f"{kind}.{t}1"] for kind in "Rb" for g, t in (("c", "h"), ("g", "t"))}
    other |= {f"{kind}.g": -other[f"{kind}.g"] for kind in "WRb"}  # 1 - σ(a) = σ(-a)
    expected, _ = loop_of("ugrnn").run([other], x, [h])
    torch.testing.assert_close(y, expected)


def test_coupled_lstm_is_an_lstm_whose_forget_gate_is_opposed():
    loop, (p,), x, states = make("coupled_lstm")
    y, _ = loop.run([p], x, states)
    expected, _ = loop_of("library lstm").run([p | {f"{kind}.f": -p[f"{kind}.i"] for kind in "WRb"}], x, states)
    torch.testing.assert_close(y, expected)


def test_janet_lets_in_more_than_it_forgets():
    """With gates at s = 0: half of the state stays, 1 - σ(-beta) of the candidate, here 1, comes in."""
    loop, (p,), x, (h,) = make("janet")
    ones = {name: torch.zeros_like(value) for name, value in p.items()} | {"b.c": torch.full((H,), 50.0).double()}
    y, _ = loop.run([ones], x[:1], [torch.ones_like(h)])
    expected = 0.5 + (1 - torch.sigmoid(torch.tensor(-1.0).double()))
    torch.testing.assert_close(y, expected.expand_as(y))


def test_min_lstm_is_min_gru_with_the_normalised_gate():
    loop, (p,), x, (h,) = make("min_lstm")
    y, _ = loop.run([p], x, [h])
    f, i = (torch.sigmoid(x @ p[f"W.{gate}"].T + p[f"b.{gate}"]) for gate in "fi")
    before = torch.cat([h, y[:-1]])
    torch.testing.assert_close(y, before + i / (f + i) * (x @ p["W.h"].T + p["b.h"] - before))


def test_lem_with_whole_time_steps_forgets():
    """Gates at 1 (dt = 1): y and z are their candidates."""
    _, (p,), x, (y, z) = make("lem")
    p = p | {f"b.{gate}": torch.full((H,), 50.0).double() for gate in ("slow", "fast")}
    new_y, new_z = Loop(numbarnn.cell(cells.library.lem, dt=1.0)).step(p, x[0], y[0], z[0])
    torch.testing.assert_close(new_z, torch.tanh(x[0] @ p["W.z"].T + y[0] @ p["R.z"].T + p["b.z"]))
    torch.testing.assert_close(new_y, torch.tanh(x[0] @ p["W.y"].T + new_z @ p["R.y"].T + p["b.y"]))


def test_cornn_without_force_and_damping_swings():
    """y'' = -gamma y: energy stays within the integrator's error, and y comes back after a period."""
    _, (p,), x, _ = make("cornn")
    nothing = {name: torch.zeros_like(value) for name, value in p.items()}
    y, z = torch.ones(B, H).double(), torch.zeros(B, H).double()
    swinging = Loop(numbarnn.cell(cells.library.cornn, dt=0.01, gamma=1.0, epsilon=0.0))
    for _ in range(628):
        y, z = swinging.step(nothing, x[0], y, z)
    torch.testing.assert_close(y, torch.ones_like(y), atol=1e-2, rtol=0)
    torch.testing.assert_close(z, torch.zeros_like(z), atol=1e-2, rtol=0)
