"""The CPU engine's threads: the caller and some others run one compiled function, or do Python's jobs, together."""

import heapq
import os
import threading
import weakref
from pathlib import Path
from time import monotonic

from numbarnn.engines.cpu import openmp
from numbarnn.engines.cpu.helpers import Helpers, run_all, run_all_alone, run_alone, run_together
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


# ------------------------------------------------------------------------------------------ the pool
class _OfThread(threading.local):
    """What each Python thread has of its own.

    Attributes:
        in_job: whether it does one of `ThreadPool.run_jobs`' jobs.
    """

    in_job = False  # of the class: to look in vain for one of a thread's takes Python half a microsecond


class Pause:
    """When no other thread is asked to take pieces: after a call that had to wait for one, as the next would too.

    The more often that happens, the longer: beside other programs threads lose their processors all the time.

    Attributes:
        end: until this time; seconds of a clock. seconds: how long the last one was; less with each call in time.
    """

    SHORTEST, LONGEST = 0.002, 0.128

    def __init__(self):
        self.end, self.seconds = 0.0, 0.0

    def lasts(self):
        """Whether it has not ended yet."""
        return monotonic() < self.end

    def after(self, begin, end, late):
        """Tell of a call on several threads, which was late or not."""
        if late:
            self.seconds = min(self.LONGEST, 2 * self.seconds + self.SHORTEST)
            self.end = end + self.seconds
        else:
            self.seconds = max(0.0, self.seconds - (end - begin) / 2)


class ThreadPool:
    """Runs compiled functions on several threads at once, and Python's jobs on several.

    They are real threads, so that waiting for each other inside cannot deadlock, as it could if a pool ran two parts
    after another on one thread.
    """

    def __init__(self, threads=None):
        self.threads, self._told = threads or default_threads(), bool(threads) or VARIABLE in os.environ
        self._workers, self._helpers = [], None
        self._busy, self.pause = threading.Lock(), Pause()
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
            for worker in self._workers:
                worker.start(None)
            if self._helpers is not None:
                self._helpers.end()
            self._workers, self._helpers = [], None
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

    def run(self, item, function, threads, what, waits=True):
        """Let `threads` threads (at most this thread pool's) do something together, and return when it is done; inside
        a job of `run_jobs` the calling thread does it alone.

        A call from another Python thread waits for its turn where this waits for all threads; else it is done alone.

        Args:
            item: bytes of a number of the dtype.
            function, what: addresses of a function of (zero, address of a `records.Job`), and of what it does.
            waits: for all threads; else only for the calling one, and for others that have begun. A thread that comes
                must then find what is left to do, and this one do all if none comes.
        """
        threads = 1 if threads == 1 else min(threads, self.available())
        if threads == 1 or self.in_job():
            run_alone(item, function, what)
            return
        if not self._busy.acquire(blocking=waits):
            run_alone(item, function, what)
            return
        try:
            threads = min(threads, self.available())  # there may be fewer since it waited for its turn
            if threads == 1:
                run_alone(item, function, what)
                return
            if self.openmp is not None and self.openmp.size() >= threads:
                self.openmp.run(item, function, threads, what)
                return
            if self._helpers is None:
                self._helpers = Helpers(self.threads - 1)
            at = self._helpers
            run_together(item, function, what, threads, at.slots, at.jobs, at.counters, waits)
        finally:
            self._busy.release()

    def run_all(self, item, steps, count, threads):
        """The same of several things one after another, which wait for no thread that has not begun.

        Args:
            steps: address of so many `records.Step`s. threads: 1, or as many as each says.
        """
        threads = 1 if threads == 1 or self._own.in_job else self.available()
        if threads > 1 and self.openmp is not None:
            for step in (Step * count).from_address(steps):
                self.run(item, step.function, min(step.threads, threads), step.what, False)
        elif threads > 1 and self._busy.acquire(False):
            try:
                at = self._helpers = self._helpers or Helpers(self.threads - 1)
                # no more than there are: there may be fewer since it was asked
                run_all(item, steps, count, self.threads, at.slots, at.jobs, at.counters)
            finally:
                self._busy.release()
        else:
            run_all_alone(item, steps, count)

    def run_jobs(self, jobs):
        """Do jobs (`base.Job`), each on one thread; a thread takes the first that is ready. Lanes do not matter here.

        What a job computes does not depend on which thread does it or on when, so results are the same every time.
        """
        queue, threads = _JobQueue(jobs), min(self.available(), len(jobs))
        if threads == 1 or self.in_job():
            self._work_off(queue)
            return
        with self._busy:
            self._work_off_together(queue, threads)

    def _work_off_together(self, queue, threads):
        while len(self._workers) < threads - 1:
            self._workers.append(_Worker(len(self._workers) + 1))
        workers, errors = self._workers[: threads - 1], []
        for worker in workers:
            worker.start(lambda: self._work_off(queue))
        try:
            self._work_off(queue)
        except BaseException as error:  # raised below, when no thread works on the arguments any more
            errors.append(error)
        errors += [worker.finish() for worker in workers]
        for error in errors:
            if error is not None:
                raise error

    def _work_off(self, queue):
        """A thread's part in `run_jobs`."""
        before, self._own.in_job = self.in_job(), True
        try:
            queue.work()
        finally:
            self._own.in_job = before

    def _end_openmp(self):
        """In a process that is going to fork."""
        if self.openmp is not None and not self.openmp.end_threads():
            self.openmp = None

    def _forget_workers(self):
        self._workers, self._helpers, self._busy = [], None, threading.Lock()
