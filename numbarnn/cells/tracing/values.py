"""What equations are run on while they are traced: the input, states, and what is computed from them.

Every operation makes a node of the graph. Whatever cannot become one raises a `CellError`.
"""

from numbers import Real

import numpy as np

from numbarnn.cells.layout import Constant, Term, declared_columns, parameters_in, term_text
from numbarnn.cells.tracing import hints
from numbarnn.cells.tracing.errors import error, user_frame
from numbarnn.cells.tracing.graph import COMPARISONS
from numbarnn.cells.tracing.step import step

_UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "divide", "power": "power", "negative": "neg",
    "remainder": "modulo",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "equal": "eq", "not_equal": "ne",
}  # fmt: skip
_ONE_UNIT = (
    "it stands for one number per unit, how many is not known yet; sums over all units are numbarnn.sum and "
    "numbarnn.mean"
)


class Trace:
    """One run of a cell's equations.

    Attributes:
        graph: its nodes.
        kinds: name of a parameter -> "matrix", "vector" or "scalar".
        terms: what stands left of @, by what the graph calls it -> the `Term`; a parameter has its own name there.
        multiplied: the same -> the nodes that it multiplies, None for x.
        options: the same -> (its number of heads, rate of its DropConnect).
        columns: name of a matrix -> how many columns it has, where that is said.
        initial: name of a parameter -> what it begins with, where that is said (`numbarnn.cells.begin`).
    """

    def __init__(self, graph):
        self.graph, self.kinds, self.terms, self.multiplied, self.options = graph, {}, {}, {}, {}
        self.columns, self.initial, self._noises = {}, {}, 0

    def parameter(self, name, kind):
        """Note that a parameter is used as a "matrix", a "vector" or a "scalar"."""
        known = self.kinds.setdefault(name, kind)
        if known != kind:
            raise error(
                f"parameter p.{name} is used as a {kind} here (as a matrix where it stands left of @, else as a vector "
                f"of one number per unit), and as a {known} elsewhere; take two names"
            )
        for other in self.kinds:
            if other.startswith(f"{name}.") or name.startswith(f"{other}."):
                raise error(
                    f"p.{min(name, other, key=len)} is used as a parameter and, in p.{max(name, other, key=len)}, as a "
                    "group of parameters; take two names"
                )

    def node(self, value):
        """The node of a value, a parameter (as a vector) or a number."""
        if isinstance(value, Traced):
            if value._trace is not self:
                raise error("a value of another cell, or of another run of the equations; use this cell's alone")
            return value._as_node()
        if isinstance(value, (Real, np.bool_)) or (isinstance(value, np.ndarray) and value.ndim == 0):
            return self.graph.const(bool(value) if isinstance(value, (bool, np.bool_)) else float(value))
        if value is step:
            raise error(f"{step!r} in an equation: it is an argument of the equations, f(x, h, p, t={step!r})")
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iuf":
            return self.constant(value)
        arrays = "; an array of one number per unit, (H,), is a constant; what is learned is a parameter: p.name"
        raise error(
            f"{words(value)} in an equation; expected a traced value, a parameter or a number"
            + (arrays if isinstance(value, (np.ndarray, list, tuple)) else "")
        )

    def constant(self, array):
        """The node of an array with one number per unit."""
        label = self._label(Term("constant", data=Constant(np.array(array, np.float64))), "constant_1")
        return self.graph.leaf("vector", label)

    def cumsum(self, value):
        """The traced value of the sum of all units up to each."""
        term = Term("lower", data="numbarnn.cumsum is over all units")
        self._label(term, "cumsum_1")
        return self.multiply(term, value)

    def apply(self, op, *values):
        """The traced value of an operation."""
        self.look()
        nodes = [self.node(value) for value in values]
        for number, node in enumerate(nodes):
            condition = op == "where" and number == 0
            if is_condition(node) and not condition:
                raise error(f"the result of a comparison as a number; choose with where(condition, a, b) ({op})")
            if condition and not is_condition(node):
                raise error("where's condition is no comparison; write one, such as where(a > 0, b, c)")
        return Value(self, self.graph.make(op, *nodes))

    def multiply(self, term, right, options=(1, 0.0)):
        """The traced value of a matrix times x, or a value.

        Args:
            term: the matrix, a `Term`. right: what stands right of @.
            options: its number of heads, and the rate of its DropConnect.
        """
        self.look()
        label, what = self._label(term), term_text(term)
        if isinstance(right, Input):
            if options != (1, 0.0):
                raise error(
                    f"{what} @ {right._name} with heads or drop_connect, which are for matrices that multiply states "
                    "and what is computed from them"
                )
            return self._product(label, None, options)
        if not isinstance(right, Traced):
            raise error(f"{what} @ {words(right)}; expected x, a state, or what is computed from them")
        vector = self.node(right)
        if vector.op == "const" or is_condition(vector):
            raise error(f"{what} @ a number or a comparison; expected a vector computed from x or states")
        columns = declared_columns(term, self.columns)
        if columns is not None:  # so what it multiplies is narrower than a state
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
            raise error(f"p.{label} has other heads or another drop_connect here than elsewhere; take one of them")
        vectors = self.multiplied.setdefault(label, [])
        if vector not in vectors:
            vectors.append(vector)
        if options[1] and len(vectors) > 1:
            raise error(
                f"p.{label} with drop_connect multiplies several vectors; it may multiply one. Take two matrices"
            )
        node = self.graph.leaf("input", label) if vector is None else self.graph.product(label, vector)
        return Value(self, node)

    def _label(self, term, first=None):
        """What the graph calls a matrix: a parameter by its name, another after its first parameter; or `first`, if it
        is free."""
        for label, known in self.terms.items():
            if known == term:
                return label
        label = term.data if term.op == "parameter" else f"{next(iter(parameters_in((term,))), 'matrix')}_formed"
        label, number = first or label, 1
        while label in self.terms:
            number += 1
            label = f"{first[:-1]}{number}" if first else f"{label.partition('#')[0]}#{number}"
        self.terms[label] = term
        return label

    def itself(self, name):
        """The node of x, element by element: the identity times x."""
        self.look()
        self.terms.setdefault(name, Term("eye", data=f"{name} is used itself"))
        return self._product(name, None, (1, 0.0))._node

    def noise(self, noise):
        """The traced value of a random number, a `Noise`: another one at each call."""
        self.look()
        self._noises += 1
        return Value(self, self.graph.leaf("noise", (self._noises, noise)))

    def units(self):
        """The traced value that is the number of units."""
        return Value(self, self.graph.leaf("units", None))

    def look(self):
        """Give nodes the names of variables they have been assigned to by now, and new ones the line that is run."""
        frame = user_frame()
        self.graph.place = (frame.f_code.co_filename, frame.f_lineno)
        for name, value in frame.f_locals.items():
            if isinstance(value, Value) and value._trace is self and value._node.name is None and name.isidentifier():
                value._node.name = None if name == "_" else name


