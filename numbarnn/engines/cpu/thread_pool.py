"""The CPU engine's threads: the caller and some workers run one compiled function together."""

import heapq
import os
import threading
import weakref

import numpy as np

from numbarnn.engines.cpu.atomics import SLOTS


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


class _JobQueue:
    """Jobs, and which of them are ready."""

    def __init__(self, jobs):
        self._calls = [job.bind() for job in jobs]
        self._waiting_for = [len(set(job.needs)) for job in jobs]
        self._needed_by = [[] for _ in jobs]
        for number, job in enumerate(jobs):
            for need in set(job.needs):
                self._needed_by[need].append(number)
        self._ready = [number for number, count in enumerate(self._waiting_for) if count == 0]  # a heap
        self._left = len(jobs)
        self._changed = threading.Condition()

    def work(self):
        """Do jobs until none is left; what one raises is raised here, and ends the work of all threads."""
        while (number := self._take()) is not None:
            try:
                self._calls[number]()
            except BaseException:
                self._end()
                raise
            self._done(number)

    def _take(self):
        """The number of a job that is ready, as soon as there is one; None if no job is left."""
        with self._changed:
            while self._left and not self._ready:
                self._changed.wait()
            return heapq.heappop(self._ready) if self._left else None

    def _done(self, number):
        with self._changed:
            self._left = max(0, self._left - 1)  # 0 if another job failed
            for other in self._needed_by[number]:
                self._waiting_for[other] -= 1
                if not self._waiting_for[other]:
                    heapq.heappush(self._ready, other)
            self._changed.notify_all()

    def _end(self):
        with self._changed:
            self._left = 0
            self._changed.notify_all()


class ThreadPool:
    """Runs `function(thread, threads, counters, *arguments)` on every thread at once.

    The functions are compiled with `nogil`, split their work by (thread, threads) and meet at
    `atomics.barrier(counters, thread, threads)`. They are real threads, so that waiting inside cannot deadlock as it
    could if a pool ran two parts after another on one thread.
    """

    def __init__(self, threads=None):
        self.threads = threads or usable_cpus()
        self._workers = []
        self._busy = threading.Lock()
        self._local = threading.local()  # .in_job: this Python thread does one of `run_jobs`' jobs
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
        """Run the function on `threads` threads (at most this thread pool's) and return when all are done; inside a
        job of `run_jobs` on the calling thread alone.

        A call from another Python thread waits for its turn: on fewer threads its results could differ in the last bit.
        """
        if threads == 1 or getattr(self._local, "in_job", False):
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

    def run_jobs(self, jobs):
        """Do jobs (`base.Job`), each on one thread; a thread takes the first that is ready. Lanes do not matter here.

        What a job computes does not depend on which thread does it or on when, so results are the same every time.
        """
        queue = _JobQueue(jobs)
        self.run(self._work_off, min(self.threads, len(jobs)), queue)

    def _work_off(self, thread, threads, counters, queue):
        """Every thread's part in `run_jobs`."""
        self._local.in_job = True
        try:
            queue.work()
        finally:
            self._local.in_job = False

    def _forget_workers(self):
        self._workers, self._busy = [], threading.Lock()
