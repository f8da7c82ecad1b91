"""Backward reads what forward saw: weights and x that change in between do not count.

And writing weights by assignment: values are copied into the one buffer.
"""

import numpy as np
import pytest

import numbarnn as nr
from cases import Case
from comparing import assert_same_bits
from numbarnn import functional as F
from problems import make_problem
from running import infer, named_gradients

CASE = Case("lstm", hidden=(5, 5), directions=2)


def swap_weights(layer, x):
    w = layer.weights
    w[[3, 40]] = w[[40, 3]]


def flip_all_signs(layer, x):
    layer.weights[...] *= -1


def one_weight(layer, x):
    layer.parameters["weight_hh_l1"][7, 2] += 1e-3


def one_bias(layer, x):
    layer.parameters["bias_hh_l0"][-1] *= 2


def optimizer_step(layer, x):
    for parameter in layer.parameters.values():
        parameter -= 1e-3 * parameter


def overwrite_x(layer, x):
    x[...] = x[::-1].copy()


def one_step_of_x(layer, x):
    x[3] = 0


CHANGES = [swap_weights, flip_all_signs, one_weight, one_bias, optimizer_step, overwrite_x, one_step_of_x]


@pytest.mark.parametrize("size", (5, 300), ids=("prepared", "large"))
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize(
    "options", ({}, {"dtype": "float16"}, {"checkpoint_every": 3}, {"schedule": "wavefront"}), ids=str
)
def test_a_change_before_backward_does_not_change_the_gradients(change, size, options):
    rng, (layer, other) = (
        np.random.default_rng(0),
        (nr.LSTM(4, size, 2, device="cpu", seed=0, **options) for _ in range(2)),
    )
    x, dy = (rng.standard_normal((7, 3, width)).astype(layer.dtype) for width in (4, size))
    for _ in range(2):
        expected = named_gradients(other, other.backward(other.forward(x)[2], dy))
        tape, before = layer.forward(x)[2], (layer.weights.copy(), x.copy())
        change(layer, x)
        assert_same_bits(named_gradients(layer, layer.backward(tape, dy)), expected)
        layer.weights[...], x[...] = before


def test_what_forward_copies_may_be_overwritten():
    """Initial states, lengths, resets; x with batch_first, of different lengths, or not contiguous."""
    problem = make_problem(CASE)
    T, B = problem.x.shape[:2]
    lengths, resets = np.array([T, 2, 5]), np.zeros((T, B), bool)
    resets[4, 1] = True
    options = [{}, {"lengths": lengths}, {"resets": resets}, {"lengths": lengths, "resets": resets}]
    for option in options:
        results = []
        for spoil in (False, True):
            layer, x = problem.layer(), np.asfortranarray(problem.x)
            given = [x, *map(np.array, problem.state)] + [value.copy() for value in option.values()]
            names = dict(zip(option, given[3:], strict=True))
            tape = layer.forward(given[0], tuple(given[1:3]), **names)[2]
            for array in given if spoil else ():
                array[...] = 1
            results.append(named_gradients(layer, layer.backward(tape, problem.dy, problem.dstate)))
        assert_same_bits(*results)


@pytest.mark.parametrize("what", ("w", "x"))
def test_functional_keeps_them_too(what):
    problem = make_problem(CASE)
    rnn = F.Descriptor("lstm", 4, 5, 2, bidirectional=True, device="cpu")
    found = []
    for changes in (False, True):
        w, x, dw = problem.layer().weights.copy(), problem.x.copy(), rnn.zeros_weights()
        y, *_, reserve = F.forward_training(rnn, x, w=w)
        y[...] = np.nan  # it is the caller's own
        if changes:
            {"w": w, "x": x}[what][0] += 1
        dx, *_ = F.backward_data(rnn, reserve, problem.dy, w=w)
        found.append({"dx": dx, "dw": F.backward_weights(rnn, reserve, dw)})
    assert_same_bits(*found)


# ---------------------------------------------------------------------------------------------------------- assigning
def test_assigned_weights_are_copied_into_the_buffer():
    problem = make_problem(CASE)
    layer, other = problem.layer(), CASE.layer(seed=7)
    buffer, views = layer.weights, dict(layer.parameters)
    layer.weights = other.weights
    assert layer.weights is buffer and not np.shares_memory(buffer, other.weights)
    assert all(layer.parameters[name] is view for name, view in views.items())
    assert_same_bits(infer(layer, problem), infer(other, problem))
    assert_same_bits(layer.state_dict(), other.state_dict())
