"""`numbarnn trace` in the simulator: the record of a persistent kernel is what its plan says."""

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from threads import small_device

import traces
from general_cells import GENERAL, SUM_CELLS
from numbarnn.bench.shapes import Shape
from numbarnn.bench.trace import record, simulated
from numbarnn.cells import CELLS
from numbarnn.cuda import simulator, watching
from numbarnn.schedules.persistent.schedule import SCHEDULE


@pytest.fixture(autouse=True)
def small(monkeypatch):
    return small_device(monkeypatch)


def recorded(cell, shape, backward=False, directions=1):
    made = simulated.record("a test", cell, Shape(*shape), backward, directions)
    assert record.from_json(json.loads(json.dumps(record.as_json(made)))) == made
    return made


@pytest.mark.parametrize("cell, directions, backward", [("lstm", 1, True), ("gru", 2, False)])
def test_every_step_is_computed_once_and_after_what_it_needs(cell, directions, backward):
    T, L, H = 4, 3 - directions // 2, 7  # 7 units in blocks of 4: the last block owns fewer
    made = recorded(CELLS[cell], (T, 2, 3, H, L), backward, directions)
    assert made.error is None
    assert len(made.blocks) == 2 * L * directions
    steps = {(layer, direction, step) for layer in range(L) for direction in range(directions) for step in range(T)}
    computed = traces.computed(made)
    assert set(computed) == steps
    for place, events in computed.items():
        owners = [event.block for event in events]
        assert len(owners) == len(set(owners)) == 2
        assert all(f"layer {place[0]}" in made.blocks[block] for block in owners)
    loads = [event.block for event in made.events if event.kind == "load"]
    assert sorted(loads) == list(range(len(made.blocks)))
    assert traces.require_order(made)


@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
def test_a_wavefront_has_as_many_fronts_as_layers_and_steps_less_one(backward):
    T, L = 5, 3
    made = recorded(CELLS["rnn_tanh"], (T, 1, 3, 5, L), backward)
    depths = {place: depth for place, depth in traces.depths(made).items() if place[2] < T}
    layers = range(L)[::-1] if backward else range(L)
    assert depths == {(layer, 0, step): 1 + step + behind for behind, layer in enumerate(layers) for step in range(T)}
    assert len(set(depths.values())) == T + L - 1


def events_of_steps(made):
    """(block, place) -> the events of the block's step, in their order, but those of the first load."""
    found = defaultdict(list)
    for event in sorted(made.events, key=lambda event: event.start):
        if event.kind != "load":
            found[event.block, event.place].append(event)
    for events in found.values():
        assert all(one.end <= other.start for one, other in pairwise(events))
    return found


def require_exchange(made, exchange, multiply):
    """What a block exchanges within a step it then multiplies; it has waited for blocks that had begun to store."""
    begins = {}
    for event in made.events:
        if event.kind in ("exchange", "publish"):
            begins.setdefault((event.block, event.place), []).append(event.start)
    assert exchange.end == multiply.start and not multiply.reads
    for source in exchange.waits_for:
        assert source.place == exchange.place and source.block != exchange.block
        assert min(begins[source.block, source.place]) <= exchange.end


@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize("cell, within", [
    ("gru_reset_before", "EM"), *(pytest.param(*one, marks=pytest.mark.full)
                                  for one in (("chain", "EMEM"), ("ladder", "EEMEEM"))),
])  # fmt: skip
def test_products_within_a_step_are_exchanged_and_multiplied_in_it(small, cell, within, backward):
    """E: exchange (of sums that follow each other one), M: multiply; backward in reverse, and nothing comes to the
    first step. Of 17 sequences, a step goes through them in two turns."""
    T, L = 3, 2 if cell == "gru_reset_before" else 1
    B = 17 if cell == "chain" else 2
    small(warps=(2 if L == 2 else 4,))
    made = recorded((CELLS | GENERAL | SUM_CELLS)[cell], (T, B, 3, 7, L), backward)
    traces.require_order(made)
    within = {"EEMEEM": "EMEEME"}.get(within, within) if backward else within
    waits, letters = 0, {"wait": "", "multiply": "M", "exchange": "E", "publish": "P"}
    for (_, (_, _, step)), events in events_of_steps(made).items():
        said = "".join(letters[event.kind] for event in events)
        first = "" if backward and step == 0 else "M"
        assert said == (first if step == T else f"{first}{within}P" * (1 + B // 17))
        for one, other in pairwise(events):
            if one.kind == "exchange" and other.kind == "multiply":
                require_exchange(made, one, other)
                waits += len(one.waits_for)
    assert waits


def test_watching_changes_no_bit_and_is_over_afterwards():
    import numbarnn

    layer = numbarnn.GRU(3, 5, 2, device="sim", schedule="persistent", seed=0)
    x = np.random.default_rng(0).standard_normal((3, 2, 3)).astype(np.float32)
    with simulator.schedule(0):
        expected = layer(x)[0]
    recorder = simulated.Recorder(_launches(layer, x))
    with simulator.schedule(0), watching.watched(recorder):
        np.testing.assert_array_equal(layer(x)[0], expected)
    assert recorder.events and type(watching.watcher) is watching.Watcher


def _launches(layer, x):
    return SCHEDULE.launches(layer.stack.problem(len(x), x.shape[1], False), False)
