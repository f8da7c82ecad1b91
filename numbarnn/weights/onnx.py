"""Read the LSTM, GRU and RNN nodes of an ONNX model as a network; `onnx_write` writes them.

A node's inputs are X, W (D, G*H, I), R (D, G*H, H), B (D, 2*G*H) = [b_w, b_r], sequence_lens, initial_h, initial_c and
P. Gates are in the order `gates.ONNX` (https://onnx.ai/onnx/operators/onnx__LSTM.html, and GRU, RNN).
"""

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from numbarnn.weights import gates
from numbarnn.weights.network import of_parts, package, type_name
from numbarnn.weights.onnx_cells import ACTIVATIONS, BUILT_IN, DEFAULTS, Kind
from numbarnn.weights.onnx_graph import MOVES, OnnxGraph, label
from numbarnn.weights.onnx_scan import KEY

OPERATORS = ("LSTM", "GRU", "RNN")
SIZES = 2, 3  # sample sizes of X's first two axes, if a model leaves them open
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


class OnnxNode(NamedTuple):
    """The names of a node's input X and of its results Y, Y_h, ...; `backward` if X and Y have the last step first."""

    x: str
    results: tuple[str, ...]
    backward: bool = False


class Layer(NamedTuple):
    """One node, or the two nodes that compute a layer's two directions.

    Attributes:
        direction: "forward", "reverse" or "bidirectional". cell: see `NetworkData`. layout: 1 if X is (B, T, I).
        arrays: one dict per direction, see `NetworkData.parts`. sizes: I, H.
        outer: the first two sizes of X; None where the model leaves one open.
    """

    name: str
    nodes: tuple[OnnxNode, ...]
    direction: str
    cell: str | Kind
    layout: int
    arrays: tuple[dict, ...]
    sizes: tuple[int, int]
    outer: tuple[int | None, int | None]

    def samples(self, values):
        """Yield (name -> sample array of X and of each result, list of each node's sample Y with steps in order).

        T and B are `SIZES` in the first pair, so that axes can be told apart, and the model's fixed sizes in the second
        pair. X is zeros; `values` is a function (shape, number of the node) -> array that makes the results."""
        D, units = len(self.arrays) // len(self.nodes), self.sizes[1]
        for first, second in (SIZES, [size or usual for size, usual in zip(self.outer, SIZES, strict=True)]):
            y, state = (first, D, second, units), (D, second, units)
            if self.layout:
                y, state = (first, second, D, units), (first, D, units)
            inputs, outputs = {}, [values(y, number) for number in range(len(self.nodes))]
            for number, (node, output) in enumerate(zip(self.nodes, outputs, strict=True)):
                output = np.flip(output, self.layout) if node.backward else output
                results = zip(node.results, (output, *[values(state, number)] * 2), strict=False)
                inputs |= {node.x: np.zeros((first, second, self.sizes[0]), "f")} | dict(results)
            yield inputs, outputs


