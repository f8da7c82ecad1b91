"""Small calls, bound once: the same results as of passes that are bound at each call, whoever still holds what.

That both give the same bits for every cell and option `comparing.check` compares."""

import gc
import weakref
from functools import partial

import numpy as np
import pytest

import numbarnn as nr
from cases import Case
from comparing import assert_same_bits
from numbarnn import functional
from numbarnn.cells.library import peephole_lstm
from numbarnn.engines.cpu import joined
from numbarnn.engines.cpu.records import Call
from numbarnn.layers.reserved import PlannedCalls, Shape
from numbarnn.passes import bound, bound_kinds
from numbarnn.passes.backward import Given
from problems import make_problem
from running import bound_each_time, named_gradients, named_outputs, train


def free_passes(layer):
    """The bound passes of a layer that nobody uses."""
    return [one for free in layer.stack.bound._free.values() for one in free or ()]


def test_large_calls_and_those_that_draw_are_not_bound():
    rng = np.random.default_rng(0)
    for options, T, B, training, expected in (
        ({}, 7, 3, True, True), ({}, 7, 3, False, True), ({}, 200, 64, True, False),
        ({"num_layers": 2, "dropout": 0.5}, 7, 3, True, False), ({"num_layers": 2, "dropout": 0.5}, 7, 3, False, True),
        ({"schedule": "wavefront"}, 7, 3, True, False),
    ):  # fmt: skip
        layer = nr.LSTM(4, 32, device="cpu", **options)
        x = rng.standard_normal((T, B, 4)).astype("float32")
        layer.forward(x) if training else layer(x)
        assert bool(free_passes(layer)) == expected, (options, T, B, training)


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
    first = tape.bound
    assert not free_passes(layer)
    del tape
    gc.collect()
    assert free_passes(layer) == [first]
    assert layer.forward(x)[2].bound is first
    tapes = [layer.forward(x)[2] for _ in range(9)]
    assert len({id(tape.bound) for tape in tapes}) == 9
    del tapes
    assert len(free_passes(layer)) == bound_kinds.KEPT


def test_each_form_of_arguments_has_its_own():
    """With and without a state, dy, dstate: what one call was given the next does not get."""
    problem = make_problem(Case("lstm", T=3, B=2))
    layer = problem.layer()
    with bound_each_time():
        other = problem.layer()
    state, dstate = problem.state, problem.dstate
    for given in (state, None, (state[0], None), (None, state[1]), state):
        assert_same_bits(*(named_outputs(one, *one(problem.x, given)) for one in (layer, other)))
        for dy, d in ((problem.dy, None), (None, dstate), (problem.dy, (None, dstate[1])), (problem.dy, dstate)):
            pair = [
                named_gradients(one, one.backward(one.forward(problem.x, given)[2], dy, d)) for one in (layer, other)
            ]
            assert_same_bits(*pair)


def test_weights_that_change_in_place_count_at_once():
    layer, x = nr.GRU(3, 5, device="cpu", seed=0), np.ones((2, 1, 3), "float32")
    layer(x), layer.stepper()
    step = layer.stepper()
    layer.weights *= 2
    other = nr.GRU(3, 5, device="cpu")
    other.load_state_dict(layer.state_dict())
    np.testing.assert_array_equal(layer(x)[0], other(x)[0])
    np.testing.assert_array_equal(step(x[0]), other(x[:1])[0][0])


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("options", ({}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 5}), ids=str)
def test_larger_inference_reads_x_where_it_is_and_writes_y_to_a_new_array(options, threads):
    """Results of earlier calls stay; x, states and weights are those of each call. The first call with a state, and the
    first without, are not bound."""
    layer, other = (nr.LSTM(8, 32, device="cpu", seed=0, **options) for _ in range(2))
    rng, found, expected, former = np.random.default_rng(0), [], [], nr.get_num_threads()
    nr.set_num_threads(threads)
    try:
        for number, x in enumerate(rng.standard_normal((6, 60, 40, 8)).astype("float32")):
            layer.weights *= 0.9
            other.weights[...] = layer.weights
            state = found[-1][1] if number > 2 else None
            found.append(layer(x.copy(), state))
            with bound_each_time():
                expected.append(other(x, state))
    finally:
        nr.set_num_threads(former)
    kept = [one for free in layer.stack.bound._large.values() for one in free]
    assert len(kept) == 2 and all(one.in_place for one in kept) and not other.stack.bound._large
    for one, two in zip(found, expected, strict=True):
        assert_same_bits(*({"y": y, "h": h, "c": c} for y, (h, c) in (one, two)))
    assert not any(np.shares_memory(found[k][0], y) for k in range(len(found)) for y, _ in found[:k])


