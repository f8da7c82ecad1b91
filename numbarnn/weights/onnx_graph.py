"""Compute the values of an ONNX graph that do not depend on the model's inputs, by ONNX' reference implementation."""

from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import NamedTuple

import numpy as np

# operators that move numbers without changing them: they may stand between two layers
MOVES = ("Concat", "Dropout", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
         "Unsqueeze")  # fmt: skip
RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
GROW = ("ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile", "Upsample")
LARGEST = 2**24  # most elements that GROW may make, as a broken file may ask for any number
UNKNOWN_RANK = (None,) * 8  # more sizes than any caller reads


class OnnxValue(NamedTuple):
    """The numbers of a value (None if unknown), whether they depend on numbers of the model's inputs (`runs`), and
    whether they are `exact`, that is, depend on no size that the model leaves open (it counts as 1)."""

    array: np.ndarray | None = None
    runs: bool = True
    exact: bool = True


class OnnxGraph:
    """A model's graph (onnx.GraphProto), or a branch or body in it, which sees the values of `outer`.

    opsets: domain -> version. place: description of a branch or body, for messages. ValueError if there is a cycle.
    """

    def __init__(self, proto, opsets, outer=None, place=""):
        self.nodes, self.place, self._opsets, self._known = proto.node, place, opsets, {}
        self._tensors = (outer._tensors if outer else {}) | {tensor.name: tensor for tensor in proto.initializer}
        self.inputs = [one.name for one in proto.input if one.name not in self._tensors]
        self._makers = (outer._makers if outer else {}) | {name: node for node in proto.node for name in node.output}
        infos = [*proto.input, *proto.value_info, *proto.output]
        self._sizes = (outer._sizes if outer else {}) | {info.name: _sizes(info.type.tensor_type) for info in infos}
        try:
            TopologicalSorter({name: _reads(node) for node in self.nodes for name in node.output}).prepare()
        except CycleError as error:
            raise ValueError(f"the model's graph has a cycle: {' <- '.join(error.args[1])}") from None
        self.inner = [
            OnnxGraph(part.g, opsets, self, f"{part.name} of {node.op_type} {label(node)!r}")
            for node in self.nodes for part in node.attribute if part.HasField("g")
        ]  # fmt: skip

    def all(self):
        """Return this graph and all branches and bodies in it."""
        return [self, *(one for part in self.inner for one in part.all())]

    def origin(self, name, moves=MOVES):
        """Follow a value back through the operators `moves`; return (name where they start, its node or None)."""
        while (node := self._makers.get(name)) is not None and node.op_type in moves and node.input:
            name = node.input[0]
        return name, node

    def sizes(self, name):
        """Return a value's sizes, with None for each size that the model leaves open."""
        return self._sizes.get(name, UNKNOWN_RANK)

    def value(self, name, samples=None):
        """Compute the `OnnxValue` of a name; ValueError if it is external data and the model's path is unknown.

        samples: name -> array that replaces a value of the model; MOVES are applied to it."""
        known = self._known
        if samples is not None:
            known = {one: value for one, value in known.items() if value.exact and not value.runs}
            known |= {one: OnnxValue(array) for one, array in samples.items()}
        todo = [name]
        while todo:
            last, node = todo[-1], self._makers.get(todo[-1])
            if last in known:
                todo.pop()
            elif last in self._tensors:
                known[last] = OnnxValue(_array(self._tensors[last]), runs=False)
            elif node is None:
                known[last] = OnnxValue()
            elif missing := [one for one in _reads(node) if one not in known]:
                todo += missing
            else:
                known |= self._results(node, known)
        return known[name]

    def _results(self, node, known):
        reads = [known[one] for one in _reads(node)]
        if node.op_type == "Shape" and reads and reads[0].array is None:
            sizes, bounds = self.sizes(node.input[0]), {one.name: one.i for one in node.attribute}
            array = np.array([size or 1 for size in sizes], np.int64)[bounds.get("start", 0) : bounds.get("end")]
            return {node.output[0]: OnnxValue(array, runs=False, exact=None not in sizes)}
        runs, exact = any(one.runs for one in reads) and node.op_type != "Shape", all(one.exact for one in reads)
        arrays = [None] * len(node.output)
        if all(one.array is not None for one in reads) and (node.op_type in MOVES or not runs):
            arrays = _computed(node, known, self._opsets) or arrays
        return {name: OnnxValue(array, runs, exact) for name, array in zip(node.output, arrays, strict=False)}


def _computed(node, known, opsets):
    """Return a node's results, or None if they are random or ONNX' reference cannot compute them."""
    from onnx.reference import ReferenceEvaluator

    if node.op_type in RANDOM or any(one.HasField("g") for one in node.attribute):
        return None
    for one in node.attribute:
        if one.HasField("t"):
            _array(one.t)
    values = {one: known[one].array for one in _reads(node)}
    sizes = [max(1, abs(int(size))) for one in values.values() if one.dtype.kind in "iu" for size in one.flat[:64]]
    if node.op_type in GROW and prod(sizes) > LARGEST:
        return None
    try:
        return ReferenceEvaluator(node, opsets=opsets).run(None, values)
    except MemoryError:
        raise
    except Exception:  # operators raise errors of many types
        return None


def _reads(node):
    """Return the names of the values that a node, with its branches and bodies, reads."""
    names = dict.fromkeys(filter(None, node.input))
    for inside in (part.g for part in node.attribute if part.HasField("g")):
        inner = {one.name for one in (*inside.input, *inside.initializer)}
        inner |= {name for one in inside.node for name in one.output}
        read = [name for one in inside.node for name in _reads(one)] + [one.name for one in inside.output]
        names |= dict.fromkeys(name for name in read if name not in inner)
    return list(names)


def _sizes(kind):
    return tuple(one.dim_value or None for one in kind.shape.dim) if kind.HasField("shape") else UNKNOWN_RANK


def _array(tensor):
    from onnx import TensorProto, numpy_helper

    if tensor.data_location == TensorProto.EXTERNAL:  # onnx would look in the current folder
        raise ValueError(f"the numbers of {tensor.name!r} are in a file next to the model. Pass the model's path")
    try:
        return numpy_helper.to_array(tensor)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the tensor {tensor.name!r} of the model is broken: {error!r}") from error


def label(node):
    """Return a node's name, or the name of its first result."""
    return node.name or next(filter(None, node.output), "")
