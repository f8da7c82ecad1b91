"""The scalar functions in which cells are written, here for NumPy's numbers and arrays.

For compiled kernels `numbarnn.compile.specialise` copies them per dtype and backend, with the backend's `exp`, `tanh`
and division (`numbarnn.compile.scalar`). Constants have names, so that they get the kernel's dtype: a literal would
turn a float32 kernel into a float64 one.
"""

import math

import numpy as np

ZERO = 0.0
HALF = 0.5
ONE = 1.0
TWO = 2.0
SQRT_HALF = 0.7071067811865476


def _of_each(function):
    """Return a function of Python numbers as a function of NumPy's numbers and arrays, which keeps their dtype."""
    over = np.frompyfunc(function, 1, 1)

    def apply(x):
        x = np.asarray(x)
        return np.asarray(over(x), x.dtype)[()]

    apply.__name__, apply.__doc__ = function.__name__, function.__doc__
    return apply


exp, expm1 = np.exp, np.expm1
erf, erfc = _of_each(math.erf), _of_each(math.erfc)  # in float32 only `normal_cdf` uses erfc
floor, modulo = np.floor, np.mod  # modulo has the sign of the divisor, as Python's %
log, log1p = np.log, np.log1p  # log1p only of numbers from 0 to 1
tanh, sin, cos = np.tanh, np.sin, np.cos
sqrt, power = np.sqrt, np.power
absolute, sign = np.abs, np.sign  # sign(0) is 0
maximum, minimum = np.maximum, np.minimum  # NaN if either is
where = np.where


def divide(a, b):
    """Return a / b."""
    return a / b


def sigmoid(x):
    """Return 1 / (1 + e^-x)."""
    return divide(ONE, ONE + exp(-x))


def d_sigmoid(y):
    """Return the derivative of sigmoid from its value y."""
    return y * (ONE - y)


def d_tanh(y):
    """Return the derivative of tanh from its value y."""
    return ONE - y * y


def relu(x):
    """Return max(x, 0); NaN for NaN."""
    return where(x < ZERO, ZERO, x)


def d_relu(y):
    """Return the derivative of ReLU from its value y; 0 at 0, as in cuDNN and PyTorch."""
    return where(y > ZERO, ONE, ZERO)


def leaky_relu(x, slope):
    """Return x where it is positive, else slope x."""
    return where(x > ZERO, x, slope * x)


def elu(x, alpha):
    """Return x where it is positive, else alpha (e^x - 1)."""
    return where(x > ZERO, x, alpha * expm1(minimum(x, ZERO)))


def softplus(x):
    """Return log(1 + e^x)."""
    return maximum(x, ZERO) + log1p(exp(-absolute(x)))


def softsign(x):
    """Return x / (1 + |x|)."""
    return divide(x, ONE + absolute(x))


def normal_cdf(x):
    """Return (1 + erf(x / √2)) / 2 without cancellation."""
    return HALF * erfc(-x * SQRT_HALF)


def stop_gradient(x):
    """Return x."""
    return x


def custom_derivative(value, *_):
    """Return value."""
    return value


def clip(x, low, high):
    """Return min(max(x, low), high); NaN for NaN."""
    return minimum(maximum(x, low), high)


def clip_nan(x, low, high):
    """Return min(max(x, low), high); low for NaN."""
    return minimum(where(x > low, x, low), high)


def inside(y, low, high, value):
    """Return value where low < y < high or y is NaN, else 0."""
    return where(y <= low, ZERO, where(y >= high, ZERO, value))


def within(x, low, high, value):
    """Return value where low <= x <= high or x is NaN, else 0: the derivative of `clip` times value."""
    return where(x < low, ZERO, where(x > high, ZERO, value))


def within_nan(x, low, high, value):
    """Return value where low <= x <= high, else 0: the derivative of `clip_nan` times value."""
    return where(x >= low, where(x <= high, value, ZERO), ZERO)
