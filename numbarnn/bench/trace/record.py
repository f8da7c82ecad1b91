"""The record of a trace: what every block did from when to when, and whom it waited for.

As JSON, with optional fields in brackets:

    {"format": "numbarnn trace 1",
     "title": "lstm, persistent, forward",       what was run, for people
     "unit": "turns" | "ns",                     of `start` and `end`: turns of threads, or a device's nanoseconds
     "backward": false,
     "layers": 4, "directions": 1, "steps": 12,
     "blocks": [{"name": "block 0"}, ...],       known by their place in this list, from 0
     "events": [{"block": 0, "kind": "wait", "start": 10, "end": 25.5,
                 ["layer": 0, "direction": 0, "step": 3,]
                 ["waits_for": [{["block": 1,] "layer": 0, "direction": 0, "step": 2}],]
                 ["reads": [{"layer": 0, "direction": 0, "step": 2}]]}, ...],
     ["about": [["date", "2026-11-23"], ...],]   more to show beside the title
     ["error": "kernel ... livelock ..."]}       how the run failed

Steps are counted as they run: step 0 of a backward pass is the last time. Kinds of events are in `KINDS`. Events of one
block do not overlap. `waits_for` are the steps that were missing, and the blocks that compute them; the one that came
last stands last. `reads` are the steps whose numbers a product multiplies.
"""

import json
from dataclasses import dataclass, fields

from numbarnn.bench import console

FORMAT = "numbarnn trace 1"
#: What a block can be doing, and what that means.
KINDS = {
    "load": "loads its weights and the first state; happens once",
    "wait": "looks again and again for numbers that another block has not published yet",
    "multiply": "multiplies what it waited for with its part of the weights",
    "exchange": "stores its part of what all blocks of its layer need within the step (sums over units, or what a "
    "further product or a projection multiplies), and waits for the other parts",
    "publish": "the cell's equations for its units, and stores the new state where all others see it",
    "other": "anything else",
}


@dataclass(frozen=True)
class Step:
    """A step of a layer and direction, and the block that computes (a part of) it, if that is known."""

    layer: int
    direction: int
    step: int
    block: int | None = None

    place = property(lambda self: (self.layer, self.direction, self.step))


@dataclass(frozen=True)
class Event:
    """What a block did from `start` to `end`; see the module's text."""

    block: int
    kind: str
    start: float
    end: float
    layer: int | None = None
    direction: int | None = None
    step: int | None = None
    waits_for: tuple[Step, ...] = ()
    reads: tuple[Step, ...] = ()

    place = Step.place


@dataclass(frozen=True)
class Record:
    """All of it; see the module's text. `blocks` are names."""

    title: str
    unit: str
    backward: bool
    layers: int
    directions: int
    steps: int
    blocks: tuple[str, ...]
    events: tuple[Event, ...]
    about: tuple[tuple[str, str], ...] = ()
    error: str | None = None

    def waiting(self):
        """Return for each block its share of the whole time in which it waits."""
        begin, end = min(e.start for e in self.events), max(e.end for e in self.events)
        waits = [0.0] * len(self.blocks)
        for event in self.events:
            waits[event.block] += (event.end - event.start) * (event.kind == "wait")
        return [wait / (end - begin or 1) for wait in waits]


def as_json(record):
    """Return the record as dicts and lists; of events only what they have."""
    return _told(record) | {"format": FORMAT, "blocks": [{"name": name} for name in record.blocks]}


def _told(one):
    """Return a dataclass as a dict of what differs from its defaults, tuples as lists."""
    found = {item.name: getattr(one, item.name) for item in fields(one) if getattr(one, item.name) != item.default}
    return {name: [_told(part) if isinstance(part, (Event, Step)) else part for part in value]
            if isinstance(value, tuple) else value for name, value in found.items()}  # fmt: skip


def read(path):
    """Return the Record in a file; WrongArguments, which says what is wrong, if it holds something else."""
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        said = f"no {error}" if isinstance(error, KeyError) else error
        raise console.WrongArguments(f"--from {path} is no record of a trace: {said}") from None


def from_json(data):
    """Return the Record of what `as_json` gives; an error where it is none, or says what cannot be."""
    if data.get("format") != FORMAT:
        raise ValueError(f'"format" must be {FORMAT!r}, not {data.get("format")!r}')
    lists = {"blocks": tuple(block["name"] for block in data["blocks"]), "events": tuple(map(_event, data["events"]))}
    lists["about"] = tuple((str(name), str(value)) for name, value in data.get("about", ()))
    record = _made(Record, data | lists)
    if record.unit not in ("turns", "ns") or not record.events:
        raise ValueError(f"it has {len(record.events)} events in {record.unit!r}")
    if wrong := {event.kind for event in record.events}.difference(KINDS):
        raise ValueError(f'"kind" must be one of {", ".join(KINDS)}, not {wrong.pop()!r}')
    return record


def _event(data):
    steps = {name: tuple(_made(Step, one) for one in data.get(name, ())) for name in ("waits_for", "reads")}
    return _made(Event, ({"direction": 0} if "layer" in data else {}) | data | steps)


def _made(kind, data):
    """Return a dataclass of what stands in data; names that it does not know are left out: devices may add some."""
    return kind(**{item.name: data[item.name] for item in fields(kind) if item.name in data})
