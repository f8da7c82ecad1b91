"""The smallest case of every code path against float64, and the same bits from each of many replays of its graph.

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
BUSY_BYTES = 64 << 20  # copied by the other stream for each replay: more than an L2 cache holds
SIZES = (16, 40, 64, 130, 256, 512, 768, 1024)


def _lstm(B, H, dtype, **options):
    return Case(options.pop("cell", "lstm"), options.pop("T", 5), B, options.pop("I", 24), options.pop("hidden", (H,)),
                gradients="y", dtype=dtype, **options)  # fmt: skip


def _candidates(dtype, **options):
    return [_lstm(B, H, dtype, I=H, **options) for H in SIZES for B in (3, 16, 64)]


#: Name -> candidates, and what a tile of a launch of the first one taken must be.
FAMILIES = {
    **{f"{dtype} {place}": (_candidates(dtype), lambda tile, place=place: tile.resident == place)
       for dtype in ("float16", "float32") for place in ("registers", "shared", "registers+shared")},
    "bfloat16 mma": (_candidates("bfloat16"), None),
    "TF32": (_candidates("float32", allow_tf32=True), lambda tile: tile.math == "tf32"),
    "3xTF32": (_candidates("float32", allow_tf32="3x"), lambda tile: tile.math == "tf32x3"),
    **{f"float16 {count} sets of sequences": (_candidates("float16"), lambda tile, count=count: tile.octets == count)
       for count in (1, 2, 3, 4)},
    "float16 16 warps": (_candidates("float16"), lambda tile: tile.warps == 16),
    "float16 input within the kernel": ([_lstm(1, 64, "float16", T=2, I=64)], lambda tile: tile.given),
    "float16 odd sizes": ([_lstm(3, 67, "float16", I=33)], None),
    "float32 odd sizes": ([_lstm(3, 67, "float32", I=33)], None),
    "float16 masked": ([_lstm(5, 64, "float16", lengths="padded", T=7)], None),
    "float32 masked": ([_lstm(5, 64, "float32", lengths="padded", T=7)], None),
    "float16 dropout": ([_lstm(5, 0, "float16", dropout=0.3, hidden=(64, 64, 64))], None),
    "float32 noise and sums": ([_lstm(5, 64, "float32", cell="layer_norm_rnn")], None),
    "float16 noise and sums": ([_lstm(5, 64, "float16", cell="layer_norm_rnn")], None),
    "float16 further products": ([_lstm(16, 256, "float16", cell="gru_reset_before")], None),
    "float32 further products": ([_lstm(16, 256, "float32", cell="gru_reset_before")], None),
    "float16 projection": ([_lstm(16, 256, "float16", proj_size=128)], None),
    "float32 projection": ([_lstm(16, 256, "float32", proj_size=128)], None),
    "float16 layers and directions": ([_lstm(16, 0, "float16", hidden=(128, 128), bidirectional=True)], None),
    "float32 four layers": ([_lstm(16, 0, "float32", hidden=(128,) * 4)], None),
    "float16 four layers": ([_lstm(64, 0, "float16", hidden=(512,) * 4)], None),
    "float32 resets": ([_lstm(5, 64, "float32", resets=True, T=7)], None),
}  # fmt: skip
FEW = ("float16 odd sizes", "float32 masked", "float16 projection")  # of a small run


def questions(run, of):
    return list(FEW if run.small else FAMILIES)


def answer(name, run, of):
    candidates, wanted = FAMILIES[name]
    if run.small:
        candidates = [_lstm(2, 12, one.dtype, I=4, T=3, proj_size=8 if one.proj_size else 0, lengths=one.lengths)
                      for one in candidates[:1]]  # fmt: skip
    case, tile = _first(candidates, wanted, run)
    found = judged(case, check_case(case, run.device, ["persistent"], with_torch=False)) | {"tile": str(tile)}
    if case.draws:  # each call has other random numbers
        return found
    differing = _replayed(case, run)
    return found | {"ok": found["ok"] and differing == 0, "replays that differed": differing}


def judged(case, rows):
    """An answer of `numbarnn check`'s rows of a case. Where float32 may be rounded to TF32, float16's floor counts."""
    if case.allow_tf32 is True:
        limit = accuracy.floor(replace(case, dtype="float16"))
        rows = [replace(row, limit=limit, ok=row.error is not None and row.error <= limit) for row in rows]
    wrong = [row for row in rows if not row.ok]
    message = "\n".join(f"{row.schedule} {row.mode} {row.quantity}: {row.error} of {row.limit} {row.message or ''}"
                        for row in wrong[:8])  # fmt: skip
    shares = [row.share for row in rows if row.compared]
    return {"ok": not wrong and bool(rows), "largest_share": max(shares, default=None), "compared": len(shares),
            "message": message}  # fmt: skip


def _first(candidates, wanted, run):
    """The first case of which a launch is tiled as wanted, and that tile."""
    for case in candidates:
        instance = make_instance(case)
        layer = make_layer(case, run.device, instance.parameters, "persistent")
        try:
            launches = [launch for backward in (False, True)
                        for launch in SCHEDULE.launches(layer.stack.problem(case.T, case.B, True), backward)]  # fmt: skip
        except RuntimeError:
            continue
        for launch in launches:
            if wanted is None or run.small or wanted(launch.tile):
                return case, launch.tile
    raise console.CannotRun("the planner tiles none of the candidates so on this device")


def _replayed(case, run):
    """How many of the replays of a training call have other bits than the first one, by results compared on the
    device."""
    instance = make_instance(case)
    layer = make_layer(case, run.device, instance.parameters, "persistent")
    x, state, dy = peers.inputs(layer, instance)
    options = peers.call_options(instance)

    def call():
        y, _, tape = layer.forward(x, state, **options)
        return [y, layer.backward(tape, dy).weights]

    first, replays = [layer.engine.to_host(one) for one in call()], 4 if run.small else REPLAYS
    if run.small or run.device != "cuda":
        return sum(any(a.tobytes() != layer.engine.to_host(b).tobytes() for a, b in zip(first, call(), strict=True))
                   for _ in range(replays))  # fmt: skip
    cupy = layer.engine.array_module
    wanted = [cupy.asarray(one).view(cupy.uint8) for one in first]
    busy, (source, target) = cupy.cuda.Stream(non_blocking=True), (cupy.zeros(BUSY_BYTES, cupy.uint8) for _ in range(2))
    differing = cupy.zeros(1, cupy.int64)
    for number in range(replays):
        with busy:
            target[...] = source
        found = call()
        differing += cupy.stack([(a != b.view(cupy.uint8)).any() for a, b in zip(wanted, found, strict=True)]).any()
        if number % 50 == 0:
            cupy.cuda.Device().synchronize()
    layer.check()
    return int(differing[0])


def told(answers, of):
    asked = [one for one in answers if one.get("largest_share") is not None]
    if not asked:
        return []
    worst = max(asked, key=lambda one: one["largest_share"])
    compared = sum(one["compared"] for one in asked)
    lines = [f"{compared} comparisons; nearest to its limit {worst['largest_share']:.2f} ({worst['question']})"]
    return lines + [f"REPLAYS DIFFER: {one['question']}: {one['replays that differed']}" for one in asked
                    if one.get("replays that differed")]  # fmt: skip
