"""Prepared calls: the same results as of calls that are not prepared, whoever still holds what.

That both give the same bits for every cell and option `comparing.check` compares."""

import gc
import weakref

import numpy as np
import pytest

import numbarnn as nr
from cases import Case
from comparing import assert_same_bits
from numbarnn import functional
from numbarnn.engines.cpu import engine as cpu
from numbarnn.layers import prepared
from problems import make_problem
from running import named_gradients, named_outputs, not_prepared, train


def test_large_calls_and_those_that_draw_are_not_prepared():
    rng = np.random.default_rng(0)
    for options, T, B, training, expected in (
        ({}, 7, 3, True, True), ({}, 7, 3, False, True), ({}, 200, 64, True, False),
        ({"num_layers": 2, "dropout": 0.5}, 7, 3, True, False), ({"num_layers": 2, "dropout": 0.5}, 7, 3, False, True),
        ({"schedule": "wavefront"}, 7, 3, True, False),
    ):  # fmt: skip
        layer = nr.LSTM(4, 32, device="cpu", **options)
        x = rng.standard_normal((T, B, 4)).astype("float32")
        layer.forward(x) if training else layer(x)
        assert bool(layer.stack.prepared) == expected, (options, T, B, training)


def test_results_and_tapes_of_earlier_calls_stay_as_they_are():
    """Three calls are made before the backward of the first; results are copies."""
    problem = make_problem(Case("lstm", hidden=(5, 5), directions=2))
    layer, rng = problem.layer(), np.random.default_rng(1)
    expected = train(problem.layer(), problem)[0]
    y, state, tape = layer.forward(problem.x, problem.state)
    values = named_outputs(layer, y, state)
    others = [rng.standard_normal(problem.x.shape).astype("float32") for _ in range(3)]
    tapes = [layer.forward(x)[2] for x in others]
    layer(others[0])
    gradients = layer.backward(tape, problem.dy, problem.dstate)
    found = values | named_gradients(layer, gradients)
    for other in tapes:
        layer.backward(other, problem.dy)
    del tape, tapes, other
    for x in others:
        layer.backward(layer.forward(x)[2], problem.dy)
    assert_same_bits(found, expected)


def test_a_tape_that_is_gone_gives_its_pass_to_the_next_call():
    layer = nr.GRU(3, 5, device="cpu")
    x = np.ones((2, 1, 3), "float32")
    tape = layer.forward(x)[2]
    first = tape.prepared
    assert not layer.stack.prepared
    del tape
    gc.collect()
    assert layer.stack.prepared == [first]
    assert layer.forward(x)[2].prepared is first
    tapes = [layer.forward(x)[2] for _ in range(40)]
    assert len({id(tape.prepared) for tape in tapes}) == 40
    del tapes
    assert len(layer.stack.prepared) == prepared.KEPT


def test_each_form_of_arguments_has_its_own():
    """With and without a state, dy, dstate: what one call was given the next does not get."""
    problem = make_problem(Case("lstm", T=3, B=2))
    layer = problem.layer()
    with not_prepared():
        other = problem.layer()
    state, dstate = problem.state, problem.dstate
    for given in (state, None, (state[0], None), (None, state[1]), state):
        assert_same_bits(*(named_outputs(one, *one(problem.x, given)) for one in (layer, other)))
        for dy, d in ((problem.dy, None), (None, dstate), (problem.dy, (None, dstate[1])), (problem.dy, dstate)):
            pair = [
                named_gradients(one, one.backward(one.forward(problem.x, given)[2], dy, d)) for one in (layer, other)
            ]
            assert_same_bits(*pair)


def test_each_weight_space_of_a_descriptor_counts():
    rnn = functional.Descriptor("lstm", 3, 5, device="cpu")
    x, rng = np.ones((2, 1, 3), "float32"), np.random.default_rng(0)
    for _ in range(3):
        w = rng.standard_normal(rnn.weight_space_size).astype("float32")
        with not_prepared():
            expected = functional.forward_inference(functional.Descriptor("lstm", 3, 5, device="cpu"), x, w=w)
        for found, other in zip(functional.forward_inference(rnn, x, w=w), expected, strict=True):
            np.testing.assert_array_equal(found, other)


def test_weights_that_come_in_turn_each_find_their_own():
    rnn = functional.Descriptor("lstm", 3, 5, device="cpu")
    x, spaces = np.ones((2, 1, 3), "float32"), [np.ones(rnn.weight_space_size, "float32") for _ in range(3)]
    first = None
    for _ in range(3):
        for w in spaces:
            functional.forward_inference(rnn, x, w=w)
        made = {id(one) for one in rnn.prepared}
        assert len(made) == 3 and made == (first or made)
        first = made


def test_gradients_that_are_added_and_large_weights():
    """dw of the caller's: backward is bound anew, forward not. Weights whose gradients would be long to copy get a new
    array in each call."""
    problem = make_problem(Case("gru", T=3, B=2, hidden=(520,)))
    layer = problem.layer()
    assert layer.stack.space.size > prepared.SMALL_WEIGHTS
    with not_prepared():
        other = problem.layer()
    for options in ({}, {"dw": 1.0}):
        pair = []
        for one in (layer, other):
            tape = one.forward(problem.x)[2]
            dw = {name: np.full_like(one.weights, value) for name, value in options.items()}
            pair.append(named_gradients(one, one.backward(tape, problem.dy, **dw)))
        assert_same_bits(*pair)
    assert layer.stack.prepared


def test_prepared_passes_go_with_their_layer():
    """At once: who tries one layer after another does not wait for Python's collector."""
    layer, x = nr.LSTM(16, 64, device="cpu"), np.ones((3, 16, 16), "float32")
    for _ in range(3):
        layer(x)
        layer.backward(layer.forward(x)[2])
    passes = [weakref.ref(one) for one in layer.stack.prepared]
    assert len(passes) == 2
    gc.collect()
    gc.disable()
    try:
        del layer
        assert all(one() is None for one in passes)
    finally:
        gc.enable()


@pytest.mark.parametrize("options", ({}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 5}), ids=str)
def test_steps_on_several_threads_are_one_call_with_the_copies_around_them(cpu_on_threads, monkeypatch, options):
    layer, other = (nr.LSTM(8, 70, device="cpu", seed=0, **options) for _ in range(2))
    x = np.random.default_rng(0).standard_normal((5, 2, 8)).astype("float32")
    monkeypatch.setattr(cpu, "LEAST_CALL", 0)
    monkeypatch.setattr(cpu, "LEAST_STEP", 0)
    with not_prepared():
        expected = other(x)
    for threads in (1, 2, 3):
        cpu_on_threads.set_num_threads(threads)
        for _ in range(3):
            assert_same_bits(named_outputs(layer, *layer(x)), named_outputs(other, *expected))
        assert all(len(one._functions) == 1 for one in layer.stack.prepared)
