"""Draw the larger pictures of the course."""

import difflib
import html
import inspect

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML, display
from matplotlib.patches import Circle, FancyBboxPatch

COLORS = {"i": "tab:blue", "f": "tab:red", "g": "tab:purple", "o": "tab:green", "c": "black", "h": "tab:orange"}
LINE = "#444444"


def _canvas(width, height, x, y):
    """Return an axis without a frame, of `width` by `height` inches, with limits (0, x) and (0, y)."""
    _, axis = plt.subplots(figsize=(width, height), layout="constrained")
    axis.set(xlim=(0, x), ylim=(0, y))
    axis.axis("off")
    return axis


def _box(axis, place, text, color, size=10, at=(0.5, 0.5)):
    """Draw a box at `place` (left, bottom, width, height), with text at the fractions `at` of its width and height."""
    x, y, width, height = place
    style = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.08", fc=color, ec=LINE, lw=1)
    axis.add_patch(style)
    axis.text(x + width * at[0], y + height * at[1], text, ha="center", va="center", fontsize=size)


def _node(axis, x, y, text):
    axis.add_patch(Circle((x, y), 0.24, fc="white", ec=LINE, lw=1, zorder=3))
    axis.text(x, y, text, ha="center", va="center", fontsize=11, zorder=4)