def train_on_each(layer, state, xs, dys):
    """All results of some calls, by name; backward comes after all of them."""
    calls = [layer.forward(x, state) for x in xs]
    gradients = [layer.backward(tape, dy) for (_, _, tape), dy in zip(calls, dys, strict=True)]
    return [
        named_outputs(layer, y, new_state) | named_gradients(layer, own)
        for (y, new_state, _), own in zip(calls, gradients, strict=True)
    ]


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize(
    "make", (nr.GRU, partial(nr.LSTM, num_layers=2, bidirectional=True), partial(nr.LSTM, proj_size=5))
)
def test_larger_training_reads_x_and_dy_where_they_are(cpu_on_threads, monkeypatch, make, threads):
    """y and dx are new arrays: results of earlier calls stay. Two tapes are there at a time, each with a pass of its
    own, of which one is kept, and nothing of the caller's. Panels are lent for each run."""
    monkeypatch.setattr(joined, "LARGE_PANELS", 1)
    cpu_on_threads.set_num_threads(threads)
    layer, other = (make(8, 32, device="cpu", seed=0) for _ in range(2))
    width, rng = layer(np.ones((1, 1, 8), "float32"))[0].shape[-1], np.random.default_rng(0)
    found, copies, expected = [], [], []
    for number in range(4):
        xs, dys = (rng.standard_normal((2, 60, 40, size)).astype("float32") for size in (8, width))
        state = layer(xs[0])[1] if number % 2 else None
        given = state, xs, (dys[0], None) if number == 3 else dys
        found += train_on_each(layer, *given)
        copies += [{name: array.copy() for name, array in found[k].items()} for k in (-2, -1)]
        with bound_each_time():
            expected += train_on_each(other, *given)
    for one, copy, two in zip(found, copies, expected, strict=True):
        assert_same_bits(one, copy)
        assert_same_bits(one, two)
    kept = [one for free in layer.stack.bound._large.values() for one in free if one.work.problem.training]
    assert len(kept) == 2 and all(one.in_place and all(one._backward.values()) for one in kept)
    assert not any(np.may_share_memory(one.work.x, xs) for one in kept)


def test_larger_inference_is_bound_from_the_second_call_on_and_of_few_kinds():
    layer, kinds = nr.GRU(8, 32, device="cpu"), layer_kinds
    for batch in range(40, 40 + bound_kinds.LARGE_KINDS + 1):
        x = np.ones((60, batch, 8), "float32")
        layer(x)
        assert kinds(layer)[batch] is None
        layer(x)
        assert len(kinds(layer)[batch]) == 1
        layer(x[:, :, ::-1].copy())
        assert len(kinds(layer)[batch]) == 1 and len(kinds(layer)) <= bound_kinds.LARGE_KINDS


def test_layers_have_one_scratch():
    """What only a layer's steps need is, one layer after another, the same memory: x Wᵀ and h Rᵀ of inference."""
    layer, x = nr.LSTM(8, 32, num_layers=3, device="cpu"), np.ones((60, 40, 8), "float32")
    layer(x), layer(x)
    ((kept,),) = layer.stack.bound._large.values()
    calls = [one for function in kept._functions for one in function.records if isinstance(one, Call)]
    assert len(calls) == 3 and len({(call.ax, call.ah) for call in calls}) == 1


def layer_kinds(layer):
    """Batch -> the free passes of moderate calls of a layer."""
    return {key[0][0][1]: free for key, free in layer.stack.bound._large.items()}


