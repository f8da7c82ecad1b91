"""The CPU engine's threads: the caller and some others run one compiled function, or do Python's jobs, together."""

import heapq
import os
import threading
import weakref
from ctypes import addressof
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from numbarnn.engines.cpu import openmp
from numbarnn.engines.cpu.helpers import Helpers, run_alone, run_together
from numbarnn.engines.cpu.records import Step

VARIABLE = "NUMBARNN_NUM_THREADS"
_CGROUP = Path("/sys/fs/cgroup")


def default_threads():
    """How many threads calls use at first: what the environment says, else as many as there are processors for them.

    Raises:
        ValueError: NUMBARNN_NUM_THREADS is set, and not to a positive int.
    """
    given = os.environ.get(VARIABLE)
    if given is None:
        return usable_cpus()
    if not given.isdecimal() or int(given) < 1:
        raise ValueError(f"{VARIABLE} must be a positive int, not {given!r}: unset it to use all processors")
    return int(given)


def usable_cpus(cgroup=_CGROUP):
    """Number of processors that this process may use at a time: those it may run on, or fewer where its control group,
    such as a container's, gets less of their time.

    Args:
        cgroup: where Linux shows the control group.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota, period in (
        (cgroup / "cpu.max", None),
        (cgroup / "cpu/cpu.cfs_quota_us", cgroup / "cpu/cpu.cfs_period_us"),
    ):
        try:
            numbers = [*quota.read_text().split(), *(period.read_text().split() if period else ())]
        except OSError:  # no control groups, or of the other version
            continue
        if numbers[0].isdecimal():  # else without a limit: max, or -1
            return max(1, min(allowed, int(numbers[0]) // int(numbers[1])))
    return allowed


class _JobQueue:
    """The jobs of one call: which are ready, and whether all are done.

    Worker threads do the jobs while the calling thread only waits. Python runs signal handlers, such as that of Ctrl-C,
    on the main thread: so an exception from one never comes between taking a job and ending it.

    Args:
        jobs: `base.Job`s.

    Attributes:
        error: what a job raised first, or None.
    """

    def __init__(self, jobs):
        self._calls = [job.bind() for job in jobs]
        self._waiting_for = [len(set(job.needs)) for job in jobs]
        self._needed_by = [[] for _ in jobs]
        for number, job in enumerate(jobs):
            for need in set(job.needs):
                self._needed_by[need].append(number)
        self._ready = [number for number, count in enumerate(self._waiting_for) if count == 0]  # a heap
        self._left, self._workers, self._begun = len(jobs), 0, False
        self._changed, self._over = threading.Condition(), threading.Lock()
        self._over.acquire()
        self._stopped, self.error = False, None

    def work(self):
        """Do jobs until none is left; what one raises ends the work of all threads, and becomes `error`."""
        try:
            while (number := self._take()) is not None:
                self._calls[number]()
                self._done(number)
        except BaseException as error:
            with self._changed:
                self.error, self._left = self.error or error, 0
                self._changed.notify_all()

    def _take(self):
        """The number of a job that is ready, as soon as there is one; None if no job is left."""
        with self._changed:
            while self._left and not self._ready and not self._stopped:
                self._changed.wait()
            return heapq.heappop(self._ready) if self._left and not self._stopped else None

    def _done(self, number):
        with self._changed:
            self._left = max(0, self._left - 1)  # 0 if another job failed
            for other in self._needed_by[number]:
                self._waiting_for[other] -= 1
                if not self._waiting_for[other]:
                    heapq.heappush(self._ready, other)
            self._changed.notify_all()

    def begin(self, inbox, threads):
        """Work on this worker thread and, by `inbox`, on as many others as `threads` says; a second time do nothing."""
        with self._changed:
            threads = 0 if self._begun else threads
            self._workers += threads  # before `_begun`, as `run` reads both without the lock
            self._begun = True
        for _ in range(threads - 1):
            inbox.put(self._work_and_leave)
        if threads:
            self._work_and_leave()

    def _work_and_leave(self):
        self.work()
        with self._changed:
            self._workers -= 1
            if not self._workers:
                self._over.release()

    def run(self, inbox, threads):
        """Let worker threads do all jobs; return when none of them works any more, also after an interrupt."""
        begin, interrupt, over = partial(self.begin, inbox, threads), None, False
        while not over:
            try:
                inbox.put(begin)  # again after an interrupt, which may have come before the first time
                over = self._over.acquire()
            except BaseException as error:
                interrupt, self._stopped = error, True
                over = self._begun and not self._workers
        if interrupt is not None:
            raise interrupt
        if self.error is not None:
            raise self.error


# ------------------------------------------------------------------------------------------ the pool
class _OfThread(threading.local):
    """What each Python thread has of its own.

    Attributes:
        in_job: whether it does one of `ThreadPool.run_jobs`' jobs.
    """

    in_job = False  # of the class: to look in vain for one of a thread's takes Python half a microsecond


class ThreadPool:
    """Runs compiled functions on several threads at once, and Python's jobs on several.

    They are real threads, so that waiting for each other inside cannot deadlock, as it could if a pool ran two parts
    after another on one thread.
    """

    def __init__(self, threads=None):
        self.threads, self._told = threads or default_threads(), bool(threads) or VARIABLE in os.environ
        self._workers, self._inbox, self._helpers = 0, SimpleQueue(), None
        self._busy = threading.RLock()
        self.openmp = None
        self._own = _OfThread()
        if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
            this = weakref.ref(self)
            os.register_at_fork(
                before=lambda: this() and this()._end_openmp(),
                after_in_child=lambda: this() and this()._forget_workers(),
            )

    def join_pytorch(self, size):
        """Use PyTorch's threads from now on, where they are OpenMP's; PyTorch must be loaded.

        Args:
            size: `torch.get_num_threads`.
        """
        if self.openmp is None and (functions := openmp.functions_of_pytorch()):
            self.openmp = openmp.OpenMP(functions, size)

    def resize(self, threads):
        """Use this many threads from now on."""
        with self._busy:
            for _ in range(self._workers):
                self._inbox.put(None)
            if self._helpers is not None:
                self._helpers.end()
            self._workers, self._inbox, self._helpers = 0, SimpleQueue(), None
            self.threads, self._told = threads, True

    def available(self):
        """How many threads a call from this Python thread may use: as many as the pool was told; if it was not, no more
        than PyTorch may, once its threads are used."""
        if self.openmp is None or self._told:
            return self.threads
        return min(self.threads, self.openmp.size())

    def in_job(self):
        """Whether this Python thread does one of `run_jobs`' jobs."""
        return self._own.in_job

    def run(self, item, steps, count, threads):
        """Do several things one after another, each on as many threads as it says, and return when all are done.

        The calling thread does them alone inside a job of `run_jobs`, and while another Python thread's call runs.

        Args:
            item: bytes of a number of the dtype.
            steps: address of so many `records.Step`s. threads: the most that one of them says.
        """
        threads = 1 if threads == 1 or self._own.in_job else min(threads, self.available())
        if threads == 1:
            run_alone(item, steps, count)
            return
        try:
            if not self._busy.acquire(blocking=False):
                run_alone(item, steps, count)
            elif self.openmp is not None and self.openmp.size() >= threads:
                for step in (Step * count).from_address(steps):
                    if step.threads > 1:
                        self.openmp.run(item, step.function, min(step.threads, threads), step.what)
                    else:
                        run_alone(item, addressof(step), 1)
            else:
                at = self._helpers = self._helpers or Helpers(self.threads - 1)
                run_together(item, steps, count, threads, at.slots, at.jobs, at.counters)
        finally:  # an interrupt may have come when the lock was held already, but `acquire` had not returned
            try:  # not contextlib.suppress: an interrupt could come while that is called
                self._busy.release()
            except RuntimeError:  # another thread has it: this one did all alone
                pass

    def run_jobs(self, jobs):
        """Do jobs (`base.Job`), each on one thread; a thread takes the first that is ready. Lanes do not matter here.

        What a job computes does not depend on which thread does it or on when, so results are the same every time.
        """
        queue, threads = _JobQueue(jobs), min(self.available(), len(jobs))
        if threads == 1 or self.in_job():
            before, self._own.in_job = self.in_job(), True
            try:
                queue.work()
            finally:
                self._own.in_job = before
            if queue.error is not None:
                raise queue.error
            return
        with self._busy:
            while self._workers < threads:
                threading.Thread(target=self._do_jobs, args=(self._inbox,), name="numbarnn-jobs", daemon=True).start()
                self._workers += 1
            queue.run(self._inbox, threads)

    def _do_jobs(self, inbox):
        """Call whatever comes by `inbox`, until that is None: what a worker thread does."""
        self._own.in_job = True
        while (function := inbox.get()) is not None:
            function()
            function = None  # the arrays it holds may be large

    def _end_openmp(self):
        """In a process that is going to fork."""
        if self.openmp is not None and not self.openmp.end_threads():
            self.openmp = None

    def _forget_workers(self):
        self._workers, self._inbox, self._helpers, self._busy = 0, SimpleQueue(), None, threading.RLock()
