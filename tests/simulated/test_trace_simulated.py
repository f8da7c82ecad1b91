"""`numbarnn trace` in the simulator: the record of a persistent kernel is what its plan says."""

import json

import numpy as np
import pytest
from threads import small_device

import traces
from numbarnn.bench.shapes import Shape
from numbarnn.bench.trace import recorder
from numbarnn.cells import CELLS
from numbarnn.cuda import simulator
from numbarnn.schedules.persistent.schedule import SCHEDULE


@pytest.fixture(autouse=True)
def small(monkeypatch):
    return small_device(monkeypatch)


def recorded(cell, shape, backward=False, directions=1):
    made = recorder.record("a test", cell, Shape(*shape), backward, directions)
    assert made["error"] is None
    return json.loads(json.dumps(made))


@pytest.mark.parametrize("cell, directions, backward", [("lstm", 1, True), ("gru", 2, False)])
def test_every_step_is_computed_once_and_after_what_it_needs(cell, directions, backward):
    T, L, H = 4, 3 - directions // 2, 7  # 7 units in blocks of 4: the last block owns fewer
    made = recorded(CELLS[cell], (T, 2, 3, H, L), backward, directions)
    assert len(made["blocks"]) == 2 * L * directions
    steps = {(layer, direction, step) for layer in range(L) for direction in range(directions) for step in range(T)}
    computed = traces.computed(made)
    assert set(computed) == steps
    for place, events in computed.items():
        owners = [event["block"] for event in events]
        assert len(owners) == len(set(owners)) == 2
        assert all(f"layer {place[0]}" in made["blocks"][block]["name"] for block in owners)
    loads = [event["block"] for event in made["events"] if event["kind"] == "load"]
    assert sorted(loads) == list(range(len(made["blocks"])))
    assert traces.require_order(made)


def test_watching_changes_no_bit_and_is_over_afterwards():
    import numbarnn

    layer = numbarnn.GRU(3, 5, 2, device="sim", schedule="persistent", seed=0)
    x = np.random.default_rng(0).standard_normal((3, 2, 3)).astype(np.float32)
    with simulator.schedule(0):
        expected = layer(x)[0]
    watcher = recorder.Recorder(SCHEDULE.launches(layer.stack.problem(len(x), x.shape[1], False), False))
    with simulator.schedule(0), simulator.watched(watcher):
        np.testing.assert_array_equal(layer(x)[0], expected)
    assert watcher.events and type(simulator.watcher) is simulator.Watcher
