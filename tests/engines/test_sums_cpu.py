"""Sums over units. What cells with them compute is in test_conformance.py, that threads change no bit in
test_sharing_cpu.py."""

import numpy as np
import pytest

from general_cells import WRITTEN
from step_buffers import forward_buffers, with_arrays


@pytest.fixture
def engine(cpu_on_threads):
    return cpu_on_threads


@pytest.mark.parametrize("threads", (1, 3))
@pytest.mark.parametrize("H", (100, 1000, 5000))
def test_sums_are_added_up_in_pairs(engine, H, threads):
    """Of positive terms, none of which cancel: within two units in the last place, where thousands of terms one after
    another lose ten."""
    engine.set_num_threads(threads)
    rng = np.random.default_rng(0)
    forward = forward_buffers(WRITTEN["centered"], 0, T=1, B=64, H=16)
    forward = with_arrays(
        forward, h=np.zeros((3, 64, 2 * H), np.float32), ax=rng.random((1, 64, H), np.float32),
        ah=np.empty((64, H), np.float32), R=np.zeros((H, H), np.float32), b_w=np.zeros(H, np.float32),
        b_r=np.zeros(H, np.float32),
    )  # fmt: skip
    exact = forward.scratch.ax.astype(np.float64).sum(axis=2)[..., None]
    engine.forward_steps(forward)(0, 1)
    assert np.abs(forward.saved.sums / exact - 1).max() < 2 * np.finfo("float32").eps
