"""Write a layer of any cell as an ONNX model: one `Scan` per layer and direction, whose body is the cell's equations.

One product before the Scan computes W x of all steps; the body computes the rest of a step (`weights.unfused`).
Parameters are initializers with the names of the layer's state dict. Nodes derive the cell's matrices from
them, which runtimes do once, when they load the model.
"""

import json
import operator

import numpy as np

from numbarnn.cells.scalar import SQRT_HALF
from numbarnn.cells.tracing.graph import add_operators
from numbarnn.weights.network import package
from numbarnn.weights.onnx_write import checked_model
from numbarnn.weights.unfused import UnfusedLayer

KEY = "numbarnn"  # in the model's metadata: the description of the layer
_NAMES = {
    "absolute": "Abs", "add": "Add", "cos": "Cos", "divide": "Div", "eq": "Equal", "erf": "Erf", "exp": "Exp",
    "floor": "Floor", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "log": "Log", "lt": "Less",
    "maximum": "Max", "minimum": "Min", "mul": "Mul", "neg": "Neg", "power": "Pow", "product": "MatMul", "relu": "Relu",
    "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin", "softplus": "Softplus", "softsign": "Softsign", "sqrt": "Sqrt",
    "sub": "Sub", "tanh": "Tanh", "where": "Where", "clip": "Clip",
}  # fmt: skip


_METHODS = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "divide", "matmul": "product"}
_FUNCTIONS = {op: getattr(operator, method) for method, op in _METHODS.items()}


class GraphValue:
    """A named value of a `GraphWriter`, whose operators add nodes. `array` is None if it depends on inputs."""

    __array_ufunc__ = None  # NumPy's numbers call __radd__ etc.

    def __init__(self, graph, name, array=None):
        self.graph, self.name, self.array = graph, name, array

    shape = property(lambda self: self.array.shape)

    @property
    def T(self):
        return self.graph.node("Transpose", self, array=None if self.array is None else self.array.T)

    def _operation(self, op, left, right):
        return self.graph.operation(op, left, right, function=_FUNCTIONS[op])

    def __neg__(self):
        return self.graph.node("Neg", self, array=None if self.array is None else -self.array)

    def __getitem__(self, key):
        ends = [[one.start or 0 for one in key], [one.stop for one in key], [0, 1]]
        return self.graph.node("Slice", self, *map(self.graph.whole_numbers, ends), array=self.array[key])


add_operators(GraphValue, _METHODS)


