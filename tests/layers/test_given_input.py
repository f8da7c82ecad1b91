"""input_mode="given": x is W x of layer 0 already."""

import numpy as np
import pytest

import numbarnn as nr
from numbarnn import functional as F
from numbarnn.cells import library

STEPS, BATCH, INPUT, HIDDEN = 6, 3, 4, 5
CELLS = {
    "lstm": lambda *sizes, **options: nr.LSTM(*sizes, **options),
    "gru": lambda *sizes, **options: nr.GRU(*sizes, **options),
    "reset_before": lambda *sizes, **options: nr.GRU(*sizes, reset_after=False, **options),
    "slstm": lambda *sizes, **options: nr.RNN(library.slstm, *sizes, **options),
}
OPTIONS = {
    "one_way": {},
    "both_ways": {"bidirectional": True, "num_layers": 2},
    "batch_first": {"batch_first": True, "bidirectional": True},
    "wavefront": {"schedule": "wavefront", "num_layers": 2},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_the_same_as_with_the_product_inside(cell, options):
    options = OPTIONS[options] | {"dtype": "float64", "device": "cpu"}
    layer = CELLS[cell](INPUT, HIDDEN, seed=1, **options)
    D, G = layer.stack.directions, layer.stack.cell.num_gates
    given = CELLS[cell](D * G * HIDDEN, HIDDEN, input_mode="given", **options)
    assert "input_mode='given'" in repr(given) and "weight_ih_l0" not in given.parameters
    for name in given.parameters:
        given.parameters[name] = layer.parameters[name]
    names = ["weight_ih_l0", "weight_ih_l0_reverse"][:D]
    W = np.concatenate([layer.parameters[name] for name in names])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, STEPS, INPUT) if layer.batch_first else (STEPS, BATCH, INPUT))
    lengths = [6, 0, 4]
    y, _, tape = layer.forward(x, lengths=lengths)
    found, _, other = given.forward(x @ W.T, lengths=lengths)
    np.testing.assert_allclose(found, y, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(given(x @ W.T, lengths=lengths)[0], y, rtol=1e-12, atol=1e-14)
    dy = rng.normal(size=y.shape)
    grads, others = layer.backward(tape, dy), given.backward(other, dy)
    np.testing.assert_allclose(others.x @ W, grads.x, rtol=1e-11, atol=1e-13)
    dW = others.x.reshape(-1, len(W)).T @ x.reshape(-1, INPUT)
    np.testing.assert_allclose(dW, np.concatenate([grads.params[name] for name in names]), rtol=1e-11, atol=1e-13)
    for name, gradient in others.params.items():
        np.testing.assert_allclose(gradient, grads.params[name], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_written_out_as_a_matrix(bidirectional):
    size = (1 + bidirectional) * 4 * HIDDEN
    given = nr.LSTM(size, HIDDEN, bidirectional=bidirectional, input_mode="given", device="cpu", seed=1)
    state_dict = nr.convert.to_torch(given)
    linear = nr.LSTM(size, HIDDEN, bidirectional=bidirectional, device="cpu")
    linear.load_state_dict(state_dict)
    x = np.random.default_rng(0).normal(size=(STEPS, BATCH, size)).astype("float32")
    np.testing.assert_allclose(linear(x)[0], given(x)[0], rtol=1e-6, atol=1e-7)


@nr.cell
def weighted_sum(x, h, p):
    return 0.5 * h + p.W.a @ x


def test_a_layer_with_nothing_to_learn_is_refused():
    with pytest.raises(ValueError, match="has no parameters"):
        nr.RNN(weighted_sum, HIDDEN, HIDDEN, input_mode="given", device="cpu")


def test_the_size_must_be_that_of_all_gates():
    with pytest.raises(ValueError, match=r"directions \* gates \* units = 20, not 5"):
        nr.LSTM(HIDDEN, HIDDEN, input_mode="given", device="cpu")


@pytest.mark.parametrize("bidirectional", [False, True])
def test_x_and_the_results_may_be_overwritten_before_backward(bidirectional):
    """Steps read x, and write its gradient, where callers have them."""
    rnn = F.Descriptor("lstm", (1 + bidirectional) * 4 * 64, 64, bidirectional=bidirectional, input_mode="given",
                       device="cpu", dtype="float64")  # fmt: skip
    rng, found = np.random.default_rng(0), []
    x, w = rng.normal(size=(60, 9, rnn.input_size)), rng.normal(size=rnn.space.size)
    for overwrites in (False, True):
        own = x.copy()
        y, *_, reserve = F.forward_training(rnn, own, w=w)
        dy, dw = np.ones_like(y), rnn.zeros_weights()
        if overwrites:
            own[...] = y[...] = np.nan
        dx, *_ = F.backward_data(rnn, reserve, dy, w=w)
        found.append((dx.copy(), dw))
        if overwrites:
            dx[...] = np.nan
        F.backward_weights(rnn, reserve, dw)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
