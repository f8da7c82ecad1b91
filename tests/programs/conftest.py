"""What tests of passes share."""

import pytest

from gpu_stand_in import make_engine


@pytest.fixture
def gpu(monkeypatch):
    """(a CUDA engine without a GPU, counts of what it asks of the driver, its stand-in for CuPy)."""
    return make_engine(monkeypatch)
