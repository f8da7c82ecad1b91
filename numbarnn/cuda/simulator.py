"""Kernels without a GPU and without a compiler: the whole grid on NumPy arrays.

All threads of all blocks take turns in one OS thread, as greenlets, so that kernels run whose blocks wait for each
other, races show, and a wait that never ends is reported. (Numba's own simulator runs one block after another.) Kernels
find CUDA's names in `language.cuda`: those that our kernels, the course's and its students use.

    with simulator.schedule(seed=3):
        Kernel(wavefront_kernel).bind(LaunchConfig(4, 32, cooperative=True), x, flags)(100)

Who is next is random, by a seed: that of `schedule`, else of the environment's NUMBARNN_SIM_SEED, else 0. The same seed
and the same launches are the same order, and errors name the seed.

A thread runs until it meets others (a barrier, an exchange between lanes), gives way (an atomic, `pause`) or ends, so:
- a loop that polls memory must call `pause()` (cuda.nanosleep does), else it never ends;
- between these points a thread's loads and stores are one step, seen by all at once and in program order: missing
  fences, and races within such a step, do not show;
- an atomic that changes nothing counts as a poll: many of them and nothing else are taken for a livelock.
Shared and local memory starts as NaN (all bits set), as what nobody wrote has no value.
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
from typing import NamedTuple

import numpy as np

from numbarnn.common import install
from numbarnn.cuda.language import cuda

try:
    from greenlet import getcurrent, greenlet
except ImportError as error:
    raise ImportError(f"the simulator needs greenlet: {install.command('sim')}") from error

WARP_SIZE = 32
PATIENCE = 200  # turns of each thread; with n threads a random order forgets one so long once in e^200 runs
IN_TURN = "in turn"  # instead of a seed: all threads in turn, block by block
SEED_VARIABLE, DEFAULT_SEED = "NUMBARNN_SIM_SEED", 0

_EVERYBODY, _ALL_LANES = -1, 0xFFFFFFFF  # masks
_OF_BLOCK, _OF_WARP = range(2)  # a thread's seats
_OWN_MODULES = (__name__, f"{__package__}.ptx_simulated")  # whose frames are not a kernel's
_REPORTED_GROUPS = 12  # lines of a report, of more groups of threads only the number is told
_THREAD_NAMES = ("threadIdx", "blockIdx", "laneid")
_LAUNCH_NAMES = ("gridDim", "blockDim", *_THREAD_NAMES)
_lock = threading.RLock()  # the names of threads and blocks are for one launch at a time
_order = None  # the _Order of the launches; None: that of the default seed, made at the first launch
_running = None  # the SimulatedLaunch under way


class _Order:
    """The order in which threads take turns, in launch after launch: one stream of random numbers for all of them.

    Attributes:
        seed: what it began with, or IN_TURN. random: a Random; None: in turn. patience: see `schedule`.
        launches: how many there were.
    """

    def __init__(self, seed=None, patience=PATIENCE):
        self.seed = default_seed() if seed is None else seed
        self.random = None if self.seed == IN_TURN else Random(self.seed)
        self.patience, self.launches = patience, 0

    def __str__(self):
        who = "threads in turn" if self.random is None else f"threads in the random order of seed {self.seed!r}"
        return f"{who}, launch {self.launches} of these"


def default_seed():
    """Return NUMBARNN_SIM_SEED, as an int if it is one, or IN_TURN; where that is not set 0."""
    text = os.environ.get(SEED_VARIABLE) or str(DEFAULT_SEED)
    return int(text) if text.removeprefix("-").isdecimal() else text


@contextmanager
def schedule(seed=None, patience=PATIENCE):
    """Choose the order in which threads take turns, for the launches inside.

    Args:
        seed: of a random order (an int or text); IN_TURN: all threads in turn; None: `default_seed`, as outside.
        patience: turns of each thread in which no memory changes before a livelock is reported. More than a kernel's
            own bound on its waits, if that is to be seen at work.
    """
    global _order
    before = _order
    _order = _Order(seed, patience)
    try:
        yield
    finally:
        _order = before


class Watcher:
    """An observer of launches, which ignores all events. Time is counted in turns: a launch's `turns` counts them from
    1, its `current` is the thread whose turn it is."""

    def launched(self, launch, function, arguments):
        """A launch begins: the `SimulatedLaunch`, the kernel's Python function, its arguments."""

    def loaded(self, array, index, count):
        """The current thread has loaded array[index : index + count], by `ptx.load` or `ptx.load_words`."""

    def stored(self, array, index, count):
        """The current thread has stored array[index : index + count], by `ptx.store` or `ptx.store_word`."""

    def ended(self, launch):
        """The launch is over, or has failed."""


