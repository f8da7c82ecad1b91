"""LSTM, GRU and RNN on the CPU: how layers behave from call to call: state, tapes, dropout, seeds, memory."""

import gc
import math
import weakref
from itertools import pairwise

import numpy as np
import pytest

import numbarnn as nr
from cases import CELLS, Case
from comparing import assert_close, assert_same_bits
from numbarnn import engines
from problems import make_problem
from running import infer, named_gradients, named_outputs, nan_filled, not_prepared, train

by_cell = pytest.mark.parametrize("cell", CELLS)
by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))


# ----------------------------------------------------------------------------------------------------------- state
def in_pieces(layer, problem, cuts):
    """The outputs of calls over pieces of the sequence, each continuing the one before."""
    state, outputs, case = problem.state, [], problem.case
    with nan_filled(layer.engine):
        for first, last in pairwise(cuts):
            y, state = layer(np.ascontiguousarray(problem.sequences(problem.x[first:last])), state)
            outputs.append(y)
    return named_outputs(layer, np.concatenate(outputs, axis=1 if case.batch_first else 0), state)


@by_dtype
@pytest.mark.parametrize("batch_first", (False, True), ids=("time_first", "batch_first"))
@pytest.mark.parametrize("cuts", [(0, 3, 7), (0, 1, 2, 3, 4, 5, 6, 7)], ids=("two_calls", "one_step_at_a_time"))
@pytest.mark.parametrize("hidden", [(33,), (5, 33)], ids=str)
@by_cell
def test_state_carries_from_call_to_call(cell, hidden, cuts, batch_first, dtype):
    case = Case(cell, hidden=hidden, batch_first=batch_first, dtype=dtype)
    problem = make_problem(case)
    layer = problem.layer()
    expected = problem.expected()
    values = in_pieces(layer, problem, cuts)
    assert_close(case, values, {name: expected[name] for name in values})


@by_cell
def test_state_of_equal_sizes_may_be_a_list_per_layer(cell):
    problem = make_problem(Case(cell, hidden=(5, 5), directions=2))
    layer = problem.layer()
    split = [[part[:2], part[2:]] for part in (problem.h, problem.c) if part is not None]
    given = layer(problem.x, tuple(split) if cell == "lstm" else split[0])
    assert_same_bits(named_outputs(layer, *given), infer(layer, problem))


# ------------------------------------------------------------------------------------------------------- gradients
@by_cell
def test_gradients_are_views_of_one_buffer_laid_out_as_the_weights(cell):
    problem = make_problem(Case(cell, hidden=(5, 3), directions=2))
    layer = problem.layer()
    gradients = layer.backward(layer.forward(problem.x)[2], problem.dy)
    assert list(gradients.params) == list(layer.parameters)
    assert gradients.weights.shape == layer.weights.shape
    for name, view in gradients.params.items():
        offset = layer.parameters[name].ctypes.data - layer.weights.ctypes.data
        assert view.ctypes.data - gradients.weights.ctypes.data == offset, name


@by_cell
def test_nothing_given_is_changed(cell):
    case = Case(cell, hidden=(5, 5), directions=2, dropout=0.5)
    problem = make_problem(case)
    layer = problem.layer()
    given = {"x": problem.x, "dy": problem.dy, "h": problem.h, "dhy": problem.dhy, "weights": layer.weights}
    given |= {"c": problem.c, "dcy": problem.dcy} if case.has_c else {}
    before = {name: array.copy() for name, array in given.items()}
    train(layer, problem)
    infer(layer, problem)
    assert_same_bits(given, before)


def test_tapes_may_be_used_in_any_order():
    problem = make_problem(Case("lstm", hidden=(5, 5), dropout=0.5))
    layers = [problem.layer(), problem.layer()]
    tapes = [[layer.forward(x)[2] for x in (problem.x, 2 * problem.x)] for layer in layers]
    straight = [layers[0].backward(tape, problem.dy) for tape in tapes[0]]
    crossed = [layers[1].backward(tape, problem.dy) for tape in reversed(tapes[1])]
    for one, other in zip(straight, reversed(crossed), strict=True):
        assert_same_bits(named_gradients(layers[0], one), named_gradients(layers[1], other))


