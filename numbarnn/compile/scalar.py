"""The scalar functions of `numbarnn.cells.scalar` for compiled code, in which arguments are single numbers."""

import math
from functools import cache

import numpy as np

from numbarnn.cells.scalar import HALF, ONE, SQRT_HALF, TWO, ZERO, divide
from numbarnn.common.precision import is_half
from numbarnn.cuda.language import libdevice


def where_scalar(condition, a, b):
    """Return `where` for one condition."""
    return a if condition else b


def maximum_scalar(a, b):
    """Return `maximum` of two numbers."""
    return a if a > b or a != a else b


def minimum_scalar(a, b):
    """Return `minimum` of two numbers."""
    return a if a < b or a != a else b


def sign_scalar(x):
    """Return `sign` of one number."""
    return ONE if x > ZERO else -ONE if x < ZERO else x


# These functions of a float32 have no call and no branch, so that LLVM can vectorize loops around them. (libm's
# functions take a call per element and are ten times slower.) The polynomials are our own least-maximum-error fits.
# tests/cells/test_cells.py bounds the error over the whole range: 2 ulp, 2.5 for sigmoid and tanh, 5 for normal_cdf.
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693359375, -2.1219444005469057e-04  # their sum is ln 2; n * LN2_HIGH is exact for small n
EXP_LOW, EXP_HIGH = -104.0, 89.0  # beyond these float32's e^x is 0, and infinite
NORMAL_LOW, NORMAL_HIGH = -87.0, 88.0  # beyond these 2^n leaves float32's exponent
SIGN_BIT = np.int32(-(2**31))
ROUND_TO_INTEGER = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the lowest bits
ROUNDED_0 = np.int32(0x4B400000)  # its bits
# (e^r - 1 - r) / r^2, |r| <= ln(2) / 2
E0, E1, E2, E3, E4 = 0.5, 0.16666576, 0.041666374, 0.008363235, 0.0013941217


def expm1_and_exponent(x):
    """Return (e^r - 1, n + ROUNDED_0) with e^x = 2^n e^r and n the integer nearest to x / ln 2.
    x is a float32 from EXP_LOW to EXP_HIGH."""
    shifted = x * LOG2_E + ROUND_TO_INTEGER
    n = shifted - ROUND_TO_INTEGER
    r = x - n * LN2_HIGH
    r = r - n * LN2_LOW
    p = (((E4 * r + E3) * r + E2) * r + E1) * r + E0
    return p * (r * r) + r, np.float32(shifted).view(np.int32)


def power_of_2(n):
    """Return 2^n as a float32 for an int32 n from -127 (which gives 0) on. Its lowest 8 bits become the exponent."""
    return np.int32((n + np.int32(127)) << np.int32(23)).view(np.float32)


def expm1_and_power(x):
    """Return (e^r - 1, 2^n) for a float32 from NORMAL_LOW to NORMAL_HIGH."""
    p, n = expm1_and_exponent(x)
    return p, power_of_2(n)


def exp_float32(x):
    """Return e^x of a float32, multiplied by 2^n in two steps, so that it may become subnormal, 0 or infinite."""
    x = EXP_LOW if x < EXP_LOW else x
    x = EXP_HIGH if x > EXP_HIGH else x
    p, n = expm1_and_exponent(x)
    n = n - ROUNDED_0
    first = n >> np.int32(1)
    power = power_of_2(first)
    return (p * power + power) * power_of_2(n - first)


def sigmoid_float32(x):
    """Return the sigmoid of a float32, 1 / (1 + e^-x), from half of e^-x, since e^-x may be infinite."""
    x = -EXP_HIGH if x < -EXP_HIGH else x
    x = -NORMAL_LOW if x > -NORMAL_LOW else x
    p, n = expm1_and_exponent(-x)
    power = power_of_2(n - np.int32(1))
    y = p * power + power
    return divide(ONE, TWO * y + ONE)


def tanh_float32(x):
    """Return tanh of a float32: y / (y + 2) for y = e^2|x| - 1, which has no cancellation, with the sign of x."""
    a = abs(x + x)
    a = NORMAL_HIGH if a > NORMAL_HIGH else a
    p, power = expm1_and_power(a)
    y = p * power + (power - ONE)  # p where n is 0
    y = divide(y, y + TWO)
    return np.int32(np.float32(y).view(np.int32) | (np.float32(x).view(np.int32) & SIGN_BIT)).view(np.float32)


EXPM1_SMALL = 0.34  # below it, n above would be 0; above it e^x - 1 does not cancel


