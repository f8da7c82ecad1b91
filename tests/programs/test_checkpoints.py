"""Training with the states of every k-th step kept (`numbarnn.programs.checkpoints`). That it computes the same, of
every cell and option, is in test_conformance.py; here is what it keeps, and how calls with it behave."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

import numbarnn as nr
from cases import Case
from comparing import all_arrays, assert_close, assert_same_bits, check_checkpoints
from formed_loops import layer_of
from formed_loops import problem as of_call
from needs import LAYERS, RANDOM, check_needs
from numbarnn import functional as F
from numbarnn.engines.gpu import profiles
from numbarnn.layers import calls
from numbarnn.layers.costs import costs_of
from numbarnn.schedules import Problem, choose
from problems import make_problem
from running import named_gradients, named_outputs, train

T, B, I, H = 50, 3, 4, 8  # noqa: E741 - the legend's letter


def arrays(steps=T, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((steps, B, width), dtype=np.float32) for width in (I, H)]


def bytes_of(work):
    """Bytes of all arrays that a tape keeps besides x, the weights and results."""
    if not hasattr(work, "outputs"):
        return sum(array.nbytes for name, array in work.arrays.items() if name not in ("x", "flat", "no_bias"))
    kept = [*work.h.values(), *work.c.values(), *work.outputs.values()]
    return sum(array.nbytes for array in kept)


# ----------------------------------------------------------------------------------------------------- the same numbers
@pytest.mark.parametrize("k", (1, 4, 7, 19))
@pytest.mark.parametrize("directions", (1, 2))
def test_every_length_of_segments(k, directions):
    """Also of one step, and with a last segment of one; dropout and lengths by the time in the whole call."""
    options = dict(T=20, B=4, hidden=(5, 3), directions=directions, dropout=0.5, lengths=(20, 0, 9, 13), resets=True)
    problem = make_problem(Case("lstm", **options))
    expected, masks = train(problem.layer(), problem)
    found, others = train(problem.layer(checkpoint_every=k), problem)
    assert_same_bits(dict(enumerate(masks)), dict(enumerate(others)))
    assert_same_bits(*({name: one[name] for name in ("y", "hy", "cy")} for one in (found, expected)))
    assert_close(problem.case, found, expected)


@pytest.mark.parametrize("steps, batch", ((2, 1), (5, 3), (19, 1), (9, 7)))
def test_short_calls_have_the_same_bits_too(steps, batch):
    """Whether weights are packed depends on the whole call, not on the length of its segments."""
    x = np.random.default_rng(0).standard_normal((steps, batch, I), dtype=np.float32)
    plain = nr.LSTM(I, 24, 2, seed=0, device="cpu")
    shorter = nr.LSTM(I, 24, 2, seed=0, device="cpu", checkpoint_every=1)
    (y, state, _), (other_y, other_state, _) = plain.forward(x), shorter.forward(x)
    for one, other in zip((y, *state), (other_y, *other_state), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("case", (
    Case("lstm", T=9, hidden=(5, 3), proj_size=2, batch_first=True, directions=2, dropout=0.3, dtype="float16"),
    Case("gru", T=9, hidden=(5, 3), lengths=(9, 4, 7), packed=True, given=("dy",)),
    Case("rnn_tanh", T=9, hidden=(4, 4), input_mode="skip", directions=2, given=("dhy",), state=False),
), ids=str)  # fmt: skip
def test_options_of_calls(case):
    check_checkpoints(case, "cpu")


def test_what_is_w_x_already():
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((9, B, width), dtype=np.float32) for width in (2 * 3 * H, 2 * H))
    layers = [nr.GRU(6 * H, H, input_mode="given", bidirectional=True, seed=1, device="cpu", checkpoint_every=k)
              for k in (None, 4)]  # fmt: skip
    (y, _, tape), (other_y, _, other) = (layer.forward(x) for layer in layers)
    np.testing.assert_array_equal(y, other_y)
    grads, others = layers[0].backward(tape, dy), layers[1].backward(other, dy)
    np.testing.assert_array_equal(grads.x, others.x)
    np.testing.assert_allclose(others.weights, grads.weights, atol=1e-5)


@pytest.mark.parametrize("directions", (1, 2))
@pytest.mark.parametrize("name", ("small_context", "large_memory", "tgru", "tgru_of_wide_x", "projected_beside_memory"))
def test_states_of_other_sizes_than_h(name, directions):
    """Segments know which gates are x itself, and how wide kernels have h: by the sizes of the layers below too."""
    found = []
    for k in (None, 3):
        layer = layer_of(name, num_layers=2, bidirectional=directions == 2, checkpoint_every=k)
        x, states, dy, d_states = of_call(name, layer)
        y, finals, tape = layer.forward(x, tuple(states), lengths=[5, 2, 4])
        grads = layer.backward(tape, dy, tuple(d_states))
        found.append([*all_arrays((y, *finals, *grads.state)), grads.x, grads.weights])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("directions", (1, 2))
def test_states_of_every_step(directions):
    x, dy = arrays()
    dy = np.concatenate([dy] * directions, axis=2)
    results = []
    for k in (None, 7):
        options = {"bidirectional": directions == 2, "batch_first": True, "device": "cpu", "checkpoint_every": k}
        layer = nr.LSTM(I, H, 2, seed=0, **options)
        y, state, c, tape = layer.forward(x.swapaxes(0, 1), output_states=True, lengths=[T, 9, 0], padding_value=2.0)
        grads = layer.backward(tape, dy.swapaxes(0, 1), dstates=(np.cos(c[0]),))
        results.append((y, *state, *c, grads.x, grads.weights))
    for number, (one, other) in enumerate(zip(*results, strict=True)):
        np.testing.assert_allclose(one, other, atol=0 if number < 4 else 2e-5, err_msg=str(number))


# -------------------------------------------------------------------------------------------------------- what it saves
@pytest.mark.parametrize("k", (5, 10, 25))
def test_a_tape_keeps_the_states_before_segments_alone(k):
    x, dy = arrays()
    layer, plain = (nr.LSTM(I, H, 2, device="cpu", checkpoint_every=every) for every in (k, None))
    _, _, tape = layer.forward(x)
    of_state = 2 * 2 * B * H * 4  # h and c of two layers
    assert bytes_of(tape.forward) == T // k * of_state
    without = bytes_of(plain.forward(x)[2].forward)
    assert without > 6 * T * 2 * B * H * 4 > 7 * bytes_of(tape.forward)
    cost = costs_of(choose("auto"), layer.stack.problem(T, B, True))
    assert cost.segments == T // k and cost.kept == pytest.approx(T // k * of_state, abs=64 * 4)
    assert cost.kept_without == pytest.approx(without, rel=0.05) and cost.at_work < (k + 3) / T * without + 1000
    layer.backward(tape, dy)
    assert bytes_of(tape.forward) == T // k * of_state  # segments have come and gone


def test_a_segment_is_gone_before_the_next_one_begins(monkeypatch):
    alive, most = [], []

    class Watched(calls.ForwardCall):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            alive.append(self.problem.steps)
            most.append(len(alive))

        def __del__(self):
            alive.pop()

    monkeypatch.setattr(calls, "ForwardCall", Watched)
    x, dy = arrays()
    layer = nr.LSTM(I, H, bidirectional=True, device="cpu", checkpoint_every=7)
    layer.backward(layer.forward(x)[2], np.concatenate([dy, dy], axis=2))
    assert not alive and max(most) == 1 and len(most) == 2 * 2 * 8


def test_explain_says_what_it_costs():
    layer = nr.LSTM(I, H, 2, device="cpu", checkpoint_every=7)
    text = layer.explain((T, B, I))
    assert "checkpoint_every=7: 8 segments. The tape keeps 0.0" in text and "a segment of 7 steps" in text
    assert "about one forward pass more" in text
    assert "segment" not in layer.explain((7, B, I))


def test_costs_on_a_gpu_are_estimated():
    lstm = nr.LSTM(I, H, device="cpu").stack.cell
    problem = Problem("cuda", lstm, "float16", 512, (512,), 1, 1000, 16, True, profile=profiles.get("h200"))
    problem = replace(problem, checkpoint_every=100)
    cost, shorter = (costs_of(choose("persistent"), replace(problem, checkpoint_every=k)) for k in (100, 10))
    assert 1.2 < cost.microseconds / cost.microseconds_without < 1.7 < shorter.microseconds / cost.microseconds_without
    assert "in launches in place of" in str(cost) and shorter.at_work < cost.at_work < cost.kept_without / 9


# ---------------------------------------------------------------------------------------------------------------- calls
def test_short_calls_and_inference_are_what_they_are():
    x, _ = arrays()
    layer, plain = (nr.LSTM(I, H, device="cpu", seed=0, checkpoint_every=k) for k in (T, None))
    assert type(layer.forward(x)[2].forward) is type(plain.forward(x)[2].forward)
    shorter = nr.LSTM(I, H, device="cpu", seed=0, checkpoint_every=4)
    np.testing.assert_array_equal(shorter(x)[0], plain(x)[0])


@pytest.mark.parametrize("directions", (1, 2))
def test_random_numbers_are_those_of_the_times(directions):
    """Of a cell with noise of its own in each step, and weights that are dropped."""
    x, found = arrays()[0], []
    for k in (None, 4):
        layer = nr.RNN(RANDOM, I, H, 2, bidirectional=directions == 2, device="cpu", seed=1, checkpoint_every=k)
        y, _, tape = layer.forward(x)
        found.append([y, *layer.noise(tape), *layer.drop_connect_masks(tape).values()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_needed_and_several_backward_passes(name):
    check_needs(name, "cpu", "stepwise", calls=2, checkpoint_every=1)
    check_needs(name, "cpu", "wavefront", checkpoint_every=2)


def test_gradients_are_added_to_dw():
    x, dy = arrays()
    layer = nr.GRU(I, H, device="cpu", checkpoint_every=8)
    once = layer.backward(layer.forward(x)[2], dy)
    start = np.ones_like(layer.weights)
    again = layer.backward(layer.forward(x)[2], dy, dw=start)
    assert again.weights is start
    np.testing.assert_allclose(start, 1 + once.weights, atol=1e-4)


def test_a_used_tape_is_refused():
    x, dy = arrays()
    layer = nr.LSTM(I, H, device="cpu", checkpoint_every=8)
    tape = layer.forward(x)[2]
    layer.backward(tape, dy)
    with pytest.raises(ValueError, match="already used"):
        layer.backward(tape, dy)


def test_copies_and_what_a_layer_says():
    layer = nr.LSTM(I, H, device="cpu", seed=0, checkpoint_every=np.int64(8))
    assert "checkpoint_every=8" in repr(layer) and nr.LSTM(I, H, device="cpu").checkpoint_every is None
    x, dy = arrays()
    expected = layer.backward(layer.forward(x)[2], dy).weights
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.checkpoint_every == 8
        np.testing.assert_array_equal(other.backward(other.forward(x)[2], dy).weights, expected)


@pytest.mark.parametrize(
    "value, error", [(0, ValueError), (-3, ValueError), (2.0, TypeError), (True, TypeError), ("auto", TypeError)]
)
def test_bad_values(value, error):
    with pytest.raises(error, match=f"checkpoint_every must be .* at least 1, or None to keep all, not {value!r}"):
        nr.LSTM(I, H, device="cpu", checkpoint_every=value)


def test_in_cudnns_terms():
    """backward_weights comes later, and more than once."""
    x, dy = arrays()
    layer = nr.LSTM(I, H, device="cpu", seed=0, checkpoint_every=8)
    y, state, tape = layer.forward(x)
    expected = named_outputs(layer, y, state) | named_gradients(layer, layer.backward(tape, dy))
    rnn = F.Descriptor("lstm", I, H, device="cpu", checkpoint_every=8)
    y, hy, cy, reserve = F.forward_training(rnn, x, None, None, layer.weights)
    dx, dhx, dcx = F.backward_data(rnn, reserve, dy, None, None, layer.weights)
    dw = rnn.zeros_weights()
    for _ in range(2):
        F.backward_weights(rnn, reserve, dw)
    found = dict(zip(("y", "hy", "cy", "dx", "dhx", "dcx"), (y, hy, cy, dx, dhx, dcx), strict=True))
    assert_same_bits(found, {name: expected[name] for name in found})
    for name, value in rnn.weight_params(dw).items():
        np.testing.assert_array_equal(value, 2 * expected[f"d{name}"])
