"""Inference like the call before: what is not checked again gives the same results, or the same errors."""

import copy
import pickle

import numpy as np
import pytest

import numbarnn as nr
from running import bound_each_time

T, B, INPUT, H, L = 3, 2, 5, 7, 2
OPTIONS = ({}, {"bidirectional": True}, {"batch_first": True}, {"dtype": "float64"})


def layer_of(kind, options):
    return getattr(nr, kind)(INPUT, H, L, device="cpu", seed=0, **options)


def argument(layer, rng):
    """(x, state) of a call."""
    x = rng.standard_normal((B, T, INPUT) if layer.batch_first else (T, B, INPUT)).astype(layer.dtype)
    states = rng.standard_normal((2, L * (1 + layer.bidirectional), B, H)).astype(layer.dtype)
    return x, tuple(states) if isinstance(layer, nr.LSTM) else states[0]


def arrays(results):
    """The arrays of (y, state)."""
    y, state = results
    return [y, *(state if isinstance(state, tuple) else (state,))]


def repeated(layer, x, state):
    """What the layer's repetition says of a call; None where it leaves it to the checks."""
    return layer._repetition(layer.weights, x, state, layer.batch_first)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ("LSTM", "GRU", "RNN"))
def test_each_call_has_its_own_arguments_weights_and_results(kind, options):
    layer, other, rng = layer_of(kind, options), layer_of(kind, options), np.random.default_rng(0)
    found, expected = [], []
    for number in range(8):
        x, state = argument(layer, rng)
        state = state if number % 4 < 2 else None
        layer.weights *= 0.9
        other.weights[...] = layer.weights
        by_repetition = number % 2 == 1
        found.append(repeated(layer, x, state) if by_repetition else layer(x, state))
        with bound_each_time():
            expected.append(other(x, state))
        x[...] = 0
    for one, two in zip(found, expected, strict=True):
        for array, wanted in zip(arrays(one), arrays(two), strict=True):
            np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
def test_what_is_out_of_the_ordinary_is_left_to_the_checks(kind):
    layer, rng = layer_of(kind, {}), np.random.default_rng(0)
    x, state = argument(layer, rng)
    expected = arrays(layer(x, state))
    pair = kind == "LSTM"
    others = [
        (x[:1], state), (np.asfortranarray(x), state), (x.astype("float64"), state), (x.astype(">f4"), state),
        (x.tolist(), state), (np.ma.masked_array(x), state), (None, state), (x, None), (x, []),
        (x, state[:1]), (x, [*state]), (x, (state[0], None) if pair else (state,)),
        (x, (state[0], state[1][..., :3]) if pair else state[..., :3]),
        (x, (state[0][::-1], state[1]) if pair else state[::-1]),
        (x, (state[0].astype("float64"), state[1]) if pair else state.astype("float64")),
    ]  # fmt: skip
    for one in others:
        assert repeated(layer, *one) is None
    for array, wanted in zip(arrays(layer(np.asfortranarray(x), state)), expected, strict=True):
        np.testing.assert_array_equal(array, wanted)
    with pytest.raises(TypeError, match="dtype float64"):
        layer(x.astype("float64"), state)
    with pytest.raises(ValueError, match=r"must have shape .*, but has"):
        layer(x[:, :, :3].copy(), state)
    for array, wanted in zip(arrays(layer(x, state, lengths=[T, T])), expected, strict=True):
        np.testing.assert_array_equal(array, wanted)


def test_another_number_of_threads_and_a_copy_of_the_layer():
    layer, rng, former = layer_of("GRU", {}), np.random.default_rng(0), nr.get_num_threads()
    x, state = argument(layer, rng)
    expected = layer(x, state)[0]
    try:
        nr.set_num_threads(former + 1)
        assert repeated(layer, x, state) is None
        np.testing.assert_array_equal(layer(x, state)[0], expected)
        assert repeated(layer, x, state) is not None
    finally:
        nr.set_num_threads(former)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other._repetition is None
        other.weights *= 0.5
        assert not np.array_equal(other(x, state)[0], expected)
    np.testing.assert_array_equal(layer(x, state)[0], expected)


def test_layers_that_cannot_repeat_calls():
    """float16 is computed in float32; states of other widths are made wider first; several private states are one
    array."""
    layer = nr.LSTM(INPUT, H, device="cpu", dtype="float16")
    x = np.ones((T, B, INPUT), "float16")
    layer(x)
    assert layer._repetition is None or repeated(layer, x, None) is None
    np.testing.assert_array_equal(layer(x)[0], layer(x)[0])
    slstm = nr.RNN(nr.cells.library.slstm, INPUT, H, device="cpu")
    slstm(np.ones((T, B, INPUT), "float32"))
    assert slstm._repetition is None


def states_of_layers(state, layers):
    """A state's part of each layer, as a tuple."""
    return tuple(np.split(state, layers))


@pytest.mark.parametrize("layers", (1, 2, 3))
@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
def test_a_tuple_of_the_states_of_all_layers(kind, layers):
    """It is no tuple of h and c."""
    layer, rng = getattr(nr, kind)(INPUT, H, layers, device="cpu", seed=0), np.random.default_rng(0)
    x = rng.standard_normal((T, B, INPUT)).astype("float32")
    states = [rng.standard_normal((layers, B, H)).astype("float32") for _ in range(1 + (kind == "LSTM"))]
    whole, parts = tuple(states), tuple(states_of_layers(one, layers) for one in states)
    whole, parts = (whole, parts) if kind == "LSTM" else (whole[0], parts[0])
    expected = arrays(layer(x, whole))
    for _ in range(3):
        y, _ = layer(x, parts)
        np.testing.assert_array_equal(y, expected[0])
    if layers > 1:
        with pytest.raises(ValueError, match=r"must have shape|must be a list"):
            layer(x, (parts[0][0], parts[1][0]) if kind == "LSTM" else parts[0])
    for array, wanted in zip(arrays(layer(x, whole)), expected, strict=True):
        np.testing.assert_array_equal(array, wanted)


def test_axes_exchanged_from_now_on():
    """x has the same shape."""
    layer = layer_of("GRU", {})
    x = np.random.default_rng(0).standard_normal((T, T, INPUT)).astype("float32")
    for _ in range(2):
        expected = layer(x.transpose(1, 0, 2).copy())[0].transpose(1, 0, 2)
    layer.batch_first = True
    for _ in range(2):
        np.testing.assert_array_equal(layer(x)[0], expected)
