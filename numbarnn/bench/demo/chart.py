"""The loss curve as lines of text, for a terminal."""

import sys

import numpy as np

EIGHTHS, PLAIN = " ▁▂▃▄▅▆▇█", " #"  # what a character's height is filled with, from nothing to all


def chart(values, marks=EIGHTHS, width=64, height=8):
    """Lines of a bar chart of finite numbers in the order in which they came.

    Bars stand on the least value; where there are more values than `width`, a bar is the mean of several.
    """
    bars = np.array([part.mean() for part in np.array_split(np.asarray(values, float), min(width, len(values)))])
    least, most, parts = bars.min(), bars.max(), len(marks) - 1
    heights = 1 + np.rint((bars - least) / ((most - least) or 1.0) * (parts * height - 1)).astype(int)
    lines = []
    for row in reversed(range(height)):
        told = {height - 1: most, 0: least}.get(row)
        label = " " * 7 if told is None else f"{told:6.2f} "
        lines.append((label + "".join(marks[part] for part in np.clip(heights - parts * row, 0, parts))).rstrip())
    return lines


def marks_of(stream):
    """The marks that a text stream can write."""
    try:
        EIGHTHS.encode(getattr(stream, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return PLAIN
    return EIGHTHS


def show(losses):
    """Lines to print: bits per character of each training step so far."""
    return [f"bits per character in training, steps 1 to {len(losses)}", *chart(losses, marks_of(sys.stdout))]
