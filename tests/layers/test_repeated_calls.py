"""Inference like an earlier call, which is not checked again: whatever differs is checked, or refused, as ever."""

import numpy as np
import pytest

import numbarnn as nr
from comparing import assert_same_bits
from running import named_outputs, not_prepared


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
