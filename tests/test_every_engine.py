"""What layers do besides computing, on every engine: gradients asked for in parts, states of every step, few states
kept, arrays that change, recorded results. What cells compute, and how to run both on other engines:
test_conformance.py.
"""

from importlib.util import find_spec
from itertools import cycle, product

import numpy as np
import pytest
from test_conformance import ENGINES, HERE, MARKS, engine, on_engines, schedules

import formed_cells
import formed_loops
import matrix
import needs
import numbarnn as nr
import special_values
import vectors
from cases import Case
from comparing import assert_same_bits, check_checkpoints
from numbarnn.cells import library
from numbarnn.common.precision import DTYPES, HALVES, numpy_dtype
from running import named_gradients, on_engine

__all__ = ["engine"]
full = pytest.mark.full
BY_SCHEDULE = list(schedules())
CALLS = {"cpu": 2, "sim": 1, "cuda": 4}


def in_turn(values):
    """Parameters (engine, schedule, value): by each schedule, in the simulator by one in turn, as kernels are slow
    there."""
    for number, value in enumerate(values):
        for name, schedule in (point.values for point in BY_SCHEDULE):
            turn = number + matrix.SCHEDULES[name].index(schedule)
            marks = [*MARKS.get(name, []), *([full] if name == "sim" and turn % 3 else [])]
            yield pytest.param(name, schedule, value, marks=marks, id=f"{name}-{schedule}-{value}")


# ---------------------------------------------------------------------------------------------------------- gradients
@pytest.mark.parametrize("engine, schedule, name", list(in_turn(needs.LAYERS)), indirect=["engine"])
def test_gradients_asked_for_in_parts_and_again_are_the_same_bits(engine, schedule, name):
    needs.check_needs(name, engine, schedule, CALLS[engine])


@on_engines
def test_so_they_are_with_few_states_kept(engine):
    needs.check_needs("dropped", engine, "stepwise", CALLS[engine], checkpoint_every=2)


SEQUENCES = dict(lengths=(3, 0, 2), resets=True, padding_value=0.5)
CHECKPOINTS = (
    Case("lstm", T=3, hidden=(4, 3), dropout=0.5, dtype="float16"),
    Case("lstm", T=3, hidden=(3, 4), directions=2, dropout=0.5, **SEQUENCES),
    Case("lstm", T=3, hidden=(4,), directions=2, heads=2, drop=0.3, batch_first=True, bias="input"),
    Case("noisy", T=3, B=2, hidden=(4,), directions=2),
)


def checkpoint_points():
    """Each case of which float64 is known."""
    yield from in_turn([case for case in CHECKPOINTS if case.of_reference or find_spec("torch")])


@pytest.mark.parametrize("engine, schedule, case", list(checkpoint_points()), indirect=["engine"])
def test_training_with_few_states_kept_agrees_with_float64(engine, schedule, case):
    check_checkpoints(case, engine, schedule)


CHANGED = {
    "float32": lambda **options: nr.GRU(4, 5, **options),
    "float16": lambda **options: nr.GRU(4, 5, dtype="float16", **options),
    "few states kept": lambda **options: nr.GRU(4, 5, checkpoint_every=1, **options),
    "derived matrices": lambda **options: nr.RNN(library.antisymmetric, 4, 5, **options),
}


@on_engines
@pytest.mark.parametrize("name", CHANGED)
def test_a_change_before_backward_does_not_change_the_gradients(engine, name):
    """Nor does a call in between, which works with the changed numbers."""
    layer, rng = CHANGED[name](device=engine, seed=0), np.random.default_rng(0)
    x, dy = on_engine(layer.engine, [rng.standard_normal((2, 3, size)).astype(layer.dtype) for size in (4, 5)])
    expected = named_gradients(layer, layer.backward(layer.forward(x)[2], dy))
    for _ in range(CALLS[engine]):
        for array in (layer.weights, x):
            tape, before = layer.forward(x)[2], array.copy()
            array[...] = -2 * array
            layer(x)
            assert_same_bits(named_gradients(layer, layer.backward(tape, dy)), expected)
            array[...] = before


@on_engines
def test_a_single_step_without_a_state_has_a_gradient_of_zeros_for_R(engine):
    """Added to what is there, or written."""
    layer = nr.GRU(5, 3, device=engine, schedule="stepwise", seed=3)
    x, dy = on_engine(layer.engine, [np.ones((1, 2, 5), np.float32), np.ones((1, 2, 3), np.float32)])
    for dw, left in ((None, 0), (np.ones(layer.weights.shape, np.float32), 1)):
        gradients = layer.backward(layer.forward(x)[2], dy, dw=on_engine(layer.engine, dw))
        parameters = layer.stack.space.views(layer.engine.to_host(gradients.weights))
        assert (parameters["weight_hh_l0"] == left).all() and (parameters["weight_ih_l0"] != left).all()