def expm1_float32(x):
    """Return e^x - 1 of a float32, for small x as r + r^2 E(r) with r = x."""
    p = (((E4 * x + E3) * x + E2) * x + E1) * x + E0
    return p * (x * x) + x if abs(x) < EXPM1_SMALL else exp_float32(x) - ONE


L1, L2, L3, L4, L5, L6 = 1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11, 1 / 13  # atanh(s) / s = 1 + s^2 / 3 + s^4 / 5 + ...


def log1p_float32(x):
    """Return log(1 + x) of a float32 from 0 to 1: 2 atanh(s) for s = x / (2 + x), which is at most 1/3."""
    s = divide(x, TWO + x)
    z = s * s
    series = (((((L6 * z + L5) * z + L4) * z + L3) * z + L2) * z + L1) * z
    return TWO * (s * series + s)


# (erf(x) - x) / x in x^2, |x| <= ERF_SMALL
ERF_SMALL, CDF_SMALL, SQRT_TWO = 0.93, 0.7, 1.4142135623730951
F0, F1, F2, F3, F4, F5 = 0.12837915, -0.37612481, 0.11281683, -0.026761720, 0.0049859401, -0.00059537392
# (1 - Φ(a)) e^(a²/2) / s in s = 1 / (1 + a / 4), a from 0 to TAIL_END
QUARTER, TAIL_END = 0.25, 13.1875
M0, M1, M2, M3, M4 = 0.099747243, 0.099504651, 0.095420651, 0.072421102, 0.085492154
M5, M6, M7, M8, M9 = 0.014792718, 0.026027075, 0.053397558, -0.063511572, 0.016708425
ROUND_TO_128TH = 98304.0  # 1.5 * 2^16: adding it leaves the nearest multiple of 1 / 128 in the remaining bits


def normal_tail(a):
    """Return 1 - Φ(a) of a float32 from 0 on: e^(-a²/2) times a polynomial, and 0 from TAIL_END on. Rounding a² would
    cost as many units in the last place as a²/2 has digits before the point. So a is split into b and a rest, for
    which b² is exact."""
    near = TAIL_END if a > TAIL_END else a
    b = (near + ROUND_TO_128TH) - ROUND_TO_128TH
    rest = HALF * ((b - near) * (b + near))
    s = divide(ONE, ONE + QUARTER * near)
    m = ((((M9 * s + M8) * s + M7) * s + M6) * s + M5) * s + M4
    m = ((((m * s + M3) * s + M2) * s + M1) * s + M0) * s
    p, power = expm1_and_power(-HALF * (b * b))
    q = (((E3 * rest + E2) * rest + E1) * rest + E0) * (rest * rest) + rest  # e^rest - 1, rest at most 0.06
    tail = (m * (p * q + (p + q)) + m) * power
    return ZERO if a >= TAIL_END else tail


def erf_near_0(x):
    """Return erf(x) of a float32 from -ERF_SMALL to ERF_SMALL: x + x F(x²)."""
    s = x * x
    return x + x * (((((F5 * s + F4) * s + F3) * s + F2) * s + F1) * s + F0)


def erf_float32(x):
    """Return erf(x) of a float32. Beyond ERF_SMALL it is 1 - 2 (1 - Φ(√2 |x|)) with the sign of x."""
    a = abs(x)
    large = ONE - TWO * normal_tail(SQRT_TWO * a)
    large = -large if x < ZERO else large
    return large if a > ERF_SMALL else erf_near_0(x)


def normal_cdf_float32(x):
    """Return Φ(x) of a float32. Near 0, where its digits count most, it is computed from the error function."""
    a = abs(x)
    tail = normal_tail(a)
    far = ONE - tail if x > ZERO else tail
    return far if a > CDF_SMALL else HALF + HALF * erf_near_0(x * SQRT_HALF)


def modulo_scalar(a, b):
    """Return `modulo` of two numbers from C's remainder, which has the sign of a."""
    r = fmod(a, b)
    return r + b if (r < ZERO and b > ZERO) or (r > ZERO and b < ZERO) else r


fmod = math.fmod


# On a GPU 2^x is one instruction with an error of at most 2 ulp.
LOG2_E_LOW = 1.9259629911e-08  # the rest of LOG2_E beyond float32
LN2 = 0.6931471805599453


def exp_cuda(x):
    """Return e^x of a float32: 2^t with t = x / ln 2 rounded, times 1 + r ln 2 for the rounding error r."""
    x = EXP_LOW if x < EXP_LOW else x
    t = x * LOG2_E
    r = fma(x, LOG2_E, -t) + x * LOG2_E_LOW
    power = exp2(t)
    return fma(power, r * LN2, power) if power < INFINITE else power


INFINITE = math.inf


