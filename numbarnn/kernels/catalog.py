"""List the kernels with arguments as layers pass them, for `numbarnn kernels` and for tests that compile all kernels.

The list has every combination of dtype and layout with which layers launch a kernel; a test compares both. Three
kinds of cells are unlimited in number, so one example stands for each, without masked kernels: LSTMs with cell clip,
cells with sums over units, cells that draw random numbers. Each persistent kernel belongs to one problem, and
`numbarnn.bench.planned` makes these.

For new kernels, write a function dtype -> ShippedKernels and append it to LISTS.
"""

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from numbarnn import cells
from numbarnn.cells import library, lstm, tracing
from numbarnn.cells.definition import Chances
from numbarnn.common.precision import DTYPES, compute_dtype, compute_type, is_half
from numbarnn.cuda import compiler
from numbarnn.cuda.arguments import Arguments, numba_types
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels.arrays import column_sums, copies, dropout, masks
from numbarnn.kernels.grid import THREADS_PER_BLOCK
from numbarnn.kernels.step import groups, pointwise, projection, stages, unit_sums


@dataclass(frozen=True)
class ShippedKernel:
    """A kernel and example arguments.

    Attributes:
        kernel: the Kernel. dtype: of the layer's arrays; 16-bit arguments are uint16 (`numbarnn.compile.storage`).
        layouts: a name for kernels that differ only in arguments' layouts or in tile sizes; else "".
        threads: the most threads per block of its launches.
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
        """Return the Python function that is compiled."""
        return self.kernel.dispatcher.py_func

    @property
    def signature(self):
        """Return the kernel's name and its arguments' types and layouts, on which compiled code depends."""
        return self.kernel.name, Arguments(self.kernel.name, self.arguments).signature

    def compile(self, cc):
        """Return the CompiledKernel for a compute capability such as (9, 0)."""
        return self.kernel.compile(cc, *self.arguments)

    def ptx(self, cc):
        """Return the kernel's PTX as text."""
        num_ints = self.function.__code__.co_argcount - len(self.arguments)
        types = numba_types((*self.signature[1], *["int32"] * num_ints))
        return compiler.ptx(self.kernel.dispatcher, types, cc)


def zeros(dtype, *shape):
    """Return an array of zeros with a dtype in the form for kernels."""
    return np.zeros(shape, "uint16" if is_half(dtype) else dtype)


CLIPPED_LSTM = lstm.clipped(-1.0, 1.0)  # the LSTM with cell clip
# Example cells that add up over units, and that draw random numbers.
SUMMING, DRAWING = library.layer_norm_gru, tracing.cell(library.gru, zoneout_h=0.1)


def pointwise_kernels(dtype):
    """Yield the pointwise kernels, of each cell with and without a step mask, of the examples without."""
    for cell in cells.CELLS.values():
        for masked in (False, True):
            yield from pointwise_kernels_of(cell, dtype, masked)
    for cell in (CLIPPED_LSTM, SUMMING, DRAWING):
        yield from pointwise_kernels_of(cell, dtype, masked=False)


def pointwise_kernels_of(cell, dtype, masked):
    """Yield a cell's kernels for training, inference and backward."""
    before, after = cell.sums_before(len(cell.stages)), cell.sums_after(-1)
    for save in (True, False):
        forward = pointwise.make_pointwise_forward(cell, dtype, save, masked)
        arguments = groups.forward_arguments(_buffers(cell, dtype, masked, save)[0])
        yield ShippedKernel(forward, dtype, "", _threads(cell, dtype, before), arguments)
    for projected in (False, True) if "c" in cell.states else (False,):
        backward = pointwise.make_pointwise_backward(cell, dtype, masked, projected)
        arguments = groups.backward_arguments(_buffers(cell, dtype, masked, projected=projected)[1])
        yield ShippedKernel(backward, dtype, "", _threads(cell, dtype, after), arguments)