def test_each_weight_space_of_a_descriptor_counts():
    rnn = functional.Descriptor("lstm", 3, 5, device="cpu")
    x, rng = np.ones((2, 1, 3), "float32"), np.random.default_rng(0)
    for _ in range(3):
        w = rng.standard_normal(rnn.weight_space_size).astype("float32")
        with bound_each_time():
            expected = functional.forward_inference(functional.Descriptor("lstm", 3, 5, device="cpu"), x, w=w)
        for found, other in zip(functional.forward_inference(rnn, x, w=w), expected, strict=True):
            np.testing.assert_array_equal(found, other)


def test_calls_that_say_nothing_of_their_sequences_are_of_one_kind():
    layer, x = nr.LSTM(3, 5, device="cpu"), np.ones((2, 1, 3), "float32")
    layer(x), layer(x, padding_value=2.0)
    assert len(free_passes(layer)) == len(layer.stack.bound._free) == 1
    layer(x, lengths=[1])  # which none is bound for
    assert len(free_passes(layer)) == len(layer.stack.bound._free) == 1


def test_gradients_that_are_added_and_large_weights():
    """dw of the caller's: backward is bound anew, forward not. Weights whose gradients would be long to copy get a new
    array in each call."""
    problem = make_problem(Case("gru", T=3, B=2, hidden=(300,)))
    layer = problem.layer()
    assert layer.stack.space.size > bound.SMALL_WEIGHTS
    with bound_each_time():
        other = problem.layer()
    for options in ({}, {"dw": 1.0}):
        pair = []
        for one in (layer, other):
            tape = one.forward(problem.x)[2]
            dw = {name: np.full_like(one.weights, value) for name, value in options.items()}
            pair.append(named_gradients(one, one.backward(tape, problem.dy, **dw)))
        assert_same_bits(*pair)
    assert free_passes(layer)


def test_gradients_of_large_weights_stay_as_they_are():
    """Those of earlier calls, of which each has an array of its own that the layer lets go of."""
    layer, other = (nr.LSTM(90, 80, 2, bidirectional=True, device="cpu", seed=0) for _ in range(2))
    assert bound.SMALL_WEIGHTS < layer.stack.space.size < bound.LARGE_WEIGHTS
    rng, kept = np.random.default_rng(0), []
    for _ in range(4):
        x, dy = (rng.standard_normal((3, 2, width)).astype("float32") for width in (90, 160))
        found = layer.backward(layer.forward(x)[2], dy)
        with bound_each_time():
            kept.append((found, other.backward(other.forward(x)[2], dy)))
    (passes,) = free_passes(layer)
    (backward,) = passes._backward.values()
    assert backward.work.dw is None and not free_passes(other)
    for one, two in kept:
        np.testing.assert_array_equal(one.weights, two.weights)
        np.testing.assert_array_equal(one.x, two.x)


@pytest.mark.parametrize("batch", (2, 60), ids=("small", "moderate"))
@pytest.mark.parametrize("cell", ("lstm", "gru", "peephole"))
def test_backward_is_one_call_where_compiled_code_does_all_of_it(cpu_on_threads, cell, batch):
    """Its products too, whose results are in new arrays each time. The gradients of a peephole's parameters begin with
    zeros that other code writes: those are bound in each call."""
    cpu_on_threads.set_num_threads(2)
    make = {"lstm": nr.LSTM, "gru": nr.GRU, "peephole": partial(nr.RNN, peephole_lstm)}[cell]
    layer, other = (make(150, 170, num_layers=2, device="cpu", seed=0) for _ in range(2))
    assert layer.stack.space.size > bound.SMALL_WEIGHTS
    rng, kept = np.random.default_rng(0), []
    for _ in range(4):
        x, dy = (rng.standard_normal((9, batch, width)).astype("float32") for width in (150, 170))
        found = layer.backward(layer.forward(x)[2], dy)
        with bound_each_time():
            kept.append((found, other.backward(other.forward(x)[2], dy)))
    for one, two in kept:
        np.testing.assert_array_equal(one.weights, two.weights)
        np.testing.assert_array_equal(one.x, two.x)
    large = [one for free in layer.stack.bound._large.values() for one in free]
    (passes,) = large if batch == 60 else free_passes(layer)
    (backward,) = passes._backward.values()
    assert bool(backward._late) == (cell == "peephole")
    assert cell == "peephole" or len(backward._functions) == 1


