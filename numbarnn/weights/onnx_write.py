"""Write a network as an ONNX model with one LSTM, GRU or RNN node per layer, for any T and B."""

import numpy as np

from numbarnn.weights import gates
from numbarnn.weights.network import completed, package, refuse
from numbarnn.weights.onnx_cells import BUILT_IN, Kind

OPSET = 14  # the first with the attribute `layout`, in runtimes since 2021
OPSET_BFLOAT16 = 22
_KINDS = {cell: kind for kind, cell in BUILT_IN.items()}


def _arrays(network, layer, direction):
    """Return one direction's W, R, B and P (if present) with gates in ONNX' order."""
    parts = network.parts(layer, direction)
    peepholes = [parts.pop(name) for name in getattr(network.cell, "per_unit", ())]
    W, R, *biases = (gates.to_order(array, network.like, gates.ONNX) for array in parts.values())
    arrays = {"W": W, "R": R} | ({"B": np.concatenate(biases)} if biases else {})
    return arrays | ({"P": np.concatenate(peepholes)} if peepholes else {})


def write(network, batch_first=False, state=False, lengths=False, apart=False):
    """Return an onnx.ModelProto of a `NetworkData`, see `numbarnn.convert.to_onnx`.

    apart: each layer has separate states, such as hx_l0 (D, B, H), even if sizes are equal."""
    refuse(network, "ONNX")
    network = completed(network)
    kind = network.cell if isinstance(network.cell, Kind) else _KINDS[network.cell]
    onnx = package("onnx", "writing ONNX models")
    helper, H, D = onnx.helper, network.hidden_sizes, network.directions
    number = helper.np_dtype_to_tensor_dtype(np.dtype(network.parts(0)["R"].dtype))
    nodes, constants, inputs, outputs = [], [], [], []
    apart = apart or len(set(H)) > 1

    def node(operator, reads, *results, **attributes):
        nodes.append(helper.make_node(operator, reads, results, **attributes))
        return results[0]

    def constant(name, array):
        constants.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def declare(where, name, shape, kind=number):
        where.append(helper.make_tensor_value_info(name, kind, shape))

    def states(name, where):
        """Declare a state as input or output (`where`) of the model; return the name of each layer's (D, B, H)."""
        if apart:
            for layer, hidden in enumerate(H):
                declare(where, f"{name}_l{layer}", [D, "B", hidden])
            return [f"{name}_l{layer}" for layer in range(len(H))]
        declare(where, name, [len(H) * D, "B", H[0]])
        parts = [f"{name}_part{layer}" for layer in range(len(H))] if len(H) > 1 else [name]
        if where is inputs and len(H) > 1:
            node("Split", [name, constant(f"{name}_sizes", np.full(len(H), D, np.int64))], *parts, axis=0)
        return parts

    def weights(layer):
        """Return {"W", "R", "B", "P"} -> name of the initializer (D, ...), "" if the layer has none."""
        arrays = [_arrays(network, layer, direction) for direction in range(D)]
        stacked = {name: np.stack([of_direction[name] for of_direction in arrays]) for name in arrays[0]}
        return {name: constant(f"{name}_l{layer}", stacked[name]) if name in stacked else "" for name in "WRBP"}

    sequence = ["B", "T"] if batch_first else ["T", "B"]
    declare(inputs, "x", [*sequence, network.input_size])
    declare(outputs, "y", [*sequence, D * H[-1]])
    if lengths:
        declare(inputs, "lengths", ["B"], onnx.TensorProto.INT32)
    below = node("Transpose", ["x"], "x_time_first", perm=[1, 0, 2]) if batch_first else "x"
    letters = "hc" if kind.operator == "LSTM" else "h"
    initial = [states(f"{letter}x", inputs) if state else [""] * len(H) for letter in letters]
    finals = {f"{letter}y": states(f"{letter}y", outputs) for letter in letters}
    for layer, hidden in enumerate(H):
        *matrices, peepholes = weights(layer).values()
        reads = [below, *matrices, "lengths" * lengths, *(one[layer] for one in initial), peepholes]
        while not reads[-1]:
            reads.pop()
        options = kind.attributes(D) | {"direction": "bidirectional" if D == 2 else "forward", "hidden_size": hidden}
        result, name = f"y_l{layer}_by_direction", f"y_l{layer}"
        results = result, *(names[layer] for names in finals.values())
        node(kind.operator, reads, *results, name=f"{network.name}_l{layer}", **options)
        if D == 1:
            below = node("Squeeze", [result, constant(f"{name}_axis", np.array([1]))], name)
        else:  # (T, D, B, H) to (T, B, D, H)
            turned = node("Transpose", [result], f"{result}_last", perm=[0, 2, 1, 3])
            below = node("Reshape", [turned, constant(f"{name}_shape", np.array([0, 0, D * hidden]))], name)
    if batch_first:
        node("Transpose", [below], "y", perm=[1, 0, 2])
    else:
        nodes[-1].output[0] = "y"
    for name, parts in finals.items():
        if parts[0] == f"{name}_part0":
            node("Concat", parts, name, axis=0)
    graph = helper.make_graph(nodes, network.name, inputs, outputs, constants)
    return checked_model(graph, OPSET_BFLOAT16 if number == onnx.TensorProto.BFLOAT16 else OPSET)


def checked_model(graph, opset=OPSET):
    """Return the onnx.ModelProto of a graph, checked by onnx."""
    from onnx import checker, helper

    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model_gen_version(graph, opset_imports=opsets, producer_name="numbarnn")
    checker.check_model(model, full_check=True)
    return model
