"""Tests of the kernels in Numba's simulator. tests/test_simulator.py runs them in a process of their own, as
NUMBA_ENABLE_CUDASIM=1 must be set before Numba is imported; by hand:

    NUMBA_ENABLE_CUDASIM=1 python -m pytest tests/simulated
"""

import pytest
from numba import config

collect_ignore_glob = [] if config.ENABLE_CUDASIM else ["test_*.py"]


@pytest.fixture(autouse=True)
def random_order(request):
    """Threads take turns in a random order, another one for each test, the same whenever it runs; others with another
    NUMBARNN_SIM_SEED."""
    from numbarnn.cuda import simulator

    with simulator.schedule(seed=f"{simulator.default_seed()} {request.node.name}"):
        yield


@pytest.fixture
def change(monkeypatch):
    """A small device, and a function that changes it: see `threads.small_device`."""
    from threads import small_device

    return small_device(monkeypatch)
