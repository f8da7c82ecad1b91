"""The float64 reference: against finite differences, against scalar arithmetic, and its contract.

Its options are in test_reference_options.py; PyTorch, onnxruntime and cuDNN, as recorded, in test_vectors.py.
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
)

DIFFERENCED = {
    "one-layer": dict(H=(4,)),
    "two-layers-no-bias-masks": dict(bias="none", masks=True),
    "bidirectional-masks": dict(D=2, masks=True),
    "three-layers-bidirectional-T1-I1-H1": dict(T=1, I=1, H=(2, 1, 2), D=2, masks=True),
}


@pytest.mark.parametrize("options", DIFFERENCED.values(), ids=DIFFERENCED)
@pytest.mark.parametrize("cell", CELLS)
def test_backward_against_finite_differences(cell, options):
    assert_gradients_are_differences(Problem(cell, **options))


def test_one_wrong_gradient_is_no_difference(monkeypatch):
    problem, backward = Problem("gru"), Problem.backward

    def wrong(problem, result=None):
        gradients = backward(problem, result)
        gradients.params["weight_hh_l1"][5, 2] *= 1.001
        return gradients

    monkeypatch.setattr(Problem, "backward", wrong)
    with pytest.raises(AssertionError, match="weight_hh_l1"):
        assert_gradients_are_differences(problem)


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
