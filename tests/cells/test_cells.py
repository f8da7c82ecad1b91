"""The cells' scalar functions: float32 approximations, types, and the random number generator."""

import numpy as np
import pytest

from cell_steps import callable_from_python, each, flat_numbers, functions_of, mapped, types_inside
from general_cells import WRITTEN
from numbarnn import cells
from numbarnn.cells import lstm, scalar
from numbarnn.common.philox import philox
from numbarnn.compile import scalar as compiled_scalar
from numbarnn.compile.specialise import specialise
from numbarnn.reference.philox import philox4x32
from trace_cases import FUNCTIONS

CLIPPED = {"clipped": lstm.clipped(-0.3, 0.4), "clipped_nan_too": lstm.clipped(-0.3, 0.4, False)}
ALL_CELLS = cells.CELLS | CLIPPED | {name: WRITTEN[name] for name in ("blend", "chain", "light", "peephole", "normed")}
ALL_CELLS |= {name: cells.tracing.cell(FUNCTIONS[name]) for name in ("every_smooth_function", "every_kinked_function")}
by_cell = pytest.mark.parametrize("cell", ALL_CELLS.values(), ids=ALL_CELLS)
by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))


# ------------------------------------------------------------------------------------------------------------- types
@by_dtype
@by_cell
def test_compiled_cells_compute_in_their_dtype(cell, dtype):
    """One float64 literal would have Numba compile a float32 cell, with results in float64."""
    for function, counts in functions_of(cell):
        assert types_inside(specialise(function, dtype, "cpu"), dtype, counts) <= {dtype}


@by_dtype
@by_cell
def test_simulated_cells_compute_in_their_dtype(cell, dtype):
    one = np.dtype(dtype).type(0.5)
    for function, arguments in functions_of(cell):
        result = specialise(function, dtype, "python")(*each(arguments, lambda count: (one,) * count))
        assert {np.asarray(value).dtype.name for value in flat_numbers(result)} == {dtype}


def test_functions_for_compiled_code_cannot_be_called_by_python():
    sigmoid = specialise(scalar.sigmoid, "float32", "cpu")
    assert 0 < callable_from_python(sigmoid)(np.float32(0.5)) < 1
    for _ in range(2):  # compiled by then
        with pytest.raises(TypeError, match=r"sigmoid is for compiled code: call it in a plain function"):
            sigmoid(np.float32(0.5))


# -------------------------------------------------------------------------------------- exp, tanh and log1p in float32
def every(step):
    """Every step-th float32: all magnitudes and signs, infinities and NaNs too."""
    return np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


TINY = float(np.finfo(np.float32).tiny)  # below it float32 loses digits, and processors may flush to zero
X = every(1009)
FINITE = X[np.isfinite(X)]


def ulps(value, exact):
    """Error in units of the last place of the exact result in float32."""
    exact = np.asarray(exact, np.float64)
    return np.max(np.abs(value - exact) / np.spacing(np.maximum(np.abs(exact), TINY).astype(np.float32)))


def exact_sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x.astype(np.float64)))


# Function -> what it computes, from where to where with all digits, its error in units of the last place.
FLOAT32 = {
    "exp": (compiled_scalar.exp_float32, np.exp, (compiled_scalar.NORMAL_LOW, 88.72), 2),
    "tanh": (compiled_scalar.tanh_float32, np.tanh, (-np.inf, np.inf), 2.5),
    "tanh of GPUs": (compiled_scalar.tanh_cuda, np.tanh, (-np.inf, np.inf), 2),
    "log1p": (compiled_scalar.log1p_float32, np.log1p, (0, 1), 2),
    "sigmoid": (compiled_scalar.sigmoid_float32, exact_sigmoid, (-87.3, np.inf), 2.5),
    "sigmoid by exp": (scalar.sigmoid, exact_sigmoid, (-87.3, np.inf), 3),
}


