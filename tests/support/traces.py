"""What a record of `numbarnn trace` says of steps, for tests."""

from collections import defaultdict


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
