"""Traced values, on which equations run: the input, the states, and values computed from them.

Each operation adds a node to the graph of the run's `Trace`, or raises a `CellError`.
"""

import numpy as np

from numbarnn.cells.layout import Constant, Term
from numbarnn.cells.tracing import hints
from numbarnn.cells.tracing.errors import error, user_frame
from numbarnn.cells.tracing.graph import COMPARISONS, add_operators, reachable

_UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "divide", "power": "power", "negative": "neg",
    "remainder": "modulo",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "equal": "eq", "not_equal": "ne",
}  # fmt: skip


def _refused(message):
    """Return a method that raises a message, in which {} stands for the value."""

    def method(self, *_, **__):
        raise error(message.format(self._what()))

    return method


class Traced:
    """A traced value: operators, and operations that it refuses."""

    __slots__ = ("_trace",)
    __hash__ = object.__hash__

    def _as_node(self):
        raise NotImplementedError

    def _name_it(self, name):
        """Name its node unless it has a name."""
        node = self._as_node()
        node.name = node.name or name

    def _what(self):
        """Describe the value for messages."""
        return "a traced value"

    def _operation(self, op, *values):
        return self._trace.apply(op, *values)

    def __neg__(self):
        return self._operation("neg", self)

    def __pos__(self):
        return self

    def __abs__(self):
        return self._trace.apply("absolute", self)

    def __matmul__(self, other):
        hint, parameter = "", self._of_parameters()
        if parameter is not None:
            hint = (
                f", and none is a function of p.{parameter}: matrices are made of parameters by + - * / .T and @. "
                "Apply the function to the product; a matrix that is not learnt is a constant, numbarnn.constant"
            )
        raise error(f"{self._what()} @ {words(other)}; left of @ stands a matrix: p.R.name @ vector{hint}")

    def _of_parameters(self):
        """Return the first parameter if the value is a function of parameters alone, else None."""

    def __rmatmul__(self, other):
        if isinstance(other, np.ndarray) and other.ndim == 2:
            return self._trace.multiply(Term("constant", data=Constant(other)), self)
        if hasattr(type(other), "term"):  # a constant of H
            return self._trace.multiply(other.term(), self)
        raise error(f"{words(other)} @ {self._what()}; left of @ stands a matrix: p.W.name @ x, p.R.name @ h")

    # ----------------------------------------------------------------------------------------------- refused operations
    __bool__ = _refused(
        "the truth of {} (in if, while, and, or, not, assert, max, min): its value is not known while the equations "
        "are traced, and differs from unit to unit; choose with where(condition, a, b); the larger and the smaller of "
        "two are numbarnn.maximum and numbarnn.minimum"
    )
    __len__ = __iter__ = __contains__ = _refused(
        "{} as an array (in len, for, in, [...]): it stands for one number per unit, how many is not known yet; sums "
        "over all units are numbarnn.sum and numbarnn.mean"
    )
    __setitem__ = __delitem__ = _refused(
        "a part of {} is set: a value does not change. Make a new one, where(condition, a, b) of each unit, or with a "
        "constant mask of n units: mask * a + (1 - mask) * h"
    )
    __getitem__ = _refused(
        "a part of {}, by [...]: it stands for one number per unit. A constant matrix selects units, np.eye(n)[:6] @ h "
        "of n units, or numbarnn.constant(lambda n: np.eye(n)[...]) @ h of any n"
    )
    __call__ = _refused("{} is called as a function; a matrix stands left of @: p.W.name @ x")
    __array__ = _refused("{} as a NumPy array: its value is not known while the equations are traced")
    __floordiv__ = __rfloordiv__ = __divmod__ = __rdivmod__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = (
        __rxor__
    ) = __invert__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refused(
        "{} with //, divmod, &, |, ^, ~, << or >>: not among what a cell may use; combine comparisons by where inside "
        "where; a // b is numbarnn.floor(a / b)"
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
        traced = [one for one in (*args, *(kwargs or {}).values()) if isinstance(one, Traced)]
        name = getattr(function, "__name__", str(function))
        if not traced:  # in a list, as of torch.cat
            raise error(f"numbarnn cannot differentiate PyTorch's {name} of traced values; {hints.in_place_of(name)}")
        raise traced[0]._no_numpy(name, "PyTorch")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise error(f"{self._what()} has no attribute {name!r}: {hints.of_attribute(name)}")


_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "divide", "pow": "power", "mod": "modulo"}
add_operators(Traced, _BINARY | {op: op for op in COMPARISONS})


