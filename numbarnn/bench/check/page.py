"""The page of `numbarnn check --html`, and its picture, which `--png` writes alone: how errors, and their ratios to a
peer's, are distributed."""

import io
from html import escape

import numpy as np

from numbarnn.bench import console, info, pages
from numbarnn.bench.check import summary

PURPOSE = "a picture of the errors"
SIZE_INCHES, DPI = (11, 4.2), 110
COLOURS = {"float64": "tab:green", "float32": "tab:blue", "bfloat16": "tab:red", "float16": "tab:orange"}
BINS = 40
SHARES = (1e-4, 10.0)  # of a limit; what is outside is counted at the edge
RATIOS = (1 / 32, 32.0)
NOTES_SHOWN = 100
FAILURES_SHOWN = 500
RIGHT = (*summary.NUMBERS, "cases")  # columns of numbers


def html(comparisons, verdict):
    failures = [comparison for comparison in comparisons if not comparison.ok]
    parts = [
        f'<p class="verdict">{escape(verdict)}</p>',
        pages.about(info.collect()),
        "<h2>How far results are from float64</h2>",
        pages.svg(figure(comparisons)),
        f"<p>{escape(summary.LEGEND[0].upper() + summary.LEGEND[1:])}.</p>",
    ]
    if failures:
        shown = [summary.failure_row(comparison) for comparison in failures[:FAILURES_SHOWN]]
        parts += [f"<h2>{len(failures)} failures</h2>", pages.table(summary.FAILURE_COLUMNS, shown)]
    parts += ["<h2>By option</h2>", "<p>A case with several options is in each row of theirs.</p>"]
    parts += [table_of(summary.by_option(comparisons, engines=True), "engine", "option")]
    parts += ["<h2>By quantity</h2>", table_of(summary.by_quantity(comparisons), "engine", "quantity")]
    runs = table_of(summary.by_run(comparisons), "cell", "engine", "schedule", "dtype")
    parts += ["<h2>By schedule and dtype</h2>", runs, *refusals(comparisons)]
    return pages.document("numbarnn check", "\n".join(["<h1>numbarnn check</h1>", *parts]), pages.STYLE)


def table_of(groups, *headings):
    """The table of some `summary.Group`s, whose keys have these headings."""
    return pages.table(*summary.table(groups, headings), RIGHT)


def refusals(comparisons):
    """Parts of the page: what schedules refuse, and what there is to tell about peers."""
    parts = []
    refused = [comparison for comparison in comparisons if comparison.refused]
    if refused:
        parts += [f"<h2>What schedules refuse: {len(refused)} cases</h2>"]
        groups = summary.grouped(refused, lambda c: (c.engine, c.schedule, c.message))
        rows = [[*g.key[:2], len(g.members), f"{g.members[0].cell} {g.members[0].options}", g.key[2]] for g in groups]
        parts += [pages.table(("engine", "schedule", "cases", "such as", "why"), rows, RIGHT)]
    notes = summary.notes(comparisons)
    if notes:
        rows = [[peer, len(cases), cases[0], said] for peer, said, cases in notes[:NOTES_SHOWN]]
        parts += ["<h2>About the peers</h2>", pages.table(("peer", "cases", "such as", "what"), rows, RIGHT)]
    return parts


# ---- the picture
def figure(comparisons):
    """A matplotlib figure: errors as shares of their limits, and as multiples of a peer's, one line per dtype."""
    picture = console.figure(PURPOSE, figsize=SIZE_INCHES)
    left, right = picture.subplots(1, 2)
    compared = [c for c in comparisons if c.compared and c.error is not None and not c.quantity.startswith("dropout")]
    peers = {True: "cuDNN", False: "PyTorch"}
    names = sorted({peers[c.cudnn_error is not None] for c in compared if c.ratio is not None})
    draw(left, compared, "share", SHARES, f"error / limit ({len(compared)} comparisons)")
    draw(right, compared, "ratio", RATIOS, f"error / the error of {' or '.join(names) or 'a peer'}")
    left.axvline(1.0, color="black", linewidth=1)
    left.set(title="what passes is left of 1", ylabel="comparisons")
    right.axvline(1.0, color="grey", linewidth=0.6, linestyle="--")
    right.axvline(summary.TWICE, color="black", linewidth=1)
    right.set(title="right of 2: passes below the floor only")
    left.legend(frameon=False)
    return picture


def draw(axis, comparisons, name, bounds, label):
    """A histogram over a logarithmic axis of a property of comparisons, by dtype."""
    edges = np.geomspace(*bounds, BINS + 1) * (1 + 1e-9)  # a value on an edge, such as a ratio of 2, is left of it
    for group in summary.grouped(comparisons, summary.dtype_of):
        values = [getattr(comparison, name) for comparison in group.members]
        values = np.array([value for value in values if value is not None and value == value])
        if values.size:
            style = {"histtype": "step", "label": group.key, "color": COLOURS.get(group.key)}
            axis.hist(np.clip(values, edges[0] * 1.0001, edges[-1] * 0.9999), bins=edges, **style)
    axis.set(xscale="log", xlim=bounds, xlabel=label)


def png(comparisons):
    stream = io.BytesIO()
    figure(comparisons).savefig(stream, format="png", dpi=DPI, metadata={"Software": "numbarnn"})
    return stream.getvalue()
