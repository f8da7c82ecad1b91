"""ONNX: LSTM, GRU and RNN nodes of a model as a network; the way back is `onnx_write`.

A node's inputs are X, W (D, G*H, I), R (D, G*H, H), B (D, 2*G*H) = [b_w, b_r], sequence_lens, initial_h, initial_c, P;
gates in the order `gates.ONNX` (https://onnx.ai/onnx/operators/onnx__LSTM.html, likewise GRU, RNN).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from numbarnn import cells
from numbarnn.weights import extras, gates
from numbarnn.weights.network import infer, named, type_name

OPERATORS = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"}
ACTIVATIONS = {
    "LSTM": {("Sigmoid", "Tanh", "Tanh"): "lstm"},
    "GRU": {("Sigmoid", "Tanh"): "gru"},
    "RNN": {("Tanh",): "rnn_tanh", ("Relu",): "rnn_relu"},
}
# Attribute -> what it may be without changing what a node computes, besides those that `_node` reads.
HARMLESS = {"input_forget": (0,), "activation_alpha": ([],), "activation_beta": ([],), "output_sequence": (0, 1)}
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
PASSING = ("Identity", "Squeeze", "Reshape", "Transpose", "Dropout")  # what may stand between two layers


@dataclass(frozen=True)
class Node:
    """What one node says.

    Attributes:
        cell: the cell's name.
        directions: D.
        layout: 0 (time first) or 1 (batch first).
        arrays: one dict {"W", "R", "b_w", "b_r"} per direction, in numbarnn's order.
    """

    cell: str
    directions: int
    layout: int
    arrays: tuple[dict, ...]


def read(model, node=None, reverse_as_forward=False):
    """The `Network` of a model's nodes, and the layer's option batch_first, from `layout`.

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
            f"{sorted(kinds)}; convert them one by one with node="
        )
    for below, above in pairwise(chosen):
        _check_fed(graph, below, above, nodes[0])
    parts = {(layer, d): part for layer, one in enumerate(nodes) for d, part in enumerate(one.arrays)}
    return infer(named(parts), nodes[0].cell, "the state dict made of the nodes' weights"), {
        "batch_first": nodes[0].layout == 1
    }


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
    helper = extras.load("onnx.helper", "reading ONNX models")
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
    cell = _cell(node.op_type, attributes, directions, where)
    for name, value in attributes.items():
        if value not in HARMLESS.get(name, ()):
            raise ValueError(f"{where} has {name}={value!r}, which numbarnn lacks")
    return Node(cell, directions, layout, _arrays(node, constants, cell, directions, hidden, where))


def _cell(operator, attributes, directions, where):
    """The cell's name, from the activations and the GRU's form; takes what it has read out of the attributes."""
    known = ACTIVATIONS[operator]
    default = next(iter(known)) * directions
    given = tuple(name.decode() for name in attributes.pop("activations", ())) or default
    cell = next((cell for names, cell in known.items() if names * directions == given), None)
    if cell is None:
        supported = " or ".join(str(list(names * directions)) for names in known)
        raise ValueError(f"{where} has activations={list(given)}, but numbarnn has only {supported}")
    if "clip" in attributes:
        raise ValueError(
            f"{where} has clip={attributes['clip']}, a bound of pre-activations, which numbarnn lacks (its cell_clip "
            "bounds c)"
        )
    if operator == "GRU" and attributes.pop("linear_before_reset", 0) == 0:
        return "gru_reset_before"
    return cell


def _arrays(node, constants, cell, directions, hidden, where):
    """Its weights: one dict {"W", "R", "b_w", "b_r"} per direction, in numbarnn's order; copies."""
    numpy_helper = extras.load("onnx.numpy_helper", "reading ONNX models")
    names = {kind: name for kind, name in zip(INPUTS, node.input, strict=False) if name}
    absent = [kind for kind in ("W", "R", "B", "P") if kind in names and names[kind] not in constants]
    if absent:
        raise ValueError(
            f"{where}: {', '.join(f'{kind} ({names[kind]!r})' for kind in absent)} must be constants (initializers) of "
            "the model, but are computed or passed in: fold constants first, or make them initializers"
        )
    given = {kind: numpy_helper.to_array(constants[name]) for kind, name in names.items() if name in constants}
    if np.any(given.get("P", 0)):
        raise ValueError(f"{where} has the input P ({names['P']!r}), peepholes, which numbarnn lacks")
    for kind, argument in (("sequence_lens", "lengths"), ("initial_h", "state"), ("initial_c", "state")):
        if (kind == "sequence_lens" and kind in given) or np.any(given.get(kind, 0)):
            raise ValueError(
                f"{where} has the constant input {kind} ({names[kind]!r}), which a layer does not keep: make it an "
                f"input of the model, and pass {argument}= to the layer's calls"
            )
    rows = cells.get(cell).num_gates * (hidden or given["R"].shape[-1])
    units = rows // cells.get(cell).num_gates
    inputs = given["W"].shape[-1]
    expected = {"W": (directions, rows, inputs), "R": (directions, rows, units), "B": (directions, 2 * rows)}
    wrong = [
        f"{k} {given[k].shape}, not {shape}" for k, shape in expected.items() if k in given and given[k].shape != shape
    ]
    if wrong:
        raise ValueError(
            f"{where} with hidden_size {units}, {directions} direction(s) has wrong shapes: {'; '.join(wrong)}"
        )
    parts = []
    for direction in range(directions):
        part = {kind: given[kind][direction] for kind in ("W", "R")}
        if "B" in given:
            part["b_w"], part["b_r"] = given["B"][direction, :rows], given["B"][direction, rows:]
        parts.append({kind: gates.from_order(array, cell, gates.ONNX) for kind, array in part.items()})
    return tuple(parts)
