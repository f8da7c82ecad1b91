"""The functions of equations, on numbers and arrays, compiled, and their derivatives."""

import math
import operator
import types

import numpy as np
import pytest

import numbarnn
from cell_steps import mapped
from numbarnn.cells import functions, scalar
from numbarnn.cells.definition import Given
from numbarnn.cells.tracing import CellError, cell
from numbarnn.common.code_cache import run_source
from numbarnn.compile.specialise import specialise

X = np.concatenate([np.linspace(-30, 30, 4001), np.linspace(-1, 1, 4001), [0.0, -0.0, 3.0, -3.0]])
POSITIVE = X[X > 0]


def exact_normal_cdf(x):
    """By its series near 0, and by the continued fraction of its tail elsewhere."""
    density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    if abs(x) < 3:
        terms = [x]
        while abs(terms[-1]) > 1e-18:
            terms.append(terms[-1] * x * x / (2 * len(terms) + 1))
        return 0.5 + density * math.fsum(terms)
    fraction = abs(x)
    for k in range(200, 0, -1):
        fraction = abs(x) + k / fraction
    return density / fraction if x < 0 else 1 - density / fraction


def exact_function(name):
    """The function of a name written with Python's math, for one number."""
    return {
        "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
        "tanh": math.tanh,
        "relu": lambda x: max(x, 0.0),
        "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
        "elu": lambda x: x if x > 0 else math.expm1(x),
        "softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
        "softsign": lambda x: x / (1 + abs(x)),
        "hard_sigmoid": lambda x: min(max(x / 6 + 0.5, 0.0), 1.0),
        "hard_sigmoid_keras2": lambda x: min(max(0.2 * x + 0.5, 0.0), 1.0),
        "hard_tanh": lambda x: min(max(x, -1.0), 1.0),
        "exp": math.exp,
        "log": math.log,
        "sqrt": math.sqrt,
        "abs": abs,
        "sin": math.sin,
        "cos": math.cos,
        "selu": lambda x: 1.0507009873554804934 * (x if x > 0 else 1.6732632423543772848 * math.expm1(x)),
        "log_sigmoid": lambda x: min(x, 0.0) - math.log1p(math.exp(-abs(x))),
        "silu": lambda x: x / (1 + math.exp(-x)),
        "mish": lambda x: x * math.tanh(max(x, 0.0) + math.log1p(math.exp(-abs(x)))),
        "gelu": lambda x: x * exact_normal_cdf(x),
        "normal_cdf": exact_normal_cdf,
        "erf": math.erf,
        "sign": lambda x: math.copysign(1, x) if x else 0,
        "floor": math.floor,
    }[name]


OTHERS = {
    "normal", "uniform",
    "maximum", "minimum", "where", "clip", "sum", "mean", "layer_norm", "dropout", "zoneout", "heads", "drop_connect",
    "initial", "columns", "eye", "stop_gradient", "custom_derivative", "softmax", "logsumexp", "cumsum",
    "cumax", "chrono", "constant", "sized",
}  # fmt: skip
# Where e^(-x²/2) is computed, x² is rounded: at 30 that is 450 times a number's rounding.
RTOL = {"gelu": 2e-13, "normal_cdf": 2e-13}
ONE_ARGUMENT = tuple(name for name in functions.__all__ if name not in OTHERS)


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_on_arrays_and_numbers(name):
    function, exact = getattr(functions, name), exact_function(name)
    x = POSITIVE if name in ("log", "sqrt") else X
    expected = [exact(value) for value in x]
    np.testing.assert_allclose(function(x), expected, rtol=RTOL.get(name, 4e-15), atol=1e-300)
    assert function(float(x[7])) == pytest.approx(expected[7], rel=RTOL.get(name, 4e-15))


def test_functions_of_several_arrays():
    a, b = X, X[::-1].copy()
    np.testing.assert_array_equal(functions.maximum(a, b), np.maximum(a, b))
    np.testing.assert_array_equal(functions.minimum(a, 0.5), np.minimum(a, 0.5))
    np.testing.assert_array_equal(functions.where(a > b, a, 2.0), np.where(a > b, a, 2.0))
    np.testing.assert_array_equal(functions.clip(a, -0.5, 2), np.clip(a, -0.5, 2))


