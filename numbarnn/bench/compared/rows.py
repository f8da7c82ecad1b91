"""Rows of several records of `numbarnn bench`, put together by what they time."""

from typing import NamedTuple

import numpy as np

from numbarnn.bench.speed import record, trust
from numbarnn.bench.speed.lineup import is_cudnn
from numbarnn.bench.speed.peak import operations, smallest_traffic
from numbarnn.bench.speed.speed_table import SHORT, TRAINING, judged

SLOWER = 1.1  # times a former ratio that count as a loss
NAMES = {"torch": "PyTorch", "onnxruntime": "onnxruntime"}


class Key(NamedTuple):
    """What a row times. `shape` is a tuple of T, B, I, H, L."""

    cell: str
    shape: tuple
    dtype: str
    tf32: bool
    what: str
    schedule: str

    def __str__(self):
        sizes = ",".join(map(str, self.shape))
        words = [self.cell, sizes, self.dtype + (" TF32" if self.tf32 else ""), SHORT[self.what]]
        return " ".join([*words, *([self.schedule] if self.schedule != "auto" else [])])


def key_of(row):
    return Key(
        row["cell"], tuple(row["shape"].values()), row["dtype"], row["tf32"], row["what"], row["schedule"]
    )  # fmt: skip


class Entry(NamedTuple):
    """A row of a record, as the page shows it.

    Attributes:
        seconds: numbarnn's median: by the GPU's clock where there is one, else by the host's.
        ratios: peer -> median over rounds of numbarnn's time / its time; on a GPU the fastest of cuDNN's algorithms is
            "cuDNN".
        flops: floating-point operations per second of its products.
        intensity: those operations per byte that has to be moved at least.
        doubts: what speaks against the times, as words; refusal: why there are none.
    """

    seconds: float | None
    ratios: dict
    flops: float | None
    intensity: float | None
    doubts: list
    refusal: str | None

    @property
    def best(self):
        """The ratio to the fastest peer; None without peers."""
        return max(self.ratios.values(), default=None)


def entry_of(row, machine_doubt):
    """The `Entry` of a row, as `record.read` gives it."""
    seconds = row["device_seconds"] or row["seconds"]
    if not seconds.get("numbarnn"):
        return Entry(None, {}, None, None, [], row["refusal"] or "no times")
    ratios, found = record.ratios(seconds), {}
    for name, ratio in ratios.items():
        shown = "cuDNN" if is_cudnn(name) else NAMES.get(name, name)
        found[shown] = max(ratio, found.get(shown, 0.0))
    own, training = float(np.median(seconds["numbarnn"])), row["what"] == TRAINING
    work = operations(row["cell"], row["shape"], training)
    traffic = smallest_traffic(row["cell"], row["shape"], row["dtype"], training)
    return Entry(own, found, work / own, work / traffic, trust.doubts(row, judged(row), machine_doubt), None)


class Result(NamedTuple):
    """A record and its rows.

    Attributes:
        name: of its file. record: as `record.read` gives it. entries: `Key` -> `Entry`.
    """

    name: str
    record: dict
    entries: dict


def result_of(name, found):
    """The `Result` of a record that `record.read` gave."""
    return Result(name, found, {key_of(row): entry_of(row, found["doubt"]) for row in found["results"]})


def keys_of(results):
    """Every `Key` of some results, in the order in which they come."""
    return list(dict.fromkeys(key for result in results for key in result.entries))


# -------------------------------------------------------------------------------------------- against a former record
class Change(NamedTuple):
    """A row in a former record and now, by the ratio to the same peer, which ran beside it both times.

    Attributes:
        before, now: that ratio. trusted: nothing speaks against either.
    """

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
    for key, entry in now.entries.items():
        old = former.entries.get(key)
        for peer in entry.ratios if old else ():
            if peer in old.ratios:
                trusted = not entry.doubts and not old.doubts
                found.append(Change(key, peer, old.ratios[peer], entry.ratios[peer], trusted))
    return found
