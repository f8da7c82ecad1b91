"""Test a persistent kernel before first use: its blocks wait for each other, perhaps on a kind of device that is new.

The first time a process runs a problem with persistent kernels on a device, a tiny problem with the same tiles runs
with these kernels and with `stepwise`. The test fails if results differ by more than rounding, the kernels time out, or
their blocks do not fit on the device together. "auto" then warns once and uses another schedule; if the user named
"persistent", it is an error. Passed tests are stored on disk beside the compiled kernels, per device, driver and
version of the kernels. NUMBARNN_SELF_CHECK=0 turns this off.
"""

import hashlib
import os
import warnings
from dataclasses import replace

import numpy as np

from numbarnn.common import code_cache
from numbarnn.common.precision import known_dtype
from numbarnn.cuda import compiler
from numbarnn.layers.sequences import EVERY_STEP, Sequences
from numbarnn.programs.backward import Need
from numbarnn.programs.states import state_arrays
from numbarnn.schedules import auto, stepwise
from numbarnn.schedules.base import Schedule
from numbarnn.schedules.persistent import planner
from numbarnn.schedules.persistent.schedule import SCHEDULE as PERSISTENT

VARIABLE = "NUMBARNN_SELF_CHECK"
STEPS = 3  # of the tiny problem: the first, an ordinary one, the last
# Largest difference, relative to the largest number or 1: some 30 units in the last place, for float32 twice as many.
LARGEST = {"float32": 1e-5, "float16": 3e-2, "bfloat16": 0.25, "TF32": 3e-2}
PERIOD = 65521  # numbers after which the inputs repeat themselves: a prime, so that no two rows of a matrix are alike

_known = {}  # digest of kernels on a device -> why not to trust them, or "", of this process


class _Planned(Schedule):
    """The persistent schedule with the launches of a longer problem."""

    name = PERSISTENT.name

    def __init__(self, launches):
        self._launches = launches  # by pass

    def plan_forward(self, problem):
        return PERSISTENT.plan_of(problem, self._launches[False], False)

    def plan_backward(self, problem, weights=True, input_gradient=True):
        return PERSISTENT.plan_of(problem, self._launches[True], True, weights, input_gradient)

    def plan_weights(self, problem):
        return PERSISTENT.plan_weights(problem)


def require(stack, problem):
    """Test the persistent kernels that run a `Problem` of a stack, if any do.

    RuntimeError: they disagree with "stepwise", and the stack's schedule is "persistent" itself.
    """
    if os.environ.get(VARIABLE, "1") == "0" or stack.schedule.pick(problem)[0] is not PERSISTENT:
        return
    passes = (False, True) if problem.training else (False,)
    launches = {backward: PERSISTENT.launches(problem, backward) for backward in passes}
    digest = _digest(stack, problem, launches)
    if digest not in _known:
        _known[digest] = "" if code_cache.read(digest, ".proved") else _why_not(stack, problem, launches)
        if not _known[digest]:
            code_cache.write(digest, {"device": stack.engine.identity, "problem": stack.caller}, b"", ".proved")
    if not (why := _known[digest]):
        return
    if stack.schedule is PERSISTENT:
        raise RuntimeError(f"{why}. Use schedule='auto'; {VARIABLE}=0 in the environment turns this check off")
    warnings.warn(f"{why}; schedule='auto' takes another schedule. Please report it", stacklevel=4)
    auto.doubt(problem, [launch for some in launches.values() for launch in some], why)


def _digest(stack, problem, launches):
    """Return a text that identifies a problem's kernels on a device."""
    cell = problem.cell
    functions = [function for one in (cell, *cell.stages) for function in (one.forward, one.backward)]
    identity = [stack.engine.identity, code_cache.package_code(), compiler.toolchain(), problem.dtype]
    identity += [str(problem.training), *map(code_cache.fingerprint, functions)]
    for some in launches.values():
        identity += [f"{one.tile} {one.blocks} {planner.variant(problem, one)} {one.last - one.first}" for one in some]
    return hashlib.sha256("\0".join(identity).encode()).hexdigest()


def _why_not(stack, problem, launches):
    """Run a tiny problem with the launches and with `stepwise`; return why the launches fail, or ""."""
    kernels = f"the persistent kernel of {stack.caller} on {stack.engine.identity}"
    short = {backward: tuple(replace(one, steps=STEPS) for one in some) for backward, some in launches.items()}
    try:
        results = _results(stack, problem, _Planned(short))
    except RuntimeError as error:
        return f"{kernels} does not work: {error}"
    largest = LARGEST["TF32" if problem.allow_tf32 and problem.dtype == "float32" else problem.dtype]
    for name, value in _results(stack, problem, stepwise.SCHEDULE).items():
        difference = np.max(np.abs(results[name] - value), initial=0.0) / max(1.0, np.max(np.abs(value), initial=0.0))
        if not difference <= largest:  # NaN is not
            return f"{kernels} disagrees with 'stepwise': {name} differs by {difference:.1e}, more than {largest:.0e}"
    return ""


def _results(stack, problem, schedule):
    """Return name -> result of the tiny problem, as float64 NumPy arrays."""
    twin = stack.twin(schedule, problem)
    engine, batch, rng = twin.engine, problem.batch, np.random.default_rng(0)

    def numbers(shape, size):
        values = rng.uniform(-size, size, PERIOD).astype(np.float32).astype(known_dtype(problem.dtype))
        return engine.from_host(np.resize(values, shape))

    sequences = EVERY_STEP
    if problem.masked:
        lengths = np.arange(batch, dtype=np.int32) % (STEPS + 1) if problem.padded else None
        resets = (np.arange(STEPS * batch, dtype=np.uint8).reshape(STEPS, batch) % 3 == 0).astype(np.uint8)
        sequences = Sequences(lengths, engine.from_host(resets) if problem.resets else None)
    weights = numbers((twin.space.size,), max(problem.hidden_sizes) ** -0.5)
    x = numbers((STEPS, batch, problem.input_size), 1.0)
    y, hy, cy, *_, tape = twin.forward(x, None, None, weights, problem.training, sequences=sequences)
    results = {"y": y, "hy": hy, "cy": cy}
    if problem.training:
        dx, dhx, dcx = twin.backward_data(tape, numbers(y.shape, 1.0), None, None, need=Need(weights=False))[:3]
        results |= {"dx": dx, "dhx": dhx, "dcx": dcx}
    parts = [(f"{name}[{number}]" if isinstance(value, list) else name, part) for name, value in results.items()
             for number, part in enumerate(state_arrays(value))]  # fmt: skip
    return {name: engine.to_host(part).astype(np.float64) for name, part in parts}
