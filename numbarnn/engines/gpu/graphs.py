"""Jobs on a GPU: a stream per lane with events between them, recorded as a CUDA graph at the second sight.

A graph holds the addresses it was recorded with, so it is found again by the addresses of all arrays. These come round
in a steady loop, whatever arrays its caller passes: a call copies them into memory of its own (`Engine.settled`), which
comes from the buffer pool (`buffer_pool`), as its results do. So two calls alive at a time are two graphs, and no
more. Only weights and a `dw` to add to are used where their owner keeps them.

A first sight is not recorded: recording takes longer than running, and some addresses never come back. Some kinds of
call never replay, as with a hundred tapes alive at once. So the more recordings of a kind were never replayed, the more
often its next graph must be seen before it is recorded: few of such calls pay for recording. As the jobs have run at
the first sight, cuBLAS has its work space on each lane that multiplies (and on no other) before anything is
recorded.

A replay is two calls of the driver besides the copies: the graph's launch, and an event for a caller on another stream.
"""

import threading
from collections import OrderedDict
from contextlib import suppress

from numbarnn.cuda import cublas
from numbarnn.engines.gpu.buffer_pool import KINDS

GRAPHS = 2 * KINDS  # kept, the least recently used forgotten first; a graph takes about 1 KB per kernel
SIGHTS = 1024  # calls without a graph that are remembered, the least recently used forgotten first
UNPAID = 4  # recordings of a kind that no replay has paid for yet, for each further sight that the next one takes


class Streams:
    """Runs jobs on the streams of one device.

    Their work comes after what the caller's stream was given before, and before what it is given afterwards. Calls from
    different streams or threads run one after another: they share the lanes' streams and cuBLAS's work spaces.

    Args:
        cupy: the module, or what stands in for it.
        ordinal: the device.
    """

    def __init__(self, cupy, ordinal=0):
        self._cuda, self._ordinal = cupy.cuda, ordinal
        self._lanes = {}  # lane -> stream
        self._events = []  # one per job number, used again by every call
        self._graphs = OrderedDict()  # (kind, places) -> graph
        self._sights = OrderedDict()  # (kind, places) of calls without a graph -> how often they were seen
        self._unpaid = OrderedDict()  # kind -> recordings, less replays
        self._lock = threading.Lock()
        self._over = self._cuda.Event(disable_timing=True)  # the call before is done
        self._last = None  # (stream, thread) of the call before
        self.recordings = self.replays = 0  # numbers of graphs, and of their launches, for tests and reports

    def require_no_capture(self):
        """Raise RuntimeError if CuPy's current stream is captured."""
        caller = self._cuda.get_current_stream()
        if caller.ptr and caller.is_capturing():
            raise RuntimeError(
                "a layer cannot be called while CuPy's current stream is captured as a CUDA graph: later calls would "
                "write to the memory that it holds, and its replays would not draw anew. Call the layer before "
                "begin_capture() or after end_capture(); a repeated call is a replay of a CUDA graph of its own"
            )

    def release(self):
        """Forget all graphs, and give back cuBLAS's work spaces. Does nothing while a call is giving out its work."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            with self._cuda.Device(self._ordinal):
                cublas.release(self._ordinal, [stream.ptr for stream in self._lanes.values()])
            for known in (self._graphs, self._sights, self._unpaid):
                known.clear()
        finally:
            self._lock.release()

    def run_jobs(self, make_jobs, kind, places=()):
        """Run jobs and return while they run.

        Args:
            make_jobs: as for `Engine.run_jobs`.
            kind, places: hashable; equal ones mean the very same work, on the same addresses `places`.
        """
        with self._lock:
            caller = self._cuda.get_current_stream()
            self._come_after_the_last(caller)
            try:
                graph = self._graph(make_jobs, kind, places)
                if graph is None:
                    self._spread(self._bound(make_jobs()), caller)
                    _remember(self._sights, (kind, places), self._sights.get((kind, places), 0) + 1, SIGHTS)
                else:
                    graph.launch(caller)
                    self.replays += 1
            finally:
                caller.record(self._over)

    def follow(self):
        """Let CuPy's current stream wait for the call before, if that came from another: what it copies for its own
        call may go where that one's arrays stood."""
        with self._lock:
            self._come_after_the_last(self._cuda.get_current_stream())

    def _come_after_the_last(self, caller):
        """Let the caller's stream wait for the call before, if that came from another."""
        thread = threading.get_ident()  # each thread has a default stream of its own, under one address
        if self._last is None or (self._last[0].ptr, self._last[1]) != (caller.ptr, thread):
            caller.wait_event(self._over)
            self._last = caller, thread

    def _graph(self, make_jobs, kind, places):
        """The graph of a call that was seen before; None for the first sight, or the first few."""
        key, unpaid = (kind, places), self._unpaid.get(kind, 0)
        graph = self._graphs.get(key)
        if graph is not None:
            _remember(self._unpaid, kind, max(0, unpaid - 1), SIGHTS)
            self._graphs.move_to_end(key)
        elif self._sights.get(key, 0) > unpaid // UNPAID:
            del self._sights[key]
            graph = self._record(self._bound(make_jobs()))
            self.recordings += 1
            _remember(self._unpaid, kind, unpaid + 1, SIGHTS)
            _remember(self._graphs, key, graph, GRAPHS)
        return graph

    def _bound(self, jobs):
        """(stream, needs, function) of each job: bound before any runs, so that nothing compiles in a recording."""
        bound = []
        for job in jobs:
            stream = self._lane(job.lane)
            with stream:
                bound.append((stream, job.needs, job.bind()))
        return bound

    def _lane(self, lane):
        """The lane's stream."""
        if lane not in self._lanes:
            self._lanes[lane] = self._cuda.Stream(non_blocking=True)
        return self._lanes[lane]

    def _record(self, bound):
        """A graph of the jobs, which do not run."""
        origin = self._lane(None)
        origin.begin_capture()
        try:
            self._spread(bound, origin)
        except BaseException:
            with suppress(RuntimeError):  # the recording may have broken; it must be over in any case
                origin.end_capture()
            raise
        return origin.end_capture()

    def _spread(self, bound, origin):
        """Give the jobs to their streams, between what `origin` was given before and what it will be given."""
        while len(self._events) < len(bound) + 1:
            self._events.append(self._cuda.Event(disable_timing=True))
        start, *done = self._events
        awaited = {need for stream, needs, _ in bound for need in needs if bound[need][0] is not stream}
        origin.record(start)
        forked = []
        try:
            for number, (stream, needs, run) in enumerate(bound):
                if stream not in forked:
                    stream.wait_event(start)
                    forked.append(stream)
                for need in needs:
                    if bound[need][0] is not stream:
                        stream.wait_event(done[need])
                with stream:
                    run()
                if number in awaited:
                    stream.record(done[number])
        finally:  # also after an error: the caller may free the arrays
            for stream in forked:
                stream.record(start)
                origin.wait_event(start)


def _remember(calls, key, value, most):
    """Put an entry at the end of an OrderedDict, and let the oldest go where there are more than that."""
    calls[key] = value
    calls.move_to_end(key)
    if len(calls) > most:
        calls.popitem(last=False)
