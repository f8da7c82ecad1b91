"""Derive the backward of equations: sweep from the outputs to the leaves and add up the gradient of every node."""

import math

from numbarnn.cells.tracing.graph import COMPARISONS, is_const, reachable


def _from_output(derivative):
    """Return the rule of a function whose derivative is a function of its value."""
    return lambda make, node, g: [(0, g, make(derivative, node))]


def _divide(make, node, g):
    a, b = node.args
    if a.op == "const":
        return [(1, make("neg", g), make("divide", node, b))]
    part = make("divide", g, b)
    return [(0, part, None), (1, make("neg", part), node)]


def _power(make, node, g):
    # Where the exponent or the base is 0, a factor may be infinite: the derivative is 0 there, as in PyTorch.
    a, b = node.args
    zero, one_less = make("const", 0), make("power", a, make("sub", b, make("const", 1)))
    of_a = make("where", make("eq", b, zero), zero, one_less)
    of_b = make("where", make("eq", a, zero), zero, make("log", a))
    return [(0, make("mul", g, b), of_a), (1, make("mul", g, node), of_b)]


def _choice(make, condition, g, first):
    """Return the gradients of arguments number `first` and first + 1, of which the condition chooses one."""
    zero = make("const", 0)
    return [(first, make("where", condition, g, zero), None), (first + 1, make("where", condition, zero, g), None)]


def _normal_density(scale, exponent):
    """Return the rule of a function of x whose derivative is scale e^(exponent x²)."""

    def rule(make, node, g):
        (x,) = node.args
        power = make("exp", make("mul", make("const", exponent), make("mul", x, x)))
        return [(0, g, make("mul", make("const", scale), power))]

    return rule


def _modulo(make, node, g):
    a, b = node.args
    if b.op == "const":
        return [(0, g, None)]
    return [(0, g, None), (1, make("neg", g), make("floor", make("divide", a, b)))]


def _custom_derivative(make, node, g):
    return [(number, g, node.args[number + 1]) for number in range(1, len(node.args), 2)]


def _rectifier(make, node, g):
    """Return the gradient of leaky_relu or elu from its value."""
    constant = node.args[1]
    slope = constant if node.op == "leaky_relu" else make("add", node, constant)
    return [(0, g, make("where", make("gt", node, make("const", 0)), make("const", 1), slope))]


def _softsign(make, node, g):
    rest = make("sub", make("const", 1), make("absolute", node))
    return [(0, g, make("mul", rest, rest))]


#: Operation -> rule(make, node, g), with the node's gradient g. A rule returns triples (number of an argument, a, b):
#: the argument's gradient is a b, or a if b is None. `make` is `Graph.make`, extended by constants. Operations without
#: a rule pass no gradient on: stop_gradient, sign, floor, row_max.
RULES = {
    "add": lambda make, node, g: [(0, g, None), (1, g, None)],
    "sub": lambda make, node, g: [(0, g, None), (1, make("neg", g), None)],
    "mul": lambda make, node, g: [(0, g, node.args[1]), (1, g, node.args[0])],
    "neg": lambda make, node, g: [(0, make("neg", g), None)],
    "divide": _divide,
    "power": _power,
    "exp": lambda make, node, g: [(0, g, node)],
    "log": lambda make, node, g: [(0, make("divide", g, node.args[0]), None)],
    "sqrt": lambda make, node, g: [(0, g, make("divide", make("const", 0.5), node))],
    "sin": lambda make, node, g: [(0, g, make("cos", node.args[0]))],
    "cos": lambda make, node, g: [(0, make("neg", g), make("sin", node.args[0]))],
    "absolute": lambda make, node, g: [(0, g, make("sign", node.args[0]))],
    "erf": _normal_density(2 / math.sqrt(math.pi), -1.0),
    "normal_cdf": _normal_density(1 / math.sqrt(2 * math.pi), -0.5),
    "modulo": _modulo,
    "custom_derivative": _custom_derivative,
    "where": lambda make, node, g: _choice(make, node.args[0], g, 1),
    "clip": lambda make, node, g: [(0, make("inside", node, *node.args[1:], g), None)],
    "maximum": lambda make, node, g: _choice(make, make("gt", *node.args), g, 0),
    "minimum": lambda make, node, g: _choice(make, make("lt", *node.args), g, 0),
    "sigmoid": _from_output("d_sigmoid"),
    "tanh": _from_output("d_tanh"),
    "relu": _from_output("d_relu"),
    "leaky_relu": _rectifier,
    "elu": _rectifier,
    "softsign": _softsign,
    "softplus": lambda make, node, g: [(0, g, make("neg", make("expm1", make("neg", node))))],
    # derivatives that the rules above make: a tangent's backward differentiates them again
    "d_sigmoid": lambda make, node, g: [(0, g, make("sub", make("const", 1), make("add", *node.args * 2)))],
    "d_tanh": lambda make, node, g: [(0, g, make("neg", make("add", *node.args * 2)))],
    "expm1": lambda make, node, g: [(0, g, make("exp", node.args[0]))],
    "inside": lambda make, node, g: [(3, make("inside", *node.args[:3], g), None)],
}


class Gradients:
    """Map a node to the node of its gradient, 0 for nodes that no output depends on.

    Gradients through products with the first state are not included: engines add them.

    Args:
        graph: the equations. outputs: the nodes of the new states.
        products: the vectors of further products. The gradient through product k is the leaf "d_v" k.
        sums: the sums over units. The gradient of sum k, added up over units, is the leaf "d_sum" k.
    """

    def __init__(self, graph, outputs, products, sums=()):
        self.graph, self._parts, self._found = graph, {}, {}
        forward = reachable(outputs)
        for number, output in enumerate(outputs):
            self._add(output, graph.leaf("d_state", number), None)
        for number, vector in enumerate(products):
            self._add(vector, graph.leaf("d_v", number), None)
        number_of_sum = {node: number for number, node in enumerate(sums)}
        for node in reversed(forward):
            graph.place = node.place
            gradient = self._found[node] = self._total(node)
            if node.op in RULES and not is_const(gradient, 0):
                for number, a, b in RULES[node.op](self._make, node, gradient):
                    self._add(node.args[number], a, b)
            if node.op == "row_sum" and not is_const(gradient, 0):
                self._add(node.args[0], graph.leaf("d_sum", number_of_sum[node]), None)

    def __getitem__(self, node):
        return self._found[node] if node in self._found else self.graph.const(0)

    def items(self):
        """Return pairs (node, its gradient), from the outputs to the leaves."""
        return self._found.items()

    def _make(self, op, *args):
        return self.graph.const(*args) if op == "const" else self.graph.make(op, *args)

    def _add(self, node, a, b):
        """Add a b to a node's gradient. Terms with the same a are factored: a (b + b')."""
        if node.op == "const" or node.op in COMPARISONS:
            return
        b = self.graph.const(1) if b is None else b
        if a.op == "neg":
            a, b = a.args[0], self.graph.make("neg", b)
        parts = self._parts.setdefault(node, {})
        parts[a] = self.graph.make("add", parts[a], b) if a in parts else b

    def _total(self, node):
        make, parts = self.graph.make, dict(self._parts.get(node, {}))
        for a, b in list(parts.items()):
            if a.op == "mul" and a.args[0] in parts and b.op == "const":  # a b + (a b') c is a (b + b' c)
                first, second = a.args
                parts[first] = make("add", parts[first], make("mul", second, b))
                del parts[a]
        total = self.graph.const(0)
        for a, b in parts.items():
            total = make("add", total, make("mul", a, b))
        return total
