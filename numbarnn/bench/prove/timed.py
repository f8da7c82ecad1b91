"""Times, by what `numbarnn bench` has: paired with each of cuDNN's algorithms called directly, and with PyTorch.

An answer has the rows of one problem; they make the part's file a record of `numbarnn bench`, which its tables take.
Memory and energy are left to that command: a second of calls for each contender would take most of the minutes.
"""

from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from itertools import product, zip_longest
from math import exp, log
from typing import Any, NamedTuple

from numbarnn.bench import console, info
from numbarnn.bench.cases.passes import SHORT, USUAL
from numbarnn.bench.cases.shapes import DEEPBENCH, SEMANTICS, SETS, shapes, with_tf32
from numbarnn.bench.speed import command as speed
from numbarnn.bench.speed import record, stream, timing, trust
from numbarnn.bench.speed.lineup import disagreement
from numbarnn.schedules import SCHEDULES

ROUNDS = 3  # as many as a time that can be trusted needs
CELLS, DTYPES = ("lstm", "gru"), ("float16", "float32")
ONE_SEQUENCE = shapes("100,1,256,256,1 25,1,512,512,1 50,1,1024,1024,1")
TARGET = 0.6  # of the geometric mean of ratios to cuDNN's best algorithm


class Question(NamedTuple):
    """What is timed: arguments of `speed.time_case`, with what passes and what input (`passes.Semantics`)."""

    cell: str
    shape: Any
    dtype: str
    tf32: bool | str
    semantics: Any
    schedules: tuple

    def __str__(self):
        more = " skip" * (self.semantics.input_mode == "skip")
        return f"{self.cell} {self.shape} {with_tf32(self.dtype, self.tf32).lower()}{more}"


def timed(of):
    """The `Question`s of a part, the most valuable first."""
    every, auto = tuple(SCHEDULES), ("auto",)
    one_layer = tuple(name for name in every if name != "wavefront")  # which is stepwise then
    if of in ("recorded", "schedules"):
        for dtype, cell, shape in product(DTYPES, CELLS, SETS["schedules"]):
            others = tuple(name for name in (every if shape.L > 1 else one_layer) if name != "persistent")
            own = ("persistent", "auto") if of == "recorded" else others  # "auto" for the tables, which have no others
            yield Question(cell, shape, dtype, False, USUAL, own)
    elif of == "precision":
        rounded, split = (
            [Question("lstm", shape, "float32", tf32, USUAL, own) for shape in SETS["schedules"]]
            for tf32, own in ((True, auto), ("3x", ("persistent",)))
        )
        halves = [Question("lstm", shape, "bfloat16", False, USUAL, auto) for shape in SETS["schedules"]]
        some = product(CELLS, ONE_SEQUENCE, DTYPES)
        one = [Question(cell, shape, dtype, False, USUAL, one_layer) for cell, shape, dtype in some]
        in_turn = zip_longest(one, rounded, split, halves if find_spec("ml_dtypes") else ())
        yield from (question for some in in_turn for question in some if question is not None)
    elif of == "stream":
        for cell, shape, dtype in product(CELLS, SETS["stream"], ("float32", "float16")):
            yield Question(cell, shape, dtype, False, USUAL, auto)
    else:
        for name, dtype in product(("deepbench-server", "deepbench-train", "deepbench-device"), DTYPES):
            for cell, own in DEEPBENCH[name].items():
                yield from (Question(cell, shape, dtype, False, SEMANTICS[name], auto) for shape in own)


def questions(asked, of):
    """Name -> `Question`."""
    return {str(one): one for one in timed(of)}


def answer(name, asked, of):
    """The rows of a question."""
    if asked.device != "cuda":
        raise console.CannotRun("times are those of a GPU: the simulator's say nothing")
    if find_spec("torch") is None:
        raise console.MissingPackage("PyTorch", "what is timed is compared with it, and", "torch")
    speed.choose_device("cuda")  # says what is missing
    where, load = timing.Machine("cuda", info.core_count(), ROUNDS, usage=False), trust.Load()
    cell, shape, dtype, tf32, semantics, schedules = questions(asked, of)[name]
    if asked.small:
        shape = shape._replace(T=min(shape.T, 3), B=min(shape.B, 2), I=8, H=8, L=min(shape.L, 2))
    if of == "stream":
        time_one, method = stream.time_stream, stream.TORCH_METHOD
    else:
        time_one, method = partial(speed.time_case, semantics=semantics), record.TORCH_METHOD
    rows = list(map(asdict, time_one(cell, shape, dtype, tf32, schedules, where)))
    made = record.as_record(rows, where, load, method)
    fine = [(row["ok"] or _refused(row)) and not disagreement(row["agreement"]) for row in rows]
    return {"ok": all(fine), "method": made["method"], "rows": made["results"], "num_rows": len(rows)}


def _refused(row):
    """Whether a schedule told that it does not fit: no time, and nothing wrong."""
    return bool(row["refusal"]) and row["refusal"].startswith("DoesNotFit")


def told(answers):
    """The best of our schedules against the best of cuDNN's algorithms, for each problem and pass; the mean of all."""
    rows = [row for answer in answers for row in answer.get("rows", ())]
    if rows and "p99_s" in rows[0]:
        return [
            f"{_about(row)}: " + ", ".join(f"{name} {time * 1e6:.1f}" for name, time in row["median_s"].items()) + " µs"
            if row["ok"] else f"NO TIME {_about(row)}: {(row['refusal'] or '')[:300]}"
            for row in rows
        ]  # fmt: skip
    lines, ratios, best = [], [], {}
    for row in rows:
        if not row["ok"]:
            reason = row["refusal"] or "no reason"
            lines += [] if _refused(row) else [f"NO TIME {_about(row)}, {row['schedule']}: {reason[:300]}"]
            continue
        ours = (row["device_median_s"] or row["median_s"])["numbarnn"]
        if _about(row) not in best or ours < best[_about(row)][0]:
            best[_about(row)] = ours, row
    for about, (ours, row) in best.items():
        times, rival = row["device_median_s"] or row["median_s"], record.rival_of(row)
        against = "nobody to compare with"
        if rival is not None:
            ratio = (row["device_ratio"] or row["ratio"])[rival]
            ratios.append(ratio)
            against = f"{rival} {times[rival] * 1e6:.1f} µs, ratio {ratio:.2f}"
            doubt = trust.doubts(row, ["numbarnn", rival])
            against += f" (doubtful: {'; '.join(doubt)})" if doubt else ""
        lines.append(f"{about}: {row['schedule']} {ours * 1e6:.1f} µs, {against}")
    if ratios:
        mean = exp(sum(map(log, ratios)) / len(ratios))
        ahead = sum(ratio <= 1 for ratio in ratios)
        lines.insert(0, f"ahead in {ahead} of {len(ratios)}; geometric mean of ratios {mean:.2f} (target {TARGET})")
    return lines


def _about(row):
    sizes = ",".join(map(str, row["shape"].values()))
    more = " skip" * (row["input_mode"] == "skip")
    return f"{row['cell']} {sizes} {with_tf32(row['dtype'], row['tf32']).lower()}{more} {SHORT[row['what']]}"
