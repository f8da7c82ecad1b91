"""A cell's equations run step by step on PyTorch tensors in float64; autograd gives every gradient.

The equations are the cell's own function; what numbarnn makes of them (its graph, gates and stages, the derived
backward, what is saved) has no part in it. Values are tensors (B, H), vectors (H,) and numbers.
"""

import operator

import numpy as np
import torch

from numbarnn.cells.tracing.constants import ConstantOfH
from numbarnn.cells.tracing.matrices import Parameters
from numbarnn.cells.tracing.values import Traced, Value

_distances = []


def kink_distance(run):
    """How near an argument of a function with a kink comes to it while run() runs."""
    _distances.clear()
    run()
    return min(_distances, default=float("inf"))


def to_integer(a):
    return a - a.round()


def with_derivative(value, *pairs):
    """A value whose derivative by each x of the pairs (x, derivative) is that."""
    told = sum(derivative.detach() * x for x, derivative in zip(pairs[::2], pairs[1::2], strict=True))
    return value.detach() + told - told.detach()


FUNCTIONS = {
    name: getattr(torch, name)
    for name in ("sigmoid tanh relu exp log sqrt absolute sign floor sin cos erf maximum minimum where").split()
} | {name: getattr(operator, name) for name in "add sub mul neg gt ge lt le eq ne".split()}
FUNCTIONS |= {
    "divide": torch.div,
    "power": torch.pow,
    "modulo": torch.remainder,
    "normal_cdf": torch.special.ndtr,
    "softplus": lambda a: torch.logaddexp(a, torch.zeros_like(a)),
    "softsign": lambda a: a / (1 + a.abs()),
    "leaky_relu": lambda a, slope: torch.where(a > 0, a, slope * a),
    "elu": lambda a, alpha: torch.where(a > 0, a, alpha * torch.expm1(a.clamp(max=0))),
    "clip": lambda a, low, high: torch.minimum(torch.maximum(a, low), high),
    "row_sum": lambda a: a.sum(-1, keepdim=True).expand_as(a),
    "row_max": lambda a: a.detach().amax(-1, keepdim=True).expand_as(a),
    "stop_gradient": lambda a: a.detach(),
    "custom_derivative": with_derivative,
}
# Function -> what is 0 at its kinks.
KINKS = dict.fromkeys(("relu", "leaky_relu", "absolute", "sign"), lambda a, *_: a)
KINKS |= dict.fromkeys(("maximum", "minimum", "gt", "ge", "lt", "le"), lambda a, b: a - b)
KINKS |= {"floor": to_integer, "modulo": lambda a, b: to_integer(a / b)}
KINKS["elu"] = lambda a, alpha: a if alpha != 1 else torch.tensor(np.inf)
KINKS["clip"] = lambda a, low, high: torch.minimum((a - low).abs(), (a - high).abs())


class Node:
    """A tensor, where a trace has a node: a number is the same for all units."""

    args, data, name = (), None, None

    def __init__(self, tensor):
        self.tensor, self.op, self.number = tensor, "const" if tensor.ndim == 0 else "value", id(self)


class Eager:
    """What equations have in place of a trace: their operations are computed at once.

    Args:
        parameters: name in the equations -> tensor.
        hidden: H.
        noise: the random numbers of the step, (B, H) each, in the order in which the equations ask for them;
            None: their means.
    """

    def __init__(self, parameters, hidden, noise=None):
        self.parameters, self.hidden, self._noise = parameters, hidden, noise and iter(noise)
        self.graph, self.initial, self.columns = self, {}, {}

    def value(self, tensor):
        """What equations compute with."""
        return Value(self, Node(tensor))

    def tensor(self, value):
        if isinstance(value, Traced):
            return value._as_node().tensor
        value = value.data.of({"H": self.hidden}) if isinstance(value, ConstantOfH) else value
        return torch.tensor(value, dtype=torch.float64)

    def apply(self, op, *values):
        tensors = [self.tensor(value) for value in values]
        if op in KINKS:
            _distances.append(float(KINKS[op](*tensors).detach().abs().min()))
        return self.value(FUNCTIONS[op](*tensors))

    def multiply(self, term, right, options=None):
        right = self.tensor(right)
        return self.value(right @ self.matrix(term, right.shape[-1]).T)

    def matrix(self, term, size):
        """The tensor of a `Term`; the identity has that size."""
        if term.op == "parameter":
            return self.parameters[term.data]
        if term.op in ("number", "eye"):
            return term.data if term.op == "number" else torch.eye(size, dtype=torch.float64)
        if term.op == "constant":
            return torch.tensor(term.data.of({"H": self.hidden}), dtype=torch.float64)
        args = [self.matrix(one, size) for one in term.args]
        return {"transpose": lambda a: a.T, "product": operator.matmul, **FUNCTIONS}[term.op](*args)

    def leaf(self, op, name):
        return self.value(self.parameters[name])._node

    def noise(self, noise):
        return self.value(self.tensor(noise.mean) if self._noise is None else next(self._noise))

    def units(self):
        return self.value(torch.tensor(float(self.hidden), dtype=torch.float64))

    def cumsum(self, value):
        return self.value(self.tensor(value).cumsum(-1))

    def look(self, *_):
        """Nothing of what a trace notes."""

    sized = parameter = look


def run_equations(trace, cell, x, states):
    """The new states of a cell made of equations, by an `Eager`; the number of the step, if it is one, is counted."""
    *own, last = states if cell.counts else (*states, None)
    clock = {cell.counts: trace.value(last)} if cell.counts else {}
    new = cell.function(trace.value(x), *map(trace.value, own), Parameters(trace), **clock)
    new = [trace.tensor(one) for one in (new if isinstance(new, tuple) else (new,))]
    whole = [one if one.ndim == 2 else one.expand_as(part) for one, part in zip(new, own, strict=True)]
    return (*whole, last + 1) if cell.counts else tuple(whole)