# ----------------------------------------------------------------------------------------------------------- compiled
TINY = 1e-35  # smaller results count as this large
# the largest error in units of the last place: of exp, log or division, and of what follows it (in expm1: - 1)
FLOAT32_ERRORS = {
    "sigmoid": 3, "tanh": 2, "relu": 0, "leaky_relu": 1, "elu": 3, "softplus": 3, "softsign": 2, "exp": 2, "log": 2,
    "sqrt": 1, "absolute": 0, "sin": 2, "cos": 2, "expm1": 5,
    "erf": 2, "normal_cdf": 5, "floor": 0,
}  # fmt: skip
CONSTANTS = {"leaky_relu": (0.01,), "elu": (1.0,)}


def scalar_function(name):
    """The function of `numbarnn.cells.scalar` of that name, with its constants, as a cell's equations would call it."""
    namespace = {**vars(scalar), "SLOPE": CONSTANTS.get(name, (0.0,))[0]}
    text = f"def called(x): return {name}(x{', SLOPE' if name in CONSTANTS else ''})"
    run_source(text, f"<{text}>", namespace)
    return namespace["called"]


@pytest.mark.parametrize("name", FLOAT32_ERRORS)
def test_float32(name):
    x = (POSITIVE if name in ("log", "sqrt") else X).astype(np.float32)
    function = scalar_function(name)
    if name == "normal_cdf":  # down to where float32 has all digits of it; beyond it goes to 0
        assert mapped(function)(x[x < -12.9]).max() < 1e-37
        x = x[x >= -12.9]
    exact = function(x.astype(np.float64))
    error = np.abs(mapped(function, "float32")(x) - exact)
    assert np.max(error / np.spacing(np.maximum(np.abs(exact), TINY).astype(np.float32))) <= FLOAT32_ERRORS[name]


@pytest.mark.parametrize("name", FLOAT32_ERRORS)
def test_float64(name):
    x = POSITIVE if name in ("log", "sqrt") else X
    function = scalar_function(name)
    np.testing.assert_allclose(mapped(function, "float64")(x), function(x), rtol=4e-15, atol=1e-300)


# -------------------------------------------------------------------------------------------------------- derivatives
def derivative(function, value):
    """The derived derivative of a function of one traced value, at a number."""
    traced = cell(lambda x, h, p: function(p.W.a @ x))
    new_state, saved = traced.forward((value,), (), (0.0,), Given())
    (d_ax,), *_ = traced.backward(saved, (0.0,), new_state, (1.0,), (), (), Given())
    return float(d_ax)


