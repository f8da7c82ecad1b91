"""Persistent kernels made of something else for a while, in the simulator or compiled."""

from contextlib import contextmanager

import pytest

from numbarnn.kernels.persistent import backward, block, exchange, fma, forward, mma, products, warp_parts, weights


def forget_kernels():
    """Let kernels be made anew, from what the modules have now."""
    for module in (exchange, warp_parts, weights, fma, mma, products, block, forward, backward):
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
