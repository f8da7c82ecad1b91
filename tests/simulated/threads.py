"""What tests of kernels in the simulator share: orders of their threads, launches, and a small device."""

from functools import partial

import pytest

import grouped_tiles
from numbarnn.cuda import simulator
from numbarnn.cuda.launch import Kernel, LaunchConfig
from numbarnn.engines.gpu import profiles

SEEDS = range(5)
any_order = pytest.mark.parametrize("seed", [simulator.IN_TURN, *SEEDS])


def launch(kernel, grid, block, *arguments, shared_bytes=0):
    """Run a kernel of a test, all blocks at once."""
    Kernel(kernel).bind(LaunchConfig(grid, block, shared_bytes, cooperative=True), *arguments)()


def small_device(monkeypatch):
    """Give the simulator a device of few threads, as they are dear: blocks of 4 units, weights in shared memory.

    Returns:
        A function that changes the device and what the planner may choose: change(multiprocessors=4, UNITS=(8,)).
    """
    change = partial(grouped_tiles.choose, monkeypatch, "sim", profiles.SIMULATOR)
    change(UNITS=(4,), SLICES=(1,))
    return change
