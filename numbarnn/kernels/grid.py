"""Choose launch sizes of kernels with one thread per element of a matrix."""

from numbarnn.cuda.backend import is_tiny
from numbarnn.cuda.launch import LaunchConfig

THREADS_PER_BLOCK = 128
MAX_GRID_Y = 65535


def launch_config(rows, columns, together=0):
    """Return a launch with one thread per element of (rows, columns), such as (B, H), columns along x and rows along y.

    Threads loop if the grid would exceed its limits.

    Args:
        together: most threads of a block that must have all columns of a row, for sums over units; else 0.
    """
    if is_tiny():  # the simulator's threads are slow; several blocks still cross block boundaries
        return LaunchConfig(grid=(1 if together else min(2, columns), min(2, rows)), block=together or min(4, columns))
    block = min(together or THREADS_PER_BLOCK, -(-columns // 32) * 32)
    return LaunchConfig(grid=(1 if together else -(-columns // block), min(rows, MAX_GRID_Y)), block=block)
