"""Kernels of tests, launched in the simulator in several orders of their threads."""

import pytest

from numbarnn.cuda import simulator
from numbarnn.cuda.launch import Kernel, LaunchConfig

SEEDS = range(5)
any_order = pytest.mark.parametrize("seed", [simulator.IN_TURN, *SEEDS])


def launch(kernel, grid, block, *arguments, shared_bytes=0):
    Kernel(kernel).bind(LaunchConfig(grid, block, shared_bytes, cooperative=True), *arguments)()
