"""The real kernels, in the simulator, against what PyTorch, onnxruntime and cuDNN once computed (tests/data)."""

from itertools import cycle

import pytest
from persistent_setup import few_threads

import vectors

SCHEDULES = ("stepwise", "wavefront", "persistent")


def schedules_for(dtype):
    """Persistent kernels do not compute in float64."""
    return SCHEDULES[:2] if dtype == "float64" else SCHEDULES


def runs():
    """Every recording and dtype, by schedules in turn, by each with `full`."""
    turns = {dtype: cycle(schedules_for(dtype)) for dtype in ("float16", "bfloat16", "float32", "float64")}
    for recording in vectors.read_all():
        for dtype in recording.results:
            usual = next(turns[dtype])
            for schedule in schedules_for(dtype):
                marks = [] if schedule == usual else pytest.mark.full
                yield pytest.param(recording, dtype, schedule, marks=marks, id=f"{recording.name}-{dtype}-{schedule}")


def test_every_schedule_has_its_turn_with_every_cell():
    met = {(one.values[0].cell, one.values[2]) for one in runs() if not one.marks}
    assert met >= {(recording.cell, name) for recording in vectors.read_all() for name in SCHEDULES}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    return few_threads(monkeypatch)


@pytest.mark.parametrize(("recording", "dtype", "schedule"), list(runs()))
def test_layers_are_as_exact(recording, dtype, schedule):
    values = vectors.layer_values(recording, dtype, "sim", schedule)
    vectors.assert_as_exact(recording, dtype, values, f"{recording.name} {dtype} {schedule}")
