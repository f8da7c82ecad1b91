"""Weights from and to Keras: the same outputs, the same bits there and back, and options that have no counterpart."""

from types import SimpleNamespace

import numpy as np
import pytest

import numbarnn as nr
import weights_helpers
from numbarnn import convert
from weights_helpers import FORMS, SIZES, assert_close, assert_same_bits, assert_same_layer

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

LAYERS = {"lstm": "LSTM", "gru": "GRU", "gru_reset_before": "GRU", "rnn_tanh": "SimpleRNN", "rnn_relu": "SimpleRNN"}


@pytest.fixture(scope="module")
def keras():
    return weights_helpers.import_keras()


def keras_layers(keras, cell, hidden=(5,), D=1, dtype="float64", I=4, **options):  # noqa: E741
    """Keras' layers of a stack, with random weights, biases included."""
    rng = np.random.default_rng(4)
    if cell == "rnn_relu":
        options["activation"] = "relu"
    if cell == "gru_reset_before":
        options["reset_after"] = False
    layers, inputs = [], I
    for units in hidden:
        layer = getattr(keras.layers, LAYERS[cell])(
            units, return_sequences=True, return_state=True, dtype=dtype, **options
        )
        layer = keras.layers.Bidirectional(layer, dtype=dtype) if D == 2 else layer
        layer.build((None, None, inputs))
        layer.set_weights([rng.uniform(-0.5, 0.5, array.shape) for array in layer.get_weights()])
        layers.append(layer)
        inputs = D * units
    return layers


def run_keras(layers, x, states):
    """[y, hy] or [y, hy, cy] of a stack, time-major; `states` are lists of one (D, B, H) per layer."""
    y, finals = x.swapaxes(0, 1), []
    for layer, *given in zip(layers, *states, strict=True):
        directions = range(len(given[0]))
        initial = [part[direction] for direction in directions for part in given]  # h, c of each direction
        y, *final = layer(y, initial_state=initial)
        final = [np.asarray(part.detach()) for part in final]
        finals.append([np.stack(final[kind :: len(given)]) for kind in range(len(given))])
    y = np.asarray(y.detach()).swapaxes(0, 1)
    return [y, *(np.concatenate(kind) for kind in zip(*finals, strict=True))]


def run_both(layer, layers, dtype):
    """Assert that a layer, batch first, and Keras' layers compute the same.

    Keras hands an LSTM and a GRU with reset_after=True to PyTorch. All others it computes itself, and not in float64:
    keras.ops.matmul of two float64 arrays is float32.
    """
    dtype = dtype if layer.cell in ("lstm", "gru") else "float32"
    x, states = weights_helpers.problem(layer)
    states = states if layer.cell == "lstm" else states[:1]
    expected = run_keras(layers, x, [np.split(state, len(layers)) for state in states])
    y, *finals = weights_helpers.run(layer, np.ascontiguousarray(x.swapaxes(0, 1)), states)
    assert_close([y.swapaxes(0, 1), *finals], expected, dtype)


@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("cell, hidden, D", SIZES)
def test_outputs_are_those_of_keras(keras, cell, hidden, D, dtype):
    layers = keras_layers(keras, cell, hidden, D, dtype)
    layer = convert.from_keras(layers, device="cpu")
    assert (layer.cell, layer.hidden_sizes, layer.dtype, layer.batch_first) == (cell, hidden, dtype, True)
    run_both(layer, layers, dtype)
    for ours, theirs in zip(convert.to_keras(layer), layers, strict=True):  # every bit
        assert_same_bits(dict(enumerate(ours)), dict(enumerate(theirs.get_weights())))


@pytest.mark.parametrize("cell", LAYERS)
def test_two_biases_go_out_as_one(keras, cell):
    layer = weights_helpers.make(cell, (5, 5), 2, "float64", batch_first=True)
    layers = keras_layers(keras, cell, (5, 5), 2)
    for weights, theirs in zip(convert.to_keras(layer), layers, strict=True):
        theirs.set_weights(weights)
    run_both(layer, layers, "float64")


@pytest.mark.parametrize("cell", LAYERS)
def test_without_biases(keras, cell):
    layers = keras_layers(keras, cell, use_bias=False)
    layer = convert.from_keras(layers[0], device="cpu")
    assert layer.bias is False and len(convert.to_keras(layer)[0]) == 2
    run_both(layer, layers, "float64")


@pytest.mark.parametrize("bias", ("input", "recurrent"))
@pytest.mark.parametrize("cell", LAYERS)
def test_single_bias_and_skip_input_become_what_keras_has(keras, cell, bias):
    layer = weights_helpers.make(cell, (5,), 1, "float64", 5, bias=bias, input_mode="skip", batch_first=True)
    layers = keras_layers(keras, cell, I=5)
    layers[0].set_weights(convert.to_keras(layer)[0])
    run_both(layer, layers, "float64")


