"""Several things that a bound pass does on one thread, as one call of compiled code.

Python takes a microsecond or two for each call, which of a short pass is most of its time: its steps are a few
microseconds, the copies of its states less than one.
"""

from ctypes import addressof
from functools import partial
from math import inf
from time import monotonic

import numpy as np

from numbarnn.engines.cpu.calls import address, row_bytes
from numbarnn.engines.cpu.records import Call, Copy, Step, by_address, copy_at, job_at
from numbarnn.engines.cpu.thread_pool import run_all_alone
from numbarnn.engines.cpu.vectors import numbers_at

LATE = 0.001  # seconds by which a call is late that had to wait for a thread with a piece, but without a processor
LONGER = 1.02  # times as long at most becomes with a call what is the best time, as machines become slower too


class Steps:
    """The steps of a loop, as a function f(first, last).

    Args:
        thread_pool: runs it. item: bytes of a number. function: the loop's address. threads: for it. call: its `Call`.
        kept: what must live as long.
    """

    def __init__(self, thread_pool, item, function, threads, call, kept):
        self._thread_pool, self.item, self.function, self.threads = thread_pool, item, function, threads
        self.call, self.kept = call, kept
        self._best = inf  # seconds for a step

    def __call__(self, first, last):
        call, pool = self.call, self._thread_pool
        call.first, call.last = first, last
        run = partial(pool.run, self.item, self.function, what=addressof(call), waits=call.pieces == 0)
        if self.threads == 1 or call.by_rows or call.pieces == 0:
            run(self.threads)
        elif (begin := monotonic()) < pool.pause.end:
            run(1)
        else:
            run(self.threads)
            end, steps = monotonic(), max(1, last - first)
            self._best = min(self._best * LONGER, (end - begin) / steps)
            pool.pause.after(begin, end, end - begin > 1.5 * self._best * steps + LATE)


class _Joined:
    """Does what several functions do.

    Args:
        item: bytes of a number.
        parts: of each function (address of the compiled one, its record, the function itself, which keeps its arrays).

    Attributes:
        records: theirs.
    """

    def __init__(self, item, parts):
        self._item, self._count, self._kept = item, len(parts), parts
        self.records = [what for _, what, _ in parts]
        self._steps = (Step * len(parts))(*(Step(function=f, what=addressof(what)) for f, what, _ in parts))
        self._address = addressof(self._steps)

    def __call__(self):
        run_all_alone(self._item, self._address, self._count)


def zero(out):
    """out = 0."""
    out[...] = 0


@by_address
def copy_rows(zero, address):
    """A `records.Copy`."""
    copy = copy_at(job_at(address).what)
    for i in range(copy.rows):
        out, x = numbers_at(zero, copy.out + i * copy.out_row), numbers_at(zero, copy.x + i * copy.x_row)
        for j in range(copy.numbers):
            out[j] = x[j]


def join(functions, function_of_copies):
    """The same functions in their order, but neighbours that compiled code can do in one call have become one.

    Args:
        functions: without arguments. function_of_copies: f(dtype), the address of `copy_rows`.
    """
    joined, parts, item = [], [], None  # parts: of the last functions, which are not in `joined` yet
    for function in functions:
        part = _part(function, function_of_copies)
        if parts and (part is None or part[0] != item):
            joined.append(_Joined(item, parts))
            parts = []
        if part is None:
            joined.append(function)
        else:
            item = part[0]
            parts.append((*part[1:], function))
    return [*joined, _Joined(item, parts)] if parts else joined


def _part(function, function_of_copies):
    """(Bytes of a number, address, record) of the compiled function that does the same on one thread, or None."""
    if not isinstance(function, partial):
        return None
    does, given = function.func, function.args
    if isinstance(does, Steps) and does.threads == 1:
        call = Call.from_buffer_copy(does.call)
        call.first, call.last = given
        return does.item, does.function, call
    if does in (np.copyto, zero) and all(_has_rows(array, given[0]) for array in given):
        out, *x = given
        rows, numbers = out.shape
        copy = Copy(rows=rows, numbers=numbers, out=address(out), out_row=row_bytes(out))
        if x:
            copy.x, copy.x_row = address(x[0]), row_bytes(x[0])
        else:  # one row of zeros, again and again
            copy.zeros = np.zeros(numbers, out.dtype)
            copy.x = address(copy.zeros)
        return out.itemsize, function_of_copies(out.dtype), copy
    return None


def mover(functions, array):
    """A function f(other), after which functions that `join` returned work on another array of the same shape and
    strides in place of this one; None if some of them are no compiled code, whose records tell what it reads."""
    records, start, end = [], address(array), address(array) + array.nbytes
    for function in functions:
        if isinstance(function, _Joined):
            records += function.records
        elif isinstance(function, partial) and isinstance(function.func, Steps):
            records.append(function.func.call)
        else:
            return None
    fields = [(record, name, getattr(record, name)) for record in records for name, _ in record._fields_]
    places = [(record, name, value - start) for record, name, value in fields if start <= value < end]

    def move(other):
        first = address(other)
        for record, name, offset in places:
            setattr(record, name, first + offset)

    return move


def _has_rows(array, like):
    """Whether an array has the shape and dtype of another, floats, and rows without gaps within them."""
    in_rows = array.ndim == 2 and array.dtype.kind == "f" and array.itemsize > 2 and array.strides[1] == array.itemsize
    return in_rows and array.shape == like.shape and array.dtype == like.dtype