def sigmoid_cuda(x):
    """Return the sigmoid of a float32."""
    return fast_divide(ONE, ONE + exp_float32(-x))


TANH_SMALL = 0.625  # below it 1 - 2 / (e^2x + 1) would cancel
# (tanh(x) - x) / x^3 in x^2
T0, T1, T2, T3, T4 = -0.3333333, 0.13332775, -0.053851031, 0.020995526, -0.0060918923


def tanh_cuda(x):
    """Return tanh of a float32: 1 - 2 / (e^2|x| + 1) with the sign of x, or x + x^3 T(x^2) for small x."""
    a = abs(x)
    large = ONE - fast_divide(TWO, exp_float32(a + a) + ONE)
    large = -large if x < ZERO else large
    s = x * x
    small = x + x * s * ((((T4 * s + T3) * s + T2) * s + T1) * s + T0)
    return large if a > TANH_SMALL else small


def fma(a, b, c):
    """Return a b + c with one rounding."""
    return np.float32(np.float64(a) * np.float64(b) + np.float64(c))


exp2 = np.exp2


def fast_divide(a, b):
    """Return a / b; on a GPU 0 if b is 2^126 or more."""
    return a / b


# GPU functions for float16 and bfloat16, which are precise to 2^-11 or 2^-8 of a number. These functions are precise to
# 2^-17 and take a quarter to half of the instructions. 2^x and 1 / x are one instruction each. Functions are replaced
# by name, so these names must not occur in a cell.
exp2_half, reciprocal_half = np.exp2, np.reciprocal
LOG2_E_TWICE = 2.8853900817779268
TANH_SMALL_HALF = 0.0625


def exp_half(x):
    """Return e^x of a float32, infinite or 0 beyond float32's range."""
    return exp2_half(x * LOG2_E)


def sigmoid_half(x):
    """Return the sigmoid of a float32: 1 / (1 + e^-x)."""
    return reciprocal_half(ONE + exp2_half(-x * LOG2_E))


def tanh_half(x):
    """Return tanh of a float32: 1 - 2 / (e^2x + 1), or x - x^3 / 3 for small x, where that would cancel."""
    large = ONE - TWO * reciprocal_half(exp2_half(x * LOG2_E_TWICE) + ONE)
    return x + x * (x * x) * T0 if abs(x) < TANH_SMALL_HALF else large


_SCALAR = {
    "where": where_scalar, "maximum": maximum_scalar, "minimum": minimum_scalar, "sign": sign_scalar,
    "modulo": modulo_scalar, "floor": np.floor, "absolute": abs, "log": math.log, "log1p": math.log1p, "sin": math.sin,
    "cos": math.cos, "sqrt": math.sqrt, "power": math.pow,
}  # fmt: skip
_LIBM = {
    **_SCALAR, "exp": math.exp, "expm1": math.expm1, "tanh": math.tanh, "erf": math.erf, "erfc": math.erfc,
}  # fmt: skip


@cache
def functions_of(backend, dtype):
    """Return the functions that replace this module's in code for a backend and dtype: name -> function.

    Args:
        backend: "cpu", "cuda" or "python".
        dtype: the dtype of stored results; float16 and bfloat16 compute in float32.
    """
    if backend == "python":
        return {}
    if is_half(dtype):
        return functions_of(backend, "float32") | (_of_halves() if backend == "cuda" else {})
    if dtype == "float64":
        return _LIBM if backend == "cpu" else {**_LIBM, "floor": libdevice().floor}
    both = _SCALAR | {
        "expm1": expm1_float32, "log1p": log1p_float32, "erf": erf_float32, "normal_cdf": normal_cdf_float32,
    }  # fmt: skip
    if backend == "cpu":
        return both | {"exp": exp_float32, "tanh": tanh_float32, "sigmoid": sigmoid_float32}
    from numbarnn.cuda import ptx

    known = libdevice()
    return both | {
        "floor": known.floorf, "exp": exp_cuda, "tanh": tanh_cuda, "sigmoid": sigmoid_cuda,
        "exp_float32": exp_cuda,  # in tanh and expm1
        "divide": ptx.divide, "fast_divide": known.fast_fdividef, "exp2": known.exp2f,
        "fma": known.fmaf_rn,
    }  # fmt: skip


def _of_halves():
    """Return coarser functions for float16 and bfloat16 on a GPU (see `exp_half`)."""
    from numbarnn.cuda import ptx

    shorter = {"exp": exp_half, "exp_float32": exp_half, "sigmoid": sigmoid_half, "tanh": tanh_half}
    return shorter | {"exp2_half": ptx.exp2, "reciprocal_half": ptx.reciprocal}