# ---------------------------------------------------------------------------------------------- states of every step
@nr.cell
def two_products(x, h, c, n, p):
    """Two private states, and a product with what the step has made of h."""
    a = nr.tanh(p.W.a @ x + p.R.a @ h + p.b.a)
    g = nr.sigmoid(p.W.g @ x + p.R.g @ (a * h) + p.b.g)
    c_new = g * c + a
    return nr.tanh(c_new) * g, c_new, 0.5 * n + a


STEPS, BATCH, INPUT = 3, 2, 4
WITH_STATES = {
    "lstm": lambda **options: nr.LSTM(INPUT, [6, 5], bidirectional=True, **options),
    "first": lambda **options: nr.LSTM(INPUT, 6, proj_size=2, batch_first=True, **options),
    "sums": lambda **options: nr.RNN(library.layer_norm_lstm, INPUT, 6, **options),
    "products": lambda **options: nr.RNN(two_products, INPUT, 5, bidirectional=True, **options),
}


@pytest.mark.parametrize("engine", HERE, indirect=True)
@pytest.mark.parametrize("odd", [False, True], ids=["plain", "lengths_and_resets"])
@pytest.mark.parametrize("name", WITH_STATES)
def test_states_of_every_step_and_their_gradients_are_the_cpus(engine, name, odd):
    where = (engine, "wavefront" if odd else "stepwise"), ("cpu", "stepwise")
    layers = [WITH_STATES[name](device=device, schedule=how, seed=1) for device, how in where]
    rng, options = np.random.default_rng(0), {}
    if odd:
        resets = rng.random((STEPS, BATCH)) < 0.3
        options = {"lengths": [STEPS, 1], "resets": resets.T if layers[0].batch_first else resets}
    outer = (BATCH, STEPS) if layers[0].batch_first else (STEPS, BATCH)
    for _ in range(CALLS[engine]):
        x, found = rng.normal(size=(*outer, INPUT)).astype("float32"), []
        seed = int(rng.integers(1 << 30))
        for layer in layers:
            to_host, from_host, numbers = layer.engine.to_host, layer.engine.from_host, np.random.default_rng(seed)
            inference = layer(from_host(x), output_states=True, **options)[2]
            y, _, states, tape = layer.forward(from_host(x), output_states=True, **options)
            host = [to_host(one) for one in (y, *states)]
            for one, other in zip(inference, host[1:], strict=True):
                np.testing.assert_array_equal(to_host(one), other)
            dy, *given = (from_host(numbers.normal(size=one.shape).astype("float32")) for one in host)
            for dstates in (tuple(given), None):
                grads = layer.backward(tape, dy, dstates=dstates, retain=dstates is not None)
                host += [to_host(grads.x), to_host(grads.weights)]
            found.append(host)
        for ours, expected in zip(*found, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-5)
        assert not np.allclose(found[0][-1], found[0][-3])  # dstates count


# ------------------------------------------------------------------------------------------------- layers as a whole


@on_engines
def test_a_stepper_gives_what_one_call_of_all_steps_gives(engine):
    layer = nr.LSTM(3, 4, device=engine, seed=0)
    x = on_engine(layer.engine, np.random.default_rng(0).standard_normal((3, 2, 3)).astype("float32"))
    (y, state), step, to_host = layer(x), layer.stepper(2), layer.engine.to_host
    np.testing.assert_allclose([to_host(step(one)) for one in x], to_host(y), rtol=1e-5, atol=1e-6)
    for found, expected in zip(step.state, state, strict=True):
        np.testing.assert_allclose(to_host(found), to_host(expected), rtol=1e-5, atol=1e-6)
    step.state = None
    np.testing.assert_allclose(to_host(step(x[0])), to_host(y[0]), rtol=1e-5, atol=1e-6)


