"""What layers say of wrong options and of wrong arguments about sequences: what came, and what was expected."""

import numpy as np
import pytest

import numbarnn

BAD_OPTIONS = {
    "reset-after": ("GRU", dict(reset_after="yes"), TypeError, "reset_after must .*'yes'"),
    "reset-after-lstm": ("LSTM", dict(reset_after=False), (TypeError, ValueError), "reset_after"),
    "bias-name": ("LSTM", dict(bias="both"), ValueError, "bias must be .*'recurrent'.*, not 'both'"),
    "bias-number": ("LSTM", dict(bias=1), (TypeError, ValueError), "bias must be .*not 1"),
    "input-mode-name": ("GRU", dict(input_mode="linnear"), ValueError, "input_mode must be one of .*not 'linnear'"),
    "input-mode-unhashable": ("GRU", dict(input_mode=["skip"]), (TypeError, ValueError), "input_mode must be one of"),
    "skip-sizes": ("GRU", dict(input_size=3, input_mode="skip"), ValueError, "input_size must be .*5, not 3"),
    "proj-negative": ("LSTM", dict(proj_size=-1), (TypeError, ValueError), "proj_size must be .*-1"),
    "proj-float": ("LSTM", dict(proj_size=2.0), (TypeError, ValueError), "proj_size must be .*2.0"),
    "proj-bool": ("LSTM", dict(proj_size=True), (TypeError, ValueError), "proj_size must be .*True"),
    "proj-large": ("LSTM", dict(proj_size=5), ValueError, "proj_size must be smaller than .*5"),
    "proj-one-layer": ("LSTM", dict(hidden_size=[5, 3], proj_size=3), ValueError, "proj_size must be smaller than .*3"),
    "proj-gru": ("GRU", dict(proj_size=2), (TypeError, ValueError), "proj_size"),
    "proj-rnn": ("RNN", dict(proj_size=2), (TypeError, ValueError), "proj_size"),
    "clip-gru": ("GRU", dict(cell_clip=1.0), (TypeError, ValueError), "cell_clip"),
    "clip-crossed": ("LSTM", dict(cell_clip=(0.5, -0.5)), ValueError, r"cell_clip must .*\(0.5, -0.5\)"),
    "clip-negative": ("LSTM", dict(cell_clip=-1.0), ValueError, r"cell_clip must .*-1.0"),
    "clip-zero": ("LSTM", dict(cell_clip=0), ValueError, r"cell_clip must .*0"),
    "clip-nan": ("LSTM", dict(cell_clip=(float("nan"), 1.0)), ValueError, "cell_clip must .*nan"),
    "clip-three": ("LSTM", dict(cell_clip=(0.0, 1.0, 2.0)), (TypeError, ValueError), "cell_clip must .*2.0"),
    "clip-text": ("LSTM", dict(cell_clip="1"), TypeError, "cell_clip must .*'1'"),
    "clip-bool": ("LSTM", dict(cell_clip=True), TypeError, "cell_clip must .*True"),
    "clip-nan-flag": (
        "LSTM",
        dict(cell_clip=1.0, clip_propagate_nan="no"),
        TypeError,
        "clip_propagate_nan must .*'no'",
    ),
}


