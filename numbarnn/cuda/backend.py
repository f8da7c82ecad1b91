"""Choose the backend of kernels and device functions: "cuda", compiled by Numba, or "python", for the simulator.

Factories ask `backend()` while they make something, and remember it by `per_backend`. An engine says which it is around
its calls (`using`); outside of these it is "cuda", or with NUMBA_ENABLE_CUDASIM=1 "python".
"""

from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps

from numbarnn.cuda.compiler import simulated

_backend = ContextVar("backend", default=None)


def backend():
    """Return what device functions are made for now: "cuda" or "python"; see `specialise`."""
    return _backend.get() or ("python" if simulated() else "cuda")


@contextmanager
def using(name):
    """Make them for this backend inside."""
    token = _backend.set(name)
    try:
        yield
    finally:
        _backend.reset(token)


def per_backend(factory):
    """Decorate a factory: what it made is remembered for each backend and set of arguments."""

    @cache
    def remembered(name, *arguments, **named):
        return factory(*arguments, **named)

    @wraps(factory)
    def made(*arguments, **named):
        return remembered(backend(), *arguments, **named)

    made.cache_clear = remembered.cache_clear
    return made


def is_tiny():
    """Return whether launches have few threads: in the simulator each is dear. They have several blocks in any case, so
    that their boundaries are crossed."""
    return backend() == "python"
