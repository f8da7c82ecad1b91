"""Several things that a bound pass does on one thread, as one call of compiled code.

Python takes a microsecond or two for each call, which of a short pass is most of its time: its steps are a few
microseconds, the copies of its states less than one.
"""

from ctypes import addressof, c_int64
from functools import partial
from math import inf
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from numbarnn.engines.cpu import callers
from numbarnn.engines.cpu.calls import address, row_bytes
from numbarnn.engines.cpu.helpers import run_all_alone
from numbarnn.engines.cpu.records import Call, Copy, Step, by_address, copy_at, job_at
from numbarnn.engines.cpu.vectors import numbers_at

LATE = 0.001  # seconds by which a call is late that had to wait for a thread with a piece, but without a processor
SLICE = 0.02  # seconds: a thread that has lost its processor has it again long before
LARGE_PANELS = 1 << 21  # bytes of panels that are lent for each run
LONGER = 1.02  # times as long at most becomes with a call what is the best time, as machines become slower too


class _Pace:
    """Calls whose threads take pieces, on fewer threads while one of these would come late (`thread_pool.Pause`).

    Args:
        pause: the thread pool's. longest: seconds that calls take at most which may be late.
    """

    def __init__(self, pause, longest):
        self._pause, self._longest, self._best = pause, longest, inf  # best: seconds for a step

    def run(self, run, threads, steps):
        """Call run(threads), or run(1), which does so many steps."""
        pause = self._pause
        if (begin := monotonic()) < pause.end:
            run(1)
            return
        run(threads)
        seconds, best = (end := monotonic()) - begin, self._best * LONGER * steps
        if seconds < best:
            best = seconds
        self._best = best / steps
        if (late := seconds > 1.5 * best + LATE and best < self._longest) or pause.seconds:
            pause.after(begin, end, late)


class Steps:
    """The steps of a loop, as a function f(first, last).

    Args:
        thread_pool: runs it. item: bytes of a number. function: the loop's address. threads: for it. call: its `Call`.
        kept: what must live as long. panels: arrays for what steps pack themselves, by their fields of the `Call`.
    """

    def __init__(self, thread_pool, item, function, threads, call, kept, panels):
        self.thread_pool, self.item, self.function, self.threads = thread_pool, item, function, threads
        self.call, self.kept, self.panels = call, kept, panels
        self._pace = _Pace(thread_pool.pause, self.longest_late)

    @property
    def longest_late(self):
        """Seconds that it takes at most where it matters that a thread comes late: 0 if none waits for it. Threads that
        share units wait in each step, those that share sequences once."""
        if self.threads == 1 or self.call.pieces == 0:
            return 0
        return SLICE if self.call.by_rows else inf

    def __call__(self, first, last):
        call = self.call
        call.first, call.last = first, last
        waits = call.pieces == 0
        run = partial(self.thread_pool.run, self.item, self.function, what=addressof(call), waits=waits)
        if self.longest_late:
            self._pace.run(run, self.threads, max(1, last - first))
        else:
            run(self.threads)


class _Part(NamedTuple):
    """What one of several functions becomes.

    Attributes:
        item: bytes of a number. function, what: the compiled function's address, its record. threads: for it.
        kept: the function itself, which keeps its arrays.
    """

    item: int
    function: int
    what: Any
    threads: int
    kept: Any


def _steps_of(parts):
    """These as `records.Step`s."""
    steps = (Step(function=one.function, what=addressof(one.what), threads=one.threads) for one in parts)
    return (Step * len(parts))(*steps)


class _Alone(partial):
    """Does what several functions do on this thread, with no more of Python than a call of compiled code.

    Attributes:
        records: theirs. kept: what must live as long.
    """

    @classmethod
    def of(cls, parts):
        """Of some `_Part`s."""
        steps = _steps_of(parts)
        self = cls(run_all_alone.compiled, parts[0].item, addressof(steps), len(parts))
        self.records, self.kept = [one.what for one in parts], (steps, parts)
        return self


class _Together:
    """The same on several threads."""

    def __init__(self, parts, empty):
        self._steps, self._kept, self.records = _steps_of(parts), parts, [one.what for one in parts]
        loops = [one.kept.func for one in parts if isinstance(one.kept.func, Steps)]
        pool, self._threads = loops[0].thread_pool, max(one.threads for one in parts)
        self._run = partial(pool.run_all, parts[0].item, addressof(self._steps), len(parts))
        self._count = sum(max(1, one.what.last - one.what.first) for one in parts if isinstance(one.what, Call))
        longest = max(loop.longest_late for loop in loops)
        self._pace = _Pace(pool.pause, longest) if longest else None
        self._empty, self._panels = empty, _taken_panels(parts)

    def __call__(self):
        lent = self._lend_panels()
        if self._pace is None:
            self._run(self._threads)
        else:
            self._pace.run(self._run, self._threads, self._count)
        del lent

    def _lend_panels(self):
        """Memory for panels, for one run: forward's is backward's then. If both had their own, the third cache would
        have room for fewer of the other arrays."""
        lent = []
        for shape, dtype, field, records in self._panels:
            lent.append(self._empty(shape, dtype))
            for record in records:
                setattr(record, field, address(lent[-1]))
        return lent


