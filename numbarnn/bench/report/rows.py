"""The rows of records of `numbarnn bench`, by what they time."""

from typing import NamedTuple

import numpy as np

from numbarnn.bench.cases.passes import SHORT, STEP, TRAINING, WHOLE
from numbarnn.bench.cases.shapes import with_tf32
from numbarnn.bench.speed import record, trust
from numbarnn.bench.speed.lineup import is_cudnn
from numbarnn.bench.speed.peak import smallest_traffic, work_of
from numbarnn.bench.speed.speed_table import judged

SLOWER = 1.1  # times a former ratio that count as a loss
NAMES = {"torch": "PyTorch", "onnxruntime": "onnxruntime", "torch cell": "PyTorch's cell"}


class Key(NamedTuple):
    """What a row times. `shape` is a tuple of T, B, I, H, L; `form` of words of `shapes.FORMS`."""

    cell: str
    shape: tuple
    dtype: str
    tf32: bool | str
    what: str
    schedule: str
    skip: bool = False
    form: tuple = ()

    def __str__(self):
        sizes = ",".join(map(str, [*self.shape, *self.form])) + (" skip" if self.skip else "")
        words = [self.cell, sizes, with_tf32(self.dtype, self.tf32), SHORT[self.what]]
        return " ".join([*words, *([self.schedule] if self.schedule != "auto" else [])])


def key_of(row):
    return Key(
        row["cell"], tuple(row["shape"].values()), row["dtype"], row["tf32"], row["what"], row["schedule"],
        row["input_mode"] == "skip", tuple(row["form"]),
    )  # fmt: skip


class Entry(NamedTuple):
    """A row of a record, as the page shows it.

    Attributes:
        seconds: numbarnn's median: by the GPU's clock where there is one, else by the host's.
        ratios: peer -> median over rounds of numbarnn's time / its time; cuDNN is its fastest algorithm.
        flops: floating-point operations per second of its products.
        intensity: those operations per byte that has to be moved at least; None of passes that are a part of
            training.
        doubts, refusal: what speaks against the times; why there are none.
        peak_bytes, compile_s: numbarnn and peer -> memory of a call, seconds of a first one.
    """

    seconds: float | None
    ratios: dict
    flops: float | None
    intensity: float | None
    doubts: list
    refusal: str | None
    peak_bytes: dict
    compile_s: dict


def entry_of(row, machine_doubt):
    """The `Entry` of a row, as `record.read` gives it."""
    seconds = row["device_seconds"] or row["seconds"]
    if not seconds.get("numbarnn"):
        return Entry(None, {}, None, None, [], row["refusal"] or "no times", {}, {})
    ratios, found = record.ratios(seconds), {}
    for name, ratio in ratios.items():
        found[shown_as(name)] = max(ratio, found.get(shown_as(name), 0.0))
    own, work, intensity = float(np.median(seconds["numbarnn"])), work_of(row), None
    if row["what"] in WHOLE and row["input_mode"] == "linear":
        problem = row["cell"], row["shape"], row["dtype"]
        intensity = work / smallest_traffic(*problem, row["what"] == TRAINING, row["form"])
    used = [
        {shown_as(name): one for name, one in row[kind].items() if not is_cudnn(name) or name == row["best_cudnn"]}
        for kind in ("peak_bytes", "compile_s")
    ]
    return Entry(own, found, work / own, intensity, trust.doubts(row, judged(row), machine_doubt), None, *used)


def shown_as(name):
    """A contender's name on the page."""
    return "cuDNN" if is_cudnn(name) else NAMES.get(name, name)


class Step(NamedTuple):
    """A row of single steps (`numbarnn bench --stream`), as the page shows it.

    Attributes:
        median, p99: contender -> seconds of its calls. ratios: peer -> median over rounds of the stepper's time / its
            time. doubts, refusal: as of an Entry.
    """

    median: dict
    p99: dict
    ratios: dict
    doubts: list
    refusal: str | None


def step_of(row, machine_doubt):
    """The `Step` of a row."""
    if not row["ok"]:
        return Step({}, {}, {}, [], row["refusal"] or "no times")
    found = {NAMES.get(name, name): ratio for name, ratio in row["stepper_ratio"].items() if name != "numbarnn"}
    return Step(row["median_s"], row["p99_s"], found, trust.doubts(row, judged(row), machine_doubt), None)


class Result(NamedTuple):
    """A record, as `record.read` gives it; the name of its file; and its rows by `Key`: `entries` are those of passes
    over sequences, `steps` those of single steps."""

    name: str
    record: dict
    entries: dict
    steps: dict


def result_of(name, found):
    """The `Result` of a record that `record.read` gave."""
    rows, doubt = found["results"], found["doubt"]
    entries = {key_of(row): entry_of(row, doubt) for row in rows if row["what"] != STEP}
    return Result(name, found, entries, {key_of(row): step_of(row, doubt) for row in rows if row["what"] == STEP})


# -------------------------------------------------------------------------------------------- against a former record
class Change(NamedTuple):
    """A row's ratio before and now to the same peer, which ran beside it both times; trusted: nothing speaks against
    it."""

    key: Key
    peer: str
    before: float
    now: float
    trusted: bool

    @property
    def factor(self):
        return self.now / self.before

    @property
    def lost(self):
        return self.trusted and self.factor > SLOWER


def changes(former, now):
    """`Change`s of the rows that two `Result`s share, a row per peer that both have."""
    found = []
    earlier = former.entries | former.steps
    for key, entry in (now.entries | now.steps).items():
        old = earlier.get(key)
        for peer in entry.ratios if old else ():
            if peer in old.ratios:
                trusted = not entry.doubts and not old.doubts
                found.append(Change(key, peer, old.ratios[peer], entry.ratios[peer], trusted))
    return found
