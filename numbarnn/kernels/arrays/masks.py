"""Fill step masks for sequence lengths and resets, and select rows by them."""

import numpy as np

from numbarnn.common.order import mask_of_step
from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage
from numbarnn.compile.specialise import jit
from numbarnn.cuda.backend import backend, per_backend
from numbarnn.cuda.language import cuda
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.grid import launch_config


@per_backend
def make_step_mask_kernel():
    """Make the kernel that fills the step mask."""
    code_of = jit(mask_of_step, backend())

    @cuda.jit
    def step_mask_kernel(step_mask, lengths, resets):
        """Compute the mask code of every step of every sequence, in each direction.

        Writes   step_mask (D, T+2, B) uint8: slot t + 1 is time t, as in h; slots 0 and T + 1 are 0
        Reads    lengths (B,) int32; resets (T, B) uint8, any strides; (0, B) without resets
        Launch   2-D, grid-stride over sequences (x) and slots (y); any grid is correct
        """
        D, slots, B = step_mask.shape
        for slot in range(cuda.blockIdx.y, slots, cuda.gridDim.y):
            for b in range(cuda.grid(1), B, cuda.gridsize(1)):
                for direction in range(D):
                    code = 0
                    if 0 < slot and slot < slots - 1:
                        code = code_of(slot - 1, direction, lengths[b], resets, b)
                    step_mask[direction, slot, b] = code

    return Kernel(step_mask_kernel, "fill_step_mask")


def fill_step_mask(step_mask, lengths, resets):
    """Fill step_mask (D, T+2, B) uint8 from lengths (B,) int32 and resets (T, B) uint8; see the kernel."""
    make_step_mask_kernel().bind(launch_config(*step_mask.shape[1:]), step_mask, lengths, resets)()


@per_backend
def make_select(dtype):
    """Make the kernel for one dtype of x."""
    narrow, number = storage.narrow(dtype), np.dtype(compute_dtype(dtype)).type

    @cuda.jit
    def select_kernel(out, x, step_mask, fill, dropped):
        """Copy out = x, but write `fill` in the rows whose code has a bit of `dropped`.

        Writes   out (X, Y, Z), any strides
        Reads    x (X, Y, Z), any strides; step_mask (X, Y) uint8, any strides; fill, in x's compute dtype
        Launch   2-D, grid-stride over z (x of the grid) and y (y of the grid), loop over x; any grid is correct
        Aliases  out may be x
        """
        X, Y, Z = x.shape
        for i in range(X):
            for j in range(cuda.blockIdx.y, Y, cuda.gridDim.y):
                drop = step_mask[i, j] & dropped != 0
                for k in range(cuda.grid(1), Z, cuda.gridsize(1)):
                    out[i, j, k] = narrow(fill) if drop else x[i, j, k]

    return Kernel(select_kernel, "select"), number


def select(out, x, step_mask, dropped, fill):
    """Copy out = x, but write `fill` in the rows whose code in step_mask (X, Y) has a bit of `dropped`."""
    kernel, number = make_select(x.dtype.name)
    config = launch_config(*x.shape[1:])
    kernel.bind(config, storage.stored(out), storage.stored(x), step_mask, number(fill))(dropped)


@per_backend
def make_gather(dtype):
    """Make the kernel for one dtype."""
    narrow, number = storage.narrow(dtype), np.dtype(compute_dtype(dtype)).type

    @cuda.jit
    def gather_kernel(out, x, index, fill):
        """Gather rows: out[i] = x[index[i]], or `fill` if index[i] is negative. Packs and unpacks sequences.

        Writes   out (N, Z)
        Reads    x (M, Z); index (N,) int64; fill, in x's compute dtype
        Launch   2-D, grid-stride over z (x of the grid) and rows (y); any grid is correct
        """
        N, Z = out.shape
        for i in range(cuda.blockIdx.y, N, cuda.gridDim.y):
            row = index[i]
            for k in range(cuda.grid(1), Z, cuda.gridsize(1)):
                out[i, k] = x[row, k] if row >= 0 else narrow(fill)

    return Kernel(gather_kernel, "gather"), number


def gather(out, x, index, fill):
    """Gather the rows of x (M, Z) that index (N,) names into out (N, Z); write `fill` for negative indices."""
    if not out.size:
        return
    kernel, number = make_gather(x.dtype.name)
    kernel.bind(launch_config(*out.shape), storage.stored(out), storage.stored(x), index, number(fill))()
