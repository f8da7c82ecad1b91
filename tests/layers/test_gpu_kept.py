"""On a GPU, too, backward reads what forward saw: weights, x and y that change in between do not count."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from cases import Case
from comparing import assert_same_bits
from numbarnn import engines
from problems import make_problem
from running import named_gradients, on_engine

pytestmark = pytest.mark.gpu
CASE = Case("gru", hidden=(5, 5))


@pytest.mark.parametrize("dtype", ("float32", "float16"))
def test_a_change_before_backward_does_not_change_the_gradients(dtype):
    problem, engine = make_problem(CASE), engines.get("cuda")
    layer = replace(CASE, dtype=dtype).layer("cuda", schedule="stepwise")
    x, dy = on_engine(engine, [problem.x.astype(dtype), problem.dy.astype(dtype)])
    expected = named_gradients(layer, layer.backward(layer.forward(x)[2], dy))
    for _ in range(3):  # later calls replay what earlier ones recorded
        for what in ("weights", "x", "y"):
            y, _, tape = layer.forward(x)
            array = {"weights": layer.weights, "x": x, "y": y}[what]
            before = array.copy()
            array *= -2
            found = layer.backward(tape, dy)
            array[...] = before
            assert_same_bits(named_gradients(layer, found), expected)


def test_a_layer_on_a_gpu_is_pickled():
    layer = CASE.layer("cuda")
    other = pickle.loads(pickle.dumps(layer))
    assert other.engine is layer.engine and repr(other) == repr(layer)
    assert_same_bits(other.state_dict(), layer.state_dict())
    other.parameters["bias_ih_l0"] = np.zeros(15)
    other.parameters["bias_hh_l0"] = layer.parameters["bias_hh_l1"]
    assert not other.state_dict()["bias_ih_l0"].any() and layer.state_dict()["bias_ih_l0"].any()
    np.testing.assert_array_equal(other.state_dict()["bias_hh_l0"], layer.state_dict()["bias_hh_l1"])