class Traced:
    """Operators of what is traced."""

    __slots__ = ("_trace",)
    __hash__ = object.__hash__

    def _as_node(self):
        raise NotImplementedError

    def _name_it(self, name):
        """Give its node a name, if it has none."""
        node = self._as_node()
        node.name = node.name or name

    def _what(self):
        """What it is, in words."""
        return "a traced value"

    def __neg__(self):
        return self._trace.apply("neg", self)

    def __pos__(self):
        return self

    def __abs__(self):
        return self._trace.apply("absolute", self)

    def __matmul__(self, other):
        raise error(f"{self._what()} @ {words(other)}; left of @ stands a matrix: p.R.name @ vector")

    def __rmatmul__(self, other):
        if isinstance(other, np.ndarray) and other.ndim == 2:
            return self._trace.multiply(Term("constant", data=Constant(other)), self)
        raise error(f"{words(other)} @ {self._what()}; left of @ stands a matrix: p.W.name @ x, p.R.name @ h")

    # -------------------------------------------------------------------------------- what is not known while tracing
    def __bool__(self):
        raise error(
            f"the truth of {self._what()} (in if, while, and, or, not, assert, max, min): its value is not known while "
            "the equations are traced, and differs from unit to unit; choose with where(condition, a, b); the larger "
            "and the smaller of two are numbarnn.maximum and numbarnn.minimum"
        )

    def _no_number(self, *_):
        frame = user_frame()
        hint = hints.of_conversion(
            frame.f_code.co_filename, frame.f_lineno, "use numbarnn's functions (exp, tanh, ...) and operators"
        )
        raise error(
            f"{self._what()} as a Python number (in float, int, round, math's functions): its value is not known while "
            f"the equations are traced; {hint}"
        )

    __float__ = __int__ = __complex__ = __index__ = __round__ = __floor__ = __ceil__ = __trunc__ = _no_number

    def _no_array(self, *_):
        raise error(f"{self._what()} as an array (in len, for, in, [...]): " + _ONE_UNIT)

    __len__ = __iter__ = __getitem__ = __contains__ = __setitem__ = _no_array

    def _no_operator(self, *_):
        raise error(f"{self._what()} with //, divmod, &, |, ^, ~, << or >>: not among what a cell may use; "
                    "combine comparisons by where inside where; a // b is numbarnn.floor(a / b)")  # fmt: skip

    __floordiv__ = __rfloordiv__ = __divmod__ = __rdivmod__ = _no_operator
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _no_operator
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _no_operator

    def __array__(self, *_, **__):
        raise error(f"{self._what()} as a NumPy array: its value is not known while the equations are traced")

    def __array_ufunc__(self, ufunc, method, *inputs, **_):
        op = _UFUNCS.get(ufunc.__name__)
        if ufunc.__name__ == "matmul":
            return self.__rmatmul__(inputs[0])
        if op and method == "__call__":  # np.float64(2) * h
            return self._trace.apply(op, *inputs)
        raise self._no_numpy(ufunc.__name__)

    def __array_function__(self, function, *_):
        raise self._no_numpy(function.__name__)

    def _no_numpy(self, name, library="NumPy"):
        return error(f"{library}'s {name} of {self._what()}, which numbarnn cannot derive; {hints.in_place_of(name)}")

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        found = [one for one in (*args, *(kwargs or {}).values()) if isinstance(one, Traced)]
        name = getattr(function, "__name__", str(function))
        if not found:  # in a list, as of torch.cat
            raise error(f"PyTorch's {name} of traced values, which numbarnn cannot derive; {hints.in_place_of(name)}")
        raise found[0]._no_numpy(name, "PyTorch")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise error(f"{self._what()} has no attribute {name!r}: {hints.of_attribute(name)}")


