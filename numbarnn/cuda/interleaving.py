"""All threads of a grid at once, in one OS thread: greenlets that take turns in an order that a seed chooses.

A thread runs until it meets others (a barrier, an exchange between lanes), gives way (`pause`) or ends; then another
one runs. Nothing here knows CUDA's names or Numba: see `simulator`, which does.
"""

import sys
from collections import Counter, deque
from contextvars import copy_context
from itertools import product

from numbarnn.common import install

try:
    from greenlet import getcurrent, greenlet
except ImportError as error:
    raise ImportError(f"the simulator needs greenlet: {install.command('sim')}") from error

WARP_SIZE = 32
EVERYBODY = -1  # the mask with all bits set
OF_BLOCK, OF_WARP = range(2)  # a thread's seats
_OWN_MODULES = (__name__, f"{__package__}.simulator", f"{__package__}.ptx_simulated")  # whose frames are not a kernel's
_REPORTED_GROUPS = 12  # lines of a report, of more groups of threads only the number is told


class Team:
    """Threads that can meet: of a warp, of a block.

    Attributes:
        live: bit mask of the members that have not ended; bit k is the member at position k.
        meetings: key -> Meeting, those that some member waits in.
    """

    def __init__(self, size):
        self.live, self.meetings = (1 << size) - 1, {}


class Meeting:
    """Members of a team waiting for the others at one place of the program.

    Attributes:
        mask: bit mask of the members that are to come; those that ended are not waited for.
        arrived: bit mask of those that came.
        threads: these.
        values: position -> what each brought; complete when `meet` returns it.
        result: room for what is computed of the values.
    """

    __slots__ = ("arrived", "mask", "result", "threads", "values")

    def __init__(self, mask):
        self.mask, self.arrived, self.threads, self.values, self.result = mask, 0, [], {}, None


class Block:
    """A block of threads.

    Attributes:
        index: (x, y, z). team: all of its threads. number_of_threads: at the start. warps: one Team each.
        shared: key -> array in shared memory; belongs to the caller.
    """

    def __init__(self, index, size):
        self.index, self.number_of_threads, self.shared = index, size, {}
        self.team = Team(size)
        self.warps = [Team(min(WARP_SIZE, size - first)) for first in range(0, size, WARP_SIZE)]


class Thread:
    """One thread of the grid.

    Attributes:
        block: its Block; index: (x, y, z) in it; lane: its number in the warp.
        names: what it calls itself, a dict.
        seats: (team, position) in the block and the warp.
        carrier: the greenlet that runs it; None before it starts and after it ended.
        ended: whether it returned.
    """

    def __init__(self, block, index, number):
        self.block, self.index, self.lane = block, index, number % WARP_SIZE
        self.seats = (block.team, number), (block.warps[number // WARP_SIZE], self.lane)
        self.carrier, self.ended = None, False


class Interleaving:
    """One run of a kernel; the base of what knows CUDA.

    Args:
        function: the kernel, a Python function; every thread calls function(*arguments).
        sizes: of the grid and of a block, (x, y, z) each.
        namespace: a dict; whenever a thread takes its turn it is updated with `names_of(thread)`.
        random: a random.Random that picks who is next; None: in turn, block by block.
        patience: turns that every thread may wait in vain, see `pause`.
        order: the order of the threads, as text: how to have it again.

    Attributes:
        current: the Thread whose turn it is.
        turns: how many turns threads have taken, this one included.
        blocks: list of Block.
    """

    def __init__(self, function, arguments, sizes, namespace, random, patience, order):
        self._function, self._arguments = function, arguments
        self._namespace, self._random, self._patience, self._order = namespace, random, patience, order
        self._vain_turns = 0  # since a thread ended or was released, or memory changed
        self._last_memory = self.current = None
        self.turns, self.blocks, self._threads = 0, [], []
        grid, block = sizes
        indices = [index[::-1] for index in product(*map(range, block[::-1]))]  # x runs fastest
        for place in product(*map(range, grid[::-1])):
            one = Block(place[::-1], len(indices))
            self.blocks.append(one)
            for number, index in enumerate(indices):
                thread = Thread(one, index, number)
                thread.names = self.names_of(thread)
                self._threads.append(thread)
        self._ready = deque(self._threads)
        self._carriers, self._idle_carriers = [], []

    def names_of(self, thread):
        """Return the names of a thread for itself, as a dict."""
        raise NotImplementedError

    def memory(self):
        """A value that differs when any memory that threads share does."""
        raise NotImplementedError

    def run(self):
        """Run all threads to their end.

        Raises:
            RuntimeError: a thread raised an exception (named with block and thread, and chained); all threads left
                wait for others (deadlock); they poll and nothing happens (livelock).
        """
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

    def meet(self, kind, mask=EVERYBODY, value=None):
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
            meeting = team.meetings[key] = Meeting(mask)
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
        memory = self.memory()
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


def _call_site(frame):
    """Identify a place of the program and the calls that led there: which instruction each of these
    functions has come to. What functions they are follows, as all threads begin in the same one, and no kernel can
    choose a function while it runs."""
    site = []
    while frame is not None:
        site.append(frame.f_lasti)
        frame = frame.f_back
    return tuple(site)
