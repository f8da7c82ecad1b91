"""Run CUDA kernels on NumPy arrays, without a GPU and without a compiler.

All threads of all blocks take turns as greenlets in one OS thread. So kernels whose blocks wait for each other work,
races show, and a wait that never ends is reported. (Numba's own simulator runs one block after another.) Kernels find
CUDA's names in `language.cuda`.

    with simulator.schedule(seed=3):
        Kernel(wavefront_kernel).bind(LaunchConfig(4, 32, cooperative=True), x, flags)(100)

A seed chooses the random order of turns: that of `schedule`, else NUMBARNN_SIM_SEED, else 0. The same seed and launches
give the same order, and errors name the seed.

A thread's turn ends at a barrier, an exchange between lanes, an atomic, `pause` or its end. Therefore
- a loop that polls memory must call `pause()` (cuda.nanosleep does), or it never ends;
- the loads and stores of a turn are one step, which other threads see at once and in program order. Missing fences, and
  races within a turn, do not show;
- an atomic that changes nothing counts as a poll, and a kernel that does nothing else is reported as a livelock.
Shared and local memory starts as NaN (all bits set).
"""

import os
import sys
import threading
from collections import Counter, deque
from contextlib import contextmanager
from contextvars import copy_context
from functools import lru_cache
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from numbarnn.common import install
from numbarnn.cuda.language import cuda

try:
    from greenlet import getcurrent, greenlet
except ImportError as error:
    raise ImportError(f"the simulator needs greenlet: {install.command('sim')}") from error

WARP_SIZE = 32
PATIENCE = 200  # turns per thread; a random order of n threads passes one over for so long once in e^200 runs
IN_TURN = "in turn"  # in place of a seed: threads take turns in order, block by block
SEED_VARIABLE, DEFAULT_SEED = "NUMBARNN_SIM_SEED", 0

_EVERYBODY, _ALL_LANES = -1, 0xFFFFFFFF  # masks
_OF_BLOCK, _OF_WARP = range(2)  # indices of `_Thread.seats`
_OWN_MODULES = (__name__, f"{__package__}.ptx_simulated")
_REPORTED_GROUPS = 12  # most groups of waiting threads that an error lists
_THREAD_NAMES = ("threadIdx", "blockIdx", "laneid")
_lock = threading.RLock()  # one launch at a time, since `cuda` has the indices of its current thread
_order = None  # the _Order of launches; None: the default seed's, made at the first launch
_running = None  # the current SimulatedLaunch


class _Order:
    """The order in which threads take turns: one stream of random numbers for consecutive launches.

    Attributes:
        seed: the seed, or IN_TURN. random: a Random, or None for IN_TURN. patience: see `schedule`.
        launches: number of launches so far.
    """

    def __init__(self, seed=None, patience=PATIENCE):
        self.seed = default_seed() if seed is None else seed
        self.random = None if self.seed == IN_TURN else Random(self.seed)
        self.patience, self.launches = patience, 0

    def __str__(self):
        order = "threads in turn" if self.random is None else f"threads in the random order of seed {self.seed!r}"
        return f"{order}, launch {self.launches} of these"


def default_seed():
    """Return NUMBARNN_SIM_SEED (an int if it is one, or IN_TURN), or 0 if it is not set."""
    text = os.environ.get(SEED_VARIABLE) or str(DEFAULT_SEED)
    return int(text) if text.removeprefix("-").isdecimal() else text


@contextmanager
def schedule(seed=None, patience=PATIENCE):
    """Choose the order in which threads take turns, for launches inside the `with` block.

    Args:
        seed: seed of a random order (an int or text); IN_TURN for the order of their indices; None for `default_seed`.
        patience: turns per thread without a change of memory after which a livelock is reported. It must exceed the
            kernel's own timeout if a test is to see that one.
    """
    global _order
    before = _order
    _order = _Order(seed, patience)
    try:
        yield
    finally:
        _order = before