# ------------------------------------------------------------------------------------------------- arrays and memory
@by_cell
def test_arrays_of_any_strides_are_taken(cell):
    problem = make_problem(Case(cell, hidden=(5, 5), directions=2))
    expected, _ = train(problem.layer(), problem)

    def strided(array):
        """The same values, every other element of something larger, axes swapped in memory."""
        if array is None:
            return None
        large = np.full((array.shape[2], array.shape[0], 2 * array.shape[1]), np.nan, array.dtype)
        view = large[:, :, ::2].transpose(1, 2, 0)
        view[...] = array
        return view

    for name in ("x", "dy", "h", "c", "dhy", "dcy"):
        problem_ = make_problem.__wrapped__(problem.case)
        setattr(problem_, name, strided(getattr(problem_, name)))
        layer = problem_.layer()
        y, state, tape = layer.forward(problem_.x, problem_.state)
        values = named_outputs(layer, y, state)
        values |= named_gradients(layer, layer.backward(tape, problem_.dy, problem_.dstate))
        assert_same_bits(values, expected, name)


@pytest.mark.parametrize("T", (1, 2, 9))
def test_one_sequence_may_lie_as_a_row_of_a_batch_first_array(T):
    """Its strides are those of (1, T, I): between sequences, of which there is but one, NumPy says, are T rows."""
    layer, rng = nr.GRU(5, 7, device="cpu", seed=0), np.random.default_rng(0)
    x, dy = (rng.standard_normal((1, T, size), np.float32) for size in (5, 7))
    found = []
    for turned in (lambda array: array.swapaxes(0, 1), lambda array: array.swapaxes(0, 1).copy()):
        y, _, tape = layer.forward(turned(x))
        gradients = layer.backward(tape, turned(dy))
        found.append((layer(turned(x))[0], y, gradients.x, gradients.weights))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("steps", (2, 300))
def test_y_and_the_states_of_every_step_are_the_callers_own(steps):
    layer = nr.LSTM(3, 64, device="cpu")
    x = np.ones((steps, 40, 3), np.float32)
    expected = layer.backward(layer.forward(x)[2], np.ones((steps, 40, 64), np.float32)).weights
    for options in ({}, {"output_states": True}):
        y, _, *states, tape = layer.forward(x, **options)
        for array in (y, *(own for all_of_them in states for own in all_of_them)):
            array[...] = np.nan
        assert np.array_equal(layer.backward(tape, np.ones_like(y)).weights, expected)


# --------------------------------------------------------------------------------------------------------- dropout


def test_training_calls_say_which_masks_come_next():
    """Set on a new layer, they resume where another one stopped."""
    x = np.ones((7, 3, 4), np.float32)
    one, other = (nr.GRU(4, 33, num_layers=2, dropout=0.5, device="cpu", seed=1) for _ in range(2))
    one.forward(x)
    one(x)
    one.forward(x)
    assert one.training_calls == 2 and other.training_calls == 0
    other.training_calls = 2
    masks = [layer.dropout_masks(layer.forward(x)[2]) for layer in (one, other)]
    np.testing.assert_array_equal(*masks)
    for wrong in (-1, 1.0, True, None):
        with pytest.raises((TypeError, ValueError), match="training_calls"):
            other.training_calls = wrong
    assert other.training_calls == 3


