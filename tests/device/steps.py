"""What a step of the persistent kernels is made of, and how other tilings would do.

`phases` runs kernels that stamp the clocks of their SMs. A warp's first lane stores, for each step and turn,

    BEGIN    the SM's clock when the warp begins to look for what it multiplies
    END      the clock after its product
    NS       the device's common clock at BEGIN, nanoseconds
    WAITS    for each group of chunks the clocks until it had come

Stamps are plain stores, each to a place of its own: nothing is read, so that they take little of the step. They stand
behind the launch's error flag, so that the kernels' arguments stay what they are.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import times
from numba import cuda

from numbarnn.bench.altered import altered
from numbarnn.bench.cases.cases import Case, make_instance, make_layer
from numbarnn.bench.peers import peers
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.cuda import ptx
from numbarnn.kernels.persistent import backward, exchange, forward, products
from numbarnn.schedules.persistent import planner, tilings
from numbarnn.schedules.persistent.schedule import SCHEDULE

BEGIN, END, NS, WAITS = 0, 1, 2, 3
GROUPS = 8  # of chunks, at most, whose waits are told apart
FIELDS = WAITS + GROUPS
FIRST_STEPS = 3  # left out: in these, blocks have not met yet
BEST, CALLS = 5, 7


def questions(run, of):
    recorded = times.recorded(run)
    if of == "phases":
        recorded = {name: one for name, one in recorded.items() if one[-1].L == 1 and not name.startswith("gru")}
    passes = ("forward", "backward")
    if of in ("tilings", "compile_tilings"):
        recorded = {name: one for name, one in recorded.items() if one[:2] != ("gru", "float32")}
        return [f"{name} {which} {n}" for n in range(2 if run.small else BEST) for name in recorded for which in passes]
    return [f"{name} {which}" for name in recorded for which in passes]


def answer(name, run, of):
    *words, which = name.split()[:4]
    cell, dtype, tf32, shape = times.recorded(run)[" ".join(words)]
    case = Case(cell, shape.T, shape.B, shape.I, (shape.H,) * shape.L, gradients="y", dtype=dtype, allow_tf32=tf32)
    instance = make_instance(case)
    if of == "phases":
        return _phases(instance, which == "backward", run)
    return _tiling(instance, which == "backward", run, int(name.split()[-1]), of == "compile_tilings")


def _made(instance, is_backward, run):
    """(layer, a call of the pass alone, which may be made again and again, its launches)."""
    layer = make_layer(instance.case, run.device, instance.parameters, "persistent")
    x, state, dy = peers.inputs(layer, instance)
    found = SCHEDULE.launches(layer.stack.problem(instance.case.T, instance.case.B, True), is_backward)
    if not is_backward:
        return layer, lambda: layer.forward(x, state), found
    tape = layer.forward(x, state)[2]
    return layer, lambda: layer.backward(tape, dy, need=("x",), retain=True), found


def _timed(layer, call):
    """Microseconds of a call by the GPU's clock, the median; None where there is none."""
    for _ in range(3):  # compiles, and records the call's graph
        call()
    layer.check()
    if not hasattr(layer.engine.array_module, "cuda") or not hasattr(
        layer.engine.array_module.cuda, "get_elapsed_time"
    ):
        return None
    cupy, found = layer.engine.array_module, []
    for _ in range(CALLS):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        call()
        end.record()
        end.synchronize()
        found.append(cupy.cuda.get_elapsed_time(begin, end) * 1e3)
    return float(np.median(found))


# ------------------------------------------------------------------------------------------------------------- phases
def _phases(instance, is_backward, run):
    layer, call, planned = _made(instance, is_backward, run)
    usual, engine = _timed(layer, call), layer.engine
    with stamped(engine, instance.case.T) as made:
        layer, call, _ = _made(instance, is_backward, run)
        with_stamps = _timed(layer, call)
        found = [stamps.read(engine) for stamps in made]
    found = phases(found[-1], planned[0].tile)
    estimate = planned[0].estimate
    return {"ok": found["step_us"] is not None or run.small, "call_us": usual, "call_with_stamps_us": with_stamps,
            "estimate_us": estimate.step, "estimate": vars(estimate), "plan": str(planned[0]), **found}  # fmt: skip


@contextmanager
def stamped(engine, steps):
    """Launches bound inside stamp clocks; a list gets a namespace with `read(engine)` for each."""
    made, slots = [], steps + 2

    class Stamped:
        def __init__(self, kernel, tile):
            self._kernel, self._tile = kernel, tile

        def bind(self, config, *arguments):
            shape = config.grid[0], self._tile.warps, slots, turns_of(self._tile), FIELDS
            array = engine.zeros((1 + int(np.prod(shape)),), "int64")
            made.append(SimpleNamespace(read=lambda engine: engine.to_host(array)[1:].reshape(shape)))
            return self._kernel.bind(config, *arguments[:-1], array)

    def stamping(make):
        return lambda cell, tile, *options: Stamped(make(cell, tile, *options), tile)

    replacements = {
        (products, "make_product"): _timed_product(products.make_product, slots),
        (exchange, "make_wait"): _timed_wait(exchange.make_wait, slots),
        (forward, "make_forward"): stamping(forward.make_forward),
        (backward, "make_backward"): stamping(backward.make_backward),
    }
    with altered(replacements, engine):
        yield made