class Watcher:
    """An observer of launches, which ignores all events. A launch's `turns` is the number of the current turn, from 1
    on, and its `current` is the thread whose turn it is."""

    def launched(self, launch, function, arguments):
        """Handle the begin of a `SimulatedLaunch` of a kernel's Python function with these arguments."""

    def loaded(self, array, index, count):
        """Handle a load of array[index : index + count] by `ptx.load` or `ptx.load_words` in the current thread."""

    def stored(self, array, index, count):
        """Handle a store to array[index : index + count] by `ptx.store` or `ptx.store_word` in the current thread."""

    def ended(self, launch):
        """Handle the end or failure of a launch."""


watcher = Watcher()  # the one that is notified


@contextmanager
def watched(by):
    """Notify a Watcher of all launches inside the `with` block."""
    global watcher
    before, watcher = watcher, by
    try:
        yield by
    finally:
        watcher = before


def launch(function, config, arguments):
    """Run a kernel on NumPy arrays.

    Args:
        function: the kernel's Python function (`language.as_python`). config: the `launch.LaunchConfig`.
        arguments: NumPy arrays, which the kernel changes in place, NumPy scalars, tuples of these, and NamedTuples of
            these and None.

    Raises:
        RuntimeError: a thread raised an exception, all remaining threads wait for each other (deadlock), or they poll
            memory that does not change (livelock). The message names the seed.
    """
    global _order, _running
    with _lock:
        if _running is not None:
            raise RuntimeError("a kernel in the simulator cannot launch another")
        _order = _order or _Order()
        _order.launches += 1
        names = {"gridDim": Dim3(*config.grid), "blockDim": Dim3(*config.block)}
        vars(cuda).update(names)
        try:
            _running = SimulatedLaunch(function, config, arguments, _order)
            watcher.launched(_running, function, arguments)
            try:
                _running.run()
            finally:
                watcher.ended(_running)
        finally:
            _running = None
            for name in (*names, *_THREAD_NAMES):
                vars(cuda).pop(name, None)


class Dim3(NamedTuple):
    """An index or a size in three dimensions."""

    x: int
    y: int
    z: int

    def __str__(self):
        return str(tuple(self))


class _Team:
    """The threads of a warp or a block. live: bit mask of the threads that have not ended, by position in the team.
    meetings: key -> the `_Meeting` in which some of them wait."""

    def __init__(self, size):
        self.live, self.meetings = (1 << size) - 1, {}


class _Meeting:
    """Threads of a team that wait for each other at one place of the program.

    Attributes:
        mask: bit mask of the expected threads; those that have ended are not waited for.
        arrived: bit mask of the waiting threads. threads: list of them. values: position -> the value it passed.
        result: what `collective` computed from the values.
    """

    __slots__ = ("arrived", "mask", "result", "threads", "values")

    def __init__(self, mask):
        self.mask, self.arrived, self.threads, self.values, self.result = mask, 0, [], {}, None


class _Block:
    """A block: its index, its threads as a team, its warps, and its arrays in shared memory."""

    def __init__(self, index, size):
        self.index, self.number_of_threads, self.shared, self.team = Dim3(*index), size, {}, _Team(size)
        self.warps = [_Team(min(WARP_SIZE, size - first)) for first in range(0, size, WARP_SIZE)]


