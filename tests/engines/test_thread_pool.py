"""The CPU engine's threads: how many, their barrier, what they do together, interrupts."""

import ctypes
import dis
import math
import os
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from numbarnn.compile import types
from numbarnn.engines.cpu import atomics, thread_pool
from numbarnn.engines.cpu.records import FusedStep, by_address, job_at
from numbarnn.engines.cpu.vectors import numbers_at


def test_usable_cpus():
    assert 1 <= thread_pool.usable_cpus() <= (os.cpu_count() or 1)
    one = thread_pool.ThreadPool()
    assert one.threads == thread_pool.usable_cpus()


@pytest.mark.parametrize(
    "files, limit",
    [
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_containers_limit_counts(tmp_path, monkeypatch, files, limit):
    monkeypatch.setattr(thread_pool.os, "sched_getaffinity", lambda process: range(7), raising=False)
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert thread_pool.usable_cpus(tmp_path) == (limit or 7)


def test_the_environment_may_say_how_many_threads(monkeypatch):
    monkeypatch.setenv("NUMBARNN_NUM_THREADS", "3")
    assert thread_pool.ThreadPool().threads == 3
    for wrong in ("0", "two", "-1", ""):
        monkeypatch.setenv("NUMBARNN_NUM_THREADS", wrong)
        with pytest.raises(ValueError, match="NUMBARNN_NUM_THREADS must be a positive int, not"):
            thread_pool.ThreadPool()


@by_address
def count_in_step(zero, address):
    """Every thread counts its turns; after each, all must have counted as many. In turn comes how many rounds, then of
    each thread the turns, and the failures."""
    job = job_at(address)
    given = numbers_at(np.int64(0), job.record)
    turns = numbers_at(np.int64(0), job.record + 64)
    failures = numbers_at(np.int64(0), job.record + 64 * (1 + job.threads))
    for _ in range(given[0]):
        turns[job.thread * 8] += 1
        mine = turns[job.thread * 8]
        atomics.barrier(job.counters, job.thread, job.threads)
        for other in range(job.threads):
            if turns[other * 8] != mine:
                failures[job.thread * 8] += 1
        atomics.barrier(job.counters, job.thread, job.threads)


def run_on(workers, function, threads, what):
    """Let threads of a pool do something with an array of int64."""
    step = FusedStep(function=function.address(types.float64), record=what.ctypes.data, threads=threads)
    workers.run(8, ctypes.addressof(step), 1, threads)


@pytest.mark.parametrize("threads", (1, 2, 3, 8))  # more than there are cores, too
def test_barrier_keeps_threads_in_step(threads):
    workers = thread_pool.ThreadPool(threads)
    rounds = 500
    for _ in range(3):  # a thread pool runs again and again
        what = np.zeros(8 * (1 + 2 * threads), np.int64)
        what[0] = rounds
        run_on(workers, count_in_step, threads, what)
        turns, failures = what[8:].reshape(2, -1)
        assert (turns[::8] == rounds).all() and not failures.any()


@by_address
def count_together(zero, address):
    """Threads meet `rounds` times; before each, one of them, in turn, computes for as long as `slow` says."""
    job = job_at(address)
    given, total = numbers_at(np.int64(0), job.record), np.float64(0)
    for turn in range(given[0]):
        if turn % job.threads == job.thread:
            for k in range(given[1]):
                total += math.sqrt(np.float64(k))
        atomics.barrier(job.counters, job.thread, job.threads)
    given[2 + job.thread] = int(total)


@pytest.mark.parametrize("threads", (2, 4))
def test_no_sleeper_is_forgotten(threads):
    """Threads that wait for longer than they poll sleep; one whose waking is lost would sleep for ever."""
    workers = thread_pool.ThreadPool(threads)
    for slow in (1000, 10_000, 30_000, 100_000):  # around what is polled for
        run_on(workers, count_together, threads, np.array([200, slow, *[0] * threads]))


def test_calls_of_other_python_threads_go_on_alone(monkeypatch):
    workers, found = thread_pool.ThreadPool(2), []
    monkeypatch.setattr(thread_pool, "run_together", lambda *_: pytest.fail("on several threads"))
    with workers._busy:
        other = threading.Thread(target=lambda: found.append(count_one_after_another(workers, 2)))
        other.start()
        other.join()
    assert found == [[1, 1, 1]]


@by_address
def count_threads(zero, address):
    """Note that a thread has done its part."""
    job = job_at(address)
    given = numbers_at(np.int64(0), job.record)
    atomics.add_in_order(job.record, 1)
    if given[1] < job.threads:
        given[1] = job.threads


def count_one_after_another(workers, threads):
    """On how many threads each of three things was done, which say 1, `threads` and 3 at most."""
    counts = np.zeros((3, 2), np.int64)
    steps = (FusedStep * 3)(
        *(FusedStep(function=count_threads.address(types.float64), record=own.ctypes.data, threads=count)
          for own, count in zip(counts, (1, threads, 3), strict=True))
    )  # fmt: skip
    workers.run(8, ctypes.addressof(steps), 3, max(threads, 3))
    assert (counts[:, 0] == counts[:, 1]).all()
    return counts[:, 0].tolist()


@pytest.mark.parametrize("threads", (1, 2, 3, 4))
def test_several_things_one_after_another(threads):
    workers = thread_pool.ThreadPool(4)
    for _ in range(50):
        assert count_one_after_another(workers, threads) == [1, threads, 3]


@pytest.mark.parametrize("left", (1, 2))
def test_fewer_threads_from_now_on_count_for_a_call_that_is_about_to_begin(left):
    """A call that had waited for helpers who are no longer there would wait for ever."""
    workers, what = thread_pool.ThreadPool(4), np.zeros(8 * 9, np.int64)
    lock, what[0] = workers._busy, 5

    def acquire(blocking):  # after another Python thread, which sets the number of threads
        workers._busy = lock
        workers.resize(left)
        return lock.acquire(blocking)

    workers._busy = SimpleNamespace(acquire=acquire)
    call = threading.Thread(target=run_on, args=(workers, count_in_step, 4, what), daemon=True)
    call.start()
    call.join(30)
    assert not call.is_alive()
    assert what[8:].tolist() == [*[5, *[0] * 7] * left, *[0] * (64 - 8 * left)]


@pytest.mark.skipif(not atomics.SLEEPS, reason="threads sleep at barriers on Linux only")
def test_who_waits_for_long_uses_no_processor():
    """Beside busy processes a waiting thread must not use up its turns on the processor: 12 ms became 898."""
    workers = thread_pool.ThreadPool(2)
    run_on(workers, count_together, 2, np.array([1, 1, 0, 0]))  # compiled now
    begin, alone = time.process_time(), time.thread_time()
    run_on(workers, count_together, 2, np.array([1, 200_000_000, 0, 0]))
    own, others = time.thread_time() - alone, time.process_time() - begin
    assert own > 0.1, "the first thread is not slow: make it so"
    assert others - own < 0.1 * own


class _Interrupting:
    """Raises KeyboardInterrupt in the main thread at the n-th place where Python would run a signal's handler, within
    the thread pool: after calls, at the beginning of functions and at jumps back.

    Attributes:
        left: how many places are still to come.
    """

    PLACES = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")

    def __init__(self, number):
        self.left, self._before = number, {}

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename != thread_pool.__file__:
            return None
        frame.f_trace_opcodes = True
        name = self._before.get(frame, "")
        if event == "opcode":
            self._before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if event == "call" or (event == "opcode" and name.startswith(self.PLACES)):
            self._before[frame] = ""
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def test_after_an_interrupt_at_any_place_calls_go_on():
    """Ctrl-C may come anywhere in the pool's own code; the next call, and one from another thread, are as ever."""
    workers, number, left = thread_pool.ThreadPool(3), 0, 0
    count_one_after_another(workers, 2)
    while left <= 0:
        number += 1
        interrupting = _Interrupting(number)
        sys.settrace(interrupting)
        try:
            count_one_after_another(workers, 2)
        except KeyboardInterrupt:
            assert interrupting.left <= 0
        finally:
            sys.settrace(None)
        left = interrupting.left
        done = []
        other = threading.Thread(
            target=lambda done=done: (count_one_after_another(workers, 2), done.append(1)), daemon=True
        )
        other.start()
        other.join(30)
        assert done, f"after an interrupt at place {number} another thread waits for ever"
        run_on(workers, count_together, 3, np.array([20, 10, 0, 0]))
    assert number > 5