def test_options_of_the_layer():
    weights = convert.to_keras(weights_helpers.make("gru"))
    layer = convert.from_keras(weights, device="cpu", batch_first=False, dtype="float64", seed=1)
    assert (layer.batch_first, layer.dtype) == (False, "float64")
    with pytest.raises(TypeError, match="hidden_size must be left out: the weights decide"):
        convert.from_keras(weights, hidden_size=5)


@pytest.mark.parametrize("hidden, D", [((5,), 1), ((5, 5), 2)])
def test_the_reset_gate_before_the_product(keras, hidden, D):
    """Keras' GRU with reset_after=False has one bias, by whose shape the weights alone tell what they are."""
    layers = keras_layers(keras, "gru", hidden, D, reset_after=False)
    layer = convert.from_keras(layers, device="cpu")
    assert (layer.cell, layer.reset_after, layer.bias_mode) == ("gru_reset_before", False, "input")
    weights = [one.get_weights() for one in layers]
    for asked in ({}, {"cell": "gru_reset_before"}, {"reset_after": False}):
        assert_same_layer(convert.from_keras(weights, device="cpu", **asked), layer)
    without = [part for number, part in enumerate(weights[0]) if number % 3 < 2]
    assert convert.from_keras(without, device="cpu").reset_after is True  # nothing tells: Keras' default
    assert convert.from_keras(without, device="cpu", reset_after=False).reset_after is False


def test_one_form_of_the_gru_is_not_taken_for_the_other(keras):
    before, after = (keras_layers(keras, "gru", reset_after=reset_after) for reset_after in (False, True))
    for asked in ({"cell": "gru"}, {"reset_after": True}):
        with pytest.raises(ValueError, match=f"the layer is of cell 'gru_reset_before', not 'gru' as.*{FORMS}"):
            convert.from_keras(before[0], **asked)
        with pytest.raises(ValueError, match=rf"\(2, 15\) for gru, not \(15,\), .* 'gru_reset_before'\. .*\. {FORMS}"):
            convert.from_keras(before[0].get_weights(), **asked)
    for asked in ({"cell": "gru_reset_before"}, {"reset_after": False}):
        with pytest.raises(ValueError, match=f"the layer is of cell 'gru', not 'gru_reset_before' as.*{FORMS}"):
            convert.from_keras(after[0], **asked)
        with pytest.raises(ValueError, match=rf"\(15,\) for gru_reset_before, not \(2, 15\), .* of 'gru'. .* {FORMS}"):
            convert.from_keras(after[0].get_weights(), **asked)
    with pytest.raises(ValueError, match=r"reset_after=False is cell 'gru_reset_before', but cell is 'gru'. Leave one"):
        convert.from_keras(before, "gru", reset_after=False)
    with pytest.raises(ValueError, match="reset_after=True is cell 'gru', but cell is 'lstm'"):
        convert.from_keras(before, "lstm", reset_after=True)
    with pytest.raises(ValueError, match=r"their cells are \['gru', 'gru_reset_before'\]"):
        convert.from_keras([keras_layers(keras, "gru", I=5)[0], before[0]])
    with pytest.raises(ValueError, match=r"\(15,\) is not compatible with provided weight shape \(2, 15\)"):
        before[0].set_weights(convert.to_keras(weights_helpers.make("gru"))[0])  # and Keras sees it, too


# ---------------------------------------------------------------- weights as arrays, without Keras
@pytest.mark.parametrize("cell", [cell for cell in LAYERS if cell != "gru"])
def test_two_biases_become_their_sum(cell):
    layer = weights_helpers.make(cell, (5, 5), 2)
    weights = convert.to_keras(layer)
    assert [len(arrays) for arrays in weights] == [6, 6]
    told = cell in ("lstm", "gru_reset_before")
    found = convert.from_keras(weights, None if told else cell, device="cpu", batch_first=False)
    ours, theirs = layer.state_dict(), found.state_dict()
    assert found.bias_mode == "input"
    for name, array in theirs.items():
        both = ours[name] + ours[name.replace("bias_ih", "bias_hh")] if "bias" in name else ours[name]
        np.testing.assert_array_equal(array, both)


