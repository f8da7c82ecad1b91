"""Nodes with every attribute of ONNX' LSTM, GRU and RNN: in as cells made for them, computed, and out again."""

import copy
import pickle

import numpy as np
import pytest

import numbarnn
from numbarnn import convert
from numbarnn.weights.onnx_cells import ACTIVATIONS, DEFAULTS, Kind, cell_of
from weights_helpers import assert_close, run_onnx

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper = onnx.helper

T, B, INPUTS, HIDDEN = 5, 3, 4, 5
LENGTHS = np.array([3, 5, 1], np.int32)


RANDOM = {  # activation -> its constants, drawn
    "LeakyRelu": 1, "ThresholdedRelu": 1, "Elu": 1, "HardSigmoid": 2, "Affine": 2, "ScaledTanh": 2,
}  # fmt: skip


def drawn(generator):
    """(`Kind`, D) at random, of which some are built in."""
    operator = generator.choice(list(DEFAULTS))
    names = list(DEFAULTS[operator])
    for place in range(len(names)):
        if generator.random() < 0.5:
            names[place] = generator.choice(list(ACTIVATIONS))
    activations = tuple((str(name), *generator.uniform(0.1, 0.6, RANDOM.get(name, 0)).round(3)) for name in names)
    flag = {name: bool(generator.random() < 0.5) for name in ("clip", "one", "two", "bias")}
    flags = {
        "LSTM": {"input_forget": flag["one"], "peepholes": flag["two"]},
        "GRU": {"linear_before_reset": flag["one"]},
    }
    clip = round(float(generator.uniform(0.3, 2)), 3) if flag["clip"] else None
    kind = Kind(operator, activations, clip, bias=flag["bias"], **flags.get(operator, {}))
    return kind, int(generator.integers(1, 3))


def weights_of(kind, D, generator):
    """Name -> array of a node's weights, small enough for activations without a bound."""
    gates = len(kind.gates)
    shapes = {"W": (D, gates * HIDDEN, INPUTS), "R": (D, gates * HIDDEN, HIDDEN)}
    shapes |= {"B": (D, 2 * gates * HIDDEN)} if kind.bias else {}
    shapes |= {"P": (D, 3 * HIDDEN)} if kind.peepholes else {}
    return {name: generator.uniform(-0.5, 0.5, shape).astype("float32") for name, shape in shapes.items()}


def model_of(kind, D, weights, layout=0):
    """A model of one node; x, lengths and initial states are its inputs."""
    names = {"X": "x", "W": "W", "R": "R", "B": "B" if kind.bias else "", "lens": "lengths", "h": "hx"}
    names |= {"c": "cx"} if kind.operator == "LSTM" else {}
    names |= {"P": "P"} if kind.peepholes else {}
    attributes = kind.attributes(D) | {"direction": "bidirectional" if D == 2 else "forward", "hidden_size": HIDDEN}
    attributes |= {"layout": 1} if layout else {}
    outputs = ["y", "hy", "cy"][: 3 if kind.operator == "LSTM" else 2]
    node = helper.make_node(kind.operator, list(names.values()), outputs, **attributes)
    state = [D, "B", HIDDEN]
    shapes = {"x": ["T", "B", INPUTS], "lengths": ["B"], "hx": state} | ({"cx": state} if "c" in names else {})
    given, made = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.INT32 if name == "lengths" else 1, shape)
         for name, shape in those.items()] for those in (shapes, dict.fromkeys(outputs))
    )  # fmt: skip
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    model = helper.make_model(
        helper.make_graph([node], "g", given, made, constants), opset_imports=[helper.make_opsetid("", 14)]
    )
    model.ir_version = 8
    return model


def inputs_of(kind, D, generator):
    """Name -> array of what the model is given."""
    names = ["hx", "cx"] if kind.operator == "LSTM" else ["hx"]
    states = {name: generator.uniform(-1, 1, (D, B, HIDDEN)).astype("float32") for name in names}
    return {"x": generator.normal(0, 1, (T, B, INPUTS)).astype("float32"), "lengths": LENGTHS} | states


def run(layer, inputs, kind):
    """[y (T, D, B, H), hy, cy] of the layer."""
    state = (inputs["hx"], inputs["cx"]) if kind.operator == "LSTM" else inputs["hx"]
    y, state = layer(inputs["x"], state, lengths=inputs["lengths"])
    return [by_direction(y), *(state if kind.operator == "LSTM" else [state])]


