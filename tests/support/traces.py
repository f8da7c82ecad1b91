"""What a record of `numbarnn trace` says of steps, for tests."""

from collections import defaultdict
from graphlib import TopologicalSorter


def place(one):
    """(layer, direction, step) of an event, or of a step in one."""
    return one["layer"], one["direction"], one.get("step")


def require_order(made):
    """Of a record: no block multiplies before all that it waited for is published, and none ends before all that it
    reads; returns how many waits were compared."""
    published = {(event["block"], place(event)): event["end"] for event in made["events"] if event["kind"] == "publish"}
    of_step = {key: [event["end"] for event in events] for key, events in computed(made).items()}
    waited, compared = {}, 0
    for event in made["events"]:
        if event["kind"] == "wait":
            waited[event["block"]] = event
        if event["kind"] == "multiply":
            wait = waited.pop(event["block"], None)
            assert wait is None or (place(wait) == place(event) and wait["end"] == event["start"])
            for source in wait["waits_for"] if wait else ():
                end = published.get((source["block"], place(source)))
                assert end is None or end <= event["start"]  # of a stream with products nothing is published
                compared += end is not None
            assert all(end <= event["end"] for source in event["reads"] for end in of_step[place(source)])
    return compared


def computed(made):
    """(layer, direction, step) -> the events in which blocks computed it: those of kind "publish"."""
    found = defaultdict(list)
    for event in made["events"]:
        if event["kind"] == "publish":
            found[place(event)].append(event)
    return dict(found)


def depths(made):
    """(layer, direction, step) -> its depth: the length of the longest chain of steps that ends with it.

    In a chain each step reads the one before, as the events' `reads` say. Steps of equal depth could run side by side:
    they are a front of the wavefront.
    """
    reads, found = defaultdict(set), {}
    for event in made["events"]:
        if event["kind"] in ("multiply", "publish"):
            reads[place(event)].update(map(place, event["reads"]))
    for key in TopologicalSorter(reads).static_order():
        found[key] = 1 + max((found[other] for other in reads[key]), default=0)
    return found