def _taken_panels(parts):
    """The large panels of some `_Part`s' loops, which these give away: [(shape, dtype, field, the loop's records)]."""
    records = {}
    for one in parts:
        if isinstance(one.kept.func, Steps):
            records.setdefault(one.kept.func, []).append(one.what)
    found = []
    for loop, own in records.items():
        for field, array in [*loop.panels.items()]:
            if array.nbytes >= LARGE_PANELS:
                del loop.panels[field]
                found.append((array.shape, array.dtype, field, own))
    return found


def _joined(parts, empty):
    """The function without arguments that does what these do."""
    return _Together(parts, empty) if any(one.threads > 1 for one in parts) else _Alone.of(parts)


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


def join(functions, function_of_copies, empty):
    """The same functions in their order, but neighbours that compiled code can do in one call have become one.

    Args:
        functions: without arguments. function_of_copies: f(dtype), the address of `copy_rows`.
        empty: f(shape, dtype) allocates memory.
    """
    joined, parts = [], []  # parts: of the last functions, which are not in `joined` yet
    for function in functions:
        part = _part(function, function_of_copies)
        if parts and (part is None or part.item != parts[0].item):
            joined.append(_joined(parts, empty))
            parts = []
        if part is None:
            joined.append(function)
        else:
            parts.append(part)
    return [*joined, _joined(parts, empty)] if parts else joined


def _part(function, function_of_copies):
    """The `_Part` that does the same, or None."""
    if not isinstance(function, partial):
        return None
    does, given = function.func, function.args
    if isinstance(does, Steps) and (does.threads == 1 or does.call.pieces):
        call = Call.from_buffer_copy(does.call)
        call.first, call.last = given
        return _Part(does.item, does.function, call, does.threads, function)
    if does in (np.copyto, zero) and all(_has_rows(array, given[0]) for array in given):
        out, *x = given
        rows, numbers = out.shape
        copy = Copy(rows=rows, numbers=numbers, out=address(out), out_row=row_bytes(out))
        if x:
            copy.x, copy.x_row = address(x[0]), row_bytes(x[0])
        else:  # one row of zeros, again and again
            copy.zeros = np.zeros(numbers, out.dtype)
            copy.x = address(copy.zeros)
        return _Part(out.itemsize, function_of_copies(out.dtype), copy, 1, function)
    return None


def places_of(functions, array):
    """Where an array's address is in the records of functions that `join` returned: [(address of the number, what is
    added to the array's own address)]; None if some of them read it otherwise."""
    records, places, start, end = [], [], address(array), address(array) + array.nbytes
    for function in functions:
        if isinstance(function, (_Alone, _Together)):
            records += function.records
        elif isinstance(function, partial) and isinstance(function.func, Steps):
            records.append(function.func.call)
        elif not isinstance(function, partial) or _overlaps(function, array):
            return None
    for record in records:
        fields = [(getattr(type(record), name).offset, getattr(record, name)) for name, _ in record._fields_]
        places += [(addressof(record) + offset, value - start) for offset, value in fields if start <= value < end]
    return places


def _overlaps(one, array):
    """Whether an argument of a function may be a part of an array, or have one; functions of a list, what they take."""
    if isinstance(one, list):
        return any(_overlaps(part, array) for part in one)
    if isinstance(one, partial):
        return any(_overlaps(part, array) for part in (*one.args, *one.keywords.values()))
    return not isinstance(one, (int, float)) and (not isinstance(one, np.ndarray) or np.may_share_memory(one, array))


def mover(functions, array):
    """A function f(other), after which functions that `join` returned work on another array of the same shape and
    strides in place of this one; None if some of them are no compiled code that reads it."""
    places = places_of(functions, array)
    if places is None:
        return None
    words = [(c_int64.from_address(place), offset) for place, offset in places]

    def move(other):
        assert functions  # whose records these are
        first = address(other)
        for word, offset in words:
            word.value = first + offset

    return move


def taker(functions, arrays, copies):
    """See `numbarnn.engines.base.Engine.taker`."""
    places = [[] if one is None else places_of(functions, one) for one in arrays]
    take = callers.taker(arrays, [own or [] for own in places])
    left = [(number, copies[number]) for number, own in enumerate(places) if own is None]

    def take_or_copy(*others):
        taken = take(*others)
        if taken:
            for number, copy in left:
                copy(others[number])
        return taken

    return take_or_copy if left else take


def _has_rows(array, like):
    """Whether an array has the shape and dtype of another, floats, and rows without gaps within them."""
    in_rows = array.ndim == 2 and array.dtype.kind == "f" and array.itemsize > 2 and array.strides[1] == array.itemsize
    return in_rows and array.shape == like.shape and array.dtype == like.dtype