@pytest.mark.parametrize("cell", ("lstm", "gru", "peephole"))
def test_backward_of_reserves_of_large_weights(cell):
    """The same bits as bound in each call; gradients of earlier calls stay as they are, reserves too."""
    make = {"lstm": nr.LSTM, "gru": nr.GRU, "peephole": partial(nr.RNN, peephole_lstm)}[cell]
    layer, other = (make(150, 170, num_layers=2, device="cpu", seed=0) for _ in range(2))
    assert bound.SMALL_WEIGHTS < layer.stack.space.size < bound.LARGE_WEIGHTS
    rng, kept = np.random.default_rng(0), []

    def call(one, x, dy):
        calls = PlannedCalls(one.stack, Shape(3, 2, from_zero=True))
        about = calls.call(one.weights)
        y, _, _, reserve = calls.forward(about, x, (None, None))
        before = reserve.copy()
        gradients = calls.backward(about, x, reserve, Given(dy, None, None))
        return [y.copy(), *gradients], (before, reserve)

    for _ in range(3):
        x, dy = (rng.standard_normal((3, 2, width)).astype("float32") for width in (150, 170))
        found, reserves = call(layer, x, dy)
        np.testing.assert_array_equal(*reserves)
        with bound_each_time():
            kept.append((found, call(other, x, dy)[0]))
    (passes,) = free_passes(layer)
    assert len(passes._backward) == 1 and not free_passes(other)
    for one, two in kept:
        for mine, theirs in zip(one, two, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("steps", (3, 300), ids=("small", "moderate"))
def test_bound_passes_go_with_their_layer(steps):
    """At once: they may have 64 MB each, and who tries one layer after another does not wait for Python's collector."""
    layer, x = nr.LSTM(16, 64, device="cpu"), np.ones((steps, 16, 16), "float32")
    for _ in range(3):
        layer(x)
        layer.backward(layer.forward(x)[2])
    kinds = [*layer.stack.bound._free.values(), *layer.stack.bound._large.values()]
    passes = [weakref.ref(one) for free in kinds for one in free or ()]
    assert len(passes) == 2
    gc.collect()
    gc.disable()
    try:
        del layer, kinds
        assert all(one() is None for one in passes)
    finally:
        gc.enable()


@pytest.mark.parametrize("schedule", ["auto", "wavefront"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_x_that_is_overwritten_is_refused_as_in_large_calls(cell, schedule):
    layer = Case(cell).layer(schedule=schedule)
    x = np.ones((7, 3, 4), "float32")
    tape = layer.forward(x)[2]
    x[3] += 1
    with pytest.raises(ValueError, match="x was overwritten between forward and backward"):
        layer.backward(tape)
    x[3] -= 1
    layer.backward(tape)


@pytest.mark.parametrize("options", ({}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 5}), ids=str)
def test_steps_on_several_threads_are_one_call_with_the_copies_around_them(cpu_on_threads, monkeypatch, options):
    """After one was late, one does all. Projections' threads meet in a step, so that they must all have begun: these
    loops are run by themselves."""
    layer, other = (nr.LSTM(8, 70, device="cpu", seed=0, **options) for _ in range(2))
    x = np.random.default_rng(0).standard_normal((5, 2, 8)).astype("float32")
    pool, used = cpu_on_threads.thread_pool, []
    run_all = pool.run_all
    monkeypatch.setattr(pool, "run_all", lambda *given: (used.append(given[2:]), run_all(*given)))
    with bound_each_time():
        state = other(x)[1]
        expected = other(x, state)
    for threads in (1, 2, 3):
        cpu_on_threads.set_num_threads(threads)
        found = [layer(x, state) for _ in range(3)]
        monkeypatch.setattr(pool.pause, "end", np.inf)
        found.append(layer(x, state))
        monkeypatch.setattr(pool.pause, "end", 0.0)
        for y, (h, c) in found:
            assert_same_bits({"y": y, "h": h, "c": c}, {"y": expected[0], "h": expected[1][0], "c": expected[1][1]})
    assert {threads for _, threads in used} == (set() if "proj_size" in options else {1, 2, 3})
    layers = options.get("num_layers", 1)
    assert all(count == 4 * (1 + (layers > 1)) * layers + layers * (1 + (layers > 1)) for count, _ in used)
