"""Persistent kernels whose weights are partly in registers and partly in shared memory: with the bits of those that
have all of them in one place, which test_persistent_simulated.py compares with float64.
"""

from dataclasses import replace

import pytest

from comparing import assert_same_bits
from grouped_tiles import MIXED_TILES
from numbarnn.cuda import simulator
from numbarnn.engines.gpu import profiles
from numbarnn.schedules.persistent import residence
from problems import make_problem
from running import infer, train


def results(tile, monkeypatch, seed=0):
    """What inference and training give with that tile."""
    with monkeypatch.context() as patched:
        patched.setattr(residence, "MOST_ACCUMULATORS", 1)  # others add in another order
        tile.choose(patched, "sim", profiles.SIMULATOR)
        problem = make_problem(tile.case)
        layer = problem.layer("sim", schedule="persistent")
        with simulator.schedule(seed):
            return infer(layer, problem), train(layer, problem)[0]


def is_usual(tile):
    """Whether every run has it: of what takes seconds one of each kind; `full`: all."""
    case = tile.case
    return len(case.hidden) == 1 and case.cell != "lstm"


@pytest.mark.parametrize(
    "tile", [pytest.param(tile, marks=[] if is_usual(tile) else pytest.mark.full) for tile in MIXED_TILES], ids=str
)
def test_weights_in_several_places_give_the_same_bits(monkeypatch, tile):
    whole = replace(tile, resident="shared")
    expected, found = results(whole, monkeypatch), results(tile, monkeypatch, seed=1)
    for one, other, what in zip(found, expected, ("inference", "training"), strict=True):
        assert_same_bits(one, other, what)
