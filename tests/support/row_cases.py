"""Rows and step masks of tests: integers, of which every dtype holds sums exactly, and masks in any order."""

import numpy as np

from numbarnn.common.order import RESET, SKIP
from numbarnn.common.precision import numpy_dtype


def integers(dtype, *shape, seed=0):
    """Random integers from -8 to 8."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(numpy_dtype(dtype))


def random_step_mask(*shape, seed=0):
    """0, RESET and SKIP, in any order."""
    return np.random.default_rng(seed).choice(np.uint8([0, RESET, SKIP]), shape)


def expected_step_mask(directions, lengths, resets):
    """The step mask (D, T + 2, B) of lengths and resets (T, B), sequence by sequence."""
    T, B = resets.shape
    step_mask = np.zeros((directions, T + 2, B), np.uint8)
    for b, length in enumerate(lengths):
        step_mask[:, 1 + length : T + 1, b] = SKIP
        step_mask[0, 1 : 1 + length, b] = np.where(resets[:length, b], RESET, 0)
        if directions == 2 and length:  # the state that time t + 1 passes to time t
            step_mask[1, 1:length, b] = np.where(resets[1:length, b], RESET, 0)
    return step_mask
