"""Time the planner's best tilings, and tell what a step of the persistent kernels is made of.

For `phases` a warp's first lane stores clocks of its SM before and after the product of each step and turn, and before
and after each wait within it; NS is the device's common clock, by which that of the SM becomes seconds. Stamps are
plain stores, each to a place of its own behind the launch's error flag, and no kernel reads them.
"""

from dataclasses import replace
from functools import partial
from math import ceil, prod
from operator import itemgetter
from types import SimpleNamespace
from unittest.mock import patch

import checks
import numpy as np
import times

from mutants import altered
from numbarnn import engines
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.cuda.backend import backend
from numbarnn.cuda.language import cuda
from numbarnn.kernels.persistent import backward, exchange, forward, products
from numbarnn.schedules.persistent import planner, tilings

NS, BEGIN, END, WAITS = 0, 1, 2, 3  # fields of a stamp; from WAITS on two for each group of chunks


def questions(run, part):
    problems = times.problems(run, ("lstm",))
    if part == "phases":
        return {name: partial(phases, run, case) for name, case in problems.items() if case.L == 1}
    ask = checks.first_calls if part == "compile_tilings" else times.timed
    numbers = range(2 if run.small else 5)
    return {f"{name} {n}": partial(tiling, n, ask, run, case) for n in numbers for name, case in problems.items()}


def tiling(number, ask, run, case):
    """Ask something of a problem by the `number`-th best tiling; what users get is in the part `times`."""
    chosen = []
    planner.forget()
    with patch.object(tilings, "_fastest", nth_best(number, chosen)):
        found = ask(run, case, ("persistent",))
    return found | {"told": [*found.get("told", ()), *chosen], "record": None}


def nth_best(number, chosen):
    """`tilings._fastest` that takes and notes the `number`-th best; of blocks of 4 warps too, to measure them first."""

    def nth(part, slicings):
        part = replace(part, profile=replace(part.profile, warps=tuple({4, *part.profile.warps})))
        found = {(one[1], one[3]): one for mixed in (False, True) for one in tilings._fitting(part, slicings, mixed)}
        if not found:
            return None
        us, tile, blocks, slicing = best = sorted(found.values(), key=itemgetter(0))[: number + 1][-1]
        chosen.append(f"backward {part.backward}: estimated {us:.2f} us, {blocks} blocks, slices {slicing}, {tile}")
        return best

    return nth


def phases(run, case):
    """Time a problem with stamps, and tell what they say."""
    engine, stamps = engines.get(run.device), {}
    with altered(stamping(engine, case, stamps), engine):
        found = times.timed(run, case, ("persistent",)) | {"record": None}
        for name, (array, shape) in stamps.items():
            found[name] = parts_of_a_step(engine.to_host(array)[1:].reshape(shape))
            found["told"].append(f"{name}: " + ", ".join(f"{part} {value:.2f}" for part, value in found[name].items()))
    return found


def stamping(engine, case, stamps):
    """Replacements for `altered`: kernels that stamp clocks; pass -> (array, shape) of its last launch in `stamps`."""
    make_product, make_wait = products.make_product, exchange.make_wait

    def with_array(make):
        def made(cell, tile, *options):
            kernel, name = make(cell, tile, *options), make.__name__.removeprefix("make_")

            def bind(config, *arguments):
                shape = config.grid[0], *shape_of(tile, case)
                stamps[name] = engine.zeros((1 + prod(shape),), "int64"), shape
                return kernel.bind(config, *arguments[:-1], stamps[name][0])

            return SimpleNamespace(bind=bind)

        return made

    def product(tile):
        functions = vars(make_product(tile))
        return SimpleNamespace(**functions | {"step": timed(functions["step"], tile, case, BEGIN)})

    return {
        (products, "make_product"): product,
        (exchange, "make_wait"): lambda tile, group: timed(make_wait(tile, group), tile, case, WAITS + 2 * group),
        (forward, "make_forward"): with_array(forward.make_forward),
        (backward, "make_backward"): with_array(backward.make_backward),
    }


def shape_of(tile, case):
    """A block's stamps: a place for each warp, step (and what is before and after all), turn and field."""
    return tile.warps, case.T + 2, ceil(case.B / tile.sequences), WAITS + 2 * tile.groups


def timed(function, tile, case, field):
    """Make a device function f(thread, role, turn) stamp clocks before and after."""
    (warps, slots, turns, fields), sequences = shape_of(tile, case), tile.sequences
    clock, nanoseconds = ptx.clock, ptx.nanoseconds

    def stamp(stamps, turn, field, value):
        if cuda.threadIdx.x % 32 == 0:
            step = (cuda.blockIdx.x * warps + cuda.threadIdx.x // 32) * slots + turn.step
            stamps[np.uint64(1 + (step * turns + turn.b0 // sequences) * fields + field)] = value

    stamp = jit(stamp, backend())

    def run(thread, role, turn):
        if field == BEGIN:
            stamp(role.error_flag, turn, NS, nanoseconds())
        stamp(role.error_flag, turn, field, clock())
        function(thread, role, turn)
        stamp(role.error_flag, turn, field + 1, clock())

    return jit(run, backend())


def parts_of_a_step(stamps):
    """Medians over blocks, warps and steps of (blocks, warps, slots, turns, fields), zeros where nothing was stored."""
    clocks, rates = [], []
    for steps in stamps.reshape(-1, *stamps.shape[2:]):
        begin = np.where(steps[..., BEGIN] > 0, steps[..., BEGIN], np.iinfo(np.int64).max).min(axis=1)
        order = np.argsort(begin)[3 : np.count_nonzero(steps[..., BEGIN].any(axis=1))]  # 3: blocks have not met yet
        if len(order) > 2:
            steps, begin = steps[order], begin[order]
            step, ns = np.diff(begin), steps[..., NS].max(axis=1)
            wait = (steps[..., WAITS + 1 :: 2] - steps[..., WAITS::2]).sum(axis=(1, 2))[:-1]
            work = (steps[..., END] - steps[..., BEGIN]).sum(axis=1)[:-1]
            clocks.append([step, wait, work - wait, step - work])
            rates += [(begin[-1] - begin[0]) / (ns[-1] - ns[0])] if ns[-1] > ns[0] else []
    ghz = float(np.median(rates)) if rates else np.nan
    middle = np.median(np.concatenate(clocks, axis=1), axis=1) / ghz / 1e3 if clocks else [np.nan] * 4
    return dict(zip(("step us", "wait us", "multiply us", "rest us", "GHz"), map(float, [*middle, ghz]), strict=True))
