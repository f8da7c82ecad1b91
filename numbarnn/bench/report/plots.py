"""The pictures of `numbarnn report`, as SVG."""

import itertools

import numpy as np

from numbarnn.bench import console, pages
from numbarnn.bench.cases.passes import TRAINING

PURPOSE = "the page of numbarnn report"
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:red")
MARKERS = {"PyTorch": "o", "onnxruntime": "D", "cuDNN": "s"}
ROW_INCHES, WIDTH_INCHES = 0.23, 9.5


def ratios(result):
    """Ratios to peers, a line per problem, a colour and mark per peer, hollow where it is in doubt."""
    keys = list(result.entries)
    figure = console.figure(PURPOSE, figsize=(WIDTH_INCHES, 1.3 + ROW_INCHES * len(keys)))
    axis = figure.subplots()
    peers = list(dict.fromkeys(peer for entry in result.entries.values() for peer in entry.ratios))
    for colour, peer in zip(itertools.cycle(COLOURS), peers):
        style = {"marker": MARKERS.get(peer, "^"), "color": colour, "linestyle": "none", "markersize": 5}
        for line, entry in enumerate(result.entries.values()):
            if peer in entry.ratios:
                axis.plot(entry.ratios[peer], line, markerfacecolor="none" if entry.doubts else colour, **style)
        axis.plot([], [], label=f"against {peer}", **style)
    axis.axvline(1.0, color="black", linewidth=1)
    axis.set(xscale="log", ylim=(len(keys) - 0.4, -0.6), yticks=range(len(keys)), yticklabels=list(map(str, keys)))
    axis.set_xlabel("numbarnn's time / the peer's (left of 1: numbarnn is faster)")
    ticks = [tick for tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5) if axis.get_xlim()[0] <= tick <= axis.get_xlim()[1]]
    axis.set_xticks(ticks, list(map(str, ticks)))
    axis.set_xticks([], minor=True)
    axis.tick_params(axis="y", labelsize=8)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=8)
    return pages.svg(figure)


def roofline(result, dtype):
    """A roofline: operations per second over operations per byte that must be moved, under the machine's ceilings.

    None for a record that does not say the ceilings.
    """
    method = result.record["method"]
    peak, bandwidth = method.get("peak_flops", {}).get(dtype), method.get("bandwidth")
    found = [(key, entry) for key, entry in result.entries.items() if entry.intensity and key.dtype == dtype]
    if not (peak and bandwidth and found):
        return None
    figure = console.figure(PURPOSE, figsize=(WIDTH_INCHES, 4.6))
    axis = figure.subplots()
    at = np.array([entry.intensity for _, entry in found])
    wide = np.geomspace(min(at.min(), peak / bandwidth) / 3, max(at.max(), peak / bandwidth) * 3, 200)
    axis.plot(wide, np.minimum(peak, wide * bandwidth) / 1e9, color="black", linewidth=1.2)
    axis.annotate(f"{peak / 1e9:.0f} GFLOP/s, multiply-adds in the first cache", (wide[-1], peak / 1e9),
                  (0, 4), textcoords="offset points", ha="right", fontsize=8)  # fmt: skip
    axis.annotate(f"{bandwidth / 1e9:.0f} GB/s from memory", (wide[25], wide[25] * bandwidth / 1e9),
                  (8, -4), textcoords="offset points", ha="left", fontsize=8)  # fmt: skip
    for cell_number, cell in enumerate(dict.fromkeys(key.cell for key, _ in found)):
        for training in (False, True):
            points = [entry for key, entry in found if key.cell == cell and (key.what == TRAINING) == training]
            if points:
                colour = COLOURS[cell_number % len(COLOURS)]
                label = f"{cell} {'forward + backward' if training else 'forward'}"
                axis.plot([p.intensity for p in points], [p.flops / 1e9 for p in points], "s" if training else "o",
                          color=colour, markerfacecolor="none" if training else colour, label=label)  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="operations per byte that must be moved at least", ylabel="GFLOP/s")
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=8)
    return pages.svg(figure)
