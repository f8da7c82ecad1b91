"""The picture of `numbarnn check`: how errors and their ratios to a peer's are distributed."""

import io

import numpy as np

from numbarnn.bench import pages, report
from numbarnn.bench.check.summary import TWICE, dtype_of, grouped

PURPOSE = "a picture of the errors"
SIZE_INCHES, DPI = (11, 4.2), 110
COLOURS = {"float64": "tab:green", "float32": "tab:blue", "bfloat16": "tab:red", "float16": "tab:orange"}
BINS = 40
SHARES = (1e-4, 10.0)  # of a limit; what is outside is counted at the edge
RATIOS = (1 / 32, 32.0)


def figure(comparisons):
    """A matplotlib figure: errors as shares of their limits, and as multiples of a peer's, one line per dtype."""
    picture = report.figure(PURPOSE, figsize=SIZE_INCHES)
    left, right = picture.subplots(1, 2)
    compared = [c for c in comparisons if c.compared and c.error is not None and not c.quantity.startswith("dropout")]
    peers = {True: "cuDNN", False: "PyTorch"}
    names = sorted({peers[c.cudnn_error is not None] for c in compared if c.ratio is not None})
    draw(left, compared, "share", SHARES, f"error / limit ({len(compared)} comparisons)")
    draw(right, compared, "ratio", RATIOS, f"error / the error of {' or '.join(names) or 'a peer'}")
    left.axvline(1.0, color="black", linewidth=1)
    left.set(title="what passes is left of 1", ylabel="comparisons")
    right.axvline(1.0, color="grey", linewidth=0.6, linestyle="--")
    right.axvline(TWICE, color="black", linewidth=1)
    right.set(title="right of 2: passes below the floor only")
    left.legend(frameon=False)
    return picture


def draw(axis, comparisons, name, bounds, label):
    """A histogram over a logarithmic axis of a property of comparisons, by dtype."""
    edges = np.geomspace(*bounds, BINS + 1) * (1 + 1e-9)  # a value on an edge, such as a ratio of 2, is left of it
    for group in grouped(comparisons, dtype_of):
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


def svg(comparisons):
    return pages.svg(figure(comparisons))
