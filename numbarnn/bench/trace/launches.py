"""The record of a schedule that waits between kernels: the launches of its plan, with streams as lanes.

Nothing runs: a plan says what waits for what, and `bench.gantt` what each task would take if every step took the same
time. A task of steps becomes, for each step, its products, the kernels between them, and one that ends it; sums over
units are drawn beside the kernels in which they are made.
"""

from numbarnn.bench import gantt
from numbarnn.bench.plan import network_problem
from numbarnn.bench.trace.record import Event, Record, Step
from numbarnn.common.order import step_time
from numbarnn.engines.gpu import profiles
from numbarnn.schedules import choose
from numbarnn.schedules.explain import explain, parts_of_step
from numbarnn.schedules.plan import BOTH

PRODUCT_SHARE = 0.6  # of a step, that its product is drawn to take: the cell's kernel has less to do. So of several.
DIGITS = 6
PRODUCTS = ("input", "weights")  # kinds of tasks that are products over many steps


def record(title, cell, shape, backward, directions, schedule):
    """The Record of a plan; arguments as of `simulated.record`, and the schedule's name."""
    sizes = shape.I, (shape.H,) * shape.L, shape.T, shape.B, directions
    options = {"dtype": "float32", "training": backward, "profile": profiles.SIMULATOR}
    problem = network_problem(cell, *sizes, **options)
    taken = explain(choose(schedule), problem, backward).taken
    spans, unit = gantt.timeline(taken, problem)
    plan, lanes, free, events = taken.plan, {}, {}, []
    places = []  # the last step of each task: what others wait for who need the task
    for span, needs in zip(spans, plan.needs, strict=True):
        task = span.task
        lane = lanes.setdefault(task.lane if plan.concurrent else None, len(lanes))
        # A task for both directions counts times, of direction 0; others count steps as they run.
        step = shape.T - task.last if task.direction == BOTH and backward else task.first
        direction = max(task.direction, 0)
        places.append(Step(task.layer, direction, step + task.last - task.first - 1, lane))
        about = {"layer": task.layer, "direction": direction}
        if span.start > free.get(lane, 0):
            last = sorted((need for need in needs if spans[need].end == span.start), key=lambda need: spans[need].start)
            waits = tuple(places[need] for need in last)
            events.append(_event(lane, "wait", free.get(lane, 0), span.start, about, step, waits_for=waits))
        events += _work(span, lane, step, about, problem, backward)
        free[lane] = span.end
    blocks = tuple(_name(number, lane, directions) for lane, number in lanes.items())
    return Record(
        title, "steps", "streams", backward, shape.L, directions, shape.T, blocks, tuple(events), (("time in", unit),)
    )  # fmt: skip


def _work(span, lane, first, about, problem, backward):
    """The events of a task's own work: for each step a product and the cell, or one product over all of them."""
    task, count = span.task, span.task.last - span.task.first
    if task.kind != "steps":
        kind = "product" if task.kind in PRODUCTS else "other"
        return [_event(lane, kind, span.start, span.end, about, first, steps=count)]
    events, each, kinds = [], (span.end - span.start) / count, _kinds_of_step(problem, backward)
    shares = [PRODUCT_SHARE if kind == "multiply" else 1 - PRODUCT_SHARE for kind in kinds]
    for number in range(count):
        start, step = span.start + number * each, first + number
        reads = {"reads": _reads(task.layer, task.direction, step, problem, backward)}
        for kind, share in zip(kinds, shares, strict=True):
            end = start + each * share / sum(shares)
            events.append(_event(lane, kind, start, end, about, step, **reads))
            start, reads = end, {}
    return events


def _kinds_of_step(problem, backward):
    """Kinds of events that a step is drawn as: first the product with what comes from other steps, at last what
    publishes its state; sums over units, and what it makes and multiplies itself, stand between."""
    parts = [part.kind for part in parts_of_step(problem, backward)]
    kinds = ["multiply"] * ("recurrent" in parts)
    for part in parts:
        kinds += {"sums": ["exchange"], "product": ["exchange", "multiply"]}.get(part, [])
    return [*kinds, "publish"]


def _reads(layer, direction, step, problem, backward):
    """The steps that a step reads: the one before it, and those at the same time in the layer that gives its input."""
    own = [Step(layer, direction, step - 1)] if step else []
    other, (t, _) = layer + (1 if backward else -1), step_time(step, problem.steps, direction, backward)
    if not 0 <= other < problem.layers:
        return tuple(own)
    return (*own, *(Step(other, d, step_time(t, problem.steps, d, backward)[0]) for d in range(problem.directions)))


def _event(lane, kind, start, end, about, step, **more):
    """An Event; its times are rounded, as sums of tenths differ in the last digits by the order of their parts."""
    return Event(lane, kind, round(start, DIGITS), round(end, DIGITS), **about, step=step, **more)


def _name(number, lane, directions):
    """What a stream is called."""
    if lane is None:
        return f"stream {number}: everything, one after another"
    layer, direction, what = lane
    arrow = f" {'→←'[direction]}" if directions > 1 else ""
    return f"stream {number}: layer {layer}{arrow}, {what}"
