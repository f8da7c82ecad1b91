"""The functions that equations of a cell may use; besides `+ - * / % **`, abs, and comparisons for `where`.

They take traced values (see `numbarnn.cells.tracing`), and also numbers and NumPy arrays, so that the same equations
run as plain NumPy, as in inference. Where one has a kink, its derivative there is said below.

    of one unit           sigmoid tanh relu leaky_relu elu selu softplus log_sigmoid softsign gelu silu mish
                          hard_sigmoid hard_sigmoid_keras2 hard_tanh erf normal_cdf exp log sqrt abs sign floor sin
                          cos maximum minimum where clip
    of all units          sum mean layer_norm softmax logsumexp cumsum cumax
    random, in training   dropout zoneout
    of parameters         heads drop_connect columns (of matrices), eye, initial chrono
    of states             sized
    not learnt            constant
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
from numbarnn.cells.tracing.values import Traced, words

if TYPE_CHECKING:
    from numbarnn.common.typing import Value

__all__ = [
    "abs", "chrono", "clip", "columns", "constant", "cos", "cumax", "cumsum", "custom_derivative", "drop_connect",
    "dropout", "elu", "erf", "exp", "eye", "floor", "gelu", "hard_sigmoid", "hard_sigmoid_keras2", "hard_tanh",
    "heads", "initial", "layer_norm", "leaky_relu", "log", "log_sigmoid", "logsumexp", "maximum", "mean", "minimum",
    "mish", "normal_cdf", "relu", "selu", "sigmoid", "sign", "silu", "sin", "sized", "softmax", "softplus", "softsign",
    "sqrt", "stop_gradient", "sum", "tanh", "where", "zoneout",
]  # fmt: skip

hints.FUNCTIONS[:] = __all__


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
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if least is not None and not value >= least:
        raise ValueError(f"{name} must be a number from {least} on, not {value!r}")
    return float(value)


def _of_one(name, what, function=None) -> Callable[[Value], Value]:
    """The function of that name, of one unit's value: by default the operation of `numbarnn.cells.scalar`."""

    def of_one(x: Value) -> Value:
        return function(x) if function else _apply(name, x)

    of_one.__name__, of_one.__qualname__, of_one.__doc__ = name, name, what
    return of_one


sigmoid = _of_one("sigmoid", "1 / (1 + e^-x).")
tanh = _of_one("tanh", "The hyperbolic tangent.")
relu = _of_one("relu", "max(x, 0). Derivative 0 at 0.")
softplus = _of_one("softplus", "log(1 + e^x).")
softsign = _of_one("softsign", "`x / (1 + |x|)`.")
exp = _of_one("exp", "e^x.")
log = _of_one("log", "The natural logarithm.")
sqrt = _of_one("sqrt", "The square root.")
abs = _of_one("abs", "`|x|`. Derivative 0 at 0.", lambda x: _apply("absolute", x))
sign = _of_one("sign", "1 where x is positive, -1 where it is negative, 0 at 0. Derivative 0 everywhere.")
floor = _of_one("floor", "The largest integer that is not larger than x. Derivative 0 everywhere.")
erf = _of_one("erf", "The error function, 2/√π times the integral of e^-t² from 0 to x.")
normal_cdf = _of_one("normal_cdf", "Φ(x), the probability that a standard normal number is less than x.")
sin = _of_one("sin", "The sine of x radians.")
cos = _of_one("cos", "The cosine of x radians.")
log_sigmoid = _of_one("log_sigmoid", "log(1 / (1 + e^-x)), of any x.", lambda x: -softplus(-x))
silu = _of_one("silu", "x sigmoid(x); also called swish.", lambda x: x * sigmoid(x))
mish = _of_one("mish", "x tanh(softplus(x)). Misra 2019, arXiv:1908.08681.", lambda x: x * tanh(softplus(x)))
selu = _of_one(
    "selu",
    "1.0507 x where it is positive, else 1.7581 (e^x - 1). Derivative 1.7581 at 0.\n\n"
    "Klambauer et al. 2017, arXiv:1706.02515.",
    lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772),
)
hard_sigmoid = _of_one(
    "hard_sigmoid",
    "min(max(x / 6 + 1/2, 0), 1), as in PyTorch and Keras 3. Derivative 0 at ±3.",
    lambda x: _apply("clip", x / 6.0 + 0.5, 0.0, 1.0),
)
hard_sigmoid_keras2 = _of_one(
    "hard_sigmoid_keras2",
    "min(max(x / 5 + 1/2, 0), 1), which Keras 1 and 2 and ONNX call hard sigmoid. Derivative 0 at ±2.5.",
    lambda x: _apply("clip", 0.2 * x + 0.5, 0.0, 1.0),
)
hard_tanh = _of_one("hard_tanh", "min(max(x, -1), 1). Derivative 0 at ±1.", lambda x: _apply("clip", x, -1.0, 1.0))


def leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    """x where it is positive, else negative_slope x. Derivative negative_slope at 0."""
    return _apply("leaky_relu", x, _number("negative_slope", negative_slope, 0))


def elu(x: Value, alpha: float = 1.0) -> Value:
    """x where it is positive, else alpha (e^x - 1). Derivative alpha at 0."""
    return _apply("elu", x, _number("alpha", alpha, 0))


def gelu(x: Value, approximate: str = "none") -> Value:
    """x Φ(x), Φ the distribution function of the normal distribution.

    Hendrycks and Gimpel 2016, arXiv:1606.08415.

    Args:
        approximate: "none", or "tanh": x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2, as in PyTorch.
    """
    if approximate == "none":
        return x * normal_cdf(x)
    if approximate != "tanh":
        raise ValueError(f"approximate must be 'none' or 'tanh', not {approximate!r}")
    # (1 + tanh(u)) / 2 is sigmoid(2 u), in which nothing cancels.
    return x * sigmoid(_GELU_SCALE * (x + 0.044715 * x * x * x))


_GELU_SCALE = 2 * math.sqrt(2 / math.pi)


def maximum(a: Value, b: Value) -> Value:
    """The larger of two; where they are equal, b's gradient is all of it."""
    return _apply("maximum", a, b)


def minimum(a: Value, b: Value) -> Value:
    """The smaller of two; where they are equal, b's gradient is all of it."""
    return _apply("minimum", a, b)


def where(condition: Value, a: Value, b: Value) -> Value:
    """a where the condition, a comparison, holds, else b.

    Derivatives of both are computed. One that is infinite where the other is chosen makes gradients NaN, as in PyTorch:
    in place of `where(a > 0, log(a), 0)` write `log(where(a > 0, a, 1))`.
    """
    return _apply("where", condition, a, b)


def clip(x: Value, low: float, high: float) -> Value:
    """min(max(x, low), high). Where low and high are numbers, the derivative is 0 at both."""
    if isinstance(low, Traced) or isinstance(high, Traced):
        return minimum(maximum(x, low), high)
    return _apply("clip", x, low, high)


# ------------------------------------------------------------------------------------------------------- of all units
def sum(x: Value) -> Value:
    """The sum over all units, which all units see. Of arrays, over the first axis, as units are that of p.W.a @ x."""
    if isinstance(x, Traced):
        return x._trace.apply("row_sum", x)
    if np.ndim(x) == 0:
        raise error(f"the sum of {x!r} over all units, of which nothing says how many there are; use mean, or a value")
    return np.broadcast_to(np.sum(x, axis=0), np.shape(x))


def mean(x: Value) -> Value:
    """The mean over all units, which all units see."""
    if not isinstance(x, Traced) and np.ndim(x) == 0:
        return x
    return sum(x) * (1 / _units(x))


def _units(x):
    """How many units there are."""
    if isinstance(x, Traced):
        return x._trace.units()
    if np.ndim(x) == 0:
        raise error(f"{x!r} is a single number, but a value per unit is needed; pass a value computed from x or h")
    return len(x)


