"""Name a cell's parameters, and derive from them the matrices that kernels multiply with.

Kernels read, per layer and direction, matrices W (G*H, I) and R (A*H, H), biases b_w and b_r, and parameters per unit.
Users set what their equations name: `p.W.i`, `p.peep`, `p.scalar.alpha`. As a rule the rows of W are the matrices that
multiply x, one after another, and nothing is to be done. Where it is not so, `Layout.derived` says by `Term`s what the
rows are instead; `numbarnn.weights.derived` computes them, and takes gradients back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

# Kinds of parameters that stand one after another in one array: kind -> that array's name, PyTorch's.
STACKED = {"W": "weight_ih", "R": "weight_hh", "W_hr": "weight_hr", "b_w": "bias_ih", "b_r": "bias_hh"}
# The biases of cuDNN's four bias modes (CUDNN_RNN_NO_BIAS, _SINGLE_INP_BIAS, _SINGLE_REC_BIAS, _DOUBLE_BIAS).
BIAS_MODES = {"none": (), "input": ("b_w",), "recurrent": ("b_r",), "double": ("b_w", "b_r")}
SCALARS = "scalar."  # what the names of parameters begin with of which there is one number per layer


class Term(NamedTuple):
    """An expression of parameters.

        parameter   data: its name                     number    data: a float
        eye         the identity; data: its size, or   constant  data: a `Constant`
                    why it is square, until that is known
        lower       (H, H), ones on the diagonal and below it: what sums up
        part        selects a part of x; data: a `PartOfX`
        zero, fill  a vector of zeros; of one scalar   transpose, neg, add, sub, mul, divide, product   of args

    mul and divide work element by element, or with a number or scalar; product is a matrix product.
    """

    op: str
    args: tuple = ()
    data: Any = None


class PartOfX(NamedTuple):
    """A matrix that selects columns of x: its last `all_side` columns are side inputs, in the order of the arguments.

    Attributes:
        name: of the side input; of x itself without these.
        start, width: the first column after those of x itself, and how many; None: x itself.
        rows: a letter or an int, None until it is known. With a width of 1 all rows select the same column.
    """

    name: str
    start: int | None
    width: int | None
    all_side: int
    rows: Any = None

    def array(self, sizes):
        """Return the matrix for these sizes, letter -> int."""
        own, rows = sizes["I"], sizes.get(self.rows, self.rows)
        made = np.zeros((rows, own + self.all_side))
        first, width = (0, own) if self.start is None else (own + self.start, self.width)
        made[:, first : first + width] = np.ones((rows, 1)) if width == 1 else np.eye(rows)
        return made


class Constant:
    """A matrix, or a vector with a number per unit, that is not learnt; equal ones are equal.

    Attributes:
        array: a copy of it, as callers may go on writing to theirs; None where it is a function of H.
        function: H -> array, or None.
        shape: of the array; of a function (rows, columns) or (rows,), letters or ints, as far as that is known.
    """

    def __init__(self, array=None, function=None, shape=None):
        self.array, self.function = None if array is None else array.copy(), function
        self.shape = shape if array is None else array.shape
        self._key = (function, shape) if array is None else (array.shape, array.dtype.str, array.tobytes())

    def with_shape(self, *shape):
        """A function with what is known of its array's shape; an array as it is."""
        return self if self.function is None else Constant(function=self.function, shape=shape)

    def of(self, sizes):
        """The array of a layer of these sizes, letter -> int; ValueError if a function returns no such array."""
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
    """Two sizes, letters or ints, that have to be equal, and why."""

    one: Any
    other: Any
    why: str


