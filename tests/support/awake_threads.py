"""The CPU engine's threads, awake when loops begin: one that wakes up late finds all of a small loop done."""

from numbarnn.compile import types
from numbarnn.engines.cpu.atomics import barrier
from numbarnn.engines.cpu.records import by_address, job_at


@by_address
def come(zero, address):
    """Wait until all threads are there."""
    job = job_at(address)
    barrier(job.counters, job.thread, job.threads)


def running_awake(pool):
    """`pool.run`, ahead of which all threads have come where it would not wait for them."""
    run = pool.run

    def run_awake(item, function, threads, what, waits=True):
        if not waits:
            run(8, come.address(types.float64), threads, 0)
        run(item, function, threads, what, waits)

    return run_awake