def test_order_of_gates_written_out():
    """A GRU of 1 input and 2 units: Keras' columns are z z r r h h, its two biases rows."""
    layer = weights_helpers.make("gru", (2,), I=1)
    W, b_w, b_r = (layer.state_dict()[f"{name}_l0"] for name in ("weight_ih", "bias_ih", "bias_hh"))
    ((kernel, recurrent, bias),) = convert.to_keras(layer)
    np.testing.assert_array_equal(kernel, [[W[2, 0], W[3, 0], W[0, 0], W[1, 0], W[4, 0], W[5, 0]]])
    np.testing.assert_array_equal(bias, [b_w[[2, 3, 0, 1, 4, 5]], b_r[[2, 3, 0, 1, 4, 5]]])
    assert recurrent.shape == (2, 6) and recurrent.flags.c_contiguous
    ((_, _, single),) = convert.to_keras(weights_helpers.make("gru", (2,), I=1, bias="recurrent"))
    np.testing.assert_array_equal(single[0], np.zeros(6))


def test_arrays_that_do_not_fit():
    kernel, recurrent, bias = convert.to_keras(weights_helpers.make("lstm"))[0]
    gru = convert.to_keras(weights_helpers.make("gru"))[0]
    for weights, message in (
        ([], "at least one layer, but are empty"),
        ([kernel], r"or twice as many for two directions, but has 1 arrays"),
        ([kernel, recurrent[:, 1:], bias], r"\(4, 20\) and \(5, 19\)"),
        ([kernel[:, 1:], recurrent[:, 1:], bias], r"must have 4 columns per unit .*shape \(5, 19\)"),
        ([kernel, recurrent, bias[1:]], r"bias of the layer must have shape \(20,\) for lstm, not \(19,\)"),
        ([kernel, recurrent, np.stack([bias, bias])], r"must have shape \(20,\) for lstm, not \(2, 20\)"),
        ([*gru[:2], gru[2][0, 1:]], r"bias of the layer must have shape \(15,\) for gru_reset_before, not \(14,\)$"),
        ([*gru[:2], gru[2][:, 1:]], r"bias of the layer must have shape \(2, 15\) for gru, not \(2, 14\)$"),
        ([[kernel, recurrent, bias]] * 2, r"weight_ih_l1 has shape \(20, 4\), expected \(20, 5\)"),
        ([[kernel, recurrent, bias], gru], r"their cells are \['gru', 'lstm'\]"),
        ([[kernel, recurrent], [kernel, recurrent] * 2], r"numbers of directions \[1, 2\]"),
        ([kernel, recurrent, {1}], "the layer must be an array of numbers, not {1}"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            convert.from_keras(weights, device="cpu")
    with pytest.raises(TypeError, match="source must be a Keras layer, or a list of arrays or layers, not dict"):
        convert.from_keras({"kernel": kernel})
    with pytest.raises(ValueError, match=r"must have shape \(H, 15\) for gru, not \(5, 20\)"):
        convert.from_keras([kernel, recurrent], "gru")


# ---------------------------------------------------------------- layers of Keras that have no counterpart
@pytest.mark.parametrize(
    "cell, options, message",
    [
        ("lstm", {"activation": "softmax"}, "the layer has the activation 'softmax', but numbarnn has only celu, elu"),
        ("lstm", {"go_backwards": True}, "go_backwards=True, but numbarnn has only False"),
    ],
)
def test_options_without_counterpart(keras, cell, options, message):
    layers = keras_layers(keras, cell, **options)
    with pytest.raises(ValueError, match=message):
        convert.from_keras(layers, device="cpu")


ACTIVATIONS = ["relu", "leaky_relu", "elu", "selu", "celu", "softplus", "softsign", "silu", "gelu", "tanh", "sigmoid",
               "exponential", "hard_sigmoid", "hard_silu", "hard_tanh", "relu6", "linear", "mish",
               "log_sigmoid"]  # fmt: skip


@pytest.mark.parametrize("number, activation", [*enumerate(ACTIVATIONS)])
def test_other_activations(keras, number, activation):
    """Layers, and their bare weights with the same names, compute as Keras does."""
    cell = ("lstm", "gru", "gru_reset_before", "rnn_tanh")[number % 4]
    recurrent = (
        {} if cell == "rnn_tanh" else {"recurrent_activation": ("hard_sigmoid", "sigmoid", "softsign")[number % 3]}
    )
    options = {"activation": activation, **recurrent}
    layers = keras_layers(keras, cell, (5, 3), 1 + number % 2, "float32", use_bias=number % 5 > 0, **options)
    layer = convert.from_keras(layers, device="cpu")
    steps = 2 if activation == "exponential" else 6  # as it grows without end
    x = 0.3 * np.random.default_rng(0).standard_normal((3, steps, 4)).astype("f")
    y = x
    for one in layers:
        y = one(y)[0]
    assert_close([layer(x)[0]], [np.asarray(y.detach())], "float32")

    names = {name: value.replace("hard_sigmoid", "hard_sigmoid_keras3") for name, value in options.items()}
    reset = {"reset_after": False} if cell == "gru_reset_before" else {}
    same = convert.from_keras([one.get_weights() for one in layers], device="cpu", **names, **reset)
    assert_same_layer(same, layer)


def test_hard_sigmoid_of_keras_2_is_another_function(keras, monkeypatch):
    layers = keras_layers(keras, "lstm", dtype="float32", recurrent_activation="hard_sigmoid")
    weights, x = layers[0].get_weights(), np.random.default_rng(0).standard_normal((2, 4, 4)).astype("f")
    with pytest.raises(
        ValueError, match=r"two functions. Pass 'hard_sigmoid_keras2', clip\(0.2 x .*'hard_sigmoid_keras3'"
    ):
        convert.from_keras(weights, recurrent_activation="hard_sigmoid")
    of_3 = convert.from_keras(layers[0], device="cpu")
    of_2 = convert.from_keras(weights, recurrent_activation="hard_sigmoid_keras2", device="cpu")
    monkeypatch.setattr(keras, "__version__", "2.15.0")
    assert_same_layer(convert.from_keras(layers[0], device="cpu"), of_2)

    def lstm_of_keras_2(x, h, c, p):
        i, f, o = (nr.hard_sigmoid_keras2(p.W[g] @ x + p.R[g] @ h + p.b[g]) for g in "ifo")
        c = f * c + i * nr.tanh(p.W["g"] @ x + p.R["g"] @ h + p.b["g"])
        return o * nr.tanh(c), c

    y, _ = of_2(x)
    assert not np.allclose(y, of_3(x)[0], atol=1e-3)
    kernel, recurrent, bias = (dict(zip("ifgo", np.split(part, 4, -1), strict=True)) for part in weights)
    p = SimpleNamespace(W={g: one.T for g, one in kernel.items()}, R={g: one.T for g, one in recurrent.items()}, b=bias)
    for row, expected in zip(x, y, strict=True):
        h = c = np.zeros(5, "f")
        for step, wanted in zip(row, expected, strict=True):
            h, c = lstm_of_keras_2(step, h, c, p)
            assert_close([h], [wanted], "float32")


def test_activations_that_do_not_fit(keras):
    lstm = keras_layers(keras, "lstm")[0]
    kernel = np.zeros((4, 5), "f"), np.zeros((5, 5), "f"), np.zeros(5, "f")
    for source, options, message in (
        (lstm, {"activation": "relu"}, r"the layer has activations of its own, .*. Leave those arguments out"),
        (kernel, {"cell": "rnn_tanh", "activation": "elu"}, "activation 'elu' is not that of cell 'rnn_tanh'"),
        (kernel, {}, r"must have 4 columns per unit .*Pass activation= for a SimpleRNN"),
        ([lstm, keras_layers(keras, "lstm", I=5, activation="elu")[0]], {}, "must be alike, .* their activations"),
    ):
        with pytest.raises(ValueError, match=message):
            convert.from_keras(source, **options)
    assert convert.from_keras(kernel, activation="relu", device="cpu").cell == "rnn_relu"
    gelu = convert.from_keras(kernel, activation="gelu", device="cpu")
    with pytest.raises(ValueError, match="ONNX has no activation 'gelu' in its nodes"):
        convert.to_onnx(gelu)


def test_layers_without_counterpart(keras):
    (own,) = keras_layers(keras, "gru", activation=keras.layers.LeakyReLU())
    with pytest.raises(ValueError, match=r"the activation \{.*'LeakyReLU'.*\}, but numbarnn has only"):
        convert.from_keras(own)
    lstm = keras_layers(keras, "lstm")[0]
    summed = keras.layers.Bidirectional(keras.layers.LSTM(5), merge_mode="sum")
    with pytest.raises(ValueError, match="layer 1 has merge_mode='sum', but numbarnn has only 'concat'"):
        convert.from_keras([lstm, summed])
    with pytest.raises(TypeError, match=r"a Keras LSTM, GRU, SimpleRNN or Bidirectional layer, not keras.*Dense$"):
        convert.from_keras(keras.layers.Dense(5))
    with pytest.raises(TypeError, match=r"not keras.*Sequential\. Pass the model's recurrent layers one by one"):
        convert.from_keras(keras.Sequential([keras.layers.LSTM(5)]))
    with pytest.raises(ValueError, match=r"has 0 arrays. Build the layer first"):
        convert.from_keras(keras.layers.LSTM(5))
    mixed = keras.layers.Bidirectional(
        keras.layers.LSTM(5, name="a"), backward_layer=keras.layers.GRU(5, go_backwards=True, name="b")
    )
    with pytest.raises(ValueError, match=r"must be of one kind, but are .*'lstm', .*'gru'"):
        convert.from_keras(mixed)
