"""Sums over the units of a sequence (`numbarnn.cells.definition.Stage`), computed by the kernel that reads them.

One block has all units of a sequence. For each stage with sums, each thread adds up the terms of its own units, and
the block adds the threads' results in a fixed order, before the next stage. All threads of the block take part. A
stage that needs the largest term (`Stage.largest`) takes the larger of two terms instead of adding them.
"""

import numpy as np

from numbarnn.common.precision import compute_dtype, compute_type
from numbarnn.compile import units
from numbarnn.compile.specialise import specialise
from numbarnn.cuda.backend import backend, is_tiny
from numbarnn.cuda.language import cuda
from numbarnn.kernels.device import device_function, in_turn
from numbarnn.kernels.step.unit_values import make_values_backward, make_values_forward

SHARED_BYTES = 48 * 1024


def _sizes():
    """Return the number of threads of a block, and the number of partial sums of each sum."""
    return (4, 2) if is_tiny() else (256, 16)


def threads(cell, dtype, stages):
    """Return the most threads of a block that adds up the terms of some stages, or 0 without stages.
    The threads of a stage with many sums are fewer, so that the sums fit in shared memory."""
    room, size = SHARED_BYTES // np.dtype(compute_dtype(dtype)).itemsize, _sizes()[0]
    while size > 32 and _shared_numbers(cell, stages, size) > room:
        size //= 2
    return size if stages else 0


def _shared_numbers(cell, stages, size):
    """Return the count of numbers in shared memory: for each sum one per thread, and its partial sums."""
    return max((len(cell.stages[stage].sums) for stage in stages), default=0) * (size + _sizes()[1])


def make_forward_sums(cell, stages, dtype, masked, draws):
    """Make a device function (rows, parameters, options, where, H) that writes the sums of some stages to the row of
    sums.

    Its arguments are those of `unit_values.make_values_forward`.

    Args:
        stages: their numbers; may be empty.
    """
    functions = tuple(cell.stages[stage].forward for stage in stages)
    return _make_sums(cell, stages, functions, make_values_forward(cell, dtype, masked, draws), dtype)


def make_backward_sums(cell, stages, dtype, flags):
    """Make a device function (rows, parameters, options, where, H) that writes gradients of stages' sums to the row of
    d_sums.

    Its arguments are those of `unit_values.make_values_backward`.

    Args:
        flags: (masked, projected, with_states).
    """
    functions = tuple(cell.stages[stage].backward for stage in stages)
    return _make_sums(cell, stages, functions, make_values_backward(cell, dtype, *flags), dtype)


@device_function
def _make_sums(cell, stages, functions, values_of, dtype):
    """Make a device function that writes stages' sums to the last of `rows`, which is sums or d_sums."""
    if not stages:
        return lambda rows, parameters, options, where, H: None
    phases = tuple(_make_phase(cell, *each, values_of, dtype) for each in zip(stages, functions, strict=True))
    run, scalar = in_turn(phases), compute_type(dtype)
    size = _shared_numbers(cell, stages, threads(cell, dtype, stages))

    def fill_in(rows, parameters, options, where, H):
        run(cuda.shared.array(size, scalar), rows, parameters, options, where, H)

    return fill_in


@device_function
def _make_phase(cell, stage, function, values_of, dtype):
    """Make a device function for one stage's sums, which sees the sums of earlier stages."""
    count, first, number = len(cell.stages[stage].sums), cell.first_sum(stage), compute_dtype(dtype)
    largest = cell.stages[stage].largest
    terms_of, add_across = specialise(function, dtype, backend()), _make_add_across(count, number, largest)
    add = units.larger(count) if largest else units.adder(count)
    none = units.zeros(count, number, -np.inf if largest else 0)

    def phase(shared, rows, parameters, options, where, H):
        terms = none()
        for j in range(np.uintp(cuda.threadIdx.x), H, np.uintp(cuda.blockDim.x)):
            arguments, _ = values_of(rows, parameters, options, where, j, H)
            terms = add(terms, terms_of(*arguments))
        add_across(rows[-1], first, shared, terms)

    return phase


@device_function
def _make_add_across(count, dtype, largest):
    """Make add_across(out, first, shared, terms), which sets out[first + k] to the sum (or the largest) of all threads'
    terms[k]. It ends with a barrier, after which all threads see the results."""
    none, store = np.dtype(dtype).type(-np.inf if largest else 0), units.storer(count)
    add, (_, PARTS) = make_add(largest), _sizes()

    def add_across(out, first, shared, terms):
        thread, threads = cuda.threadIdx.x, cuda.blockDim.x
        store(shared, thread, threads, terms)
        cuda.syncthreads()
        for index in range(thread, count * PARTS, threads):  # every PARTS-th thread's terms, then the partial sums
            k, part, total = index // PARTS, index % PARTS, none
            for other in range(part, threads, PARTS):
                total = add(total, shared[k * threads + other])
            shared[count * threads + index] = total
        cuda.syncthreads()
        for k in range(thread, count, threads):
            total = none
            for part in range(PARTS):
                total = add(total, shared[count * threads + k * PARTS + part])
            out[first + k] = total
        cuda.syncthreads()

    return add_across


@device_function
def make_add(largest):
    """Make add(a, b) -> the sum of two terms, or the larger of them; NaN if either is."""
    return (lambda a, b: a if a > b or a != a else b) if largest else (lambda a, b: a + b)
