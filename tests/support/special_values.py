"""All functions of equations at special numbers: 0, -0, subnormal numbers, infinities, NaN, the largest finite ones."""

from functools import cache

import numpy as np

import numbarnn as nr
from numbarnn.cells import functions
from numbarnn.common.precision import compute_dtype, numpy_dtype

ALIKE = (
    "sigmoid", "tanh", "relu", "leaky_relu", "elu", "selu", "softplus", "log_sigmoid", "softsign", "gelu", "silu",
    "mish", "hard_sigmoid", "hard_tanh", "erf", "normal_cdf", "exp", "log", "sqrt", "abs", "sign", "floor", "sin",
    "cos", "stop_gradient",
)  # fmt: skip
UNARY = {name: getattr(functions, name) for name in ALIKE} | {
    "gelu_tanh": lambda a: functions.gelu(a, approximate="tanh"),
    "square": lambda a: a**2,
    "clip": lambda a: functions.clip(a, -2, 3),
}
BINARY = {
    "maximum": functions.maximum, "minimum": functions.minimum, "quotient": lambda a, b: a / b,
    "product": lambda a, b: a * b, "difference": lambda a, b: a - b, "power": lambda a, b: a**b,
    "where": lambda a, b: functions.where(a > b, a, b), "clip_by_value": lambda a, b: functions.clip(a, b, 1),
    "remainder": lambda a, b: a % b,
}  # fmt: skip
NAMES = (*UNARY, *BINARY)


@cache
def cell_of(names=NAMES):
    """The cell that computes these, each in a state of its own: of a = W x with W = 1, which is x, and of b, the state
    itself."""
    lines = ", ".join(f"UNARY[{name!r}](a)" if name in UNARY else f"BINARY[{name!r}](a, {name})" for name in names)
    space = {"UNARY": UNARY, "BINARY": BINARY}
    exec(f"def special(x, h, {', '.join(names)}, p):\n    a = p.W.a @ x\n    return a, {lines}", space)
    return nr.cell(space["special"])


UNITS = 17  # vectors, and some left


def numbers(dtype):
    """The special numbers of a dtype, as it stores them."""
    stored = numpy_dtype(dtype)
    info = np.finfo(stored) if dtype != "bfloat16" else __import__("ml_dtypes").finfo(stored)
    positive = [0.0, info.smallest_subnormal, info.tiny / 2, info.tiny, 0.5, 1.0, 3.0, 20.0, 87.5, 88.5, 89.0, 90.0,
                104.0, 710.0, 745.0, info.max, np.inf]  # fmt: skip
    return np.array([*positive, *(-float(one) for one in positive), np.nan], np.float64).astype(stored)


def pairs(dtype):
    """(a, b) of all pairs of them."""
    values = numbers(dtype)
    return np.repeat(values, len(values)), np.tile(values, len(values))


def expected(a, b, dtype):
    """Name -> what NumPy computes of these in the dtype that numbers are computed in, rounded to the dtype."""
    a, b = (one.astype(compute_dtype(dtype)) for one in (a, b))
    with np.errstate(all="ignore"):
        found = {name: function(a) for name, function in UNARY.items()}
        found |= {name: function(a, b) for name, function in BINARY.items()}
        return {name: np.asarray(value).astype(numpy_dtype(dtype)) for name, value in found.items()}


def computed(dtype, device):
    """Name -> what a layer computes."""
    a, b = pairs(dtype)
    layer = nr.RNN(cell_of(), 1, UNITS, dtype=dtype, device=device)
    layer.parameters["weight_ih_l0"][...] = 1
    states = [np.broadcast_to(b[None, :, None], (1, len(b), UNITS)).copy() for _ in NAMES]
    with np.errstate(all="ignore"):
        _, (_, *found) = layer(a[None, :, None], (None, *states))
    return dict(zip(NAMES, (state[0] for state in found), strict=True))


def require_equal(found, dtype):
    """Compare with NumPy: to some units of the last place; what is subnormal may be 0, and 0 have either sign."""
    a, b = pairs(dtype)
    wanted, eps, wrong = expected(a, b, dtype), float(np.finfo(compute_dtype(dtype)).eps) * 8, []
    stored = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype, 0)  # to which results are rounded
    tiny = float(np.finfo(compute_dtype(dtype)).tiny) if dtype != "float16" else 2.0**-14
    for name, values in found.items():
        ours = np.asarray(values, np.float64).reshape(len(a), -1)
        exact = np.asarray(wanted[name], np.float64)[:, None]
        with np.errstate(invalid="ignore"):
            near = np.abs(ours - exact) <= np.maximum(np.abs(exact) * (eps + stored), tiny)
        if name == "hard_sigmoid":  # x / 6 is rounded before 1/2 is added
            near |= np.abs(ours - exact) <= eps
        if name == "power":  # to NumPy the square root of -inf is inf in arrays, NaN elsewhere
            near |= ((a == -np.inf) & (b == 0.5))[:, None]
        same = near | (ours == exact) | (np.isnan(ours) & np.isnan(exact))
        for k in np.flatnonzero(~same.all(axis=1)):
            of = f"{a[k]!s}, {b[k]!s}" if name in BINARY else f"{a[k]!s}"
            wrong.append(f"{name}({of}) is {ours[k][~same[k]][0]:.9g}, not {exact[k, 0]:.9g}")
    assert not wrong, f"{dtype}: {len(wrong)} wrong\n" + "\n".join(dict.fromkeys(wrong))
