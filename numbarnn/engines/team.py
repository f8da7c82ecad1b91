"""The CPU engine's threads: the caller and some workers run one compiled function together."""

import os
import threading
import weakref

import numpy as np

from numbarnn.engines.atomics import SLOTS


def usable_cpus():
    """Number of CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Worker:
    """A thread that runs one job at a time. Two locks wake it and tell that it is done: half the cost of a queue."""

    def __init__(self, number):
        self._job, self._error = None, None
        self._wake, self._done = threading.Lock(), threading.Lock()
        self._wake.acquire()
        self._done.acquire()
        threading.Thread(target=self._loop, name=f"numbarnn-{number}", daemon=True).start()

    def start(self, job):
        """Run `job()` on this thread; None ends the thread."""
        self._job = job
        self._wake.release()

    def finish(self):
        """Wait until the job is done; returns what it raised, or None."""
        self._done.acquire()
        error, self._error = self._error, None
        return error

    def _loop(self):
        while True:
            self._wake.acquire()
            job, self._job = self._job, None
            if job is None:
                return
            try:
                job()
            except BaseException as error:
                self._error = error
            job = None  # the arrays it holds may be large
            self._done.release()


class Team:
    """Runs `function(thread, threads, counters, *arguments)` on every thread at once.

    The functions are compiled with `nogil`, split their work by (thread, threads) and meet at
    `atomics.barrier(counters, thread, threads)`. They are real threads, so that waiting inside cannot deadlock as it
    could if a pool ran two parts after another on one thread.
    """

    def __init__(self, threads=None):
        self.threads = threads or usable_cpus()
        self._workers = []
        self._busy = threading.Lock()
        self._alone = np.zeros(SLOTS, dtype=np.int64)  # not used by one thread alone, only passed
        if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
            this = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: this() and this()._forget_workers())

    def resize(self, threads):
        """Use this many threads from now on."""
        with self._busy:
            for worker in self._workers:
                worker.start(None)
            self._workers = []
            self.threads = threads

    def run(self, function, threads, *arguments):
        """Run the function on `threads` threads (at most this team's) and return when all are done.

        A call from another Python thread waits for its turn: on fewer threads its results could differ in the last bit.
        """
        if threads == 1:
            function(0, 1, self._alone, *arguments)
            return
        with self._busy:
            self._run_together(function, min(threads, self.threads), arguments)

    def _run_together(self, function, threads, arguments):
        while len(self._workers) < threads - 1:
            self._workers.append(_Worker(len(self._workers) + 1))
        counters = np.zeros(threads * SLOTS, dtype=np.int64)
        helpers = self._workers[: threads - 1]
        for number, worker in enumerate(helpers, 1):
            worker.start(lambda number=number: function(number, threads, counters, *arguments))
        errors = []
        try:
            function(0, threads, counters, *arguments)
        except BaseException as error:  # raised below, when no thread works on the arguments any more
            errors.append(error)
        errors += [worker.finish() for worker in helpers]
        for error in errors:
            if error is not None:
                raise error

    def _forget_workers(self):
        self._workers, self._busy = [], threading.Lock()