def _threads(cell, dtype, stages):
    """Return the most threads per block of a kernel that computes the sums of these stages (their numbers)."""
    return unit_sums.threads(cell, dtype, stages) or THREADS_PER_BLOCK


def _buffers(cell, dtype, masked, save=True, projected=False):
    """Return small `ForwardBuffers` and `BackwardBuffers` of a direction's steps."""
    T, B, H, number = 3, 2, 5, compute_dtype(dtype)
    G, A, N, Q = cell.num_gates, cell.num_ah, cell.num_private, cell.num_sums
    V, S = cell.num_per_unit, cell.num_products
    h, ax = zeros(dtype, T + 2, B, H), zeros(dtype, T, B, max(cell.num_saved, G) * H)
    c, dh, dc = zeros(number, T + 2 if save else 2, B, N * H), zeros(number, B, H), zeros(number, B, N * H)
    per_unit, d_per_unit = (zeros(dtype, V * H), zeros(dtype, T, B, V * H)) if V else (None, None)
    v, d_v = (zeros(dtype, T, B, S * H), zeros(number, B, S * H)) if S else (None, None)
    sums, d_sums = (zeros(number, T, B, Q), zeros(number, B, Q)) if Q else (None, None)
    noise = zeros("uint64", 6) if cell.noise and save else None
    thresholds, values = (np.uint64(0),) * len(cell.noise), (np.dtype(number).type(0),) * len(cell.noise)
    chances = Chances(thresholds if save else None, values) if cell.noise else None
    options = groups.Options(zeros("uint8", T + 2, B) if masked else None, noise, chances)
    parameters = groups.Parameters(None, zeros(dtype, G * H), zeros(dtype, A * H), per_unit=per_unit)
    states = groups.States(h, c, h if projected else None)
    saved = groups.Saved(ax if save and cell.num_saved else None, v, sums)
    dah, dy = zeros(dtype, T, B, A * H), zeros(dtype, T, B, H)
    gradients = groups.Gradients(dh, dc, ax, dah, dy, d_per_unit=d_per_unit)
    scratch = groups.Scratch(ax, zeros(number, B, A * H))
    forward = groups.ForwardBuffers(cell, 0, save, parameters, states, saved, scratch, options)
    scratch = groups.Scratch(dm=dh if projected else None, d_v=d_v, d_sums=d_sums)
    return forward, groups.BackwardBuffers(cell, 0, parameters, states, saved, gradients, scratch, options)


def stage_kernels(dtype):
    """Yield the stage kernels of all cells that have stages."""
    for cell in cells.CELLS.values():
        yield from stage_kernels_of(cell, dtype)


def stage_kernels_of(cell, dtype):
    """Yield a cell's stage kernels, with and without a step mask, in training if the cell draws."""
    for stage, masked in product(cell.product_stages, (False, True)):
        of_forward, of_backward = _buffers(cell, dtype, masked)
        forward = stages.make_stage_forward(cell, stage, dtype, masked, bool(cell.noise))
        backward = stages.make_stage_backward(cell, stage, dtype, masked)
        threads = [_threads(cell, dtype, sums) for sums in (cell.sums_before(stage), cell.sums_after(stage))]
        yield ShippedKernel(forward, dtype, "", threads[0], stages.forward_arguments(of_forward))
        yield ShippedKernel(backward, dtype, "", threads[1], groups.backward_arguments(of_backward))


