"""Cut a batch at lengths and resets into pieces, so that loops.py needs no case for either."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Piece:
    """Consecutive steps of one or all sequences without a reset.

    Attributes:
        rows, times: slices of the batch and of the steps.
        initial: whether it begins with the initial state, else with zeros.
        final: whether its last state is the final state, else the state is not used.
    """

    rows: slice
    times: slice
    initial: bool
    final: bool


def cut(T, B, lengths, resets, direction):
    """Return the pieces of a batch for one direction (0 forward, 1 reverse). Every sequence has one final piece.

    Args:
        lengths: (B,) ints, or None for T. Steps from lengths[b] on are padding and in no piece. A sequence of length 0
            is one piece without steps, whose final state is the initial state.
        resets: (T, B) bools, or None. resets[t, b] cuts sequence b between t - 1 and t, in both directions. A cut at
            t = 0 replaces the forward direction's initial state by zeros; the reverse direction ends there.
    """
    if lengths is None and resets is None:
        return [Piece(slice(None), slice(0, T), initial=True, final=True)]
    pieces = []
    for b in range(B):
        length = T if lengths is None else int(lengths[b])
        cuts = [] if resets is None else [t for t in range(length) if resets[t, b]]
        edges = [0, *(t for t in cuts if t > 0), length]
        spans = [slice(start, stop) for start, stop in pairwise(edges)]
        if direction == 1:
            spans.reverse()
        for number, times in enumerate(spans):
            initial = number == 0 and not (direction == 0 and 0 in cuts)
            pieces.append(Piece(slice(b, b + 1), times, initial, final=number == len(spans) - 1))
    return pieces


def read_lengths(lengths, T, B):
    """Return lengths as a (B,) array of ints from 0 to T, or None."""
    if lengths is None:
        return None
    array = np.array(lengths)
    if array.dtype.kind not in "iu" or array.shape != (B,):
        raise ValueError(f"lengths: expected {B} ints; got {array.dtype} of shape {array.shape}")
    if np.any(array < 0) or np.any(array > T):
        raise ValueError(f"lengths: expected 0 to T = {T}; got {array.tolist()}")
    return array


def read_resets(resets, T, B):
    """Return resets as a (T, B) array of bools, or None."""
    if resets is None:
        return None
    array = np.array(resets)
    if array.dtype != bool or array.shape != (T, B):
        raise ValueError(f"resets: expected bools of shape (T, B) = {(T, B)}; got {array.dtype} of shape {array.shape}")
    return array
