"""Anti-diagonals of (layer, block of steps): while a layer works on a block of steps, the next one works on the
previous.

Each block has its input product, dropout mask and stretch of the recurrence. The gradients of a layer's parameters are
one task per direction over all steps, which adds them in the same order as "stepwise". It runs while the layers below
run their steps. With two directions a layer's first block needs all of the layer below, so layers hardly overlap. The
two directions overlap, and so do input products with the recurrence below them.
"""

from numbarnn.common.words import counted
from numbarnn.schedules.stepwise import SizedSchedule

NAME = "wavefront"

# Blocks per layer, for each layer above the first. L layers of n blocks take as long as n + L - 1 blocks of one: with n
# = FILL (L - 1) the ends of the wavefront, where some layers are idle, cost 1 / FILL of one layer's time. More blocks
# mean smaller, less efficient input products.
FILL = 8


def block_steps(layers, steps):
    """Return the steps per block: T in FILL (L - 1) blocks, or in as many as there are steps; all T if L is 1."""
    blocks = max(1, min(steps, FILL * (layers - 1)))
    return -(-steps // blocks)


def _blocks(layers, steps):
    """Return [first, last) of each block."""
    size = block_steps(layers, steps)
    return [(first, min(first + size, steps)) for first in range(0, steps, size)]


def _reason(layers, steps):
    size = block_steps(layers, steps)
    blocks = f"{counted(-(-steps // size), 'block')} of {counted(size, 'step')}"
    return f"{blocks} per layer and direction, side by side where their data allow"


def _by_diagonals(tasks):
    """Sort tasks by the order in which their needs are met if all tasks take the same time."""
    levels = {}  # by identity: comparing tasks by their fields takes longer than all else here
    for task in tasks:
        levels[id(task)] = 1 + max([levels[id(need)] for need in task.needs], default=-1)
    return tuple(sorted(tasks, key=lambda task: levels[id(task)]))


SCHEDULE = SizedSchedule(NAME, _blocks, _reason, _by_diagonals, concurrent=True)
