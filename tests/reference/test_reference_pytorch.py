"""The float64 reference against a loop of PyTorch's operations, whose gradients are autograd's. With torch.nn's
layers, as recorded, it is compared in test_vectors.py."""

from dataclasses import replace

import pytest

import matrix
from comparing import error
from problems import Drawn, make_problem

pytest.importorskip("torch")

# Sums of up to about a hundred products, over at most 7 steps: both sides err by a few times 1e-15, relative
# to the largest element.
PYTORCH_LIMIT = 1e-12
POINTS = [point.case for point in matrix.points("cpu") if point.case.of_reference]


@pytest.mark.parametrize("case", dict.fromkeys(replace(case, dtype="float64") for case in POINTS), ids=str)
def test_against_autograd(case):
    """Every option with every other: the matrix of test_conformance.py."""
    problem = make_problem(case)
    drawn = Drawn(problem.masks, problem.drops(), [])
    found, expected = problem.expected(drawn), problem.expected(drawn, by_autograd=True)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert error(value, expected[name]) < PYTORCH_LIMIT, name
