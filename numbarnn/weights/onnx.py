"""ONNX: LSTM, GRU and RNN nodes of a model as a network; the way back is `onnx_write`.

A node's inputs are X, W (D, G*H, I), R (D, G*H, H), B (D, 2*G*H) = [b_w, b_r], sequence_lens, initial_h, initial_c, P;
gates in the order `gates.ONNX` (https://onnx.ai/onnx/operators/onnx__LSTM.html, likewise GRU, RNN).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from numbarnn.weights import extras, gates
from numbarnn.weights.network import infer, named, type_name, type_of
from numbarnn.weights.onnx_cells import ACTIVATIONS, DEFAULTS, GATES, Kind

OPERATORS = ("LSTM", "GRU", "RNN")
# What a node computes -> the built-in cell that computes it, with or without biases.
BUILT_IN = {
    Kind("LSTM", (("Sigmoid",), ("Tanh",), ("Tanh",))): "lstm",
    Kind("GRU", (("Sigmoid",), ("Tanh",)), linear_before_reset=True): "gru",
    Kind("GRU", (("Sigmoid",), ("Tanh",))): "gru_reset_before",
    Kind("RNN", (("Tanh",),)): "rnn_tanh",
    Kind("RNN", (("Relu",),)): "rnn_relu",
}
# Attribute -> what it may be without changing what a node computes, besides those that `_node` reads.
HARMLESS = {"output_sequence": (0, 1)}
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
PASSING = ("Identity", "Squeeze", "Reshape", "Transpose", "Dropout")  # what may stand between two layers


@dataclass(frozen=True)
class Node:
    """What one node says.

    Attributes:
        cell: the built-in cell's name, or a `Kind`.
        directions: D.
        layout: 0 (time first) or 1 (batch first).
        arrays: one dict per direction: {"W", "R", "b_w", "b_r"} in numbarnn's order, or of a `Kind` its parameters.
    """

    cell: str | Kind
    directions: int
    layout: int
    arrays: tuple[dict, ...]


@dataclass(frozen=True)
class Own:
    """Nodes that no built-in cell computes.

    Attributes:
        kind: what they compute.
        input_size, hidden_sizes, bidirectional: I, H of each layer, and whether D is 2.
        parameters: name -> array, by the names of a layer's `named`.
    """

    kind: Kind
    input_size: int
    hidden_sizes: tuple[int, ...]
    bidirectional: bool
    parameters: dict

    dtype = property(lambda self: type_of(self.parameters), doc="The dtype's name of all parameters.")


def read(model, node=None, reverse_as_forward=False):
    """The `Network` of a model's nodes, or what is their `Own`, and the option batch_first: how its x is laid out.

    Arguments and errors are those of `numbarnn.convert.from_onnx`.
    """
    graph = _load(model).graph
    recurrent = [one for one in graph.node if one.op_type in OPERATORS]
    if not recurrent:
        raise ValueError(f"the model has no {', '.join(OPERATORS)} node, but {sorted({n.op_type for n in graph.node})}")
    chosen = _choose(recurrent, node)
    constants = _constants(graph)
    nodes = [_node(one, constants, reverse_as_forward) for one in chosen]
    kinds = {(one.cell, one.directions, one.layout) for one in nodes}
    if len(kinds) > 1:
        raise ValueError(
            f"the nodes {[_label(one) for one in chosen]} are no stack, as cell, directions and layout differ: "
            f"{sorted(kinds, key=str)}; convert them one by one with node="
        )
    for below, above in pairwise(chosen):
        _check_fed(graph, below, above, nodes[0])
    parts = {(layer, d): part for layer, one in enumerate(nodes) for d, part in enumerate(one.arrays)}
    found = {"batch_first": nodes[0].layout == 1 or _turns_input(graph, chosen[0])}
    if isinstance(nodes[0].cell, Kind):
        return _own(nodes[0], parts), found
    return infer(named(parts), nodes[0].cell, "the state dict made of the nodes' weights"), found


def _own(node, parts):
    """The `Own` of nodes like this one.

    Args:
        parts: (layer, direction) -> parameters.
    """
    several, gate = len(parts) > 1, GATES[node.cell.operator][0]
    parameters = {
        f"l{layer}.{'reverse.' * direction}{name}" if several else name: array
        for (layer, direction), own in parts.items() for name, array in own.items()
    }  # fmt: skip
    inputs = parts[0, 0][f"W.{gate}"].shape[1]
    hidden = tuple(len(own[f"W.{gate}"]) for (_, direction), own in parts.items() if not direction)
    widths = (inputs, *(node.directions * size for size in hidden))
    for (layer, _), own in parts.items():
        if own[f"W.{gate}"].shape[1] != widths[layer]:
            raise ValueError(
                f"the nodes are no stack: node {layer} takes {own[f'W.{gate}'].shape[1]} numbers, but the one below it "
                f"gives {widths[layer]}; convert them one by one with node="
            )
    return Own(node.cell, inputs, hidden, node.directions == 2, parameters)


def _load(model):
    onnx = extras.load("onnx", "reading ONNX models")
    if isinstance(model, onnx.ModelProto):
        what, read_it = "the onnx.ModelProto is", lambda: model
    elif isinstance(model, str | os.PathLike):
        what, read_it = f"{model} is", lambda: onnx.load(model)
    elif isinstance(model, bytes | bytearray | memoryview):
        what, read_it = "the bytes are", lambda: onnx.load_model_from_string(bytes(model))
    else:
        raise TypeError(f"model must be a path, bytes or an onnx.ModelProto, not {type_name(model)}")
    try:
        found = read_it()
    except (OSError, MemoryError):
        raise
    except Exception as error:  # each of the forms that onnx reads (protobuf, JSON, text) has an error of its own
        raise ValueError(f"{what} no ONNX model: {' '.join(str(error).split())}") from error
    if not found.HasField("graph"):
        raise ValueError(f"{what} no ONNX model: without a graph (empty, or cut off)")
    return found


# ---------------------------------------------------------------- which nodes
def _label(node):
    return node.name or next(name for name in node.output if name)


def _choose(recurrent, wanted):
    """The nodes asked for, in the order asked for."""
    if wanted is None:
        return recurrent
    several = isinstance(wanted, Sequence) and not isinstance(wanted, str)
    return [_one(recurrent, one) for one in (wanted if several else [wanted])]


def _one(recurrent, wanted):
    for number, node in enumerate(recurrent):
        if wanted in (number, node.name, *node.output) and wanted != "":
            return node
    raise ValueError(f"no LSTM, GRU or RNN node is called {wanted!r}; they are {[_label(node) for node in recurrent]}")


def _turns_input(graph, node):
    """Whether X of a node of time first is an input of the model with axes of batch and time exchanged."""
    maker = next((one for one in graph.node if node.input[0] in one.output), None)
    if maker is None or maker.op_type != "Transpose" or maker.input[0] not in {one.name for one in graph.input}:
        return False
    return [1, 0, 2] in [list(a.ints) for a in maker.attribute if a.name == "perm"]


def _check_fed(graph, below, above, kind):
    """Raise ValueError unless Y (T, D, B, H) of `below`, as (T, B, D*H), is X of `above`; layout 1: Y (B, T, D, H)."""
    makers = {name: node for node in graph.node for name in node.output}
    name, turns = above.input[0], []
    while name != below.output[0]:
        maker = makers.get(name)
        if maker is None or maker.op_type not in PASSING:
            raise ValueError(
                f"the input {above.input[0]!r} of node {_label(above)!r} is not the output of node {_label(below)!r}, "
                f"as a stack of layers needs, but comes from {maker.op_type if maker else 'outside'} {name!r}: convert "
                "the nodes one by one with node="
            )
        turns += [list(a.ints) for a in maker.attribute if maker.op_type == "Transpose" and a.name == "perm"]
        name = maker.input[0]
    wanted = [[]] if kind.layout else [[[0, 2, 1, 3]], *([[]] if kind.directions == 1 else [])]
    if turns not in wanted:
        raise ValueError(
            f"between node {_label(below)!r} and node {_label(above)!r} the axes are transposed by {turns}, which is "
            "not how one layer feeds the next: convert the nodes one by one with node="
        )


# ---------------------------------------------------------------- one node
def _constants(graph):
    """Name -> tensor of everything that is known without running the model."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            tensors = [a.t for a in node.attribute if a.name == "value"]
            found |= dict(zip(node.output, tensors, strict=False))
        elif node.op_type == "Identity" and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def _node(node, constants, reverse_as_forward):
    """The node as a `Node`."""
    from onnx import helper

    where = f"node {_label(node)!r} ({node.op_type})"
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    direction = attributes.pop("direction", b"forward").decode()
    if direction == "reverse" and not reverse_as_forward:
        raise ValueError(
            f"{where} has direction='reverse', but numbarnn's layers have a forward direction: pass "
            "reverse_as_forward=True for a forward layer that takes x, and gives y, reversed in time"
        )
    directions = 2 if direction == "bidirectional" else 1
    layout = attributes.pop("layout", 0)
    hidden = attributes.pop("hidden_size", None)
    given = _given(node, constants, where)
    kind = _kind(node.op_type, attributes, directions, where)
    kind = replace(kind, peepholes=bool(np.any(given.get("P", 0))), bias="B" in given)
    for name, value in attributes.items():
        if value not in HARMLESS.get(name, ()):
            raise ValueError(f"{where} has {name}={value!r}, which numbarnn lacks")
    cell = BUILT_IN.get(replace(kind, bias=True), kind)
    _check_shapes(given, node.op_type, directions, hidden, where)
    parts = [{name: array[direction] for name, array in given.items()} for direction in range(directions)]
    return Node(cell, directions, layout, tuple(_part(cell, part) for part in parts))


