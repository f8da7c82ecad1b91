"""What backward is asked for: some gradients only, several passes through one forward, and tapes made of a reserve."""

from contextlib import nullcontext

import numpy as np
import pytest

import numbarnn as nr
from comparing import all_arrays
from numbarnn.cells import library
from numbarnn.layers import arguments, planned
from numbarnn.layers.sequences import EVERY_STEP, Sequences
from numbarnn.programs.backward import Given, Need
from running import not_prepared

STEPS, BATCH, INPUT, HIDDEN = 6, 4, 5, 8

RANDOM = nr.cell(library.layer_norm_gru, zoneout_h=0.3, drop_R=0.2)  # sums, random numbers, another R in each call
LAYERS = {
    "lstm": lambda: nr.LSTM(INPUT, HIDDEN, 2, dropout=0.5, bidirectional=True, device="cpu", seed=1),
    "sizes": lambda: nr.LSTM(INPUT, [HIDDEN, 6], device="cpu", seed=1),
    "projection": lambda: nr.LSTM(INPUT, HIDDEN, 2, proj_size=3, device="cpu", seed=1),
    "gru": lambda: nr.GRU(INPUT, HIDDEN, batch_first=True, device="cpu", seed=1),
    "reset_before": lambda: nr.GRU(INPUT, HIDDEN, reset_after=False, device="cpu", seed=1),
    "rnn": lambda: nr.RNN(INPUT, HIDDEN, schedule="wavefront", num_layers=2, device="cpu", seed=1),
    "random": lambda: nr.RNN(RANDOM, INPUT, HIDDEN, 2, device="cpu", seed=1),
    "heads": lambda: nr.RNN(nr.cell(library.slstm, heads=2), INPUT, HIDDEN, device="cpu", seed=1),
}
by_layer = pytest.mark.parametrize("name", LAYERS)


def inputs(layer, seed=0):
    """(x, dy) of a layer."""
    rng, outer = np.random.default_rng(seed), (BATCH, STEPS) if layer.batch_first else (STEPS, BATCH)
    width = layer.stack.directions * layer.stack.output_sizes[-1]
    return tuple(rng.normal(0, 1, (*outer, size)).astype(layer.dtype) for size in (layer.input_size, width))


def same(one, other):
    for a, b in zip(all_arrays(one), all_arrays(other), strict=True):
        np.testing.assert_array_equal(a, b)


@by_layer
def test_a_retained_tape_gives_the_same_gradients_again(name):
    layer = LAYERS[name]()
    x, dy = inputs(layer)
    tape = layer.forward(x, lengths=[6, 0, 3, 5])[2]
    several = [layer.backward(tape, dy, retain=True) for _ in range(2)]
    other = layer.backward(tape, 2 * dy, retain=True)
    last = layer.backward(tape, dy)
    for grads in several:
        np.testing.assert_array_equal(grads.x, last.x)
        np.testing.assert_array_equal(grads.weights, last.weights)
        same(grads.state, last.state)
    assert not np.array_equal(other.x, last.x)
    with pytest.raises(ValueError, match=r"already used.*retain=True\) keeps it"):
        layer.backward(tape, dy)


@by_layer
@pytest.mark.parametrize("need", [(), ("x",), ("weights",), {"weights", "x"}], ids=["state", "x", "weights", "set"])
def test_only_what_is_needed_is_there_and_it_is_the_same(name, need):
    layer = LAYERS[name]()
    x, dy = inputs(layer)
    tape = layer.forward(x)[2]
    whole, some = layer.backward(tape, dy, retain=True), layer.backward(tape, dy, need=need)
    same(some.state, whole.state)
    for what in ("x", "weights"):
        if what in need:
            np.testing.assert_array_equal(getattr(some, what), getattr(whole, what))
        else:
            assert getattr(some, what) is None


def test_what_is_not_needed_is_not_multiplied(monkeypatch):
    with not_prepared():
        layer = nr.LSTM(INPUT, HIDDEN, 2, device="cpu", seed=1)
        x, dy = inputs(layer)
        tape, done = layer.forward(x)[2], []
    for name in ("multiply", "weight_gradients"):
        method = getattr(layer.engine, name)

        def noted(*arguments, name=name, method=method, **options):
            done.append(name)
            return method(*arguments, **options)

        monkeypatch.setattr(layer.engine, name, noted)
    layer.backward(tape, dy, need=(), retain=True)
    assert done == ["multiply"]  # the gradient of layer 1's input
    done.clear()
    layer.backward(tape, dy)
    assert sorted(done) == ["multiply"] * 2 + ["weight_gradients"] * 2