class _Thread:
    """A thread. names: its indices, by their names in `cuda`. seats: (team, position) in its block and in its warp.
    carrier: the greenlet that runs it, or None before its first turn and after its end."""

    def __init__(self, block, index, number):
        self.block, self.index, self.lane = block, Dim3(*index), number % WARP_SIZE
        self.seats = (block.team, number), (block.warps[number // WARP_SIZE], self.lane)
        self.names = dict(zip(_THREAD_NAMES, (self.index, block.index, self.lane), strict=True))
        self.carrier, self.ended = None, False


class SimulatedLaunch:
    """One launch of a kernel.

    Attributes:
        current: the thread whose turn it is. turns: the number of turns so far, with this one.
    """

    def __init__(self, function, config, arguments, order):
        self._function, self._arguments, self.shared_bytes = function, arguments, config.shared_bytes
        self._random, self._order, self._patience = order.random, str(order), order.patience
        self._idle_turns = 0  # since a thread ended or was released, or memory changed
        self._last_memory = self.current = None
        self.turns, self._blocks, self._threads = 0, [], []
        indices = [index[::-1] for index in product(*map(range, config.block[::-1]))]  # x runs fastest
        for block_index in product(*map(range, config.grid[::-1])):
            block = _Block(block_index[::-1], len(indices))
            self._blocks.append(block)
            self._threads += [_Thread(block, index, number) for number, index in enumerate(indices)]
        self._ready = deque(self._threads)
        self._carriers, self._idle_carriers = [], []

    def run(self):
        """Run all threads to their end."""
        self._scheduler, self._context = getcurrent(), copy_context()
        try:
            while self._ready:
                carrier = self._next_carrier()
                while carrier is not None:
                    carrier = self._switch(carrier)
                if self._is_stuck():
                    self._require_progress()
            if not all(thread.ended for thread in self._threads):
                raise self._error(f"deadlock, every thread that is left waits: {self._whereabouts()}")
        finally:
            self._ready.clear()
            for carrier in self._carriers:
                carrier.throw()  # ends the kernel's `with` and `finally` blocks
            self._threads, self.current = [], None

    def _switch(self, carrier):
        """Let threads run until one needs the scheduler. Return a greenlet that it has to start, or None."""
        try:
            return carrier.switch()
        except Exception as error:
            where = f"block {self.current.block.index}, thread {self.current.index}"
            raise self._error(f"{where} raised {type(error).__name__}: {error}") from error

    def _give_way(self):
        """Switch from a thread that waits or has ended to the next one, without the detour over `run` if possible."""
        if not self._ready or self._is_stuck():
            self._scheduler.switch(None)
            return
        carrier = self._next_carrier()
        if not carrier:  # `run` starts it, since a greenlet begins as deep in calls as the one that starts it
            self._scheduler.switch(carrier)
        elif carrier is not getcurrent():
            carrier.switch()

    def _is_stuck(self):
        return self._idle_turns > self._patience * len(self._ready)

    def _next_carrier(self):
        """Choose the next thread from those that are ready and return its greenlet."""
        ready = self._ready
        if self._random is not None:
            chosen = int(self._random.random() * len(ready))
            ready[0], ready[chosen] = ready[chosen], ready[0]
        thread = self.current = ready.popleft()
        self.turns += 1
        vars(cuda).update(thread.names)
        if thread.carrier is None:
            if not self._idle_carriers:
                self._add_carrier()
            thread.carrier = self._idle_carriers.pop()
        return thread.carrier

    def _add_carrier(self):
        carrier = greenlet(self._carry, parent=self._scheduler)  # its parent gets its exceptions
        carrier.gr_context = self._context.copy()  # so that numpy.errstate around a launch applies in kernels
        self._carriers.append(carrier)
        self._idle_carriers.append(carrier)

    def _carry(self):
        """Run threads in a greenlet one after the other. Starting a greenlet is slow, so threads that never wait share
        one."""
        while True:
            self._function(*self._arguments)
            thread = self.current
            thread.ended = True
            self._idle_carriers.append(thread.carrier)
            thread.carrier = None
            self._leave(thread)
            self._give_way()

    def meet(self, kind, mask=_EVERYBODY, value=None):
        """Wait until all expected threads of a team have come to this place of the program.

        Args:
            kind: _OF_BLOCK or _OF_WARP, the current thread's team.
            mask: bit mask of the expected threads; those that have ended are not waited for.
            value: this thread's value for the others.

        Two barriers on different lines, or called from different lines, are different places, though hardware may take
        one for the other.

        Returns:
            The Meeting, with the value of each thread.
        """
        team, position = self.current.seats[kind]
        if not mask >> position & 1:
            raise RuntimeError(f"lane {position} takes part, but the mask {mask:#x} leaves it out")
        key = (mask, _call_site(sys._getframe(1)))
        meeting = team.meetings.get(key)
        if meeting is None:
            meeting = team.meetings[key] = _Meeting(mask)
        meeting.arrived |= 1 << position
        meeting.threads.append(self.current)
        meeting.values[position] = value
        if meeting.arrived == team.live & mask:
            self._release(team, key)
        self._give_way()
        return meeting

    def pause(self):
        """Let other threads run. After many pauses without an event or a change of memory, a livelock is reported."""
        self._idle_turns += 1
        self._ready.append(self.current)
        self._give_way()

    def _error(self, problem):
        return RuntimeError(f"kernel {self._function.__name__}: {problem} ({self._order})")

    def _release(self, team, key):
        self._ready.extend(team.meetings.pop(key).threads)
        self._idle_turns = 0

    def _leave(self, thread):
        """Remove a thread that has ended from its teams, and release threads that waited for it alone."""
        self._idle_turns = 0
        for team, position in thread.seats:
            team.live &= ~(1 << position)
            for key, meeting in list(team.meetings.items()):
                if meeting.arrived == team.live & meeting.mask:
                    self._release(team, key)

    def _require_progress(self):
        """Raise a livelock error if memory has not changed since the last check."""
        memory = self._memory()
        if memory == self._last_memory:
            raise self._error(f"livelock, memory did not change in {self._idle_turns} turns: {self._whereabouts()}")
        self._last_memory, self._idle_turns = memory, 0

    def _whereabouts(self):
        """Count the threads that have not ended, per block and place, as text."""
        groups = Counter((thread.block, self._place(thread)) for thread in self._threads if not thread.ended)
        lines = [
            f"{count} of {block.number_of_threads} threads of block {block.index} {place}"
            for (block, place), count in list(groups.items())[:_REPORTED_GROUPS]
        ]
        more = len(groups) - len(lines)
        return "; ".join(lines) + (f"; and {more} more such groups" if more else "")

    def _place(self, thread):
        """Name the place where a thread waits: "at syncthreads, kernels.py:12 in my_kernel"."""
        frame, operation = thread.carrier and thread.carrier.gr_frame, ""
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module in _OWN_MODULES:
                operation = frame.f_code.co_name
            elif not module.startswith("numba.") and module != "contextlib":
                file = frame.f_code.co_filename.replace("\\", "/").rsplit("/", 1)[-1]
                return f"at {operation}, {file}:{frame.f_lineno} in {frame.f_code.co_name}"
            frame = frame.f_back
        return "not started"

    def _memory(self):
        """Return a hash of all memory that threads share."""

        def contents(argument):
            if isinstance(argument, tuple):
                return tuple(map(contents, argument))
            return None if argument is None else argument.tobytes()

        shared = tuple(array.tobytes() for block in self._blocks for array in block.shared.values())
        return hash((contents(self._arguments), shared))


def _call_site(frame):
    """Identify a place of the program by the current instruction of each function on the stack. The functions need no
    names, since all threads begin in one function and no kernel chooses a function while it runs."""
    site = []
    while frame is not None:
        site.append(frame.f_lasti)
        frame = frame.f_back
    return tuple(site)


# ---- functions that end a turn
def pause(nanoseconds=0):
    """Let other threads run: in a loop that polls, or after a store that others poll for. Ignored outside a kernel."""
    if _running is not None:
        _running.pause()


def collective(value, function):
    """Return this lane's part of `function({lane: value})`, which is called once for the warp.

    Args:
        value: this lane's value.
        function: returns a sequence with one part per lane.
    """
    meeting = _running.meet(_OF_WARP, _ALL_LANES, value)
    if meeting.result is None:
        meeting.result = function(meeting.values)
    return meeting.result[_running.current.lane]


def syncthreads():
    """Wait for all threads of the block."""
    _running.meet(_OF_BLOCK)


def syncwarp(mask=_ALL_LANES):
    """Wait for the lanes in the mask."""
    _running.meet(_OF_WARP, int(mask) & _ALL_LANES)


def shfl_sync(mask, value, lane):
    """Return the value of a lane, modulo the size of a warp."""
    values, lane = _running.meet(_OF_WARP, int(mask) & _ALL_LANES, value).values, int(lane) % WARP_SIZE
    if lane not in values:
        raise RuntimeError(f"reads from lane {lane}, which has ended, is not in the mask or does not exist")
    return values[lane]


def shfl_xor_sync(mask, value, lane_mask):
    """Return the value of lane (this lane xor `lane_mask`)."""
    return shfl_sync(mask, value, _running.current.lane ^ int(lane_mask))


def _atomic(new_value):
    """Return an atomic operation, which returns the old value. new_value: function of (old, *arguments)."""

    def atomic(array, index, *arguments):
        old = array[index]
        array[index] = new_value(old, *arguments)
        _running.pause()
        return old

    return atomic


_ATOMICS = {
    "add": lambda old, value: old + value, "sub": lambda old, value: old - value,
    "and_": lambda old, value: old & value, "or_": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "inc": lambda old, most: 0 if old >= most else old + 1, "exch": lambda old, value: value,
    "dec": lambda old, most: most if old == 0 or old > most else old - 1,
    "max": lambda old, value: max(old, value), "min": lambda old, value: min(old, value),
    "cas": lambda old, expected, value: value if old == expected else old,
}  # fmt: skip


# ---- indices
def grid(ndim):
    """Return the index of this thread in the grid: an int, or with 2 or 3 dimensions a tuple."""
    sizes = zip(cuda.blockIdx, cuda.blockDim, cuda.threadIdx, strict=True)
    index = tuple(block * size + thread for block, size, thread in sizes)
    return index[0] if ndim == 1 else index[:ndim]


def gridsize(ndim):
    """Return the number of threads in the grid along each dimension: an int, or with 2 or 3 dimensions a tuple."""
    sizes = tuple(blocks * size for blocks, size in zip(cuda.gridDim, cuda.blockDim, strict=True))
    return sizes[0] if ndim == 1 else sizes[:ndim]


# ---- memory
@lru_cache(maxsize=256)
def _all_bits_set(shape, dtype):
    return np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)


@lru_cache(maxsize=256)
def _numpy_dtype(dtype):
    """Return np.dtype of a NumPy or Numba type."""
    try:
        return np.dtype(dtype)
    except TypeError:
        return np.dtype(str(dtype))


def _local_array(shape, dtype, alignment=None):
    """Return a new array."""
    return _all_bits_set(shape, _numpy_dtype(dtype)).copy()


def _shared_array(shape, dtype, alignment=None):
    """Return the block's array of this place in the program, or with shape 0 its dynamic shared memory."""
    shared, dtype = _running.current.block.shared, _numpy_dtype(dtype)
    if shape == 0:
        if None not in shared:
            shared[None] = _all_bits_set(_running.shared_bytes, np.dtype(np.uint8)).copy()
        return shared[None][: _running.shared_bytes // dtype.itemsize * dtype.itemsize].view(dtype)
    caller = sys._getframe(1)
    key = (id(caller.f_code), caller.f_lasti, shape, dtype)
    if key not in shared:
        shared[key] = _all_bits_set(shape, dtype).copy()
    return shared[key]


def _fence():
    """Do nothing, since threads see each other's stores at once."""


for _function in (grid, gridsize, syncthreads, syncwarp, shfl_sync, shfl_xor_sync):
    setattr(cuda, _function.__name__, _function)
cuda.atomic = SimpleNamespace(**{name: _atomic(new_value) for name, new_value in _ATOMICS.items()})
cuda.local, cuda.shared = SimpleNamespace(array=_local_array), SimpleNamespace(array=_shared_array)
cuda.threadfence = cuda.threadfence_block = cuda.threadfence_system = _fence
cuda.warpsize, cuda.nanosleep = WARP_SIZE, pause