def _operator(op):
    def forward(self, other):
        return self._trace.apply(op, self, other)

    def reflected(self, other):
        return self._trace.apply(op, other, self)

    return forward, reflected


_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "divide", "pow": "power", "mod": "modulo"}
for _name, _op in _BINARY.items():
    _forward, _reflected = _operator(_op)
    setattr(Traced, f"__{_name}__", _forward)
    setattr(Traced, f"__r{_name}__", _reflected)
for _op in COMPARISONS:
    setattr(Traced, f"__{_op}__", _operator(_op)[0])


class Value(Traced):
    """A state, or what has been computed: one number per unit."""

    __slots__ = ("_node",)

    def __init__(self, trace, node):
        self._trace, self._node = trace, node

    def _as_node(self):
        return self._node

    def _what(self):
        self._trace.look()
        if self._node.op in COMPARISONS:
            return "a comparison of traced values"
        return f"the traced value {self._node.name!r}" if self._node.name else "a traced value"


class Input(Traced):
    """x: right of @, or itself, element by element, where I is H."""

    __slots__ = ("_name",)

    def __init__(self, trace, name):
        self._trace, self._name = trace, name

    def _what(self):
        return f"the input {self._name}"

    def _as_node(self):
        return self._trace.itself(self._name)


def is_condition(node):
    return node.op in COMPARISONS or (node.op == "const" and isinstance(node.data, bool))


def words(value):
    """What a value is, in words."""
    if isinstance(value, Traced):
        return value._what()
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    text = repr(value)
    return f"{text if len(text) < 40 else text[:36] + ' ...'} ({type(value).__name__})"
