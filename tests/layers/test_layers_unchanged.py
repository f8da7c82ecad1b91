"""What backward reads again must be what forward saw: weights and x that change in between are noticed.

And writing weights by assignment: values are copied into the one buffer.
"""

import numpy as np
import pytest

import numbarnn as nr
from cases import Case
from comparing import assert_same_bits
from numbarnn import functional as F
from numbarnn.engines.cpu import engine, fingerprints
from numbarnn.kernels.arrays import samples
from problems import make_problem
from running import infer, named_gradients

CASE = Case("lstm", hidden=(5, 5), directions=2)
SMALL = Case("lstm", hidden=(5, 5))  # so small that every word is watched


def swap_weights(layer, x):
    w = layer.weights
    w[[3, 40]] = w[[40, 3]]


def flip_all_signs(layer, x):
    layer.weights[...] *= -1


def one_weight(layer, x):
    layer.parameters["weight_hh_l1"][7, 2] += 1e-3


def one_bias(layer, x):
    layer.parameters["bias_hh_l0"][-1] *= 2


def optimizer_step(layer, x):
    for parameter in layer.parameters.values():
        parameter -= 1e-3 * parameter


def overwrite_x(layer, x):
    x[...] = x[::-1].copy()


def one_step_of_x(layer, x):
    x[3] = 0


CHANGES = [swap_weights, flip_all_signs, one_weight, one_bias, optimizer_step, overwrite_x, one_step_of_x]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_before_backward_is_refused_and_the_tape_stays_good(change):
    problem = make_problem(SMALL)
    layer, x = problem.layer(), problem.x.copy()
    expected = named_gradients(layer, layer.backward(layer.forward(x)[2], problem.dy))
    tape, before = layer.forward(x)[2], (layer.weights.copy(), x.copy())
    change(layer, x)
    message = r"^x was overwritten" if "x" in change.__name__ else r"^the weights were changed"
    with pytest.raises(ValueError, match=message):
        layer.backward(tape, problem.dy)
    layer.weights[...], x[...] = before
    assert_same_bits(named_gradients(layer, layer.backward(tape, problem.dy)), expected)


def test_what_forward_copies_may_be_overwritten():
    """Initial states, lengths, resets; x with batch_first, of different lengths, or not contiguous."""
    problem = make_problem(CASE)
    T, B = problem.x.shape[:2]
    lengths, resets = np.array([T, 2, 5]), np.zeros((T, B), bool)
    resets[4, 1] = True
    options = [{}, {"lengths": lengths}, {"resets": resets}, {"lengths": lengths, "resets": resets}]
    for option in options:
        results = []
        for spoil in (False, True):
            layer, x = problem.layer(), np.asfortranarray(problem.x)
            given = [x, *map(np.array, problem.state)] + [value.copy() for value in option.values()]
            names = dict(zip(option, given[3:], strict=True))
            tape = layer.forward(given[0], tuple(given[1:3]), **names)[2]
            for array in given if spoil else ():
                array[...] = 1
            results.append(named_gradients(layer, layer.backward(tape, problem.dy, problem.dstate)))
        assert_same_bits(*results)


def test_optimizers_and_several_tapes_are_as_free_as_before():
    problem = make_problem(CASE)
    layer = problem.layer()
    for _ in range(2):
        tapes = [layer.forward(x)[2] for x in (problem.x, 2 * problem.x)]
        layer(3 * problem.x)
        for tape in tapes:
            grads = layer.backward(tape, problem.dy)
        for name, parameter in layer.parameters.items():
            parameter -= 0.01 * grads.params[name]
        layer.weights -= 0.01 * grads.weights
        layer.parameters["bias_ih_l0"] -= 0.01 * grads.params["bias_ih_l0"]


def test_a_tape_of_before_an_assignment_is_refused():
    problem = make_problem(CASE)
    for change in ("weights", "parameter"):
        layer = problem.layer()
        tape = layer.forward(problem.x)[2]
        if change == "weights":
            layer.weights -= 0.1
        else:
            layer.parameters["bias_ih_l0"] = np.zeros(20)
        with pytest.raises(ValueError, match=r"other weights .*assigned"):
            layer.backward(tape, problem.dy)


