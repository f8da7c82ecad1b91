"""What tests of persistent kernels in the simulator share."""

from functools import partial

import grouped_tiles
from numbarnn.engines.gpu import profiles


def few_threads(monkeypatch):
    """Few threads and exchanges between lanes, as they are dear: blocks of 4 units, weights in shared memory.

    Returns:
        A function that changes the simulator's device and what the planner may choose: change(multiprocessors=4,
        UNITS=(8,)).
    """

    change = partial(grouped_tiles.choose, monkeypatch, "sim", profiles.SIMULATOR)
    change(UNITS=(4,), SLICES=(1,))
    return change
