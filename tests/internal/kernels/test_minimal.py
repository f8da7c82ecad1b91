"""The persistent RNN of `numbarnn.kernels.minimal` on a GPU."""

import numpy as np
import pytest

from minimal_rnn import problem_of, run


@pytest.mark.gpu
@pytest.mark.parametrize("T, B, H", [(3, 11, 8), (4, 3, 7)])
def test_agrees_with_float64(T, B, H):
    h, ax, R, right = problem_of(T, B, H)
    run(h, ax, R)
    np.testing.assert_allclose(h[1:], right, rtol=0, atol=1e-5)
