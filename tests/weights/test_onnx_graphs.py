"""What stands around LSTM, GRU and RNN nodes of an ONNX model: computed weights and states, branches, directions."""

import numpy as np
import pytest

from numbarnn import convert
from weights_helpers import assert_close, run_onnx

onnx = pytest.importorskip("onnx")
helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
T, B, I, H = 6, 3, 4, 5  # noqa: E741


def constant(name, array):
    return onnx.numpy_helper.from_array(np.asarray(array), name)


def info(name, shape=None, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes, inputs, outputs, constants=()):
    """A model of nodes, with outputs of any shape; constants: name -> array."""
    made = [constant(*pair) for pair in dict(constants).items()]
    graph = helper.make_graph(nodes, "g", inputs, [info(name) for name in outputs], made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rnn_of_one(state_nodes, constants, state="state"):
    """W = R = 1, h = tanh(x + h), and nodes that make its initial state."""
    one = {"W": np.ones((1, 1, 1), "f"), "R": np.ones((1, 1, 1), "f")}
    rnn = helper.make_node("RNN", ["x", "W", "R", "", "", state], ["y"], name="rnn", hidden_size=1)
    return model_of([*state_nodes, rnn], [info("x", ["T", "B", 1])], ["y"], one | constants)


node = helper.make_node
HALF = {"half": np.float32([[[0.5]]]), "one": np.int64([1, 1, 1]), "two": np.int64([1]), "ends": np.int64([2])}
STATES = {
    "Expand": [node("Expand", ["half", "one"], ["state"])],
    "Mul": [node("Mul", ["half", "half"], ["state"])],
    "Add": [node("Add", ["half", "half"], ["state"])],
    "Concat": [node("Concat", ["half", "half"], ["both"], axis=0), node("Slice", ["both", "two", "ends"], ["state"])],
    "Reshape": [node("Reshape", ["half", "one"], ["state"])],
    "Squeeze": [node("Squeeze", ["half", "two"], ["flat"]), node("Unsqueeze", ["flat", "two"], ["state"])],
    "Transpose": [node("Transpose", ["half"], ["state"])],
    "Cast": [node("Cast", ["one"], ["ones"], to=FLOAT), node("Reshape", ["ones", "shape"], ["state"])],
    "Constant": [node("Constant", [], ["state"], value=constant("", np.float32([[[0.5]]])))],
    "Identity": [node("Identity", ["half"], ["state"])],
    "ConstantOfShape": [node("ConstantOfShape", ["one"], ["state"], value=constant("", np.float32([0.5])))],
    "Where": [node("Where", ["yes", "half", "half"], ["state"])],
    "RandomNormal": [node("RandomNormal", [], ["state"], shape=[1, 1, 1])],
}
# As a learned state that PyTorch expands to a batch of any size is exported.
OF_BATCH = [
    node("Shape", ["x"], ["shape_of_x"]), node("Slice", ["shape_of_x", "two", "ends"], ["batch"]),
    node("Concat", ["two", "batch", "two"], ["state_shape"], axis=0),
]  # fmt: skip
STATES["for any batch"] = [*OF_BATCH, node("Expand", ["half", "state_shape"], ["state"])]


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_constants_make_is_not_dropped(name):
    """A layer carries no state of its own: without a word it would begin at 0, and compute something else."""
    constants = HALF | {"shape": np.int64([3, 1, 1]), "yes": np.array(True)}
    model = rnn_of_one(STATES[name], constants)
    message = (
        r"'rnn' \(RNN\) has the constant input initial_h \('state'\), which a layer do.*pass state= to the layer's"
    )
    with pytest.raises(ValueError, match=message):
        convert.from_onnx(model, device="cpu")


@pytest.mark.parametrize("zero", [
    [node("Sub", ["half", "half"], ["state"])],
    [*OF_BATCH, node("ConstantOfShape", ["state_shape"], ["state"])],
    [*OF_BATCH, node("Expand", ["zero", "state_shape"], ["state"])],
], ids=("computed", "ConstantOfShape", "Expand"))  # fmt: skip
def test_a_state_that_is_zero(zero):
    layer = convert.from_onnx(rnn_of_one(zero, HALF | {"zero": np.zeros((1, 1, 1), "f")}), device="cpu")
    assert layer(np.zeros((1, 2, 1), "f"))[0].tolist() == [[[0], [0]]]


def test_a_state_made_of_an_input_goes_to_the_calls():
    model = rnn_of_one([node("Mul", ["h", "half"], ["state"])], HALF)
    model.graph.input.append(info("h", [1, "B", 1]))
    x, h = np.zeros((1, 2, 1), "f"), np.float32([[[0.3], [-2]]])
    with pytest.warns(UserWarning, match="pass state="):
        layer = convert.from_onnx(model, device="cpu")
    y, _ = layer(x, h / 2)
    assert_close([y[:, None]], run_onnx(model, {"x": x, "h": h}), "float32")


# ---------------------------------------------------------------- weights
def lstm_arrays(seed=0, inputs=I, units=H):
    rng = np.random.default_rng(seed)
    shapes = {"W": (1, 4 * units, inputs), "R": (1, 4 * units, units), "B": (1, 8 * units)}
    return {name: rng.uniform(-0.5, 0.5, shape).astype("f") for name, shape in shapes.items()}


def test_weights_behind_other_nodes():
    """As exporters write them that keep a framework's matrices and turn them in the graph."""
    arrays = lstm_arrays()
    constants = {
        "axis": np.int64([0]), "W_turned": arrays["W"][0].T.copy(), "start": np.int64([1]), "end": np.int64([99]),
        "R_long": np.concatenate([np.zeros_like(arrays["R"][:, :1]), arrays["R"]], 1), "second": np.int64([1]),
        "B_half": arrays["B"][:, None], "W": arrays["W"], "R": arrays["R"], "B": arrays["B"],
    }  # fmt: skip
    made = [
        node("Transpose", ["W_turned"], ["W_flat"]), node("Unsqueeze", ["W_flat", "axis"], ["W_made"]),
        node("Slice", ["R_long", "start", "end", "second"], ["R_made"]),
        node("Squeeze", ["B_half", "second"], ["B_same"]), node("Identity", ["B_same"], ["B_made"]),
    ]  # fmt: skip
    found = []
    for suffix in ("", "_made"):
        lstm = node("LSTM", ["x", *(name + suffix for name in "WRB")], ["y"], hidden_size=H)
        found.append(
            convert.from_onnx(model_of([*made, lstm], [info("x")], ["y"], constants), device="cpu").state_dict()
        )
    for name, array in found[0].items():
        assert np.array_equal(array, found[1][name]), name


def test_weights_that_depend_on_the_batch():
    arrays = lstm_arrays()
    shape = [node("Shape", ["x"], ["shape"]), node("Slice", ["shape", "zero", "one"], ["steps"])]
    grown = node("Expand", ["W_one", "steps"], ["W"])
    model = model_of(
        [*shape, grown, node("LSTM", ["x", "W", "R", "B"], ["y"], hidden_size=H)], [info("x", ["T", "B", I])], ["y"],
        {"R": arrays["R"], "B": arrays["B"], "W_one": arrays["W"], "zero": np.int64([0]), "one": np.int64([1])},
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"W \('W'\) must be constants .* depend on the model's inputs"):
        convert.from_onnx(model)


# ---------------------------------------------------------------- branches and bodies
def branch(seed, name="lstm", x="x"):
    """A graph that gives an LSTM's last state, with weights of its own."""
    made = [constant(name, array) for name, array in lstm_arrays(seed).items()]
    lstm = node("LSTM", [x, "W", "R", "B"], ["", "h"], name=name, hidden_size=H)
    return helper.make_graph([lstm], "branch", [], [info("h")], made)


def of_if(names=("first", "second")):
    """A model with an LSTM in each branch."""
    nodes = [node("If", ["which"], ["h_final"], name="choice", then_branch=branch(1, names[0]),
                  else_branch=branch(2, names[1]))]  # fmt: skip
    return model_of(nodes, [info("x", ["T", "B", I]), info("which", [], onnx.TensorProto.BOOL)], ["h_final"])


@pytest.mark.parametrize("names", (("first", "second"), ("lstm", "lstm")), ids=str)
def test_nodes_in_branches_of_if(names):
    model, x = of_if(names), np.random.default_rng(0).standard_normal((T, B, I)).astype("f")
    with pytest.raises(ValueError, match=f"'{names[1]}' in else_branch of If 'choice'.*'{names[0]}' in then_branch"):
        convert.from_onnx(model)
    for number, name in enumerate(names[::-1]):  # attributes are sorted by their names
        if names[0] == names[1]:
            with pytest.raises(ValueError, match=r"2 LSTM, GRU and RNN nodes are called 'lstm'.*Pass a number, from 0"):
                convert.from_onnx(model, name)
            name = number
        _, (h, _) = convert.from_onnx(model, name, device="cpu")(x)
        assert_close([h], run_onnx(model, {"x": x, "which": np.array(number == 1)}), "float32")


@pytest.mark.parametrize("operator", ("Loop", "Scan"))
def test_a_node_in_a_body(operator):
    """Alone there, it needs no name."""
    body = branch(3, x="x_here")
    if operator == "Scan":
        body.input.append(info("x_here", [T, B, I]))
        outer = node("Scan", ["many"], ["h_all"], body=body, num_scan_inputs=1)
    else:
        body.input.extend([info("number", [], INT64), info("goes_on", [], onnx.TensorProto.BOOL)])
        body.node.insert(0, node("Gather", ["many", "number"], ["x_here"], axis=0))
        body.node.append(node("Identity", ["goes_on"], ["still"]))
        body.output.insert(0, info("still", [], onnx.TensorProto.BOOL))
        outer = node("Loop", ["times", ""], ["h_all"], body=body)
    model = model_of([outer], [info("many", [2, T, B, I])], ["h_all"], {"times": np.int64(2)})
    layer = convert.from_onnx(model, device="cpu")
    many = np.random.default_rng(1).standard_normal((2, T, B, I)).astype("f")
    assert_close([np.stack([layer(x)[1][0] for x in many])], run_onnx(model, {"many": many}), "float32")


# ---------------------------------------------------------------- directions
def direction(name, x, seed, inputs=I, **attributes):
    """(Nodes, constants) of one direction with weights of its own; Y without the axis of directions is `name`."""
    arrays = {f"{kind}_{name}": array for kind, array in lstm_arrays(seed, inputs).items()}
    results = [f"Y_{name}", f"h_{name}", f"c_{name}"]
    lstm = node("LSTM", [x, *arrays], results, name=name, hidden_size=H, **attributes)
    return [lstm, node("Squeeze", [results[0], "one"], [name])], arrays


def turned(name, result):
    """Steps in reverse."""
    return node("Slice", [name, "last", "far", "zero", "minus"], [result])


COUNTS = {"one": np.int64([1]), "zero": np.int64([0]), "last": np.int64([-1]), "far": np.int64([-(2**62)]),
          "minus": np.int64([-1])}  # fmt: skip


def both(number, x, inputs, by_hand, swapped=False):
    """(Nodes, constants) of a layer in two directions, whose y is y{number}: by attribute, or with x and y reversed."""
    forward, of_forward = direction(f"f{number}", x, 2 * number, inputs)
    if by_hand:
        back, of_back = direction(f"turned{number}", f"x_turned{number}", 2 * number + 1, inputs)
        back = [turned(x, f"x_turned{number}"), *back, turned(f"turned{number}", f"b{number}")]
    else:
        back, of_back = direction(f"b{number}", x, 2 * number + 1, inputs, direction="reverse")
    parts = [f"f{number}", f"b{number}"]
    joined = node("Concat", parts[::-1] if swapped else parts, [f"y{number}"], axis=2)
    nodes = [*back, *forward] if swapped else [*forward, *back]
    return [*nodes, joined], of_forward | of_back


@pytest.mark.parametrize("by_hand", (False, True))
@pytest.mark.parametrize("layers", (1, 2))
def test_two_nodes_of_one_direction_are_a_bidirectional_layer(layers, by_hand):
    nodes, constants = [], COUNTS
    for number in range(layers):
        made, weights = both(number, f"y{number - 1}" if number else "x", 2 * H if number else I, by_hand)
        nodes, constants = nodes + made, constants | weights
    model = model_of(nodes, [info("x", ["T", "B", I])], [f"y{layers - 1}"], constants)
    layer = convert.from_onnx(model, device="cpu")
    assert layer.bidirectional and layer.num_layers == layers
    x = np.random.default_rng(0).standard_normal((T, B, I)).astype("f")
    assert_close([layer(x)[0]], run_onnx(model, {"x": x}), "float32")


@pytest.mark.parametrize("axis, parts", [(1, ("Y_f0", "Y_b0")), (2, ("h_f0", "h_b0")), (-1, ("f0", "b0"))], ids=str)
def test_directions_are_concatenated_in_other_ways(axis, parts):
    nodes, constants = both(0, "x", I, by_hand=False)
    nodes[-1] = node("Concat", parts, ["y0"], axis=axis)
    model = model_of(nodes, [info("x", ["T", "B", I])], ["y0"], constants | COUNTS)
    layer, x = convert.from_onnx(model, device="cpu"), np.random.default_rng(0).standard_normal((T, B, I)).astype("f")
    y, (h, _) = layer(x)
    found = {"Y_f0": y.reshape(T, B, 2, H).swapaxes(1, 2), "h_f0": np.concatenate(h, 1)[None], "f0": y}[parts[0]]
    assert_close([found], run_onnx(model, {"x": x}), "float32")


@pytest.mark.parametrize("change", ("sum", "swapped", "other x", "not turned back", "not concatenated"))
def test_two_nodes_that_are_no_bidirectional_layer(change):
    nodes, constants = both(0, "x", I, by_hand=change == "not turned back", swapped=change == "swapped")
    if change == "sum":
        nodes[-1] = node("Add", ["f0", "b0"], ["y0"])
    elif change == "other x":
        nodes[2].input[0] = "other"
    elif change == "not turned back":
        nodes[-1].input[1] = "turned0"
    elif change == "not concatenated":
        nodes[-1] = node("Concat", ["f0", "f0"], ["y0"], axis=2)
    model = model_of(nodes, [info("x", ["T", "B", I]), info("other", ["T", "B", I])], ["y0"], constants | COUNTS)
    with pytest.raises(ValueError, match=r"has direction='reverse'|as in a stack"):
        convert.from_onnx(model)


def test_a_stack_of_fixed_sizes():
    """Exported for one T and one B, with shapes that are written out."""
    (first, _), weights = direction("below", "x", 0)
    second, more = direction("above", "between", 1, H)
    sizes = {"sizes": np.int64([T, B, H])}
    nodes = [first, node("Reshape", ["Y_below", "sizes"], ["between"]), *second]
    model = model_of(nodes, [info("x", [T, B, I])], ["above"], weights | more | sizes | COUNTS)
    layer, x = convert.from_onnx(model, device="cpu"), np.random.default_rng(0).standard_normal((T, B, I)).astype("f")
    assert layer.num_layers == 2
    assert_close([layer(x)[0]], run_onnx(model, {"x": x}), "float32")


@pytest.mark.parametrize("operator", ("Relu", "LayerNormalization"))
def test_something_between_two_nodes(operator):
    below, weights = direction("below", "x", 0)
    above, more = direction("above", "between", 1, H)
    inputs = ["below", "scale"][: 1 + (operator != "Relu")]
    nodes = [*below, node(operator, inputs, ["between"]), *above]
    model = model_of(nodes, [info("x", ["T", "B", I])], ["above"], weights | more | COUNTS | {"scale": np.ones(H, "f")})
    with pytest.raises(ValueError, match=rf"'between' of node 'above' must be the output of .* comes from {operator}"):
        convert.from_onnx(model)


def test_a_transpose_of_what_another_node_makes_is_no_input_with_batch_first():
    nodes, weights = direction("y", "x_turned", 0)
    for maker, batch_first in (("Identity", True), ("Relu", False)):
        before = [node(maker, ["x"], ["x_made"]), node("Transpose", ["x_made"], ["x_turned"], perm=[1, 0, 2])]
        model = model_of([*before, *nodes], [info("x", ["B", "T", I])], ["y"], weights | COUNTS)
        assert convert.from_onnx(model, device="cpu").batch_first is batch_first


# ---------------------------------------------------------------- models that are broken, or want files read
def test_a_circle():
    nodes, weights = direction("y", "a", 0)
    circle = [node("Transpose", ["b"], ["a"], perm=[1, 0, 2]), node("Identity", ["a"], ["b"])]
    with pytest.raises(ValueError, match=r"the model's graph has a cycle: (a <- b <- a|b <- a <- b)"):
        convert.from_onnx(model_of([*circle, *nodes], [], ["y"], weights | COUNTS))
    itself = node("If", ["which"], ["h"], then_branch=branch(0, x="h"), else_branch=branch(0))
    with pytest.raises(ValueError, match="cycle: h <- h"):
        convert.from_onnx(model_of([itself], [info("x"), info("which", [], onnx.TensorProto.BOOL)], ["h"]))


@pytest.mark.parametrize("change, message", [
    ("size", r"initial_h.*pass state="), ("direction", "has direction=b'up', but must have 'forward', 'reverse' or"),
    ("W", r"'rnn' \(RNN\) lacks the input W"), ("type", "the tensor 'W' of the model is broken: "),
], ids=("size", "direction", "W", "type"))  # fmt: skip
def test_broken_models(change, message):
    """A size that no memory holds is not made."""
    sizes = HALF | {"one": np.int64([1, 10**6, 10**7])} if change == "size" else HALF
    model = rnn_of_one(STATES["Expand" if change == "size" else "Mul"], sizes)
    rnn = model.graph.node[-1]
    if change == "direction":
        rnn.attribute.append(helper.make_attribute("direction", "up"))
    elif change == "W":
        rnn.input[1] = ""
    elif change == "type":
        next(one for one in model.graph.initializer if one.name == "W").data_type = 99
    with pytest.raises(ValueError, match=message):
        convert.from_onnx(model)


def test_numbers_beside_a_model_without_a_path(tmp_path, monkeypatch):
    """Read from the current folder they could be any file's."""
    nodes, weights = direction("y", "x", 0)
    path, model = tmp_path / "model.onnx", model_of(nodes, [info("x", ["T", "B", I])], ["y"], weights | COUNTS)
    options = {"save_as_external_data": True, "location": "numbers", "size_threshold": 0}
    onnx.save_model(model, path, **options)
    assert convert.from_onnx(path, device="cpu").input_size == I
    monkeypatch.chdir(tmp_path)
    for source in (path.read_bytes(), onnx.load(path, load_external_data=False)):
        with pytest.raises(ValueError, match=r"'W_y' are in a file next to the model. Pass the model's path"):
            convert.from_onnx(source)
