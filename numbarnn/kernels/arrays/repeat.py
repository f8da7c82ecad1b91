"""Skip input (CUDNN_SKIP_INPUT): x itself stands for W x, for each gate."""

from functools import cache

import numpy as np
from numba import cuda

from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.grid import launch_config


@cache
def make_spread():
    """The kernel for any dtype."""

    @cuda.jit
    def spread_kernel(out, x, gates):
        """out[m, g H + j] = x[m, j]

        Writes   out (M, G*H), rows at any stride
        Reads    x (M, H), rows at any stride; gates = G
        Launch   2-D, grid-stride over units (x) and rows (y); any grid is correct
        """
        M, H = x.shape
        for m in range(cuda.blockIdx.y, M, cuda.gridDim.y):
            for j in range(cuda.grid(1), H, cuda.gridsize(1)):
                for g in range(gates):
                    out[m, g * H + j] = x[m, j]

    return Kernel(spread_kernel, "spread")


def spread(out, x, gates):
    """out (M, G*H) = x (M, H) for each of G gates."""
    make_spread().bind(launch_config(*x.shape), storage.stored(out), storage.stored(x))(gates)


@cache
def make_sum_gates(dtype, accumulate):
    """The kernel for one dtype."""
    widen, narrow = storage.widen(dtype), storage.narrow(dtype)
    zero = np.dtype(compute_dtype(dtype)).type(0)

    @cuda.jit
    def sum_gates_kernel(out, x, gates):
        """out[m, j] = sum over g of x[m, g H + j], or += with `accumulate`

        Writes   out (M, H), contiguous
        Reads    x (M, G*H), rows at any stride; gates = G
        Launch   2-D, grid-stride over units (x) and rows (y); any grid is correct
        """
        M, H = out.shape
        for m in range(cuda.blockIdx.y, M, cuda.gridDim.y):
            for j in range(cuda.grid(1), H, cuda.gridsize(1)):
                total = widen(out[m, j]) if accumulate else zero
                for g in range(gates):
                    total += widen(x[m, g * H + j])
                out[m, j] = narrow(total)

    return Kernel(sum_gates_kernel, "sum_gates_accumulate" if accumulate else "sum_gates")


def sum_gates(out, x, gates, accumulate):
    """out (M, H) = the sum over gates of x (M, G*H), or +=."""
    kernel = make_sum_gates(x.dtype.name, accumulate)
    kernel.bind(launch_config(*out.shape), storage.stored(out), storage.stored(x))(gates)
