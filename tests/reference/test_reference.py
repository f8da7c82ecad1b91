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
