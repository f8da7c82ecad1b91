"""The float64 reference: against finite differences, against scalar arithmetic, and against PyTorch."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest

from numbarnn import reference

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
CELLS = list(GATES)


class Problem:
    """A cell with random parameters, input, states, masks and output gradients, all float64."""

    def __init__(self, cell, T=3, B=2, I=3, H=(4, 3), D=1, bias=True, masks=False, seed=0):  # noqa: E741
        rng = np.random.default_rng(seed)
        self.cell, self.H, self.D, self.bias = cell, H, D, bias
        self.parameters = {}
        for layer, size in enumerate(H):
            width = I if layer == 0 else D * H[layer - 1]
            shapes = {"weight_ih": (GATES[cell] * size, width), "weight_hh": (GATES[cell] * size, size)}
            if bias:
                shapes |= {"bias_ih": (GATES[cell] * size,), "bias_hh": (GATES[cell] * size,)}
            for suffix in ("", "_reverse")[:D]:
                for kind, shape in shapes.items():
                    self.parameters[f"{kind}_l{layer}{suffix}"] = rng.uniform(-0.8, 0.8, shape)
        self.x = rng.normal(size=(T, B, I))
        self.h0 = [rng.normal(size=(D, B, size)) for size in H]
        self.c0 = [rng.normal(size=(D, B, size)) for size in H] if cell == "lstm" else None
        self.masks = None
        if masks:  # dropout with p = 0.4
            self.masks = [rng.choice([0.0, 1 / 0.6], p=[0.4, 0.6], size=(T, B, D * size)) for size in H[:-1]]
        # the loss is linear in the outputs: sum(dy * y) + sum(dhy * hy) + sum(dcy * cy)
        self.dy = rng.normal(size=(T, B, D * H[-1]))
        self.dhy = [rng.normal(size=h.shape) for h in self.h0]
        self.dcy = [rng.normal(size=h.shape) for h in self.h0] if cell == "lstm" else None

    def forward(self):
        return reference.forward(self.cell, self.x, self.parameters, self.h0, self.c0, masks=self.masks)

    def loss(self):
        result = self.forward()
        terms = [(self.dy, result.y), *zip(self.dhy, result.hy, strict=True)]
        terms += zip(self.dcy, result.cy, strict=True) if self.cell == "lstm" else []
        return sum(np.sum(weight * output) for weight, output in terms)

    def inputs(self):
        """Every array that has a gradient, by name; the arrays themselves, not copies."""
        arrays = {"x": self.x, **self.parameters}
        for layer in range(len(self.H)):
            arrays[f"h0[{layer}]"] = self.h0[layer]
            if self.cell == "lstm":
                arrays[f"c0[{layer}]"] = self.c0[layer]
        return arrays


def gradients_by_name(gradients):
    """The gradients under the names of `Problem.inputs`."""
    named = {"x": gradients.dx, **gradients.params}
    named |= {f"h0[{layer}]": dh for layer, dh in enumerate(gradients.dhx)}
    named |= {f"c0[{layer}]": dc for layer, dc in enumerate(gradients.dcx or [])}
    return named


def central_differences(loss, array, step):
    """d loss / d array, one element at a time; array is changed in place and put back."""
    gradient = np.full(array.shape, np.nan)
    for index in np.ndindex(array.shape):
        value = array[index]
        array[index] = value + step
        above = loss()
        array[index] = value - step
        below = loss()
        array[index] = value
        gradient[index] = (above - below) / (2 * step)
    return gradient


def relative_error(actual, expected):
    """Largest absolute difference, relative to the largest element of `expected`."""
    assert actual.shape == expected.shape
    scale = np.max(np.abs(expected))
    assert scale > 1e-3, "a gradient this small would test nothing"
    return np.max(np.abs(actual - expected)) / scale


def assert_same(actual, expected, message=""):
    """The same sums in float64; memory alignment or another order may change their rounding, nothing else."""
    assert actual.dtype == expected.dtype == np.float64, message
    assert actual.shape == expected.shape, message
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13, err_msg=message)


def assert_same_gradients(actual, expected):
    actual, expected = gradients_by_name(actual), gradients_by_name(expected)
    assert actual.keys() == expected.keys()
    for name in expected:
        assert_same(actual[name], expected[name], name)


# Central differences of a step s err by the truncation s² f'''/6 and the rounding 1e-16 |f| / s. Where f
# and its derivatives are of order 1 to 10, both are about 1e-10 at s = 1e-5; the largest error seen is 3e-9.
STEP = 1e-5
FINITE_DIFFERENCE_LIMIT = 1e-6

# For the ReLU: a seed with which no unit comes near its kink and no gradient is all zero (both are asserted).
SEEDS = {"rnn_relu": 9}

DIFFERENCED = {
    "one-layer": dict(H=(4,)),
    "two-layers": dict(),
    "two-layers-no-bias-masks": dict(bias=False, masks=True),
    "bidirectional-masks": dict(D=2, masks=True),
    "bidirectional-no-bias": dict(D=2, bias=False, B=1),
    "three-layers-bidirectional-T1-I1-H1": dict(T=1, I=1, H=(2, 1, 2), D=2, masks=True),
}


@pytest.mark.parametrize("options", DIFFERENCED.values(), ids=DIFFERENCED.keys())
@pytest.mark.parametrize("cell", CELLS)
def test_backward_against_finite_differences(cell, options):
    problem = Problem(cell, **options, seed=SEEDS.get(cell, 0))
    result = problem.forward()
    if cell == "rnn_relu":
        assert_away_from_kinks(result)
    gradients = gradients_by_name(reference.backward(result, problem.dy, problem.dhy, problem.dcy))
    inputs = problem.inputs()
    assert gradients.keys() == inputs.keys()
    for name, array in inputs.items():
        numeric = central_differences(problem.loss, array, STEP)
        assert relative_error(gradients[name], numeric) < FINITE_DIFFERENCE_LIMIT, name


def assert_away_from_kinks(result):
    """No ReLU may change side within a step of a difference, and both sides must occur."""
    steps = [step for layer in result.tape.steps for direction in layer for step in direction]
    a = np.concatenate([step["saved"]["a"].ravel() for step in steps])
    assert np.min(np.abs(a)) > 100 * STEP
    assert np.any(a > 0) and np.any(a < 0)


def scalar_sigmoid(a):
    return 1 / (1 + math.exp(-a))


@pytest.mark.parametrize("cell", CELLS)
def test_one_unit_by_hand(cell):
    """The order of the gates and both biases, by scalar arithmetic: T = 2, B = I = H = 1."""
    W, R = np.array([0.3, -0.5, 0.7, 0.2]), np.array([-0.4, 0.6, 0.9, -0.8])
    b_w, b_r = np.array([0.1, -0.2, 0.25, 0.4]), np.array([0.5, 0.15, -0.3, 0.05])
    G, xs, h, c = GATES[cell], [0.8, -1.1], 0.35, -0.45
    parameters = dict(weight_ih_l0=W[:G, None], weight_hh_l0=R[:G, None], bias_ih_l0=b_w[:G], bias_hh_l0=b_r[:G])
    states = [np.full((1, 1, 1), value) for value in ([h, c] if cell == "lstm" else [h])]
    result = reference.forward(cell, np.reshape(xs, (2, 1, 1)), parameters, *states)
    for t, x in enumerate(xs):
        ax = [float(W[k] * x + b_w[k]) for k in range(G)]
        ah = [float(R[k] * h + b_r[k]) for k in range(G)]
        if cell == "lstm":
            i, f, o = (scalar_sigmoid(ax[k] + ah[k]) for k in (0, 1, 3))
            c = f * c + i * math.tanh(ax[2] + ah[2])
            h = o * math.tanh(c)
        elif cell == "gru":
            r, z = (scalar_sigmoid(ax[k] + ah[k]) for k in (0, 1))
            h = (1 - z) * math.tanh(ax[2] + r * ah[2]) + z * h
        elif cell == "rnn_tanh":
            h = math.tanh(ax[0] + ah[0])
        else:
            h = max(0.0, ax[0] + ah[0])
        assert result.y[t, 0, 0] == pytest.approx(h, rel=1e-14)  # a handful of roundings
    assert result.hy[0][0, 0, 0] == pytest.approx(h, rel=1e-14)
    if cell == "lstm":
        assert result.cy[0][0, 0, 0] == pytest.approx(c, rel=1e-14)


# Sums of up to about a hundred products, over at most 7 steps: both sides err by a few times 1e-15, relative
# to the largest element.
PYTORCH_LIMIT = 1e-12


def run_pytorch(problem):
    """A problem by torch.nn in float64: outputs [y, *hy, *cy] and gradients by name.

    A stack that torch.nn has is one module; with unequal sizes or given masks it is one module per layer.
    """
    torch = pytest.importorskip("torch")
    L, D, H = len(problem.H), problem.D, problem.H
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in problem.inputs().items()}
    y, states = leaves["x"], {"h0": [], "c0": []}
    whole = len(set(H)) == 1 and problem.masks is None
    for layers in [range(L)] if whole else [range(layer, layer + 1) for layer in range(L)]:
        module = torch_module(torch, problem, y.shape[2], H[layers[0]], len(layers))
        first = "_l0" if whole else f"_l{layers[0]}"  # the module counts its own layers from 0
        parameters = {name: leaves[name.replace("_l0", first)] for name in module.state_dict()}
        kinds = ["h0", "c0"] if problem.cell == "lstm" else ["h0"]
        state = [torch.cat([leaves[f"{kind}[{layer}]"] for layer in layers]) for kind in kinds]
        state = tuple(state) if problem.cell == "lstm" else state[0]
        y, state = torch.func.functional_call(module, parameters, (y, state), strict=True)
        for kind, final in zip(kinds, state if problem.cell == "lstm" else [state], strict=True):
            states[kind] += final.split(D)
        if problem.masks is not None and layers[-1] < L - 1:
            y = y * torch.from_numpy(problem.masks[layers[-1]])
    outputs = [y, *states["h0"], *states["c0"]]
    weights = [problem.dy, *problem.dhy, *(problem.dcy or [])]
    sum((torch.from_numpy(dv) * v).sum() for dv, v in zip(weights, outputs, strict=True)).backward()
    return [v.detach().numpy() for v in outputs], {name: v.grad.numpy() for name, v in leaves.items()}


def torch_module(torch, problem, input_size, hidden_size, num_layers):
    options = dict(bias=problem.bias, bidirectional=problem.D == 2, dtype=torch.float64)
    if problem.cell.startswith("rnn"):
        options["nonlinearity"] = problem.cell.removeprefix("rnn_")
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(problem.cell, torch.nn.RNN)
    return kind(input_size, hidden_size, num_layers, **options)


PYTORCH_CASES = {
    "one-layer": dict(H=(6,)),
    "one-step": dict(H=(6,), T=1, B=1, I=1),
    "three-layers": dict(H=(6, 6, 6)),
    "three-layers-bidirectional": dict(H=(6, 6, 6), D=2),
    "three-layers-bidirectional-no-bias": dict(H=(6, 6, 6), D=2, bias=False),
    "unequal-sizes": dict(H=(7, 1, 5)),
    "unequal-sizes-masks": dict(H=(7, 4, 5), masks=True),
    "unequal-sizes-bidirectional-masks": dict(H=(7, 4, 5), D=2, masks=True),
}


@pytest.mark.parametrize("options", PYTORCH_CASES.values(), ids=PYTORCH_CASES.keys())
@pytest.mark.parametrize("cell", CELLS)
def test_against_pytorch(cell, options):
    problem = Problem(cell, **(dict(T=7, B=3, I=5) | options))
    expected_outputs, expected_gradients = run_pytorch(problem)

    result = problem.forward()
    gradients = gradients_by_name(reference.backward(result, problem.dy, problem.dhy, problem.dcy))
    for actual, expected in zip([result.y, *result.hy, *(result.cy or [])], expected_outputs, strict=True):
        assert relative_error(actual, expected) < PYTORCH_LIMIT
    assert gradients.keys() == expected_gradients.keys()
    for name, expected in expected_gradients.items():
        assert relative_error(gradients[name], expected) < PYTORCH_LIMIT, name


@pytest.mark.parametrize("cell", CELLS)
def test_reverse_direction_is_forward_on_the_sequence_turned_round(cell):
    both_ways = Problem(cell, T=4, H=(5,), D=2)
    both = both_ways.forward()
    for direction, turn in enumerate([slice(None), slice(None, None, -1)]):
        one_way = Problem(cell, T=4, H=(5,))
        one_way.x = both_ways.x[turn]
        for name in one_way.parameters:
            one_way.parameters[name] = both_ways.parameters[name + ("_reverse" if direction else "")]
        one_way.h0 = [both_ways.h0[0][[direction]]]
        one_way.c0 = [both_ways.c0[0][[direction]]] if cell == "lstm" else None
        one = one_way.forward()
        assert_same(one.y[turn], both.y[:, :, 5 * direction : 5 * direction + 5])
        assert_same(one.hy[0][0], both.hy[0][direction])
    assert_same(both.hy[0][0], both.y[-1, :, :5])
    assert_same(both.hy[0][1], both.y[0, :, 5:])


@pytest.mark.parametrize("cell", CELLS)
def test_state_carried_from_call_to_call(cell):
    """A sequence in two pieces gives what it gives in one, forward and backward."""
    problem = Problem(cell, T=5)
    whole = problem.forward()
    first = reference.forward(cell, problem.x[:2], problem.parameters, problem.h0, problem.c0)
    second = reference.forward(cell, problem.x[2:], problem.parameters, first.hy, first.cy)
    assert_same(np.concatenate([first.y, second.y]), whole.y)
    assert_same(second.hy[1], whole.hy[1])

    expected = reference.backward(whole, problem.dy, problem.dhy, problem.dcy)
    late = reference.backward(second, problem.dy[2:], problem.dhy, problem.dcy)
    early = reference.backward(first, problem.dy[:2], late.dhx, late.dcx)
    assert_same(np.concatenate([early.dx, late.dx]), expected.dx)
    assert_same(early.dhx[0], expected.dhx[0])
    for name, gradient in expected.params.items():
        assert_same(early.params[name] + late.params[name], gradient, name)


@pytest.mark.parametrize("cell", CELLS)
def test_none_gradients_are_zeros(cell):
    problem = Problem(cell, D=2, masks=True)
    result = problem.forward()
    for gradient in gradients_by_name(reference.backward(result)).values():
        np.testing.assert_array_equal(gradient, np.zeros(gradient.shape))

    zeros = [np.zeros(h.shape) for h in problem.dhy]
    zeros_c = zeros if cell == "lstm" else None
    expected = reference.backward(result, problem.dy, zeros, zeros_c)
    assert_same_gradients(reference.backward(result, problem.dy), expected)
    expected = reference.backward(result, np.zeros(result.y.shape), problem.dhy, zeros_c)
    assert_same_gradients(reference.backward(result, dhy=problem.dhy), expected)
    if cell == "lstm":
        expected = reference.backward(result, np.zeros(result.y.shape), zeros, problem.dcy)
        assert_same_gradients(reference.backward(result, dcy=problem.dcy), expected)


@pytest.mark.parametrize("cell", CELLS)
def test_none_states_are_zeros_and_masks_of_one_change_nothing(cell):
    problem = Problem(cell, D=2)
    plain = reference.forward(cell, problem.x, problem.parameters)
    problem.h0 = [np.zeros(h.shape) for h in problem.h0]
    problem.c0 = problem.h0 if cell == "lstm" else None
    problem.masks = [np.ones((3, 2, 8))]
    assert_same(problem.forward().y, plain.y)


@pytest.mark.parametrize("cell", CELLS)
def test_states_in_both_forms(cell):
    """A list with one (D, B, H) per layer, or one array (L*D, B, H)."""
    problem = Problem(cell, H=(4, 4), D=2)
    expected = problem.forward()
    joined = [None if state is None else np.concatenate(state) for state in (problem.h0, problem.c0)]
    result = reference.forward(cell, problem.x, problem.parameters, *joined)
    assert_same(result.y, expected.y)

    expected = reference.backward(result, problem.dy, problem.dhy, problem.dcy)
    joined = [None if state is None else np.concatenate(state) for state in (problem.dhy, problem.dcy)]
    assert_same_gradients(reference.backward(result, problem.dy, *joined), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_other_dtypes_are_computed_in_float64(dtype):
    narrow, wide = Problem("lstm"), Problem("lstm")
    for problem, last in ((narrow, dtype), (wide, np.float64)):
        for name, array in problem.parameters.items():
            problem.parameters[name] = array.astype(dtype).astype(last)
        for name in ("x", "dy"):
            setattr(problem, name, getattr(problem, name).astype(dtype).astype(last))
        for name in ("h0", "c0", "dhy", "dcy"):
            setattr(problem, name, [array.astype(dtype).astype(last) for array in getattr(problem, name)])
    results = [problem.forward() for problem in (narrow, wide)]
    assert results[0].y.dtype == np.float64
    assert_same(results[0].y, results[1].y)
    gradients = [
        reference.backward(result, problem.dy, problem.dhy, problem.dcy)
        for result, problem in zip(results, (narrow, wide), strict=True)
    ]
    assert_same_gradients(*gradients)


def test_shares_no_memory_with_its_caller():
    """Arguments are left as they are; changing them or the outputs later does not change the gradients."""
    problem = Problem("gru", H=(4, 4), masks=True)
    arguments = [problem.x, *problem.h0, *problem.masks, *problem.parameters.values(), problem.dy]
    arguments += problem.dhy
    before = [array.copy() for array in arguments]
    result = problem.forward()
    expected = reference.backward(result, problem.dy, problem.dhy)
    for array, copy in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(array, copy)
    dy, dhy = problem.dy.copy(), [dh.copy() for dh in problem.dhy]
    for array in [*arguments, result.y, *result.hy]:
        array[...] = np.nan
    assert_same_gradients(reference.backward(result, dy, dhy), expected)


def test_saturated_gates_do_not_overflow():
    problem = Problem("lstm")
    problem.x *= 1e6
    with np.errstate(all="raise", under="ignore"):
        gradients = reference.backward(problem.forward(), problem.dy, problem.dhy, problem.dcy)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients_by_name(gradients).values())


def change(problem, name, value):
    """Set an argument, or a parameter to zeros of the shape `value`, or take the parameter away (None)."""
    if hasattr(problem, name):
        setattr(problem, name, value)
    elif value is None:
        del problem.parameters[name]
    else:
        problem.parameters[name] = np.zeros(value)


# What is changed in a good LSTM (two layers, H = 4 and 3, I = 3, T = 3, B = 2), and how the error begins.
BAD_FORWARD = [
    ("cell", "lsmt", "cell: expected one of lstm, gru"),
    ("cell", "gru", "weight_hh_l0: expected shape (G*H, H) with G = 3"),
    ("parameters", {}, "parameters: missing weight_ih_l0, weight_hh_l0"),
    ("weight_hh_l1", None, "parameters: missing weight_hh_l1"),
    ("weight_ih_l0", None, "parameters: missing weight_ih_l0"),
    ("bias_hh_l0", None, "parameters: missing bias_hh_l0"),
    ("weight_ih_l0_reverse", (16, 3), "parameters: missing weight_hh_l0_reverse"),
    ("weight_hr_l0", (2, 4), "parameters: missing none; unexpected weight_hr_l0"),  # a projection
    ("weight_ih_l0", (12, 3), "weight_ih_l0: expected shape (16, 3)"),
    ("weight_ih_l0", (16,), "weight_ih_l0: expected shape (16, I)"),
    ("weight_ih_l0", (16, 0), "weight_ih_l0: expected shape (16, I)"),
    ("weight_ih_l1", (12, 3), "weight_ih_l1: expected shape (12, 4)"),
    ("weight_hh_l0", (16, 5), "weight_hh_l0: expected shape (G*H, H)"),
    ("weight_hh_l0", (0, 0), "weight_hh_l0: expected shape (G*H, H)"),
    ("bias_hh_l1", (16,), "bias_hh_l1: expected shape (12,); got (16,)"),
    ("x", np.zeros((3, 3)), "x: expected shape (T, B, I) with I = 3"),
    ("x", np.zeros((3, 2, 4)), "x: expected shape (T, B, I) with I = 3"),
    ("x", np.zeros((0, 2, 3)), "x: expected shape (T, B, I)"),
    ("h0", np.zeros((2, 2, 4)), "h0: hidden sizes [4, 3] differ"),
    ("h0", [np.zeros((1, 2, 4))], "h0: expected a list of 2 arrays"),
    ("c0", [np.zeros((1, 2, 4)), np.zeros((1, 1, 3))], "c0[1]: expected shape (1, 2, 3); got (1, 1, 3)"),
    ("masks", [], "masks: expected 1 arrays"),
    ("masks", [np.ones((3, 2, 3))], "masks[0]: expected shape (3, 2, 4)"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD_FORWARD, ids=[case[0] for case in BAD_FORWARD])
def test_forward_rejects(name, value, message):
    problem = Problem("lstm")
    change(problem, name, value)
    with pytest.raises(ValueError) as error:
        problem.forward()
    assert str(error.value).startswith(message)


def test_forward_rejects_directions_of_different_size():
    problem = Problem("gru", H=(4,), D=2)
    change(problem, "weight_hh_l0_reverse", (9, 3))
    with pytest.raises(ValueError, match=r"weight_hh_l0_reverse: expected shape \(12, 4\); got \(9, 3\)"):
        problem.forward()


def test_backward_rejects():
    lstm, equal_sizes = Problem("lstm").forward(), Problem("lstm", H=(4, 4)).forward()
    with pytest.raises(ValueError, match=r"dy: expected shape \(3, 2, 3\); got \(3, 2, 4\)"):
        reference.backward(lstm, np.zeros((3, 2, 4)))
    with pytest.raises(ValueError, match=r"dhy: hidden sizes \[4, 3\] differ"):
        reference.backward(lstm, dhy=np.zeros((2, 2, 4)))
    with pytest.raises(ValueError, match=r"dhy: expected shape \(2, 2, 4\); got \(1, 2, 4\)"):
        reference.backward(equal_sizes, dhy=np.zeros((1, 2, 4)))
    with pytest.raises(ValueError, match=r"dcy\[0\]: expected shape \(1, 2, 4\)"):
        reference.backward(lstm, dcy=[np.zeros((1, 2, 3)), np.zeros((1, 2, 3))])


@pytest.mark.parametrize("cell", ["gru", "rnn_tanh", "rnn_relu"])
def test_only_the_lstm_has_a_cell_state(cell):
    problem = Problem(cell)
    result = problem.forward()
    assert result.cy is None
    assert reference.backward(result).dcx is None
    with pytest.raises(ValueError, match="dcy: only the LSTM has a cell state"):
        reference.backward(result, dcy=problem.dhy)
    problem.c0 = problem.h0
    with pytest.raises(ValueError, match="c0: only the LSTM has a cell state"):
        problem.forward()


def test_imports_nothing_else_of_numbarnn():
    """A mistake shared with the code under test would pass, so the reference shares no code with it."""
    folder = Path(reference.__file__).parent
    for file in [folder / name for name in ("__init__.py", "cells.py", "loops.py", "shapes.py")]:
        imports = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):  # .cells, with its dot: inside the folder
                imports.add("." * node.level + (node.module or ""))
        allowed = {"numpy", "dataclasses", "collections.abc", ".cells", ".loops", ".shapes"}
        assert imports <= allowed, file.name


def test_longdouble_is_computed_in_longdouble():
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.longdouble)

    parameters = {"weight_ih_l0": normal(12, 3), "weight_hh_l0": normal(12, 4)}
    parameters |= {"bias_ih_l0": normal(12), "bias_hh_l0": normal(12)}
    result = reference.forward("gru", normal(5, 2, 3), parameters, normal(1, 2, 4))
    gradients = reference.backward(result, normal(5, 2, 4), normal(1, 2, 4))
    for array in (result.y, gradients.dx, *gradients.params.values()):
        assert array.dtype == np.longdouble
    if np.finfo(np.longdouble).eps < np.finfo(np.float64).eps:
        assert (result.y != result.y.astype(np.float64)).any()
