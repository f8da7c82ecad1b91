"""Derived functions against the equations themselves, on arrays, and against finite differences."""

import numpy as np
import pytest

import numbarnn as nr
from cell_steps import callable_from_python, each, flat_numbers, functions_of, types_inside
from numbarnn.cells import library
from numbarnn.cells.tracing import cell
from numbarnn.cells.tracing.saving import CHOICES
from numbarnn.compile.specialise import specialise
from numpy_engine import NumpyEngine
from trace_cases import FUNCTIONS

MORE = {"slstm": library.slstm, "highway": library.recurrent_highway(3), "lem": library.lem, "gru": library.gru}
CELLS = {
    f"{name}-{save}": cell(function, save=save) for save in CHOICES for name, function in (FUNCTIONS | MORE).items()
}


@pytest.mark.parametrize("traced", CELLS.values(), ids=CELLS)
def test_derived_functions_equal_the_equations(traced):
    """By NumPy's engine, which calls them as they are; it draws nothing."""
    assert nr.gradcheck(traced, 2, 3, device="cpu" if traced.noise else NumpyEngine()).ok


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
        expected, exact = (flat_numbers(plain(*arguments)), flat_numbers(function(*each(arguments, np.float64))))
        assert {np.asarray(value).dtype.name for value in expected} == {"float32"}
        # a few dozen operations on numbers of size 1 to 10
        np.testing.assert_allclose(
            flat_numbers(callable_from_python(compiled)(*arguments)), exact, rtol=3e-5, atol=3e-5
        )
        np.testing.assert_allclose(expected, exact, rtol=3e-5, atol=3e-5)
