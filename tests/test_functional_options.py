"""The calls in cuDNN's terms with its options: data layouts, lengths, padding, resets, projection, skip, biases."""

import numpy as np
import pytest

import numbarnn
from numbarnn.functional import Descriptor, backward_data, backward_weights, forward_inference, forward_training

T, B, I, H = 6, 4, 5, 5  # noqa: E741 - the legend's letters
LENGTHS = np.array([6, 4, 4, 1])  # sorted, so that every layout takes them


class Call:
    """A descriptor with weights, and x, dy and states of T steps, of which those beyond LENGTHS are NaN."""

    def __init__(self, cell="lstm", **options):
        self.rnn = Descriptor(cell, I, H, 2, dtype="float64", device="cpu", **options)
        random = np.random.default_rng(0)
        self.w = random.uniform(-0.4, 0.4, self.rnn.weight_space_size)
        D, P = self.rnn.directions, self.rnn.proj_size or H
        self.x, self.dy = random.standard_normal((T, B, I)), random.standard_normal((T, B, D * P))
        for b, length in enumerate(LENGTHS):
            self.x[length:, b] = self.dy[length:, b] = np.nan
        self.hx, self.dhy = random.standard_normal((2, 2 * D, B, P))
        self.cx, self.dcy = random.standard_normal((2, 2 * D, B, H)) if cell == "lstm" else (None, None)

    def run(self, x, dy, **data):
        """y, hy, cy, dx, dhx, dcx, dw."""
        y, hy, cy, reserve = forward_training(self.rnn, x, self.hx, self.cx, self.w, **data)
        gradients = backward_data(self.rnn, reserve, dy, self.dhy, self.dcy, self.w)
        return y, hy, cy, *gradients, backward_weights(self.rnn, reserve, self.rnn.zeros_weights())

    def time_major(self, **data):
        return self.run(self.x, self.dy, seq_lengths=LENGTHS, **data)


def packed(array):
    """Padded (T, B, N) as cuDNN packs it: time after time, the sequences that are that long."""
    return np.concatenate([array[t, LENGTHS > t] for t in range(T)])


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one is None and other is None) or np.array_equal(one, other)


OPTIONS = (
    {},
    {"bidirectional": True},
    {"proj_size": 3, "bidirectional": True},
    {"cell_clip": 0.3, "bias": "input"},
    {"cell": "gru", "bias": "recurrent", "input_mode": "skip"},
    {"cell": "gru_reset_before", "bidirectional": True, "bias": False},
    {"cell": "rnn_relu"},
)
by_options = pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options)) or "plain")


@by_options
def test_packed_is_time_major_without_padding(options):
    call = Call(**options)
    y, hy, cy, dx, *gradients = call.time_major()
    found = call.run(packed(call.x), packed(call.dy), seq_lengths=LENGTHS, layout="seq_major_packed")
    assert_equal(found, (packed(y), hy, cy, packed(dx), *gradients))


def test_the_layer_gives_the_same():
    call = Call(bidirectional=True)
    layer = numbarnn.LSTM(I, H, 2, bidirectional=True, dtype="float64", device="cpu")
    layer.weights[...] = call.w
    resets = np.random.default_rng(1).random((T, B)) < 0.3
    y, hy, cy, dx, dhx, dcx, dw = call.time_major(resets=resets)
    y_layer, states, tape = layer.forward(call.x, (call.hx, call.cx), lengths=LENGTHS, resets=resets)
    gradients = layer.backward(tape, call.dy, (call.dhy, call.dcy))
    assert_equal((y_layer, *states), (y, hy, cy))
    assert_equal((gradients.x, *gradients.state, gradients.weights), (dx, dhx, dcx, dw))


@pytest.mark.parametrize(
    "error, message, data",
    [
        (ValueError, "layout must be one of 'seq_major_unpacked', .* not 'packed'", {"layout": "packed"}),
        (ValueError, "seq_lengths must be given with layout 'seq_major_packed'", {"layout": "seq_major_packed"}),
        (ValueError, "never increase", {"layout": "seq_major_packed", "seq_lengths": [4, 6, 4, 1]}),
        (ValueError, "at least 1", {"layout": "seq_major_packed", "seq_lengths": [6, 4, 4, 0]}),
        (TypeError, "seq_lengths must be ints", {"layout": "seq_major_packed", "seq_lengths": [6.0, 4.0, 4.0, 1.0]}),
        (ValueError, r"seq_lengths must be 0 to 6.* seq_lengths\[1\] is 7", {"seq_lengths": [6, 7, 0, 0]}),
        (TypeError, "padding_fill must be a number", {"seq_lengths": LENGTHS, "padding_fill": "zero"}),
        (ValueError, r"x must have 2 dimensions \(15, 5\)", {"layout": "seq_major_packed", "seq_lengths": LENGTHS}),
    ],
)
def test_what_is_refused(error, message, data):
    call = Call()
    with pytest.raises(error, match=message):
        forward_inference(call.rnn, call.x, call.hx, call.cx, call.w, **data)