watcher = Watcher()  # that is notified


@contextmanager
def watched(by):
    """Notify a Watcher of what happens in the launches inside."""
    global watcher
    before, watcher = watcher, by
    try:
        yield by
    finally:
        watcher = before


def launch(function, config, arguments):
    """Run a kernel on NumPy arrays.

    Args:
        function: the kernel's Python function, see `language.as_python`. config: the `launch.LaunchConfig`.
        arguments: NumPy arrays, used in place; NumPy scalars; tuples of these; NamedTuples of these and None.

    Raises:
        RuntimeError: a thread raised (named with block and thread, and chained); all threads left wait for others
            (deadlock); they poll and nothing happens (livelock). Says by which seed threads took turns.
    """
    global _order, _running
    with _lock:
        if _running is not None:
            raise RuntimeError("a kernel in the simulator cannot launch another")
        _order = _order or _Order()
        _order.launches += 1
        vars(cuda).update(gridDim=Dim3(*config.grid), blockDim=Dim3(*config.block))
        try:
            _running = SimulatedLaunch(function, config, arguments, _order)
            watcher.launched(_running, function, arguments)
            try:
                _running.run()
            finally:
                watcher.ended(_running)
        finally:
            _running = None
            for name in _LAUNCH_NAMES:
                vars(cuda).pop(name, None)


class Dim3(NamedTuple):
    """A place or a size in three dimensions."""

    x: int
    y: int
    z: int

    def __str__(self):
        return str(tuple(self))


class _Team:
    """Threads that can meet: of a warp, of a block. live: bit mask of the members that have not ended, bit k of the
    member at position k. meetings: key -> the `_Meeting` that some member waits in."""

    def __init__(self, size):
        self.live, self.meetings = (1 << size) - 1, {}


class _Meeting:
    """Members of a team waiting for the others at one place of the program.

    Attributes:
        mask: bit mask of the members that are to come; those that ended are not waited for.
        arrived: bit mask of those that came. threads: these. values: position -> what each brought.
        result: room for what is computed of the values.
    """

    __slots__ = ("arrived", "mask", "result", "threads", "values")

    def __init__(self, mask):
        self.mask, self.arrived, self.threads, self.values, self.result = mask, 0, [], {}, None


class _Block:
    """A block of threads: its index (x, y, z), all of its threads as a team, its warps, and its arrays in shared
    memory."""

    def __init__(self, index, size):
        self.index, self.number_of_threads, self.shared, self.team = Dim3(*index), size, {}, _Team(size)
        self.warps = [_Team(min(WARP_SIZE, size - first)) for first in range(0, size, WARP_SIZE)]


