"""Copies between layouts and dtypes: batch-major and time-major, states in and out of their slots."""

from functools import cache

from numba import cuda

from numbarnn.compile import storage, units
from numbarnn.compile.backend import BACKEND
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.grid import launch_config


@cache
def make_copy(out_dtype=None, x_dtype=None):
    """The kernel from one dtype to another, of which one has 16 bits and one is float32; without, for any one dtype."""
    same = out_dtype == x_dtype
    widen = units.unchanged(BACKEND) if same else storage.widen(x_dtype)
    narrow = units.unchanged(BACKEND) if same else storage.narrow(out_dtype)

    @cuda.jit
    def copy_kernel(out, x):
        """out = x

        Writes   out (X, Y, Z), any strides; rounded to nearest even where it has 16 bits and x has 32
        Reads    x (X, Y, Z), any strides: a transpose is a copy of a view
        Launch   2-D, grid-stride over z (x of the grid) and y (y of the grid), loop over x; any grid is correct
        """
        X, Y, Z = x.shape
        for i in range(X):
            for j in range(cuda.blockIdx.y, Y, cuda.gridDim.y):
                for k in range(cuda.grid(1), Z, cuda.gridsize(1)):
                    out[i, j, k] = narrow(widen(x[i, j, k]))

    return Kernel(copy_kernel, "copy" if same else f"copy_{x_dtype}_to_{out_dtype}")


def copy(out, x):
    """out = x, arrays of one shape with up to 3 axes and any strides, of one dtype or as `make_copy` says."""
    if not x.size:
        return
    dtypes = () if out.dtype == x.dtype else (out.dtype.name, x.dtype.name)
    while out.ndim < 3:
        out, x = out[None], x[None]
    make_copy(*dtypes).bind(launch_config(*x.shape[1:]), storage.stored(out), storage.stored(x))()
