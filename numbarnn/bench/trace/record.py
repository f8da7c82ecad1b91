"""The record of a trace: what every block did from when to when, and whom it waited for.

One form, wherever it comes from: the simulator (time in turns of threads), a plan (in steps of one layer), a device
whose kernel stamped its clock (in nanoseconds). As JSON, with optional fields in brackets:

    {"format": "numbarnn trace 1",
     "title": "lstm, persistent, forward",       what was run, for people
     "unit": "turns" | "steps" | "ns",           of `start` and `end`; where zero is does not matter
     "of": "blocks" | "streams",                 what a lane of the picture is
     "backward": false,
     "layers": 4, "directions": 1, "steps": 12,
     "blocks": [{"name": "block 0"}, ...],       known by their place in this list, from 0
     "events": [{"block": 0, "kind": "wait", "start": 10, "end": 25.5,
                 ["layer": 0, "direction": 0, "step": 3, "steps": 1,]
                 ["waits_for": [{["block": 1,] "layer": 0, "direction": 0, "step": 2}],]
                 ["reads": [{"layer": 0, "direction": 0, "step": 2}],]
                 ["open": true]}, ...],
     ["about": [["date", "2026-11-23"], ...],]   more to show beside the title
     ["error": "kernel ... livelock ..."]}       how the run failed

Steps are counted as they run: step 0 of a backward pass is the last time. Kinds of events are in `KINDS`. Events of one
block do not overlap. One that names a layer and no direction is of direction 0.

    waits_for    the steps that were missing, and the blocks that compute them; the one that came last stands last.
                 Of an exchange that is the step itself
    reads        the steps whose numbers a product multiplies
    open         the run ended before what the block waited for had come
"""

import json
from collections import defaultdict
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import partial

from numbarnn.bench import console

FORMAT = "numbarnn trace 1"
UNITS = ("turns", "steps", "ns")
LANES = ("blocks", "streams")
#: What a block can be doing, and what that means.
KINDS = {
    "load": "loads its weights and the first state; happens once",
    "wait": "looks again and again for numbers that another block has not published yet",
    "multiply": "multiplies what it waited for with its part of the weights",
    "exchange": "stores its part of what all blocks of its layer need within the step (sums over units, or what a "
    "further product or a projection multiplies), and waits for the other parts",
    "publish": "the cell's equations for its units, and stores the new state where all others see it",
    "product": "a product over many steps at once, such as W x of a whole layer",
    "other": "anything else",
}


class BadRecord(console.WrongArguments):
    """A file is not the record of a trace; the message says where it differs."""


@dataclass(frozen=True)
class Step:
    """A step of a layer and direction, and the block that computes (a part of) it, if that is known."""

    layer: int
    direction: int
    step: int
    block: int | None = None

    @property
    def place(self):
        """(layer, direction, step)."""
        return self.layer, self.direction, self.step


@dataclass(frozen=True)
class Event:
    """What a block did from `start` to `end`; see the module's text. `steps` is how many, from `step` on."""

    block: int
    kind: str
    start: float
    end: float
    layer: int | None = None
    direction: int | None = None
    step: int | None = None
    steps: int = 1
    waits_for: tuple[Step, ...] = ()
    reads: tuple[Step, ...] = ()
    open: bool = False

    place = Step.place


@dataclass(frozen=True)
class Block:
    """A lane of the picture."""

    name: str


@dataclass(frozen=True)
class Record:
    """All of it; see the module's text."""

    title: str
    unit: str
    of: str
    backward: bool
    layers: int
    directions: int
    steps: int
    blocks: tuple[Block, ...]
    events: tuple[Event, ...]
    about: tuple[tuple[str, str], ...] = ()
    error: str | None = None
    format: str = field(default=FORMAT, init=False)

    def telling(self, facts):
        """A copy of the record with these facts in front of `about`."""
        return replace(self, about=(*facts, *self.about))

    def waiting(self):
        """For each block its share of the whole time in which it waits."""
        begin, end = min(e.start for e in self.events), max(e.end for e in self.events)
        waits = [0.0] * len(self.blocks)
        for event in self.events:
            if event.kind == "wait":
                waits[event.block] += event.end - event.start
        return [wait / (end - begin or 1) for wait in waits]


# ---- as JSON -------------------------------------------------------------------------------------------------------
def as_json(record):
    """The record as dicts and lists; of events only what they have."""
    return _without_defaults(record) | {"format": FORMAT}


