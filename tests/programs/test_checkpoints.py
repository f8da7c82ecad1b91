"""Training with the states of every k-th step kept (`numbarnn.programs.checkpoints`). That it computes the same, of
every cell and option, is in test_conformance.py; here is what it keeps, and how calls with it behave."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

import numbarnn as nr
from cases import Case
from comparing import assert_close, assert_same_bits
from needs import LAYERS, check_needs
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


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_needed_and_several_backward_passes(name):
    check_needs(name, "cpu", "stepwise", calls=2, checkpoint_every=1)
    check_needs(name, "cpu", "wavefront", checkpoint_every=2)


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
    with pytest.raises(error, match=f"checkpoint_every must be .* at least 1 .*, or None to keep all, got {value!r}"):
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
