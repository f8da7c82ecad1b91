"""Streaming: steps one at a time are what one call of all steps is."""

import copy
import pickle
import sys
import threading
import tracemalloc

import numpy as np
import pytest

import numbarnn as nr
from cases import Case
from comparing import all_arrays
from problems import make_problem

CASES = (
    Case("lstm", T=6, hidden=(5, 5)), Case("lstm", hidden=(5, 3), proj_size=2), Case("gru", hidden=(4, 6, 4)),
    Case("rnn_relu", B=1), Case("gru", state=False), Case("lstm", state=False, dtype="float64"),
)  # fmt: skip


def assert_state(found, expected, rtol=1e-5):
    for one, other in zip(all_arrays(found), all_arrays(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_steps_are_one_call_of_all(case):
    problem = make_problem(case)
    layer = problem.layer()
    step = layer.stepper(case.B, problem.state)
    y, state = layer(problem.x, problem.state)
    for t, x in enumerate(problem.x):
        np.testing.assert_allclose(step(x), y[t], rtol=1e-5, atol=1e-6)
    assert_state(step.state, state)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_layers_that_take_the_batch_first(dtype):
    """Steps that are bound, and steps that are calls: x is (B, I) in both."""
    layer = nr.GRU(3, 4, batch_first=True, dtype=dtype, device="cpu", seed=0)
    x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(dtype)
    step = layer.stepper(2)
    y = np.stack([step(x[:, t]) for t in range(5)], axis=1)
    np.testing.assert_allclose(y, layer(x)[0], rtol=1e-5 if dtype == "float32" else 2e-3, atol=1e-3)


def test_state_can_be_set_and_results_are_copies():
    layer = nr.LSTM(3, 4, device="cpu", seed=0)
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, 1, 3)).astype("float32")
    step = layer.stepper()
    y, state = step(first), step.state
    kept = [array.copy() for array in (y, *state)]
    again = step(second)
    step.state = state
    np.testing.assert_array_equal(step(second), again)
    step.state = None
    np.testing.assert_array_equal(step(first), y)
    for array, before in zip((y, *state), kept, strict=True):
        np.testing.assert_array_equal(array, before)
    step.state = (None, state[1])
    np.testing.assert_array_equal(step(second), layer(second[None], (None, state[1]))[0][0])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_its_state_is_apart_from_arrays_of_the_caller(dtype):
    """Steps that are bound, and steps that are calls."""
    layer = nr.LSTM(3, 4, dtype=dtype, device="cpu", seed=0)
    x, h = np.ones((1, 3), dtype), np.ones((1, 1, 4), dtype)
    expected = layer(x[None], (h, 0 * h))[0][0]
    step = layer.stepper(1, (h, None))
    for array in (h, *step.state):
        array[...] = np.nan
    np.testing.assert_array_equal(step(x), expected)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_copy_goes_on_by_itself(way, dtype):
    step = nr.LSTM(3, 4, dtype=dtype, device="cpu", seed=0).stepper(2)
    first, second, third = np.random.default_rng(0).standard_normal((3, 2, 3)).astype(dtype)
    step(first)
    other = way(step)
    expected = step(second), step(third)
    np.testing.assert_array_equal([other(second), other(third)], expected)


def test_what_does_not_fit_is_refused_and_changes_nothing():
    layer = nr.LSTM(3, 4, device="cpu", seed=0)
    step, x = layer.stepper(2), np.ones((2, 3), "float32")
    step(x)
    before = step.state
    for wrong, error, message in (
        (x[:1], ValueError, r"x must have shape \(2, 3\), but has \(1, 3\)"),
        (x[0], ValueError, "x must have 2 dimensions"), (x.astype("float64"), TypeError, "x has dtype float64"),
        ([[1.0] * 3] * 2, TypeError, "x must be a NumPy array"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            step(wrong)
    with pytest.raises(ValueError, match="state"):
        step.state = (np.zeros((1, 1, 4), "float32"), None)
    assert_state(step.state, before, rtol=0)
    with pytest.raises(ValueError, match="a stepper needs a layer of one direction"):
        nr.GRU(3, 4, bidirectional=True, device="cpu").stepper()
    for batch in (0, 1.5, True):
        with pytest.raises((ValueError, TypeError), match="batch"):
            layer.stepper(batch)


@pytest.mark.parametrize("batch_first", [False, True])
def test_blocks_of_steps_and_single_ones_follow_each_other(batch_first):
    layer = nr.LSTM(3, 4, num_layers=2, batch_first=batch_first, device="cpu", seed=0)
    x = np.random.default_rng(0).standard_normal((9, 2, 3)).astype("float32")
    turned = (lambda one: one.swapaxes(0, 1)) if batch_first else (lambda one: one)
    y = turned(layer(turned(x).copy())[0])
    step = layer.stepper(2)
    found = [step(x[0])[None], turned(step.block(turned(x[1:6]).copy())), step(x[6])[None]]
    with pytest.raises(ValueError, match="x must have"):
        step.block(x[:2, :, :2].copy())
    found.append(turned(step.block(turned(x[7:]).copy())))
    np.testing.assert_allclose(np.concatenate(found), y, rtol=1e-5, atol=1e-6)


def test_a_step_into_an_array_allocates_nothing():
    """Python's own small objects aside: an array of one result would be 64 KB."""
    step = nr.GRU(16, 1024, device="cpu", seed=0).stepper(16)
    x, out = np.ones((16, 16), np.float32), np.empty((16, 1024), np.float32)
    assert step(x, out) is out
    twin = copy.deepcopy(step)
    expected = [twin(x).copy() for _ in range(20)]
    tracemalloc.start()
    try:
        step(x, out)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for one in expected[1:]:
            step(x, out)
            assert (out == one).all()
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < out.nbytes and now - before < out.nbytes // 2
    with pytest.raises(ValueError, match="out must have shape"):
        step(x, out[:, :5])


def test_python_runs_on_while_a_call_computes():
    """The interpreter never asks a thread to give way here, so that the other one runs only if the call lets it."""
    layer, x = nr.LSTM(256, 256, device="cpu"), np.zeros((2000, 8, 256), np.float32)
    layer(x)
    counted, begin, interval = [], threading.Event(), sys.getswitchinterval()

    def count():
        begin.wait()
        counted.extend(range(1000))

    thread = threading.Thread(target=count)
    thread.start()
    sys.setswitchinterval(1000)
    try:
        begin.set()
        layer(x)
        meanwhile = len(counted)
    finally:
        sys.setswitchinterval(interval)
    thread.join(60)
    assert meanwhile == 1000
