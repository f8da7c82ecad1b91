"""Sequences of different lengths in NumPy: random lengths and resets, padding, and packing as PyTorch's.

A packed batch holds, time after time, the rows of the sequences that are not over, the longest sequence first:
`torch.nn.utils.rnn.PackedSequence`. Lengths are (B,) of int64; an array is time-major, (T, B, ...).
"""

import numpy as np

RESET_RATE = 0.3  # of the elements of random resets


def random_lengths(random, T, B, form):
    """Return lengths (B,) in any order: T among them and, if "padded", 0; PyTorch packs no length of 0 ("packed").

    With "half" they are not random, but evenly from T/2 to T, as in arXiv 1806.01818's set.
    """
    if form == "half":
        return half_lengths(T, B)
    if B == 1:
        return np.array([T if form == "packed" else max(1, T - 1)])
    least = 1 if form == "packed" else 0
    return random.permutation(np.array([T, least, *random.integers(least, T, B - 2, endpoint=True)], np.int64))


def half_lengths(T, B):
    """Return lengths (B,), evenly from T/2, but at least 1, to T."""
    return np.maximum(1, np.linspace(T / 2, T, B).astype(np.int64))


def random_resets(random, T, B, lengths=None):
    """Return resets (T, B) of bool, at least one; also right behind the end of shorter sequences, where they must not
    matter."""
    resets = random.random((T, B)) < RESET_RATE
    resets[T // 2, B // 2] = True
    if lengths is not None:
        over = np.flatnonzero(lengths < T)
        resets[lengths[over], over] = True
    return resets


def padding(lengths, T, B):
    """Return (T, B) of bool: True behind the end of a sequence; all False where lengths are None."""
    return np.arange(T)[:, None] >= (np.full(B, T) if lengths is None else lengths)


def filled(array, where):
    """Return a copy of `array` (T, B, n) with zeros in the rows that `where` (T, B) marks; None stays None."""
    return None if array is None else np.where(where[:, :, None], array.dtype.type(0), array)


def order(lengths):
    """Return (sorted_indices, unsorted_indices, batch_sizes) of a packed batch."""
    by_length = np.argsort(-lengths, kind="stable")
    return by_length, np.argsort(by_length), (lengths > np.arange(lengths.max())[:, None]).sum(axis=1)


def pack(array, lengths):
    """Return the rows of `array` (T, B, n) that a packed batch holds, in its order: (sum of lengths, n)."""
    by_length, _, batch_sizes = order(lengths)
    return np.concatenate([array[t, by_length[:rows]] for t, rows in enumerate(batch_sizes)])


def unpack(rows, lengths, T, value=0.0):
    """Return the reverse of `pack`: (T, B, n), with `value` in the padding."""
    by_length, _, batch_sizes = order(lengths)
    array = np.full((T, len(lengths), rows.shape[1]), value, rows.dtype)
    for t, part in enumerate(np.split(rows, np.cumsum(batch_sizes)[:-1])):
        array[t, by_length[: len(part)]] = part
    return array
