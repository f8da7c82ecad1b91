"""Which steps of which sequences belong together: sequences of unequal length, and sequences that begin anew.

A batch is cut into pieces that know nothing of each other but a state handed over at most. Within a piece all
is as if there were no lengths and no resets, so that loops.py needs no case for either.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Piece:
    """A run of steps without a reset.

    Attributes:
        rows: the sequences: slice(None) for all, slice(b, b + 1) for one.
        times: the steps from the first to the one after the last, as a slice.
        initial: whether it begins with the initial state (else with zeros)
        final: whether its last state is the final state (else nobody sees it)
    """

    rows: slice
    times: slice
    initial: bool
    final: bool


def cut(T, B, lengths, resets, direction):
    """The pieces of a batch for one direction (0 forward, 1 reverse). Every sequence has one final piece.

    Args:
        lengths: (B,) ints, or None: all are T. Sequence b is its steps before lengths[b]; what comes after is padding
            and in no piece. With length 0 it is one piece without steps: the final state is the initial state.
        resets: (T, B) bools, or None: none. At resets[t, b] the sequence is cut between t - 1 and t, and no state goes
            over the cut, in either direction. A cut at t = 0 is before the whole sequence: it keeps the initial state
            of the forward direction away, and means nothing to the reverse direction, which ends there.
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
    """Lengths as a (B,) array of ints from 0 to T; None stays None."""
    if lengths is None:
        return None
    array = np.array(lengths)
    if array.dtype.kind not in "iu" or array.shape != (B,):
        raise ValueError(f"lengths: expected {B} ints; got {array.dtype} of shape {array.shape}")
    if np.any(array < 0) or np.any(array > T):
        raise ValueError(f"lengths: expected 0 to T = {T}; got {array.tolist()}")
    return array


def read_resets(resets, T, B):
    """Resets as a (T, B) array of bools; None stays None."""
    if resets is None:
        return None
    array = np.array(resets)
    if array.dtype != bool or array.shape != (T, B):
        raise ValueError(f"resets: expected bools of shape (T, B) = {(T, B)}; got {array.dtype} of shape {array.shape}")
    return array
