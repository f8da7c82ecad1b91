"""Compute float16 and bfloat16 layers on the CPU, which has no such arithmetic, in float32.

A call converts its arrays to float32, runs, and rounds each result once, to nearest even. On a GPU, what layers pass
to each other and keep for backward is rounded too, to save memory; here it is not.
"""

import numpy as np

from numbarnn.common.precision import known_dtype
from numbarnn.layers.planned import LATER, NEW
from numbarnn.programs.states import with_each


def widened(array):
    """Convert an array or state to float32; None stays None."""
    return with_each(array, lambda part: part.astype(np.float32))


class Widened:
    """Runs a stack's calls on an equal float32 stack; dtype: the name of the layer's dtype. Its methods are those of
    `Stack`."""

    def __init__(self, wide, dtype):
        self._wide, self._dtype = wide, known_dtype(dtype)
        self._weights = (None, None)  # the last buffer of weights, and its numbers in float32

    def _rounded(self, array):
        with np.errstate(over="ignore"):  # beyond the dtype's range is infinity, as on a GPU
            return with_each(array, lambda part: part.astype(self._dtype))

    def forward(self, x, hx, cx, weights, training, batch_major, sequences):
        last_weights, wide = self._weights  # one read: another thread may change them
        if last_weights is not weights:  # one buffer for calls with one buffer, so that small calls stay prepared
            wide = np.empty(weights.shape, np.float32)
            self._weights = weights, wide
        np.copyto(wide, weights)
        arrays = map(widened, (x, hx, cx))
        *results, tape = self._wide.forward(*arrays, wide, training, batch_major, sequences)
        return *map(self._rounded, results), tape

    def backward_data(self, tape, dy, dhy, dcy, dw, need, d_states):
        dy, dhy, dcy, d_states = map(widened, (dy, dhy, dcy, d_states))
        results = self._wide.backward_data(tape, dy, dhy, dcy, dw if dw is LATER else NEW, need, d_states)
        if dw is not LATER and tape.dw is not None:
            tape.dw = self._rounded(tape.dw) if dw is NEW else self._added(dw, tape.dw)
        return tuple(map(self._rounded, results))

    def backward_weights(self, tape, dw):
        wide = np.zeros(dw.shape, np.float32)
        self._wide.backward_weights(tape, wide)
        self._added(dw, wide)

    def _added(self, dw, gradients):
        """Add float32 gradients to dw, round, and return dw."""
        with np.errstate(over="ignore"):
            np.copyto(dw, dw.astype(np.float32) + gradients, casting="same_kind")
        return dw
