"""Derived functions against the equations themselves, run by PyTorch: values, and gradients by autograd."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cell_loops import Loop  # noqa: E402
from cell_steps import Steps, callable_from_python, each, flat_numbers, functions_of, types_inside  # noqa: E402
from equations import by_loops_names  # noqa: E402
from numbarnn.cells import library  # noqa: E402
from numbarnn.cells.tracing import cell  # noqa: E402
from numbarnn.cells.tracing.saving import CHOICES  # noqa: E402
from numbarnn.compile.specialise import specialise  # noqa: E402
from numbarnn.weights import WeightSpace  # noqa: E402
from trace_cases import FUNCTIONS  # noqa: E402

T, B, H, INPUTS = 3, 2, 3, 2
MORE = {"slstm": library.slstm, "highway": library.recurrent_highway(3), "lem": library.lem, "gru": library.gru}
CELLS = {
    f"{name}-{save}": cell(function, save=save) for save in CHOICES for name, function in (FUNCTIONS | MORE).items()
}


@pytest.mark.parametrize("traced", CELLS.values(), ids=CELLS)
def test_derived_functions_equal_the_equations(traced):
    random, names = np.random.default_rng(0), traced.states
    options = {"num_ah": traced.num_ah, "per_unit": traced.per_unit, "layout": traced.parameters}
    space = WeightSpace(traced.num_gates, INPUTS, (H,), 1, traced.bias, **options)
    parameters = {name.removesuffix("_l0"): 0.7 * random.normal(size=shape) for name, shape in space.shapes.items()}
    x, states = random.normal(size=(T, B, INPUTS)), [0.5 + random.random((B, H)) for _ in names]
    dy, d_states = random.normal(size=(T, B, H)), [random.normal(size=(B, H)) for _ in names]
    steps = Steps(traced, parameters, H)
    y, finals = steps.forward(x, states)
    dx, d_before, gradients = steps.backward(dy, d_states)

    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in parameters.items()}
    x, states = torch.tensor(x, requires_grad=True), [torch.tensor(one[None], requires_grad=True) for one in states]
    loop = Loop(traced)
    expected, ends = loop.run([by_loops_names(traced, loop, leaves, H)], x, states)
    (
        (expected * torch.tensor(dy)).sum()
        + sum((e[0] * torch.tensor(d)).sum() for e, d in zip(ends, d_states, strict=True))
    ).backward()
    found = [y, *finals, dx, *d_before, *(gradients[name] for name in leaves)]
    wanted = [expected.detach(), *(end[0].detach() for end in ends)]
    leaves = [x, *states, *leaves.values()]
    wanted += [torch.zeros_like(leaf.data) if leaf.grad is None else leaf.grad for leaf in leaves]
    for one, other in zip(found, wanted, strict=True):
        other = other.numpy().reshape(
            np.shape(other)[1:] if np.ndim(other) == 3 and len(other) == 1 else np.shape(other)
        )
        np.testing.assert_allclose(np.broadcast_to(one, other.shape), other, rtol=1e-10, atol=1e-12)


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