def _arrow(axis, start, end, color=LINE, width=1.4):
    way = {"arrowstyle": "-|>", "color": color, "lw": width, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", end, start, arrowprops=way)


def lstm_dataflow():
    """Draw how one step of an LSTM computes its gates, memory c and output h from x, h' and c'."""
    axis = _canvas(10, 4.3, 11.2, 5.3)
    products = "two matrix products:  W x + R h' + b,  one number for each gate of each unit"
    _box(axis, (1.2, 0.35, 7.6, 0.6), products, "#eeeeee")
    for text, y in (("x", 0.8), ("h'", 0.5)):
        axis.text(0.25, y, text, ha="center", va="center", fontsize=13)
        _arrow(axis, (0.5, y), (1.2, y))
    for name, x, function in (("f", 2.0, "σ"), ("i", 4.0, "σ"), ("g", 5.6, "tanh"), ("o", 7.4, "σ")):
        _box(axis, (x - 0.4, 1.4, 0.8, 0.5), function, "#ffffff")
        axis.text(x + (-0.2 if name == "i" else 0.12), 2.12, name, color=COLORS[name], fontsize=13, weight="bold")
        _arrow(axis, (x, 0.95), (x, 1.4))
    y = 4.6
    for start, end in ((0.5, 1.76), (2.24, 4.56), (5.04, 10.5)):
        _arrow(axis, (start, y), (end, y), width=2.2)
    axis.text(0.25, y, "c'", ha="center", va="center", fontsize=13)
    axis.text(10.8, y, "c", ha="center", va="center", fontsize=13)
    for x, height, text in ((2.0, y, "×"), (4.8, y, "+"), (4.8, 3.3, "×"), (8.6, 2.6, "×")):
        _node(axis, x, height, text)
    _arrow(axis, (2.0, 1.9), (2.0, y - 0.24), COLORS["f"])
    _arrow(axis, (4.0, 1.9), (4.63, 3.13), COLORS["i"])
    _arrow(axis, (5.6, 1.9), (4.97, 3.13), COLORS["g"])
    _arrow(axis, (4.8, 3.54), (4.8, y - 0.24))
    _box(axis, (8.15, 3.4, 0.9, 0.5), "tanh", "#ffffff")
    _arrow(axis, (8.6, y), (8.6, 3.9))
    _arrow(axis, (8.6, 3.4), (8.6, 2.84))
    _arrow(axis, (7.4, 1.9), (8.4, 2.45), COLORS["o"])
    _arrow(axis, (8.84, 2.6), (10.5, 2.6), COLORS["h"], width=2.2)
    axis.text(10.8, 2.6, "h", ha="center", va="center", fontsize=13)
    notes = (2.15, 3.2, "how much is kept"), (5.05, 4.05, "what is written"), (8.75, 2.1, "what is shown")
    for x, height, text in notes:
        axis.text(x, height, text, color="grey", fontsize=9, style="italic")
    plt.show()


def gpu():
    """Draw threads, warps, blocks and multiprocessors, with the memory at each level."""
    axis = _canvas(11, 4.6, 13.2, 5.6)
    _box(axis, (0.05, 0.05, 13.1, 5.5), "GPU", "#fafafa", 11, (0.03, 0.95))
    l2 = "L2 cache: all blocks see it;  behind it the GPU's memory, where arrays lie"
    _box(axis, (0.3, 0.25, 12.6, 0.55), l2, "#ffe9c7")
    _box(axis, (0.3, 1.1, 7.9, 4.0), "multiprocessor (SM) 0", "#eef4fb", 10, (0.15, 0.94))
    _box(axis, (0.5, 1.25, 7.5, 0.5), "shared memory: one part for each block, seen by its threads only", "#ffe9c7", 9)
    for number, x in enumerate((0.5, 4.35)):
        _box(axis, (x, 1.95, 3.65, 2.75), f"block {number}", "#dcebdc", 10, (0.15, 0.92))
        for warp in range(2):
            y = 3.25 - 1.15 * warp
            _box(axis, (x + 0.12, y, 3.4, 1.05), "", "#ffffff")
            of_warp = f"warp {warp}: 32 threads, one instruction at a time"
            axis.text(x + 0.2, y + 0.87, of_warp, fontsize=7.5, va="center")
            for thread in range(32):
                left, bottom = x + 0.2 + 0.2 * (thread % 16), y + 0.42 - 0.3 * (thread // 16)
                axis.add_patch(plt.Rectangle((left, bottom), 0.16, 0.25, fc="#9dbbe0", ec="white", lw=0.5))
    for number, x in (("1", 8.5), ("2", 10.0), ("…", 11.5)):
        _box(axis, (x, 1.1, 1.35, 4.0), f"SM {number}", "#eef4fb", 10, (0.5, 0.94))
        _box(axis, (x + 0.12, 1.25, 1.1, 0.5), "shared", "#ffe9c7", 8)
        for k in range(2):
            _box(axis, (x + 0.12, 1.95 + 1.4 * k, 1.1, 1.25), "block", "#dcebdc", 8)
    of_threads = "each small square is a thread, with registers of its own"
    axis.text(1.0, 5.3, of_threads, fontsize=9, va="center", color="grey")
    plt.show()


def unrolled(steps=4):
    """Draw the loop over time as a graph, in which red arrows carry gradients back."""
    axis = _canvas(10, 3.5, 2.35 * steps + 1.6, 4.4)
    axis.text(0.35, 2.2, "h', c'\n= 0", ha="center", va="center", fontsize=10)
    for t in range(steps):
        x = 1.2 + 2.35 * t
        _box(axis, (x, 1.6, 1.2, 1.2), f"step {t}", "#dcebdc")
        _arrow(axis, (x - 0.6 if t == 0 else x - 1.15, 2.4), (x, 2.4))
        _arrow(axis, (x + 0.45, 0.75), (x + 0.45, 1.6))
        _arrow(axis, (x + 0.45, 2.8), (x + 0.45, 3.65))
        axis.text(x + 0.45, 0.5, f"$x_{t}$", ha="center", fontsize=12)
        axis.text(x + 0.45, 3.85, f"$y_{t} = h_{t}$", ha="center", fontsize=12)
        _arrow(axis, (x + 0.85, 3.65), (x + 0.85, 2.8), "tab:red")
        _arrow(axis, (x + 0.85, 1.6), (x + 0.85, 0.75), "tab:red")
        axis.text(x + 0.95, 3.15, f"$dy_{t}$", color="tab:red", fontsize=10)
        axis.text(x + 0.95, 1.1, f"$dx_{t}$", color="tab:red", fontsize=10)
        if t < steps - 1:
            axis.text(x + 1.78, 2.6, f"$h_{t}, c_{t}$", ha="center", fontsize=10)
            _arrow(axis, (x + 2.35, 2.0), (x + 1.2, 2.0), "tab:red")
            axis.text(x + 1.78, 1.65, "$dh, dc$", color="tab:red", ha="center", fontsize=10)
    plt.show()


def thread_map(who, threads=None, unit="unit j", row="sequence b", title=""):
    """Draw which thread computes which element of an array.

    Args:
        who: int array (rows, columns, 2) of block and thread numbers; -1 for an element without a thread.
        threads: (rows, columns) of all threads of the launch; those outside the array are drawn grey.
    """
    rows, columns = who.shape[:2]
    down, across = threads or (rows, columns)
    _, axis = plt.subplots(figsize=(1.05 * max(across, columns) + 1, 0.62 * max(down, rows) + 1), layout="constrained")
    palette = plt.get_cmap("Pastel1")
    for b, j in np.ndindex(max(down, rows), max(across, columns)):
        inside = b < rows and j < columns
        block, thread = who[b, j] if inside else (-1, -1)
        color = palette(block % 9) if block >= 0 else "#d9d9d9" if not inside else "white"
        axis.add_patch(plt.Rectangle((j - 0.48, b - 0.48), 0.96, 0.96, fc=color, ec="none"))
        text = f"block {block}\nthread {thread}" if block >= 0 else "idle" if not inside else "nobody"
        axis.text(j, b, text, ha="center", va="center", fontsize=8, color="black" if block >= 0 else "grey")
    axis.set(xlim=(-0.6, max(across, columns) - 0.4), ylim=(max(down, rows) - 0.4, -0.6), xlabel=unit, ylabel=row)
    axis.set(xticks=range(columns), yticks=range(rows), title=title)
    axis.spines[:].set_visible(False)
    plt.show()


def diff(before, after):
    """Show the removed lines (red) and the added lines (green) of two kernels or functions, apart from indentation."""
    old, new = (inspect.getsource(getattr(one, "py_func", one)).splitlines() for one in (before, after))
    matcher = difflib.SequenceMatcher(None, list(map(str.strip, old)), list(map(str.strip, new)), autojunk=False)
    lines = []
    for what, a, b, c, d in matcher.get_opcodes():
        if what == "equal":
            lines += [("color:#777", f"  {line}") for line in new[c:d]]
        else:
            lines += [("background:#ffe0e0;color:#900", f"- {line}") for line in old[a:b]]
            lines += [("background:#dff5df;color:#060", f"+ {line}") for line in new[c:d]]
    text = "\n".join(f'<span style="{style}">{html.escape(line)}</span>' for style, line in lines)
    display(HTML(f'<pre style="line-height:1.25;overflow-x:auto">{text}</pre>'))
