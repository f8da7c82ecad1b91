"""Sums over units and noise: the same bits whoever computes, and the arrays that engines get. What cells with them
compute is in test_conformance.py."""

import numpy as np
import pytest

from general_cells import SUM_CELLS
from step_buffers import forward_buffers, walk, with_arrays

LADDER = SUM_CELLS["ladder"]  # each other one takes long to compile and does less


@pytest.fixture
def engine(cpu_on_threads):
    return cpu_on_threads


def assert_equal(values, others):
    for one, other in zip(values, others, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("direction", (0, 1))
@pytest.mark.parametrize("threads", (1, 2, 3))
def test_the_same_bits_each_time_and_in_pieces(engine, threads, direction):
    engine.set_num_threads(threads)
    options = dict(T=9, B=3, H=130, masked=True, dtype="float64")
    _, first = walk(engine, LADDER, direction, (0, 9), **options)
    for cuts in [(0, 9)] * 5 + [(0, 2, 3, 9)] * 2:
        assert_equal(walk(engine, LADDER, direction, cuts, **options)[1], first)


def test_threads_without_units_take_part(engine, monkeypatch):
    """Seven units are one slice."""
    options = dict(H=7, masked=True, dtype="float64")
    engine.set_num_threads(1)
    _, alone = walk(engine, LADDER, 0, **options)
    engine.set_num_threads(3)
    monkeypatch.setattr(type(engine), "_threads", lambda self, work, parts: 3)
    for one, other in zip(walk(engine, LADDER, 0, **options)[1], alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("threads", (1, 3))
@pytest.mark.parametrize("H", (100, 1000, 5000))
def test_sums_are_added_up_in_pairs(engine, H, threads):
    """Of positive terms, none of which cancel: within two units in the last place, where thousands of terms one after
    another lose ten."""
    engine.set_num_threads(threads)
    rng = np.random.default_rng(0)
    forward = forward_buffers(SUM_CELLS["centered"], 0, T=1, B=64, H=16)
    forward = with_arrays(
        forward, h=np.zeros((3, 64, 2 * H), np.float32), ax=rng.random((1, 64, H), np.float32),
        ah=np.empty((64, H), np.float32), R=np.zeros((H, H), np.float32), b_w=np.zeros(H, np.float32),
        b_r=np.zeros(H, np.float32),
    )  # fmt: skip
    exact = forward.scratch.ax.astype(np.float64).sum(axis=2)[..., None]
    engine.forward_steps(forward)(0, 1)
    assert np.abs(forward.saved.sums / exact - 1).max() < 2 * np.finfo("float32").eps
