"""The wavefront schedule with the real kernels, in the simulator: the same bits in any order that needs allow."""

import pytest

from cases import Case
from comparing import assert_same_bits
from numbarnn import schedules
from plan_orders import Shuffled
from problems import make_problem
from running import infer, train


@pytest.mark.parametrize("cell, seed", [("lstm", 0), ("lstm", 1), ("gru", 2), ("rnn_tanh", 3)])
def test_every_order_that_needs_allow_gives_the_same_bits(cell, seed):
    case = Case(cell, T=9, B=2, hidden=(5, 3, 4)[: 2 + seed % 2], directions=1 + seed % 2, dropout=0.3)
    problem = make_problem(case)
    layer = problem.layer("sim", schedule="wavefront", seed=2)
    expected, (values, _) = infer(layer, problem), train(layer, problem)
    layer = problem.layer("sim", seed=2)
    layer.stack.schedule = Shuffled(schedules.choose("wavefront"), seed)
    assert_same_bits(infer(layer, problem), expected)
    assert_same_bits(train(layer, problem)[0], values)
