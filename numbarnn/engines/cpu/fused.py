"""Fuse operations of a program into one call of compiled code. A call from Python takes a microsecond or two,
and many operations take no longer than that themselves."""

from ctypes import addressof
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from numbarnn.engines.cpu.calls import address, row_bytes
from numbarnn.engines.cpu.helpers import run_alone
from numbarnn.engines.cpu.records import Copy, FusedStep, LoopCall, by_address, copy_at, job_at
from numbarnn.engines.cpu.vectors import numbers_at


class FusedPart(NamedTuple):
    """Work that one compiled function does.

    Attributes:
        item: bytes of a number. function, record: addresses of the compiled function and of its record.
        threads: number of threads. kept: objects that must live as long.
        lent: [(shape, dtype, field of `record`)] of memory that it needs while it runs.
    """

    item: int
    function: int
    record: Any
    threads: int
    kept: Any
    lent: tuple = ()


class Steps:
    """The steps of a loop, as a function f(first, last).

    Args:
        run: f(parts), the `Fused` that runs a list of `FusedPart`s. part: the `FusedPart` of all steps.
    """

    def __init__(self, run, part):
        self._part, self._call, self._all = part, part.record, run([part])

    def __call__(self, first, last):
        call = self._call
        call.first, call.last, call.packs = first, last, call.pack and first == 0
        if call.packs:
            self._all.lend()
        self._all.run()

    def of(self, first, last):
        """Return the `FusedPart` for these steps. It packs weights itself, because a fused call may begin with any
        step."""
        call = LoopCall.from_buffer_copy(self._call)
        call.first, call.last, call.packs = first, last, call.pack
        return self._part._replace(record=call)


class Fused:
    """Runs several `FusedPart`s one after another.

    Args:
        parts: of one dtype.
        pool: the `ThreadPool`. empty: f(shape, dtype), allocates memory.
    """

    def __init__(self, parts, pool, empty):
        steps = (FusedStep * len(parts))(*[(one.function, addressof(one.record), one.threads) for one in parts])
        self._empty, self._memory = empty, []
        self.lent = [(one.record, *lent) for one in parts for lent in one.lent]
        threads, work = max(one.threads for one in parts), (parts[0].item, addressof(steps), len(parts))
        self.run = partial(run_alone.compiled, *work) if threads == 1 else partial(pool.run, *work, threads)
        self.run.kept = steps, parts  # keeps alive what its addresses point at

    def lend(self):
        """Allocate the memory that the parts need while they run."""
        self._memory = []
        for record, shape, dtype, field in self.lent:
            self._memory.append(self._empty(shape, dtype))
            setattr(record, field, address(self._memory[-1]))

    def __call__(self):
        self.lend()
        self.run()
        self._memory = []


@by_address
def copy_rows(zero, address):
    """Copy the rows of a `records.Copy`."""
    copy = copy_at(job_at(address).record)
    for i in range(copy.rows):
        out, x = numbers_at(zero, copy.out + i * copy.out_row), numbers_at(zero, copy.x + i * copy.x_row)
        for j in range(copy.numbers):
            out[j] = x[j]


def copy_part(operands, function_of_copies):
    """Return the `FusedPart` of a "copy" (out, x) or "zero" (out,); None if the arrays have no rows of floats.

    Args:
        function_of_copies: f(dtype), the address of `copy_rows`.
    """
    if not all(_has_rows(array, operands[0]) for array in operands):
        return None
    out, *x = map(_as_rows, operands)
    rows, numbers = out.shape
    copy = Copy(rows=rows, numbers=numbers, out=address(out), out_row=row_bytes(out))
    if x:
        copy.x, copy.x_row = address(x[0]), row_bytes(x[0])
    else:  # one row of zeros serves all rows
        copy.zeros = np.zeros(numbers, out.dtype)
        copy.x = address(copy.zeros)
    return FusedPart(out.itemsize, function_of_copies(out.dtype), copy, 1, operands)


def _has_rows(array, like):
    """Return whether an array has another's shape and dtype, holds floats, and its rows are contiguous.
    An array of three axes must be contiguous as a whole."""
    of_two = array.ndim == 2 and array.strides[1] == array.itemsize
    in_rows = of_two or (array.ndim == 3 and array.flags.c_contiguous)
    of_floats = array.dtype.kind == "f" and array.itemsize > 2
    return in_rows and of_floats and array.shape == like.shape and array.dtype == like.dtype


def _as_rows(array):
    """Reshape an array that `_has_rows` accepts to two axes."""
    return array if array.ndim == 2 else array.reshape(array.shape[0] * array.shape[1], array.shape[2])
