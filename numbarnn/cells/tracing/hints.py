"""Suggest replacements for operations that equations cannot use."""

import linecache
import re
from difflib import get_close_matches

FUNCTIONS = []  #: names of numbarnn's functions for equations, filled by `numbarnn.cells.functions`
_SUMS = "sums over all units are numbarnn.sum and numbarnn.mean"
_COUNT = "how many units there are is not known yet; numbarnn.mean divides by it"
#: Function of another library -> its replacement.
WRITE = {
    "absolute": "numbarnn.abs(a)", "fabs": "numbarnn.abs(a)", "square": "a ** 2", "reciprocal": "1 / a",
    "rsqrt": "1 / numbarnn.sqrt(a)", "pow": "a ** b", "float_power": "a ** b", "cbrt": "a ** (1 / 3), of a positive a",
    "expit": "numbarnn.sigmoid(a)", "logistic": "numbarnn.sigmoid(a)", "swish": "numbarnn.silu(a)",
    "logsigmoid": "numbarnn.log_sigmoid(a)", "hardtanh": "numbarnn.hard_tanh(a)", "ndtr": "numbarnn.normal_cdf(a)",
    "hardsigmoid": "numbarnn.hard_sigmoid(a)", "clamp": "numbarnn.clip(a, low, high)", "erfc": "1 - numbarnn.erf(a)",
    "detach": "numbarnn.stop_gradient(a)", "expm1": "numbarnn.exp(a) - 1", "log1p": "numbarnn.log(1 + a)",
    "exp2": "2 ** a", "log2": "numbarnn.log(a) / math.log(2)", "log10": "numbarnn.log(a) / math.log(10)",
    "sinh": "(numbarnn.exp(a) - numbarnn.exp(-a)) / 2", "cosh": "(numbarnn.exp(a) + numbarnn.exp(-a)) / 2",
    "tan": "numbarnn.sin(a) / numbarnn.cos(a)", "logaddexp": "numbarnn.maximum(a, b) + numbarnn.softplus(-abs(a - b))",
    "round": "numbarnn.floor(a + 0.5)", "rint": "numbarnn.floor(a + 0.5)", "around": "numbarnn.floor(a + 0.5)",
    "ceil": "-numbarnn.floor(-a)", "trunc": "numbarnn.sign(a) * numbarnn.floor(abs(a))", "fmod": "a % b",
    "remainder": "a % b", "mod": "a % b", "floor_divide": "numbarnn.floor(a / b)", "heaviside": "where(a > 0, 1, 0)",
    "logical_and": "where(a > 0, where(b > 0, ...), ...)", "logical_or": "where inside where",
    "fmax": "numbarnn.maximum(a, b)", "fmin": "numbarnn.minimum(a, b)",
    "matmul": "p.R.name @ a", "dot": "p.R.name @ a, or numbarnn.sum(a * b)", "linear": "p.W.name @ a + p.b.name",
    "einsum": "p.R.name @ a, or numbarnn.sum(a * b)", "inner": "numbarnn.sum(a * b)", "mm": "p.R.name @ a",
    "stack": "a variable for each part", "zeros_like": "0 * a", "ones_like": "1 + 0 * a",
    "norm": "numbarnn.sqrt(numbarnn.sum(a * a))",
    "std": "numbarnn.layer_norm(a), or numbarnn.sqrt(numbarnn.mean((a - numbarnn.mean(a)) ** 2))",
    "var": "numbarnn.mean((a - numbarnn.mean(a)) ** 2)",
}  # fmt: skip
WRITE |= dict.fromkeys(("concatenate", "cat", "hstack"), "a matrix for each part: p.W.a @ x + p.R.a @ h")
WRITE |= dict.fromkeys(("split", "chunk"), "a matrix for each part: p.W.i @ x, p.W.f @ x")
_MATRIX = (
    "a state is one number per unit; a matrix (d, d), such as of v kᵀ, is one of numbarnn.sized(S, d * d) units with "
    "constant Kronecker matrices, as in numbarnn.cells.library.delta_rule"
)
WRITE |= dict.fromkeys(("outer", "multiply_outer", "ger"), f"v * k, of each unit alone; {_MATRIX}")
for _word, _name, _smooth in (
    ("largest", "max", "numbarnn.logsumexp(k * a) / k"),
    ("smallest", "min", "-numbarnn.logsumexp(-k * a) / k"),
):
    WRITE |= dict.fromkeys(
        (_name, f"a{_name}", f"nan{_name}"),
        f"numbarnn.{_name}imum(a, b) of two values; there is no {_word} of all units; smoothly, it is {_smooth} with a "
        "large k",
    )
