"""Persistent kernels with some functions replaced for a while: to measure within them, or to plant a fault.

    with altered({(exchange, "make_publish"): make_silent}):
        layer(x)  # its kernels are made anew, with make_silent in the place of make_publish

Calls that were bound before keep their kernels.
"""

from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules

from numbarnn.kernels import persistent

MODULES = [import_module(f"{persistent.__name__}.{one.name}") for one in iter_modules(persistent.__path__)]


@contextmanager
def altered(replacements, engine=None):
    """Kernels that are made inside use the replacements.

    Args:
        replacements: (module, name) -> the function to use; modules that import the name use it, too.
        engine: an engine that forgets its recorded calls, as other layers would replay them; None: none does.
    """

    def forget():
        for thing in (thing for module in MODULES for thing in vars(module).values()):
            if hasattr(thing, "cache_clear"):
                thing.cache_clear()
        if engine is not None and engine.records_jobs:
            engine.buffer_pool.clear()

    before = {}
    forget()  # first: a replacement may call what it replaces
    for (module, name), value in replacements.items():
        original = getattr(module, name)
        for other in (module, *MODULES):
            if vars(other).get(name) is original:
                before[other, name] = original
                setattr(other, name, value)
    try:
        yield
    finally:
        for (module, name), original in before.items():
            setattr(module, name, original)
        forget()