def _largest(x):
    """The largest of all units, as a constant of backward: what softmax and logsumexp subtract, and add again."""
    if isinstance(x, Traced):
        return x._trace.apply("row_max", x)
    _units(x)  # refuses a number
    return np.broadcast_to(np.max(x, axis=0), np.shape(x))


def softmax(x: Value) -> Value:
    """e^x / Σ e^x over all units, in which no e^x overflows: positive, and 1 in all."""
    share = exp(x - _largest(x))
    return share / sum(share)


def logsumexp(x: Value) -> Value:
    """log Σ e^x over all units, which all units see; no e^x overflows."""
    largest = _largest(x)
    return largest + log(sum(exp(x - largest)))


def cumsum(x: Value) -> Value:
    """The sum of all units up to each, itself included. Of arrays, over the first axis.

    It is a product with a constant matrix, per step, of ones on and below the diagonal: as much work as a gate.
    """
    return x._trace.cumsum(x) if isinstance(x, Traced) else np.cumsum(x, axis=0)


def cumax(x: Value) -> Value:
    """The sum of all units of softmax(x) up to each: it rises from 0 to 1 over the units. Of ON-LSTM.

    Shen et al. 2019, arXiv:1810.09536, (6).
    """
    return cumsum(softmax(x))


def layer_norm(*values: Value, eps: float = 1e-5) -> Value:
    """(x - mean) / sqrt(variance + eps), over all units of one value, or of several together.

    A gain and a bias are parameters of one's own: p.gain * layer_norm(x) + p.shift. Ba et al. 2016, arXiv:1607.06450.

    Args:
        values: one or more, such as the four products of an LSTM's gates.
        eps: added to the variance.

    Returns:
        The normalised value; of several a tuple of them.
    """
    eps = _number("eps", eps, 0)
    if not values:
        raise TypeError("layer_norm takes one value or more: layer_norm(x)")
    count = len(values)
    share = _named("share", 1 / (_units(values[0]) * count))
    center = _named("center", sum(builtins.sum(values[1:], values[0])) * share)
    centred = [value - center for value in values]
    squares = builtins.sum((value * value for value in centred[1:]), centred[0] * centred[0])
    variance = _named("variance", sum(squares) * share)
    scale = _named("scale", 1 / sqrt(variance + eps))
    normalised = tuple(value * scale for value in centred)
    return normalised if count > 1 else normalised[0]


def _named(name, value):
    """The same value; traced, it has a name in generated source if it has none."""
    if isinstance(value, Traced):
        value._name_it(name)
    return value


# ------------------------------------------------------------------------------------------------------ of derivatives
def stop_gradient(x: Value) -> Value:
    """x, through which no gradient flows: backward takes it as a constant. It is PyTorch's detach."""
    return _apply("stop_gradient", x)


def custom_derivative(value: Value, x: Value, derivative: Value, *more: Value) -> Value:
    """`value`, whose derivative by x backward takes to be `derivative`; nothing else of what value is made of gets a
    gradient through it.

        spike = custom_derivative(where(v > 1, 1, 0), v, 1 / (1 + abs(5 * (v - 1))) ** 2)   # a surrogate
        bit = custom_derivative(sign(a), a, 1)                                              # straight through

    Args:
        value: what forward computes.
        x: a traced value or a parameter, which gets `derivative` times the gradient of value.
        derivative: computed in backward alone; no gradient flows through it.
        more: further x and derivatives, in turns.
    """
    if len(more) % 2:
        raise error("custom_derivative takes a value, then pairs of an x and the derivative by it; the last has none")
    pairs = (x, derivative, *more)
    for number, one in enumerate(pairs[::2]):
        if isinstance(value, Traced) and not isinstance(one, Traced):
            raise error(f"custom_derivative's x number {number + 1} is {words(one)}; expected a traced value")
    return _apply("custom_derivative", value, *pairs)


