"""The functions that equations of a cell may use; besides + - * / **, abs, and comparisons for `where`.

They take traced values (see `numbarnn.cells.tracing`), and also numbers and NumPy arrays, so that the same equations
run as plain NumPy. Where one has a kink, its derivative there is said below.
"""

from numbarnn.cells import scalar
from numbarnn.cells.tracing.errors import error
from numbarnn.cells.tracing.values import Traced

__all__ = [
    "abs", "clip", "cos", "elu", "exp", "hard_sigmoid", "hard_tanh", "leaky_relu", "log", "maximum", "minimum", "relu",
    "sigmoid", "sin", "softplus", "softsign", "sqrt", "tanh", "where",
]  # fmt: skip


def _apply(op, *values):
    """The operation of a name in `numbarnn.cells.scalar`, traced if one of the values is."""
    for value in values:
        if isinstance(value, Traced):
            return value._trace.apply(op, *values)
    return getattr(scalar, op)(*values)


def _number(name, value, least=None):
    """`value` as a float, if it is a number, and not less than `least`."""
    if isinstance(value, Traced):
        raise error(f"{name} must be a number, not {value._what()}: write the function out, with where(...)")
    if least is not None and not value >= least:
        raise ValueError(f"{name} must be a number from {least} on, not {value!r}")
    return float(value)


def sigmoid(x):
    """1 / (1 + e^-x)."""
    return _apply("sigmoid", x)


def tanh(x):
    """The hyperbolic tangent."""
    return _apply("tanh", x)


def relu(x):
    """max(x, 0). Derivative 0 at 0."""
    return _apply("relu", x)


def leaky_relu(x, negative_slope=0.01):
    """x where it is positive, else negative_slope x. Derivative negative_slope at 0."""
    return _apply("leaky_relu", x, _number("negative_slope", negative_slope, 0))


def elu(x, alpha=1.0):
    """x where it is positive, else alpha (e^x - 1). Derivative alpha at 0."""
    return _apply("elu", x, _number("alpha", alpha, 0))


def softplus(x):
    """log(1 + e^x)."""
    return _apply("softplus", x)


def softsign(x):
    """x / (1 + |x|)."""
    return _apply("softsign", x)


def hard_sigmoid(x):
    """min(max(x / 6 + 1/2, 0), 1), as in PyTorch. Derivative 0 at ±3."""
    return _apply("clip", x / 6.0 + 0.5, 0.0, 1.0)


def hard_tanh(x):
    """min(max(x, -1), 1). Derivative 0 at ±1."""
    return _apply("clip", x, -1.0, 1.0)


def exp(x):
    """e^x."""
    return _apply("exp", x)


def log(x):
    """The natural logarithm."""
    return _apply("log", x)


def sqrt(x):
    """The square root."""
    return _apply("sqrt", x)


def abs(x):
    """|x|. Derivative 0 at 0."""
    return _apply("absolute", x)


def sin(x):
    """The sine of x radians."""
    return _apply("sin", x)


def cos(x):
    """The cosine of x radians."""
    return _apply("cos", x)


def maximum(a, b):
    """The larger of two; where they are equal, b's gradient is all of it."""
    return _apply("maximum", a, b)


def minimum(a, b):
    """The smaller of two; where they are equal, b's gradient is all of it."""
    return _apply("minimum", a, b)


def where(condition, a, b):
    """a where the condition, a comparison, holds, else b."""
    return _apply("where", condition, a, b)


def clip(x, low, high):
    """min(max(x, low), high). Where low and high are numbers, the derivative is 0 at both."""
    if isinstance(low, Traced) or isinstance(high, Traced):
        return minimum(maximum(x, low), high)
    return _apply("clip", x, low, high)
