"""Check small problems of every code path against float64, and that their replays give the same bits."""

from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial

import numpy as np
import times

from numbarnn.bench import accuracy, console
from numbarnn.bench.cases import Case, make_instance, make_layer
from numbarnn.bench.check import check_case, compared
from numbarnn.bench.peers import peers
from numbarnn.bench.shapes import WHOLE
from numbarnn.schedules.persistent.schedule import SCHEDULE
from numbarnn.schedules.persistent.tilings import DoesNotFit

BUSY_BYTES = 64 << 20  # another stream copies as much for each, more than an L2 cache holds, so that numbers come late


def case(dtype, B=5, hidden=(64,), input_size=24, T=5, cell="lstm", **options):
    return Case(cell, T, B, input_size, hidden, gradients="y", dtype=dtype, **options)


def sized(dtype, **options):
    return [case(dtype, B, (H,), H, **options) for H in (16, 40, 64, 130, 256, 512, 768, 1024) for B in (3, 16, 64)]


TILED = {  # name -> candidates, and which tile one of their launches must have
    **{f"{dtype} {place}": (sized(dtype), lambda tile, place=place: tile.resident == place)
       for dtype in ("float16", "float32") for place in ("registers", "shared", "registers+shared")},
    **{f"float16 {count} sets of sequences": (sized("float16"), lambda tile, count=count: tile.n8 == count)
       for count in (1, 2, 3, 4)},
    "float16 16 warps": (sized("float16"), lambda tile: tile.warps == 16),
    "float16 input within the kernel": ([case("float16", 1, input_size=64, T=2)], lambda tile: tile.given),
    "float32 TF32": (sized("float32", allow_tf32=True), lambda tile: tile.math == "tf32"),
    "float32 3xTF32": (sized("float32", allow_tf32="3x"), lambda tile: tile.math == "tf32x3"),
}  # fmt: skip
OTHERS = {
    "bfloat16": case("bfloat16"),
    "float16 four layers": case("float16", 64, (512,) * 4),
    "float32 four layers": case("float32", 16, (128,) * 4),
    "float16 layers and directions": case("float16", 16, (128, 128), bidirectional=True),
    "float16 dropout": case("float16", hidden=(64,) * 3, dropout=0.3),
    "float32 resets": case("float32", T=7, resets=True),
}
for dtype in ("float16", "float32"):
    OTHERS[f"{dtype} odd sizes"] = case(dtype, 3, (67,), 33)
    OTHERS[f"{dtype} masked"] = case(dtype, T=7, lengths="padded")
    OTHERS[f"{dtype} noise and sums"] = case(dtype, cell="layer_norm_rnn")
    OTHERS[f"{dtype} further products"] = case(dtype, 16, (256,), cell="gru_reset_before")
    OTHERS[f"{dtype} projection"] = case(dtype, 16, (256,), proj_size=128)


def questions(run, part):
    if part == "compile":
        return {name: partial(first_calls, run, one) for name, one in times.problems(run).items()}
    if part == "smoke":
        tiny = times.problems(run._replace(small=True), ("lstm",), times.FULL + times.ROUNDED)
        return {name: partial(checked, run, one, ["stepwise", "persistent"]) for name, one in tiny.items()}
    every = TILED | {name: ([one], lambda tile: True) for name, one in OTHERS.items()}
    names = ("float16 odd sizes", "float32 masked", "float16 dropout") if run.small else every
    return {name: partial(family, run, *every[name]) for name in names}


def first_calls(run, case, schedules=("persistent", "auto")):
    """Call both passes, which compiles them."""
    for schedule in schedules:
        for what in WHOLE:
            with suppress(DoesNotFit):
                contender = peers.numbarnn_contender(make_instance(case), what, run.device, schedule)
                contender.call()
                contender.synchronize()
    return {"ok": True}


def family(run, candidates, wanted):
    """Check the first case of which a tile is as wanted; in a small run a tiny one."""
    if run.small:
        candidates = [replace(candidates[0], T=3, B=2, input_size=4, hidden=(12, 12))]
    case = next((one for one in candidates if any(map(wanted, tiles(run, one)))), None)
    if case is None:
        raise console.CannotRun("the planner tiles none of the candidates so on this device")
    found = checked(run, case, ["persistent"])
    if not case.draws and (differing := differing_replays(run, case)):  # drawing, each call has other numbers
        found |= {"ok": False, "told": [f"{differing} REPLAYS DIFFER"]}
    return found


def checked(run, case, schedules):
    """Compare by `numbarnn check`. Where float32 may be rounded to TF32, float16's floor counts."""
    rows = check_case(case, run.device, schedules, with_torch=False)
    if case.allow_tf32 is True:
        limit = accuracy.floor(replace(case, dtype="float16"))
        rows = [row | {"limit": limit, "ok": row["error"] is not None and row["error"] <= limit} for row in rows]
    told = "{schedule} {mode} {quantity}: {error} of {limit} {message}"
    wrong = [told.format(**row) for row in rows if not row["ok"]]
    shares = [accuracy.share_of_limit(row["error"], row["limit"]) for row in rows if compared(row)]
    return {"ok": bool(rows) and not wrong, "share": max(shares, default=None), "message": "\n".join(wrong[:8])}


def tiles(run, case):
    """The tiles of a case's launches; none where it does not fit."""
    layer = make_layer(case, run.device, make_instance(case).parameters, "persistent")
    problem = layer.stack.problem(case.T, case.B, True)
    with suppress(RuntimeError):
        return [launch.tile for backward in (False, True) for launch in SCHEDULE.launches(problem, backward)]
    return []


def differing_replays(run, case):
    """How many replays of a training call have other bits than the first call, compared on the device."""
    instance = make_instance(case)
    layer = make_layer(case, run.device, instance.parameters, "persistent")
    x, state, dy = peers.inputs(layer, instance)
    arrays, options = layer.engine.array_module, peers.call_options(instance)

    def call():
        y, _, tape = layer.forward(x, state, **options)
        return [one.view(arrays.uint8) for one in (y, layer.backward(tape, dy).weights)]

    first, differing = [one.copy() for one in call()], arrays.zeros(1, np.int64)
    source, target = arrays.zeros((2, 1 if run.small else BUSY_BYTES), np.uint8)
    busy = nullcontext() if run.small else arrays.cuda.Stream(non_blocking=True)
    for _ in range(4 if run.small else 500):
        with busy:
            target[...] = source
        differing += arrays.stack([(a != b).any() for a, b in zip(first, call(), strict=True)]).any()
    return int(layer.engine.to_host(differing)[0])
