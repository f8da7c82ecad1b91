"""Sequences of different lengths that begin anew on the way: a call with all of them, and calls with each piece alone.

Pieces know nothing of each other in either direction, so that a layer's own calls without lengths and resets (which
other tests compare with loops) say what the call with them must give.
"""

from itertools import pairwise

import numpy as np

import numbarnn
from helpers import on_host

T, B, I = 7, 4, 3  # noqa: E741 - the legend's letter
LENGTHS = (4, 7, 0, 6)
STARTS = ((2, 0), (0, 1), (5, 1), (6, 1), (3, 3), (4, 3))  # (t, b) of resets; the one at time 0 changes nothing


def pieces():
    """(b, first, last) of each."""
    for b, length in enumerate(LENGTHS):
        cuts = sorted({0, length, *(t for t, of in STARTS if of == b and t < length)})
        yield from ((b, first, last) for first, last in pairwise(cuts))


def check_pieces(cell, device, schedule="auto", hidden=4, limit=1e-12, **options):
    """Outputs, dx and the parameters' gradients of a cell's layers, float64."""
    rng = np.random.default_rng(1)
    options = {"num_layers": 2, "bidirectional": True, "dtype": "float64", "device": device, "seed": 1} | options
    layer = numbarnn.RNN(cell, I, hidden, schedule=schedule, **options)
    x, resets = rng.standard_normal((T, B, I)), np.zeros((T, B), bool)
    for start in STARTS:
        resets[start] = True
    y, _, tape = layer.forward(x, lengths=LENGTHS, resets=resets)
    dy = rng.standard_normal(y.shape)
    gradients = layer.backward(tape, dy)
    found = {"y": y, "dx": gradients.x, **gradients.params}
    expected = {name: np.zeros_like(value) for name, value in found.items()}
    for b, first, last in pieces():
        when, who = slice(first, last), slice(b, b + 1)
        y, _, tape = layer.forward(x[when, who])
        gradients = layer.backward(tape, np.ascontiguousarray(dy[when, who]))
        expected["y"][when, who], expected["dx"][when, who] = y, gradients.x
        for name, gradient in gradients.params.items():
            expected[name] += on_host(layer.engine, [gradient])[0]
    inference, _ = layer(x, lengths=LENGTHS, resets=resets)
    for name, value in [*found.items(), ("y", inference)]:
        scale = max(1.0, np.abs(expected[name]).max())
        assert np.abs(value - expected[name]).max() <= limit * scale, name
