"""The real kernels, in the simulator, against what PyTorch, onnxruntime and cuDNN once computed (tests/data)."""

from itertools import product

import pytest
from persistent_setup import few_threads

import vectors

SCHEDULES = ("stepwise", "wavefront", "persistent")


def runs():
    """Every recording, dtype and schedule; projection is nothing for the persistent one."""
    for recording, schedule in product(vectors.read_all(), SCHEDULES):
        if schedule != "persistent" or not recording.options.get("proj_size"):
            for dtype in recording.results:
                yield pytest.param(recording, dtype, schedule, id=f"{recording.name}-{dtype}-{schedule}")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    return few_threads(monkeypatch)


@pytest.mark.parametrize(("recording", "dtype", "schedule"), list(runs()))
def test_layers_are_as_exact(recording, dtype, schedule):
    values = vectors.layer_values(recording, dtype, "sim", schedule)
    vectors.assert_as_exact(recording, dtype, values, f"{recording.name} {dtype} {schedule}")
