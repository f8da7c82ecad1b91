"""Expressions as a graph in which equal ones are the same node, simplified as they are made.

A node is a leaf or an operation on nodes. Leaves: "const" (data: its value), "state" and "vector" (data: number, name),
"input" (W @ x of a matrix, data: its name), "noise" (data: number, `Noise`), "units" (how many there are), and of the
backward "d_state", "d_v" and "d_sum" (data: number). Operation "product" is a matrix (data: its name) times a vector,
"row_sum" and "row_max" are the sum over all units and the largest of them. All others are named as in
`numbarnn.cells.scalar`, or are one of `OPERATORS`.
"stop_gradient" and "custom_derivative" are their first argument, but for backward.
"""

import operator

import numpy as np

from numbarnn.cells import scalar
from numbarnn.cells.layout import SCALARS

LEAVES = {"const", "state", "vector", "input", "noise", "units", "d_state", "d_v", "d_sum"}
COMPARISONS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "neg": "-", **COMPARISONS}
OVER_UNITS = ("row_sum", "row_max")
SAME_VALUE = {"stop_gradient", "custom_derivative"}  # as their first argument
_COMMUTATIVE = {"add", "mul"}


class Node:
    """One expression.

    Attributes:
        op, args, data: what it is: see above.
        number: nodes are numbered as they are made, so that arguments come first.
        name: that of the variable it was assigned to, or None.
        place: (file, line) of the equations that made it, or None.
    """

    __slots__ = ("args", "data", "name", "number", "op", "place")

    def __init__(self, op, args, data, number, place):
        self.op, self.args, self.data, self.number, self.place, self.name = op, args, data, number, place, None

    def __repr__(self):
        words = [self.op, *([repr(self.data)] if self.data is not None else []), *(f"#{n.number}" for n in self.args)]
        return f"<#{self.number} {' '.join(words)}>"


class Graph:
    """All nodes of a cell. `place` is given to the nodes that are made while it is set."""

    def __init__(self):
        self.nodes, self.place, self._known = [], None, {}

    def leaf(self, op, data):
        """The leaf of that kind."""
        return self._node(op, (), data)

    def const(self, value):
        """The node of a number, or of True or False."""
        value = value if isinstance(value, bool) else float(value) + 0.0  # of -0.0 makes 0.0
        return self._node("const", (), value)

    def product(self, matrix, vector):
        """The node of a matrix times a node."""
        return self._node("product", (vector,), matrix)

    def make(self, op, *args):
        """The node of an operation, or a simpler one of equal value."""
        if op == "row_max" and args[0].op in ("const", "units", *OVER_UNITS):  # the same for all units
            return args[0]
        if op != "row_sum" and all(node.op == "const" for node in args):
            return self.const(evaluate(op, *(node.data for node in args)))
        simplify = _SIMPLER.get(op)
        simpler = simplify(self, *args) if simplify else None
        return self._node(op, args, None) if simpler is None else simpler

    def _node(self, op, args, data):
        numbers = [node.number for node in args]
        key = (op, tuple(sorted(numbers) if op in _COMMUTATIVE else numbers), type(data), data)
        node = self._known.get(key)
        if node is None:
            node = self._known[key] = Node(op, args, data, len(self.nodes), self.place)
            self.nodes.append(node)
        return node


def is_const(node, value):
    """Whether the node is that number."""
    return node.op == "const" and node.data is not True and node.data is not False and node.data == value


def parts_of(node):
    """The nodes that its value is computed from; `Node.args` are those that its gradient is computed from, too."""
    return node.args[:1] if node.op in SAME_VALUE else node.args


def reachable(roots, stop=(), values=False):
    """All nodes that the roots are made of, themselves too, by number; not beyond those of `stop`. With `values`, those
    alone that their values are computed from (`parts_of`)."""
    found, waiting = {}, list(roots)
    while waiting:
        node = waiting.pop()
        if node.number not in found:
            found[node.number] = node
            if node not in stop:
                waiting += parts_of(node) if values else node.args
    return [found[number] for number in sorted(found)]


def same_for_all(nodes):
    """Return the nodes that are one number for all units: scalars, sums over units, and what is made of these alone.

    Args:
        nodes: by number, with all that they are made of, as `reachable` returns them.
    """
    found = set()
    for node in nodes:
        of_scalar = node.op == "vector" and node.data.startswith(SCALARS)
        if node.op in ("const", "units", *OVER_UNITS) or of_scalar:
            found.add(node)
        elif node.op != "product" and node.args and found.issuperset(node.args):
            found.add(node)
    return found


def consumers(nodes):
    """Node -> the nodes among these that have it as an argument, each as often as it has."""
    found = {node: [] for node in nodes}
    for node in nodes:
        for part in node.args:
            if part in found:
                found[part].append(node)
    return found


def evaluate(op, *values):
    """The value of an operation on numbers: a float, or a bool."""
    function = getattr(operator, op if op in OPERATORS else "", None) or getattr(scalar, op)
    with np.errstate(all="ignore"):
        value = function(*(value if isinstance(value, bool) else np.float64(value) for value in values))
    return bool(value) if op in COMPARISONS else float(value)


# ------------------------------------------------------------------------------------------------------- simplification
def _add(graph, a, b):
    if is_const(a, 0):
        return b
    if is_const(b, 0):
        return a
    if b.op == "neg":
        return graph.make("sub", a, b.args[0])
    if a.op == "neg":
        return graph.make("sub", b, a.args[0])
    return None


def _sub(graph, a, b):
    if is_const(b, 0):
        return a
    if is_const(a, 0):
        return graph.make("neg", b)
    if b.op == "neg":
        return graph.make("add", a, b.args[0])
    return graph.const(0) if a is b else None


def _mul(graph, a, b):
    for one, other in ((a, b), (b, a)):
        if is_const(one, 0):
            return one
        if is_const(one, 1):
            return other
        if is_const(one, -1):
            return graph.make("neg", other)
    if a.op == "neg":
        return graph.make("neg", graph.make("mul", a.args[0], b))
    if b.op == "neg":
        return graph.make("neg", graph.make("mul", a, b.args[0]))
    return None


def _neg(graph, a):
    if a.op == "neg":
        return a.args[0]
    return graph.make("sub", a.args[1], a.args[0]) if a.op == "sub" else None


def _divide(graph, a, b):
    if is_const(a, 0) or is_const(b, 1):
        return a
    return graph.make("neg", graph.make("divide", a.args[0], b)) if a.op == "neg" else None


def _where(graph, condition, a, b):
    if condition.op == "const":
        return a if condition.data else b
    return a if a is b else None


def _power(graph, a, b):
    if b.op != "const":
        return None
    exponent = b.data
    if exponent == 0.5:
        return graph.make("sqrt", a)
    if exponent not in range(-8, 9):
        return None
    if exponent < 0:
        return graph.make("divide", graph.const(1), graph.make("power", a, graph.const(-exponent)))
    if exponent < 2:
        return a if exponent else graph.const(1)
    half = graph.make("power", a, graph.const(exponent // 2))
    square = graph.make("mul", half, half)
    return graph.make("mul", square, a) if exponent % 2 else square


_SIMPLER = {"add": _add, "sub": _sub, "mul": _mul, "neg": _neg, "divide": _divide, "where": _where, "power": _power}
