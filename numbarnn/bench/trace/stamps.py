"""Persistent kernels that stamp the clocks of their SMs: what a step's time goes into, on a device.

The kernels are the ones that calls run, with each warp's product (`products.make_product`) and its waiting
(`exchange.make_wait`) between two looks at the clock. A warp's first lane notes, for each step,

    BEGIN     the SM's clock when the warp begins to look for what it multiplies, the first time in the step
    WAITED    clocks until it had come and was loaded, all turns together
    WORKED    clocks of waiting and multiplying, all turns together
    END       the clock after its last product
    NS        the device's common clock at BEGIN, nanoseconds

What is left of a step between the END of one and the BEGIN of the next are barriers, the cell, exchanging sums over
units where it has any, publishing, and fetching ahead. Stamps stand in the launch's word for trouble, made
longer, so that the kernels' arguments stay what they are.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda

from numbarnn.bench.altered import altered
from numbarnn.bench.trace.record import Block, Event, Record
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.kernels.persistent import backward, exchange, forward, products

BEGIN, WAITED, WORKED, END, NS = range(5)
FIELDS = 5
SLOTS_AROUND = 2  # slots of states before and after those of T steps
STEPS_LEFT_OUT = 2  # the first ones, in which blocks have not met yet
STEPS_TRACED = 12


@dataclass
class Stamps:
    """Of one launch: the engine's array, the word for trouble and (blocks, warps, slots, FIELDS) int64; their shape."""

    array: Any
    shape: tuple[int, ...]

    def read(self, engine):
        """(blocks, warps, slots, FIELDS) int64 on the host; RuntimeError where the kernel gave up."""
        found = engine.to_host(self.array)
        if found[0]:
            raise RuntimeError(f"the stamped kernel gave up with code {found[0]}")
        return found[1:].reshape(self.shape)


@contextmanager
def stamped(engine, steps):
    """Launches bound inside stamp clocks, of layers on this engine over so many steps; a list gets the `Stamps` of
    each."""
    made, slots = [], steps + SLOTS_AROUND
    put = _make_put(slots)

    class Stamped:
        """A kernel with a longer word for trouble."""

        def __init__(self, kernel, tile):
            self._kernel, self._tile = kernel, tile

        def bind(self, config, *arguments):
            shape = config.grid[0], self._tile.warps, slots, FIELDS
            stamps = Stamps(engine.zeros((1 + int(np.prod(shape)),), "int64"), shape)
            made.append(stamps)
            return self._kernel.bind(config, *arguments[:-1], stamps.array)

    def stamping(make):
        return lambda cell, tile, *options: Stamped(make(cell, tile, *options), tile)

    replacements = {
        (products, "make_product"): _timed_product(products.make_product, put),
        (exchange, "make_wait"): _timed_wait(exchange.make_wait, put),
        (forward, "make_forward"): stamping(forward.make_forward),
        (backward, "make_backward"): stamping(backward.make_backward),
    }
    with altered(replacements, engine):
        yield made


