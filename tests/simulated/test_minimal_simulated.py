"""The persistent RNN of `numbarnn.kernels.minimal`, which is there to be read: it is right, too."""

import numpy as np
import pytest

from minimal_rnn import problem_of, run
from numbarnn.kernels import minimal


@pytest.mark.parametrize("T, B, H, seed", [(1, 1, 1, 0), (4, 3, 7, 1), (3, 11, 8, 2), (5, 8, 16, 3)])
def test_agrees_with_float64(T, B, H, seed):
    h, ax, R, right = problem_of(T, B, H)
    run(h, ax, R, seed)
    np.testing.assert_allclose(h[1:], right, rtol=0, atol=1e-5)


@pytest.mark.parametrize("what", ("a block", "the first state"))
def test_ends_where_something_is_missing(monkeypatch, what):
    """What depends on it stays NaN."""
    monkeypatch.setattr(minimal, "PATIENCE", 5)
    h, ax, R, _ = problem_of(4, 3, 8)
    if what == "the first state":
        h[0, 1, 5] = np.nan
    run(h, ax, R, missing=int(what == "a block"))
    assert np.isnan(h[2:]).all() and np.isfinite(h[1]).any() == (what == "a block")
