"""The random numbers of cells, computed on the host: what kernels draw, as arrays."""

import numpy as np

from numbarnn.common.philox import WORD_MASK, philox


def noise(kinds, dtype, steps, batch, hidden, words):
    """(T, B, N, H): the numbers that units draw in a training call; see `numbarnn.common.philox.noise_words`.

    Args:
        kinds: of N numbers, a `numbarnn.cells.definition.Noise` each.
        steps, batch, hidden: T, B, H.
        words: (4,) uint64, of one layer and direction.
    """
    position = np.arange(batch * hidden, dtype=np.uint64)
    key_0, key_1, stream, call = words
    drawn, before = np.empty((steps, batch, len(kinds), hidden), dtype), {True: 0, False: 0}
    for number, kind in enumerate(kinds):
        group, lane = divmod(before[kind.each_step], 4)
        before[kind.each_step] += 1
        when = np.arange(steps, dtype=np.uint64)[:, None] if kind.each_step else WORD_MASK
        random = philox(position, when, stream + np.uint64(group), call, key_0, key_1)[lane]
        kept = np.where(random >= np.uint64(round(kind.rate * 2**32)), kind.kept, 0.0)
        drawn[:, :, number] = kept.reshape(-1, batch, hidden)
    return drawn