_BY_MATRIX = "a constant matrix of all n units (numbarnn.constant(lambda n: ...) for any n): {} @ a"
for _name, _matrix in {
    "roll": "np.roll(np.eye(n), 1, axis=0)", "flip": "np.eye(n)[::-1]", "flipud": "np.eye(n)[::-1]",
    "take": "np.eye(n)[chosen]", "gather": "np.eye(n)[chosen]", "index_select": "np.eye(n)[chosen]",
    "diff": "np.diff(np.eye(n), axis=0)", "convolve": "the matrix of the convolution",
    "fft": "np.fft.fft(np.eye(n)).real, and .imag", "rfft": "np.fft.fft(np.eye(n)).real, and .imag",
    "ifft": "np.fft.ifft(np.eye(n)).real, and .imag", "dct": "the matrix of the transform",
}.items():  # fmt: skip
    WRITE[_name] = _BY_MATRIX.format(_matrix)
WRITE |= dict.fromkeys(
    ("inv", "pinv", "solve", "lstsq", "cholesky", "qr", "svd", "eig", "eigh", "det", "expm", "matrix_exp"),
    "an array that is computed before, of constants; or let what comes out be the parameter: p.R_inverse @ a",
)
WRITE |= dict.fromkeys(("tril", "triu"), "mask * p.R.a, with a constant mask")
WRITE["sort"] = "where(...) of two values: units are not compared with each other, but by softmax and cumsum"
WRITE["diag"] = "a * b, element by element"
# Attribute of arrays that traced values do not have -> explanation.
_ATTRIBUTES = {
    "item": "its value is not known while the equations are traced",
    "numpy": "its value is not known while the equations are traced",
    "astype": "the layer's dtype is that of all values", "to": "the layer's dtype is that of all values",
    "dtype": "it is the layer's", "copy": "a value does not change: b = a is enough",
    "clone": "a value does not change: b = a is enough", "prod": "there is no product over all units",
}  # fmt: skip
_ONE_UNIT = "it stands for one number per unit"
_ATTRIBUTES |= dict.fromkeys(("reshape", "view", "flatten", "ravel"), _ONE_UNIT)
_ATTRIBUTES |= dict.fromkeys(("T", "mT", "transpose", "t"), f"one number per unit has no other side; {_MATRIX}")
_ATTRIBUTES |= dict.fromkeys(("shape", "size", "ndim"), _COUNT)
_ATTRIBUTES |= dict.fromkeys(("sum", "mean"), _SUMS)
# Names that are no parameters of a group, as p.R.shape is meant as an attribute of an array.
ATTRIBUTES_OF_ARRAYS = {
    "shape", "dtype", "size", "ndim", "dot", "sum", "mean", "max", "min", "reshape", "transpose", "item", "copy",
    "astype", "clip", "std", "var", "prod", "cumsum", "norm", "flatten", "ravel", "numpy", "detach",
}  # fmt: skip


def nearest(name, among):
    """Return the most similar name, or None."""
    alike = [other for other in among if other.replace("_", "") == name.replace("_", "").lower()]
    return next(iter(alike or get_close_matches(name, among, 1, 0.75)), None)


def in_place_of(name):
    """Return a replacement for another library's function."""
    if name in FUNCTIONS:
        return f"use numbarnn.{name}"
    if name in WRITE:
        return f"use {WRITE[name]}"
    like = nearest(name, FUNCTIONS)
    return f"use numbarnn.{like}" if like else f"use numbarnn's functions: {', '.join(FUNCTIONS)}"


def of_attribute(name):
    """Explain why a traced value has no such attribute, and what to write."""
    return _ATTRIBUTES.get(name) or in_place_of(name)


def of_parameter(parameter, name):
    """Explain why a parameter has no such attribute."""
    if name == "transpose":
        return f"write p.{parameter}.T"
    return f"parameters have no attributes of arrays but .T, the transpose of a matrix; {of_attribute(name)}"


def of_conversion(file, line, default):
    """Return a replacement for a conversion to a Python number, found in the text of the line."""
    text = linecache.getline(file, line)
    found = re.search(r"\bmath\.(\w+)\s*\(", text)
    if found:
        return f"in place of math.{found[1]} {in_place_of(found[1])}"
    found = re.search(r"\b(round|int)\s*\(", text)
    return f"in place of {found[1]} use numbarnn.floor(a{' + 0.5' * (found[1] == 'round')})" if found else default
