"""Derived functions: forward against the equations themselves on NumPy, backward against differences of these."""

import numpy as np
import pytest

from cell_steps import Steps, callable_from_python, each, flat_numbers, functions_of, types_inside
from numbarnn.cells import library
from numbarnn.cells.tracing import cell
from numbarnn.cells.tracing.saving import CHOICES
from numbarnn.compile.specialise import specialise
from trace_cases import FUNCTIONS, equations_on_numpy, random_parameters

STEP = 1e-6
MORE = {"slstm": library.slstm, "highway": library.recurrent_highway(3), "lem": library.lem, "gru": library.gru}
CELLS = {
    f"{name}-{save}": cell(function, save=save) for save in CHOICES for name, function in (FUNCTIONS | MORE).items()
}
by_cell = pytest.mark.parametrize("traced", CELLS.values(), ids=CELLS)


class Problem:
    """Small random arrays for a cell, and a loss: outputs and final states times random numbers."""

    T, B, H, inputs = 3, 2, 3, 2

    def __init__(self, traced, seed=0):
        random = np.random.default_rng(seed)
        self.cell = traced
        self.values = random_parameters(traced, random, self.inputs, self.H)
        self.parameters = tuple(self.values)
        self.values |= {"x": random.normal(size=(self.T, self.B, self.inputs))}
        self.values |= {f"{name} before": 0.5 + random.random((self.B, self.H)) for name in traced.states}
        self.dy = random.normal(size=(self.T, self.B, self.H))
        self.d_states = [random.normal(size=(self.B, self.H)) for _ in traced.states]

    def arguments(self, values):
        parameters = {name: values[name] for name in self.parameters}
        return parameters, values["x"], [values[f"{name} before"] for name in self.cell.states]

    def loss(self, values):
        y, finals = equations_on_numpy(self.cell, *self.arguments(values))
        return (y * self.dy).sum() + sum((d * s).sum() for d, s in zip(self.d_states, finals, strict=True))

    def gradients(self):
        parameters, x, states = self.arguments(self.values)
        steps = Steps(self.cell, parameters, self.H)
        y, finals = steps.forward(x, states)
        dx, d_states, gradients = steps.backward(self.dy, self.d_states)
        return (
            y,
            finals,
            {"x": dx, **{f"{n} before": d for n, d in zip(self.cell.states, d_states, strict=True)}, **gradients},
        )


@by_cell
def test_forward_equals_the_equations(traced):
    problem = Problem(traced)
    y, finals, _ = problem.gradients()
    expected_y, expected = equations_on_numpy(traced, *problem.arguments(problem.values))
    np.testing.assert_allclose(y, expected_y, rtol=1e-12, atol=1e-12)
    for one, other in zip(finals, expected, strict=True):
        np.testing.assert_allclose(np.broadcast_to(one, other.shape), other, rtol=1e-12, atol=1e-12)


@by_cell
def test_backward_is_the_derivative(traced):
    """Along random directions of each quantity. Errors of central differences are about 1e-12 + 1e-16 / STEP; the loss
    is a sum of some 20 terms, whose third derivatives may be large."""
    problem, random = Problem(traced), np.random.default_rng(1)
    _, _, gradients = problem.gradients()
    assert set(gradients) == set(problem.values)
    for name, gradient in gradients.items():
        for _ in range(3):
            direction = random.normal(size=problem.values[name].shape)
            above, below = (
                problem.loss(problem.values | {name: problem.values[name] + move * direction}) for move in (STEP, -STEP)
            )
            found = (np.broadcast_to(gradient, direction.shape) * direction).sum()
            np.testing.assert_allclose(found, (above - below) / (2 * STEP), rtol=2e-6, atol=2e-7, err_msg=name)


# -------------------------------------------------------------------------------------------------------- compiled
COMPILED = (
    "every_smooth_function-gates",
    "every_kinked_function-minimal",
    "chain_of_products-gates",
    "slstm-minimal",
    "normalised-gates",
)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_functions_compute_in_float32(name):
    """No float64 inside, and the plain functions' results."""
    random = np.random.default_rng(2)
    for function, counts in functions_of(CELLS[name]):
        compiled, plain = specialise(function, "float32", "cpu"), specialise(function, "float32", "python")
        arguments = each(counts, lambda count: tuple(np.float32(0.2 + 0.6 * random.random(count))))
        assert types_inside(compiled, "float32", counts) <= {"float32"}
        expected, exact = (
            flat_numbers(plain(*arguments)),
            flat_numbers(function(*each(arguments, np.float64))),
        )
        assert {np.asarray(value).dtype.name for value in expected} == {"float32"}
        # a few dozen operations on numbers of size 1 to 10
        np.testing.assert_allclose(
            flat_numbers(callable_from_python(compiled)(*arguments)), exact, rtol=3e-5, atol=3e-5
        )
        np.testing.assert_allclose(expected, exact, rtol=3e-5, atol=3e-5)