def _kind(operator, attributes, directions, where):
    """The `Kind` without what inputs tell; takes what it has read out of the attributes."""
    default = DEFAULTS[operator]
    names = [name.decode() for name in attributes.pop("activations", ())] or list(default) * directions
    if len(names) != directions * len(default):
        raise ValueError(f"{where} has activations={names}, but needs {directions * len(default)} of them")
    constants = [list(attributes.pop(f"activation_{name}", ())) for name in ("alpha", "beta")]
    found = [_activation(name, constants, where) for name in names]
    if left := [f"{name}={values}" for name, values in zip(("alpha", "beta"), constants, strict=True) if values]:
        raise ValueError(f"{where} has more constants than its activations {names} take: activation_{', '.join(left)}")
    own, other = found[: len(default)], found[len(default) :]
    if other and other != own:
        raise ValueError(
            f"{where} has activations {own} forward and {other} backward, but a layer's directions have one cell: make "
            "a node of each direction"
        )
    clip = attributes.pop("clip", None)
    if clip is not None and not clip > 0:
        raise ValueError(f"{where} has clip={clip}, but a bound must be positive")
    flags = {name: attributes.pop(name) != 0 for name in _FLAGS[operator] if name in attributes}
    return Kind(operator, tuple(own), clip, **flags)