def _without_defaults(one):
    """A dataclass as a dict of what differs from its defaults, tuples as lists."""
    return {
        item.name: _plain(getattr(one, item.name)) for item in fields(one) if getattr(one, item.name) != item.default
    }


def _plain(value):
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return _without_defaults(value) if is_dataclass(value) else value


def read(path):
    """The Record in a file; BadRecord, which says what and where, if it holds something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadRecord(f"{path} is not JSON: {error}") from None
    try:
        return from_json(data)
    except BadRecord as error:
        raise BadRecord(f"{path} is no record of a trace: {error}") from None


def from_json(data):
    """The Record of what `as_json` gives, checked."""
    if isinstance(data, dict) and data.get("format") != FORMAT:
        raise BadRecord(f'"format" must be {FORMAT!r}, not {data.get("format")!r}')
    record = _made(Record, data, "the file")
    _check(record)
    return record


# What a field may hold in JSON: lists of parts by its name, others by its annotation.
_PARTS = {"blocks": Block, "events": Event, "waits_for": Step, "reads": Step}
_TYPES = {"int": int, "float": (int, float), "str": str, "bool": bool, "int | None": int, "str | None": str}
_WORDS = {int: "a whole number", str: "text", bool: "true or false", (int, float): "a number"}


def _made(kind, data, where):
    """A dataclass of what stands in data; names that it does not know are left out, so that devices may add some."""
    if not isinstance(data, dict):
        raise BadRecord(f"{where} must be an object {{...}}, not {str(data)[:40]!r}")
    if kind is Record:
        data = {"blocks": [], "events": []} | data
    elif kind is Event and "layer" in data:
        data = {"direction": 0} | data
    known = {}
    for item in (item for item in fields(kind) if item.init):
        if item.name in data:
            known[item.name] = _value(item, data[item.name], where)
        elif item.default is MISSING:
            raise BadRecord(f'{where} has no "{item.name}"')
    return kind(**known)


def _value(item, value, where):
    """A field's value of what stands in JSON."""
    name, place = item.name, item.name if where == "the file" else f"{where}.{item.name}"
    if name == "about" or name in _PARTS:
        if not isinstance(value, list):
            raise BadRecord(f'"{name}" of {where} must be a list [...], not {str(value)[:40]!r}')
        of_one = _fact if name == "about" else partial(_made, _PARTS[name])
        return tuple(of_one(one, f"{place}[{number}]") for number, one in enumerate(value))
    wanted = _TYPES[str(getattr(item.type, "__name__", item.type))]
    is_bool = isinstance(value, bool) and wanted is not bool
    if not (value is None and item.default is None) and (is_bool or not isinstance(value, wanted)):
        raise BadRecord(f'"{name}" of {where} must be {_WORDS[wanted]}, not {value!r}')
    return value


def _fact(pair, where):
    if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
        raise BadRecord(f"{where} must be [name, value], two texts, not {pair!r}")
    return tuple(pair)


def _check(record):
    """Raise BadRecord unless what the record says can be."""
    _choice(record.unit, UNITS, '"unit"')
    _choice(record.of, LANES, '"of"')
    _choice(record.directions, (1, 2), '"directions"')
    if record.layers < 1 or record.steps < 1:
        raise BadRecord(f'"layers" and "steps" must be at least 1, not {record.layers} and {record.steps}')
    sizes = {"layer": record.layers, "direction": record.directions, "block": len(record.blocks)}
    sizes["step"] = record.steps + 1  # backward ends with one more, that carries the gradient to the initial state
    if not record.events:
        raise BadRecord("it has no events")
    busy = defaultdict(lambda: (float("-inf"), None))
    for number, event in sorted(enumerate(record.events), key=lambda pair: (pair[1].start, pair[1].end)):
        where = f"events[{number}]"
        _choice(event.kind, tuple(KINDS), f'"kind" of {where}')
        if not event.start <= event.end:
            raise BadRecord(f"{where} ends at {event.end}, before it starts, at {event.start}")
        for one, place in ((event, where), *((step, f"what {where} names") for step in event.waits_for + event.reads)):
            for name, size in sizes.items():
                value = getattr(one, name)
                if value is not None and not 0 <= value < size:
                    raise BadRecord(f'"{name}" of {place} is {value}; it must be at least 0 and less than {size}')
        until, before = busy[event.block]
        if event.start < until:
            raise BadRecord(f"{where} of block {event.block} starts at {event.start}, before {before} ends, at {until}")
        busy[event.block] = event.end, where


def _choice(value, choices, name):
    if value not in choices:
        raise BadRecord(f"{name} must be one of {', '.join(map(str, choices))}, not {value!r}")
