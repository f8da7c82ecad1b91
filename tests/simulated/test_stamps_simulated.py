"""Kernels that stamp clocks (`numbarnn.bench.trace.stamps`): they compute what others do, and their stamps add up."""

import json

import numpy as np
import pytest

import numbarnn
from numbarnn import engines
from numbarnn.bench.trace import record, stamps

T, B, H = 5, 2, 7
CLOCKS = (0, 40, 100, 200, 260, 300)  # of a warp's steps, made by hand


def run():
    """(y, dx, weight gradients) of a layer that is always the same."""
    layer = numbarnn.LSTM(3, H, device="sim", schedule="persistent", seed=0)
    x = np.random.default_rng(0).standard_normal((T, B, 3), dtype=np.float32)
    y, _, tape = layer.forward(x)
    gradients = layer.backward(tape, np.ones_like(y))
    return y, gradients.x, gradients.weights


def test_stamps_change_no_bit_and_are_in_order():
    engine = engines.get("sim")
    before = run()
    with stamps.stamped(engine, T) as made:
        during = run()
    for one, *others in zip(before, during, run(), strict=True):
        for other in others:
            np.testing.assert_array_equal(one, other)
    assert len(made) == 2  # forward and backward; none of what ran afterwards
    for one, backward in zip(made, (False, True), strict=True):
        found = one.read(engine)
        assert found.shape == (2, 2, T + stamps.SLOTS_AROUND, stamps.FIELDS)
        used = found[found[..., stamps.BEGIN] > 0]
        assert len(used) and (0 <= used[:, stamps.WAITED]).all()
        assert (used[:, stamps.WAITED] <= used[:, stamps.WORKED]).all()
        assert (used[:, stamps.BEGIN] + used[:, stamps.WORKED] <= used[:, stamps.END]).all()
        parts = stamps.phases(found)
        assert all(parts[f"{name}_us"] > 0 for name in ("step", "wait", "multiply", "rest"))
        shown = record.as_json(stamps.trace(found, "a test", backward))
        again = record.from_json(json.loads(json.dumps(shown)))
        assert {event.kind for event in again.events} == {"wait", "multiply", "publish"} and again.unit == "ns"


def test_phases_are_medians_of_what_was_stamped():
    """A clock of 2 GHz: in each step 10 clocks of waiting, 20 of multiplying."""
    found = np.zeros((1, 2, len(CLOCKS), stamps.FIELDS), np.int64)
    for slot, clock in enumerate(CLOCKS):
        found[0, 0, slot] = 1000 + clock, 10, 30, 1030 + clock, 5000 + clock // 2
    parts = stamps.phases(found)
    assert parts["clock_ghz"] == pytest.approx(2.0)
    wanted = {"step": 60, "wait": 10, "multiply": 20, "rest": 30}  # steps of 100, 60 and 40 after two that are left out
    assert {name: parts[f"{name}_us"] * 2e3 for name in wanted} == pytest.approx(wanted)
    assert parts["span_us"] == pytest.approx((300 + 30) / 2e3)


def test_a_kernel_that_gave_up_has_no_stamps():
    engine = engines.get("sim")
    word = np.zeros(1 + stamps.FIELDS, np.int64)
    word[0] = 7
    with pytest.raises(RuntimeError, match="gave up with code 7"):
        stamps.Stamps(word, (1, 1, 1, stamps.FIELDS)).read(engine)