_FLAGS = {"LSTM": ("input_forget",), "GRU": ("linear_before_reset",), "RNN": ()}


def _activation(name, constants, where):
    """(name, alpha, beta), as far as it has them; takes them from the front of the lists of all alphas and betas."""
    known = {one.lower(): one for one in ACTIVATIONS}.get(name.lower())
    if known is None:
        raise ValueError(f"{where} has the activation {name!r}, but ONNX has only {', '.join(ACTIVATIONS)}")
    found = [known]
    for letter, values, default in zip(("alpha", "beta"), constants, ACTIVATIONS[known][1:], strict=False):
        if not values and default is None:
            raise ValueError(
                f"{where} has the activation {name} without its activation_{letter}, for which runtimes take "
                "different values: write it into the node"
            )
        found.append(float(values.pop(0)) if values else default)
    return tuple(found)


def _given(node, constants, where):
    """Name -> array of the node's weights; copies are made later."""
    from onnx import numpy_helper

    names = {kind: name for kind, name in zip(INPUTS, node.input, strict=False) if name}
    absent = [kind for kind in ("W", "R", "B", "P") if kind in names and names[kind] not in constants]
    if absent:
        raise ValueError(
            f"{where}: {', '.join(f'{kind} ({names[kind]!r})' for kind in absent)} must be constants (initializers) of "
            "the model, but are computed or passed in: fold constants first, or make them initializers"
        )
    given = {kind: numpy_helper.to_array(constants[name]) for kind, name in names.items() if name in constants}
    for kind, argument in (("sequence_lens", "lengths"), ("initial_h", "state"), ("initial_c", "state")):
        if (kind == "sequence_lens" and kind in given) or np.any(given.get(kind, 0)):
            raise ValueError(
                f"{where} has the constant input {kind} ({names[kind]!r}), which a layer does not keep: make it an "
                f"input of the model, and pass {argument}= to the layer's calls"
            )
    return {kind: given[kind] for kind in ("W", "R", "B", "P") if kind in given}


def _check_shapes(given, operator, directions, hidden, where):
    """Raise ValueError unless the weights have the shapes of a node with that hidden_size (None: what R tells)."""
    units = hidden or given["R"].shape[-1]
    rows = len(GATES[operator]) * units
    expected = {"W": (directions, rows, given["W"].shape[-1]), "R": (directions, rows, units)}
    expected |= {"B": (directions, 2 * rows), "P": (directions, 3 * units)}
    wrong = [
        f"{k} {given[k].shape}, not {shape}" for k, shape in expected.items() if k in given and given[k].shape != shape
    ]
    if wrong:
        raise ValueError(
            f"{where} with hidden_size {units}, {directions} direction(s) has wrong shapes: {'; '.join(wrong)}"
        )


def _part(cell, part):
    """One direction's weights as a `Node` has them; copies.

    Args:
        part: {"W", "R", "B", "P"}, as far as they are given.
    """
    if isinstance(cell, Kind):
        return cell.parameters(**part if cell.peepholes else {name: part[name] for name in part if name != "P"})
    found = {kind: part[kind] for kind in ("W", "R")}
    if "B" in part:
        found["b_w"], found["b_r"] = np.split(part["B"], 2)
    return {kind: gates.from_order(array, cell, gates.ONNX) for kind, array in found.items()}
