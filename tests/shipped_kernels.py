"""Every kernel of the package with arguments as layers pass them: what tests compile, and launch in the simulator."""

from dataclasses import dataclass

import numpy as np

from numbarnn import cells
from numbarnn.kernels import dropout, layout, pointwise, reduce
from numbarnn.kernels.arguments import Arguments
from numbarnn.kernels.launch import Kernel

DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Shipped:
    """A kernel and the arguments it is bound to; the rest of its parameters are ints."""

    kernel: Kernel
    dtype: str
    layouts: str
    arguments: tuple

    def __str__(self):
        return "-".join(word for word in (self.kernel.name, self.dtype, self.layouts) if word)

    @property
    def signature(self):
        """What compiling depends on: the kernel's name and its arguments' types and layouts."""
        return self.kernel.name, Arguments(self.kernel.name, self.arguments).signature


def pointwise_kernels(cell, dtype):
    """The three kernels of a cell; all arrays are contiguous."""
    T, B, H, G, N = 3, 2, 5, cell.num_gates, cell.num_private
    K = max(cell.num_saved, G)

    def zeros(*shape):
        return np.zeros(shape, dtype)

    h, b_w, b_r, direction = zeros(T + 2, B, H), zeros(G * H), zeros(G * H), np.int32(0)
    ax, ah = zeros(T, B, K * H), zeros(B, G * H)
    for save in (True, False):
        c = zeros(T + 2 if save else 2, B, N * H)
        kernel = pointwise.make_pointwise_forward(cell, dtype, save)
        yield Shipped(kernel, dtype, "", (h, c, ax, ah, b_w, b_r, direction))
    dh, dc, dax, dah, dy = zeros(B, H), zeros(B, N * H), zeros(T, B, K * H), zeros(T, B, G * H), zeros(T, B, H)
    kernel = pointwise.make_pointwise_backward(cell, dtype)
    yield Shipped(kernel, dtype, "", (dh, dc, dax, dah, dy, h, zeros(T + 2, B, N * H), direction))


def other_kernels(dtype):
    """Row sums, dropout, and copies between contiguous and strided arrays."""
    one, u64, H = np.dtype(dtype).type(1), np.uint64(1), 5
    rows = np.zeros((2, 2 * H), dtype)
    for layouts, x in (("contiguous", rows), ("columns", rows[:, :H])):
        yield Shipped(reduce.make_add_row_sums(dtype), dtype, layouts, (np.zeros(x.shape[1], dtype), x))
    flat = np.zeros(H, dtype)
    yield Shipped(dropout.make_dropout(dtype), dtype, "", (flat, flat, one, u64, u64, u64, u64, u64))
    plain, strided = np.zeros((2, 3, 4), dtype), np.zeros((2, 3, 8), dtype)[:, :, :4]
    for out_name, out in (("contiguous", plain), ("strided", strided)):
        for x_name, x in (("contiguous", plain), ("strided", strided)):
            yield Shipped(layout.make_copy(), dtype, f"{out_name}_from_{x_name}", (out, x))


def shipped_kernels():
    """All of them."""
    for dtype in DTYPES:
        for cell in cells.CELLS.values():
            yield from pointwise_kernels(cell, dtype)
        yield from other_kernels(dtype)