# ------------------------------------------------------------------------------------------------------- parameters
@by_cell
def test_seed_sets_the_parameters(cell):
    case = Case(cell, hidden=(33, 5), directions=2)
    first, same, other = case.layer(seed=1), case.layer(seed=1), case.layer(seed=2)
    unseeded = [case.layer(seed=None) for _ in range(2)]
    assert np.array_equal(first.weights, same.weights)
    assert not np.array_equal(first.weights, other.weights)
    assert not np.array_equal(unseeded[0].weights, unseeded[1].weights)


@by_cell
def test_parameters_start_as_pytorchs(cell):
    """Uniform in ±1/√H of their layer."""
    layer = Case(cell, I=50, hidden=(100, 25), directions=2).layer()
    for name, values in layer.parameters.items():
        bound = 1 / math.sqrt(100 if "_l0" in name else 25)
        assert np.abs(values).max() <= bound, name
        n = values.size
        assert abs(values.mean()) < 5 * bound / math.sqrt(3 * n), name  # 5 sigma of a uniform mean
        assert np.abs(values).max() > bound * (1 - 20 / n), name  # missed by one uniform sample in e^20


@by_cell
def test_parameters_are_views_of_the_weights(cell):
    problem = make_problem(Case(cell, hidden=(5, 3), directions=2))
    layer = problem.layer()
    before = infer(layer, problem)
    kept = layer.state_dict()
    for view in layer.parameters.values():
        view[...] = 0
    assert not layer.weights.any()
    assert not np.array_equal(infer(layer, problem)["y"], before["y"])
    assert all(value.any() for value in kept.values())  # a state dict is a copy
    layer.load_state_dict(kept)
    assert_same_bits(infer(layer, problem), before)
    for value in kept.values():
        value[...] = 0
    assert_same_bits(infer(layer, problem), before)


# -------------------------------------------------------------------------------------------------------- telling
@by_cell
def test_attributes_are_as_made(cell):
    layer = Case(cell, hidden=(5, 3), directions=2, bias=False, dropout=0.5, batch_first=True).layer()
    told = (layer.cell, layer.input_size, layer.hidden_size, layer.num_layers, layer.bidirectional, layer.bias)
    assert told == (cell, 4, (5, 3), 2, True, False)
    assert layer.hidden_sizes == (5, 3)
    for sizes in ((4, 6, 2), (4, [6, 6])):  # as given, and what follows from it
        same = nr.LSTM(*sizes, device="cpu")
        assert (same.hidden_size, same.hidden_sizes) == (6, (6, 6))
    assert (layer.dropout, layer.batch_first, layer.dtype, layer.device) == (0.5, True, "float32", "cpu")
    assert layer.engine is engines.get("cpu")
    text = repr(layer)
    for word in ("4, [5, 3]", "batch_first=True", "bidirectional=True", "bias=False", "dropout=0.5", "'float32'"):
        assert word in text


# ------------------------------------------------------------------------------------------------- awkward arrays
@pytest.mark.parametrize("value", (1, 2, -1, 256, 1 << 32))
def test_resets_of_any_int_but_zero_reset(value):
    """An int that is cut to its lowest byte would be no reset."""
    layer, x = nr.GRU(3, 5, device="cpu", seed=0), np.random.default_rng(0).standard_normal((4, 2, 3), np.float32)
    expected, _ = layer(x, resets=np.eye(4, 2, dtype=bool))
    np.testing.assert_array_equal(layer(x, resets=value * np.eye(4, 2, dtype=np.int64))[0], expected)