@pytest.mark.parametrize("what", ("w", "x", "x before backward_weights"))
def test_functional_notices_changes_too(what):
    problem = make_problem(CASE)
    rnn = F.Descriptor("lstm", 4, 5, 2, bidirectional=True, device="cpu")
    w, x = problem.layer().weights.copy(), problem.x.copy()
    y, *_, reserve = F.forward_training(rnn, x, w=w)
    assert not y.flags.writeable  # the reserve keeps it
    if what == "x before backward_weights":
        F.backward_data(rnn, reserve, problem.dy, w=w)
        w[...] = 0  # not read any more
        x += 1
        dw = rnn.zeros_weights()
        with pytest.raises(ValueError, match=r"^x was overwritten"):
            F.backward_weights(rnn, reserve, dw)
        assert not dw.any()
        x -= 1  # rounding: put it back
        x[...] = problem.x
        F.backward_weights(rnn, reserve, dw)
        return
    {"w": w, "x": x}[what][0] += 1
    with pytest.raises(ValueError, match=r"^x was overwritten" if what == "x" else r"^the weights were changed"):
        F.backward_data(rnn, reserve, problem.dy, w=w)


@pytest.mark.parametrize("dtype", ("float32", "float16"))
def test_each_call_of_a_bound_pass_watches_its_own_x_and_weights(dtype):
    """Calls after the first of a kind work in the same memory; halves are widened, and the copies do not change."""
    layer, rng = nr.LSTM(20, 30, device="cpu", dtype=dtype, seed=0), np.random.default_rng(0)
    for _ in range(3):
        xs = [rng.standard_normal((5, 4, 20)).astype(dtype) for _ in range(2)]
        tapes = [layer.forward(x)[2] for x in xs]
        for x, tape in zip(xs, tapes, strict=True):
            if dtype == "float32":
                x *= 2
                with pytest.raises(ValueError, match=r"^x was overwritten"):
                    layer.backward(tape)
                x /= 2
        before = layer.weights.copy()
        layer.weights[...] *= 2
        for tape in tapes:
            with pytest.raises(ValueError, match=r"^the weights were changed"):
                layer.backward(tape)
        layer.weights[...] = before
        del tapes


# ------------------------------------------------------------------------------------------------------ what is read
def test_every_word_has_a_part_in_the_fingerprint():
    words = np.random.default_rng(0).standard_normal(75).astype(np.float32)
    fingerprint = fingerprints.watch((words,), (samples.places([(0, 40, 1), (40, 35, 1)]),))
    before = fingerprint()
    seen = {before}
    for i in range(words.size):
        words[i] = -words[i]
        seen.add(fingerprint())
        words[i] = -words[i]
    assert len(seen) == 1 + words.size and fingerprint() == before


@pytest.mark.parametrize("dtype", ("float32", "float64", "float16"))
def test_fingerprints_are_the_same_whoever_takes_them(cpu_on_threads, monkeypatch, dtype):
    """Of any number of threads: what one notes, several compare with."""
    arrays = tuple(np.random.default_rng(seed).standard_normal(9_000).astype(dtype) for seed in range(2))
    places = tuple(samples.places([(0, 9_000, stride)]) for stride in (1, 3))
    for lines in (1, 1 << 30):
        monkeypatch.setattr(engine, "WATCHED_BY_ALL", lines)
        found = []
        for threads in (1, 2, 3, 4):
            cpu_on_threads.set_num_threads(threads)
            found.append(cpu_on_threads.watch(arrays, places)())
        assert found == [fingerprints.watch(arrays, places)()] * 4 and len(set(found[0])) == 2


