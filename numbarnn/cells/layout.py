"""Name a cell's parameters, and define the arrays that kernels read by them.

Per layer and direction, kernels read matrices W (G*H, I) and R (A*H, H), biases b_w and b_r, and per-unit parameters.
The equations have parameters such as `p.W.i`, `p.peep`, `p.scalar.alpha`. Mostly the rows of W are the parameters that
multiply x, one after another. Otherwise `Layout.derived` defines the rows by `Term`s, from which
`numbarnn.weights.derived` computes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

# Kind of array with rows of several parameters -> PyTorch's name.
STACKED = {"W": "weight_ih", "R": "weight_hh", "W_hr": "weight_hr", "b_w": "bias_ih", "b_r": "bias_hh"}
# The biases of cuDNN's four bias modes (CUDNN_RNN_NO_BIAS, _SINGLE_INP_BIAS, _SINGLE_REC_BIAS, _DOUBLE_BIAS).
BIAS_MODES = {"none": (), "input": ("b_w",), "recurrent": ("b_r",), "double": ("b_w", "b_r")}
SCALARS = "scalar."  # start of the names of parameters with one number per layer


class Term(NamedTuple):
    """An expression of parameters.

        parameter   data: its name                     number    data: a float
        eye         the identity; data: its size, or   constant  data: a `Constant`
                    a reason for errors, until known   part      selects a part of x; data: a `PartOfX`
        lower       ones on and below the diagonal     zero      a vector of zeros
        fill        a vector with one scalar           transpose, neg, add, sub, mul, divide, product   of args

    mul and divide are elementwise, or with a number or scalar. product is a matrix product.
    """

    op: str
    args: tuple = ()
    data: Any = None


class PartOfX(NamedTuple):
    """A matrix that selects columns of x: one side input, or all columns but those of side inputs, the last `all_side`.

    Attributes:
        name: the input's name in the equations.
        start, width: the side input's first column among those of side inputs, and its number of columns; None for x.
        rows: a letter or an int, None until it is known. With a width of 1 all rows select the same column.
    """

    name: str
    start: int | None
    width: int | None
    all_side: int
    rows: Any = None

    def array(self, sizes):
        """Return the matrix for these sizes, letter -> int."""
        width_of_x, rows = sizes["I"], sizes.get(self.rows, self.rows)
        matrix = np.zeros((rows, width_of_x + self.all_side))
        first, width = (0, width_of_x) if self.start is None else (width_of_x + self.start, self.width)
        matrix[:, first : first + width] = np.ones((rows, 1)) if width == 1 else np.eye(rows)
        return matrix


class Constant:
    """A matrix, or a vector of one number per unit, that is not learned. Constants compare by value.

    Attributes:
        array: a copy of the array, or None. function: H -> array, or None.
        shape: of the array; for a function (rows, columns) or (rows,), letters or ints, as far as known.
    """

    def __init__(self, array=None, function=None, shape=None):
        self.array, self.function = None if array is None else array.copy(), function
        self.shape = shape if array is None else array.shape
        self._key = (function, shape) if array is None else (array.shape, array.dtype.str, array.tobytes())

    def with_shape(self, *shape):
        """Return a copy with the shape of a function's array; a constant array is returned unchanged."""
        return self if self.function is None else Constant(function=self.function, shape=shape)

    def of(self, sizes):
        """Return the array for sizes, letter -> int; ValueError if a function's array has another shape."""
        if self.function is None:
            return self.array
        array = np.asarray(self.function(sizes["H"]), np.float64)
        wanted = None if self.shape is None else tuple(sizes.get(size, size) for size in self.shape)
        if wanted not in (None, array.shape) or array.ndim not in (1, 2):
            raise ValueError(
                f"{self} is of shape {array.shape} for a hidden size of {sizes['H']}; expected "
                f"{wanted or 'a vector of shape (H,), one number per unit, or a matrix'}"
            )
        return array

    def __str__(self):
        if self.function is None:
            return f"a constant {as_text(self.shape)}"
        name = getattr(self.function, "__name__", "")
        return "a constant of H" if name in ("", "<lambda>") else f"a constant of H, {name}"

    def __eq__(self, other):
        return isinstance(other, Constant) and self._key == other._key

    def __hash__(self):
        return hash(self._key)


class Equal(NamedTuple):
    """Two sizes, letters or ints, that must be equal, and why."""

    one: Any
    other: Any
    why: str


