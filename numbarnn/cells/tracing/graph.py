"""The graph of a cell's expressions: equal expressions are one node, and nodes are simplified as they are made.

A node is a leaf or an operation on nodes. The leaves, with their `data`, are

    const (value)   state (number)   vector (name of a parameter)   input (name of a matrix W, for W @ x)
    noise (number, `Noise`)   units (None; the number of units)   d_state, d_v, d_sum (number): gradients, in backward

The operations are "product" (data: name of a matrix that multiplies the argument), "row_sum" and "row_max" (sum and
maximum over all units), `OPERATORS`, and functions of `numbarnn.cells.scalar`.
"""

import operator

import numpy as np

from numbarnn.cells import scalar
from numbarnn.cells.layout import SCALARS

LEAVES = {"const", "state", "vector", "input", "noise", "units", "d_state", "d_v", "d_sum"}
COMPARISONS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "neg": "-", **COMPARISONS}
OVER_UNITS = ("row_sum", "row_max")
SAME_VALUE = {"stop_gradient", "custom_derivative"}  # return their first argument, with another gradient
_COMMUTATIVE = {"add", "mul"}


def add_operators(cls, methods):
    """Define binary operators, Python's name -> op, of a class by its method _operation(op, left, right)."""
    for name, op in methods.items():
        setattr(cls, f"__{name}__", lambda self, other, op=op: self._operation(op, self, other))
        setattr(cls, f"__r{name}__", lambda self, other, op=op: self._operation(op, other, self))


class Node:
    """One expression.

    Attributes:
        op, args, data: see the module. number: its position in `Graph.nodes`, after its arguments.
        name: name of the variable of the equations, or None. place: (file, line) of the equations, or None.
    """

    __slots__ = ("args", "data", "name", "number", "op", "place")

    def __init__(self, op, args, data, number, place):
        self.op, self.args, self.data, self.number, self.place, self.name = op, args, data, number, place, None

    def __repr__(self):
        words = [self.op, *([repr(self.data)] if self.data is not None else []), *(f"#{n.number}" for n in self.args)]
        return f"<#{self.number} {' '.join(words)}>"


class Graph:
    """All nodes of a cell. New nodes get the current `place`."""

    def __init__(self):
        self.nodes, self.place, self._known = [], None, {}

    def leaf(self, op, data):
        """Return a leaf."""
        return self._node(op, (), data)

    def const(self, value):
        """Return the node of a number or bool."""
        value = value if isinstance(value, bool) else float(value) + 0.0  # turns -0.0 into 0.0
        return self._node("const", (), value)

    def product(self, matrix, vector):
        """Return the node of the matrix named `matrix` times a node."""
        return self._node("product", (vector,), matrix)

    def make(self, op, *args):
        """Return the node of an operation, or a simpler node of equal value."""
        if op == "row_max" and args[0].op in ("const", "units", *OVER_UNITS):  # equal for all units
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
    """Return whether a node is the number `value`."""
    return node.op == "const" and node.data is not True and node.data is not False and node.data == value


def parts_of(node):
    """Return the arguments that a node's value depends on; its gradient may depend on all of `Node.args`."""
    return node.args[:1] if node.op in SAME_VALUE else node.args


def reachable(roots, stop=(), values=False):
    """Return the roots and all nodes that they depend on, sorted by number, without the arguments of nodes in `stop`.

    With `values`, only `parts_of` nodes count as their arguments."""
    by_number, waiting = {}, list(roots)
    while waiting:
        node = waiting.pop()
        if node.number not in by_number:
            by_number[node.number] = node
            if node not in stop:
                waiting += parts_of(node) if values else node.args
    return [by_number[number] for number in sorted(by_number)]


def computable(nodes, is_known, barriers=("product",)):
    """Return the nodes, of a result of `reachable`, that are known or follow from known nodes without `barriers`."""
    known = set()
    for node in nodes:
        if is_known(node) or (node.args and node.op not in barriers and known.issuperset(node.args)):
            known.add(node)
    return known


def same_for_all(nodes):
    """Return the nodes that have one value for all units. nodes: result of `reachable`."""
    leaves = ("const", "units", *OVER_UNITS)
    return computable(nodes, lambda node: node.op in leaves or (node.op == "vector" and node.data.startswith(SCALARS)))


def products_by_vector(nodes):
    """Return vector -> list of the products that multiply it."""
    products = {}
    for node in nodes:
        if node.op == "product":
            products.setdefault(node.args[0], []).append(node)
    return products


def consumers(nodes):
    """Return node -> list of the nodes that use it, once per use."""
    users = {node: [] for node in nodes}
    for node in nodes:
        for part in node.args:
            if part in users:
                users[part].append(node)
    return users


def evaluate(op, *values):
    """Return the value of an operation on numbers, a float or bool."""
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
