"""What tests of persistent kernels in the simulator share."""

from contextlib import contextmanager
from functools import partial

import pytest

import grouped_tiles
from numbarnn.engines.gpu import profiles
from numbarnn.kernels.persistent import backward, block, exchange, fma, forward, mma, products, warp_parts


def few_threads(monkeypatch):
    """Few threads and exchanges between lanes, as they are dear: blocks of 4 units, weights in shared memory.

    Returns:
        A function that changes the simulator's device and what the planner may choose: change(multiprocessors=4,
        UNITS=(8,)).
    """

    change = partial(grouped_tiles.choose, monkeypatch, "sim", profiles.SIMULATOR)
    change(UNITS=(4,), SLICES=(1,))
    return change


def forget_kernels():
    """Let kernels be made anew, from what the modules have now."""
    for module in (exchange, warp_parts, fma, mma, products, block, forward, backward):
        for thing in vars(module).values():
            if hasattr(thing, "cache_clear"):
                thing.cache_clear()


@contextmanager
def mutant(module, name, value):
    """Make kernels of something else for a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, value)
        forget_kernels()
        yield
    forget_kernels()
