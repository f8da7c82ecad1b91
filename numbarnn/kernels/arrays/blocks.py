"""Matrices of blocks on the diagonal, as dense ones."""

from functools import cache

from numba import cuda

from numbarnn.compile import storage
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.grid import launch_config


@cache
def make_spread_blocks():
    """The kernel for any dtype."""

    @cuda.jit
    def spread_blocks_kernel(out, x, gates):
        """out[g H + j, k P/n + i] = x[g H + j, i] for head k = j div (H/n), and 0 for the other heads

        Writes   out (G*H, P), contiguous
        Reads    x (G*H, P/n), contiguous; gates = G; n divides H and P
        Launch   2-D, grid-stride over columns (x) and rows (y) of out; any grid is correct
        """
        (rows, columns), width = out.shape, x.shape[1]
        H, size = rows // gates, rows // gates * width // columns
        for row in range(cuda.blockIdx.y, rows, cuda.gridDim.y):
            first = row % H // size * width
            for column in range(cuda.grid(1), columns, cuda.gridsize(1)):
                if first <= column and column < first + width:
                    out[row, column] = x[row, column - first]
                else:
                    out[row, column] = 0

    return Kernel(spread_blocks_kernel, "spread_blocks")


def spread_blocks(out, x, gates):
    """out (G*H, P) = the dense matrix of x (G*H, P/n), for each of G gates the blocks of n heads."""
    make_spread_blocks().bind(launch_config(*out.shape), storage.stored(out), storage.stored(x))(gates)
