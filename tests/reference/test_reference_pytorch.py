"""The float64 reference against PyTorch in float64: torch.nn's layers, whole and packed, and for the options that
torch.nn has not a loop of PyTorch operations whose gradients are autograd's."""

from dataclasses import replace

import pytest

import matrix
from problems import Drawn, error, make_problem
from reference_problem import CELLS, Problem, gradients_by_name, relative_error

torch = pytest.importorskip("torch")

# Sums of up to about a hundred products, over at most 7 steps: both sides err by a few times 1e-15, relative
# to the largest element.
PYTORCH_LIMIT = 1e-12


def assert_agrees(problem, outputs, leaves):
    """The reference's outputs and gradients against PyTorch's: [y, *hy, *cy], and the leaves of its graph by name."""
    result = problem.forward()
    for actual, expected in zip([result.y, *result.hy, *(result.cy or [])], outputs, strict=True):
        assert relative_error(actual, expected.detach().numpy()) < PYTORCH_LIMIT
    weights = [problem.dy, *problem.dhy, *(problem.dcy or [])]
    sum((torch.from_numpy(dv) * v).sum() for dv, v in zip(weights, outputs, strict=True)).backward()
    gradients = gradients_by_name(problem.backward(result))
    assert gradients.keys() == leaves.keys()
    for name, leaf in leaves.items():
        assert relative_error(gradients[name], leaf.grad.numpy()) < PYTORCH_LIMIT, name


def make_leaves(problem):
    """Every array that has a gradient as a tensor, by name."""
    return {name: torch.tensor(array, requires_grad=True) for name, array in problem.inputs().items()}


def state_kinds(problem):
    return ["h0", "c0"] if problem.cell == "lstm" else ["h0"]


# ------------------------------------------------------------------------------------------------ torch.nn's layers
def torch_module(problem, input_size, hidden_size, num_layers=1, bidirectional=False):
    options = dict(bias=problem.bias == "double", bidirectional=bidirectional, dtype=torch.float64)
    if problem.cell.startswith("rnn"):
        options["nonlinearity"] = problem.cell.removeprefix("rnn_")
    if problem.proj:
        options["proj_size"] = problem.proj
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(problem.cell, torch.nn.RNN)
    return kind(input_size, hidden_size, num_layers, **options)


def run_modules(problem, leaves):
    """A problem by torch.nn: [y, *hy, *cy]. Sequences of unequal length are packed.

    A stack that torch.nn has is one module; with unequal sizes or given masks it is one module per layer.
    """
    L, D, H = len(problem.H), problem.D, problem.H
    lengths, padding = problem.options.get("lengths"), problem.options.get("padding_value", 0.0)
    y, states = leaves["x"], {"h0": [], "c0": []}
    whole = len(set(H)) == 1 and problem.masks is None
    for layers in [range(L)] if whole else [range(layer, layer + 1) for layer in range(L)]:
        module = torch_module(problem, y.shape[2], H[layers[0]], len(layers), D == 2)
        first = "_l0" if whole else f"_l{layers[0]}"  # the module counts its own layers from 0
        parameters = {name: leaves[name.replace("_l0", first)] for name in module.state_dict()}
        state = [torch.cat([leaves[f"{kind}[{layer}]"] for layer in layers]) for kind in state_kinds(problem)]
        state = tuple(state) if problem.cell == "lstm" else state[0]
        if lengths is not None:
            y = torch.nn.utils.rnn.pack_padded_sequence(y, torch.tensor(lengths), enforce_sorted=False)
        y, state = torch.func.functional_call(module, parameters, (y, state), strict=True)
        if lengths is not None:
            T = len(problem.x)
            y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, padding_value=padding, total_length=T)
        for kind, final in zip(state_kinds(problem), state if problem.cell == "lstm" else [state], strict=True):
            states[kind] += final.split(D)
        if problem.masks is not None and layers[-1] < L - 1:
            y = y * torch.from_numpy(problem.masks[layers[-1]])
    return [y, *states["h0"], *states["c0"]]


MODULE_CASES = {
    "one-layer": dict(H=(6,)),
    "one-step": dict(H=(6,), T=1, B=1, I=1),
    "three-layers": dict(H=(6, 6, 6)),
    "three-layers-bidirectional": dict(H=(6, 6, 6), D=2),
    "three-layers-bidirectional-no-bias": dict(H=(6, 6, 6), D=2, bias="none"),
    "unequal-sizes": dict(H=(7, 1, 5)),
    "unequal-sizes-masks": dict(H=(7, 4, 5), masks=True),
    "unequal-sizes-bidirectional-masks": dict(H=(7, 4, 5), D=2, masks=True),
    "packed": dict(H=(6,), B=4, lengths=[3, 7, 1, 6]),
    "packed-three-layers-bidirectional": dict(H=(5, 5, 5), D=2, B=4, lengths=[3, 7, 1, 6], padding_value=-0.5),
    "packed-shorter-than-T": dict(H=(5, 4), D=2, lengths=[2, 5, 5], masks=True, bias="none", padding_value=2.0),
}
PROJECTED_CASES = {
    "projected": dict(H=(6,), proj=2),
    "projected-one-step": dict(H=(3,), proj=1, T=1, B=1),
    "projected-three-layers-bidirectional": dict(H=(6, 6, 6), D=2, proj=4),
    "projected-unequal-sizes-masks": dict(H=(7, 4, 5), D=2, proj=3, masks=True, bias="none"),
    "projected-packed-bidirectional": dict(H=(5, 5), D=2, proj=2, B=4, lengths=[3, 7, 1, 6], padding_value=-0.5),
}


MODULE_CELLS = [cell for cell in CELLS if cell != "gru_reset_before"]  # which torch.nn has not


def module_cases():
    for cell in MODULE_CELLS:
        for name, options in (MODULE_CASES | (PROJECTED_CASES if cell == "lstm" else {})).items():
            yield pytest.param(cell, options, id=f"{cell}-{name}")


@pytest.mark.parametrize(("cell", "options"), list(module_cases()))
def test_against_modules(cell, options):
    problem = Problem(cell, **(dict(T=7, B=3, I=5) | options))
    leaves = make_leaves(problem)
    assert_agrees(problem, run_modules(problem, leaves), leaves)


# -------------------------------------------------------------------------------------- a loop of PyTorch's operations
POINTS = [point.case for point in matrix.points("cpu") if point.case.of_reference]


@pytest.mark.parametrize("case", dict.fromkeys(replace(case, dtype="float64") for case in POINTS), ids=str)
def test_against_autograd(case):
    """Every option with every other, those that torch.nn has not too: the matrix of test_conformance.py."""
    problem = make_problem(case)
    drawn = Drawn(problem.masks, problem.drops(), [])
    found, expected = problem.expected(drawn), problem.expected(drawn, by_autograd=True)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert error(value, expected[name]) < PYTORCH_LIMIT, name
