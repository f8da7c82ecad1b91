"""The cells' scalar functions: derivatives, float32 approximations, types, and the random number generator."""

import numpy as np
import pytest

from cell_steps import callable_from_python, each, flat_numbers, functions_of, mapped, types_inside
from general_cells import GENERAL
from numbarnn import cells
from numbarnn.cells import lstm, scalar
from numbarnn.cells.definition import Given
from numbarnn.common.philox import dropout_words, philox
from numbarnn.compile import scalar as compiled_scalar
from numbarnn.compile import units
from numbarnn.compile.specialise import backward_function, forward_function, specialise
from numbarnn.reference.philox import philox4x32
from reference_problem import central_differences

CLIPPED = {"clipped": lstm.clipped(-0.3, 0.4), "clipped_nan_too": lstm.clipped(-0.3, 0.4, False)}
ALL_CELLS = cells.CELLS | CLIPPED | GENERAL
by_cell = pytest.mark.parametrize("cell", ALL_CELLS.values(), ids=ALL_CELLS)
by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))


# --------------------------------------------------------------------------------------------------------- equations
WEIGHT = 0.7  # R of the gates that multiply another vector than h', of one unit


def parts_of(cell, point):
    """(ax, ah, state, per_unit) of these as one vector."""
    ends = np.cumsum([cell.num_gates, cell.num_ah, cell.num_states])
    return tuple(map(tuple, np.split(point, ends)))


def arguments_of(cell, point):
    """What its forward takes, of the point's dtype."""
    *others, per_unit = parts_of(cell, point)
    return *others, Given(per_unit)


def size_of(cell):
    """How many numbers `parts_of` takes."""
    return cell.num_gates + cell.num_ah + cell.num_states + cell.num_per_unit


def step_forward(cell, ax, ah, state, per_unit):
    """New state and saved values; `ah` lacks the products of stages."""
    forward = forward_function(cell, "float64", "python")
    ah = list(ah)
    for number, stage in enumerate(cell.stages):
        known = *ah[: cell.first_of_stage(number)], *[np.nan] * (len(ah) - cell.first_of_stage(number))
        v = stage.forward(ax, known, state, Given(per_unit))
        for gate in gates_of_stage(cell, number):
            ah[gate] += WEIGHT * v
    return forward(ax, tuple(ah), state, Given(per_unit))


def gates_of_stage(cell, number):
    return range(cell.first_of_stage(number), cell.first_of_stage(number + 1))


def step_backward(cell, saved, state, new_state, d_state, per_unit):
    """The gradients of what `step_forward` takes."""
    backward = backward_function(cell, "float64", "python")
    d_v, of_stages = [np.nan] * len(cell.stages), ()
    for number in reversed(range(len(cell.stages))):
        d_ah = cell.stages[number].backward(saved, state, new_state, d_state, tuple(d_v), (), Given(per_unit))
        assert len(d_ah) == len(gates_of_stage(cell, number))
        d_v[number], of_stages = WEIGHT * sum(d_ah), (*d_ah, *of_stages)
    given = Given(per_unit)
    d_ax, d_ah, d_before, d_per_unit = backward(saved, state, new_state, d_state, tuple(d_v), (), given)
    return d_ax, (*d_ah, *of_stages), d_before, d_per_unit


@by_cell
@pytest.mark.parametrize("seed", range(5))
def test_backward_is_the_derivative_of_forward(cell, seed):
    """Central differences in float64. Their error is step² f'''/6 + 1e-16/step, some 1e-10 for functions of size 1."""
    rng = np.random.default_rng(seed)
    step, point, d_state = 1e-5, rng.normal(size=size_of(cell)), rng.normal(size=cell.num_states)
    if cell.name == "rnn_relu":
        assert abs(point[0] + point[1]) > 10 * step  # not at the kink

    def loss():
        return sum(d * value for d, value in zip(d_state, step_forward(cell, *parts_of(cell, point))[0], strict=True))

    numeric = central_differences(loss, point, step)
    ax, ah, state, per_unit = parts_of(cell, point)
    new_state, saved = step_forward(cell, ax, ah, state, per_unit)
    d_ax, d_ah, d_before, d_per_unit = step_backward(cell, saved, state, new_state, tuple(d_state), per_unit)
    np.testing.assert_allclose([*d_ax, *d_ah, *d_before, *d_per_unit], numeric, rtol=1e-6, atol=1e-9)
    assert (d_ax == d_ah) or not cell.same_gradient


