"""Persistent kernels made of something else for a while, in the simulator or compiled."""

from altered import altered


def mutant(module, name, value):
    """Make kernels of something else for a while."""
    return altered({(module, name): value})
