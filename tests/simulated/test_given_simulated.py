"""Persistent kernels whose first layer multiplies its input itself (`Tile.given`): as after a product before them."""

import numpy as np
import pytest
from persistent_setup import few_threads

from cases import Case
from comparing import assert_close, assert_same_bits
from grouped_tiles import launches_of
from numbarnn.cuda import simulator
from numbarnn.kernels.persistent import exchange
from numbarnn.schedules.persistent import planner
from problems import make_problem
from running import infer, train_and_draw

# Device, whether there are several launches, and the case: I that is and is not a multiple of 16 bytes; what is dropped
# out before and within a launch; steps that are not ordinary; float64; halves by the tensor cores.
CASES = [
    ({}, Case("lstm", T=3, B=2, I=3, hidden=(5, 6), dropout=0.3)),
    ({}, Case("gru", T=2, B=9, I=8, hidden=(8,), directions=2)),
    ({}, Case("rnn_tanh", T=3, B=2, I=5, hidden=(6,), lengths=(3, 1), resets=True)),
    ({}, Case("rnn_relu", T=2, B=1, I=7, hidden=(5,), bias=False)),
    ({}, Case("gru", T=2, B=2, I=8, hidden=(8, 8), dtype="float16")),
    ({"registers": 65536}, Case("lstm", T=2, B=3, I=24, hidden=(8,), dtype="bfloat16")),
    ({"multiprocessors": 4}, Case("lstm", T=2, B=2, I=4, hidden=(8, 16), dropout=0.3)),
    # Cells that exchange something within a step: sums, products, both, projections.
    ({}, Case("normed", T=3, B=2, I=3, hidden=(5, 6), dropout=0.3)),
    ({"warps": (4,)}, Case("gru_reset_before", T=3, B=3, I=8, hidden=(8,), lengths=(2, 0, 3), resets=True)),
    ({"warps": (4,)}, Case("ladder", T=2, B=9, I=7, hidden=(5,))),
    ({"warps": (4,)}, Case("lstm", T=3, B=2, I=12, hidden=(8, 7), proj_size=5, directions=2)),
    ({"warps": (4,)}, Case("projected_lstm", T=2, B=2, I=16, hidden=(16,), dtype="float16")),
]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    return few_threads(monkeypatch)


@pytest.fixture
def given(monkeypatch, small):
    """Makes the planner take it wherever that may be, on a device with these changes."""

    def change(**device):
        monkeypatch.setattr(planner, "_may_multiply_input", lambda problem, layer: True)
        small(LEAST_GAIN=-1e6, **device)

    return change


@pytest.mark.parametrize("device, case", CASES, ids=lambda value: str(value) if isinstance(value, Case) else "")
def test_agrees_with_float64(given, device, case):
    given(**device)
    forward = launches_of(case)[: len(launches_of(case)) // 2]
    assert all(launch.tile.given and "input's product of layer" in launch.details for launch in forward)
    assert (len(forward) > 1) == ("multiprocessors" in device)
    problem, first = make_problem(case), None
    for seed in range(2):
        layer = problem.layer("sim", schedule="persistent")
        with simulator.schedule(seed):
            outputs, (found, drawn) = infer(layer, problem), train_and_draw(layer, problem)
        first = first or (outputs, found)
        assert_same_bits(outputs, first[0], f"inference, seed {seed}")
        assert_same_bits(found, first[1], f"training, seed {seed}")
    without = problem.expected()
    assert_close(case, outputs, {name: without[name] for name in outputs}, "inference")
    assert_close(case, found, problem.expected(drawn), "training")


def test_nobody_waits_for_what_is_given(given):
    """Not even for the NaN that elsewhere says that nobody has written yet: it reaches the sequence that has it."""
    given()
    problem = make_problem(Case("rnn_tanh", T=2, B=2, I=4, hidden=(8,)))
    problem.x.view(np.uint32)[0, 1, 2] = exchange.UNWRITTEN
    y = infer(problem.layer("sim", schedule="persistent"), problem)["y"]
    assert np.isnan(y[:, 1]).all() and np.isfinite(y[:, 0]).all()