@pytest.mark.parametrize(("kind", "options", "error", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_layers_reject(kind, options, error, message):
    with pytest.raises(error, match=message):
        getattr(numbarnn, kind)(**(dict(input_size=5, hidden_size=5, device="cpu") | options))


T, B = 7, 4
BAD_CALLS = {
    "lengths-number": (dict(lengths=3), (TypeError, ValueError), "lengths must .*"),
    "lengths-few": (dict(lengths=[3, 3, 3]), ValueError, "lengths must .*4"),
    "lengths-two-axes": (dict(lengths=np.full((4, 1), 3)), ValueError, "lengths must .*4"),
    "lengths-floats": (dict(lengths=[3.0, 1.0, 2.0, 2.0]), TypeError, "lengths must .*int"),
    "lengths-bools": (dict(lengths=[True] * 4), TypeError, "lengths must .*int"),
    "lengths-masked": (dict(lengths=np.ma.masked_less([3, 1, 2, 2], 2)), TypeError, "lengths is a masked array"),
    "resets-masked": (dict(resets=np.ma.masked_less(np.zeros((T, B), int), 2)), TypeError, "resets is a masked"),
    "lengths-text": (dict(lengths="3333"), (TypeError, ValueError), "lengths must"),
    "lengths-negative": (dict(lengths=[3, -1, 2, 2]), ValueError, "lengths must .*-1"),
    "lengths-long": (dict(lengths=[3, 8, 2, 2]), ValueError, "lengths must .*8"),
    "lengths-huge": (dict(lengths=[3, 2**40, 2, 2]), ValueError, "lengths must .*1099511627776"),
    "resets-turned": (dict(resets=np.zeros((B, T), bool)), ValueError, r"resets must .*\(7, 4\)"),
    "resets-one-axis": (dict(resets=np.zeros(T, bool)), ValueError, r"resets must"),
    "resets-floats": (dict(resets=np.zeros((T, B), np.float32)), TypeError, "resets must .*bool"),
    "resets-ragged": (dict(resets=[[0] * 4] * 6 + [[0]]), (TypeError, ValueError), "resets must"),
    "resets-true": (dict(resets=True), (TypeError, ValueError), "resets must"),
    "padding-text": (dict(lengths=[3, 1, 2, 2], padding_value="0"), TypeError, "padding_value must .*'0'"),
    "padding-array": (dict(padding_value=np.zeros(3)), TypeError, "padding_value must"),
    "padding-none": (dict(lengths=[3, 1, 2, 2], padding_value=None), TypeError, "padding_value must .*None"),
}


@pytest.mark.parametrize("train", (False, True), ids=("inference", "training"))
@pytest.mark.parametrize(("options", "error", "message"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_calls_reject(options, error, message, train):
    layer = numbarnn.GRU(3, 5, device="cpu")
    x = np.zeros((T, B, 3), np.float32)
    with pytest.raises(error, match=message):
        (layer.forward if train else layer)(x, **options)


def test_resets_in_the_order_of_the_axes():
    layer = numbarnn.GRU(3, 5, batch_first=True, device="cpu")
    x = np.zeros((B, T, 3), np.float32)
    layer(x, resets=np.zeros((B, T), bool))
    with pytest.raises(ValueError, match=r"resets must .*\(4, 7\)"):
        layer(x, resets=np.zeros((T, B), bool))


def packed_zeros(batch_sizes, rows=None, order=None, width=3):
    indices = (None, None) if order is None else (np.array(order), np.argsort(order))
    rows = sum(batch_sizes) if rows is None else rows
    return numbarnn.PackedSequence(np.zeros((rows, width), np.float32), np.array(batch_sizes), *indices)


BAD_PACKED = {
    "lengths-too": (packed_zeros([3, 2]), dict(lengths=[2, 2, 1]), ValueError, "lengths must be None with a packed x"),
    "rows": (packed_zeros([3, 2], rows=6), {}, ValueError, "batch_sizes must .* 6 rows"),
    "width": (packed_zeros([3, 2], width=4), {}, ValueError, "x.* must .*3.*4"),
    "growing": (packed_zeros([2, 3]), {}, ValueError, "batch_sizes must"),
    "zero": (packed_zeros([2, 0]), {}, ValueError, "batch_sizes must"),
    "empty": (
        numbarnn.PackedSequence(np.zeros((0, 3), np.float32), np.zeros(0, int)),
        {},
        ValueError,
        "batch_sizes must",
    ),
    "order-short": (packed_zeros([3, 2], order=[1, 0]), {}, ValueError, "sorted_indices must"),
    "order-twice": (packed_zeros([3, 2], order=[1, 0, 1]), {}, ValueError, "sorted_indices must"),
}


@pytest.mark.parametrize(("x", "options", "error", "message"), BAD_PACKED.values(), ids=BAD_PACKED.keys())
def test_packed_sequences_rejected(x, options, error, message):
    with pytest.raises(error, match=message):
        numbarnn.GRU(3, 5, device="cpu")(x, **options)


def test_gradients_must_be_packed_as_x_was():
    layer = numbarnn.GRU(3, 5, device="cpu")
    x, padded = packed_zeros([3, 2]), np.zeros((2, 3, 5), np.float32)
    for dy in (padded, packed_zeros([3, 1], width=5), packed_zeros([3, 2], order=[2, 1, 0], width=5)):
        _, _, tape = layer.forward(x)
        with pytest.raises((TypeError, ValueError), match="dy"):
            layer.backward(tape, dy)
    _, _, tape = layer.forward(np.zeros((2, 3, 3), np.float32))
    with pytest.raises((TypeError, ValueError), match="dy"):
        layer.backward(tape, packed_zeros([3, 3], width=5))
