"""Functions for the equations of a cell, besides `+ - * / % **` and comparisons.

They take traced values and NumPy arrays, so that the same equations run in plain NumPy, as inference. A docstring
gives the derivative at a kink.

    of one unit           sigmoid tanh relu leaky_relu elu selu softplus log_sigmoid softsign gelu silu mish
                          hard_sigmoid hard_sigmoid_keras2 hard_tanh erf normal_cdf exp log sqrt abs sign floor sin
                          cos maximum minimum where clip
    of all units          sum mean layer_norm softmax logsumexp cumsum cumax
    random, in training   dropout zoneout normal uniform
    of parameters         heads drop_connect columns (of matrices), eye, initial chrono
    of states             sized
    not learned           constant
    of derivatives        stop_gradient custom_derivative
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from numbarnn.cells import begin, scalar
from numbarnn.cells.definition import Noise
from numbarnn.cells.tracing import hints
from numbarnn.cells.tracing.constants import ConstantOfH, Identity
from numbarnn.cells.tracing.errors import error
from numbarnn.cells.tracing.matrices import Parameter
from numbarnn.cells.tracing.trace import current
from numbarnn.cells.tracing.values import Traced, words

if TYPE_CHECKING:
    from numbarnn.common.typing import Value

__all__ = [
    "abs", "chrono", "clip", "columns", "constant", "cos", "cumax", "cumsum", "custom_derivative", "drop_connect",
    "dropout", "elu", "erf", "exp", "eye", "floor", "gelu", "hard_sigmoid", "hard_sigmoid_keras2", "hard_tanh",
    "heads", "initial", "layer_norm", "leaky_relu", "log", "log_sigmoid", "logsumexp", "maximum", "mean", "minimum",
    "mish", "normal", "normal_cdf", "relu", "selu", "sigmoid", "sign", "silu", "sin", "sized", "softmax", "softplus",
    "softsign", "sqrt", "stop_gradient", "sum", "tanh", "uniform", "where", "zoneout",
]  # fmt: skip

hints.FUNCTIONS[:] = __all__


def _apply(op, *values):
    """Apply an operation of `numbarnn.cells.scalar` to traced values or arrays."""
    for value in values:
        if isinstance(value, Traced):
            return value._trace.apply(op, *values)
    return getattr(scalar, op)(*values)


def _number(name, value, least=None):
    """Return `value` as a float; raise an error unless it is a number of at least `least`. `name` is for messages."""
    if isinstance(value, Traced):
        raise error(f"{name} must be a number, not {value._what()}. Write the function out, with where(...)")
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if least is not None and not value >= least:
        raise ValueError(f"{name} must be a number from {least} on, not {value!r}")
    return float(value)


def _of_one(name, doc, function=None) -> Callable[[Value], Value]:
    """Make a function of one value, by default the operation `name` of `numbarnn.cells.scalar`."""

    def of_one(x: Value) -> Value:
        return function(x) if function else _apply(name, x)

    of_one.__name__, of_one.__qualname__, of_one.__doc__ = name, name, doc
    return of_one


sigmoid = _of_one("sigmoid", "Return 1 / (1 + e^-x).")
tanh = _of_one("tanh", "Return the hyperbolic tangent.")
relu = _of_one("relu", "Return max(x, 0). Derivative 0 at 0.")
softplus = _of_one("softplus", "Return log(1 + e^x).")
softsign = _of_one("softsign", "Return `x / (1 + |x|)`.")
exp = _of_one("exp", "Return e^x.")
log = _of_one("log", "Return the natural logarithm.")
sqrt = _of_one("sqrt", "Return the square root.")
abs = _of_one("abs", "Return `|x|`. Derivative 0 at 0.", lambda x: _apply("absolute", x))
sign = _of_one("sign", "Return the sign of x: 1, -1 or 0. Derivative 0 everywhere.")
floor = _of_one("floor", "Return the largest integer of at most x. Derivative 0 everywhere.")
erf = _of_one("erf", "Return the error function: 2/√π times the integral of e^-t² from 0 to x.")
normal_cdf = _of_one("normal_cdf", "Return Φ(x), the probability that a standard normal number is less than x.")
sin = _of_one("sin", "Return the sine of x radians.")
cos = _of_one("cos", "Return the cosine of x radians.")
log_sigmoid = _of_one("log_sigmoid", "Return log(1 / (1 + e^-x)) without overflow.", lambda x: -softplus(-x))
silu = _of_one("silu", "Return x sigmoid(x), also called swish.", lambda x: x * sigmoid(x))
mish = _of_one("mish", "Return x tanh(softplus(x)). Misra 2019, arXiv:1908.08681.", lambda x: x * tanh(softplus(x)))
selu = _of_one(
    "selu",
    "Return 1.0507 x where x is positive, else 1.7581 (e^x - 1). Derivative 1.7581 at 0.\n\n"
    "Klambauer et al. 2017, arXiv:1706.02515.",
    lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772),
)
hard_sigmoid = _of_one(
    "hard_sigmoid",
    "Return min(max(x / 6 + 1/2, 0), 1), as in PyTorch and Keras 3. Derivative 0 at ±3.",
    lambda x: _apply("clip", x / 6.0 + 0.5, 0.0, 1.0),
)
hard_sigmoid_keras2 = _of_one(
    "hard_sigmoid_keras2",
    "Return min(max(x / 5 + 1/2, 0), 1), the hard sigmoid of Keras 1 and 2 and ONNX. Derivative 0 at ±2.5.",
    lambda x: _apply("clip", 0.2 * x + 0.5, 0.0, 1.0),
)
hard_tanh = _of_one(
    "hard_tanh", "Return min(max(x, -1), 1). Derivative 0 at ±1.", lambda x: _apply("clip", x, -1.0, 1.0)
)


def leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    """Return x where x is positive, else negative_slope x. Derivative negative_slope at 0."""
    return _apply("leaky_relu", x, _number("negative_slope", negative_slope, 0))


def elu(x: Value, alpha: float = 1.0) -> Value:
    """Return x where x is positive, else alpha (e^x - 1). Derivative alpha at 0."""
    return _apply("elu", x, _number("alpha", alpha, 0))


def gelu(x: Value, approximate: str = "none") -> Value:
    """Return x Φ(x) (Hendrycks and Gimpel 2016, arXiv:1606.08415).

    Args:
        approximate: "tanh" computes x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2, as in PyTorch. "none" is exact.
    """
    if approximate == "none":
        return x * normal_cdf(x)
    if approximate != "tanh":
        raise ValueError(f"approximate must be 'none' or 'tanh', not {approximate!r}")
    # (1 + tanh(u)) / 2 is sigmoid(2 u), which has no cancellation
    return x * sigmoid(_GELU_SCALE * (x + 0.044715 * x * x * x))


_GELU_SCALE = 2 * math.sqrt(2 / math.pi)


def maximum(a: Value, b: Value) -> Value:
    """Return the larger of a and b. If they are equal, b gets all of the gradient."""
    return _apply("maximum", a, b)


def minimum(a: Value, b: Value) -> Value:
    """Return the smaller of a and b. If they are equal, b gets all of the gradient."""
    return _apply("minimum", a, b)


def where(condition: Value, a: Value, b: Value) -> Value:
    """Return a where the condition (a comparison) holds, else b.

    Both derivatives are computed. As in PyTorch, an infinite derivative makes the gradient NaN even where the other
    value is chosen: write `log(where(a > 0, a, 1))` instead of `where(a > 0, log(a), 0)`.
    """
    return _apply("where", condition, a, b)


def clip(x: Value, low: float, high: float) -> Value:
    """Return min(max(x, low), high). If low and high are numbers, the derivative is 0 at both."""
    if isinstance(low, Traced) or isinstance(high, Traced):
        return minimum(maximum(x, low), high)
    return _apply("clip", x, low, high)


# ------------------------------------------------------------------------------------------------------- of all units
def sum(x: Value) -> Value:
    """Return the sum over all units, for every unit. For arrays units are the first axis."""
    if isinstance(x, Traced):
        return x._trace.apply("row_sum", x)
    if np.ndim(x) == 0:
        raise error(f"the sum of {x!r} needs a value per unit. Use mean, or a value computed from x or h")
    return np.broadcast_to(np.sum(x, axis=0), np.shape(x))


def mean(x: Value) -> Value:
    """Return the mean over all units, for every unit."""
    if not isinstance(x, Traced) and np.ndim(x) == 0:
        return x
    return sum(x) * (1 / _units(x))


def _units(x):
    if isinstance(x, Traced):
        return x._trace.units()
    if np.ndim(x) == 0:
        raise error(f"a value per unit is needed, got the number {x!r}. Pass a value computed from x or h")
    return len(x)


def _largest(x):
    """Return the maximum over all units, for every unit, as a constant for backward."""
    if isinstance(x, Traced):
        return x._trace.apply("row_max", x)
    _units(x)  # raises CellError for a number
    return np.broadcast_to(np.max(x, axis=0), np.shape(x))


def softmax(x: Value) -> Value:
    """Return e^x / Σ e^x over all units, without overflow."""
    share = exp(x - _largest(x))
    return share / sum(share)


def logsumexp(x: Value) -> Value:
    """Return log Σ e^x over all units, for every unit, without overflow."""
    largest = _largest(x)
    return largest + log(sum(exp(x - largest)))


def cumsum(x: Value) -> Value:
    """Return for each unit the sum of all units up to and including it. For arrays units are the first axis.

    Each step multiplies by a constant triangular matrix, which costs as much as a gate.
    """
    return x._trace.cumsum(x) if isinstance(x, Traced) else np.cumsum(x, axis=0)


def cumax(x: Value) -> Value:
    """Return cumsum(softmax(x)), which rises from 0 to 1 over the units (Shen et al. 2019, arXiv:1810.09536, (6))."""
    return cumsum(softmax(x))


def layer_norm(*values: Value, eps: float = 1e-5) -> Value:
    """Return (x - mean) / sqrt(variance + eps) over all units (Ba et al. 2016, arXiv:1607.06450).

    Write gain and shift yourself: p.gain * layer_norm(x) + p.shift.

    Args:
        values: one value, or several that share mean and variance, such as the products of an LSTM's gates.
        eps: added to the variance.

    Returns:
        the normalized value, or a tuple of several.
    """
    eps = _number("eps", eps, 0)
    if not values:
        raise TypeError("layer_norm takes one value or more, got none: layer_norm(x)")
    count = len(values)
    share = _named("share", 1 / (_units(values[0]) * count))
    center = _named("center", sum(builtins.sum(values[1:], values[0])) * share)
    centered = [value - center for value in values]
    squares = builtins.sum((value * value for value in centered[1:]), centered[0] * centered[0])
    variance = _named("variance", sum(squares) * share)
    scale = _named("scale", 1 / sqrt(variance + eps))
    normalized = tuple(value * scale for value in centered)
    return normalized if count > 1 else normalized[0]


def _named(name, value):
    """Name a traced value in the generated source."""
    if isinstance(value, Traced):
        value._name_it(f"layer_norm_{name}")
    return value


# ------------------------------------------------------------------------------------------------------ of derivatives
def stop_gradient(x: Value) -> Value:
    """Return x as a constant for backward: no gradient flows through it (PyTorch's detach)."""
    return _apply("stop_gradient", x)


def custom_derivative(value: Value, x: Value, derivative: Value, *more: Value) -> Value:
    """Return `value`, with `derivative` as its derivative by x. No other gradient flows through it.

        spike = custom_derivative(where(v > 1, 1, 0), v, 1 / (1 + abs(5 * (v - 1))) ** 2)   # a surrogate
        bit = custom_derivative(sign(a), a, 1)                                              # straight through

    Args:
        value: the result of forward.
        x: a traced value or a parameter. Its gradient is `derivative` times the gradient of the result.
        derivative: computed in backward only. No gradient flows through it.
        more: further pairs of x and derivative.
    """
    if len(more) % 2:
        raise error("custom_derivative takes a value, then pairs (x, derivative); the last x has no derivative")
    pairs = (x, derivative, *more)
    for number, one in enumerate(pairs[::2]):
        if isinstance(value, Traced) and not isinstance(one, Traced):
            raise error(f"custom_derivative's x number {number + 1} is {words(one)}; expected a traced value")
    return _apply("custom_derivative", value, *pairs)


# -------------------------------------------------------------------------------------------------- random, in training
def _noise(value, noise):
    return value._trace.noise(noise) if isinstance(value, Traced) else noise.mean


def _rate(rate):
    """Return `rate` as a float; raise ValueError unless it is from 0 to less than 1."""
    rate = _number("rate", rate, 0)
    if rate >= 1:
        raise ValueError(f"rate must be a probability from 0 to less than 1, got {rate!r}")
    return rate


def dropout(x: Value, rate: float, each_step: bool = True) -> Value:
    """Drop x with probability `rate` in training, and scale the rest by 1 / (1 - rate). In inference return x.

    Args:
        x: the value; each unit is dropped independently.
        rate: probability from 0 to less than 1.
        each_step: draw at each step (Semeniuta et al. 2016, arXiv:1603.05118). False draws once per sequence (Gal and
            Ghahramani 2016, arXiv:1512.05287).
    """
    rate = _rate(rate)
    return x * _noise(x, Noise(rate, 1.0 / (1.0 - rate), 1.0, bool(each_step))) if rate else x


def uniform(each_step: bool = True) -> Value:
    """Return a random number from 0 to 1 for each unit and sequence; outside training 1/2.

    Training calls (`layer.forward`) draw the same numbers on every engine.

    Args:
        each_step: draw at each step. False draws once per sequence.
    """
    return _drawn(0.5, each_step)


def normal(each_step: bool = True) -> Value:
    """Return a normal random number (mean 0, standard deviation 1) per unit and sequence; outside training 0.

        h_new = tanh(a) + p.scale * nr.normal()    # noise of a learned size in the state

    To draw in inference too, call `layer.forward` and ignore its tape; in PyTorch use the module's training mode.

    Args:
        each_step: draw at each step. False draws once per sequence.
    """
    return sqrt(-2 * log(_drawn(1.0, each_step))) * sin(2 * math.pi * _drawn(0.0, each_step))  # Box and Muller 1958


def _drawn(mean, each_step):
    """Return a uniform random number if the equations are being traced, else its mean."""
    if not isinstance(each_step, bool):
        raise TypeError(f"each_step must be a bool, not {each_step!r}. Scale the number: 0.1 * nr.normal()")
    trace = current()
    return mean if trace is None else trace.noise(Noise(0.0, 1.0, mean, each_step, uniform=True))


def zoneout(new: Value, old: Value, rate: float) -> Value:
    """Keep the old state with probability `rate` in training (Krueger et al. 2017, arXiv:1606.01305).

    Each unit draws at each step. In inference return the mean, (1 - rate) new + rate old.

    Args:
        new, old: a state after the step and before it.
        rate: probability from 0 to less than 1.
    """
    rate = _rate(rate)
    if not rate:
        return new
    keep = _noise(new if isinstance(new, Traced) else old, Noise(rate, 1.0, 1.0 - rate))
    return keep * new + (1.0 - keep) * old


# ------------------------------------------------------------------------------------------------------ of parameters
class _Group:
    """A group of parameters, such as p.R, with a function applied to each parameter."""

    def __init__(self, group, function):
        self._group, self._function = group, function

    def __getattr__(self, name):
        return self._function(getattr(self._group, name))


def _with(name, parameter, change=lambda array: array, **options):
    """Set options of a parameter or a group of parameters; return `change(array)` for an array."""
    if isinstance(parameter, Parameter):
        return parameter._with(**options)
    if isinstance(parameter, np.ndarray):
        return change(parameter)
    if isinstance(parameter, (Traced, int, float)):
        raise error(f"{name} takes a parameter, such as {name}(p.R.i, ...), not a value")
    return _Group(parameter, lambda one: _with(name, one, change, **options))


def heads(matrix: Value, count: int) -> Value:
    """Make a matrix block-diagonal with `count` blocks (heads): each unit sees the units of its own head only.

    The parameter has shape (H, H / count).

    Args:
        matrix: a parameter or a group (p.R) that multiplies states or values computed from them. All such matrices of
            the cell must have the same number of heads.
        count: number of heads; it must divide the hidden size.
    """
    _check_count(count, "heads")
    return _with("heads", matrix, lambda array: _block_diagonal(array, count), heads=count)


def _check_count(count, of):
    """Raise ValueError unless `count`, the number of `of`, is an int of at least 1."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count must be an int of at least 1, the number of {of}, got {count!r}")


def _block_diagonal(matrix, count):
    H, width = matrix.shape  # width * count is H, or P with a projection
    if H % count:
        raise ValueError(f"a matrix of {count} heads must have a multiple of {count} rows, got {H}")
    rows, dense = H // count, np.zeros((H, width * count), matrix.dtype)
    for head in range(count):
        rows_of_head = slice(head * rows, (head + 1) * rows)
        dense[rows_of_head, head * width : (head + 1) * width] = matrix[rows_of_head]
    return dense


def drop_connect(matrix: Value, rate: float) -> Value:
    """Drop each weight with probability `rate` in training, and scale the rest by 1 / (1 - rate).

    Each call of a layer draws once, for all sequences and steps. Wan et al. 2013; for recurrent matrices Merity et al.
    2018, arXiv:1708.02182.

    Args:
        matrix: a parameter or a group (p.R) that multiplies states or values computed from them.
        rate: probability from 0 to less than 1.
    """
    return _with("drop_connect", matrix, drop=_rate(rate))


def initial(parameter: Value, value: Value) -> Value:
    """Set the initial value of a parameter or a group of parameters. The default is random numbers.

        initial(p.gain, 1)                              # gain of a layer normalization
        initial(p.b.f, 1)                               # a forget gate that is open at first
        R = initial(p.R, "orthogonal")                  # then R.i @ h, R.f @ h, ...
        initial(p.log_period, lambda shape, rng: rng.uniform(0, 3, shape))

    The layer's seed (or PyTorch's generator) and the parameter's name determine the random numbers.

    Args:
        parameter: a matrix, vector, scalar or group.
        value: a number for all elements, an array, or a function of (shape, rng) with a `numpy.random.Generator`; for
            matrices also "orthogonal", "identity" or "xavier".
    """
    return _with("initial", parameter, initial=begin.checked(value))


def chrono(forget: Value, take_in: Value, longest: float) -> Value:
    """Initialize the biases of a forget and an input gate for memories of up to `longest` steps.

        b_f, b_i = chrono(p.b.f, p.b.i, 784)

    The forget gate's bias is log u with u uniform in 1 to longest - 1, the input gate's is its negative (Tallec and
    Ollivier 2018, arXiv:1804.11188).
    """
    longest = _number("longest", longest, 3)
    return initial(forget, begin.Chrono(longest, 1.0)), initial(take_in, begin.Chrono(longest, -1.0))


def columns(matrix: Value, count: int) -> Value:
    """Set the number of columns of a matrix, to write a low-rank product.

        (nr.columns(p.U, 8) @ p.V) @ h    # or nr.columns(p.U, 8) @ (p.V @ h): U (H, 8), V (8, H), and 8 may be a number
                                          # of the cell, `def f(x, h, p, rank=8)`

    The product U V is computed once per call, and steps multiply by it. This saves parameters, not arithmetic.

    Args:
        matrix: a parameter or a group.
        count: number of columns.
    """
    _check_count(count, "columns")
    return _with("columns", matrix, columns=count)


def sized(state: Value, count: int) -> Value:
    """Set the number of units of a state. The default is the hidden size.

        s = nr.sized(s, 40)    # 40 may be a number of the cell, `def f(x, h, s, p, context=40)`

    The shapes of matrices follow: in `s + p.B @ x` p.B is (40, I), in `p.R.h @ h + p.P @ s` p.P is (H, 40).
    A state that is the previous x (`return h, x`) has the size of x and needs no `sized`.

    A step costs as much as if h and all states had the largest size.

    Args:
        state: a state of the equations other than h.
        count: number of units.
    """
    _check_count(count, "units")
    if isinstance(state, Traced):
        state._trace.sized(state, count)
    elif np.ndim(state) and len(state) != count:
        raise ValueError(f"the state must have {count} units, got an array of shape {np.shape(state)}")
    return state


def constant(function: Callable) -> Value:
    """Define an array that depends on the hidden size and is not learned.

        def f(x, h, p, decay=nr.constant(lambda H: np.linspace(0.5, 0.99, H))): ... decay * h ...
        nr.constant(lambda H: np.tril(np.ones((H, H)))) @ h

    For one fixed hidden size, write the array itself into the equations.

    Args:
        function: H -> array (H,), one number per unit, or (H, H), a matrix left of @. It must always return the same
            array for the same H.
    """
    if not callable(function):
        raise TypeError(f"constant takes a function of H, such as lambda H: numpy.arange(H), got {words(function)}")
    return ConstantOfH(function)


def eye() -> Value:
    """Return the identity matrix, of the size that the expression needs: `(p.R.a - 0.1 * nr.eye()) @ h`."""
    return Identity()