@pytest.mark.parametrize("name", ONE_ARGUMENT)
@pytest.mark.parametrize("value", (-4.2, -1.3, -0.02, 0.03, 0.7, 2.1, 5.5))
def test_derivative(name, value):
    if name in ("log", "sqrt"):
        value = abs(value)
    function, step = getattr(functions, name), 1e-5
    numeric = (function(value + step) - function(value - step)) / (2 * step)
    assert derivative(function, value) == pytest.approx(numeric, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("exponent", (-3, -2, -1, 0, 0.5, 1, 1.5, 2, 3, 4, 5, 8, 11))
def test_derivative_of_powers(exponent):
    value = 1.3
    assert derivative(lambda a: a**exponent + 0 * a + a, value) - 1 == pytest.approx(
        exponent * value ** (exponent - 1), rel=1e-12
    )
    assert derivative(lambda a: 2**a / a, value) == pytest.approx(2**value * (math.log(2) / value - 1 / value**2))
    if isinstance(exponent, int) and exponent:
        traced = cell(lambda x, h, p: (p.W.a @ x) ** exponent)
        assert traced.forward((-value,), (), (0.0,), Given())[0][0] == pytest.approx((-value) ** exponent)


KINKS = {
    "relu": (0.0, 0.0), "leaky_relu": (0.0, 0.01), "elu": (0.0, 1.0), "abs": (0.0, 0.0), "hard_tanh": (1.0, 0.0),
    "hard_sigmoid": (-3.0, 0.0), "hard_sigmoid_keras2": (2.5, 0.0), "selu": (0.0, 1.7580993408473768),
}  # fmt: skip


@pytest.mark.parametrize("name", KINKS)
def test_derivative_at_kinks_is_what_the_docstring_says(name):
    value, expected = KINKS[name]
    assert derivative(getattr(functions, name), value) == pytest.approx(expected, rel=1e-15, abs=0)
    number = {"leaky_relu": "negative_slope", "elu": "alpha", "selu": "1.7581"}.get(name, "0")
    assert f"Derivative {number} at" in getattr(functions, name).__doc__


def test_derivative_where_two_are_equal():
    assert derivative(lambda a: functions.maximum(a, 0.5), 0.5) == 0
    assert derivative(lambda a: functions.minimum(0.5, a), 0.5) == 1


def test_derivatives_far_out_are_finite():
    for name in sorted(set(ONE_ARGUMENT) - {"exp", "log", "sqrt"}):
        for value in (-80.0, 80.0):
            assert math.isfinite(derivative(getattr(functions, name), value)), (name, value)


# ------------------------------------------------------------------------------------------------ of several numbers
def test_gelu_by_tanh():
    """As PyTorch's; both forms differ by some 1e-4 from each other."""
    torch = pytest.importorskip("torch")
    x = X[np.abs(X) < 10]
    found = functions.gelu(x, approximate="tanh")
    # 1 + tanh(u), as PyTorch has it, cancels
    np.testing.assert_allclose(found, torch.nn.functional.gelu(torch.tensor(x), approximate="tanh").numpy(), atol=3e-15)
    assert 1e-4 < np.max(np.abs(found - functions.gelu(x))) < 1e-3
    assert derivative(lambda a: functions.gelu(a, "tanh"), 0.7) == pytest.approx(
        (functions.gelu(0.7 + 1e-5, "tanh") - functions.gelu(0.7 - 1e-5, "tanh")) / 2e-5, rel=1e-8
    )
    with pytest.raises(ValueError, match="approximate must be 'none' or 'tanh', not 'erf'"):
        functions.gelu(X, approximate="erf")


@pytest.mark.parametrize("backend", ("cpu", "python"))
def test_modulo_of_integers_is_exact(backend):
    """Also where the quotient is rounded to an integer, such as that of 49 and 49 by the reciprocal."""
    steps = np.arange(-3000, 3000, dtype=np.float32)
    for divisor in (1.0, 2.0, 3.0, 7.0, 10.0, 49.0, 128.0, 961.0, -7.0):
        function = types.FunctionType(modulo_of.__code__, {**modulo_of.__globals__, "DIVISOR": divisor}, "modulo_of")
        apply = mapped(function) if backend == "cpu" else specialise(function, "float32", backend)
        np.testing.assert_array_equal(apply(steps), np.mod(steps, np.float32(divisor)))


def modulo_of(x):
    return modulo(x, DIVISOR)


modulo, DIVISOR = scalar.modulo, 1.0


def test_derivative_of_modulo():
    """1 by the dividend, minus the whole quotient by the divisor."""
    assert derivative(lambda a: a % 1.5, 4.1) == 1
    assert derivative(lambda a: 7.3 % a, 1.5) == -4
    traced = cell(lambda x, h, p: 5 % (p.W.a @ x))
    assert traced.forward((3.0,), (), (0.0,), Given())[0] == (2.0,)


@pytest.mark.parametrize("base, exponent, expected", ((0.0, 1.5, 0), (0.0, 0.0, 0), (2.0, 3.0, 8 * math.log(2))))
def test_derivative_by_an_exponent(base, exponent, expected):
    """A base may be 0, as a state is at first: 0^b log(0) is 0 there."""
    with np.errstate(divide="ignore"):
        for to_the in (lambda b: base**b, lambda b: functions.minimum(b, base) ** b):
            assert derivative(to_the, exponent) == pytest.approx(expected, rel=1e-15)


def test_derivative_by_a_base_whose_exponent_is_computed():
    """Also where the exponent is 0: 0 a^-1 is 0 there."""
    with np.errstate(divide="ignore"):
        for value, expected in ((0.0, 0), (2.0, 2 * 2.0)):
            assert derivative(lambda a: a ** functions.stop_gradient(a), value) == expected


# --------------------------------------------------------------------------------------------------- of derivatives
def test_stop_gradient():
    assert derivative(lambda a: functions.stop_gradient(a * a) * a, 3.0) == 9
    assert derivative(functions.stop_gradient, 3.0) == 0
    np.testing.assert_array_equal(functions.stop_gradient(X), X)


def test_custom_derivative():
    """In place of that of what it is computed from; by several; beside an ordinary one; with no gradient of itself."""

    def surrogate(a):
        return functions.custom_derivative(functions.where(a > 1, 1, 0), a, 1 / (1 + a * a))

    assert derivative(surrogate, 2.0) == 0.2
    assert derivative(lambda a: 3 * surrogate(a) * a, 2.0) == pytest.approx(3 * (0.2 * 2 + 1))
    assert derivative(lambda a: functions.custom_derivative(functions.sign(a), a, 1), 2.0) == 1
    assert derivative(lambda a: functions.custom_derivative(a * a, a, 0.5, a * a * a, 2), 2.0) == 0.5 + 2 * 12
    assert derivative(lambda a: functions.custom_derivative(a * a, 1 + 0 * a, 5), 2.0) == 0
    assert functions.custom_derivative(2.0, 1.0, 3.0) == 2


def test_a_derivative_is_computed_in_backward_alone():
    traced = cell(lambda x, h, p: functions.custom_derivative(p.W.a @ x, h, functions.exp(h) * functions.sin(h)))
    forward, backward = (function.__code__.co_names for function in (traced.forward, traced.backward))
    assert "sin" in backward and "sin" not in forward and not traced.saved


@pytest.mark.parametrize("compare", ("gt", "ge", "lt", "le", "eq", "ne"))
def test_comparisons(compare):
    chosen = getattr(operator, compare)
    traced = cell(lambda x, h, p: functions.where(chosen(p.W.a @ x, h), 1 * h, 2 + h))
    for a in (0.0, 1.0, 2.0):
        assert traced.forward((a,), (), (1.0,), Given())[0] == (1.0 if chosen(a, 1.0) else 3.0,)


# ------------------------------------------------------------------------------------------------------- of all units
def test_softmax_and_logsumexp_on_arrays():
    """Over the units, the first axis; large numbers do not overflow; one number is no vector."""
    a = np.random.default_rng(0).normal(size=(5, 2)) + 800
    exact = np.exp(a - 800) / np.exp(a - 800).sum(axis=0)
    np.testing.assert_allclose(functions.softmax(a), exact, rtol=1e-13)
    np.testing.assert_allclose(functions.logsumexp(a)[0], 800 + np.log(np.exp(a - 800).sum(axis=0)), rtol=1e-14)
    for function in (functions.softmax, functions.logsumexp, functions.layer_norm):
        with pytest.raises(CellError, match=r"a value per unit is needed, got the number 1\.0"):
            function(1.0)


def test_stages_of_the_largest():
    """Before the sums that need it; backward leaves it out; of what is the same for all units there is none."""
    traced = cell(lambda x, h, p: functions.softmax(p.W.a @ x + p.R.a @ h))
    assert [(stage.largest, len(stage.sums)) for stage in traced.stages] == [(True, 1), (False, 1)]
    assert (traced.sums_before(2), traced.sums_after(-1)) == ((0, 1), (1,))
    traced = cell(lambda x, h, p: functions.logsumexp(functions.sum(p.W.a @ x)))
    assert [stage.largest for stage in traced.stages] == [False]


@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_remainders_on_the_cpu(dtype):
    """Of one's own period, so that its derivative has a floor; compiled without Numba."""

    @cell
    def after_a_remainder(x, h, p):
        return functions.sigmoid((p.W.a @ x) % p.period) + p.R.a @ h

    layer = numbarnn.RNN(after_a_remainder, 3, 4, device="cpu", dtype=dtype, seed=0)
    x = np.random.default_rng(0).standard_normal((1, 2, 3)).astype(dtype)
    a, period = x[0] @ layer.named["W.a"].T, layer.named["period"]
    y, _, tape = layer.forward(x)
    s = 1 / (1 + np.exp(-(a % period)))
    rtol = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(y[0], s, rtol=rtol)
    expected = (s * (1 - s) * -np.floor(a / period)).sum(axis=0)
    np.testing.assert_allclose(layer.backward(tape, np.ones_like(y)).named["period"], expected, rtol=rtol, atol=1e-6)