class _Thread:
    """One thread: its block, index (x, y, z) and lane; names: what it calls itself; seats: (team, position) in the
    block and the warp; carrier: the greenlet that runs it, None before it starts and after it ended."""

    def __init__(self, block, index, number):
        self.block, self.index, self.lane = block, Dim3(*index), number % WARP_SIZE
        self.seats = (block.team, number), (block.warps[number // WARP_SIZE], self.lane)
        self.names = dict(zip(_THREAD_NAMES, (self.index, block.index, self.lane), strict=True))
        self.carrier, self.ended = None, False


class SimulatedLaunch:
    """A launch under way.

    Attributes:
        current: the thread whose turn it is. turns: how many turns threads have taken, this one included.
    """

    def __init__(self, function, config, arguments, order):
        self._function, self._arguments, self.shared_bytes = function, arguments, config.shared_bytes
        self._namespace, self._random, self._order = vars(cuda), order.random, str(order)
        self._patience = order.patience
        self._vain_turns = 0  # since a thread ended or was released, or memory changed
        self._last_memory = self.current = None
        self.turns, self._blocks, self._threads = 0, [], []
        indices = [index[::-1] for index in product(*map(range, config.block[::-1]))]  # x runs fastest
        for place in product(*map(range, config.grid[::-1])):
            block = _Block(place[::-1], len(indices))
            self._blocks.append(block)
            self._threads += [_Thread(block, index, number) for number, index in enumerate(indices)]
        self._ready = deque(self._threads)
        self._carriers, self._idle_carriers = [], []

    def run(self):
        """Run all threads to their end, see `launch`."""
        self._scheduler, self._context = getcurrent(), copy_context()
        try:
            while self._ready:
                carrier = self._next_carrier()
                while carrier is not None:
                    carrier = self._switch(carrier)
                if self._vain_turns > self._patience * len(self._ready):
                    self._require_progress()
            if not all(thread.ended for thread in self._threads):
                raise self._error(f"deadlock, every thread that is left waits: {self._whereabouts()}")
        finally:
            self._ready.clear()
            for carrier in self._carriers:
                carrier.throw()  # unwinds what it runs, so that `with` and `finally` blocks end
            self._threads, self.current = [], None

    def _switch(self, carrier):
        """From `run` to the threads, until it is needed again: to start a greenlet, which is returned; or as no thread
        is ready, or many turns were in vain."""
        try:
            return carrier.switch()
        except Exception as error:
            where = f"block {self.current.block.index}, thread {self.current.index}"
            raise self._error(f"{where} raised {type(error).__name__}: {error}") from error

    def _give_way(self):
        """From a thread that waits or has ended to the next one, without the way over `run`."""
        if not self._ready or self._vain_turns > self._patience * len(self._ready):
            self._scheduler.switch(None)
            return
        carrier = self._next_carrier()
        if not carrier:  # not started: it would begin as deep in calls as this one
            self._scheduler.switch(carrier)
        elif carrier is not getcurrent():
            carrier.switch()

    def _next_carrier(self):
        """The greenlet of the thread whose turn it is now, taken from those that are ready."""
        ready = self._ready
        if self._random is not None:
            chosen = int(self._random.random() * len(ready))
            ready[0], ready[chosen] = ready[chosen], ready[0]
        thread = self.current = ready.popleft()
        self.turns += 1
        self._namespace.update(thread.names)
        if thread.carrier is None:
            if not self._idle_carriers:
                self._add_carrier()
            thread.carrier = self._idle_carriers.pop()
        return thread.carrier

    def _add_carrier(self):
        carrier = greenlet(self._carry, parent=self._scheduler)  # which gets its errors
        carrier.gr_context = self._context.copy()  # so that numpy.errstate around a launch holds in kernels
        self._carriers.append(carrier)
        self._idle_carriers.append(carrier)

    def _carry(self):
        """Run threads in a greenlet, one after the other. A greenlet is dear to start, so threads that never wait share
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
        """Wait until all members of a team that the mask names, and that have not ended, are at this place.

        Args:
            kind: OF_BLOCK or OF_WARP: the team.
            mask: bit mask of the members that are to come.
            value: for the others.

        The place is the line, and the lines it was called from: a barrier reached by some threads is not another
        one reached by others, though hardware may take it for that.

        Returns:
            The Meeting, with the value of each member.
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
        """Let others run. For loops that wait for something: when each thread has had many turns on average, no thread
        ended or passed a barrier, and memory is as it was, that is a livelock."""
        self._vain_turns += 1
        self._ready.append(self.current)
        self._give_way()

    def _error(self, what):
        return RuntimeError(f"kernel {self._function.__name__}: {what} ({self._order})")

    def _release(self, team, key):
        self._ready.extend(team.meetings.pop(key).threads)
        self._vain_turns = 0

    def _leave(self, thread):
        """The thread has ended: others wait for it no longer."""
        self._vain_turns = 0
        for team, position in thread.seats:
            team.live &= ~(1 << position)
            for key, meeting in list(team.meetings.items()):
                if meeting.arrived == team.live & meeting.mask:
                    self._release(team, key)

    def _require_progress(self):
        """Nothing happened for many turns: is it that memory changed, at least?"""
        memory = self._memory()
        if memory == self._last_memory:
            raise self._error(f"livelock, memory did not change in {self._vain_turns} turns: {self._whereabouts()}")
        self._last_memory, self._vain_turns = memory, 0

    def _whereabouts(self):
        """Where the threads that have not ended are, as text: counted per block and place."""
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
        """Return a number that differs when any memory that threads share does."""

        def contents(argument):
            if isinstance(argument, tuple):
                return tuple(map(contents, argument))
            return None if argument is None else argument.tobytes()

        shared = tuple(array.tobytes() for block in self._blocks for array in block.shared.values())
        return hash((contents(self._arguments), shared))


def _call_site(frame):
    """Identify a place of the program and the calls that led there: which instruction each of these
    functions has come to. What functions they are follows, as all threads begin in the same one, and no kernel can
    choose a function while it runs."""
    site = []
    while frame is not None:
        site.append(frame.f_lasti)
        frame = frame.f_back
    return tuple(site)


# ---- switch points -------------------------------------------------------------------------------------------------
def pause(nanoseconds=0):
    """Let other threads run: for loops that poll, and after a store that others poll for. Nothing outside a kernel."""
    if _running is not None:
        _running.pause()


def exchange(mask, value):
    """Return the values of all lanes of a warp when they meet: for instructions of a whole warp.

    Args:
        mask: bit mask of the lanes that take part; lanes that have ended are not waited for.
        value: this lane's; not to be changed afterwards.

    Returns:
        {lane: value}.
    """
    return _running.meet(_OF_WARP, int(mask) & _ALL_LANES, value).values


def collective(mask, value, function):
    """This lane's part of what a warp computes together; `function` is called once, with {lane: value}.

    Args:
        mask, value: as for `exchange`.
        function: of that dict, returns something to be indexed with a lane's number.
    """
    meeting = _running.meet(_OF_WARP, int(mask) & _ALL_LANES, value)
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
    """The value of that lane."""
    values, lane = exchange(mask, value), int(lane) % WARP_SIZE
    if lane not in values:
        raise RuntimeError(f"reads from lane {lane}, which has ended, is not in the mask or does not exist")
    return values[lane]


def shfl_xor_sync(mask, value, lane_mask):
    """The value of the lane whose number is this one's xor `lane_mask`."""
    return shfl_sync(mask, value, _running.current.lane ^ int(lane_mask))


def grid(ndim):
    """The place of this thread in the whole grid: a number, or with 2 or 3 dimensions a tuple."""
    place = tuple(
        block * size + thread for block, size, thread in zip(cuda.blockIdx, cuda.blockDim, cuda.threadIdx, strict=True)
    )
    return place[0] if ndim == 1 else place[:ndim]


def gridsize(ndim):
    """How many threads the grid has along each dimension, as of `grid`."""
    sizes = tuple(blocks * size for blocks, size in zip(cuda.gridDim, cuda.blockDim, strict=True))
    return sizes[0] if ndim == 1 else sizes[:ndim]


class _Atomics:
    """cuda.atomic: each returns what was there before, and others may run after it."""


def _atomic(name, of):
    """Give `_Atomics` a method of that name; of(old, *values): what comes to stand there."""

    def atomic(self, array, index, *values):
        old = array[index]
        array[index] = of(old, *values)
        _running.pause()
        return old

    setattr(_Atomics, name, atomic)


for _name, _of in {
    "add": lambda old, value: old + value, "sub": lambda old, value: old - value,
    "and_": lambda old, value: old & value, "or_": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "inc": lambda old, most: 0 if old >= most else old + 1, "exch": lambda old, value: value,
    "dec": lambda old, most: most if old == 0 or old > most else old - 1,
    "max": lambda old, value: max(old, value), "min": lambda old, value: min(old, value),
    "cas": lambda old, expected, value: value if old == expected else old,
}.items():  # fmt: skip
    _atomic(_name, _of)


# ---- memory --------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=256)
def _all_bits_set(shape, dtype):
    return np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)


@lru_cache(maxsize=256)
def _numpy_dtype(dtype):
    """np.dtype of a NumPy or Numba type."""
    try:
        return np.dtype(dtype)
    except TypeError:
        return np.dtype(str(dtype))


class _Local:
    """cuda.local: arrays with all bits set, NaN in every float format."""

    def array(self, shape, dtype, alignment=None):
        return _all_bits_set(shape, _numpy_dtype(dtype)).copy()


class _Shared:
    """cuda.shared: an array per block and place in the program; shape 0 is the dynamic shared memory."""

    def array(self, shape, dtype, alignment=None):
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


# ---- all names -----------------------------------------------------------------------------------------------------
def _fence():
    """Nothing: threads see each other's stores at once."""


NAMES = {function.__name__: function for function in (grid, gridsize, syncthreads, syncwarp, shfl_sync, shfl_xor_sync)}
NAMES |= {"atomic": _Atomics(), "local": _Local(), "shared": _Shared(), "warpsize": WARP_SIZE, "nanosleep": pause}
NAMES |= dict.fromkeys(("threadfence", "threadfence_block", "threadfence_system"), _fence)
vars(cuda).update(NAMES)
