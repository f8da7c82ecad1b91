"""Sum over rows, for the gradients of biases. The order of the sum depends on the sizes alone."""

import numpy as np

from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage
from numbarnn.cuda.backend import is_tiny, per_backend
from numbarnn.cuda.language import cuda
from numbarnn.cuda.launch import Kernel, LaunchConfig

SUM_ROWS = 32  # rows a thread adds up into one partial sum


def threads():
    """Return the rows and columns of a block's threads."""
    return (2, 4) if is_tiny() else (16, 32)


@per_backend
def make_add_column_sums(dtype):
    """Make the kernel for one dtype."""
    scalar, (ROWS, COLUMNS) = np.dtype(compute_dtype(dtype)).type, threads()
    widen, narrow = storage.widen(dtype), storage.narrow(dtype)

    @cuda.jit
    def add_column_sums_kernel(out, x):
        """Add column sums: out += x.sum(axis=0).

        Writes   out (N,)
        Reads    out; x (M, N), rows at any stride
        Launch   blocks of (COLUMNS, ROWS) threads, 1-D grid-stride over tiles of COLUMNS columns; any grid is correct
        """
        tile = cuda.shared.array((ROWS, COLUMNS), scalar)
        row, column = cuda.threadIdx.y, cuda.threadIdx.x
        M, N = x.shape
        for first in range(cuda.blockIdx.x * COLUMNS, N, cuda.gridDim.x * COLUMNS):
            n = first + column
            active = n < N
            total = scalar(0)
            if active:
                for start in range(row, M, ROWS * SUM_ROWS):
                    part = scalar(0)  # sums of sums round less than one long one
                    for m in range(start, min(M, start + ROWS * SUM_ROWS), ROWS):
                        part += widen(x[m, n])
                    total += part
            tile[row, column] = total
            cuda.syncthreads()
            if active and row == 0:
                for r in range(1, ROWS):
                    total += tile[r, column]
                out[n] = narrow(widen(out[n]) + total)
            cuda.syncthreads()

    return Kernel(add_column_sums_kernel, "add_column_sums")


def add_column_sums(out, x):
    """Add column sums: out (N,) += x.sum(axis=0) for x (M, N)."""
    ROWS, COLUMNS = threads()
    blocks = min(-(-out.shape[0] // COLUMNS), 2 if is_tiny() else 1024)
    config = LaunchConfig(grid=blocks, block=(COLUMNS, ROWS))
    make_add_column_sums(out.dtype.name).bind(config, storage.stored(out), storage.stored(x))()
