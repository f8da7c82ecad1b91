"""The CPU engine's threads, awake when loops begin: one that wakes up late finds all of a small loop done."""

from numbarnn.compile import types
from numbarnn.engines.cpu.atomics import barrier
from numbarnn.engines.cpu.records import by_address, job_at


@by_address
def come(zero, address):
    """Wait until all threads are there."""
    job = job_at(address)
    barrier(job.counters, job.thread, job.threads)


def stay_awake(pool, monkeypatch):
    """Let all threads come ahead of what would not wait for them."""
    run, run_all = pool.run, pool.run_all

    def run_awake(item, function, threads, what, waits=True):
        if not waits:
            run(8, come.address(types.float64), threads, 0)
        run(item, function, threads, what, waits)

    def run_all_awake(item, steps, count, threads):
        run(8, come.address(types.float64), threads, 0)
        run_all(item, steps, count, threads)

    monkeypatch.setattr(pool, "run", run_awake)
    monkeypatch.setattr(pool, "run_all", run_all_awake)
