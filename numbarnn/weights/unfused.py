"""Run a cell's equations as a plain, unfused step on arrays of PyTorch, NumPy or ONNX.

The traced graph of the equations is interpreted. A library is an object with the functions that a step needs:

    function(op)             the function of an operation of `numbarnn.cells.tracing.graph`
    linear(x, matrix, bias)  x matrix^T + bias; bias may be None
    concatenate(arrays)      along the first axis
    split(x, sizes)          along the last axis, a list
    spread(x, like, width)   broadcast a number or array to (B, width), B of `like`
    constant(array)          the library's array of a NumPy array
    diagonal(array, count)   a block-diagonal matrix of `count` equal parts of the rows
"""

from numbarnn.cells.tracing.graph import products_by_vector, reachable
from numbarnn.cells.tracing.tangent import equations_of
from numbarnn.weights.derived import Values
from numbarnn.weights.space import WITHOUT_W, parameter_terms


class UnfusedLayer:
    """One layer and direction of a cell.

    Args:
        library: see the module. stack: the `Stack`. layer, direction: numbers.
        parameters: name in the equations -> array of the library.
        drop: DropConnect's mask of R, 0 or 1 / (1 - p); None without DropConnect.
    """

    def __init__(self, library, stack, layer, direction, parameters, drop=None):
        self._library, self._cell, self._direction = library, stack.cell, direction
        self._mode, space = stack.input_mode if layer == 0 else "linear", stack.space
        self._structure = equations_of(stack.cell).structure
        self._place, self._space, self._sizes = (layer, direction), space, space.sizes[layer, direction]
        self._values = _Values(library, parameters, None, self._sizes)
        self.W, self.b_w = (self._of_gates(kind, stack.cell.gates) for kind in ("W", "b_w"))
        R, b_r = (self._of_gates(kind, stack.cell.gates_of_ah) for kind in ("R", "b_r"))
        self._W_hr = next(iter(self._of_gates("W_hr", ("h",)).values()), None)
        if drop is not None:
            rows = len(drop) // len(R)
            R = {
                gate: one * drop[n * rows : n * rows + one.shape[0], : one.shape[1]]
                for n, (gate, one) in enumerate(R.items())
            }
        if stack.cell.heads > 1:
            R = {gate: library.diagonal(one, stack.cell.heads) for gate, one in R.items()}
        nodes = reachable(self._structure.outputs)
        self._known = {node: node.data for node in nodes if node.op == "const"}
        self._known |= {node: float(self._sizes["H"]) for node in nodes if node.op == "units"}
        per_unit = self._of_gates("per_unit", stack.cell.per_unit) or parameters
        self._known |= {node: per_unit[name] for name, node in self._structure.per_unit.items()}
        by_vector = products_by_vector(nodes)
        self._products = {vector: self._product(products, R, b_r) for vector, products in by_vector.items()}
        firsts = {products[0] for products in by_vector.values()}
        self._work = [node for node in nodes if node.args and (node.op != "product" or node in firsts)]
        self._functions = {node.op: library.function(node.op) for node in self._work if node.op != "product"}
        self._states = [node for node in nodes if node.op == "state"]

    def _product(self, nodes, R, b_r):
        """Return (nodes, matrix, bias or None, rows of each node) to compute all products of a vector at once."""
        gate_of = {node: gate for gate, node in self._structure.all_recurrent.items()}
        gates = [gate_of[node] for node in nodes]
        matrices = [R[gate] for gate in gates]
        rows = [one.shape[0] for one in matrices]
        return nodes, _one(self._library, matrices), self._bias(b_r, gates, rows), rows

    def _of_gates(self, kind, names):
        """Return name -> array of each gate's part of an array of `kind`; {} if the layer has none."""
        derived = self._space.derived.get(self._place, {}).get(kind)
        if derived is None and not (kind == "per_unit" or self._space.parts(*self._place, kind)):
            return {}
        layout = self._cell.parameters
        held = layout.per_unit if kind == "per_unit" else layout.rows.get(kind, ())
        terms = parameter_terms(held) if derived is None else derived.terms
        terms = map(layout.of_all_x, terms) if kind == "W" else terms
        return {name: self._values.of(term) for name, term in zip(names, terms, strict=True)}

    def _bias(self, biases, gates, rows):
        """Return the biases of gates as one array, or None."""
        if not biases:
            return None
        spread = self._library.spread
        return _one(self._library, [spread(biases[gate], None, n) for gate, n in zip(gates, rows, strict=True)])

    def gates_of_x(self, x):
        """Return W x + b_w of all gates side by side, for x (.., I) of one or all steps."""
        gates, library, H = self._cell.gates, self._library, self._sizes["H"]
        if self._mode in WITHOUT_W:
            bias = self._bias(self.b_w, gates, [H] * len(gates))
            if self._mode == "skip":
                x = library.concatenate([x] * len(gates), -1)
            else:
                columns = slice(self._direction * len(gates), (self._direction + 1) * len(gates))
                x = library.concatenate(library.split(x, [H] * (x.shape[-1] // H))[columns], -1)
            return x if bias is None else x + bias
        matrices = [self.W[gate] for gate in gates]
        return library.linear(x, _one(library, matrices), self._bias(self.b_w, gates, self._rows))

    @property
    def _rows(self):
        """Number of units of each gate of W x."""
        return [self.W[gate].shape[0] if self.W else self._sizes["H"] for gate in self._cell.gates]

    def step(self, gates_of_x, states, noise=None):
        """Return the new states [h, ...], each (B, H).

        Args:
            gates_of_x: result of `gates_of_x` for this step. states: [h, ...].
            noise: the step's random numbers, one (B, H) per `Cell.noise`; None: their means.
        """
        structure, library, now = self._structure, self._library, dict(self._known)
        parts = dict(zip(self._cell.gates, library.split(gates_of_x, self._rows), strict=True))
        now |= {node: parts[name] for name, node in structure.gates.items()}
        for number, node in enumerate(structure.noise):
            now[node] = library.constant(node.data[1].mean) if noise is None else noise[number]
        now |= {node: states[node.data] for node in self._states}
        for node in self._work:
            if node.op != "product":
                now[node] = self._functions[node.op](*(now[one] for one in node.args))
                continue
            nodes, matrix, bias, rows = self._products[node.args[0]]
            vector = library.spread(now[node.args[0]], states[0], matrix.shape[1])
            now |= dict(zip(nodes, library.split(library.linear(vector, matrix, bias), rows), strict=True))
        sizes = ("H", *(self._cell.parameters.states or ["H"] * (len(states) - 1)))
        widths = [self._sizes.get(size, size) for size in sizes]
        new = [library.spread(now[node], states[0], n) for node, n in zip(structure.outputs, widths, strict=True)]
        return new if self._W_hr is None else [library.linear(new[0], self._W_hr, None), *new[1:]]


class _Values(Values):
    """`Values` of arrays of a library."""

    def parameter(self, name):
        return self.parameters[name]

    def constant(self, array):
        return self.arrays.constant(array)


def _one(library, arrays):
    return arrays[0] if len(arrays) == 1 else library.concatenate(arrays)