class Value(Traced):
    """A state or a computed value: one number per unit."""

    __slots__ = ("_node",)

    def __init__(self, trace, node):
        self._trace, self._node = trace, node

    def _as_node(self):
        return self._node

    def _operation(self, op, *values):
        matrix = next((value for value in values if hasattr(type(value), "_term")), None)
        return super()._operation(op, *values) if matrix is None else matrix._operation(op, *values)

    def _of_parameters(self):
        leaves = [node for node in reachable([self._node]) if not node.args and node.op != "const"]
        return leaves[0].data if leaves and all(one.op == "vector" for one in leaves) else None

    def _what(self):
        self._trace.look()
        if self._node.op in COMPARISONS:
            return "a comparison of traced values"
        return f"the traced value {self._node.name!r}" if self._node.name else "a traced value"


class Input(Traced):
    """x or a side input, right of @ or element by element. part: its `PartOfX` if the cell has side inputs."""

    __slots__ = ("_name", "_part")

    def __init__(self, trace, name, part=None):
        self._trace, self._name, self._part = trace, name, part

    def _what(self):
        return f"the {'side ' if self._is_side() else ''}input {self._name}"

    def _is_side(self):
        return self._part is not None and self._part.start is not None

    def _as_node(self):
        return self._trace.itself(self._name, self._part)


def is_condition(node):
    return node.op in COMPARISONS or (node.op == "const" and isinstance(node.data, bool))


def words(value):
    """Describe a value for messages."""
    if hasattr(type(value), "_what"):
        return value._what()
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    text = repr(value)
    return f"{text if len(text) < 40 else text[:36] + ' ...'} ({type(value).__name__})"


class SideInput:
    """A further input of each step, see `side`."""

    def __init__(self, width: int) -> None:
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError(f"width must be a positive int, the number of columns of the side input, got {width!r}")
        self.width = width

    __name__ = property(lambda self: f"side{self.width}")

    def __repr__(self):
        return f"numbarnn.side({self.width})"

    def __eq__(self, other):
        return isinstance(other, SideInput) and self.width == other.width

    def __hash__(self):
        return hash((SideInput, self.width))


def side(width: int) -> SideInput:
    """Declare an input of each step besides x, such as a mask or the time since the last step.

    Use it as the default of an argument after p. All units see the single column of `gap` below. A side input of H
    columns is used element by element. With a matrix, `p.V @ gap`, it may have any width.

        @numbarnn.cell
        def decaying(x, h, p, gap=numbarnn.side(1)):
            kept = numbarnn.exp(-abs(p.decay) * gap) * h
            return numbarnn.tanh(p.W @ x + p.R @ kept + p.b)

        layer = numbarnn.RNN(decaying, 9, 64)  # x has 8 columns, the gap is the ninth
        y, h = layer(x, side={"gap": gap})  # x (T, B, 8), gap (T, B, 1)

    The layer's input_size includes the side inputs, which are the last columns of x, in the order of the arguments.
    Pass them to a call by name or as a part of x. Layers with side inputs must have num_layers=1.

    Args:
        width: number of columns. `numbarnn.cell(decaying, gap=numbarnn.side(3))` changes it.

    Raises:
        ValueError: width is not a positive int.
    """
    return SideInput(width)


class _Step:
    """The number of the step within its sequence, as a hyperparameter of equations:

        @cell
        def clocked(x, h, p, t=step):
            a = tanh(p.W.a @ x + p.R.a @ h)
            return where(t % 4 < 1, a, h)

    It is 0 in the first step that a direction computes, and after a reset. Steps beyond a sequence's length do not
    count.

    It is the cell's last state, with the argument's name. A layer returns it, and counts on if it gets this state in
    the next call. It is exact up to 2^24 steps. In plain NumPy pass a number: `cell.function(x, h, p, t=3)`.
    """

    def __repr__(self):
        return "numbarnn.step"

    __name__ = "step"

    def __reduce__(self):
        return "step"

    def __call__(self, *_):
        raise TypeError(
            "numbarnn.step is no function: the equations take it as an argument, f(x, h, p, t=numbarnn.step)"
        )


step = _Step()
