"""Layers in the simulator: changes before backward do not count there either, and layers are pickled and copied."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

from cases import Case
from comparing import assert_same_bits
from problems import make_problem
from running import named_gradients

CASE = Case("gru", T=2, hidden=(5,))


@pytest.mark.parametrize("dtype", ("float32", "float16"))
def test_a_change_before_backward_does_not_change_the_gradients(dtype):
    problem = make_problem(CASE)
    layer = replace(CASE, dtype=dtype).layer("sim")
    x, dy = problem.x.astype(dtype), problem.dy.astype(dtype)
    expected = named_gradients(layer, layer.backward(layer.forward(x)[2], dy))
    for array in (layer.weights, x):
        tape, before = layer.forward(x)[2], array.copy()
        array[-1:] *= -1
        assert_same_bits(named_gradients(layer, layer.backward(tape, dy)), expected)
        array[...] = before


@pytest.mark.parametrize("way", (copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))))
def test_a_copy_computes_the_same_with_weights_of_its_own(way):
    problem = make_problem(CASE)
    layer = problem.layer("sim")
    other = way(layer)
    np.testing.assert_array_equal(layer(problem.x)[0], other(problem.x)[0])
    other.weights = np.zeros_like(layer.weights)
    assert repr(other) == repr(layer) and layer.weights.any() and not other.weights.any()
