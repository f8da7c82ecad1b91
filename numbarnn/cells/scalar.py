"""The scalar functions that cells are written in.

They are plain Python over NumPy here, so that a cell's equations run on numbers and on arrays. For a compiled kernel
`numbarnn.compile.specialise` makes a copy of them per dtype and backend, in which every constant has the kernel's dtype
(a Python literal would silently turn a float32 kernel into a float64 one: cells name their constants instead) and in
which `exp`, `tanh` and division are the backend's own (`numbarnn.compile.scalar`).
"""

import math

import numpy as np

ZERO = 0.0
HALF = 0.5
ONE = 1.0
TWO = 2.0
SQRT_HALF = 0.7071067811865476


def _of_each(function):
    """A function of one Python number as one of NumPy's numbers and arrays, which keeps their dtype."""
    over = np.frompyfunc(function, 1, 1)

    def apply(x):
        x = np.asarray(x)
        return np.asarray(over(x), x.dtype)[()]

    apply.__name__, apply.__doc__ = function.__name__, function.__doc__
    return apply


exp, expm1 = np.exp, np.expm1
erf, erfc = _of_each(math.erf), _of_each(math.erfc)  # of float32, erfc is for `normal_cdf` alone
floor, modulo = np.floor, np.mod  # modulo has the sign of the divisor, as Python's %
log, log1p = np.log, np.log1p  # log1p of numbers from 0 to 1
tanh, sin, cos = np.tanh, np.sin, np.cos
sqrt, power = np.sqrt, np.power
absolute, sign = np.abs, np.sign  # sign(0) is 0
maximum, minimum = np.maximum, np.minimum  # NaN if either is
where = np.where


def divide(a, b):
    """a / b."""
    return a / b


def sigmoid(x):
    """Logistic function 1 / (1 + e^-x)."""
    return divide(ONE, ONE + exp(-x))


def d_sigmoid(y):
    """Derivative of the sigmoid, from its value y."""
    return y * (ONE - y)


def d_tanh(y):
    """Derivative of tanh, from its value y."""
    return ONE - y * y


def relu(x):
    """max(x, 0); NaN stays NaN."""
    return where(x < ZERO, ZERO, x)


def d_relu(y):
    """Derivative of ReLU from its value y; 0 at 0, as in cuDNN and PyTorch."""
    return where(y > ZERO, ONE, ZERO)


def leaky_relu(x, slope):
    """x where it is positive, else slope x."""
    return where(x > ZERO, x, slope * x)


def elu(x, alpha):
    """x where it is positive, else alpha (e^x - 1)."""
    return where(x > ZERO, x, alpha * expm1(minimum(x, ZERO)))


def softplus(x):
    """log(1 + e^x)."""
    return maximum(x, ZERO) + log1p(exp(-absolute(x)))


def softsign(x):
    """x / (1 + |x|)."""
    return divide(x, ONE + absolute(x))


def normal_cdf(x):
    """The probability that a standard normal number is less than x: (1 + erf(x / √2)) / 2, where nothing cancels."""
    return HALF * erfc(-x * SQRT_HALF)


def stop_gradient(x):
    """x."""
    return x


def custom_derivative(value, *_):
    """value."""
    return value


def clip(x, low, high):
    """min(max(x, low), high); NaN stays NaN."""
    return minimum(maximum(x, low), high)


def clip_nan(x, low, high):
    """min(max(x, low), high) of numbers, where NaN counts as less than any."""
    return minimum(where(x > low, x, low), high)


def inside(y, low, high, value):
    """0 where y is low or high or beyond, else `value`, also where y is NaN."""
    return where(y <= low, ZERO, where(y >= high, ZERO, value))


def within(x, low, high, value):
    """`value` where x is low, high or between, or NaN; else 0: the derivative of `clip` times a value."""
    return where(x < low, ZERO, where(x > high, ZERO, value))


def within_nan(x, low, high, value):
    """The derivative of `clip_nan` times a value: 0 where x is NaN."""
    return where(x >= low, where(x <= high, value, ZERO), ZERO)