@pytest.mark.parametrize("H, T, B", [(64, 20, 1), (512, 1, 1), (512, 25, 16)])
def test_samples_see_every_parameter_and_most_columns(H, T, B):
    layer = nr.LSTM(H, H, device="cpu", seed=0)
    in_weights, in_x = layer.stack.watched.places(T, B)
    assert len(np.unique(in_weights)) == len(in_weights) and in_x.size
    words = (in_weights[:, None] + np.arange(samples.LINE)).reshape(-1)
    for part in layer.stack.space.parameters:
        own = words[(words >= part.offset) & (words < part.offset + part.size)] - part.offset
        assert own.size >= 4 * samples.LINE, part.name
        if len(part.shape) == 2 and own.size >= 4 * H:  # at no regular distance: no group of columns is left out
            assert len(np.unique(own % H // samples.LINE)) > 0.9 * H / samples.LINE
    assert len(in_weights) <= max(48, T * B * layer.weights.size // 100_000, layer.weights.size // 16 // 1021) + 300


def test_inference_takes_no_fingerprint(monkeypatch):
    layer = nr.GRU(4, 5, device="cpu")
    monkeypatch.setattr(layer.engine, "watch", lambda *_: pytest.fail("not in inference"))
    layer(np.ones((2, 3, 4), np.float32))


# ---------------------------------------------------------------------------------------------------------- assigning
def test_assigned_weights_are_copied_into_the_buffer():
    problem = make_problem(CASE)
    layer, other = problem.layer(), CASE.layer(seed=7)
    buffer, views = layer.weights, dict(layer.parameters)
    layer.weights = other.weights
    assert layer.weights is buffer and not np.shares_memory(buffer, other.weights)
    assert all(layer.parameters[name] is view for name, view in views.items())
    assert_same_bits(infer(layer, problem), infer(other, problem))
    assert_same_bits(layer.state_dict(), other.state_dict())


def test_assigned_parameters_are_copied_into_their_views():
    problem = make_problem(CASE)
    layer, other = problem.layer(), CASE.layer(seed=7)
    view = layer.parameters["weight_ih_l0"]
    for name, value in other.state_dict().items():
        layer.parameters[name] = value.astype(np.float64) if name == "bias_ih_l0" else value
    assert layer.parameters["weight_ih_l0"] is view
    assert_same_bits(infer(layer, problem), infer(other, problem))
    assert list(layer.parameters) == list(other.state_dict()) and len(layer.parameters) == 16
    layer.parameters["bias_ih_l0"] -= layer.parameters["bias_ih_l0"].copy()
    assert not layer.parameters["bias_ih_l0"].any() and not layer.state_dict()["bias_ih_l0"].any()


BAD_VALUES = {
    "shape": (ValueError, np.ones(5, np.float32), r"must have shape \(20,\), but has \(5,\)"),
    "a number": (ValueError, 0.0, r"must have shape \(20,\), but has \(\)"),
    "too large": (ValueError, np.full(20, 1e60), "beyond the range of float32.*1e\\+60"),
    "complex": (TypeError, np.full(20, 1j), "real numbers"),
    "masked": (TypeError, np.ma.masked_less(np.ones(20, np.float32), 2), "masked"),
    "None": ((TypeError, ValueError), None, "None"),
}


@pytest.mark.parametrize("error, value, message", BAD_VALUES.values(), ids=BAD_VALUES)
def test_bad_values_are_refused_and_nothing_changes(error, value, message):
    layer = CASE.layer()
    before = layer.weights.copy()
    with pytest.raises(error, match=r"parameters\['bias_ih_l0'\].*" + message):
        layer.parameters["bias_ih_l0"] = value
    with pytest.raises((TypeError, ValueError), match=r"^weights"):
        layer.weights = value
    np.testing.assert_array_equal(layer.weights, before)


def test_names_of_parameters_neither_come_nor_go():
    layer = CASE.layer()
    with pytest.raises(KeyError, match=r"cannot be added to.*'bias'"):
        layer.parameters["bias"] = np.zeros(20, np.float32)
    y, _, tape = layer.forward(np.ones((2, 1, layer.input_size), np.float32))
    for by_name in (layer.parameters, layer.backward(tape, np.ones_like(y)).params):
        with pytest.raises(KeyError, match=r"no parameter is called 'weight_ih_0': there are weight_ih_l0, "):
            by_name["weight_ih_0"]
    with pytest.raises(TypeError, match=r"cannot be deleted.*bias=False"):
        del layer.parameters["bias_ih_l0"]
    with pytest.raises(AttributeError, match=r"load_state_dict"):
        layer.parameters = {}
    assert "bias" not in layer.parameters and repr(layer.parameters) == repr(dict(layer.parameters))