def test_mistakes_leave_the_tape_good():
    layer = LAYERS["gru"]()
    x, dy = inputs(layer)
    tape = layer.forward(x)[2]
    with pytest.raises(ValueError, match="need must be a tuple of some of 'x', 'weights', but has 'w'"):
        layer.backward(tape, dy, need=("w",))
    with pytest.raises(TypeError, match="need must be a tuple"):
        layer.backward(tape, dy, need="x")
    with pytest.raises(TypeError, match="retain must be True or False"):
        layer.backward(tape, dy, retain=1)
    with pytest.raises(ValueError, match="dw must be None"):
        layer.backward(tape, dy, need=("x",), dw=np.zeros_like(layer.weights))
    grads = layer.backward(tape, dy, need=("x",))
    with pytest.raises(ValueError, match="were not asked for"):
        grads.params  # noqa: B018


@by_layer
@pytest.mark.parametrize("binds", [nullcontext, not_prepared], ids=["prepared", "not_prepared"])
@pytest.mark.parametrize("odd", [False, True], ids=["plain", "lengths_and_resets"])
def test_a_reserve_is_all_that_backward_needs(name, odd, binds):
    with binds():
        assert_a_reserve_is_all(name, odd, binds is not_prepared)


def assert_a_reserve_is_all(name, odd, overwrites):
    """... and it is overwritten unless it is needed again, where calls are not bound."""
    layer = LAYERS[name]()
    stack, (x, dy) = layer.stack, inputs(layer)
    rng = np.random.default_rng(1)
    about, options = EVERY_STEP, {}
    if odd:
        lengths, resets = np.array([6, 0, 3, 5], np.int32), rng.random((STEPS, BATCH)) < 0.3
        about = Sequences(lengths, resets.view(np.uint8), 0.5)
        options = {"lengths": lengths, "resets": resets.T if layer.batch_first else resets, "padding_value": 0.5}
    y, _, tape = layer.forward(x, **options)
    grads = layer.backward(tape, dy)
    shape = planned.Shape(STEPS, BATCH, odd, odd, layer.batch_first, from_zero=True)
    calls = planned.PlannedCalls(stack, shape)
    call = calls.call(layer.weights, stack.seed)
    again, reserve = calls.forward(call, x, (None, None), about)
    np.testing.assert_array_equal(again[0], y)
    assert reserve.shape == (planned.reserve_size(stack, shape, layer.dtype),)
    kept, y = reserve.copy(), again[0].copy()
    reserve[...] = 0xFF
    for need in (Need(again=True), Need(x=False), Need(weights=False)):
        memory = kept.copy()
        given = None if not need.weights or stack.problem(*shape[:2], True, *shape[2:5]).copies_x else x
        dx, dhx, dcx, dw = calls.backward(call, given, memory, Given(dy), need)
        assert np.array_equal(memory, kept) or not need.again
        assert not (overwrites and np.array_equal(memory, kept)) or need.again or not stack.cell.num_saved
        same(arguments.as_state(stack, dhx, dcx), grads.state)
        for found, expected, asked in ((dx, grads.x, need.x), (dw, grads.weights, need.weights)):
            if asked:
                np.testing.assert_array_equal(found, expected)
            else:
                assert found is None


@by_layer
@pytest.mark.parametrize("binds", [nullcontext, not_prepared], ids=["prepared", "not_prepared"])
def test_a_reserve_tells_calls_with_a_state_from_those_without(name, binds):
    """In turns, as bound calls are kept: each sums the gradient of R over the rows that its ordinary call does."""
    with binds():
        layer = LAYERS[name]()
    stack, (x, dy) = layer.stack, inputs(layer)
    last = layer.forward(x)[1]
    h, c = (last[0], last[1]) if isinstance(last, tuple) else (last, None)
    if c is not None and stack.cell.num_private > 1:
        c = np.concatenate(last[1:], axis=2)
    for _ in range(2):
        for given, state in ((None, (None, None)), (last, (h, c))):
            layer.training_calls = 0
            tape = layer.forward(x, given)[2]
            grads = layer.backward(tape, dy)
            calls = planned.PlannedCalls(
                stack, planned.Shape(STEPS, BATCH, batch_major=layer.batch_first, from_zero=given is None)
            )
            call = calls.call(layer.weights, stack.seed)
            _, reserve = calls.forward(call, x, state)
            *_, dw = calls.backward(call, x, reserve, Given(dy))
            np.testing.assert_array_equal(dw, grads.weights)
