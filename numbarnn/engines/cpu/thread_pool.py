"""The CPU engine's threads: the calling thread and helpers run one compiled function together."""

import os
import threading
import weakref
from ctypes import addressof
from pathlib import Path

from numbarnn.engines.cpu import openmp
from numbarnn.engines.cpu.helpers import Helpers, run_alone, run_together
from numbarnn.engines.cpu.records import FusedStep

VARIABLE = "NUMBARNN_NUM_THREADS"
_CGROUP = Path("/sys/fs/cgroup")


def default_threads():
    """Return NUMBARNN_NUM_THREADS, else the number of usable CPUs.

    Raises:
        ValueError: NUMBARNN_NUM_THREADS is set, and not to a positive int.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return usable_cpus()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{VARIABLE} must be a positive int, not {text!r}: unset it to use all processors")
    return int(text)


def usable_cpus(cgroup=_CGROUP):
    """Return the number of CPUs this process may use at a time, limited by its control group (such as a container's).

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
        except OSError:  # no control groups, or the other version
            continue
        if numbers[0].isdecimal():  # else "max" or -1: no limit
            return max(1, min(allowed, int(numbers[0]) // int(numbers[1])))
    return allowed


class ThreadPool:
    """Runs compiled functions on several threads at once.
    All threads of a run exist at the same time, so they may wait for each other without deadlock."""

    def __init__(self, threads=None):
        self.threads, self._is_set = threads or default_threads(), bool(threads) or VARIABLE in os.environ
        self._helpers, self._busy, self.openmp = None, threading.RLock(), None
        if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
            this = weakref.ref(self)
            os.register_at_fork(
                before=lambda: this() and this()._end_openmp(),
                after_in_child=lambda: this() and this()._forget_workers(),
            )

    def join_pytorch(self, size):
        """Use PyTorch's OpenMP threads from now on, if it has them; PyTorch must be loaded.

        Args:
            size: `torch.get_num_threads`.
        """
        if self.openmp is None and (functions := openmp.functions_of_pytorch()):
            self.openmp = openmp.OpenMP(functions, size)

    def resize(self, threads):
        """Use this many threads from now on."""
        with self._busy:
            if self._helpers is not None:
                self._helpers.end()
            self._helpers, self.threads, self._is_set = None, threads, True

    def available(self):
        """Return how many threads a call from this Python thread may use.
        A number that the user set counts; else, once PyTorch's threads are in use, at most PyTorch's number."""
        if self.openmp is None or self._is_set:
            return self.threads
        return min(self.threads, self.openmp.size())

    def run(self, item, steps, count, threads):
        """Run steps one after another, each on its number of threads, and return when all are done.

        The calling thread does them alone while another Python thread's call runs.

        Args:
            item: bytes of a number of the dtype.
            steps: address of `count` `records.FusedStep`s. threads: the most that a step uses.
        """
        if min(threads, self.available()) == 1:
            run_alone(item, steps, count)
            return
        try:
            if not self._busy.acquire(blocking=False):
                run_alone(item, steps, count)
                return
            threads = min(threads, self.available())  # another thread may have lowered the number meanwhile
            if self.openmp is not None and self.openmp.size() >= threads:
                for step in (FusedStep * count).from_address(steps):
                    if step.threads > 1:
                        self.openmp.run(item, step.function, min(step.threads, threads), step.record)
                    else:
                        run_alone(item, addressof(step), 1)
            else:
                at = self._helpers = self._helpers or Helpers(self.threads - 1)
                run_together(item, steps, count, threads, at.slots, at.jobs, at.counters)
        finally:  # an interrupt may arrive after the lock is held but before `acquire` returns
            try:  # not contextlib.suppress: an interrupt could arrive during that call
                self._busy.release()
            except RuntimeError:  # another thread holds it: this one did all the work alone
                pass

    def _end_openmp(self):
        """End OpenMP's threads in a process that is about to fork."""
        if self.openmp is not None and not self.openmp.end_threads():
            self.openmp = None

    def _forget_workers(self):
        self._helpers, self._busy = None, threading.RLock()
