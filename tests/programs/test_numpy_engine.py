"""A small engine of NumPy alone interprets programs, and gets what the CPU engine gets."""

import numpy as np
import pytest

import numbarnn as nr
from cases import Case
from comparing import assert_close
from numbarnn.cells import library
from numpy_engine import NumpyEngine
from problems import make_problem
from running import train

CASES = [
    Case("lstm", hidden=(5, 3), directions=2, dropout=0.4, dtype="float64"),
    Case("lstm", hidden=(5, 3), directions=2, lengths=(7, 0, 4), resets=True, dtype="float64"),
    Case("lstm", hidden=(6, 6), proj_size=3, lengths=(7, 2, 4), dtype="float64"),
    Case("gru", hidden=(5, 5), batch_first=True, dtype="float64"),
    Case("rnn_relu", hidden=(4,), input_mode="skip", resets=True, dtype="float64"),
]


def test_the_librarys_cells():
    rng = np.random.default_rng(0)
    for name in ("peephole_lstm", "layer_norm_gru", "multiplicative_lstm"):
        cell = getattr(library, name)
        found = []
        for device in (NumpyEngine(), "cpu"):
            layer = nr.RNN(cell, 3, 5, 2, bidirectional=True, dtype="float64", device=device, seed=0)
            if not found:
                x, dy = rng.standard_normal((4, 2, 3)), rng.standard_normal((4, 2, 10))
            y, _, tape = layer.forward(x, lengths=[4, 2])
            grads = layer.backward(tape, dy)
            found.append((y, grads.x, grads.weights))
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("schedule", ("stepwise", "wavefront"))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_gets_what_the_cpu_engine_gets(case, schedule):
    problem = make_problem(case)
    found = train(problem.layer(NumpyEngine(), schedule=schedule), problem)[0]
    assert_close(case, found, train(problem.layer("cpu"), problem)[0])
