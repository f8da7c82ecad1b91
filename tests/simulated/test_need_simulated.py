"""Retained tapes, needs and reserves with the real kernels, in the simulator."""

import numpy as np
import pytest

import numbarnn as nr
from needs import LAYERS, check_needs


@pytest.mark.parametrize("schedule", ["stepwise", "wavefront", "persistent"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_same_bits_as_one_ordinary_pass(name, schedule):
    check_needs(name, "sim", schedule)


def test_a_single_step_without_a_state_has_a_gradient_of_zeros_for_R():
    layer = nr.GRU(5, 3, device="sim", schedule="stepwise", seed=3)
    x, dy = np.ones((1, 2, 5), np.float32), np.ones((1, 2, 3), np.float32)
    for dw, left in ((None, 0), (np.ones_like(layer.weights), 1)):
        gradients = layer.backward(layer.forward(x)[2], dy, dw=dw)
        parameters = layer.stack.space.views(gradients.weights if dw is None else dw)
        assert (parameters["weight_hh_l0"] == left).all()
        assert (parameters["weight_ih_l0"] != left).all()