# --------------------------------------------------------------------------------------------------- recorded results
def recordings():
    """Every recording of PyTorch and onnxruntime (tests/data) in each dtype, by schedules in turn; by each with `full`.
    Persistent kernels do not compute in float64."""
    for name in ENGINES:
        all_of_them = matrix.SCHEDULES[name]
        of_dtype = {dtype: all_of_them[:2] if dtype == "float64" else all_of_them for dtype in DTYPES}
        turns = {dtype: cycle(of_dtype[dtype]) for dtype in DTYPES}
        for recording in vectors.read_all():
            for dtype in recording.results:
                usual = next(turns[dtype])
                for schedule in of_dtype[dtype]:
                    marks = [*MARKS.get(name, []), *([] if schedule == usual else [full])]
                    label = f"{name}-{recording.name}-{dtype}-{schedule}"
                    yield pytest.param(name, recording, dtype, schedule, marks=marks, id=label)


@pytest.mark.parametrize("engine, recording, dtype, schedule", list(recordings()), indirect=["engine"])
def test_layers_are_as_exact_as_what_was_recorded(engine, recording, dtype, schedule):
    values = vectors.layer_values(recording, dtype, engine, schedule)
    vectors.assert_as_exact(recording, dtype, values, f"{recording.name} {dtype} {schedule}")


SPECIAL = [pytest.param(name, dtype, marks=[full] if name == "sim" and dtype != "float32" else [])
           for name in ENGINES if name != "cuda" for dtype in DTYPES]  # fmt: skip


@pytest.mark.parametrize("engine, dtype", SPECIAL, indirect=["engine"])
def test_functions_of_equations_have_numpys_values_at_special_numbers(engine, dtype):
    special_values.require_equal(special_values.computed(dtype, engine), dtype)


@on_engines
@pytest.mark.parametrize("dtype", HALVES)
def test_c_is_not_rounded_from_step_to_step(engine, dtype):
    """With f and i all open and g tiny, c grows by less than half its last bit: in 16 bits it would not grow at all."""
    layer = nr.LSTM(1, 1, dtype=dtype, device=engine, seed=0)
    layer.weights[...] = 0
    layer.parameters["bias_ih_l0"] = [20, 20, 2.0**-13, 20]  # i = f = o = 1, g = 2^-13 to rounding
    x, h, c = on_engine(layer.engine, [np.full(shape, value, numpy_dtype(dtype)) for shape, value in
                                       (((256, 1, 1), 0), ((1, 1, 1), 0), ((1, 1, 1), 1))])  # fmt: skip
    _, (_, cy) = layer(x, (h, c))
    cy = layer.engine.to_host(cy)
    assert cy.dtype.name == dtype and cy[0, 0, 0] == 1 + 256 * 2.0**-13  # 1 + 2^-5, a number of both dtypes


# ------------------------------------------------------------------- kernels that read what is formed of parameters
STACK = {"num_layers": 2, "bidirectional": True, "checkpoint_every": 1}
FORMED = [("learned_diffusion", "wavefront"), ("tgru_of_wide_x", "stepwise"), ("traced_activity", "persistent")]
FORMED += [("learned_diffusion", "persistent"), ("sak_lstm", "stepwise"), ("large_memory", "stepwise")]
FORMED = [(*one, *more) for one in FORMED for more in (("float32", STACK), ("float16", {}))]
ON_GPU = [*product(formed_cells.CELLS, ("stepwise", "wavefront", "auto"), ("float32", "float64"), [{}])]
HALVED = "learned_diffusion", "janet", "small_context", "sak_lstm", "tgru_of_wide_x", "large_memory"
ON_GPU += [(name, "auto", dtype, {"num_layers": 2}) for name in HALVED for dtype in HALVES]
FORMED = [(name, *one) for name in ENGINES for one in FORMED + (ON_GPU if name == "cuda" else [])]


@pytest.mark.parametrize("engine, name, schedule, dtype, options", [
    pytest.param(*one, marks=MARKS.get(one[0], []), id="-".join([*one[:4], *one[4]])) for one in FORMED
], indirect=["engine"])  # fmt: skip
def test_derived_matrices_follow_changed_weights(engine, name, schedule, dtype, options):
    """In segments of one step of a network, too: a kernel finds what is formed behind all parameters. On a GPU, call
    after call: forming is no part of the graphs that are replayed."""
    if engine == "cpu" and schedule == "persistent":
        schedule = "auto"
    layer = formed_loops.layer_of(name, dtype, engine, schedule=schedule, **options)
    given = formed_loops.problem(name, layer, batch=2, steps=2)
    tolerance = {"float64": 1e-12, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}[dtype]
    for _ in range(max(2, CALLS[engine])):
        wanted = formed_loops.expected(name, layer, given)
        formed_loops.assert_close(formed_loops.computed(layer, given), wanted, tolerance)
        layer.weights += 0.01
