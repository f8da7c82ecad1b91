"""Tests of the kernels in the simulator: whatever they make is made for it, also where a GPU is."""

import pytest

from numbarnn import engines
from numbarnn.cuda import simulator
from numbarnn.cuda.backend import using


@pytest.fixture(autouse=True)
def in_the_simulator(monkeypatch, request):
    """Threads take turns in a random order, another one for each test, the same whenever it runs; others with another
    NUMBARNN_SIM_SEED."""
    monkeypatch.setattr(engines, "_gpu_problem", lambda: "these tests are for the simulator")
    with using("python"), simulator.schedule(seed=f"{simulator.default_seed()} {request.node.name}"):
        yield


@pytest.fixture
def change(monkeypatch):
    """A small device, and a function that changes it: see `threads.small_device`."""
    from threads import small_device

    return small_device(monkeypatch)
