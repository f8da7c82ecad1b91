"""The kernels that a step with projection needs besides products and the cell (h = W_hr m, m the cell's output)."""

import numpy as np

from numbarnn.common.order import RESET, SKIP
from numbarnn.common.precision import compute_dtype
from numbarnn.compile import storage
from numbarnn.cuda.backend import per_backend
from numbarnn.cuda.language import cuda
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.grid import launch_config
from numbarnn.kernels.step.groups import Options
from numbarnn.kernels.step.unit_values import make_where


@per_backend
def make_carry():
    """Make the kernel for any dtype."""

    @cuda.jit
    def carry_kernel(h, step_mask, t, before):
        """Carry h over skipped steps: h[t + 1] = h[before], in rows that the product has overwritten.

        Writes   h[t + 1] of h (T+2, B, P), one direction's columns
        Reads    h[before]; step_mask[t + 1] of step_mask (T+2, B)
        Launch   2-D, grid-stride over columns (x) and sequences (y); any grid is correct
        """
        for b in range(cuda.blockIdx.y, h.shape[1], cuda.gridDim.y):
            if step_mask[t + 1, b] == SKIP:
                for k in range(cuda.grid(1), h.shape[2], cuda.gridsize(1)):
                    h[t + 1, b, k] = h[before, b, k]

    return Kernel(carry_kernel, "carry")


def bind_carry(h, step_mask):
    """Return f(t, before), which launches the carry kernel on its arrays."""
    return make_carry().bind(launch_config(*h.shape[1:]), storage.stored(h), step_mask)


@per_backend
def make_join(dtype, masked):
    """Make the kernel for one dtype; with `masked` it reads the step mask."""
    widen, narrow, where_of = storage.widen(dtype), storage.narrow(dtype), make_where(masked)
    zero = np.dtype(compute_dtype(dtype)).type(0)

    @cuda.jit
    def join_kernel(gradients, options, t, before):
        """Add the gradients of a step's h from the output and from later steps.

        Writes   gradients: dht[t] = dy[t] + dh, 0 if the step is skipped; dh = 0, unless it is skipped
        Reads    gradients: dy (T, B, P), one direction's columns, dh; options: step_mask (masked) at t + 1 and at the
                 next step
        Launch   2-D, grid-stride over columns (x) and sequences (y); any grid is correct
        """
        dht, dh, dy = gradients.dht, gradients.dh, gradients.dy
        for b in range(cuda.blockIdx.y, dh.shape[0], cuda.gridDim.y):
            where = where_of(options, 0, t, before, b)
            for k in range(cuda.grid(1), dh.shape[1], cuda.gridsize(1)):
                d_h = zero if masked and where.code_after == RESET else dh[b, k]
                if masked and where.code == SKIP:
                    dht[t, b, k] = narrow(zero)
                    dh[b, k] = d_h
                else:
                    dht[t, b, k] = narrow(widen(dy[t, b, k]) + d_h)
                    dh[b, k] = zero

    return Kernel(join_kernel, "join_masked" if masked else "join")


def join_arguments(gradients, options):
    """Return the join kernel's arguments without t and before. dy has the columns of its direction."""
    used = gradients._replace(dc=None, dax=None, dah=None, d_per_unit=None), Options(options.step_mask)
    return tuple(map(storage.stored_group, used))


def bind_join(gradients, options):
    """Return f(t, before), which launches the join kernel on its arrays; see `join_arguments`."""
    kernel = make_join(gradients.dht.dtype.name, options.step_mask is not None)
    return kernel.bind(launch_config(*gradients.dh.shape), *join_arguments(gradients, options))