@pytest.mark.parametrize("order", ("xhc", "hxc", "hcx", "cxh"))
def test_arrays_that_lie_end_to_end_are_told_apart(order):
    """Views of one buffer, where one ends another begins: a repeated call must not take one for a part of another."""
    shapes, given, at = {"x": (4, 2, 8), "h": (1, 2, 16), "c": (1, 2, 16)}, {}, 0
    buffer = np.random.default_rng(1).standard_normal(192, np.float32)
    for name in order:
        size = math.prod(shapes[name])
        given[name] = buffer[at : at + size].reshape(shapes[name])
        at += size
    apart = {name: array.copy() for name, array in given.items()}
    layer, other = (nr.LSTM(8, 16, device="cpu", seed=0) for _ in range(2))
    for _ in range(4):
        (y, _, tape), (wanted, _, other_tape) = (
            one.forward(own["x"], (own["h"], own["c"])) for one, own in ((layer, given), (other, apart))
        )
        np.testing.assert_array_equal(y, wanted)
        found, expected = layer.backward(tape, y), other.backward(other_tape, wanted.copy())
        np.testing.assert_array_equal(found.x, expected.x)
        np.testing.assert_array_equal(found.weights, expected.weights)
        inferred, wanted = (one(own["x"], (own["h"], own["c"]))[0] for one, own in ((layer, given), (other, apart)))
        np.testing.assert_array_equal(inferred, wanted)


def test_a_tape_that_is_used_up_takes_no_memory():
    """Nor does a tape with checkpoints hold what the caller got."""
    x = np.ones((300, 40, 3), np.float32)
    for every in (None, 50):
        layer = nr.GRU(3, 64, device="cpu", checkpoint_every=every)
        y, state, tape = layer.forward(x)
        results = [weakref.ref(y), weakref.ref(state)]
        memory = weakref.ref(tape.forward.reserve)
        layer.backward(tape, np.ones_like(y))
        del y, state
        assert [one() for one in results] == [None, None] and (every or memory() is None)


def test_a_layer_that_is_gone_takes_its_weights_along():
    """At once, and not when Python's collector comes."""
    gc.disable()
    try:
        for dtype in ("float32", "float16"):
            layer = nr.LSTM(3, 5, device="cpu", dtype=dtype)
            layer.backward(layer.forward(np.ones((2, 2, 3), dtype))[2], np.ones((2, 2, 5), dtype))
            weights = weakref.ref(layer.weights)
            del layer
            assert weights() is None, dtype
    finally:
        gc.enable()


# ------------------------------------------------------------------------------------------------------- repeated calls
@pytest.mark.parametrize("kind", (nr.LSTM, nr.GRU))
@pytest.mark.parametrize("options", ({}, {"batch_first": True}, {"num_layers": 2, "bidirectional": True}), ids=str)
def test_calls_of_all_kinds_one_after_another(kind, options):
    layer = kind(4, 5, device="cpu", seed=0, **options)
    with not_prepared():
        other = kind(4, 5, device="cpu", seed=0, **options)
    rng = np.random.default_rng(0)
    for T, B in ((3, 2), (2, 3), (3, 2)):
        x = rng.standard_normal((B, T, 4) if layer.batch_first else (T, B, 4)).astype("float32")
        _, state = other(x)
        partly = (state[0], None) if kind is nr.LSTM else None
        for given in (None, state, state, partly, None, list(state) if kind is nr.LSTM else state):
            for array in (x, x.copy(order="F"), x[::-1]):
                assert_same_bits(*(named_outputs(one, *one(array, given)) for one in (layer, other)))


def test_what_is_wrong_is_refused_as_in_a_first_call():
    layer, x = nr.LSTM(4, 5, device="cpu"), np.ones((3, 2, 4), "float32")
    _, (h, c) = layer(x)
    layer(x, (h, c))
    for bad, state, error, message in (
        (x.astype("float64"), None, TypeError, "x has dtype float64"),
        (x[..., :3], None, ValueError, "x must have shape"),
        (x, (h, c[:, :1]), ValueError, r"state\[1\] \(c\) must have shape"),
        (x, (h.astype("float64"), c), TypeError, r"state\[0\] \(h\) has dtype float64"),
        (x, (h, c, c), TypeError, "state must be a tuple"),
        (x, h, TypeError, "state must be a tuple"),
        ([[[1.0]]], None, TypeError, "x must be a NumPy array"),
    ):
        with pytest.raises(error, match=message):
            layer(bad, state)
