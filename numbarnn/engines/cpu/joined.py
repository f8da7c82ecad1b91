"""Several things that a bound pass does on one thread, as one call of compiled code.

Python takes a microsecond or two for each call, which of a short pass is most of its time: its steps are a few
microseconds, the copies of its states less than one.
"""

from ctypes import addressof, c_int64
from functools import partial
from math import inf, prod
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


class Part(NamedTuple):
    """What one of several functions becomes.

    Attributes:
        item: bytes of a number. function, what: the compiled function's address, its record. threads: for it.
        kept: what must live as long, such as the function itself, which keeps its arrays.
        others: arrays of further records that `what` leads to. scratch: (shape, dtype) of what it needs while it runs,
            at the address `what.scratch`; None: nothing.
        loop: the `Steps` that it is some steps of.
    """

    item: int
    function: int
    what: Any
    threads: int
    kept: Any
    others: tuple = ()
    scratch: Any = None
    loop: Any = None

    @property
    def records(self):
        """Its record, and the further ones."""
        return [self.what, *(record for array in self.others for record in array)]


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
        """Of some `Part`s."""
        steps = _steps_of(parts)
        self = cls(run_all_alone.compiled, parts[0].item, addressof(steps), len(parts))
        self.records, self.kept = _records_of(parts), (steps, parts)
        return self


class _Together:
    """The same on several threads of a pool, or with memory that `empty` lends for each run."""

    def __init__(self, parts, pool, empty):
        self._steps, self._kept, self.records = _steps_of(parts), parts, _records_of(parts)
        loops = [one.loop for one in parts if one.loop is not None]
        self._pool, self._threads = pool, max(one.threads for one in parts)
        self._run = partial(pool.run_all, parts[0].item, addressof(self._steps), len(parts))
        self._count = sum(max(1, one.what.last - one.what.first) for one in parts if one.loop is not None)
        longest = max((loop.longest_late for loop in loops), default=0)
        self._pace = _Pace(pool.pause, longest) if longest else None
        self._empty, self._lent = empty, [*_taken_panels(parts), *_scratch_of(parts)]

    def __call__(self):
        lent = self._lend()
        if self._pace is not None:
            self._pace.run(self._run, self._threads, self._count)
        else:
            self._run(1 if self._threads > 1 and self._pool.pause.lasts() else self._threads)
        del lent

    def _lend(self):
        """Memory for panels, for one run: forward's is backward's then. If both had their own, the third cache would
        have room for fewer of the other arrays."""
        lent = []
        for shape, dtype, field, records in self._lent:
            lent.append(self._empty(shape, dtype))
            for record in records:
                setattr(record, field, address(lent[-1]))
        return lent


def _records_of(parts):
    """All records of some `Part`s."""
    return [record for one in parts for record in one.records]


def _taken_panels(parts):
    """The large panels of some `Part`s' loops, which these give away: [(shape, dtype, field, the loop's records)]."""
    records = {}
    for one in parts:
        if one.loop is not None:
            records.setdefault(one.loop, []).append(one.what)
    found = []
    for loop, own in records.items():
        for field, array in [*loop.panels.items()]:
            if array.nbytes >= LARGE_PANELS:
                del loop.panels[field]
                found.append((array.shape, array.dtype, field, own))
    return found


def _scratch_of(parts):
    """The scratch of some `Part`s, which have the same one after another: likewise."""
    needs = [one for one in parts if one.scratch is not None]
    if not needs:
        return []
    shape, dtype = max((one.scratch for one in needs), key=lambda scratch: prod(scratch[0]))
    return [(shape, dtype, "scratch", [one.what for one in needs])]


def _joined(parts, pool, empty):
    """The function without arguments that does what these do."""
    if any(one.threads > 1 or one.scratch is not None for one in parts):
        return _Together(parts, pool, empty)
    return _Alone.of(parts)


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


def join(functions, part_of, pool, empty):
    """The same functions in their order, but neighbours that compiled code can do in one call have become one.

    Args:
        functions: without arguments. part_of: f(function), the `Part` that does the same, or None.
        pool: of threads. empty: f(shape, dtype) allocates memory.
    """
    joined, parts = [], []  # parts: of the last functions, which are not in `joined` yet
    for function in functions:
        part = part_of(function)
        if parts and (part is None or part.item != parts[0].item):
            joined.append(_joined(parts, pool, empty))
            parts = []
        if part is None:
            joined.append(function)
        else:
            parts.append(part)
    return [*joined, _joined(parts, pool, empty)] if parts else joined


def part_of(function, function_of_copies):
    """The `Part` that does the same as some steps, or a copy; None of others.

    Args:
        function_of_copies: f(dtype), the address of `copy_rows`.
    """
    if not isinstance(function, partial):
        return None
    does, given = function.func, function.args
    if isinstance(does, Steps) and (does.threads == 1 or does.call.pieces):
        call = Call.from_buffer_copy(does.call)
        call.first, call.last = given
        return Part(does.item, does.function, call, does.threads, function, loop=does)
    if does in (np.copyto, zero) and all(_has_rows(array, given[0]) for array in given):
        out, *x = map(_as_rows, given)
        rows, numbers = out.shape
        copy = Copy(rows=rows, numbers=numbers, out=address(out), out_row=row_bytes(out))
        if x:
            copy.x, copy.x_row = address(x[0]), row_bytes(x[0])
        else:  # one row of zeros, again and again
            copy.zeros = np.zeros(numbers, out.dtype)
            copy.x = address(copy.zeros)
        return Part(out.itemsize, function_of_copies(out.dtype), copy, 1, function)
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
    """Whether an array has the shape and dtype of another, floats, and rows without gaps within them, and without gaps
    between them where it has three axes."""
    of_two = array.ndim == 2 and array.strides[1] == array.itemsize
    in_rows = of_two or (array.ndim == 3 and array.flags.c_contiguous)
    of_floats = array.dtype.kind == "f" and array.itemsize > 2
    return in_rows and of_floats and array.shape == like.shape and array.dtype == like.dtype


def _as_rows(array):
    """Such an array as one of two axes."""
    return array if array.ndim == 2 else array.reshape(array.shape[0] * array.shape[1], array.shape[2])
