"""Run jobs on a GPU: one stream per lane with events between them, captured as a CUDA graph when a call repeats.

A graph contains addresses, so it is looked up by the addresses of all arrays. A steady loop repeats them whatever
arrays its caller passes: a call copies its arguments into memory of the buffer pool (`Engine.settled`, `buffer_pool`),
and its results have memory of the pool too. Two calls alive at a time are two graphs. Only weights, and a `dw` to add
to, are used at the caller's addresses.

A call is not captured the first time, since capturing takes longer than running, and some addresses never repeat.
Some kinds of call never replay, such as those of a hundred tapes alive at once. So the more captures of a kind of call
were never replayed, the more often a call must repeat before the next capture. The first run also gives cuBLAS
its workspace on each lane that multiplies, which could not happen during a capture.

Besides copies, a replay calls the driver twice: for the graph's launch, and for an event if the caller uses another
stream.
"""

import threading
from collections import OrderedDict
from contextlib import suppress

from numbarnn.cuda import cublas
from numbarnn.engines.gpu.buffer_pool import KINDS

GRAPHS = 2 * KINDS  # most graphs, the least recently used dropped first; a graph takes about 1 KB per kernel
SEEN = 1024  # most calls without a graph that are remembered, the least recently used dropped first
UNUSED = 4  # captures of a kind without a replay, for each further time that its next graph must be seen


class Streams:
    """Runs jobs on the streams of one device.

    The jobs run after earlier work of the caller's stream and before its later work. Calls from different streams or
    threads run one after another, since they share the lanes' streams and cuBLAS's workspaces.

    Args:
        cupy: the module, or a stand-in.
        ordinal: the device.
    """

    def __init__(self, cupy, ordinal=0):
        self._cuda, self._ordinal = cupy.cuda, ordinal
        self._lanes = {}  # lane -> stream
        self._events = []  # one per job number, shared by all calls
        self._graphs = OrderedDict()  # (kind, places) -> graph
        self._seen = OrderedDict()  # (kind, places) of calls without a graph -> how often they were seen
        self._unused = OrderedDict()  # kind -> captures minus replays
        self._lock = threading.Lock()
        self._over = self._cuda.Event(disable_timing=True)  # recorded at the end of the previous call
        self._last = None  # (stream, thread) of the previous call
        self.recordings = self.replays = 0  # numbers of captures and replays, for tests and reports

    def require_no_capture(self):
        """Raise RuntimeError if CuPy's current stream is captured."""
        caller = self._cuda.get_current_stream()
        if caller.ptr and caller.is_capturing():
            raise RuntimeError(
                "a layer cannot be called while CuPy's current stream is captured as a CUDA graph: later calls would "
                "overwrite the graph's memory, and replays would repeat its random numbers. Call the layer before "
                "begin_capture() or after end_capture(); a repeated call replays the layer's own CUDA graph"
            )

    def release(self):
        """Drop all graphs and free cuBLAS's workspaces, or do nothing while a call queues its work."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            with self._cuda.Device(self._ordinal):
                cublas.release(self._ordinal, [stream.ptr for stream in self._lanes.values()])
            for known in (self._graphs, self._seen, self._unused):
                known.clear()
        finally:
            self._lock.release()

    def run_jobs(self, make_jobs, kind, places=()):
        """Queue jobs and return while they run.

        Args:
            make_jobs: as for `Engine.run_jobs`.
            kind, places: hashable. Equal values mean the same work on the same addresses `places`.
        """
        with self._lock:
            caller = self._cuda.get_current_stream()
            self._come_after_the_last(caller)
            try:
                graph = self._graph(make_jobs, kind, places)
                if graph is None:
                    self._spread(self._bound(make_jobs()), caller)
                    _remember(self._seen, (kind, places), self._seen.get((kind, places), 0) + 1, SEEN)
                else:
                    graph.launch(caller)
                    self.replays += 1
            finally:
                caller.record(self._over)

    def follow(self):
        """Make CuPy's current stream wait for the previous call, if that came from another stream.
        The copies of a new call may overwrite the arrays of the previous one."""
        with self._lock:
            self._come_after_the_last(self._cuda.get_current_stream())

    def _come_after_the_last(self, caller):
        """Make the caller's stream wait for the previous call, if that came from another stream or thread."""
        thread = threading.get_ident()  # the default streams of all threads have one address
        if self._last is None or (self._last[0].ptr, self._last[1]) != (caller.ptr, thread):
            caller.wait_event(self._over)
            self._last = caller, thread

    def _graph(self, make_jobs, kind, places):
        """Return the graph of a call, captured now if it was seen often enough; else None."""
        key, unused = (kind, places), self._unused.get(kind, 0)
        graph = self._graphs.get(key)
        if graph is not None:
            _remember(self._unused, kind, max(0, unused - 1), SEEN)
            self._graphs.move_to_end(key)
        elif self._seen.get(key, 0) > unused // UNUSED:
            del self._seen[key]
            graph = self._record(self._bound(make_jobs()))
            self.recordings += 1
            _remember(self._unused, kind, unused + 1, SEEN)
            _remember(self._graphs, key, graph, GRAPHS)
        return graph

    def _bound(self, jobs):
        """Return (stream, needs, function) of each job. All jobs are bound before the first runs, so that nothing
        compiles during a capture."""
        bound = []
        for job in jobs:
            stream = self._lane(job.lane)
            with stream:
                bound.append((stream, job.needs, job.bind()))
        return bound

    def _lane(self, lane):
        if lane not in self._lanes:
            self._lanes[lane] = self._cuda.Stream(non_blocking=True)
        return self._lanes[lane]

    def _record(self, bound):
        """Capture the jobs as a graph without running them."""
        origin = self._lane(None)
        origin.begin_capture()
        try:
            self._spread(bound, origin)
        except BaseException:
            with suppress(RuntimeError):  # the capture must end even if it is broken
                origin.end_capture()
            raise
        return origin.end_capture()

    def _spread(self, bound, origin):
        """Queue the jobs on their streams, after earlier work of `origin` and before its later work."""
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
        finally:  # also after an error, since the caller may free the arrays
            for stream in forked:
                stream.record(start)
                origin.wait_event(start)


def _remember(calls, key, value, most):
    """Put an entry at the end of an OrderedDict, and drop the oldest if there are more than `most`."""
    calls[key] = value
    calls.move_to_end(key)
    if len(calls) > most:
        calls.popitem(last=False)
