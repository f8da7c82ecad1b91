"""How large an error the comparison lets pass, in numbers that stand here alone: wider limits would let all pass."""

import numpy as np
import pytest

from cases import Case
from comparing import assert_close
from problems import make_problem


@pytest.mark.parametrize("dtype, eps", [("float32", 2.0**-23), ("float64", 2.0**-52)])
@pytest.mark.parametrize("larger", (1, 3), ids=("of_size_1", "of_size_3"))
def test_errors_beyond_one_steps_roundings_fail(dtype, eps, larger):
    """The longest sum here is of 9 terms, I + H: 12 + 3 eps pass, of the largest element if that is more than 1."""
    case = Case("gru", T=2, B=3, I=4, hidden=(5,), dtype=dtype)

    def compare(ulps):
        expected = {"y": np.full((2, 3, 5), larger, dtype)}
        value = expected["y"].copy()
        value[1, 2, 3] += ulps * eps * larger
        assert_close(case, {"y": value}, {"y": expected["y"].astype(np.float64)})

    compare(14)
    with pytest.raises(AssertionError, match=r"above 15\.00 eps"):
        compare(17)
    with pytest.raises(AssertionError, match=r"above 15\.00 eps"):
        compare(np.nan)


def test_sequences_without_a_step_keep_away_from_kinks():
    """No unit is computed: all that comes out is the initial state, whose gradient is the final one's."""
    problem = make_problem(Case("rnn_relu", lengths=(0, 0, 0)))
    expected = problem.expected()
    assert not expected["y"].any() and np.array_equal(expected["hy"], problem.h)
    assert np.array_equal(expected["dhx"], problem.dhy)
