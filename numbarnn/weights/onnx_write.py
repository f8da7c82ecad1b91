"""A network as an ONNX model: one LSTM, GRU or RNN node per layer; T and B are left open."""

import numpy as np

from numbarnn.weights import extras, gates
from numbarnn.weights.network import refuse, with_both_biases, with_input_matrix

OPSET = 14  # the first in which the nodes know `layout`; runtimes of 2021 and later have it
OPSET_BFLOAT16 = 22


def write(network, batch_first=False, state=False, lengths=False):
    """An onnx.ModelProto that computes what the layer does in inference.

    Inputs: x (T, B, I), or (B, T, I) with `batch_first`; with `lengths` lengths (B,) int32; with `state` hx and, for
    the LSTM, cx, of the layer's shape: (L*D, B, H), or, where sizes differ, hx_l0 (D, B, H), hx_l1, ... Outputs: y, hy
    and cy, likewise.

    Raises:
        ValueError: the network has a projection or a clip of the cell state, which ONNX lacks.
    """
    refuse(network, "ONNX", cell_clip="clip of the cell state", proj_size="projection")
    return _Writer(with_both_biases(with_input_matrix(network)), batch_first, state, lengths).model()


class _Writer:
    """One model in the making: lists of nodes, initializers, inputs and outputs that its methods fill."""

    def __init__(self, network, batch_first, state, lengths):
        self.network, self.batch_first, self.state, self.lengths = network, batch_first, state, lengths
        self.helper = extras.load("onnx.helper", "writing ONNX models")
        self.type = self.helper.np_dtype_to_tensor_dtype(np.dtype(network.part("R", 0).dtype))
        self.private = network.cell == "lstm"
        self.nodes, self.constants, self.inputs, self.outputs = [], [], [], []

    def model(self):
        """The whole model, checked by ONNX."""
        network, helper = self.network, self.helper
        sequence = ["B", "T"] if self.batch_first else ["T", "B"]
        width = network.directions * network.hidden_sizes[-1]
        self.declare(self.inputs, "x", [*sequence, network.input_size])
        self.declare(self.outputs, "y", [*sequence, width])
        if self.lengths:
            integers = extras.load("onnx", "writing ONNX models").TensorProto.INT32
            self.inputs.append(helper.make_tensor_value_info("lengths", integers, ["B"]))
        below = self.transposed("x", "x_time_first") if self.batch_first else "x"
        hidden = self.states("hx", self.inputs) if self.state else [""] * len(network.hidden_sizes)
        cells = self.states("cx", self.inputs) if self.state and self.private else [""] * len(network.hidden_sizes)
        finals = {name: self.states(name, self.outputs) for name in (["hy", "cy"] if self.private else ["hy"])}
        for layer in range(len(network.hidden_sizes)):
            below = self.layer(layer, below, hidden[layer], cells[layer], [names[layer] for names in finals.values()])
        if self.batch_first:
            self.nodes.append(helper.make_node("Transpose", [below], ["y"], perm=[1, 0, 2]))
        else:
            self.nodes[-1].output[0] = "y"
        for name, parts in finals.items():
            if len(parts) > 1 and parts[0] == f"{name}_part0":
                self.nodes.append(helper.make_node("Concat", parts, [name], axis=0))
        return self.checked()

    def declare(self, where, name, shape):
        """An input or output of the model."""
        where.append(self.helper.make_tensor_value_info(name, self.type, shape))

    def constant(self, name, array):
        """An initializer; returns its name."""
        numpy_helper = extras.load("onnx.numpy_helper", "writing ONNX models")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def transposed(self, name, result):
        """Batch and time exchanged; returns the result's name."""
        self.nodes.append(self.helper.make_node("Transpose", [name], [result], perm=[1, 0, 2]))
        return result

    def states(self, name, where):
        """The name of each layer's (D, B, H); inputs or outputs of the model are declared, and inputs split."""
        sizes, D = self.network.hidden_sizes, self.network.directions
        if len(set(sizes)) > 1:
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
            self.nodes.append(self.helper.make_node("Split", [name, split], parts, axis=0))
        return parts

    def layer(self, layer, below, hidden, cell, finals):
        """Nodes of one layer; returns the name of its output (T, B, D*H)."""
        network, helper = self.network, self.helper
        operator = network.cell.split("_")[0].upper()
        inputs = [below, self.matrices("W", layer), self.matrices("R", layer), self.biases(layer)]
        inputs += ["lengths" if self.lengths else "", hidden, cell]
        while inputs[-1] == "":
            inputs.pop()
        options = {"activations": ["Relu"] * network.directions} if network.cell == "rnn_relu" else {}
        options |= {"linear_before_reset": int(network.cell == "gru")} if operator == "GRU" else {}
        direction = "bidirectional" if network.bidirectional else "forward"
        result = f"y_l{layer}_by_direction"
        self.nodes.append(
            helper.make_node(
                operator, inputs, [result, *finals], name=f"{network.cell}_l{layer}",
                hidden_size=network.hidden_sizes[layer], direction=direction, **options,
            )
        )  # fmt: skip
        return self.merged(layer, result)

    def merged(self, layer, result):
        """Y (T, D, B, H) of a layer as (T, B, D*H); returns its name."""
        name, width = f"y_l{layer}", self.network.directions * self.network.hidden_sizes[layer]
        if self.network.directions == 1:
            axes = self.constant(f"{name}_axis", np.array([1]))
            self.nodes.append(self.helper.make_node("Squeeze", [result, axes], [name]))
        else:
            turned = f"{result}_last"
            shape = self.constant(f"{name}_shape", np.array([0, 0, width]))
            self.nodes.append(self.helper.make_node("Transpose", [result], [turned], perm=[0, 2, 1, 3]))
            self.nodes.append(self.helper.make_node("Reshape", [turned, shape], [name]))
        return name

    def matrices(self, kind, layer):
        """The initializer (D, G*H, ...) of one kind of matrix."""
        parts = [self.network.part(kind, layer, direction) for direction in range(self.network.directions)]
        ordered = [gates.to_order(array, self.network.cell, gates.ONNX) for array in parts]
        return self.constant(f"{kind}_l{layer}", np.stack(ordered))

    def biases(self, layer):
        """The initializer (D, 2*G*H), or no name where there are no biases."""
        if self.network.bias == "none":
            return ""

        def ordered(kind, direction):
            return gates.to_order(self.network.part(kind, layer, direction), self.network.cell, gates.ONNX)

        rows = [np.concatenate([ordered("b_w", d), ordered("b_r", d)]) for d in range(self.network.directions)]
        return self.constant(f"B_l{layer}", np.stack(rows))

    def checked(self):
        """The model made of what has been collected."""
        onnx = extras.load("onnx", "writing ONNX models")
        graph = self.helper.make_graph(self.nodes, self.network.cell, self.inputs, self.outputs, self.constants)
        version = OPSET_BFLOAT16 if self.type == onnx.TensorProto.BFLOAT16 else OPSET
        opsets = [self.helper.make_opsetid("", version)]
        model = self.helper.make_model_gen_version(graph, opset_imports=opsets, producer_name="numbarnn")
        onnx.checker.check_model(model, full_check=True)
        return model
