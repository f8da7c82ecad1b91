"""One run of a cell's equations on traced values: it collects nodes of the graph and facts about parameters."""

import threading
from contextlib import contextmanager
from numbers import Real

import numpy as np

from numbarnn.cells.layout import Constant, Term, declared_columns, parameters_in, term_text, walked
from numbarnn.cells.tracing.constants import ConstantOfH, Identity
from numbarnn.cells.tracing.errors import error, user_frame
from numbarnn.cells.tracing.values import Input, Traced, Value, is_condition, step, words

_now = threading.local()


def current():
    """Return the `Trace` of the run in this thread, or None."""
    return getattr(_now, "trace", None)


class Trace:
    """One run of a cell's equations. A label is the name of a matrix in the graph; a parameter's label is its name.

    Attributes:
        graph: the `Graph`. kinds: name of a parameter -> "matrix", "vector" or "scalar".
        terms: label -> `Term` of a matrix. multiplied: label -> the nodes that the matrix multiplies, None for x.
        options: label -> (number of heads, rate of DropConnect).
        columns, initial: name of a parameter -> result of `numbarnn.columns`, `numbarnn.initial`.
        sizes: number of a state -> result of `numbarnn.sized`.
        constants: (number or array, place) of all constants in the equations, in their order.
        kept: products with x that are gates even if the new states do not depend on them.
    """

    def __init__(self, graph):
        self.graph, self.kinds, self.terms, self.multiplied, self.options = graph, {}, {}, {}, {}
        self.columns, self.initial, self.sizes, self.constants, self._noises, self.kept = {}, {}, {}, [], 0, []

    def parameter(self, name, kind):
        """Record that a parameter is used as a "matrix", a "vector" or a "scalar"."""
        known = self.kinds.setdefault(name, kind)
        if known != kind:
            raise error(
                f"parameter p.{name} is used as a {kind} here (as a matrix where it stands left of @, else as a vector "
                f"of one number per unit), and as a {known} elsewhere. Take two names"
            )
        for other in self.kinds:
            if other.startswith(f"{name}.") or name.startswith(f"{other}."):
                raise error(
                    f"p.{min(name, other, key=len)} is used as a parameter and, in p.{max(name, other, key=len)}, as a "
                    "group of parameters. Take two names"
                )

    def node(self, value):
        """Return the node of a value, a parameter (as a vector), a number or a constant vector."""
        if isinstance(value, Traced):
            if value._trace is not self:
                raise error("this is a value of another cell, or of another run. Use values of this cell only")
            return value._as_node()
        if isinstance(value, (Real, np.bool_)) or (isinstance(value, np.ndarray) and value.ndim == 0):
            number = bool(value) if isinstance(value, (bool, np.bool_)) else float(value)
            self.constants.append((number, self.graph.place))
            return self.graph.const(number)
        if isinstance(value, ConstantOfH) and not isinstance(value, Identity):
            return self.constant(value.data)
        if value is step:
            raise error(f"{step!r} in an equation: it is an argument of the equations, f(x, h, p, t={step!r})")
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iuf":
            return self.constant(Constant(np.asarray(value, np.float64)))
        arrays = "; an array of one number per unit, (H,), is a constant; what is learned is a parameter: p.name"
        raise error(
            f"{words(value)} in an equation; expected a traced value, a parameter or a number"
            + (arrays if isinstance(value, (np.ndarray, list, tuple)) else "")
        )

    def constant(self, data):
        """Return the node of a `Constant` with one number per unit."""
        return self.graph.leaf("vector", self._label(Term("constant", data=data), "constant_1"))

    def sized(self, value, count):
        """Record the number of units of a state."""
        node = self.node(value)
        if node.op != "state" or not node.data:
            what = "h, whose size is the layer's hidden_size" if node.op == "state" else words(value)
            raise error(f"the size of {what}; expected a state besides h: s = sized(s, {count})")
        if self.sizes.setdefault(node.data, count) != count:
            raise error(f"{words(value)} has {count} units here and {self.sizes[node.data]} elsewhere")

    def cumsum(self, value):
        """Return the cumulative sum over the units."""
        term = Term("lower", data="numbarnn.cumsum is over all units")
        self._label(term, "cumsum_1")
        return self.multiply(term, value)

    def apply(self, op, *values):
        """Return the traced value of an operation."""
        self.look()
        nodes = [self.node(value) for value in values]
        for number, node in enumerate(nodes):
            condition = op == "where" and number == 0
            if is_condition(node) and not condition:
                raise error(f"a comparison cannot be an argument of {op}. Choose with where(condition, a, b)")
            if condition and not is_condition(node):
                raise error("where's condition is no comparison. Write one, such as where(a > 0, b, c)")
        return Value(self, self.graph.make(op, *nodes))

    def multiply(self, term, right, options=(1, 0.0)):
        """Return the traced value of a matrix, a `Term`, times x or a value. options: (heads, rate of DropConnect)."""
        self.look()
        label, what = self._label(term), term_text(term)
        if isinstance(right, Input):
            if options != (1, 0.0):
                raise error(
                    f"{what} @ {right._name} with heads or drop_connect, which are for matrices that multiply states "
                    "and what is computed from them"
                )
            if right._is_side():
                label = self._label(Term("product", (term, Term("part", data=right._part))))
            return self._product(label, None, options)
        if not isinstance(right, Traced):
            raise error(f"{what} @ {words(right)}; expected x, a state, or what is computed from them")
        vector = self.node(right)
        if vector.op == "const" or is_condition(vector):
            raise error(f"{what} @ a number or a comparison; expected a vector computed from x or states")
        columns = declared_columns(term, self.columns)
        if columns is not None:  # multiply the matrices first, as vectors of this width do not exist
            if vector.op not in ("product", "input"):
                raise error(
                    f"{what}, of {columns} columns, @ a value of all units; expected a matrix with as many rows "
                    "between them: p.U @ (p.V @ h)"
                )
            inner = Term("product", (term, self.terms[vector.data]))
            return self._product(self._label(inner), vector.args[0] if vector.args else None, options)
        return self._product(label, vector, options)

    def _product(self, label, vector, options):
        if self.options.setdefault(label, options) != options:
            raise error(f"p.{label} has different heads or drop_connect here and elsewhere. Use one of them")
        vectors = self.multiplied.setdefault(label, [])
        if vector not in vectors:
            vectors.append(vector)
        if options[1] and len(vectors) > 1:
            raise error(
                f"p.{label} with drop_connect multiplies several vectors, but may multiply only one. Use two matrices"
            )
        node = self.graph.leaf("input", label) if vector is None else self.graph.product(label, vector)
        return Value(self, node)

    def _label(self, term, first=None):
        """Return the label of a term: the parameter's name, or `first`, or one made of its first parameter's name."""
        for label, known in self.terms.items():
            if known == term:
                return label
        for part in walked((term,)):
            if part.op in ("number", "constant"):
                self.constants.append((getattr(part.data, "array", part.data), self.graph.place))
        label = term.data if term.op == "parameter" else f"{next(iter(parameters_in((term,))), 'matrix')}_formed"
        label, number = first or label, 1
        while label in self.terms:
            number += 1
            label = f"{first[:-1]}{number}" if first else f"{label.partition('#')[0]}#{number}"
        self.terms[label] = term
        return label

    def itself(self, name, part=None):
        """Return the node of x, or of a side input, that the equations use without a matrix. It is x times an identity,
        or times a matrix that selects the side input's columns of x."""
        self.look()
        eye = Term("eye", data=f"{name} is used itself, element by element (p.W @ {name} may have any size)")
        self.terms.setdefault(name, eye if part is None else Term("part", data=part))
        return self._product(name, None, (1, 0.0))._node

    @contextmanager
    def running(self):
        """Make this trace the `current` one, for functions without a traced argument."""
        before, _now.trace = current(), self
        try:
            yield
        finally:
            _now.trace = before

    def noise(self, noise):
        """Return the traced value of a new random number per unit, a `Noise`."""
        self.look()
        self._noises += 1
        return Value(self, self.graph.leaf("noise", (self._noises, noise)))

    def units(self):
        """Return the traced value of the number of units."""
        return Value(self, self.graph.leaf("units", None))

    def look(self):
        """Name nodes after the variables they were assigned to, and note the current line as the place of new nodes."""
        frame = user_frame()
        self.graph.place = (frame.f_code.co_filename, frame.f_lineno)
        for name, value in frame.f_locals.items():
            if isinstance(value, Value) and value._trace is self and value._node.name is None and name.isidentifier():
                value._node.name = None if name == "_" else name