def _make_put(slots):
    """A device function put(stamps, warps, slot, field, value, adds): note something of the warp's step."""

    def put(stamps, warps, slot, field, value, adds):
        place = (cuda.blockIdx.x * warps + cuda.threadIdx.x // 32) * slots + slot
        at = 1 + place * FIELDS + field
        if adds:
            stamps[at] += value
        elif stamps[at] == 0 or field == END:
            stamps[at] = value

    return jit(put, BACKEND)


def _timed_product(make_product, put):
    """`products.make_product` whose step notes BEGIN, NS, WORKED and END."""
    clock, nanoseconds = ptx.clock, ptx.nanoseconds

    def make(tile):
        made, warps = make_product(tile), tile.warps
        multiply = made.step

        def step(fragments, loaded, shared, partial, operand, patience):
            begin, ns = clock(), nanoseconds()
            done = multiply(fragments, loaded, shared, partial, operand, patience)
            end = clock()
            if cuda.threadIdx.x % 32 == 0:
                stamps, slot = patience.trouble, operand.slot
                put(stamps, warps, slot, BEGIN, begin, False)
                put(stamps, warps, slot, NS, ns, False)
                put(stamps, warps, slot, WORKED, end - begin, True)
                put(stamps, warps, slot, END, end, False)
            return done

        return SimpleNamespace(**vars(made) | {"step": jit(step, BACKEND)})

    return make


def _timed_wait(make_wait, put):
    """`exchange.make_wait` whose functions note WAITED."""
    clock = ptx.clock

    def make(tile, group):
        wait_for_group, warps = make_wait(tile, group), tile.warps

        def wait(loaded, operand, patience):
            begin = clock()
            done = wait_for_group(loaded, operand, patience)
            end = clock()
            if cuda.threadIdx.x % 32 == 0:
                put(patience.trouble, warps, operand.slot, WAITED, end - begin, True)
            return done

        return jit(wait, BACKEND)

    return make


# ------------------------------------------------------------------------------------------------- what they tell
def phases(stamps):
    """Medians over blocks, warps and steps, in microseconds, as a dict: step, wait, multiply, rest; and clock_ghz, and
    span_us, from the first BEGIN to the last END. None in place of a number that so few steps do not tell."""
    parts, rates = {"step": [], "wait": [], "multiply": [], "rest": []}, []
    for warp in map(_in_order, stamps.reshape(-1, *stamps.shape[2:])):
        if len(warp) < 2:
            continue
        begin, waited, worked = warp[:, BEGIN], warp[:, WAITED], warp[:, WORKED]
        step = np.diff(begin)[STEPS_LEFT_OUT:]
        inner = slice(STEPS_LEFT_OUT, len(warp) - 1)
        parts["step"].append(step)
        parts["wait"].append(waited[inner])
        parts["multiply"].append((worked - waited)[inner])
        parts["rest"].append(step - worked[inner])
        if warp[-1, NS] > warp[0, NS]:
            rates.append((begin[-1] - begin[0]) / (warp[-1, NS] - warp[0, NS]))
    ghz = float(np.median(rates)) if rates else None
    found = {"clock_ghz": ghz, "span_us": None}
    for name, values in parts.items():
        values = np.concatenate(values) if values else np.zeros(0)
        found[f"{name}_us"] = float(np.median(values)) / ghz / 1e3 if ghz and len(values) else None
    used = stamps[stamps[..., BEGIN] > 0]
    if ghz and len(used):
        last = used[np.argmax(used[:, NS])]
        found["span_us"] = float((last[NS] - used[:, NS].min()) / 1e3 + last[WORKED] / ghz / 1e3)
    return found


def _in_order(warp):
    """The steps that a warp took, (steps, FIELDS), one after another; none of one that multiplies nothing."""
    steps = warp[warp[:, BEGIN] > 0]
    return steps[np.argsort(steps[:, BEGIN])]


def trace(stamps, title, backward, facts=()):
    """A `record.Record` of the first steps of a launch of one layer: of each block the warp that worked longest."""
    used = stamps[..., BEGIN] > 0
    zero, ghz = stamps[..., NS][used].min(), phases(stamps)["clock_ghz"] or 1.0
    blocks, events, last = [], [], 0
    for number, warps in enumerate(stamps):
        blocks.append(Block(f"block {number}"))
        chosen = warps[np.argmax(np.where(warps[..., BEGIN] > 0, warps[..., WORKED], 0).sum(1))]
        steps = _in_order(chosen)[: STEPS_TRACED + 1]
        if not len(steps):
            continue
        base = float(steps[0, NS] - zero)
        times = [base + (clock - steps[0, BEGIN]) / ghz for clock in steps[:, BEGIN]]
        for step, (row, begin) in enumerate(zip(steps[:-1], times, strict=False)):
            come, done = begin + row[WAITED] / ghz, begin + row[WORKED] / ghz
            about = {"layer": 0, "direction": 0, "step": step}
            events.append(Event(number, "wait", begin, come, **about))
            events.append(Event(number, "multiply", come, done, **about))
            events.append(Event(number, "publish", done, times[step + 1], **about))
            last = max(last, step + 1)
    return Record(title, "ns", "blocks", backward, 1, 1, last, tuple(blocks), tuple(events), tuple(facts))