def by_direction(y):
    return y.reshape(*y.shape[:2], -1, HIDDEN).swapaxes(1, 2)


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(n, marks=pytest.mark.full) for n in range(12, 150))])
def test_any_node_comes_in_and_goes_out(seed):
    """Against onnxruntime."""
    generator = np.random.default_rng(seed)
    kind, D = drawn(generator)
    weights, inputs = weights_of(kind, D, generator), inputs_of(kind, D, generator)
    model = model_of(kind, D, weights)
    layer = convert.from_onnx(model, device="cpu")
    assert layer.bidirectional == (D == 2) and layer.hidden_size == HIDDEN
    theirs, ours = run_onnx(model, inputs), run(layer, inputs, kind)
    assert_close(ours, theirs, "float32")

    written = convert.to_onnx(layer, state=True, lengths=True)
    y, *states = run_onnx(written, inputs)
    assert_close([by_direction(y), *states], theirs, "float32")
    again = convert.from_onnx(written, device="cpu")
    assert again.cell == layer.cell and repr(again) == repr(layer)
    for name, array in layer.state_dict().items():
        assert np.array_equal(again.state_dict()[name], array), name


FULL = Kind("LSTM", (("Sigmoid",), ("Tanh",), ("ScaledTanh", 0.7, 0.9)), clip=1.5, peepholes=True)


def test_a_stack_of_two_directions():
    layer = numbarnn.RNN(cell_of(FULL), 4, [6, 3], bidirectional=True, batch_first=True, seed=0, device="cpu")
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    y, _ = layer(x)
    model = convert.to_onnx(layer)
    assert_close(run_onnx(model, {"x": x})[:1], [y], "float32")
    again = convert.from_onnx(model, device="cpu")
    assert again.hidden_size == (6, 3) and again.bidirectional and again.batch_first
    assert_close([again(x)[0]], [y], "float32")


def test_layout_1():
    """onnxruntime's CPU kernels refuse it: the same as layout 0."""
    generator = np.random.default_rng(0)
    weights, inputs = weights_of(FULL, 2, generator), inputs_of(FULL, 2, generator)
    layer = convert.from_onnx(model_of(FULL, 2, weights, layout=1), device="cpu")
    assert layer.batch_first
    inputs_of_layer = inputs | {"x": np.ascontiguousarray(inputs["x"].swapaxes(0, 1))}
    y, state = layer(inputs_of_layer["x"], (inputs["hx"], inputs["cx"]), lengths=LENGTHS)
    plain = convert.from_onnx(model_of(FULL, 2, weights), device="cpu")
    assert_close([by_direction(y.swapaxes(0, 1)), *state], run(plain, inputs, FULL), "float32")


@pytest.mark.parametrize("kind", [
    FULL, Kind("GRU", (("HardSigmoid", 0.3, 0.4), ("Softsign",)), clip=1.0, linear_before_reset=True),
], ids=lambda kind: kind.operator)  # fmt: skip
def test_gradients_and_copies(kind):
    assert numbarnn.gradcheck(cell_of(kind), 2, 3, steps=2, batch=1).ok
    assert cell_of(kind) is cell_of(copy.deepcopy(kind)) is pickle.loads(pickle.dumps(cell_of(kind)))


def test_peepholes_of_zero_and_defaults_are_built_in():
    kind = Kind("LSTM", (("Sigmoid",), ("Tanh",), ("Tanh",)), peepholes=True)
    weights = weights_of(kind, 1, np.random.default_rng(0))
    weights["P"][:] = 0
    assert convert.from_onnx(model_of(kind, 1, weights), device="cpu").cell == "lstm"


def test_what_does_not_go_together():
    model = convert.to_onnx(numbarnn.RNN(cell_of(FULL), 4, [4, 4], device="cpu"))
    second = [node for node in model.graph.node if node.op_type == "LSTM"][1]
    (clip,) = (one for one in second.attribute if one.name == "clip")
    clip.f = 1.0
    with pytest.raises(ValueError, match="form no stack: cell, directions or layout differ"):
        convert.from_onnx(model, device="cpu")
    assert convert.from_onnx(model, 1, device="cpu").stack.cell.origin[1][0].clip == 1.0
    with pytest.raises(ValueError, match="ONNX has no input_mode 'skip' for cell onnx_lstm_"):
        convert.to_onnx(numbarnn.RNN(cell_of(FULL), 4, 4, input_mode="skip", device="cpu"))
    with pytest.raises(TypeError, match="bias must be left out"):
        convert.from_onnx(convert.to_onnx(numbarnn.RNN(cell_of(FULL), 4, 4, device="cpu")), bias=False)
