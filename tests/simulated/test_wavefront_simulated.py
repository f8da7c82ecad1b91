"""The wavefront schedule with the real kernels, in the simulator: equal to stepwise, in any order that needs allow."""

from itertools import product

import pytest

from helpers import Case, assert_equals_stepwise, assert_same_bits, infer, make_problem, train
from numbarnn import schedules
from plan_orders import Shuffled

CELLS = ("lstm", "gru", "rnn_tanh")
HIDDEN = ((5,), (3, 5), (2, 5, 3))


def cases():
    """Every cell with 1 to 3 layers of unequal sizes, directions and dropout taking turns; blocks of 1 and 2 steps."""
    for number, (cell, hidden, T) in enumerate(product(CELLS, HIDDEN, (1, 9))):
        yield Case(cell, T=T, B=2, hidden=hidden, directions=1 + number // 2 % 2, dropout=0.4 * (number % 3 == 0))


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_equals_stepwise_to_rounding(case):
    """A block's input products may be added up in another order than all steps'."""
    assert_equals_stepwise(case, "sim", "wavefront")


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("seed", range(5))
def test_every_order_that_needs_allow_gives_the_same_bits(cell, seed):
    case = Case(cell, T=9, B=2, hidden=(5, 3, 4)[: 2 + seed % 2], directions=1 + seed % 2, dropout=0.3)
    problem = make_problem(case)
    layer = problem.layer("sim", schedule="wavefront", seed=2)
    expected, (values, _) = infer(layer, problem), train(layer, problem)
    layer = problem.layer("sim", seed=2)
    layer.stack.schedule = Shuffled(schedules.choose("wavefront"), seed)
    assert_same_bits(infer(layer, problem), expected)
    assert_same_bits(train(layer, problem)[0], values)
