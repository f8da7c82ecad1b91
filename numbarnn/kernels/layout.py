"""Copies between layouts: batch-major and time-major, states in and out of their slots."""

from functools import cache

from numba import cuda

from numbarnn.kernels.launch import Kernel, LaunchConfig
from numbarnn.kernels.target import TINY_LAUNCHES

THREADS_PER_BLOCK = 128
MAX_GRID_Y = 65535


@cache
def make_copy():
    """The kernel; one for all dtypes."""

    @cuda.jit
    def copy_kernel(out, x):
        """out = x

        Writes   out (X, Y, Z), any strides
        Reads    x (X, Y, Z), any strides: a transpose is a copy of a view
        Launch   2-D, grid-stride over z (x of the grid) and y (y of the grid), loop over x; any grid is correct
        """
        X, Y, Z = x.shape
        for i in range(X):
            for j in range(cuda.blockIdx.y, Y, cuda.gridDim.y):
                for k in range(cuda.grid(1), Z, cuda.gridsize(1)):
                    out[i, j, k] = x[i, j, k]

    return Kernel(copy_kernel, "copy")


def copy(out, x):
    """out = x, arrays of one shape and dtype with up to 3 axes and any strides."""
    while out.ndim < 3:
        out, x = out[None], x[None]
    _, rows, columns = x.shape
    if TINY_LAUNCHES:
        config = LaunchConfig(grid=(2, min(2, rows)), block=min(4, columns))
    else:
        config = LaunchConfig(grid=(-(-columns // THREADS_PER_BLOCK), min(rows, MAX_GRID_Y)), block=THREADS_PER_BLOCK)
    make_copy().bind(config, out, x)()
