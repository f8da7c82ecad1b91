"""Suggest replacements for operations that equations cannot use."""

import linecache
import re
from difflib import get_close_matches

FUNCTIONS = []  #: names of numbarnn's functions for equations, filled by `numbarnn.cells.functions`
_MATRIX = (
    "a state is one number per unit; a matrix (d, d), such as of v kᵀ, is one of numbarnn.sized(S, d * d) units with "
    "constant Kronecker matrices, as in numbarnn.cells.library.delta_rule"
)
_BY_MATRIX = "a constant matrix of all n units (numbarnn.constant(lambda n: ...) for any n): "
_OF_TWO = "numbarnn.{0}imum(a, b) of two values; there is no {1} of all units; smoothly, it is {2} with a large k"
_UNKNOWN = "its value is not known while the equations are traced"


def _by_name(texts):
    """Return name -> text from text -> names."""
    return {name: text for text, names in texts.items() for name in names.split()}


#: Function of another library -> its replacement.
WRITE = _by_name({
    "numbarnn.abs(a)": "absolute fabs", "a ** 2": "square", "1 / a": "reciprocal", "1 / numbarnn.sqrt(a)": "rsqrt",
    "a ** b": "pow float_power", "a ** (1 / 3), of a positive a": "cbrt", "numbarnn.sigmoid(a)": "expit logistic",
    "numbarnn.silu(a)": "swish", "numbarnn.log_sigmoid(a)": "logsigmoid", "numbarnn.hard_tanh(a)": "hardtanh",
    "numbarnn.normal_cdf(a)": "ndtr", "numbarnn.hard_sigmoid(a)": "hardsigmoid", "1 - numbarnn.erf(a)": "erfc",
    "numbarnn.clip(a, low, high)": "clamp", "numbarnn.stop_gradient(a)": "detach", "numbarnn.exp(a) - 1": "expm1",
    "numbarnn.log(1 + a)": "log1p", "2 ** a": "exp2", "numbarnn.log(a) / math.log(2)": "log2",
    "numbarnn.log(a) / math.log(10)": "log10", "(numbarnn.exp(a) - numbarnn.exp(-a)) / 2": "sinh",
    "(numbarnn.exp(a) + numbarnn.exp(-a)) / 2": "cosh", "numbarnn.sin(a) / numbarnn.cos(a)": "tan",
    "numbarnn.maximum(a, b) + numbarnn.softplus(-abs(a - b))": "logaddexp",
    "numbarnn.floor(a + 0.5)": "round rint around", "-numbarnn.floor(-a)": "ceil", "a % b": "fmod remainder mod",
    "numbarnn.sign(a) * numbarnn.floor(abs(a))": "trunc", "numbarnn.floor(a / b)": "floor_divide",
    "where(a > 0, 1, 0)": "heaviside", "where(a > 0, where(b > 0, ...), ...)": "logical_and",
    "where inside where": "logical_or", "numbarnn.maximum(a, b)": "fmax", "numbarnn.minimum(a, b)": "fmin",
    "p.R.name @ a": "matmul mm", "p.R.name @ a, or numbarnn.sum(a * b)": "dot einsum", "numbarnn.sum(a * b)": "inner",
    "p.W.name @ a + p.b.name": "linear", "a variable for each part": "stack", "0 * a": "zeros_like",
    "1 + 0 * a": "ones_like", "numbarnn.sqrt(numbarnn.sum(a * a))": "norm", "a * b, element by element": "diag",
    "numbarnn.layer_norm(a), or numbarnn.sqrt(numbarnn.mean((a - numbarnn.mean(a)) ** 2))": "std",
    "numbarnn.mean((a - numbarnn.mean(a)) ** 2)": "var", "mask * p.R.a, with a constant mask": "tril triu",
    "a matrix for each part: p.W.a @ x + p.R.a @ h": "concatenate cat hstack",
    "a matrix for each part: p.W.i @ x, p.W.f @ x": "split chunk",
    f"v * k, of each unit alone; {_MATRIX}": "outer multiply_outer ger",
    _OF_TWO.format("max", "largest", "numbarnn.logsumexp(k * a) / k"): "max amax nanmax",
    _OF_TWO.format("min", "smallest", "-numbarnn.logsumexp(-k * a) / k"): "min amin nanmin",
    "where(...) of two values: units are not compared with each other, but by softmax and cumsum": "sort",
    "an array that is computed before, of constants; or let what comes out be the parameter: p.R_inverse @ a":
        "inv pinv solve lstsq cholesky qr svd eig eigh det expm matrix_exp",
    f"{_BY_MATRIX}np.roll(np.eye(n), 1, axis=0) @ a": "roll", f"{_BY_MATRIX}np.eye(n)[::-1] @ a": "flip flipud",
    f"{_BY_MATRIX}np.eye(n)[chosen] @ a": "take gather index_select",
    f"{_BY_MATRIX}np.diff(np.eye(n), axis=0) @ a": "diff", f"{_BY_MATRIX}the matrix of the convolution @ a": "convolve",
    f"{_BY_MATRIX}np.fft.fft(np.eye(n)).real, and .imag @ a": "fft rfft",
    f"{_BY_MATRIX}np.fft.ifft(np.eye(n)).real, and .imag @ a": "ifft",
    f"{_BY_MATRIX}the matrix of the transform @ a": "dct",
})  # fmt: skip
# Attribute of arrays that traced values do not have -> explanation.
_ATTRIBUTES = _by_name({
    _UNKNOWN: "item numpy", "the layer's dtype is that of all values": "astype to", "it is the layer's": "dtype",
    "a value does not change: b = a is enough": "copy clone", "there is no product over all units": "prod",
    "it stands for one number per unit": "reshape view flatten ravel",
    f"one number per unit has no other side; {_MATRIX}": "T mT transpose t",
    "how many units there are is not known yet; numbarnn.mean divides by it": "shape size ndim",
    "sums over all units are numbarnn.sum and numbarnn.mean": "sum mean",
})  # fmt: skip
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