@dataclass(frozen=True, eq=False)
class Layout:
    """A cell's parameters by name.

    Attributes:
        rows: kind, one of `STACKED` -> the names of those that stand in its array, in their order. Each has H rows, but
            for W_hr.
        own: name -> shape of each parameter that is an array of its own: (H,) per unit, () of the layer, or a matrix. A
            size is a letter, as in `numbarnn`, or an int.
        derived: kind, one of `STACKED` or "per_unit" -> the `Term` of each gate or parameter per unit, where kernels do
            not read the parameters themselves.
        equal: what a layer's sizes have to fulfill, as `Equal`s.
        states: the size of each state but the first, a letter or an int; empty: all have H units. For kernels h and all
            states have as many as the largest; what they multiply a smaller one with is 0 beyond.
        side: name -> width of the side inputs, the last columns of x.
    """

    rows: Mapping = field(default_factory=dict)
    own: Mapping = field(default_factory=dict)
    derived: Mapping = field(default_factory=dict)
    equal: tuple = ()
    states: tuple = ()
    side: Mapping = field(default_factory=dict)

    side_width = property(lambda self: sum(self.side.values()), doc="The columns of x that are side inputs.")

    def parts_of(self, x):
        """Return (x itself, name -> side input), views of the columns of an x, its last axis."""
        ends = np.cumsum([x.shape[-1] - self.side_width, *self.side.values()])
        own, *others = (x[..., first:last] for first, last in zip([0, *ends], ends, strict=False))
        return own, dict(zip(self.side, others, strict=True))

    def of_all_x(self, term):
        """Return a matrix that multiplies x with columns for side inputs, zeros if they are not there."""
        if not self.side or any(part.op == "part" for part in walked((term,))):
            return term
        return Term("product", (term, Term("part", data=PartOfX("x", None, None, self.side_width, "I"))))

    @property
    def per_unit(self):
        """The names of the parameters per unit."""
        return tuple(name for name, shape in self.own.items() if shape == ("H",))

    def shapes(self, width="H", heads=1):
        """Name -> shape of every parameter, in letters. `width`: of h, "P" with a projection."""
        columns = f"{width}/{heads}" if heads > 1 else width
        of_kind = {"W": ("H", "I"), "R": ("H", columns), "W_hr": ("P", "H"), "b_w": ("H",), "b_r": ("H",)}
        stacked = {name: of_kind[kind] for kind, names in self.rows.items() for name in names}
        return stacked | dict(self.own)


def usual(cell):
    """The `Layout` of a cell that is written by hand."""
    kinds = {"W": cell.gates, "R": cell.gates_of_ah}
    if cell.bias is None or cell.projected:
        kinds["W_hr"] = ()
    kinds |= {kind: cell.gates if kind == "b_w" else cell.gates_of_ah for kind in BIAS_MODES[cell.bias or "double"]}
    rows = {kind: tuple(f"{kind}.{gate}" for gate in gates) or (kind,) for kind, gates in kinds.items()}
    return Layout(rows, dict.fromkeys(cell.per_unit, ("H",)))


def flat_name(name):
    """Return the name of a single array in a state dict, without the layer's ending."""
    return name.replace(".", "_")


def parameters_in(terms):
    """The names of the parameters in terms, each once, in their order."""
    return tuple(dict.fromkeys(term.data for term in walked(terms) if term.op in ("parameter", "fill")))


def constants_in(terms):
    """The `Constant`s in terms, each once, in their order."""
    return tuple(dict.fromkeys(term.data for term in walked(terms) if term.op == "constant"))


def walked(terms):
    """All terms that these are made of, themselves too, from left to right."""
    for term in terms:
        yield term
        yield from walked(term.args)


def declared_columns(term, columns):
    """How many columns a matrix has, if `columns`, name of a parameter -> int, says it; else None."""
    if term.op == "parameter":
        return columns.get(term.data)
    if term.op == "product":
        return declared_columns(term.args[1], columns)
    if term.op == "transpose":
        return None
    return next((found for part in term.args if (found := declared_columns(part, columns)) is not None), None)


SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "divide": "/", "product": "@"}


def operation_text(op, texts):
    """An operation of a `Term` as equations have it, of the texts of its arguments."""
    if op in SYMBOLS:
        return f"({f' {SYMBOLS[op]} '.join(texts)})"
    return f"{texts[0]}.T" if op == "transpose" else f"-{texts[0]}"


def term_text(term):
    """A term as equations have it."""
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
    """A tuple's text, such as (H, I) of ("H", "I")."""
    return f"({', '.join(map(str, parts))}{',' if len(parts) == 1 else ''})"


def listed(shapes):
    """Names by their shapes, as text: `W.i W.g (H, I), b.i (H,)`, in the order in which shapes come first."""
    groups = {}
    for name, shape in shapes.items():
        groups.setdefault(as_text(shape), []).append(name)
    return [f"{' '.join(names)} {shape}" for shape, names in groups.items()]
