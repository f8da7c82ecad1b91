"""Choose what kernels are made for: "cuda", compiled by Numba, or "python", run by the simulator.

Kernel factories read `backend()`, and `per_backend` caches their results. An engine sets its backend around its calls
with `using`. Elsewhere the backend is "cuda", or "python" with NUMBA_ENABLE_CUDASIM=1.
"""

from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps

from numbarnn.cuda.compiler import simulated

_backend = ContextVar("backend", default=None)


def backend():
    """Return the backend that kernels and device functions are made for now: "cuda" or "python"."""
    return _backend.get() or ("python" if simulated() else "cuda")


@contextmanager
def using(name):
    """Make kernels for the backend `name` inside the `with` block."""
    token = _backend.set(name)
    try:
        yield
    finally:
        _backend.reset(token)


def per_backend(factory):
    """Cache a factory's results by backend and arguments."""

    @cache
    def cached(backend_name, *arguments, **options):
        return factory(*arguments, **options)

    @wraps(factory)
    def for_backend(*arguments, **options):
        return cached(backend(), *arguments, **options)

    for_backend.cache_clear = cached.cache_clear
    return for_backend


def is_tiny():
    """Return whether to launch few threads, which the simulator runs slowly. Such launches still have several blocks,
    so that tests cross block boundaries."""
    return backend() == "python"
