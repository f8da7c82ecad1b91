"""The picture of a plan: when each task runs, one row per layer and direction, one color per kind of task."""

from numbarnn.bench import console
from numbarnn.schedules.estimate import product_us

COLORS = {"steps": "tab:blue", "input": "tab:orange", "dropout": "tab:green", "remake": "tab:olive",
           "weights": "tab:purple"}  # fmt: skip
STEPS_BAR, PRODUCT_BAR = (0.0, 0.43), (-0.4, 0.35)  # (bottom, height) in a row; rows are 1 apart, layer 0 the lowest
# Width of a product's step relative to a recurrent step, for schedules without estimates: it keeps products visible.
PRODUCT_SHARE = 0.2
ROW_INCHES, WIDTH_INCHES = 0.45, 10


def timeline(option, problem):
    """Return the tasks' `Span`s and their unit, for a `numbarnn.schedules.explain.Option`."""
    if not option.launches:
        return option.plan.timeline(_steps_cost), "steps of one layer"

    def us(task):
        launch = task.launch
        return launch.steps_in_all * launch.estimate.step if task.kind == "launch" else product_us(task, problem)

    return option.plan.timeline(us), "µs, estimated"


def _steps_cost(task):
    if task.kind == "launch":
        return task.launch.steps_in_all
    return (task.last - task.first) * (1 if task.kind == "steps" else PRODUCT_SHARE)


def rows_of(span, backward):
    """Return the bars of a `Span`: (kind, (layer, direction), start, length) each.

    A launch has a bar per layer and direction. A layer runs one step behind the layer below; with two directions it
    starts when both directions of the layer below are done."""
    task, start, end = span
    if task.kind != "launch":
        return [(task.kind, task.lane[:2], start, end - start)]
    launch, step = task.launch, (end - start) / task.launch.steps_in_all
    behind = 1 if launch.directions == 1 else launch.steps
    layers = reversed(launch.layer_range) if backward else launch.layer_range
    return [
        ("steps", (layer, direction), start + number * behind * step, launch.steps * step)
        for number, layer in enumerate(layers)
        for direction in range(launch.directions)
    ]


def draw(axis, plan, spans=None, unit="steps of one layer"):
    """Draw a plan on a matplotlib axis: a row per layer and direction, its steps above its products.

    spans, unit: from `timeline`; None: every step takes the same time."""
    spans = plan.timeline(_steps_cost) if spans is None else spans
    drawn = [bar for span in spans for bar in rows_of(span, plan.backward)]
    lanes = sorted({lane for _, lane, _, _ in drawn})
    bars = {}
    for kind, lane, start, length in drawn:
        bars.setdefault((kind, lanes.index(lane)), []).append((start, length))
    for (kind, row), ranges in bars.items():
        bottom, height = STEPS_BAR if kind == "steps" else PRODUCT_BAR
        axis.broken_barh(ranges, (row + bottom, height), facecolor=COLORS[kind], edgecolor="white", linewidth=0.3)
    for kind in COLORS:
        if any(of == kind for of, _ in bars):
            axis.broken_barh([], (0, 0), facecolor=COLORS[kind], label=kind)
    both = any(direction for _, direction in lanes)
    names = [f"layer {layer}" + (f" {'→←'[direction]}" if both else "") for layer, direction in lanes]
    axis.set(yticks=range(len(lanes)), yticklabels=names, ylim=(-0.5, len(lanes) - 0.5), xlabel=unit, xlim=(0, None))
    axis.set_title(f"{plan.schedule}, {'backward' if plan.backward else 'forward'}", loc="left")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def figure(explanations):
    """Return a matplotlib figure of each `numbarnn.schedules.explain.Explanation`."""
    rows = explanations[0].problem.layers * explanations[0].problem.directions
    height = len(explanations) * (1.2 + ROW_INCHES * rows)
    picture = console.figure("a picture of the plan", figsize=(WIDTH_INCHES, height))
    axes = picture.subplots(len(explanations), squeeze=False)[:, 0]
    for axis, explanation in zip(axes, explanations, strict=True):
        draw(axis, explanation.taken.plan, *timeline(explanation.taken, explanation.problem))
    return picture