def read(model, node=None, reverse_as_forward=False):
    """Return the `NetworkData` of a loaded model's nodes, and the option batch_first (`convert.from_onnx`)."""
    whole = OnnxGraph(model.graph, {one.domain: one.version for one in model.opset_import})
    graphs = whole.all()
    recurrent = [(one, graph) for graph in graphs for one in graph.nodes if one.op_type in OPERATORS]
    if not recurrent:
        kinds = sorted({one.op_type for graph in graphs for one in graph.nodes})
        raise ValueError(f"the model has no {', '.join(OPERATORS)} node, but {kinds}")
    chosen = _choose(recurrent, node)
    graph = chosen[0][1]
    if any(other is not graph for _, other in chosen):
        raise ValueError(
            f"the nodes lie in several graphs, so they form no stack. Choose with node= (name or number) from "
            f"{_listed(chosen)}"
        )
    layers = []
    for one, _ in chosen:
        layer = _layer(one, graph)
        if layers and (pair := _bidirectional(graph, layers[-1], layer)):
            layers[-1] = pair
        else:
            layers.append(layer)
    if back := [one.name for one in layers if one.direction == "reverse" and not reverse_as_forward]:
        raise ValueError(
            f"node {back[0]!r} has direction='reverse', but numbarnn's layers have a forward direction. Pass "
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
    xs = [graph.value(first.nodes[0].x, {name: x}).array for name in whole.inputs]
    batch_first = any(one is not None and np.array_equal(one, x.swapaxes(0, 1)) for one in xs)  # the model transposes x
    parts = {(layer, d): part for layer, one in enumerate(layers) for d, part in enumerate(one.arrays)}
    network = of_parts(parts, first.cell, "the state dict made of the nodes' weights")
    return network, {"batch_first": first.layout == 1 or batch_first}


def described(model):
    """Return (description, name -> array) of a model that `onnx_scan` wrote, None for other models."""
    text = {one.key: one.value for one in model.metadata_props}.get(KEY)
    if text is None:
        return None
    arrays = {one.name: package("onnx", "reading ONNX models").numpy_helper.to_array(one)
              for one in model.graph.initializer}  # fmt: skip
    return json.loads(text), arrays


def load(model):
    """Return the onnx.ModelProto of a path, bytes or a ModelProto, with inferred shapes."""
    onnx = package("onnx", "reading ONNX models")
    if isinstance(model, onnx.ModelProto):
        subject, read_it = "the onnx.ModelProto is", lambda: model
    elif isinstance(model, str | os.PathLike):
        subject, read_it = f"{model} is", lambda: onnx.load(model)
    elif isinstance(model, bytes | bytearray | memoryview):
        subject, read_it = "the bytes are", lambda: onnx.load_model_from_string(bytes(model))
    else:
        raise TypeError(f"model must be a path, bytes or an onnx.ModelProto, not {type_name(model)}")
    try:
        loaded = read_it()
    except (OSError, MemoryError):
        raise
    except Exception as error:  # protobuf, JSON and text each raise their own errors
        raise ValueError(f"{subject} no ONNX model: {' '.join(str(error).split())}") from error
    if not loaded.HasField("graph"):
        raise ValueError(f"{subject} no ONNX model: it has no graph (empty, or cut off)")
    try:
        return onnx.shape_inference.infer_shapes(loaded)
    except Exception:  # a model above 2 GB or with a mistake: treat undeclared sizes as open
        return loaded


# ---------------------------------------------------------------- which nodes
def _listed(recurrent):
    """Return the names of (node, graph) pairs, with the branch or body that a node is in."""
    return [f"{label(node)!r} in {graph.place}" if graph.place else label(node) for node, graph in recurrent]


def _choose(recurrent, wanted):
    """Return the (node, graph) pairs that `wanted` (a name, a number or a list of these) selects, in its order."""
    if wanted is None:
        return recurrent
    chosen = []
    for one in wanted if isinstance(wanted, Sequence) and not isinstance(wanted, str) else [wanted]:
        matches = [pair for number, pair in enumerate(recurrent) if one in (number, pair[0].name, *pair[0].output)]
        if len(matches) != 1 or one == "":
            subject = f"{len(matches)} LSTM, GRU and RNN nodes are" if matches else "no LSTM, GRU or RNN node is"
            cure = ". Pass a number, from 0" if matches else ""
            raise ValueError(f"{subject} called {one!r}; the model has {_listed(recurrent)}{cure}")
        chosen += matches
    return chosen


def _bidirectional(graph, below, above):
    """Return the bidirectional layer of two layers that read the same X and whose results are concatenated, or None."""
    if below.cell != above.cell or below.layout != above.layout or {len(below.arrays), len(above.arrays)} != {1}:
        return None
    (root, x, backward), (other_root, other_x, other_backward) = (_origin_of_x(graph, one) for one in (below, above))
    if root != other_root or x is None or not np.array_equal(x, other_x):
        return None
    by_direction = {}  # whether a layer goes from the last step to the first -> layer
    for one, reverses in ((below, backward), (above, other_backward)):
        node = one.nodes[0]._replace(backward=reverses)
        by_direction[(one.direction == "reverse") != reverses] = one._replace(nodes=(node,))
    if len(by_direction) == 1:
        return None
    below, above = by_direction[False], by_direction[True]
    layer = below._replace(
        direction="bidirectional", nodes=below.nodes + above.nodes, arrays=below.arrays + above.arrays
    )
    return layer if _is_concatenated(graph, layer) else None


def _origin_of_x(graph, layer):
    """Return the name of the array from which the model makes X, X for the array 0, 1, 2, ... with ascending steps
    (None if unknown), and whether the model reverses the steps."""
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
    """Return whether a Concat of the model has the results of a layer's two nodes, steps in order, as its halves."""
    # the two nodes' sample results differ by a constant, which no other pair of halves has
    samples = layer.samples(lambda shape, number: np.arange(prod(shape)).reshape(shape) - number * prod(shape))
    for inputs, _ in samples:
        for node in (one for one in graph.nodes if one.op_type == "Concat" and one.output):
            result = graph.value(node.output[0], inputs).array
            axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
            if result is not None and axis < result.ndim and result.shape[axis] % 2 == 0:
                first, second = np.split(result, 2, axis)
                is_whole = np.array_equal(np.sort(first, axis=None), range(first.size))
                if is_whole and (first - second == first.size).all():
                    return True
    return False


def _check_fed(graph, below, above):
    """Raise ValueError unless X of `above` is Y of `below`, rearranged to (T, B, D*H), or (B, T, D*H) for layout 1."""
    rng = np.random.default_rng(0)
    for inputs, outputs in below.samples(lambda shape, _: rng.standard_normal(shape)):
        y = np.concatenate(outputs, 2) if below.layout else np.concatenate(outputs, 1).swapaxes(1, 2)
        y = y.reshape(*y.shape[:2], -1)
        xs = [graph.value(node.x, inputs).array for node in above.nodes]
        expected = [np.flip(y, below.layout) if node.backward else y for node in above.nodes]
        if all(one is not None and np.array_equal(one, wanted) for one, wanted in zip(xs, expected, strict=True)):
            return
    x = above.nodes[0].x
    name, node = graph.origin(x)
    source = f"{node.op_type if node else 'outside'} {name!r}"
    source += " by other axes than a layer's" if node is not None and name in below.nodes[0].results else ""
    raise ValueError(
        f"the input {x!r} of node {above.name!r} must be the output of node {below.name!r}, as in a stack, but comes "
        f"from {source}. Convert the nodes one by one with node="
    )


# ---------------------------------------------------------------- one node
def _layer(node, graph):
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
    attributes.pop("output_sequence", None)  # of ONNX 1.0; only says whether Y is wanted
    weights = _weights(node, graph, where)
    kind = _kind(node.op_type, attributes, directions, where)
    kind = replace(kind, peepholes=bool(np.any(weights.get("P", 0))), bias="B" in weights)
    for name, value in attributes.items():
        raise ValueError(f"{where} has {name}={value!r}, which numbarnn lacks")
    cell = BUILT_IN.get(replace(kind, bias=True), kind)
    units, inputs = hidden or weights["R"].shape[-1], weights["W"].shape[-1]
    rows = len(kind.gates) * units
    shapes = {"W": (rows, inputs), "R": (rows, units), "B": (2 * rows,), "P": (3 * units,)}
    wrong = [f"{name} {array.shape}, not {(directions, *shapes[name])}" for name, array in weights.items()
             if array.shape != (directions, *shapes[name])]  # fmt: skip
    if wrong:
        raise ValueError(
            f"{where} with hidden_size {units}, {directions} direction(s) has wrong shapes: {'; '.join(wrong)}"
        )
    parts = [{name: array[direction] for name, array in weights.items()} for direction in range(directions)]
    names = (OnnxNode(node.input[0], tuple(node.output)),)
    arrays, outer = tuple(_part(kind, part) for part in parts), graph.sizes(node.input[0])[:2]
    return Layer(label(node), names, direction, cell, layout, arrays, (inputs, units), outer)


def _kind(operator, attributes, directions, where):
    """Return the `Kind` that the attributes define, and remove them from the dict."""
    default = DEFAULTS[operator]
    names = [name.decode(errors="replace") for name in attributes.pop("activations", ())] or list(default) * directions
    if len(names) != directions * len(default):
        raise ValueError(f"{where} has activations={names}, but needs {directions * len(default)} of them")
    constants = [list(attributes.pop(f"activation_{name}", ())) for name in ("alpha", "beta")]
    activations = [_activation(name, constants, where) for name in names]
    if left := [f"{name}={values}" for name, values in zip(("alpha", "beta"), constants, strict=True) if values]:
        raise ValueError(f"{where} has more constants than its activations {names} take: activation_{', '.join(left)}")
    forward, backward = activations[: len(default)], activations[len(default) :]
    if backward and backward != forward:
        raise ValueError(
            f"{where} has activations {forward} forward and {backward} backward, but a layer's directions have one "
            "cell. Make a node of each direction"
        )
    clip = attributes.pop("clip", None)
    if clip is not None and not clip > 0:
        raise ValueError(f"{where} has clip={clip}, but a bound must be positive")
    flag = {"LSTM": "input_forget", "GRU": "linear_before_reset"}.get(operator)
    flags = {flag: attributes.pop(flag) != 0} if flag in attributes else {}
    return Kind(operator, tuple(forward), clip, **flags)


def _activation(name, constants, where):
    """Return (name, its alpha and beta if it has them); pop these from the front of `constants` (alphas, betas)."""
    known = {one.lower(): one for one in ACTIVATIONS}.get(name.lower())
    if known is None:
        raise ValueError(f"{where} has the activation {name!r}, but ONNX has only {', '.join(ACTIVATIONS)}")
    activation = [known]
    for letter, values, default in zip(("alpha", "beta"), constants, ACTIVATIONS[known][1:], strict=False):
        if not values and default is None:
            raise ValueError(
                f"{where} has the activation {name} without its activation_{letter}, for which runtimes take "
                "different values. Write it into the node"
            )
        activation.append(float(values.pop(0)) if values else default)
    return tuple(activation)


def _weights(node, graph, where):
    """Return {"W", "R", "B", "P"} -> array, not copied; refuse constant states and lengths, warn of computed states."""
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
                f"{where} has the constant input {kind} ({names[kind]!r}), which a layer does not keep. Make it an "
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
    """Return copies of one direction's W, R, B and P (if present) by the names of `NetworkData.parts`."""
    arrays = {name: part[name] for name in "WR"}
    if "B" in part:
        arrays["b_w"], arrays["b_r"] = np.split(part["B"], 2)
    arrays = {name: gates.from_order(array, kind.like, gates.ONNX) for name, array in arrays.items()}
    return arrays | dict(zip(kind.per_unit, np.split(part["P"], 3) if kind.peepholes else (), strict=True))
