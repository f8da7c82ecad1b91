"""The library's cells: equations, hyperparameters, recorded numbers. On every engine, against PyTorch's autograd:
test_conformance.py."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest

import numbarnn
from equations import BUILT_IN_TOO, LIBRARY, cell_of
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
    assert numbarnn.gradcheck(made).ok and np.abs(before(x)[0] - layer(x)[0]).max() > 1e-3
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
    layer = numbarnn.RNN(made if isinstance(made, cells.Cell) else made(), 4, H, dtype="float64", device=NumpyEngine())

    def numbers(shape):
        return (np.sin(np.arange(1.0, 1 + np.prod(shape))) / 2).reshape(shape)

    layer.load_state_dict({key: numbers(value.shape) for key, value in layer.state_dict().items()})
    shapes = [one[0] if isinstance(one, list) else one for one in layer.stack.shapes_of_states(1)]
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