def turns_of(tile):
    """Turns of a step whose stamps have places of their own: those of 128 sequences."""
    return max(1, 128 // tile.sequences)


def _make_put(tile, slots):
    """A device function put(stamps, operand, field, value): store something of the warp's step and turn."""
    warps, turns, sequences = tile.warps, turns_of(tile), tile.sequences

    def put(stamps, operand, field, value):
        if cuda.threadIdx.x % 32 == 0:
            place = (cuda.blockIdx.x * warps + cuda.threadIdx.x // 32) * slots + operand.slot
            stamps[np.uint64(1 + (place * turns + operand.b0 // sequences % turns) * FIELDS + field)] = value

    return jit(put, BACKEND)


def _timed_product(make_product, slots):
    """`products.make_product` whose step stores BEGIN, NS and END."""
    clock, nanoseconds = ptx.clock, ptx.nanoseconds

    def make(tile):
        made, put = make_product(tile), _make_put(tile, slots)
        multiply = made.step

        def step(fragments, loaded, shared, partial, operand, patience):
            put(patience.trouble, operand, NS, nanoseconds())
            put(patience.trouble, operand, BEGIN, clock())
            done = multiply(fragments, loaded, shared, partial, operand, patience)
            put(patience.trouble, operand, END, clock())
            return done

        return SimpleNamespace(**vars(made) | {"step": jit(step, BACKEND)})

    return make


def _timed_wait(make_wait, slots):
    """`exchange.make_wait` whose functions store the clocks of a group's wait."""
    clock = ptx.clock

    def make(tile, group):
        wait_for_group, put, field = make_wait(tile, group), _make_put(tile, slots), WAITS + min(group, GROUPS - 1)

        def wait(loaded, operand, patience):
            begin = clock()
            done = wait_for_group(loaded, operand, patience)
            put(patience.trouble, operand, field, clock() - begin)
            return done

        return jit(wait, BACKEND)

    return make


def phases(stamps, tile):
    """Medians over blocks, warps and steps in microseconds: step, wait, multiply, rest; clock_ghz. None where so few
    steps do not tell.

    Args:
        stamps: (blocks, warps, slots, turns, FIELDS) int64.
    """
    parts, rates = {"step": [], "wait": [], "multiply": [], "rest": []}, []
    for warp in stamps.reshape(-1, *stamps.shape[2:]):
        steps = warp[warp[:, :, BEGIN].any(axis=1)]
        if len(steps) <= FIRST_STEPS + 2:
            continue
        used = steps[:, :, BEGIN] > 0
        first = np.where(used, steps[:, :, BEGIN], np.iinfo(np.int64).max).min(axis=1)
        order = np.argsort(first)[FIRST_STEPS:]
        waits = np.where(used, steps[:, :, WAITS:].sum(axis=2), 0).sum(axis=1)[order]
        works = np.where(used, steps[:, :, END] - steps[:, :, BEGIN], 0).sum(axis=1)[order]
        between = np.diff(first[order])
        for name, values in (("step", between), ("wait", waits[:-1]), ("multiply", (works - waits)[:-1]),
                             ("rest", between - works[:-1])):  # fmt: skip
            parts[name].append(values)
        ns = steps[:, :, NS].max(axis=1)[order]
        if ns[-1] > ns[0]:
            rates.append((first[order][-1] - first[order][0]) / (ns[-1] - ns[0]))
    ghz = float(np.median(rates)) if rates else None
    return {"clock_ghz": ghz} | {
        f"{name}_us": float(np.median(np.concatenate(values))) / ghz / 1e3 if ghz and values else None
        for name, values in parts.items()
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ tilings
def _tiling(instance, is_backward, run, number, compiles):
    """The time of a pass by the planner's `number`-th best tiling of each launch."""
    with chosen_tiling(number, is_backward):
        layer, call, planned = _made(instance, is_backward, run)
        if compiles:
            call()
            layer.check()
            return {"ok": True, "plan": str(planned[0])}
        us = _timed(layer, call)
        layer.engine.give_back_memory() if hasattr(layer.engine, "give_back_memory") else None
    return {"ok": us is not None or run.small, "us": us, "plan": "; ".join(map(str, planned)),
            "estimate_us": sum(one.microseconds for one in planned), "tile": str(planned[0].tile)}  # fmt: skip


@contextmanager
def chosen_tiling(number, is_backward):
    """Plans of one direction take the `number`-th best tiling by the model that compares them."""
    fastest = tilings._fastest

    def nth(part, slicings):
        if part.backward != is_backward:
            return fastest(part, slicings)
        found = {}
        for mixed in (False, True):
            for one in tilings._fitting(part, slicings, mixed):
                found.setdefault((one[1], one[3]), one)
        ordered = sorted(found.values(), key=lambda one: one[0])
        return ordered[min(number, len(ordered) - 1)] if ordered else None

    tilings._fastest = nth
    planner.forget()
    try:
        yield
    finally:
        tilings._fastest = fastest
        planner.forget()


# ------------------------------------------------------------------------------------------------------------ summary
def told(answers, of):
    lines = []
    for one in answers:
        if of == "phases" and "step_us" in one:
            parts = ", ".join(f"{name} {number(one[f'{name}_us'])}" for name in ("step", "wait", "multiply", "rest"))
            lines.append(f"{one['question']}: {parts} us (estimated {one['estimate_us']:.2f}); call "
                         f"{number(one['call_us'])}, with stamps {number(one['call_with_stamps_us'])} us; "
                         f"{number(one['clock_ghz'])} GHz")  # fmt: skip
        elif of == "tilings" and one.get("us"):
            lines.append(f"{one['question']}: {one['us']:.0f} us (estimated {one['estimate_us']:.0f}) {one['plan']}")
    return sorted(lines) if of == "tilings" else lines


def number(value):
    return "?" if value is None else f"{value:.2f}"
