"""Check the smallest case of every code path against float64, and that replays of its graph give the same bits.

While it replays, another stream keeps the L2 cache busy: a kernel that relies on when numbers arrive shows itself.
"""

from dataclasses import replace

from numbarnn.bench import console
from numbarnn.bench.cases.cases import Case, make_instance, make_layer
from numbarnn.bench.check import accuracy
from numbarnn.bench.check.command import check_case
from numbarnn.bench.peers import peers
from numbarnn.schedules.persistent.schedule import SCHEDULE

REPLAYS = 500
BUSY_BYTES = 64 << 20  # the other stream copies as much for each replay, more than an L2 cache holds
SIZES = (16, 40, 64, 130, 256, 512, 768, 1024)
DTYPES = ("float16", "float32")
FEW = ("float16 odd sizes", "float32 masked", "float16 projection")  # of a small run


def case(dtype, B=5, hidden=(64,), I=24, T=5, cell="lstm", **options):
    return Case(cell, T, B, I, hidden, gradients="y", dtype=dtype, **options)


def sized(dtype, **options):
    return [case(dtype, B, (H,), H, **options) for H in SIZES for B in (3, 16, 64)]


#: Name -> candidates, and which tile one of their launches must have.
TILED = {
    **{f"{dtype} {place}": (sized(dtype), lambda tile, place=place: tile.resident == place)
       for dtype in DTYPES for place in ("registers", "shared", "registers+shared")},
    **{f"float16 {count} sets of sequences": (sized("float16"), lambda tile, count=count: tile.octets == count)
       for count in (1, 2, 3, 4)},
    "float16 16 warps": (sized("float16"), lambda tile: tile.warps == 16),
    "float16 input within the kernel": ([case("float16", 1, I=64, T=2)], lambda tile: tile.given),
    "TF32": (sized("float32", allow_tf32=True), lambda tile: tile.math == "tf32"),
    "3xTF32": (sized("float32", allow_tf32="3x"), lambda tile: tile.math == "tf32x3"),
}  # fmt: skip
OTHERS = {
    "bfloat16": case("bfloat16"),
    "float16 four layers": case("float16", 64, (512,) * 4),
    "float32 four layers": case("float32", 16, (128,) * 4),
    "float16 layers and directions": case("float16", 16, (128, 128), bidirectional=True),
    "float16 dropout": case("float16", hidden=(64,) * 3, dropout=0.3),
    "float32 resets": case("float32", T=7, resets=True),
}
for dtype in DTYPES:
    OTHERS |= {
        f"{dtype} odd sizes": case(dtype, 3, (67,), 33),
        f"{dtype} masked": case(dtype, T=7, lengths="padded"),
        f"{dtype} noise and sums": case(dtype, cell="layer_norm_rnn"),
        f"{dtype} further products": case(dtype, 16, (256,), cell="gru_reset_before"),
        f"{dtype} projection": case(dtype, 16, (256,), proj_size=128),
    }


def questions(run, part):
    return list(FEW if run.small else TILED | OTHERS)


def answer(name, run, part):
    candidates, wanted = TILED.get(name) or ([OTHERS[name]], lambda tile: True)
    if run.small:
        tiny = {"T": 3, "B": 2, "I": 4, "hidden": (12,)}
        candidates = [replace(one, **tiny, proj_size=8 if one.proj_size else 0) for one in candidates[:1]]
    chosen, tile = first_tiled(candidates, wanted, run)
    found = judged(chosen, check_case(chosen, run.device, ["persistent"], with_torch=False)) | {"tile": str(tile)}
    if chosen.draws:  # each call draws other random numbers
        return found
    differing = replayed(chosen, run)
    more = {"ok": False, "told": [f"{name}: {differing} REPLAYS DIFFER"]} if differing else {}
    return found | more


def judged(case, rows):
    """An answer from `numbarnn check`'s rows of a case. Where float32 may be rounded to TF32, float16's floor counts."""
    if case.allow_tf32 is True:
        limit = accuracy.floor(replace(case, dtype="float16"))
        rows = [replace(row, limit=limit, ok=row.error is not None and row.error <= limit) for row in rows]
    wrong = [f"{row.schedule} {row.mode} {row.quantity}: {row.error} of {row.limit} {row.message or ''}"
             for row in rows if not row.ok]  # fmt: skip
    shares = [row.share for row in rows if row.compared]
    return {"ok": bool(rows) and not wrong, "share": max(shares, default=None), "message": "\n".join(wrong[:8])}


def first_tiled(candidates, wanted, run):
    """The first case with a launch that is tiled as wanted, and the tile."""
    for one in candidates:
        layer = make_layer(one, run.device, make_instance(one).parameters, "persistent")
        problem = layer.stack.problem(one.T, one.B, True)
        try:
            launches = [launch for backward in (False, True) for launch in SCHEDULE.launches(problem, backward)]
        except RuntimeError:
            continue
        for launch in launches:
            if run.small or wanted(launch.tile):
                return one, launch.tile
    raise console.CannotRun("the planner tiles none of the candidates so on this device")


def replayed(case, run):
    """How many replays of a training call have other bits than the first call."""
    instance = make_instance(case)
    layer = make_layer(case, run.device, instance.parameters, "persistent")
    x, state, dy = peers.inputs(layer, instance)
    options = peers.call_options(instance)

    def call():
        y, _, tape = layer.forward(x, state, **options)
        return [y, layer.backward(tape, dy).weights]

    first = [layer.engine.to_host(one) for one in call()]
    if run.small:
        return sum(any(a.tobytes() != layer.engine.to_host(b).tobytes() for a, b in zip(first, call(), strict=True))
                   for _ in range(4))  # fmt: skip
    cupy = layer.engine.array_module
    wanted, differing = [cupy.asarray(one).view(cupy.uint8) for one in first], cupy.zeros(1, cupy.int64)
    busy, (source, target) = cupy.cuda.Stream(non_blocking=True), cupy.zeros((2, BUSY_BYTES), cupy.uint8)
    for number in range(REPLAYS):
        with busy:
            target[...] = source
        same = [(a == b.view(cupy.uint8)).all() for a, b in zip(wanted, call(), strict=True)]
        differing += ~cupy.stack(same).all()  # compared on the device, so that the host does not wait
        if number % 50 == 0:
            cupy.cuda.Device().synchronize()
    layer.check()
    return int(differing[0])