def array_kernels(dtype):
    """Yield the kernels of `kernels.arrays` and of projections, each with the layouts of its launches.
    A kernel without a dtype appears once, and one that moves 16 bits appears for float16 only."""
    T, B, H, G, number = 3, 2, 4, 3, compute_type(dtype)
    bits, step_mask, fill = dtype != "bfloat16", zeros("uint8", T + 2, B), number(0)

    def shipped(kernel, layouts, *arguments, threads=THREADS_PER_BLOCK):
        return ShippedKernel(kernel, dtype, layouts, threads, arguments)

    if dtype == DTYPES[0]:
        arguments = zeros("uint8", 1, T + 2, B), zeros("int32", B), zeros("uint8", T, B)
        yield shipped(masks.make_step_mask_kernel(), "", *arguments)
    contiguous, strided = zeros(dtype, T, B, H), zeros(dtype, B, T, H).transpose(1, 0, 2)
    for layouts, out, x in (
        ("contiguous_from_contiguous", contiguous, contiguous),
        ("contiguous_from_strided", contiguous, strided),
        ("strided_from_contiguous", strided, contiguous),
    ):
        yield shipped(masks.make_select(dtype)[0], layouts, out, x, step_mask[:T], fill)
    yield shipped(masks.make_gather(dtype)[0], "", zeros(dtype, 2, H), zeros(dtype, 3, H), zeros("int64", 2), fill)
    rows, dh = zeros(dtype, T, H), zeros(compute_dtype(dtype), B, H)
    for layouts, wider in (("contiguous", 1), ("columns", 2)):  # one direction, one of two; rows of gates
        h, dy = (zeros(dtype, slots, B, wider * H)[:, :, :H] for slots in (T + 2, T))
        gates = zeros(dtype, T, wider * G * H)[:, : G * H]
        if bits:
            yield shipped(projection.make_carry(), layouts, h, step_mask)
            yield shipped(copies.make_spread(), layouts, gates, rows)
        for flag in (False, True):
            gradients = groups.Gradients(dh, dc=None, dax=None, dah=None, dy=dy, dht=contiguous)
            arguments = projection.join_arguments(gradients, groups.Options(step_mask if flag else None))
            yield shipped(projection.make_join(dtype, flag), layouts, *arguments)
            yield shipped(copies.make_sum_gates(dtype, flag), layouts, rows, gates)
        add, threads = column_sums.make_add_column_sums(dtype), prod(column_sums.threads())
        yield shipped(add, layouts, zeros(dtype, H), zeros(dtype, T, wider * H)[:, :H], threads=threads)
    if bits:
        yield shipped(copies.make_spread_blocks(), "", zeros(dtype, 6, 4), zeros(dtype, 6, 2))
    flat, mask, threads = zeros(dtype, 5), np.zeros(6, np.uint64), dropout.THREADS_PER_BLOCK
    yield shipped(dropout.make_dropout(dtype), "", flat, flat, mask, number(1), np.uint64(0), threads=threads)
    pairs = [(dtype, dtype)] * bits + [(dtype, "float32"), ("float32", dtype)] * is_half(dtype)
    for names, ways in product(pairs, product(("contiguous", "strided"), repeat=2)):
        kernel = copies.make_copy(*(names if names[0] != names[1] else ()))
        out, x = (
            zeros(name, 2, 3, 4 * (1 + (way == "strided")))[:, :, :4] for name, way in zip(names, ways, strict=True)
        )
        yield shipped(kernel, "_from_".join(ways), out, x)


LISTS = [pointwise_kernels, stage_kernels, array_kernels]  # functions dtype -> ShippedKernels


def shipped_kernels():
    """Yield all kernels, dtype by dtype, in the order of LISTS."""
    for dtype in DTYPES:
        for kernels_of in LISTS:
            yield from kernels_of(dtype)


def find(name, everything):
    """Return the first ShippedKernel of a name: "copy", or in full "copy-float64-contiguous_from_strided".

    Args:
        everything: list of ShippedKernels.

    Raises:
        ValueError: no kernel has the name; the message lists all.
    """
    for shipped in everything:
        if name in (shipped.kernel.name, str(shipped)):
            return shipped
    names = ", ".join(dict.fromkeys(shipped.kernel.name for shipped in everything))
    raise ValueError(f"expected one of {names}; or in full, such as {everything[-1]}; got {name!r}")
