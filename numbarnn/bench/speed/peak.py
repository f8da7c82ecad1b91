"""How many operations the CPU does in a second, and how many a call has to do."""

import time

import numpy as np

from numbarnn import cells, engines
from numbarnn.bench.cases.sequences import half_lengths
from numbarnn.bench.cases.shapes import PRODUCTS

SIZE = 1024  # of the matrices whose product is timed
RUNS = 8


def cpu_peak(dtype="float32"):
    """Return floating-point operations per second of the CPU engine's product of large matrices, the most of several
    runs: two for each multiply-add."""
    engine, (a, b, out) = engines.get("cpu"), np.ones((3, SIZE, SIZE), dtype)
    seconds = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        engine.multiply(out, a, b)
        seconds.append(time.perf_counter() - begin)
    return 2 * SIZE**3 / min(seconds)


def work_of(row):
    """Return floating-point operations of a row's call; None of a cell that is not built in. row: of a record."""
    if row["cell"] not in cells.CELLS:
        return None
    skip = row["input_mode"] == "skip"
    return PRODUCTS[row["what"]] * operations(row["cell"], row["shape"], False, skip, row["form"])


def operations(cell, shape, training, skip=False, form=()):
    """Return floating-point operations of the products of a call: x Wᵀ and h Rᵀ of all layers.

    Args:
        cell: its name. shape: of sizes, a dict of T, B, I, H, L. training: there are twice as many more.
        skip: layer 0 has no W. form: words of `shapes.FORMS`.
    """
    gates = _directions(form) * cells.get(cell).num_gates * shape["H"]
    terms = _columns(shape, form) - (shape["I"] if skip else 0)
    return 2 * _vectors(shape, form) * gates * terms * (3 if training else 1)


def _columns(shape, form):
    """Return how many columns W and R of all layers have in one direction."""
    inputs, H, L = (shape[letter] for letter in "IHL")
    return inputs + H + (L - 1) * (_directions(form) + 1) * H


def _directions(form):
    return 2 if "bidirectional" in form else 1


def _vectors(shape, form):
    """Return how many vectors x has: a batch's of all times, without padding."""
    T, B = shape["T"], shape["B"]
    return int(half_lengths(T, B).sum()) if "lengths" in form else T * B
