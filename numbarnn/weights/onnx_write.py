"""A network as an ONNX model: one LSTM, GRU or RNN node per layer; T and B are left open."""

from dataclasses import dataclass

import numpy as np

from numbarnn.weights import gates
from numbarnn.weights.network import package, refuse, with_both_biases, with_input_matrix

OPSET = 14  # the first in which the nodes know `layout`; runtimes of 2021 and later have it
OPSET_BFLOAT16 = 22


@dataclass(frozen=True)
class Nodes:
    """What the nodes of a stack have to say.

    Attributes:
        name: of the cell.
        operator: "LSTM", "GRU" or "RNN".
        attributes: name -> value, but for direction and hidden_size.
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
    """The `Nodes` of a `Network`."""
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


def of_own(own):
    """The `Nodes` of an `onnx_cells.Own`."""
    layers, directions = len(own.hidden_sizes), 2 if own.bidirectional else 1

    def parameters(layer, direction):
        start = f"l{layer}.{'reverse.' * direction}" if layers * directions > 1 else ""
        names = [name for name in own.parameters if name.startswith(start)]
        names = [name for name in names if direction or not name.startswith(f"{start}reverse.")]
        return {name.removeprefix(start): own.parameters[name] for name in names}

    arrays = [[own.kind.arrays(parameters(layer, d)) for d in range(directions)] for layer in range(layers)]
    about = own.kind.name, own.kind.operator, own.kind.attributes(directions)
    return Nodes(*about, own.input_size, own.hidden_sizes, directions, arrays)


def write(nodes, batch_first=False, state=False, lengths=False, apart=False):
    """An onnx.ModelProto that computes what the layer does in inference: see `numbarnn.convert.to_onnx`.

    Args:
        nodes: a `Nodes`, or a `Network`.
        apart: whether each layer has states of its own, hx_l0 (D, B, H) and so on, even where sizes are equal.
    """
    nodes = nodes if isinstance(nodes, Nodes) else of_network(nodes)
    return _Writer(nodes, batch_first, state, lengths, apart).model()


class _Writer:
    """One model in the making: lists of nodes, initializers, inputs and outputs that its methods fill."""

    def __init__(self, network, batch_first, state, lengths, apart):
        self.network, self.batch_first, self.state, self.lengths = network, batch_first, state, lengths
        self.apart = apart or len(set(network.hidden_sizes)) > 1
        self.onnx = package("onnx", "writing ONNX models")
        self.helper = self.onnx.helper
        self.type = self.helper.np_dtype_to_tensor_dtype(np.dtype(network.arrays[0][0]["R"].dtype))
        self.private = network.operator == "LSTM"
        self.nodes, self.constants, self.inputs, self.outputs = [], [], [], []

    def model(self):
        """The whole model, checked by ONNX."""
        network, helper = self.network, self.helper
        sequence = ["B", "T"] if self.batch_first else ["T", "B"]
        width = network.directions * network.hidden_sizes[-1]
        self.declare(self.inputs, "x", [*sequence, network.input_size])
        self.declare(self.outputs, "y", [*sequence, width])
        if self.lengths:
            self.inputs.append(helper.make_tensor_value_info("lengths", self.onnx.TensorProto.INT32, ["B"]))
        below = "x"
        if self.batch_first:
            below = self.node("Transpose", ["x"], "x_time_first", perm=[1, 0, 2])
        hidden = self.states("hx", self.inputs) if self.state else [""] * len(network.hidden_sizes)
        cells = self.states("cx", self.inputs) if self.state and self.private else [""] * len(network.hidden_sizes)
        finals = {name: self.states(name, self.outputs) for name in (["hy", "cy"] if self.private else ["hy"])}
        for layer in range(len(network.hidden_sizes)):
            below = self.layer(layer, below, hidden[layer], cells[layer], [names[layer] for names in finals.values()])
        if self.batch_first:
            self.node("Transpose", [below], "y", perm=[1, 0, 2])
        else:
            self.nodes[-1].output[0] = "y"
        for name, parts in finals.items():
            if len(parts) > 1 and parts[0] == f"{name}_part0":
                self.node("Concat", parts, name, axis=0)
        return self.checked()

    def node(self, operator, inputs, *results, **attributes):
        """A node; returns the name of its first result."""
        self.nodes.append(self.helper.make_node(operator, inputs, results, **attributes))
        return results[0]

    def declare(self, where, name, shape):
        """An input or output of the model."""
        where.append(self.helper.make_tensor_value_info(name, self.type, shape))

    def constant(self, name, array):
        """An initializer; returns its name."""
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def states(self, name, where):
        """The name of each layer's (D, B, H); inputs or outputs of the model are declared, and inputs split."""
        sizes, D = self.network.hidden_sizes, self.network.directions
        if self.apart:
            names = [f"{name}_l{layer}" for layer in range(len(sizes))]
            for one, hidden in zip(names, sizes, strict=True):
                self.declare(where, one, [D, "B", hidden])
            return names
        self.declare(where, name, [len(sizes) * D, "B", sizes[0]])
        if len(sizes) == 1:
            return [name]
        parts = [f"{name}_part{layer}" for layer in range(len(sizes))]
        if where is self.inputs:
            split = self.constant(f"{name}_sizes", np.full(len(sizes), D, np.int64))
            self.node("Split", [name, split], *parts, axis=0)
        return parts

    def layer(self, layer, below, hidden, cell, finals):
        """Nodes of one layer; returns the name of its output (T, B, D*H)."""
        network = self.network
        has = network.arrays[layer][0]
        inputs = [below, self.stacked("W", layer), self.stacked("R", layer), self.stacked("B", layer)]
        inputs += ["lengths" if self.lengths else "", hidden, cell if self.private else ""]
        inputs += [self.stacked("P", layer)] if "P" in has else []
        while inputs[-1] == "":
            inputs.pop()
        options = network.attributes | {"direction": "bidirectional" if network.directions == 2 else "forward"}
        options |= {"hidden_size": network.hidden_sizes[layer], "name": f"{network.name}_l{layer}"}
        result, name = f"y_l{layer}_by_direction", f"y_l{layer}"
        self.node(network.operator, inputs, result, *finals, **options)
        if network.directions == 1:
            return self.node("Squeeze", [result, self.constant(f"{name}_axis", np.array([1]))], name)
        shape = self.constant(f"{name}_shape", np.array([0, 0, network.directions * network.hidden_sizes[layer]]))
        turned = self.node("Transpose", [result], f"{result}_last", perm=[0, 2, 1, 3])  # (T, D, B, H) to (T, B, D, H)
        return self.node("Reshape", [turned, shape], name)

    def stacked(self, name, layer):
        """The initializer (D, ...) of a kind of weights; "" if there is none."""
        parts = [own[name] for own in self.network.arrays[layer] if name in own]
        return self.constant(f"{name}_l{layer}", np.stack(parts)) if parts else ""

    def checked(self):
        """The model made of what has been collected."""
        onnx = self.onnx
        graph = self.helper.make_graph(self.nodes, self.network.name, self.inputs, self.outputs, self.constants)
        version = OPSET_BFLOAT16 if self.type == onnx.TensorProto.BFLOAT16 else OPSET
        opsets = [self.helper.make_opsetid("", version)]
        model = self.helper.make_model_gen_version(graph, opset_imports=opsets, producer_name="numbarnn")
        onnx.checker.check_model(model, full_check=True)
        return model
