"""The object `p` of traced equations: parameters, and expressions of parameters.

Only its use shows whether `p.a - p.b` is a matrix or a vector of one number per unit. So expressions of parameters are
kept as `Combined`. Left of @ it becomes a `Term`, a matrix that is derived once per call. Elsewhere it becomes a node.
"""

from numbers import Real

import numpy as np

from numbarnn.cells.layout import SCALARS, SYMBOLS, Constant, Term, operation_text
from numbarnn.cells.tracing import hints
from numbarnn.cells.tracing.constants import ConstantOfH, Identity
from numbarnn.cells.tracing.errors import error
from numbarnn.cells.tracing.graph import reachable, same_for_all
from numbarnn.cells.tracing.values import _UFUNCS, Traced, Value, words
from numbarnn.common.precision import is_number


class Parameters:
    """The object p, whose attributes are parameters."""

    __slots__ = ("_trace",)

    def __init__(self, trace):
        object.__setattr__(self, "_trace", trace)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(f"p.{name}: a parameter's name begins with a letter")
        return Parameter(self._trace, name)

    def __setattr__(self, name, value):
        raise _set(name)

    def __getitem__(self, key):
        raise error(f"p[{key!r}]: parameters have names: p.name, or getattr(p, name)")

    def __setitem__(self, key, value):
        raise _set(key)

    def __iter__(self):
        raise error("p cannot be unpacked: the equations say which parameters there are, by p.name")

    def _what(self):
        return "p, all parameters (p.name is one)"

    def __array_ufunc__(self, ufunc, *_, **__):
        raise error(f"{ufunc.__name__} of {self._what()}")


def _set(name):
    return error(f"p.{name} = ...: parameters are learned; the equations cannot set them. Take a variable")


class Operand(Traced):
    """A parameter or an expression of parameters: a matrix left of @, a vector or a scalar."""

    __slots__ = ()

    def _term(self):
        """Return (`Term`, True for a matrix or False for a scalar) for use left of @."""
        raise NotImplementedError

    def _matrix_options(self):
        """Return (number of heads, rate of DropConnect)."""
        return 1, 0.0

    @property
    def T(self):
        """The transpose of a matrix."""
        return Combined(self._trace, "transpose", (self,))

    def _operation(self, op, *values):
        if (op == "neg" or op in SYMBOLS) and all(map(_is_operand, values)):
            return Combined(self._trace, op, values)
        if _scales(op, values):
            return Scaled(self._trace, op, values)
        return super()._operation(op, *values)

    def __matmul__(self, other):
        if _is_operand(other) and not isinstance(other, Real):
            return Combined(self._trace, "product", (self, other))
        term, is_matrix = self._term()
        if not is_matrix:
            raise error(f"{self._what()} @ {words(other)}: a scalar, one number per layer; expected a matrix left of @")
        return self._trace.multiply(term, other, self._matrix_options())

    def __rmatmul__(self, other):
        if _is_operand(other) and not isinstance(other, Real):
            return Combined(self._trace, "product", (other, self))
        return super().__rmatmul__(other)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        op = "product" if ufunc.__name__ == "matmul" else _UFUNCS.get(ufunc.__name__)
        if op in SYMBOLS and method == "__call__" and all(map(_is_operand, inputs)):
            return Combined(self._trace, op, inputs)
        return super().__array_ufunc__(ufunc, method, *inputs, **options)


def _is_operand(value):
    if isinstance(value, np.ndarray):
        return value.ndim in (0, 2)
    return isinstance(value, (Operand, ConstantOfH)) or is_number(value)


