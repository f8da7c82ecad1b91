"""What tests of persistent kernels in the simulator share."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from numbarnn import engines
from numbarnn.engines import profiles
from numbarnn.kernels import exchange, fma, persistent, products, tensor_cores, warp_parts
from numbarnn.schedules import persistent as schedule
from numbarnn.schedules import planner


def few_threads(monkeypatch):
    """Few threads and exchanges between lanes, as they are dear: blocks of 4 units, weights in shared memory.

    Returns:
        A function that changes the simulator's device and what the planner may choose: change(multiprocessors=4,
        UNITS=(8,)).
    """

    def change(**changes):
        for name in [name for name in changes if name.isupper()]:
            monkeypatch.setattr(planner, name, changes.pop(name))
        # The planner remembers devices by all they are.
        changes.setdefault("name", f"simulator for {monkeypatch} {changes}")
        monkeypatch.setattr(engines.get("sim"), "profile", replace(profiles.SIMULATOR, **changes), raising=False)

    change(UNITS=(4,), SLICES=(1,))
    return change


def forget_kernels():
    """Let kernels be made anew, from what the modules have now."""
    for module in (exchange, warp_parts, fma, tensor_cores, products, persistent):
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


def launches_of(case, training=True):
    """All launches of a call, forward then backward."""
    problem = case.layer("sim", schedule="persistent").stack.problem(case.T, case.B, training)
    return [launch for backward in (False, True) for launch in schedule.SCHEDULE.launches(problem, backward)]