# -------------------------------------------------------------------------------------------------- random, in training
def _noise(value, noise):
    """A random number of each unit, if the value is traced; else its mean."""
    return value._trace.noise(noise) if isinstance(value, Traced) else noise.mean


def _rate(rate):
    """`rate` as a float from 0 to 1, without 1."""
    rate = _number("rate", rate, 0)
    if rate >= 1:
        raise ValueError(f"rate must be a probability from 0 to less than 1, not {rate!r}")
    return rate


def dropout(x: Value, rate: float, each_step: bool = True) -> Value:
    """In training, 0 with probability `rate`, else x / (1 - rate), anew for each unit; in inference x.

    Args:
        rate: from 0 to less than 1.
        each_step: anew in each step (Semeniuta et al. 2016, arXiv:1603.05118, drop an LSTM's g so); False: one choice
            for all steps of a sequence (Gal and Ghahramani 2016, arXiv:1512.05287).
    """
    rate = _rate(rate)
    return x * _noise(x, Noise(rate, 1.0 / (1.0 - rate), 1.0, bool(each_step))) if rate else x


def zoneout(new: Value, old: Value, rate: float) -> Value:
    """In training, old with probability `rate`, else new, anew for each unit and step; in inference their mean.

    Krueger et al. 2017, arXiv:1606.01305.

    Args:
        new, old: a state after the step and before it.
        rate: from 0 to less than 1.
    """
    rate = _rate(rate)
    if not rate:
        return new
    keep = _noise(new if isinstance(new, Traced) else old, Noise(rate, 1.0, 1.0 - rate))
    return keep * new + (1.0 - keep) * old


# ------------------------------------------------------------------------------------------------------ of parameters
class _Group:
    """A function of each matrix of a group, such as p.R, that is given as plain Python."""

    def __init__(self, group, function):
        self._group, self._function = group, function

    def __getattr__(self, name):
        return self._function(getattr(self._group, name))


def _with(name, parameter, change=lambda array: array, **options):
    """A parameter with these options, or each of a group; of an array what `change` makes of it."""
    if isinstance(parameter, Parameter):
        return parameter._with(**options)
    if isinstance(parameter, np.ndarray):
        return change(parameter)
    if isinstance(parameter, (Traced, int, float)):
        raise error(f"{name} of a value; expected a parameter, such as {name}(p.R.i, ...)")
    return _Group(parameter, lambda one: _with(name, one, change, **options))


def heads(matrix: Value, count: int) -> Value:
    """A matrix, or each of a group (p.R), as `count` blocks on the diagonal: the units are in as many groups of
    neighbours, and see those of their own group alone. As parameters they are (H, H / count).

    Args:
        matrix: a parameter, for products with states or what is computed from them; all such matrices of a cell must
            have one number of heads.
        count: must divide the hidden size.
    """
    _check_count(count, "heads")
    return _with("heads", matrix, lambda array: _block_diagonal(array, count), heads=count)