class Parameter(Operand):
    """p.name or p.group.name: a matrix left of @, else a vector of one number per unit; p.scalar.name: one number.

    options: "heads", "drop", "columns" and "initial" -> argument of the function of `numbarnn.cells.functions`.
    """

    __slots__ = ("_name", "_options")

    def __init__(self, trace, name, options=None):
        self._trace, self._name, self._options = trace, name, options or {}

    def _what(self):
        return f"the parameter p.{self._name}"

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(f"p.{self._name}.{name}: a parameter's name begins with a letter")
        if name in hints.ATTRIBUTES_OF_ARRAYS:
            raise error(f"p.{self._name}.{name}: {hints.of_parameter(self._name, name)}")
        return Parameter(self._trace, f"{self._name}.{name}", self._options)

    def __getitem__(self, key):
        raise error(
            f"p.{self._name}[{key!r}]: a parameter has no parts by number; several have names, p.{self._name}.a and "
            f"p.{self._name}.b, or getattr(p.{self._name}, name)"
        )

    def __setattr__(self, name, value):
        if name not in ("_trace", *Parameter.__slots__):
            raise _set(f"{self._name}.{name}")
        object.__setattr__(self, name, value)

    def _with(self, **options):
        """Return a copy with further options."""
        return Parameter(self._trace, self._name, self._options | options)

    def _as_node(self):
        self._note("vector")
        return self._trace.graph.leaf("vector", self._name)

    def _term(self):
        return Term("parameter", data=self._name), self._note("matrix")

    def _note(self, kind):
        """Record its use as a "matrix" or "vector" and its options in the trace; return whether it is a matrix."""
        trace, name, kind = self._trace, self._name, "scalar" if self._name.startswith(SCALARS) else kind
        trace.parameter(name, kind)
        value, columns = self._options.get("initial"), self._options.get("columns") if kind == "matrix" else None
        if value is not None and trace.initial.setdefault(name, value) != value:
            raise error(f"p.{name} has the initial value {value} here and {trace.initial[name]} elsewhere. Use one")
        if columns is not None and trace.columns.setdefault(name, columns) != columns:
            raise error(f"p.{name} has {columns} columns here and {trace.columns[name]} elsewhere. Use one number")
        return kind == "matrix"

    def _matrix_options(self):
        return self._options.get("heads", 1), self._options.get("drop", 0.0)


def _scales(op, values):
    """Return whether an operation scales a possible matrix by a function of scalars, one number for all units."""
    if op not in ("mul", "divide") or not isinstance(values[0 if op == "divide" else -1], (Operand, Value)):
        return False
    numbers = [value._node for value in values if isinstance(value, Value)]
    nodes = reachable(numbers)
    return len(numbers) == 1 and numbers[0] in same_for_all(nodes) and (op == "mul" or isinstance(values[0], Operand))


class Combined(Operand):
    """An expression of parameters, numbers and constant matrices."""

    __slots__ = ("_args", "_node", "_op")

    def __init__(self, trace, op, args):
        self._trace, self._op, self._args, self._node = trace, op, args, None

    def _what(self):
        return operation_text(self._op, [words(part).removeprefix("the parameter ") for part in self._args])

    def _as_node(self):
        if self._node is None:
            is_matrix = [
                isinstance(part, Identity) or (isinstance(part, np.ndarray) and part.ndim) for part in self._args
            ]
            if self._op in ("transpose", "product") or any(is_matrix):
                raise error(f"{self._what()}, a matrix, as a value; matrices stand left of @: {self._what()} @ h")
            self._node = self._trace.apply(self._op, *self._args)._node
        return self._node

    def _term(self):
        terms, are_matrices = zip(*map(_term_of, self._args), strict=True)
        for part in self._args:
            if isinstance(part, Parameter) and part._matrix_options() != (1, 0.0):
                raise error(
                    f"{part._what()} has heads or drop_connect, so it cannot be a part of {self._what()}. Multiply the "
                    "vector by it alone: heads(p.R.a, 2) @ h + p.R.b @ h"
                )
        op = self._op
        if op in ("transpose", "product") and not all(are_matrices):
            raise error(f"{self._what()} of a scalar or a number; expected matrices")
        if op in ("add", "sub") and are_matrices[0] != are_matrices[1]:
            raise error(
                f"{self._what()} adds a number to a matrix; expected two matrices. On the diagonal it is a multiple of "
                "numbarnn.eye()"
            )
        if op == "divide" and are_matrices[1]:
            raise error(f"{self._what()} divides by a matrix; expected a number or a scalar, p.scalar.name")
        return Term(op, terms), any(are_matrices)


class Scaled(Combined):
    """A function of scalars times a matrix, `sigmoid(p.scalar.a) * p.R.h`; it scales the product with a vector."""

    __slots__ = ()

    def _term(self):
        raise error(
            f"{self._what()}, a function of scalars times a matrix, cannot be part of another matrix. Multiply the "
            "vector by each: sigmoid(p.scalar.a) * (p.R.a @ h) + p.R.b @ h"
        )

    @property
    def T(self):
        return Scaled(self._trace, self._op, self._with_matrix(lambda matrix: matrix.T))

    def __matmul__(self, other):
        return self._trace.apply(self._op, *self._with_matrix(lambda matrix: matrix @ other))

    def _with_matrix(self, function):
        return [function(part) if isinstance(part, Operand) else part for part in self._args]


def _term_of(part):
    """Return (`Term`, whether it is a matrix) of an operand of an expression."""
    if isinstance(part, Operand):
        return part._term()
    if isinstance(part, ConstantOfH):
        return part.term(), True
    if np.ndim(part):
        return Term("constant", data=Constant(part)), True
    return Term("number", data=float(part)), False
