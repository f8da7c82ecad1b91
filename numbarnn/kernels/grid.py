"""The grid of a kernel with a thread for each element of a matrix."""

from numbarnn.cuda.backend import is_tiny
from numbarnn.cuda.launch import LaunchConfig

THREADS_PER_BLOCK = 128
MAX_GRID_Y = 65535


def launch_config(rows, columns, together=0):
    """One thread per element of (rows, columns), such as (B, H), where the grid allows: columns along x, rows along y.

    Args:
        together: the most threads of a block, if it has to have all columns of a row (for sums over units); else 0.
    """
    if is_tiny():  # in the simulator a thread is dear; several blocks, so that their boundaries are crossed
        return LaunchConfig(grid=(1 if together else min(2, columns), min(2, rows)), block=together or min(4, columns))
    block = min(together or THREADS_PER_BLOCK, -(-columns // 32) * 32)
    return LaunchConfig(grid=(1 if together else -(-columns // block), min(rows, MAX_GRID_Y)), block=block)