@by_cell
def test_tuples_have_the_lengths_the_cell_says(cell):
    ax, ah, state, per_unit = parts_of(cell, np.ones(size_of(cell)))
    new_state, saved = step_forward(cell, ax, ah, state, per_unit)
    assert (len(new_state), len(saved)) == (cell.num_states, cell.num_saved)
    gradients = step_backward(cell, saved, new_state, new_state, (1.0,) * cell.num_states, per_unit)
    assert list(map(len, gradients)) == [cell.num_gates, cell.num_ah, cell.num_states, cell.num_per_unit]
    assert cell.states[0] == "h" and cell.num_private == len(cell.states) - 1


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


@by_dtype
@by_cell
def test_compiled_cells_equal_the_plain_equations(cell, dtype):
    rng = np.random.default_rng(0)
    compiled, plain = (forward_function(cell, *way) for way in ((dtype, "cpu"), ("float64", "python")))
    compiled = callable_from_python(compiled)
    for _ in range(20):
        point = rng.normal(size=size_of(cell)).astype(dtype)
        # eight operations on numbers below 4, and one exp or tanh of 2.5 eps
        ours = compiled(*arguments_of(cell, point))
        exact = plain(*arguments_of(cell, point.astype(np.float64)))
        for one, other in zip(flat_numbers(ours), flat_numbers(exact), strict=True):
            assert abs(one - other) <= 16 * np.finfo(dtype).eps


def test_functions_for_compiled_code_cannot_be_called_by_python():
    sigmoid = specialise(scalar.sigmoid, "float32", "cpu")
    assert 0 < callable_from_python(sigmoid)(np.float32(0.5)) < 1
    for _ in range(2):  # compiled by then
        with pytest.raises(TypeError, match=r"sigmoid is for compiled code: call it in a plain function"):
            sigmoid(np.float32(0.5))


def test_specialise_replaces_constants_and_functions_only():
    assert specialise(scalar.sigmoid, "float32", "cpu") is specialise(scalar.sigmoid, "float32", "cpu")
    plain = specialise(scalar.sigmoid, "float32", "python")
    assert plain.__globals__["ONE"].dtype == np.float32 and scalar.ONE == 1.0 and isinstance(scalar.ONE, float)
    assert plain.__doc__ == scalar.sigmoid.__doc__ and plain.__globals__["np"] is np


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


# ----------------------------------------------------------------------------------------------- memory and dropout
@pytest.mark.parametrize("count", range(5))
def test_units_in_memory(count):
    """Value k of unit j stands at k H + j."""
    H, j = 3, 1
    row, bias = np.arange(20.0), 100 * np.arange(20.0)
    places = [j + k * H for k in range(count)]
    assert units.loader(count, "python")(row, j, H) == tuple(row[places])
    assert units.biased_loader(count, "python")(row, bias, j, H) == tuple(row[places] + bias[places])
    out = np.full(20, np.nan)
    units.storer(count, "python")(out, j, H, tuple(range(count)))
    assert [int(value) for value in out[places]] == list(range(count))
    assert np.isnan(np.delete(out, places)).all()


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


@pytest.mark.parametrize("p, scale, threshold", [(0.0, 1, 0), (0.5, 2, 2**31), (0.25, 4 / 3, 2**30), (1.0, 0, 2**32)])
def test_dropout_words(p, scale, threshold):
    seed = 0x0123456789ABCDEF
    words = dropout_words(p, seed, 3, 2**32 + 7, first=60)
    assert words[0] == scale and all(isinstance(word, np.uint64) for word in words[1:])
    assert [int(word) for word in words[1:]] == [threshold, 0x89ABCDEF, 0x01234567, 3, 7, 60]