def _check_count(count, of):
    """Raise ValueError unless it is an int from 1 on: the number of heads, columns or units."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count must be an int from 1 on, the number of {of}, not {count!r}")


def _block_diagonal(matrix, count):
    H, width = matrix.shape  # the vector has width * count units: H, or P with a projection
    if H % count:
        raise ValueError(f"a matrix of {count} heads has a multiple of {count} rows, not {H}")
    rows, dense = H // count, np.zeros((H, width * count), matrix.dtype)
    for head in range(count):
        own = slice(head * rows, (head + 1) * rows)
        dense[own, head * width : (head + 1) * width] = matrix[own]
    return dense


def drop_connect(matrix: Value, rate: float) -> Value:
    """A matrix, or each of a group (p.R), of which in training each element is 0 with probability `rate`, else divided
    by 1 - rate: one choice per call of a layer, for all its sequences and steps.

    Wan et al. 2013; of recurrent matrices, Merity et al. 2018, arXiv:1708.02182.

    Args:
        matrix: a parameter, for products with states or what is computed from them.
        rate: from 0 to less than 1.
    """
    return _with("drop_connect", matrix, drop=_rate(rate))


def initial(parameter: Value, value: Value) -> Value:
    """A parameter, or each of a group, with what it begins with in a new layer; others begin with random numbers.

        initial(p.gain, 1)                              # of a layer normalisation
        initial(p.b.f, 1)                               # a forget gate that is open at first
        R = initial(p.R, "orthogonal")                  # then R.i @ h, R.f @ h, ...
        initial(p.log_period, lambda shape, rng: rng.uniform(0, 3, shape))

    What is drawn follows from the layer's seed (of a module of PyTorch, from its generator) and the parameter's name.

    Args:
        parameter: a matrix, a vector or a scalar.
        value: a number, for all elements; an array; a function of (shape, rng), rng a `numpy.random.Generator`; or of
            matrices "orthogonal", "identity" or "xavier".
    """
    return _with("initial", parameter, initial=begin.checked(value))


def chrono(forget: Value, take_in: Value, longest: float) -> Value:
    """The biases of a forget gate and of an input gate, for memories of up to `longest` steps: the first begins with
    log u, u uniform in 1 to longest - 1, and the second with minus that.

        b_f, b_i = chrono(p.b.f, p.b.i, 784)

    Tallec and Ollivier 2018, arXiv:1804.11188.
    """
    longest = _number("longest", longest, 3)
    return initial(forget, begin.Chrono(longest, 1.0)), initial(take_in, begin.Chrono(longest, -1.0))


def columns(matrix: Value, count: int) -> Value:
    """A matrix with that many columns: one of the two whose product is of low rank.

        (nr.columns(p.U, 8) @ p.V) @ h    # or nr.columns(p.U, 8) @ (p.V @ h): U (H, 8), V (8, H), and 8 may be a number
                                          # of the cell, `def f(x, h, p, rank=8)`

    Steps multiply with the product, derived once per call: what is saved are parameters, not arithmetic.

    Args:
        matrix: a parameter, or each of a group.
        count: an int.
    """
    _check_count(count, "columns")
    return _with("columns", matrix, columns=count)


def sized(state: Value, count: int) -> Value:
    """A state of that many units, in place of the hidden size.

        s = nr.sized(s, 40)    # 40 may be a number of the cell, `def f(x, h, s, p, context=40)`

    Matrices then have the sizes that they need: `p.B @ x`, added to s, is (40, I), and of `p.P @ s`, added to a product
    with h, p.P is (H, 40). A state that is x of the step before, `return h, x`, has as many units as x by itself.

    Kernels have one width for h and all states of a layer, the largest: steps cost as much as if h and all states had
    as many units as the largest.

    Args:
        state: of the equations, but h.
        count: an int.
    """
    _check_count(count, "units")
    if isinstance(state, Traced):
        state._trace.sized(state, count)
    elif np.ndim(state) and len(state) != count:
        raise ValueError(f"a state of {count} units is expected, not an array of shape {np.shape(state)}")
    return state


def constant(function: Callable) -> Value:
    """An array that is not learnt and depends on the hidden size, so that a cell is not tied to one: one number per
    unit, or left of @ a matrix.

        def f(x, h, p, decay=nr.constant(lambda H: np.linspace(0.5, 0.99, H))): ... decay * h ...
        nr.constant(lambda H: np.tril(np.ones((H, H)))) @ h

    An array of one size stands in the equations as it is.

    Args:
        function: H -> array (H,) or (H, H); the same for the same H.
    """
    if not callable(function):
        raise TypeError(f"constant takes a function of H, such as lambda H: numpy.arange(H), not {words(function)}")
    return ConstantOfH(function)


def eye() -> Value:
    """The identity matrix, of the size that it needs where it stands: `(p.R.a - 0.1 * nr.eye()) @ h`."""
    return Identity()
