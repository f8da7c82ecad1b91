"""The CPU engine's threads: the caller and some workers run one compiled function together."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from numbarnn.engines.atomics import SLOTS


def usable_cpus():
    """Number of CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Team:
    """Runs `function(thread, threads, counters, *arguments)` on every thread at once.

    The functions are compiled with `nogil`, split their work by (thread, threads) and meet at
    `atomics.barrier(counters, thread, threads)`. They are real threads, so that waiting inside cannot deadlock as it
    could if a pool ran two parts after another on one thread.
    """

    def __init__(self, threads=None):
        self.threads = 0
        self._pool = None
        self._alone = np.zeros(SLOTS, dtype=np.int64)  # one thread waits for nobody: all such calls share it
        self.resize(threads or usable_cpus())

    def resize(self, threads):
        """Use this many threads from now on."""
        if self._pool is not None:
            self._pool.shutdown()
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "numbarnn") if threads > 1 else None

    def run(self, function, threads, *arguments):
        """Run the function on `threads` threads (at most this team's) and return when all are done."""
        if threads == 1:
            function(0, 1, self._alone, *arguments)
            return
        counters = np.zeros(threads * SLOTS, dtype=np.int64)
        workers = [self._pool.submit(function, i, threads, counters, *arguments) for i in range(1, threads)]
        function(0, threads, counters, *arguments)
        for worker in workers:
            worker.result()
