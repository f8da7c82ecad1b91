"""ONNX: LSTM, GRU and RNN nodes of a model as a network; the way back is `onnx_write`.

A node's inputs are X, W (D, G*H, I), R (D, G*H, H), B (D, 2*G*H) = [b_w, b_r], sequence_lens, initial_h, initial_c, P;
gates in the order `gates.ONNX` (https://onnx.ai/onnx/operators/onnx__LSTM.html, likewise GRU, RNN).
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from numbarnn.weights import gates
from numbarnn.weights.network import infer, named, package, type_name
from numbarnn.weights.onnx_cells import ACTIVATIONS, BUILT_IN, DEFAULTS, Kind
from numbarnn.weights.onnx_graph import MOVES, Graph, label

OPERATORS = ("LSTM", "GRU", "RNN")
# Attribute -> what it may be without changing what a node computes, besides those that `_layer` reads.
HARMLESS = {"output_sequence": (0, 1)}
SIZES = 2, 3  # of steps and sequences, or sequences and steps, where a model leaves them open
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


class Node(NamedTuple):
    """Names around one node: its X, and its Y, Y_h, ...; backward: X and Y have the last step first."""

    x: str
    results: tuple[str, ...]
    backward: bool = False


class Layer(NamedTuple):
    """What one node says, or two that are the directions of one layer.

    Attributes:
        name: what the node is called. nodes: the `Node`s. direction: "forward", "reverse" or "bidirectional".
        cell: as of a `Network`. layout: 0 (time first) or 1 (batch first).
        arrays: one dict per direction, as `Network.parts`.
        sizes: I, H. outer: the first two sizes of X, None where the model leaves them open.
    """

    name: str
    nodes: tuple[Node, ...]
    direction: str
    cell: str | Kind
    layout: int
    arrays: tuple[dict, ...]
    sizes: tuple[int, int]
    outer: tuple[int | None, int | None]

    def standing_for(self, values):
        """Yield, with sizes of T and B that tell them apart and with those that the model has fixed, (name -> array for
        X, of zeros, and all results, [node] -> its Y with steps in order). values: (shape, node's number) -> array."""
        D, units = len(self.arrays) // len(self.nodes), self.sizes[1]
        for first, second in (SIZES, [size or usual for size, usual in zip(self.outer, SIZES, strict=True)]):
            y, state = (first, D, second, units), (D, second, units)
            if self.layout:
                y, state = (first, second, D, units), (first, D, units)
            given, outputs = {}, [values(y, number) for number in range(len(self.nodes))]
            for number, (node, output) in enumerate(zip(self.nodes, outputs, strict=True)):
                output = np.flip(output, self.layout) if node.backward else output
                results = zip(node.results, (output, *[values(state, number)] * 2), strict=False)
                given |= {node.x: np.zeros((first, second, self.sizes[0]), "f")} | dict(results)
            yield given, outputs


def read(model, node=None, reverse_as_forward=False):
    """The `Network` of a model's nodes, and the option batch_first: see `numbarnn.convert.from_onnx`."""
    model = _load(model)
    whole = Graph(model.graph, {one.domain: one.version for one in model.opset_import})
    graphs = whole.all()
    recurrent = [(one, graph) for graph in graphs for one in graph.nodes if one.op_type in OPERATORS]
    if not recurrent:
        kinds = sorted({one.op_type for graph in graphs for one in graph.nodes})
        raise ValueError(f"the model has no {', '.join(OPERATORS)} node, but {kinds}")
    chosen = _choose(recurrent, node)
    graph = chosen[0][1]
    if any(other is not graph for _, other in chosen):
        raise ValueError(
            f"the nodes lie in several graphs, so they form no stack: choose with node= (name or number) from "
            f"{_listed(chosen)}"
        )
    layers = []
    for one in (_layer(node, graph) for node, _ in chosen):
        pair = _as_one(graph, layers[-1], one) if layers else None
        layers[len(layers) - (pair is not None) :] = [pair or one]
    if back := [one.name for one in layers if one.direction == "reverse" and not reverse_as_forward]:
        raise ValueError(
            f"node {back[0]!r} has direction='reverse', but numbarnn's layers have a forward direction: pass "
            "reverse_as_forward=True, and reverse x and y in time yourself"
        )
    kinds = {(one.cell, len(one.arrays), one.layout) for one in layers}
    if len(kinds) > 1:
        raise ValueError(
            f"the nodes {[one.name for one in layers]} form no stack: cell, directions or layout differ, "
            f"{sorted(kinds, key=str)}. Convert them one by one with node="
        )
    for below, above in pairwise(layers):
        _check_fed(graph, below, above)
    first = layers[0]
    x = np.arange(6.0 * first.sizes[0]).reshape(2, 3, -1)
    turned = [graph.value(first.nodes[0].x, {name: x}).array for name in whole.inputs]  # X, if time came second
    batch_first = any(one is not None and np.array_equal(one, x.swapaxes(0, 1)) for one in turned)
    parts = {(layer, d): part for layer, one in enumerate(layers) for d, part in enumerate(one.arrays)}
    network = infer(named(parts), first.cell, "the state dict made of the nodes' weights")
    return network, {"batch_first": first.layout == 1 or batch_first}


def _load(model):
    onnx = package("onnx", "reading ONNX models")
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
        raise ValueError(f"{what} no ONNX model: it has no graph (empty, or cut off)")
    try:
        return onnx.shape_inference.infer_shapes(found)
    except Exception:  # too large for it, or with a mistake in it: sizes that are not declared count as open
        return found


# ---------------------------------------------------------------- which nodes
def _listed(recurrent):
    """What (node, graph) pairs are called, and in which branch or body they lie."""
    return [f"{label(node)!r} in {graph.place}" if graph.place else label(node) for node, graph in recurrent]


def _choose(recurrent, wanted):
    """Return the (node, graph) pairs asked for, in the order asked for."""
    if wanted is None:
        return recurrent
    chosen = []
    for one in wanted if isinstance(wanted, Sequence) and not isinstance(wanted, str) else [wanted]:
        found = [pair for number, pair in enumerate(recurrent) if one in (number, pair[0].name, *pair[0].output)]
        if len(found) != 1 or one == "":
            what = f"{len(found)} LSTM, GRU and RNN nodes are" if found else "no LSTM, GRU or RNN node is"
            cure = ": pass a number, from 0" if found else ""
            raise ValueError(f"{what} called {one!r}; they are {_listed(recurrent)}{cure}")
        chosen += found
    return chosen


def _as_one(graph, below, above):
    """The bidirectional layer that two layers are; None of others."""
    if below.cell != above.cell or below.layout != above.layout or {len(below.arrays), len(above.arrays)} != {1}:
        return None
    (root, x, backward), (other, other_x, also) = (_followed(graph, one) for one in (below, above))
    if root != other or x is None or not np.array_equal(x, other_x):
        return None
    by_direction = {}  # whether it goes from the last step to the first -> layer
    for one, turned in ((below, backward), (above, also)):
        by_direction[(one.direction == "reverse") != turned] = one._replace(
            nodes=(one.nodes[0]._replace(backward=turned),)
        )
    if len(by_direction) == 1:
        return None
    below, above = by_direction[False], by_direction[True]
    made = below._replace(
        direction="bidirectional", nodes=below.nodes + above.nodes, arrays=below.arrays + above.arrays
    )
    return made if _is_concatenated(graph, made) else None


def _followed(graph, layer):
    """(Name of what X is made of by moving its numbers, X of it with steps in order, whether X has them in reverse)."""
    root, _ = graph.origin(layer.nodes[0].x, [one for one in MOVES if one != "Concat"])
    usual = *SIZES, layer.sizes[0]
    sizes = graph.sizes(root)
    sizes = [size or usual[place] for place, size in enumerate(sizes[:-1])] + [usual[-1]] if len(sizes) < 4 else usual
    x = graph.value(layer.nodes[0].x, {root: np.arange(prod(sizes)).reshape(sizes)}).array
    if x is None or x.ndim != 3 or not x.size:
        return root, None, False
    backward = x.take(0, layer.layout).sum() > x.take(-1, layer.layout).sum()
    return root, np.flip(x, layer.layout) if backward else x, backward


def _is_concatenated(graph, layer):
    """Whether results of a layer's two nodes, with steps in order, are the two halves of something."""
    trials = layer.standing_for(lambda shape, number: np.arange(prod(shape)).reshape(shape) - number * prod(shape))
    for given, _ in trials:
        for node in (one for one in graph.nodes if one.op_type == "Concat" and one.output):
            found = graph.value(node.output[0], given).array
            axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
            if found is not None and axis < found.ndim and found.shape[axis] % 2 == 0:
                first, second = np.split(found, 2, axis)
                is_whole = np.array_equal(np.sort(first, axis=None), range(first.size))
                if is_whole and (first - second == first.size).all():
                    return True
    return False


def _check_fed(graph, below, above):
    """Raise ValueError unless Y (T, D, B, H) of `below`, as (T, B, D*H), is X of `above`; layout 1: Y (B, T, D, H)."""
    rng = np.random.default_rng(0)
    for given, outputs in below.standing_for(lambda shape, _: rng.standard_normal(shape)):
        y = np.concatenate(outputs, 2) if below.layout else np.concatenate(outputs, 1).swapaxes(1, 2)
        y = y.reshape(*y.shape[:2], -1)
        found = [graph.value(node.x, given).array for node in above.nodes]
        expected = [np.flip(y, below.layout) if node.backward else y for node in above.nodes]
        if all(one is not None and np.array_equal(one, wanted) for one, wanted in zip(found, expected, strict=True)):
            return
    x = above.nodes[0].x
    name, node = graph.origin(x)
    came = f"{node.op_type if node else 'outside'} {name!r}"
    came += " by other axes than a layer's" if node is not None and name in below.nodes[0].results else ""
    raise ValueError(
        f"the input {x!r} of node {above.name!r} must be the output of node {below.name!r}, as in a stack, but comes "
        f"from {came}: convert the nodes one by one with node="
    )


# ---------------------------------------------------------------- one node
def _layer(node, graph):
    """The node as a `Layer`."""
    from onnx import helper

    where = f"node {label(node)!r} ({node.op_type})"
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    direction = attributes.pop("direction", b"forward")
    if direction not in (b"forward", b"reverse", b"bidirectional"):
        raise ValueError(f"{where} has direction={direction!r}, but must have 'forward', 'reverse' or 'bidirectional'")
    direction = direction.decode()
    directions = 2 if direction == "bidirectional" else 1
    layout = attributes.pop("layout", 0)
    hidden = attributes.pop("hidden_size", None)
    given = _given(node, graph, where)
    kind = _kind(node.op_type, attributes, directions, where)
    kind = replace(kind, peepholes=bool(np.any(given.get("P", 0))), bias="B" in given)
    for name, value in attributes.items():
        if value not in HARMLESS.get(name, ()):
            raise ValueError(f"{where} has {name}={value!r}, which numbarnn lacks")
    cell = BUILT_IN.get(replace(kind, bias=True), kind)
    units, inputs = hidden or given["R"].shape[-1], given["W"].shape[-1]
    rows = len(kind.gates) * units
    shapes = {"W": (rows, inputs), "R": (rows, units), "B": (2 * rows,), "P": (3 * units,)}
    wrong = [f"{name} {array.shape}, not {(directions, *shapes[name])}" for name, array in given.items()
             if array.shape != (directions, *shapes[name])]  # fmt: skip
    if wrong:
        raise ValueError(
            f"{where} with hidden_size {units}, {directions} direction(s) has wrong shapes: {'; '.join(wrong)}"
        )
    parts = [{name: array[direction] for name, array in given.items()} for direction in range(directions)]
    names = (Node(node.input[0], tuple(node.output)),)
    arrays, outer = tuple(_part(kind, part) for part in parts), graph.sizes(node.input[0])[:2]
    return Layer(label(node), names, direction, cell, layout, arrays, (inputs, units), outer)


def _kind(operator, attributes, directions, where):
    """The `Kind` without what inputs tell; takes what it has read out of the attributes."""
    default = DEFAULTS[operator]
    names = [name.decode(errors="replace") for name in attributes.pop("activations", ())] or list(default) * directions
    if len(names) != directions * len(default):
        raise ValueError(f"{where} has activations={names}, but needs {directions * len(default)} of them")
    constants = [list(attributes.pop(f"activation_{name}", ())) for name in ("alpha", "beta")]
    found = [_activation(name, constants, where) for name in names]
    if left := [f"{name}={values}" for name, values in zip(("alpha", "beta"), constants, strict=True) if values]:
        raise ValueError(f"{where} has more constants than its activations {names} take: activation_{', '.join(left)}")
    forward, backward = found[: len(default)], found[len(default) :]
    if backward and backward != forward:
        raise ValueError(
            f"{where} has activations {forward} forward and {backward} backward, but a layer's directions have one "
            "cell: make a node of each direction"
        )
    clip = attributes.pop("clip", None)
    if clip is not None and not clip > 0:
        raise ValueError(f"{where} has clip={clip}, but a bound must be positive")
    own = {"LSTM": "input_forget", "GRU": "linear_before_reset"}.get(operator)
    flags = {own: attributes.pop(own) != 0} if own in attributes else {}
    return Kind(operator, tuple(forward), clip, **flags)


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


def _given(node, graph, where):
    """Name -> array of the node's weights; copies are made later."""
    names = {kind: name for kind, name in zip(INPUTS, node.input, strict=False) if name}
    if lacking := [kind for kind in ("X", "W", "R") if kind not in names]:
        raise ValueError(f"{where} lacks the input {', '.join(lacking)}")
    values = {kind: graph.value(name) for kind, name in names.items() if kind != "X"}
    weights = {kind: values[kind].array for kind in ("W", "R", "B", "P") if kind in values}
    if absent := [kind for kind, array in weights.items() if array is None or not values[kind].exact]:
        raise ValueError(
            f"{where}: {', '.join(f'{kind} ({names[kind]!r})' for kind in absent)} must be constants or "
            "computed from constants, but depend on the model's inputs or cannot be computed without running it"
        )
    for kind, argument in (("sequence_lens", "lengths"), ("initial_h", "state"), ("initial_c", "state")):
        array, runs, exact = values.get(kind, (0, True, True))
        kept = exact and array is not None if argument == "lengths" else array is None or np.any(array)
        if kept and not runs:
            raise ValueError(
                f"{where} has the constant input {kind} ({names[kind]!r}), which a layer does not keep: make it an "
                f"input of the model, and pass {argument}= to the layer's calls"
            )
        if runs and argument == "state" and kind in names and graph.origin(names[kind])[1] is not None:
            warnings.warn(
                f"{where}: the model computes {kind} ({names[kind]!r}) from its inputs, but the layer does not: "
                "compute it first, and pass state= to the layer's calls",
                stacklevel=4,
            )
    return weights


def _part(kind, part):
    """One direction's {"W", "R", "B", "P"}, as far as they are given, as a `Network` has them; copies."""
    found = {name: part[name] for name in "WR"}
    if "B" in part:
        found["b_w"], found["b_r"] = np.split(part["B"], 2)
    found = {name: gates.from_order(array, kind.like, gates.ONNX) for name, array in found.items()}
    return found | dict(zip(kind.per_unit, np.split(part["P"], 3) if kind.peepholes else (), strict=True))
