"""Persistent kernels whose first layer multiplies its input itself, on a GPU: where the planner takes it, and not."""

from dataclasses import replace

import numpy as np
import pytest

from cases import Case
from numbarnn import engines
from problems import make_problem

pytestmark = pytest.mark.gpu
FEW_STEPS = (
    Case("lstm", T=1, B=1, I=16, hidden=(24,)),
    Case("gru", T=2, B=3, I=12, hidden=(17, 9), dropout=0.3),
    # Within a step blocks exchange a further product's operand, sums, a projection's.
    Case("gru_reset_before", T=2, B=2, I=8, hidden=(9,)),
    Case("normed", T=1, B=3, I=5, hidden=(8,), dtype="float16"),
    Case("lstm", T=2, B=2, I=8, hidden=(12,), proj_size=5),
)


@pytest.fixture
def engine():
    return engines.get("cuda")


@pytest.mark.parametrize("dtype", ("float32", "float16"))
def test_x_that_begins_anywhere(engine, dtype):
    """Not at a multiple of 16 bytes: it is loaded number by number."""
    case = replace(FEW_STEPS[0], dtype=dtype)
    problem = make_problem(case)
    layer = problem.layer("cuda", schedule="persistent", seed=3)
    room = engine.empty(problem.x.size + 1, dtype)
    x = room[1:].reshape(problem.x.shape)
    x[...] = engine.from_host(problem.x)
    assert engine.address(x) % 16 != 0
    expected, found = layer(engine.from_host(problem.x))[0], layer(x)[0]
    np.testing.assert_array_equal(engine.to_host(found), engine.to_host(expected))