@pytest.mark.parametrize("name", FLOAT32)
def test_functions_in_float32(name):
    """Over all float32 numbers, and near 0; NaN stays NaN, whatever its sign and payload."""
    function, exact, (low, high), bound = FLOAT32[name]
    x = np.concatenate([FINITE, np.linspace(max(low, -90), min(high, 90), 1_000_001, dtype=np.float32)])
    x = x[(low <= x) & (x <= high)]
    assert ulps(mapped(function)(x), exact(x.astype(np.float64))) < bound
    assert np.isnan(mapped(function)(X[np.isnan(X)])).all()


def test_exp_in_float32_beyond_all_digits():
    """Subnormal, then 0; infinite."""
    x = np.linspace(-110, compiled_scalar.NORMAL_LOW, 100_001, dtype=np.float32)
    exp = mapped(compiled_scalar.exp_float32)
    assert np.max(np.abs(exp(x) - np.exp(x.astype(np.float64)))) <= np.finfo(np.float32).smallest_subnormal
    np.testing.assert_array_equal(exp(np.float32([-np.inf, -1000, 88.73, 1000, np.inf])), [0, 0, *[np.inf] * 3])


HALVES = {"exp": (compiled_scalar.exp_half, np.exp, 87), "sigmoid": (compiled_scalar.sigmoid_half, exact_sigmoid, 80)}
HALVES |= {"tanh": (compiled_scalar.tanh_half, np.tanh, 10)}


@pytest.mark.parametrize("name", HALVES)
def test_shorter_functions_of_halves(name):
    """At most 2^-17 off, 64 times less than float16's last place; beyond float32's range as the function's limits."""
    function, exact, end = HALVES[name]
    small = np.float32(compiled_scalar.TANH_SMALL_HALF) * np.linspace(0.9, 1.1, 10_001, dtype=np.float32)
    x = np.concatenate([every(100_003), np.linspace(-end, end, 100_001, dtype=np.float32), small, -small])
    x = x[np.abs(x) <= end]
    with np.errstate(over="ignore", under="ignore"):
        found = np.array([function(one) for one in x])
        np.testing.assert_allclose(found, exact(x.astype(np.float64)), rtol=2**-17, atol=TINY)
        ends = [function(one) for one in np.float32([-np.inf, -1000, 1000, np.inf, np.nan])]
    assert found.dtype == np.float32
    low, high = {"exp": (0, np.inf), "sigmoid": (0, 1), "tanh": (-1, 1)}[name]
    np.testing.assert_array_equal(ends, [low, low, high, high, np.nan])


def reciprocal(x):
    """What a cell of somebody else's may have by such a name: not 1 / x."""
    return x + x


def with_a_function_of_its_own(ax):
    return reciprocal(ax)


def test_a_cells_own_functions_stay_what_they_are():
    """On a GPU, of halves too, though `specialise` knows by their names what other functions stand for."""
    pytest.importorskip("numba.cuda")
    for dtype in ("float16", "bfloat16", "float32"):
        own = specialise(with_a_function_of_its_own, dtype, "cuda").py_func.__globals__["reciprocal"]
        assert own.py_func.__code__ is reciprocal.__code__


# ----------------------------------------------------------------------------------------------------- random numbers
# Known answers of Random123 (kat_vectors, philox4x32 10): counter, key, result.
ONES = 0xFFFFFFFF
KNOWN = {
    "zeros": ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    "ones": ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    "pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}


@pytest.mark.parametrize("counter, key, known", KNOWN.values(), ids=KNOWN)
def test_philox_known_answers(counter, key, known):
    words = [np.uint64(word) for word in (*counter, *key)]
    assert tuple(map(int, philox(*words))) == known
    for dtype in ("float32", "float64"):
        assert tuple(map(int, callable_from_python(specialise(philox, dtype, "cpu"))(*words))) == known
    assert tuple(map(int, philox4x32(counter, key))) == known  # the tests' own
