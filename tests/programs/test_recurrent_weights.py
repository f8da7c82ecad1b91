"""R of blocks on the diagonal, DropConnect, and projections of general cells, on the CPU: threads, masks, what
layers say of it. What they compute is in test_conformance.py."""

from dataclasses import replace

import numpy as np
import pytest

import numbarnn
from cases import Case
from comparing import assert_same_bits
from equations import weighted as make_cell
from numbarnn.cells import library
from numbarnn.layers import Stack
from problems import make_problem
from running import train_and_draw

# ---------------------------------------------------------------------------------------------------------------- masks


def test_training_resumes_with_the_same_masks():
    case = Case("rnn_tanh", hidden=(6,), heads=2, drop=0.5)
    problem = make_problem(case)
    layer = problem.layer()
    runs = [train_and_draw(layer, problem) for _ in range(3)]
    masks = [drawn.drops["weight_hh_l0"] for _, drawn in runs]
    assert not np.array_equal(masks[0], masks[1]) and not np.array_equal(masks[1], masks[2])
    resumed = problem.layer()
    resumed.training_calls = 2
    values, drawn = train_and_draw(resumed, problem)
    np.testing.assert_array_equal(drawn.drops["weight_hh_l0"], masks[2])
    assert_same_bits(values, runs[2][0])
    other = case.layer(seed=2)
    other.training_calls = 2
    found = other.drop_connect_masks(other.forward(problem.x)[2])["weight_hh_l0"]
    assert not np.array_equal(found, masks[2])


# ----------------------------------------------------------------------------------------------------------- parameters
def test_parameters():
    layer = numbarnn.RNN(make_cell("gru_reset_before", 2, (), False), 3, 6, 2, device="cpu", bidirectional=True)
    shapes = {name: value.shape for name, value in layer.state_dict().items()}
    assert shapes["weight_hh_l0"] == shapes["weight_hh_l1_reverse"] == (18, 3)
    assert shapes["weight_ih_l0"] == (18, 3) and shapes["weight_ih_l1"] == (18, 12) and shapes["bias_ih_l0"] == (18,)
    assert layer.weights.size == sum(np.prod(shape) for shape in shapes.values())
    bound = 1 / 6**0.5
    assert 0.9 * bound < np.abs(layer.parameters["weight_hh_l0"]).max() <= bound
    for write in (numbarnn.convert.to_torch, numbarnn.convert.to_keras):
        with pytest.raises(ValueError, match="PyTorch and Keras have no such layer"):
            write(layer)


@pytest.mark.parametrize("cell, sizes, options, message", [
    (make_cell("lstm", 4, (), False), 6, {}, "hidden_size must be a multiple of the 4 heads of cell own_lstm, but"),
    (make_cell("lstm", 2, (), False), [4, 3], {}, "hidden_size must be a multiple of the 2 heads .* but is 3"),
    (make_cell("lstm", 2, (), True), 4, {"proj_size": 3}, "proj_size must be a multiple of the 2 heads .* but is 3"),
    (replace(library.lstm, heads=0), 4, {}, "heads of cell lstm must be at least 1, not 0"),
    (replace(library.lstm, drop_connect=(0.5,)), 4, {}, "drop_connect of cell lstm must have one probability for each "
     "of the 4 gates of R, but has 1"),
    (replace(library.rnn_tanh, drop_connect=(1.5,)), 4, {}, r"drop_connect of cell rnn_tanh must be in \[0, 1\]"),
    (make_cell("lstm", 1, (), True), [4, 3], {}, "proj_size must be given: own_lstm projects its output, and the lay"),
    (replace(library.gru_reset_before, projected=True), 4, {"proj_size": 2}, "and projects its output: write it"),
    (library.lstm, 4, {"proj_size": 2}, "proj_size must be left out: the equations of lstm have no projection; to "
     "have one, write `return p.P.h @ ..., ...`"),
    ("lstm", 4, {"proj_size": 4}, "proj_size must be smaller than every hidden size"),
    ("gru", 4, {"proj_size": 2}, "proj_size is for the LSTM, a gru has no projection"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(cell, sizes, options, message):
    with pytest.raises(ValueError, match=message):
        Stack(cell, 3, sizes, device="cpu", **options)


def test_states_come_one_by_one():
    problem = make_problem(Case("light", hidden=(5, 5), directions=2))
    layer = problem.layer()
    y, states = layer(problem.x, problem.state)
    assert y.shape == (7, 3, 10) and [state.shape for state in states] == [(4, 3, 5)] * 3
    with pytest.raises(TypeError, match=r"state must be a tuple \(h, c, n\), not 2 items"):
        layer(problem.x, states[:2])
