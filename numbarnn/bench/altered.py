"""Persistent kernels made of something else for a while: to measure them from within, or to see a fault found.

    with altered({(exchange, "make_publish"): make_silent}):
        layer(x)  # its kernels are made anew, of the functions given

Calls that were bound before keep their kernels.
"""

from contextlib import contextmanager

from numbarnn.kernels.persistent import (
    across,
    backward,
    block,
    cluster,
    exchange,
    fma,
    forward,
    mma,
    products,
    projection,
    weights,
    within,
    within_backward,
    within_forward,
)

MODULES = (
    exchange, weights, fma, mma, products, block, cluster, across, within, within_forward, within_backward,
    projection, forward, backward,
)  # fmt: skip


@contextmanager
def altered(replacements, engine=None):
    """Kernels made inside are made of these.

    Args:
        replacements: (module, name) -> what stands in its place, also where other modules have it by that name.
        engine: whose recorded calls are forgotten, too, as other layers would replay them.
    """

    def forget():
        for thing in (thing for module in MODULES for thing in vars(module).values()):
            if hasattr(thing, "cache_clear"):
                thing.cache_clear()
        if engine is not None and engine.records_jobs:
            engine.buffer_pool.clear()

    before = {}
    forget()  # now: what is replaced may be called by what stands in its place
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
