"""What asks cuDNN on a GPU (`numbarnn.bench.peers.cudnn.experiments`), asked of a cuDNN made of NumPy."""

import numpy as np
import pytest

from numbarnn.bench.peers.cudnn import experiments
from numbarnn.bench.peers.cudnn.assumptions import ASSUMED

# Of dropout the fake has none; what it does in padding is checked below.
COMPUTED = [name for name in ASSUMED if name != "everything is dropped"]


@pytest.mark.parametrize("name", COMPUTED)
def test_what_computes_as_the_reference_does_as_assumed(session, name):
    assert experiments.EXPERIMENTS[name]() == ASSUMED[name]


def test_another_formula_is_told(session, monkeypatch):
    computed = experiments._computed
    monkeypatch.setattr(experiments, "_computed", lambda instance: {"y": computed(instance)["y"] + 0.01})
    assert experiments.EXPERIMENTS["recurrent bias of the GRU"]() == "neither formula"


def test_what_differs_is_named(session, monkeypatch):
    computed = experiments._computed

    def wrong(instance):
        found = computed(instance)
        return found | {"dx": np.where(instance.padding[:, :, None], np.nan, found["dx"] + 1), "dhx": [np.nan]}

    monkeypatch.setattr(experiments, "_computed", wrong)
    assert experiments.EXPERIMENTS["padding of x and dy"]() == "read: dx, dhx differ"
    assert experiments.EXPERIMENTS["padding of dx"]() == "not written"
    assert experiments.EXPERIMENTS["unsorted lengths"]() == "dhx differ"


@pytest.mark.parametrize(
    ("cy", "dcx", "found"), [(1.0, 0.0, "zero"), (1.0, 0.5, "straight through"), (2.0, 0.5, "cy = 2.0, not clipped")]
)
def test_gradients_of_the_clip_are_told_apart(monkeypatch, cy, dcx, found):
    monkeypatch.setattr(experiments, "one_unit", lambda *_, **__: (cy, dcx, 0.5))
    assert experiments.EXPERIMENTS["gradient of the clip"]() == found
