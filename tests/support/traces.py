"""Records of traces for tests: what a device might have stamped, by hand; what a record says of steps."""

from collections import defaultdict
from graphlib import TopologicalSorter

CLOCK = 1_000_000_000  # where the device's clock stood: nobody cares


def device_record(**changes):
    """Two layers of one block each, two steps, in nanoseconds; as JSON has it. Layer 1 waits twice, 1300 ns in all."""
    step = {0: {"layer": 0, "direction": 0}, 1: {"layer": 1, "direction": 0}}
    spans = [
        (0, "load", 0, 900, {}),
        (0, "multiply", 900, 1500, {"step": 0}),
        (0, "publish", 1500, 1800.5, {"step": 0}),
        (0, "multiply", 1900, 2600, {"step": 1, "reads": [step[0] | {"step": 0}]}),
        (0, "publish", 2600, 2900, {"step": 1}),
        (1, "load", 0, 1000, {}),
        (1, "wait", 1000, 2000, {"step": 0, "waits_for": [step[0] | {"step": 0, "block": 0}]}),
        (1, "multiply", 2000, 2600, {"step": 0, "reads": [step[0] | {"step": 0}]}),
        (1, "publish", 2600, 2800, {"step": 0}),
        (1, "wait", 2800, 3100, {"step": 1, "waits_for": [step[0] | {"step": 1, "block": 0}]}),
        (1, "multiply", 3100, 3700, {"step": 1, "reads": [step[1] | {"step": 0}, step[0] | {"step": 1}]}),
        (1, "publish", 3700, 4000, {"step": 1}),
    ]
    events = [
        {"block": block, "kind": kind, "start": CLOCK + start, "end": CLOCK + end} | step[block] | more
        for block, kind, start, end, more in spans
    ]
    del events[1]["direction"]  # it need not say 0
    return {
        "format": "numbarnn trace 1",
        "title": "lstm <by hand>",
        "unit": "ns",
        "backward": False,
        "layers": 2,
        "directions": 1,
        "steps": 2,
        "blocks": [{"name": "block 0: layer 0", "sm": 17}, {"name": "block 1: layer 1", "sm": 3}],
        "events": events,
        "about": [["device", "one that does not exist"]],
    } | changes


def require_order(made):
    """Of a Record: no block multiplies before all that it waited for is published, and none ends before all that it
    reads; returns how many waits were compared."""
    published = {(event.block, event.place): event.end for event in made.events if event.kind == "publish"}
    of_step = {place: [event.end for event in events] for place, events in computed(made).items()}
    waited, compared = {}, 0
    for event in made.events:
        if event.kind == "wait":
            waited[event.block] = event
        if event.kind == "multiply":
            wait = waited.pop(event.block, None)
            assert wait is None or (wait.place == event.place and wait.end == event.start)
            for source in wait.waits_for if wait else ():
                end = published.get((source.block, source.place))
                assert end is None or end <= event.start  # of a stream with products nothing is published
                compared += end is not None
            assert all(end <= event.end for source in event.reads for end in of_step[source.place])
    return compared


def computed(made):
    """(layer, direction, step) -> the events in which blocks computed it: those of kind "publish"."""
    found = defaultdict(list)
    for event in made.events:
        if event.kind == "publish":
            found[event.place].append(event)
    return dict(found)


def depths(made):
    """(layer, direction, step) -> its depth: the length of the longest chain of steps that ends with it.

    In a chain each step reads the one before, as the events' `reads` say. Steps of equal depth could run side by side:
    they are a front of the wavefront.
    """
    reads, found = defaultdict(set), {}
    for event in made.events:
        if event.kind in ("multiply", "publish"):
            reads[event.place].update(step.place for step in event.reads)
    for place in TopologicalSorter(reads).static_order():
        found[place] = 1 + max((found[other] for other in reads[place]), default=0)
    return found
