"""Weights from and to ONNX: onnxruntime computes the same, every bit comes back, and what has no counterpart."""

import sys

import numpy as np
import pytest

import torch_peer
import weights_helpers
from numbarnn import convert
from weights_helpers import SIZES, TORCH_SIZES, assert_close, assert_same_layer, run_onnx

onnx = pytest.importorskip("onnx")
helper = onnx.helper


def node_model(operator="LSTM", inputs=("X", "W", "R", "B"), constants=None, D=1, **attributes):
    """A model with one node, H = 5, I = 4; `constants` replace or, where None, remove initializers."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    shapes = {"W": (D, gates * 5, 4), "R": (D, gates * 5, 5), "B": (D, gates * 10), "P": (D, 15)}
    rng = np.random.default_rng(2)
    arrays = {name: rng.uniform(-0.5, 0.5, shape).astype("f") for name, shape in shapes.items() if name in inputs}
    arrays = {name: array for name, array in (arrays | (constants or {})).items() if array is not None}
    node = helper.make_node(operator, list(inputs), ["Y", "Y_h"], name="the_node", **({"hidden_size": 5} | attributes))
    infos = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in inputs
        if name and name not in arrays
    ]
    output = helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    return helper.make_model(helper.make_graph([node], "g", infos, [output], initializers))


# ---------------------------------------------------------------- there and back
@pytest.mark.parametrize("batch_first", (False, True))
@pytest.mark.parametrize("cell, hidden, D", SIZES)
def test_onnxruntime_computes_the_same(cell, hidden, D, batch_first):
    layer = weights_helpers.make(cell, hidden, D, batch_first=batch_first)
    x, states = weights_helpers.problem(layer)
    x = np.ascontiguousarray(x.swapaxes(0, 1)) if batch_first else x
    inputs = {"x": x, "hx": states[0]} | ({"cx": states[1]} if cell == "lstm" else {})
    assert_close(run_onnx(convert.to_onnx(layer, state=True), inputs), weights_helpers.run(layer, x, states), "float32")

    model, zero = convert.to_onnx(layer), [np.zeros_like(state) for state in states]
    for steps, batch in ((1, 3), (4, 1)):  # sizes are open
        part = np.ascontiguousarray(x[:batch, :steps] if batch_first else x[:steps, :batch])
        expected = weights_helpers.run(layer, part, [state[:, :batch].copy() for state in zero])
        assert_close(run_onnx(model, {"x": part}), expected, "float32")


@pytest.mark.parametrize("cell", ("lstm", "gru"))
def test_layers_of_different_sizes(cell):
    layer = weights_helpers.make(cell, (5, 3, 2), 2)
    x = weights_helpers.problem(weights_helpers.make(cell))[0]
    rng = np.random.default_rng(0)
    states = [[rng.uniform(-1, 1, (2, 3, H)).astype("f") for H in (5, 3, 2)] for _ in ("hx", "cx")]
    inputs = {"x": x} | {f"{name}_l{k}": one for name, state in zip(("hx", "cx"), states, strict=True)
                         for k, one in enumerate(state) if name == "hx" or cell == "lstm"}  # fmt: skip
    y, *finals = weights_helpers.run(layer, x, states)
    model = convert.to_onnx(layer, state=True)
    assert_close(run_onnx(model, inputs), [y, *(part for final in finals for part in final)], "float32")
    assert_same_layer(convert.from_onnx(model, device="cpu"), layer)


@pytest.mark.parametrize("node", (None, 0))
@pytest.mark.parametrize("cell, hidden, D", SIZES)
def test_batch_first_there_and_back(cell, hidden, D, node):
    """Read time first it would take x for another one of other numbers of steps and sequences, and not refuse it."""
    layer = weights_helpers.make(cell, hidden, D, batch_first=True)
    model = convert.to_onnx(layer)
    assert convert.from_onnx(model, node, device="cpu").batch_first
    assert_same_layer(convert.from_onnx(model, device="cpu"), layer)
    assert not convert.from_onnx(model, device="cpu", batch_first=False).batch_first
    (turn,) = [one for one in model.graph.node if one.op_type == "Transpose" and one.input[0] == "x"]
    turn.attribute[0].ints[:] = [2, 1, 0]
    assert not convert.from_onnx(model, device="cpu").batch_first


def test_paths_bytes_and_models(tmp_path):
    layer = weights_helpers.make("gru", (5, 5))
    path = tmp_path / "layer.onnx"
    model = convert.to_onnx(layer, path)
    for source in (path, str(path), path.read_bytes(), model):
        assert_same_layer(convert.from_onnx(source, device="cpu"), layer)
    with pytest.raises(TypeError, match=r"model must be a path, bytes or an onnx.ModelProto, not onnx.*GraphProto"):
        convert.from_onnx(model.graph)
    path.write_bytes(b"\xff" * 50)
    with pytest.raises(ValueError, match=r"layer.onnx is no ONNX model: "):
        convert.from_onnx(path)
    with pytest.raises(ValueError, match="the bytes are no ONNX model: "):
        convert.from_onnx(path.read_bytes())
    with pytest.raises(FileNotFoundError, match=r"absent\.onnx"):
        convert.from_onnx(tmp_path / "absent.onnx")


@pytest.mark.parametrize("name", ("layer.onnx", "layer.json", "layer.textproto"))
@pytest.mark.parametrize("content", (b"", b"garbage", b"\xff\xfe\xfd"))
def test_files_that_hold_something_else(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is no ONNX model: .*\w") as caught:
        convert.from_onnx(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_cut_off(tmp_path):
    path = tmp_path / "layer.onnx"
    convert.to_onnx(weights_helpers.make("lstm"), path)
    content = path.read_bytes()
    for length in range(0, len(content), 29):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"layer\.onnx|no LSTM"):
            convert.from_onnx(path)


@pytest.mark.parametrize("bias", ("input", "recurrent"))
@pytest.mark.parametrize("cell", weights_helpers.CELLS)
def test_single_bias_and_skip_input_become_what_onnx_has(cell, bias):
    layer = weights_helpers.make(cell, (5, 5), 2, I=5, bias=bias, input_mode="skip")
    x, states = weights_helpers.problem(layer)
    zero = [np.zeros_like(state) for state in states]
    assert_close(run_onnx(convert.to_onnx(layer), {"x": x}), weights_helpers.run(layer, x, zero), "float32")


def test_the_state_after_an_empty_sequence():
    """The one thing in which onnxruntime differs: 0 there, the initial state here, which is not 0 in this test."""
    layer = weights_helpers.make("gru")
    x, (hx, _) = weights_helpers.problem(layer, T=6, B=3)
    lengths = np.array([3, 0, 6], np.int32)
    y, hy = layer(x, hx, lengths=lengths)
    theirs = run_onnx(convert.to_onnx(layer, state=True, lengths=True), {"x": x, "lengths": lengths, "hx": hx})
    assert_close([y, hy[:, ::2]], [theirs[0], theirs[1][:, ::2]], "float32")
    assert np.array_equal(hy[:, 1], hx[:, 1]) and not theirs[1][:, 1].any()


@pytest.mark.parametrize("batch_first", (False, True))
@pytest.mark.parametrize("cell", ("lstm", "gru_reset_before"))
def test_lengths_without_state(cell, batch_first):
    """Batch first too, with an empty sequence."""
    layer = weights_helpers.make(cell, (5, 5), 2, batch_first=batch_first)
    x = weights_helpers.problem(layer, T=6, B=4)[0]
    x = np.ascontiguousarray(x.swapaxes(0, 1)) if batch_first else x
    lengths = np.array([3, 0, 6, 5], np.int32)
    y, state = layer(x, lengths=lengths)
    found = run_onnx(convert.to_onnx(layer, lengths=True), {"x": x, "lengths": lengths})
    assert_close(found, [y, *(state if cell == "lstm" else [state])], "float32")


# ---------------------------------------------------------------- models of others
@pytest.mark.parametrize("batch_first", (False, True))
@pytest.mark.parametrize("cell, hidden, D", TORCH_SIZES)
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_pytorch_exported(cell, hidden, D, batch_first, tmp_path):
    """PyTorch writes one node per layer, with transpositions, reshapes and computed initial states around them."""
    torch = pytest.importorskip("torch")
    model = torch_peer.module(torch, cell, hidden, D, batch_first=batch_first)
    x = torch.zeros(3, 2, 4)
    sizes = {"input_names": ["x"], "dynamic_axes": {"x": [0, 1]}}
    torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=False, **sizes)
    layer = convert.from_onnx(tmp_path / "model.onnx", device="cpu")
    assert_same_layer(layer, convert.from_torch(model, device="cpu"))


def test_nodes_by_name_output_and_number():
    model = convert.to_onnx(weights_helpers.make("gru", (5, 5, 5)))
    layers = [convert.from_onnx(model, node, device="cpu") for node in (1, "gru_l1", "y_l1_by_direction", ["gru_l1"])]
    for layer in layers:
        assert_same_layer(layer, layers[0])
    assert convert.from_onnx(model, ["gru_l1", 2], device="cpu").num_layers == 2
    with pytest.raises(ValueError, match=r"is called 'x'; the model has \['gru_l0', 'gru_l1', 'gru_l2'\]"):
        convert.from_onnx(model, "x")
    with pytest.raises(ValueError, match=r"input 'y_l1' of node 'gru_l2' must be the output of node 'gru_l0'.*GRU"):
        convert.from_onnx(model, [0, 2])
    with pytest.raises(ValueError, match=r"'x' of node 'gru_l0' must be the output of node 'gru_l1'.*from outside"):
        convert.from_onnx(model, [1, 0])


def test_nodes_that_are_no_stack():
    model = convert.to_onnx(weights_helpers.make("gru", (5, 5), 2))
    (turn,) = [node for node in model.graph.node if node.op_type == "Transpose" and "l0" in node.input[0]]
    turn.attribute[0].ints[:] = [2, 0, 1, 3]
    with pytest.raises(ValueError, match=r"comes from GRU 'y_l0_by_direction' by other axes than a layer's"):
        convert.from_onnx(model)
    turn.attribute[0].ints[:] = [0, 2, 1, 3]
    (second,) = [node for node in model.graph.node if node.name == "gru_l1"]
    second.attribute.append(helper.make_attribute("layout", 1))
    with pytest.raises(ValueError, match=r"\['gru_l0', 'gru_l1'\] form no stack: cell, directions or layout differ"):
        convert.from_onnx(model)
    with pytest.raises(ValueError, match=r"has no LSTM, GRU, RNN node, but \['Relu'\]"):
        convert.from_onnx(helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])))


def test_weights_may_be_constant_nodes():
    model = node_model("RNN", activations=["Relu"])
    expected = convert.from_onnx(model, device="cpu")
    assert expected.cell == "rnn_relu"
    tensors = list(model.graph.initializer)
    del model.graph.initializer[:]
    for tensor in tensors:
        model.graph.node.insert(0, helper.make_node("Identity", [f"{tensor.name}_"], [tensor.name]))
        tensor.name += "_"
        model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    assert_same_layer(convert.from_onnx(model, device="cpu"), expected)


def test_layout_and_attributes_that_change_nothing():
    plain = convert.from_onnx(node_model(), device="cpu")
    same = node_model(activations=["Sigmoid", "Tanh", "Tanh"], input_forget=0, direction="forward", layout=0)
    assert_same_layer(convert.from_onnx(same, device="cpu"), plain)
    zero = {"P": np.zeros((1, 15), "f"), "initial_h": np.zeros((1, 2, 5), "f")}
    inputs = ("X", "W", "R", "B", "", "initial_h", "initial_c", "P")
    assert_same_layer(convert.from_onnx(node_model(inputs=inputs, constants=zero), device="cpu"), plain)
    assert convert.from_onnx(node_model(layout=1), device="cpu").batch_first
    assert not convert.from_onnx(node_model(layout=1), device="cpu", batch_first=False).batch_first
    assert convert.from_onnx(node_model(inputs=("X", "W", "R")), device="cpu").bias is False


@pytest.mark.parametrize("attributes", ({}, {"linear_before_reset": 0}, {"linear_before_reset": 1}))
@pytest.mark.parametrize("D", (1, 2))
def test_the_two_forms_of_the_gru(D, attributes):
    """Without the attribute it is 0, the reset before the product; onnxruntime agrees on both."""
    model = node_model("GRU", D=D, direction="bidirectional" if D == 2 else "forward", **attributes)
    layer = convert.from_onnx(model, device="cpu")
    assert layer.reset_after is (attributes.get("linear_before_reset", 0) == 1)
    (node,) = (one for one in convert.to_onnx(layer).graph.node if one.op_type == "GRU")
    (written,) = (one.i for one in node.attribute if one.name == "linear_before_reset")
    assert written == layer.reset_after
    x = weights_helpers.problem(layer)[0]
    y, _ = layer(x)
    model.opset_import[0].version, model.ir_version = 14, 8
    assert_close(run_onnx(model, {"X": x}), [y.reshape(7, 3, D, 5).swapaxes(1, 2)], "float32")


def test_reverse_as_forward():
    """A lone reverse direction: x and y reversed in time; onnxruntime agrees."""
    model = node_model("RNN", direction="reverse")
    layer = convert.from_onnx(model, reverse_as_forward=True, device="cpu")
    x = weights_helpers.problem(layer)[0]
    y, _ = layer(np.ascontiguousarray(x[::-1]))
    model.opset_import[0].version, model.ir_version = 14, 8
    assert_close(run_onnx(model, {"X": x}), [y[::-1][:, None]], "float32")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"clip": -2.0}, r"'the_node' \(LSTM\) has clip=-2.0, but a bound must be positive"),
        ({"operator": "GRU", "input_forget": 1}, "has input_forget=1, which numbarnn lacks"),
        ({"activations": ["Sigmoid", "Gelu", "Tanh"]}, "the activation 'Gelu', but ONNX has only Relu, Tanh, Sigmoid"),
        ({"activations": ["Sigmoid", "Tanh"]}, "but needs 3 of them"),
        ({"activation_alpha": [0.5]}, r"more constants than its activations .* take: activation_alpha=\[0.5\]"),
        ({"operator": "RNN", "activations": ["Affine"]}, "Affine without its activation_alpha, for which"),
        (
            {"operator": "RNN", "D": 2, "direction": "bidirectional", "activations": ["Tanh", "Relu"]},
            "forward and .* backward, but a layer's directions have one cell",
        ),
        ({"direction": "reverse"}, "direction='reverse', but.*Pass reverse_as_forward=True"),
        ({"inputs": ("X", "W", "R", "B", "", "", "", "P"), "constants": {"P": None}}, r"P \('P'\) must be constants"),
        ({"inputs": ("X", "W", "R", "", "lens"), "constants": {"lens": np.ones(2, np.int32)}}, "pass lengths= to"),
        (
            {"inputs": ("X", "W", "R", "", "", "h"), "constants": {"h": np.ones((1, 2, 5), "f")}},
            "initial_h.*pass state=",
        ),
        ({"constants": {"W": None, "B": None}}, r"W \('W'\), B \('B'\) must be constants"),
        ({"hidden_size": 6}, r"hidden_size 6, 1 direction\(s\) has wrong shapes: W \(1, 20, 4\), not \(1, 24, 4\); R "),
        ({"direction": "bidirectional"}, r"2 direction\(s\) has wrong shapes: W \(1, 20, 4\), not \(2, 20, 4\)"),
        ({"constants": {"B": np.ones((1, 20), "f")}}, r"B \(1, 20\), not \(1, 40\)"),
    ],
)
def test_what_has_no_counterpart(options, message):
    with pytest.raises(ValueError, match=message):
        convert.from_onnx(node_model(**options), device="cpu")


def test_without_the_package(monkeypatch):
    for name in ("onnx", "onnx.helper", "onnx.numpy_helper"):
        monkeypatch.setitem(sys.modules, name, None)
    for call in (lambda: convert.from_onnx(b""), lambda: convert.to_onnx(weights_helpers.make("gru"))):
        with pytest.raises(ImportError, match=r'needs the package onnx: pip install .*\[onnx\]"'):
            call()
