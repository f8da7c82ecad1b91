"""Every kernel but planned ones, with arguments as layers pass them: for `numbarnn kernels` and the tests to compile.

What is launched on a GPU is listed here, with every combination of dtype and layout that it is launched with; a test
holds layers to it. A module with new kernels gets a function dtype -> ShippedKernels here, appended to LISTS. Kernels
that a planner cuts for a problem are listed in `numbarnn.bench.planned`.
"""

from dataclasses import dataclass

import numpy as np

from numbarnn import cells
from numbarnn.cells.precision import DTYPES, compute_dtype, is_half
from numbarnn.kernels import compiler, dropout, layout, pointwise, reduce
from numbarnn.kernels.arguments import Arguments, numba_types
from numbarnn.kernels.launch import Kernel


@dataclass(frozen=True)
class ShippedKernel:
    """A kernel and arguments like those that it is bound to.

    Attributes:
        kernel: the Kernel.
        dtype: of the layer's arrays; arguments of 16 bits are uint16 (`numbarnn.kernels.storage`).
        layouts: tells arguments apart that differ in layout alone, or kernels cut for different sizes; else "".
        threads: per block, the most that it is launched with.
        arguments: small NumPy arrays, scalars, tuples of them; the kernel's remaining parameters are ints.
        dynamic_shared_bytes: dynamic shared memory per block.
    """

    kernel: Kernel
    dtype: str
    layouts: str
    threads: int
    arguments: tuple
    dynamic_shared_bytes: int = 0

    def __str__(self):
        return "-".join(word for word in (self.kernel.name, self.dtype, self.layouts) if word)

    @property
    def function(self):
        """The Python function that is compiled."""
        return self.kernel.dispatcher.py_func

    @property
    def signature(self):
        """What compiling depends on: the kernel's name and its arguments' types and layouts."""
        return self.kernel.name, Arguments(self.kernel.name, self.arguments).signature

    def compile(self, cc):
        """The CompiledKernel for a compute capability such as (9, 0)."""
        return self.kernel.compile(cc, *self.arguments)

    def ptx(self, cc):
        """The kernel's PTX as text."""
        num_ints = self.function.__code__.co_argcount - len(self.arguments)
        types = numba_types((*self.signature[1], *["int32"] * num_ints))
        return compiler.ptx(self.kernel.dispatcher, types, cc)


def zeros(dtype, *shape):
    """An array of a dtype as kernels take it."""
    return np.zeros(shape, "uint16" if is_half(dtype) else dtype)


def pointwise_kernels(dtype):
    """Three kernels per cell; all arrays are contiguous."""
    for cell in cells.CELLS.values():
        yield from _pointwise_kernels_of(cell, dtype)


def _pointwise_kernels_of(cell, dtype):
    T, B, H, G, N = 3, 2, 5, cell.num_gates, cell.num_private
    K = max(cell.num_saved, G)

    def stored(*shape):
        return zeros(dtype, *shape)

    def accumulated(*shape):
        return zeros(compute_dtype(dtype), *shape)

    def shipped(kernel, *arguments):
        return ShippedKernel(kernel, dtype, "", pointwise.THREADS_PER_BLOCK, (*arguments, np.int32(0)))

    h, b_w, b_r = stored(T + 2, B, H), stored(G * H), stored(G * H)
    ax, ah = stored(T, B, K * H), accumulated(B, G * H)
    for save in (True, False):
        c = accumulated(T + 2 if save else 2, B, N * H)
        yield shipped(pointwise.make_pointwise_forward(cell, dtype, save), h, c, ax, ah, b_w, b_r)
    dh, dc = accumulated(B, H), accumulated(B, N * H)
    dax, dah, dy, c = stored(T, B, K * H), stored(T, B, G * H), stored(T, B, H), accumulated(T + 2, B, N * H)
    yield shipped(pointwise.make_pointwise_backward(cell, dtype), dh, dc, dax, dah, dy, h, c)


def reduce_kernels(dtype):
    """Row sums of contiguous rows and of a range of their columns."""
    rows, H = zeros(dtype, 2, 10), 5
    for layouts, x in (("contiguous", rows), ("columns", rows[:, :H])):
        arguments = (zeros(dtype, x.shape[1]), x)
        yield ShippedKernel(reduce.make_add_row_sums(dtype), dtype, layouts, reduce.ROWS * reduce.COLUMNS, arguments)


def dropout_kernels(dtype):
    """Dropout, of flat contiguous arrays."""
    flat, mask, scale = zeros(dtype, 5), np.zeros(5, np.uint64), np.dtype(compute_dtype(dtype)).type(1)
    arguments = (flat, flat, mask, scale, np.uint64(0))
    yield ShippedKernel(dropout.make_dropout(dtype), dtype, "", dropout.THREADS_PER_BLOCK, arguments)


def layout_kernels(dtype):
    """Copies between contiguous and strided arrays of a dtype; of 16 bits also from float32 and to it."""
    if dtype != "bfloat16":  # a copy of float16 is one of 16 bits
        yield from _copies(layout.make_copy(), dtype, dtype, dtype)
    if is_half(dtype):
        for out, x in ((dtype, "float32"), ("float32", dtype)):
            yield from _copies(layout.make_copy(out, x), dtype, out, x)


def _copies(kernel, dtype, out_dtype, x_dtype):
    arrays = []
    for each in (out_dtype, x_dtype):
        arrays.append({"contiguous": zeros(each, 2, 3, 4), "strided": zeros(each, 2, 3, 8)[:, :, :4]})
    for out_name, out in arrays[0].items():
        for x_name, x in arrays[1].items():
            layouts = f"{out_name}_from_{x_name}"
            yield ShippedKernel(kernel, dtype, layouts, layout.THREADS_PER_BLOCK, (out, x))


# Functions dtype -> ShippedKernels.
LISTS = [pointwise_kernels, reduce_kernels, dropout_kernels, layout_kernels]


def shipped_kernels():
    """All of them, one dtype after the other, in the order of LISTS."""
    for dtype in DTYPES:
        for kernels_of in LISTS:
            yield from kernels_of(dtype)


def find(name, everything):
    """The first ShippedKernel of that name: "copy", or in full "copy-float64-contiguous_from_strided".

    Args:
        everything: list of ShippedKernels.

    Raises:
        ValueError: there is none; says which there are.
    """
    for shipped in everything:
        if name in (shipped.kernel.name, str(shipped)):
            return shipped
    names = ", ".join(dict.fromkeys(shipped.kernel.name for shipped in everything))
    raise ValueError(f"expected one of {names}; or in full, such as {everything[-1]}; got {name!r}")