@dataclass(frozen=True, eq=False)
class Layout:
    """A cell's parameters by name. Sizes are letters (H, I, P) or ints.

    Attributes:
        rows: kind, one of `STACKED` -> names of the parameters in its array, in order, with H rows each (W_hr: P).
        own: name -> shape of each parameter that is a separate array: (H,), (), or a matrix.
        derived: kind, one of `STACKED` or "per_unit" -> the `Term` of each gate or per-unit parameter. Kinds whose
            parameters kernels read directly are missing.
        equal: `Equal`s that a layer's sizes must meet.
        states: the size of each state but the first; empty if all are H.
        side: name -> width of the side inputs, the last columns of x.
    """

    rows: Mapping = field(default_factory=dict)
    own: Mapping = field(default_factory=dict)
    derived: Mapping = field(default_factory=dict)
    equal: tuple = ()
    states: tuple = ()
    side: Mapping = field(default_factory=dict)

    side_width = property(lambda self: sum(self.side.values()), doc="Number of columns of side inputs.")

    def parts_of(self, x):
        """Split x along its last axis; return (x without side inputs, name -> side input), as views."""
        ends = np.cumsum([x.shape[-1] - self.side_width, *self.side.values()])
        own, *others = (x[..., first:last] for first, last in zip([0, *ends], ends, strict=False))
        return own, dict(zip(self.side, others, strict=True))

    def of_all_x(self, term):
        """Return a matrix' term with zero columns for the side inputs in x, unless it selects a part of x."""
        if not self.side or any(part.op == "part" for part in walked((term,))):
            return term
        return Term("product", (term, Term("part", data=PartOfX("x", None, None, self.side_width, "I"))))

    @property
    def per_unit(self):
        """Names of the per-unit parameters."""
        return tuple(name for name, shape in self.own.items() if shape == ("H",))

    def shapes(self, width="H", heads=1):
        """Return name -> shape of every parameter, in letters. width: size of h, "P" with a projection."""
        columns = f"{width}/{heads}" if heads > 1 else width
        of_kind = {"W": ("H", "I"), "R": ("H", columns), "W_hr": ("P", "H"), "b_w": ("H",), "b_r": ("H",)}
        stacked = {name: of_kind[kind] for kind, names in self.rows.items() for name in names}
        return stacked | dict(self.own)


def usual(cell):
    """Return the `Layout` of a cell written as functions."""
    kinds = {"W": cell.gates, "R": cell.gates_of_ah}
    if cell.bias is None or cell.projected:
        kinds["W_hr"] = ()
    kinds |= {kind: cell.gates if kind == "b_w" else cell.gates_of_ah for kind in BIAS_MODES[cell.bias or "double"]}
    rows = {kind: tuple(f"{kind}.{gate}" for gate in gates) or (kind,) for kind, gates in kinds.items()}
    return Layout(rows, dict.fromkeys(cell.per_unit, ("H",)))


def flat_name(name):
    """Return a parameter's name in a state dict, without the layer's suffix."""
    return name.replace(".", "_")


def parameters_in(terms):
    """Return the names of the parameters in terms, each once, in their order."""
    return tuple(dict.fromkeys(term.data for term in walked(terms) if term.op in ("parameter", "fill")))


def constants_in(terms):
    """Return the `Constant`s in terms, each once, in their order."""
    return tuple(dict.fromkeys(term.data for term in walked(terms) if term.op == "constant"))


def walked(terms):
    """Yield the terms and all their arguments, from left to right."""
    for term in terms:
        yield term
        yield from walked(term.args)


def declared_columns(term, columns):
    """Return a matrix' number of columns if `columns`, name of a parameter -> int, determines it, else None."""
    if term.op == "parameter":
        return columns.get(term.data)
    if term.op == "product":
        return declared_columns(term.args[1], columns)
    if term.op == "transpose":
        return None
    return next((found for part in term.args if (found := declared_columns(part, columns)) is not None), None)


SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "divide": "/", "product": "@"}


def operation_text(op, texts):
    """Return the text of an operation of a `Term`, from the texts of its arguments."""
    if op in SYMBOLS:
        return f"({f' {SYMBOLS[op]} '.join(texts)})"
    return f"{texts[0]}.T" if op == "transpose" else f"-{texts[0]}"


def term_text(term):
    """Return the text of a term as in equations."""
    if term.args:
        return operation_text(term.op, list(map(term_text, term.args)))
    if term.op in ("parameter", "fill"):
        return f"p.{term.data}"
    if term.op == "number":
        return f"{term.data:g}"
    if term.op == "part":
        return f"{term.data.name} of x"
    return {"constant": str(term.data), "eye": "eye", "zero": "0", "lower": "cumsum's"}[term.op]


def as_text(parts):
    """Return a tuple as text: (H, I) for ("H", "I")."""
    return f"({', '.join(map(str, parts))}{',' if len(parts) == 1 else ''})"


def listed(shapes):
    """Return texts with the names of each shape: ["W.i W.g (H, I)", "b.i (H,)"]."""
    groups = {}
    for name, shape in shapes.items():
        groups.setdefault(as_text(shape), []).append(name)
    return [f"{' '.join(names)} {shape}" for shape, names in groups.items()]
