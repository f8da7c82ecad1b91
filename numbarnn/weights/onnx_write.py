"""A network as an ONNX model: one LSTM, GRU or RNN node per layer; T and B are left open."""

from typing import NamedTuple

import numpy as np

from numbarnn.weights import gates
from numbarnn.weights.network import package, refuse, with_both_biases, with_input_matrix

OPSET = 14  # the first in which the nodes know `layout`; runtimes of 2021 and later have it
OPSET_BFLOAT16 = 22


class Nodes(NamedTuple):
    """What the nodes of a stack have to say.

    Attributes:
        name: of the cell. operator: "LSTM", "GRU" or "RNN". attributes: name -> value, but for direction, hidden_size.
        input_size, hidden_sizes, directions: I, H of each layer, D.
        arrays: [layer][direction] -> {"W", "R", "B", "P"} in ONNX' order, as far as there are some.
    """

    name: str
    operator: str
    attributes: dict
    input_size: int
    hidden_sizes: tuple[int, ...]
    directions: int
    arrays: list


def of_network(network):
    """Return the `Nodes` of a `Network`."""
    refuse(network, "ONNX", cell_clip="clip of the cell state", proj_size="projection")
    network = with_both_biases(with_input_matrix(network))
    operator = network.cell.split("_")[0].upper()
    attributes = {"activations": ["Relu"] * network.directions} if network.cell == "rnn_relu" else {}
    attributes |= {"linear_before_reset": int(network.cell == "gru")} if operator == "GRU" else {}
    kinds = {"W": ["W"], "R": ["R"]} | ({} if network.bias == "none" else {"B": ["b_w", "b_r"]})

    def part(names, *place):
        arrays = [network.part(name, *place) for name in names]
        return np.concatenate([gates.to_order(array, network.cell, gates.ONNX) for array in arrays])

    arrays = [
        [{kind: part(names, layer, d) for kind, names in kinds.items()} for d in range(network.directions)]
        for layer in range(len(network.hidden_sizes))
    ]
    sizes = network.input_size, network.hidden_sizes, network.directions
    return Nodes(network.cell, operator, attributes, *sizes, arrays)


def of_custom(own):
    """Return the `Nodes` of an `onnx_cells.CustomNetwork`."""
    layers, directions = len(own.hidden_sizes), 2 if own.bidirectional else 1

    def parameters(layer, direction):
        start = f"l{layer}.{'reverse.' * direction}" if layers * directions > 1 else ""
        return {name.removeprefix(start): array for name, array in own.parameters.items()
                if name.startswith(start) and (direction or not name.startswith(f"{start}reverse."))}  # fmt: skip

    arrays = [[own.kind.arrays(parameters(layer, d)) for d in range(directions)] for layer in range(layers)]
    about = own.kind.name, own.kind.operator, own.kind.attributes(directions)
    return Nodes(*about, own.input_size, own.hidden_sizes, directions, arrays)


def write(nodes, batch_first=False, state=False, lengths=False, apart=False):
    """Return an onnx.ModelProto that computes what the layer does in inference: see `numbarnn.convert.to_onnx`.

    Args:
        nodes: a `Nodes`, or a `Network`.
        apart: whether each layer has states of its own, hx_l0 (D, B, H) and so on, even where sizes are equal.
    """
    stack = nodes if isinstance(nodes, Nodes) else of_network(nodes)
    onnx = package("onnx", "writing ONNX models")
    helper, H, D = onnx.helper, stack.hidden_sizes, stack.directions
    number = helper.np_dtype_to_tensor_dtype(np.dtype(stack.arrays[0][0]["R"].dtype))
    made, constants, inputs, outputs = [], [], [], []
    apart = apart or len(set(H)) > 1

    def node(operator, reads, *results, **attributes):
        made.append(helper.make_node(operator, reads, results, **attributes))
        return results[0]

    def constant(name, array):
        constants.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def declare(where, name, shape, kind=number):
        where.append(helper.make_tensor_value_info(name, kind, shape))

    def states(name, where):
        """The name of each layer's (D, B, H); inputs or outputs of the model are declared, and inputs split."""
        if apart:
            for layer, hidden in enumerate(H):
                declare(where, f"{name}_l{layer}", [D, "B", hidden])
            return [f"{name}_l{layer}" for layer in range(len(H))]
        declare(where, name, [len(H) * D, "B", H[0]])
        parts = [f"{name}_part{layer}" for layer in range(len(H))] if len(H) > 1 else [name]
        if where is inputs and len(H) > 1:
            node("Split", [name, constant(f"{name}_sizes", np.full(len(H), D, np.int64))], *parts, axis=0)
        return parts

    def weights(kind, layer):
        """The initializer (D, ...) of a kind of weights; "" if there is none."""
        parts = [own[kind] for own in stack.arrays[layer] if kind in own]
        return constant(f"{kind}_l{layer}", np.stack(parts)) if parts else ""

    sequence = ["B", "T"] if batch_first else ["T", "B"]
    declare(inputs, "x", [*sequence, stack.input_size])
    declare(outputs, "y", [*sequence, D * H[-1]])
    if lengths:
        declare(inputs, "lengths", ["B"], onnx.TensorProto.INT32)
    below = node("Transpose", ["x"], "x_time_first", perm=[1, 0, 2]) if batch_first else "x"
    letters = "hc" if stack.operator == "LSTM" else "h"
    initial = [states(f"{letter}x", inputs) if state else [""] * len(H) for letter in letters]
    finals = {f"{letter}y": states(f"{letter}y", outputs) for letter in letters}
    for layer, hidden in enumerate(H):
        reads = [
            below,
            *(weights(kind, layer) for kind in "WRB"),
            "lengths" * lengths,
            *(one[layer] for one in initial),
        ]
        if peepholes := weights("P", layer):
            reads.append(peepholes)
        while not reads[-1]:
            reads.pop()
        options = stack.attributes | {"direction": "bidirectional" if D == 2 else "forward", "hidden_size": hidden}
        result, name = f"y_l{layer}_by_direction", f"y_l{layer}"
        results = result, *(names[layer] for names in finals.values())
        node(stack.operator, reads, *results, name=f"{stack.name}_l{layer}", **options)
        if D == 1:
            below = node("Squeeze", [result, constant(f"{name}_axis", np.array([1]))], name)
        else:  # (T, D, B, H) to (T, B, D, H)
            turned = node("Transpose", [result], f"{result}_last", perm=[0, 2, 1, 3])
            below = node("Reshape", [turned, constant(f"{name}_shape", np.array([0, 0, D * hidden]))], name)
    if batch_first:
        node("Transpose", [below], "y", perm=[1, 0, 2])
    else:
        made[-1].output[0] = "y"
    for name, parts in finals.items():
        if parts[0] == f"{name}_part0":
            node("Concat", parts, name, axis=0)
    graph = helper.make_graph(made, stack.name, inputs, outputs, constants)
    version = OPSET_BFLOAT16 if number == onnx.TensorProto.BFLOAT16 else OPSET
    opsets = [helper.make_opsetid("", version)]
    model = helper.make_model_gen_version(graph, opset_imports=opsets, producer_name="numbarnn")
    onnx.checker.check_model(model, full_check=True)
    return model
