"""Weights, or the y that forward returned, changed before backward on a GPU: the next check after backward says so."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from cases import Case
from comparing import assert_same_bits
from numbarnn import engines
from problems import make_problem
from running import on_engine

pytestmark = pytest.mark.gpu
CASE = Case("gru", hidden=(5, 5))


def one_weight(layer, y):
    layer.weights[7] += 1


def last_bias(layer, y):
    layer.weights[-1:] *= 2


def all_signs(layer, y):
    layer.weights[...] *= -1


def y_in_place(layer, y):
    y -= 1


CHANGES = {one_weight: "weights", last_bias: "weights", all_signs: "weights", y_in_place: "y"}


RUNS = [*((change, what, "float32") for change, what in CHANGES.items()), (last_bias, "weights", "float16")]


@pytest.mark.parametrize("change, what, dtype", RUNS, ids=[f"{run[0].__name__}-{run[2]}" for run in RUNS])
def test_a_change_is_noticed_at_each_call_and_at_no_other(change, what, dtype):
    problem, engine = make_problem(CASE), engines.get("cuda")
    layer = replace(CASE, dtype=dtype).layer("cuda", schedule="stepwise")
    x, dy = on_engine(engine, [problem.x.astype(dtype), problem.dy.astype(dtype)])
    for spoil in (False, True, False, False, True, False):  # later calls replay what earlier ones recorded
        y, _, tape = layer.forward(x)
        before = layer.weights.copy()
        if spoil:
            change(layer, y)
        layer.backward(tape, dy)
        if spoil:
            with pytest.raises(RuntimeError, match=r"the weights were changed" if what == "weights" else r"y, which"):
                engine.synchronize()
            layer.weights[...] = before
        engine.synchronize()


def test_a_layer_on_a_gpu_is_pickled():
    layer = CASE.layer("cuda")
    other = pickle.loads(pickle.dumps(layer))
    assert other.engine is layer.engine and repr(other) == repr(layer)
    assert_same_bits(other.state_dict(), layer.state_dict())
    other.parameters["bias_ih_l0"] = np.zeros(15)
    other.parameters["bias_hh_l0"] = layer.parameters["bias_hh_l1"]
    assert not other.state_dict()["bias_ih_l0"].any() and layer.state_dict()["bias_ih_l0"].any()
    np.testing.assert_array_equal(other.state_dict()["bias_hh_l0"], layer.state_dict()["bias_hh_l1"])
