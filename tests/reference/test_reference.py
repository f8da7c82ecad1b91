"""The float64 reference: against finite differences, against scalar arithmetic, and its contract.

Its options are in test_reference_options.py, PyTorch in test_reference_pytorch.py.
"""

import ast
import math
from pathlib import Path

import numpy as np
import pytest

from numbarnn import reference
from reference_problem import (
    CELLS,
    GATES,
    Problem,
    assert_gradients_are_differences,
    assert_same,
    assert_same_gradients,
    gradients_by_name,
)

DIFFERENCED = {
    "one-layer": dict(H=(4,)),
    "two-layers": dict(),
    "two-layers-no-bias-masks": dict(bias="none", masks=True),
    "bidirectional-masks": dict(D=2, masks=True),
    "bidirectional-no-bias": dict(D=2, bias="none", B=1),
    "three-layers-bidirectional-T1-I1-H1": dict(T=1, I=1, H=(2, 1, 2), D=2, masks=True),
}


def ways(name):
    """Element by element, or along a few directions; in the smallest of problems both in every run."""
    small = name in ("one-layer", "three-layers-bidirectional-T1-I1-H1")
    yield pytest.param(DIFFERENCED[name], False, id=name)
    yield pytest.param(DIFFERENCED[name], True, marks=[] if small else pytest.mark.full, id=f"{name}-each")


@pytest.mark.parametrize("options, each", [way for name in DIFFERENCED for way in ways(name)])
@pytest.mark.parametrize("cell", CELLS)
def test_backward_against_finite_differences(cell, options, each):
    assert_gradients_are_differences(Problem(cell, **options), each)


def test_one_wrong_gradient_is_no_difference(monkeypatch):
    """Along directions too."""
    problem, backward = Problem("gru"), Problem.backward

    def wrong(problem, result=None):
        gradients = backward(problem, result)
        gradients.params["weight_hh_l1"][5, 2] *= 1.001
        return gradients

    monkeypatch.setattr(Problem, "backward", wrong)
    for each in (False, True):
        with pytest.raises(AssertionError, match="weight_hh_l1"):
            assert_gradients_are_differences(problem, each)


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
        elif cell.startswith("gru"):
            r, z = (scalar_sigmoid(ax[k] + ah[k]) for k in (0, 1))
            candidate = r * ah[2] if cell == "gru" else R[2] * (r * h) + b_r[2]
            h = (1 - z) * math.tanh(ax[2] + candidate) + z * h
        elif cell == "rnn_tanh":
            h = math.tanh(ax[0] + ah[0])
        else:
            h = max(0.0, ax[0] + ah[0])
        assert result.y[t, 0, 0] == pytest.approx(h, rel=1e-14)  # a handful of roundings
    assert result.hy[0][0, 0, 0] == pytest.approx(h, rel=1e-14)
    if cell == "lstm":
        assert result.cy[0][0, 0, 0] == pytest.approx(c, rel=1e-14)


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
    ("parameters", {}, "parameters: missing weight_hh_l0; unexpected none"),
    ("weight_hh_l1", None, "parameters: missing none; unexpected weight_ih_l1, bias_ih_l1, bias_hh_l1"),
    ("weight_ih_l1", None, "parameters: missing weight_ih_l1; unexpected none"),
    ("bias_hh_l0", None, "parameters: missing none; unexpected bias_hh_l1"),
    ("weight_ih_l0_reverse", (16, 3), "parameters: missing none; unexpected weight_ih_l0_reverse"),
    ("weight_hh_l0_reverse", (16, 4), "parameters: missing weight_ih_l0_reverse, bias_ih_l0_reverse"),
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


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell != "lstm"])
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
    for file in [folder / name for name in ("__init__.py", "cells.py", "loops.py", "sequences.py", "shapes.py")]:
        imports = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):  # .cells, with its dot: inside the folder
                imports.add("." * node.level + (node.module or ""))
        allowed = {"numpy", "dataclasses", "collections.abc", "functools", "itertools"}
        allowed |= {".cells", ".loops", ".sequences", ".shapes"}
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