class GraphWriter:
    """Collect the nodes of the model's graph, or of a Scan's body (`outer` is then the model's graph).

    It is also a library for `numbarnn.weights.unfused`.
    """

    def __init__(self, dtype, outer=None):
        self.onnx, self.dtype, self.outer = package("onnx", "writing ONNX models"), np.dtype(dtype), outer
        self.number = self.onnx.helper.np_dtype_to_tensor_dtype(self.dtype)
        self.nodes, self.inputs, self.outputs = [], [], []
        self.initializers, self._count = ([], [0]) if outer is None else (outer.initializers, outer._count)
        self._constants = {} if outer is None else outer._constants

    # ---------------------------------------------------------------- values
    def initializer(self, name, array):
        """Store an array in the model; return its value."""
        self.initializers.append(self.onnx.numpy_helper.from_array(np.asarray(array, order="C"), name))
        return GraphValue(self.outer or self, name, array)

    def constant(self, array):
        """Return the value of an array or number in the graph's dtype."""
        return self._constant(np.asarray(array, self.dtype))

    def whole_numbers(self, numbers):
        return self._constant(np.asarray(numbers, np.int64))

    def _constant(self, array):
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = self.initializer(f"constant_{len(self._constants)}", array)
        return self._constants[key]

    def declare(self, where, name, shape, number=None):
        """Declare an input or output (`where` is the list of either); return its value."""
        where.append(self.onnx.helper.make_tensor_value_info(name, number or self.number, shape))
        return GraphValue(self, name)

    def node(self, kind, *values, array=None, count=1, name=None, **attributes):
        """Add a node; return its value, or a list of `count` values. A node with a known `array` goes to the model's
        graph, so that it is not computed at each step."""
        graph = self.outer if self.outer is not None and array is not None else self
        self._count[0] += 1
        names = [name or f"{kind.lower()}_{self._count[0]}"]
        names = names if count == 1 else [f"{names[0]}_{number}" for number in range(count)]
        graph.nodes.append(self.onnx.helper.make_node(kind, [one.name for one in values], names, **attributes))
        made = [GraphValue(graph, one, array) for one in names]
        return made[0] if count == 1 else made

    def operation(self, op, *values, function=None):
        """Add the node of an operation of `tracing.graph` on values and numbers."""
        values = [one if isinstance(one, GraphValue) else self.constant(one) for one in values]
        graph = next((one.graph for one in values if one.graph.outer is not None), self)  # in a body, if a value is
        known = function is not None and all(one.array is not None for one in values)
        return graph.node(_NAMES[op], *values, array=function(*(one.array for one in values)) if known else None)

    # ---------------------------------------------------------------- as a library
    def linear(self, x, matrix, bias):
        """Add x matrix^T + bias."""
        if self.outer is not None:
            return self.node("Gemm", x, matrix, *([] if bias is None else [bias]), transB=1)
        product = self.node("MatMul", x, matrix.T)
        return product if bias is None else product + bias

    def concatenate(self, arrays, axis=0):
        """Concatenate values along an axis."""
        arrays = list(arrays)
        known = all(one.array is not None for one in arrays)
        array = np.concatenate([one.array for one in arrays], axis) if known else None
        return self.node("Concat", *arrays, array=array, axis=axis)

    def split(self, x, sizes):
        """Split a value along its last axis."""
        if len(sizes) == 1:
            return [x]
        return self.node("Split", x, self.whole_numbers(sizes), count=len(sizes), axis=-1)

    def spread(self, x, like, width):
        """Broadcast a number or value to (B, width), with B of `like`; to (width,) if `like` is None."""
        x = x if isinstance(x, GraphValue) else self.constant(x)
        if like is None:
            array = np.broadcast_to(x.array, (width,))
            return x if x.shape == array.shape else self.node("Expand", x, self.whole_numbers([width]), array=array)
        batch = self.node("Slice", self.node("Shape", like), *map(self.whole_numbers, ([0], [1])))
        return self.node("Expand", x, self.node("Concat", batch, self.whole_numbers([width]), axis=0))

    def diagonal(self, matrix, count):
        """Return the block-diagonal matrix of `count` equal parts of a matrix' rows."""
        (rows, width), blocks = matrix.shape, []
        for k in range(count):
            part = matrix[slice(k * rows // count, (k + 1) * rows // count), slice(0, width)]
            pads = self.whole_numbers([0, k * width, 0, (count - 1 - k) * width])
            array = np.pad(part.array, ((0, 0), (k * width, (count - 1 - k) * width)))
            blocks.append(self.node("Pad", part, pads, array=array))
        return self.concatenate(blocks)

    def _modulo(self, a, b):
        """Add a % b with the sign of b, as in Python; ONNX' Mod has the sign of a."""
        a, b = (one if isinstance(one, GraphValue) else self.constant(one) for one in (a, b))
        rest = self.node("Mod", a, b, fmod=1)
        return self.operation("where", self.operation("lt", rest * b, 0.0), rest + b, rest)

    def _bent(self, a, below):
        """Add where(a > 0, a, below(min(a, 0)))."""
        return self.operation("where", self.operation("gt", a, 0.0), a, below(self.operation("minimum", a, 0.0)))

    def function(self, op):
        """Return the function that adds the nodes of an operation of `tracing.graph`."""
        special = {
            "row_sum": lambda a: self.node("ReduceSum", a, self.whole_numbers([-1]), keepdims=1),
            "row_max": lambda a: self.node("ReduceMax", a, axes=[-1], keepdims=1),
            "stop_gradient": lambda a: a,
            "custom_derivative": lambda value, *_: value,
            # onnxruntime has LeakyRelu and Elu only in float32
            "leaky_relu": lambda a, slope: self._bent(a, lambda b: b * slope),
            "elu": lambda a, alpha: self._bent(a, lambda b: (self.operation("exp", b) + -1.0) * alpha),
            "normal_cdf": lambda a: (self.node("Erf", a * SQRT_HALF) + 1.0) * 0.5,
            "modulo": self._modulo,
            "ne": lambda a, b: self.node("Not", self.operation("eq", a, b)),
        }
        return special.get(op) or (lambda *values: self.operation(op, *values))


def write(stack, parameters, description, batch_first=False, state=False, lengths=False):
    """Return an onnx.ModelProto that computes a layer's inference, see `numbarnn.convert.to_onnx`.

    Args:
        stack: the layer's `Stack`. parameters: its state dict. description: see `network.describe`.
    """
    dtype = np.result_type(*parameters.values())
    main, D, names = GraphWriter(dtype), stack.directions, stack.cell.states
    helper, onnx = main.onnx.helper, main.onnx
    held = {name: main.initializer(name, array) for name, array in parameters.items()}
    sequence = ["B", "T"] if batch_first else ["T", "B"]
    x = main.declare(main.inputs, "x", [*sequence, stack.input_size])
    lengths = main.declare(main.inputs, "lengths", ["B"], onnx.TensorProto.INT32) if lengths else None
    y = main.node("Transpose", x, perm=[1, 0, 2]) if batch_first else x
    shape = main.node("Shape", y)
    mask = None if lengths is None else _mask(main, shape, lengths)
    initial = [_initial(main, stack, number, state, shape) for number in range(len(names))]
    finals = [[] for _ in names]
    for layer in range(stack.num_layers):
        outputs = []
        for direction in range(D):
            blocks = stack.space.blocks[layer, direction]
            named = {name: _block(main, held[part.name], part, where, shape)
                     for name, (part, where, shape) in blocks.items()}  # fmt: skip
            begin = [of_state[layer * D + direction] for of_state in initial]
            output, *final = _scan(main, stack, (layer, direction), named, y, begin, mask)
            outputs.append(output)
            for of_state, one in zip(finals, final, strict=True):
                of_state.append(one)
        y = outputs[0] if D == 1 else main.concatenate(outputs, axis=-1)
    main.node("Transpose" if batch_first else "Identity", y, name="y", **({"perm": [1, 0, 2]} if batch_first else {}))
    main.declare(main.outputs, "y", [*sequence, D * stack.output_sizes[-1]])
    for name, sizes, of_state in zip(names, stack.state_sizes, finals, strict=True):
        if len(set(sizes)) == 1:
            outputs = {f"{name}y": of_state}
        else:
            outputs = {f"{name}y_l{layer}": of_state[layer * D : (layer + 1) * D] for layer in range(len(sizes))}
        for (output, values), size in zip(outputs.items(), sizes, strict=False):
            rows = [main.node("Unsqueeze", one, main.whole_numbers([0])) for one in values]
            main.node("Concat", *rows, name=output, axis=0)
            main.declare(main.outputs, output, [len(values), "B", size])
    graph = helper.make_graph(main.nodes, stack.cell.name, main.inputs, main.outputs, main.initializers)
    model = checked_model(graph)
    helper.set_model_props(model, {KEY: json.dumps(description)})
    return model


def _block(main, whole, part, where, shape):
    """Return one parameter of the equations as rows of `whole`, an array of the state dict."""
    if len(part.parts) < 2:
        return whole
    first = (where.start - part.offset) // int(np.prod(shape[1:], dtype=int))
    ends = [[first], [first + shape[0]], [0]]
    array = whole.array[first : first + shape[0]]
    return main.node("Slice", whole, *map(main.whole_numbers, ends), array=array)


def _mask(main, shape, lengths):
    """Return (T, B, 1) bools: whether a step is within its sequence's length."""
    steps = main.node("Gather", shape, main.whole_numbers(0))
    lengths = main.node("Cast", lengths, to=main.onnx.TensorProto.INT64)
    counted = main.node("Range", main.whole_numbers(0), steps, main.whole_numbers(1))
    less = main.node("Less", main.node("Unsqueeze", counted, main.whole_numbers([1])), lengths)
    return main.node("Unsqueeze", less, main.whole_numbers([2]))


def _initial(main, stack, number, is_input, shape):
    """Return a state's initial value (B, H) for each layer and direction: zeros, or parts of an input of the model."""
    D, sizes, name = stack.directions, stack.state_sizes[number], stack.cell.states[number]
    if not is_input:
        batch = main.node("Slice", shape, *map(main.whole_numbers, ([1], [2])))
        zeros = [
            main.node("Expand", main.constant(0.0), main.node("Concat", batch, main.whole_numbers([size]), axis=0))
            for size in sizes
        ]
        return [zero for zero in zeros for _ in range(D)]
    if len(set(sizes)) == 1:
        wholes = [main.declare(main.inputs, f"{name}x", [len(sizes) * D, "B", sizes[0]])]
    else:
        wholes = [main.declare(main.inputs, f"{name}x_l{n}", [D, "B", size]) for n, size in enumerate(sizes)]
    each = len(sizes) * D // len(wholes)
    return [main.node("Gather", one, main.whole_numbers(n), axis=0) for one in wholes for n in range(each)]


def _scan(main, stack, place, parameters, x, begin, mask):
    """Add the Scan of one layer and direction; return y (T, B, H) and the final states."""
    layer = UnfusedLayer(main, stack, *place, parameters)
    gates_of_x, body = layer.gates_of_x(x), GraphWriter(main.dtype, main)
    sizes = [of_state[place[0]] for of_state in stack.state_sizes]
    tag = f"l{place[0]}_{place[1]}"
    states = [body.declare(body.inputs, f"{name}_{tag}", ["B", size])
              for name, size in zip(stack.cell.states, sizes, strict=True)]  # fmt: skip
    now = body.declare(body.inputs, f"gates_of_x_{tag}", ["B", None])
    scanned = [gates_of_x]
    in_body = UnfusedLayer(body, stack, *place, parameters)
    new = in_body.step(now, states)
    if mask is None:
        y = new[0]
    else:
        active = body.declare(body.inputs, f"there_{tag}", ["B", 1], main.onnx.TensorProto.BOOL)
        scanned.append(mask)
        new = [body.node("Where", active, one, old) for one, old in zip(new, states, strict=True)]
        y = body.node("Where", active, new[0], body.constant(0.0))
    for name, one, size in zip([*stack.cell.states, "output"], [*new, y], [*sizes, sizes[0]], strict=True):
        body.node("Identity", one, name=f"{name}_{tag}_new")
        body.declare(body.outputs, f"{name}_{tag}_new", ["B", size])
    graph = main.onnx.helper.make_graph(body.nodes, f"{stack.cell.name}_{tag}", body.inputs, body.outputs)
    backward = {"scan_input_directions": [1] * len(scanned), "scan_output_directions": [1]}
    options = backward if place[1] else {}
    *final, y = main.node("Scan", *begin, *scanned, count=len(states) + 1, body=graph, num_scan_inputs=len(scanned),
                          **options)  # fmt: skip
    return y, *final
