"""The CPU engine's threads: how many, their barrier, pieces that they take, jobs that raise."""

import ctypes
import dis
import math
import os
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from numbarnn.compile import types
from numbarnn.engines.base import Job
from numbarnn.engines.cpu import atomics, helpers, joined, sharing, thread_pool
from numbarnn.engines.cpu.records import Call, Step, by_address, call_at, job_at
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
    given = numbers_at(np.int64(0), job.what)
    turns, failures = numbers_at(np.int64(0), job.what + 64), numbers_at(np.int64(0), job.what + 64 * (1 + job.threads))
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
    workers.run(8, function.address(types.float64), threads, what.ctypes.data)


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
    given, total = numbers_at(np.int64(0), job.what), np.float64(0)
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


@by_address
def take_pieces(zero, address):
    """Threads take pieces and count each; 100 more where the phase before was not done. Given are the address of a
    `records.Call`, the number of phases, and where to count."""
    job = job_at(address)
    given = numbers_at(np.int64(0), job.what)
    call, counts = call_at(given[0]), numbers_at(np.int64(0), job.what + 16)
    for phase in range(given[1]):
        piece = sharing.take(call.pieces, job, phase, sharing.NONE)
        while piece != sharing.NONE:
            for k in range((phase - 1) * call.pieces, phase * call.pieces):
                if k >= 0 and counts[k] != 1:
                    counts[phase * call.pieces + piece] += 100
            counts[phase * call.pieces + piece] += 1
            piece = sharing.take(call.pieces, job, phase, piece)
        sharing.end_phase(call, job, phase)


def count_pieces(workers, threads, pieces, phases=400):
    call = Call(pieces=pieces)
    what = np.array([ctypes.addressof(call), phases, *[0] * (pieces * phases)])
    workers.run(8, take_pieces.address(types.float64), threads, what.ctypes.data, False)
    return what[2:]


@pytest.mark.parametrize("pieces", (1, 3, 8, sharing.MOST_PIECES))
@pytest.mark.parametrize("threads", (2, 3, 8))
def test_each_piece_of_a_phase_is_taken_once(threads, pieces):
    """By whichever thread comes; none begins with a phase before all pieces of the one before are done."""
    workers = thread_pool.ThreadPool(threads)
    for _ in range(10):
        assert (count_pieces(workers, threads, pieces) == 1).all()


@by_address
def take_pieces_slowly(zero, address):
    """Two threads take pieces of two phases, two each, the second thread first, and write who did it. That one is slow
    with its first piece. Given are the address of a `records.Call`, how slow, a word, and where to write."""
    job, total = job_at(address), np.float64(0)
    given, phase_of_second = numbers_at(np.int64(0), job.what), job.what + 16
    call, who = call_at(given[0]), numbers_at(np.int64(0), job.what + 24)
    for phase in range(2):
        while job.thread == 0 and atomics.load_in_order(phase_of_second) <= phase:
            pass
        piece = sharing.take(call.pieces, job, phase, sharing.NONE)
        if job.thread == 1:
            atomics.store_in_order(phase_of_second, phase + 1)
        while piece != sharing.NONE:
            who[2 * phase + piece] = job.thread + 1
            if job.thread == 1 and phase == 0:
                for k in range(given[1]):
                    total += math.sqrt(np.float64(k))
            piece = sharing.take(call.pieces, job, phase, piece)
        sharing.end_phase(call, job, phase)
    if job.thread == 1:
        given[1] = int(total)


@pytest.mark.skipif(not atomics.SLEEPS, reason="elsewhere threads do not sleep, and so do not know for how long")
@pytest.mark.parametrize("seconds, leaves", [(100, False), (1e-3, True)])
def test_a_thread_that_is_late_takes_no_more_pieces(seconds, leaves):
    """Else a call of many steps beside other programs waits for it in each: 3 ms became 165."""
    limit = np.array(divmod(int(1e9 * seconds), 10**9))
    call, workers = Call(pieces=2, patience=limit.ctypes.data), thread_pool.ThreadPool(2)
    what = np.array([ctypes.addressof(call), 20_000_000, 0, 0, 0, 0, 0])
    run_on(workers, take_pieces_slowly, 2, what)
    who = what[3:].reshape(2, 2)
    assert who[0, 1] == 2 and (who[1] > 0).all()
    assert (2 not in who[1]) == leaves


def test_threads_that_do_not_come_are_not_waited_for(monkeypatch):
    """The calling one takes all pieces. A thread that comes when a call is over has no part in it."""
    begin = threading.Event()
    late, help_ = [], helpers.help_forever
    monkeypatch.setattr(helpers, "help_forever", lambda slot: (begin.wait(), late.append(slot), help_(slot)))
    workers = thread_pool.ThreadPool(2)
    for _ in range(3):
        assert (count_pieces(workers, 2, 4) == 1).all()
    begin.set()
    while not late:
        time.sleep(0.001)
    for _ in range(100):
        assert (count_pieces(workers, 2, 4) == 1).all()
    run_on(workers, count_together, 2, np.array([200, 1000, 0, 0]))  # for which it is waited


def test_calls_of_other_python_threads_go_on_alone(monkeypatch):
    """Where threads take pieces, a call need not wait for those of another."""
    workers = thread_pool.ThreadPool(2)
    monkeypatch.setattr(thread_pool, "run_together", lambda *_: pytest.fail("on several threads"))
    monkeypatch.setattr(thread_pool, "run_all", lambda *_: pytest.fail("on several threads"))
    found = []
    with workers._busy:
        other = threading.Thread(
            target=lambda: found.extend((count_pieces(workers, 2, 1), count_one_after_another(workers, 2)))
        )
        other.start()
        other.join()
    assert (found[0] == 1).all()
    assert found[1].tolist() == [[1] * 3] * 3


def count_one_after_another(workers, threads):
    """How often each of three phases was done, of three things on 1, `threads` and 3 threads at most."""
    call, counts = Call(pieces=1), np.zeros((3, 5), np.int64)
    counts[:, 0], counts[:, 1] = ctypes.addressof(call), 3
    steps = (Step * 3)(
        *(Step(function=take_pieces.address(types.float64), what=own.ctypes.data, threads=count)
          for own, count in zip(counts, (1, threads, 3), strict=True))
    )  # fmt: skip
    workers.run_all(8, ctypes.addressof(steps), 3, threads)
    return counts[:, 2:]


@pytest.mark.parametrize("threads", (1, 2, 3, 4))
def test_several_things_one_after_another(threads):
    workers = thread_pool.ThreadPool(4)
    for _ in range(50):
        assert count_one_after_another(workers, threads).tolist() == [[1] * 3] * 3


@pytest.mark.parametrize("left", (1, 2))
def test_fewer_threads_from_now_on_count_for_calls_that_wait_for_their_turn(left):
    """A call that had waited for helpers who are no longer there would wait for ever."""
    workers, what = thread_pool.ThreadPool(4), np.zeros(8 * 9, np.int64)

    class Lock:
        """Another Python thread takes it first, and sets the number of threads."""

        def __init__(self, lock):
            self.lock, self.release = lock, lock.release

        def acquire(self, blocking=True):
            workers._busy = self.lock
            workers.resize(left)
            workers._busy = self
            return self.lock.acquire(blocking)

        __enter__ = acquire

        def __exit__(self, *_):
            self.release()

    workers._busy, what[0] = Lock(workers._busy), 5
    call = threading.Thread(target=run_on, args=(workers, count_in_step, 4, what), daemon=True)
    call.start()
    call.join(30)
    assert not call.is_alive()
    assert what[8:].tolist() == [*[5, *[0] * 7] * left, *[0] * (64 - 8 * left)]


@pytest.mark.parametrize("by_rows", (0, 1))
def test_after_a_late_call_threads_are_not_asked_for_a_while(monkeypatch, by_rows):
    """A thread that has a piece and no processor is waited for; so would the next calls. Of long calls that are little
    if threads share sequences."""
    now, used, takes = 100.0, [], 0.0

    def run(item, function, threads, what, waits):
        nonlocal now
        used.append(threads)
        now += takes

    def call(count, seconds):
        nonlocal takes
        takes = seconds
        steps(0, count)

    monkeypatch.setattr(joined, "monotonic", lambda: now)
    pause = thread_pool.Pause()
    pool = SimpleNamespace(run=run, pause=pause)
    steps = joined.Steps(pool, 4, 0, 2, Call(pieces=4, by_rows=by_rows), (), {})
    late = joined.LATE
    for count, seconds in ((2, 2 * late), (1, late), (20, 20 * late), (1, 3 * late)):  # the last one is late
        call(count, seconds)
    assert used == [2] * 4
    call(1, pause.SHORTEST)
    call(1, late)
    assert used[4:] == [1, 2]
    for _ in range(10):  # late again and again
        now = pause.end
        call(1, 10 * late)
    assert pause.end == now + pause.LONGEST
    now = pause.end
    for _ in range(int(2 * pause.LONGEST / late)):
        call(1, late)
    call(1, 3 * late)
    assert pause.end == now + pause.SHORTEST

    now, steps = pause.end, joined.Steps(pool, 4, 0, 2, Call(pieces=4, by_rows=by_rows), (), {})
    call(1, 2 * joined.SLICE)
    call(1, 9 * joined.SLICE)
    assert (pause.end > now) != by_rows


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


def fail():
    raise RuntimeError("a job")


def be_slow(done, number):
    time.sleep(0.02 * number)
    done.append(number)


@pytest.mark.parametrize("where", range(3))
def test_jobs_raise_what_one_of_them_raises(where):
    workers, done = thread_pool.ThreadPool(3), []
    with pytest.raises(RuntimeError, match="a job"):
        workers.run_jobs([Job(lane, (), lambda lane=lane: fail if lane == where else bool) for lane in range(3)])
    # and goes on as if nothing had happened: returns when all are done
    workers.run_jobs([Job(lane, (), lambda lane=lane: partial(be_slow, done, lane)) for lane in range(3)])
    assert sorted(done) == [0, 1, 2]


def test_a_job_that_fails_ends_those_that_wait_for_others():
    """Of a chain of jobs the first fails: nobody waits for its end."""
    workers, done = thread_pool.ThreadPool(3), []
    jobs = [Job(0, (), lambda: fail), Job(1, (0,), lambda: partial(done.append, 1)), Job(2, (1,), lambda: fail)]
    with pytest.raises(RuntimeError, match="a job"):
        workers.run_jobs(jobs)
    assert not done


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


@pytest.mark.parametrize("what", ["jobs", "steps", "pieces"])
def test_after_an_interrupt_at_any_place_calls_go_on(what):
    """Ctrl-C may come anywhere in the pool's own code; the next call, and one from another thread, are as ever."""
    workers, number, left = thread_pool.ThreadPool(3), 0, 0
    calls = {
        "jobs": lambda: workers.run_jobs([Job(lane, (), lambda: bool) for lane in range(3)]),
        "steps": lambda: count_one_after_another(workers, 2),
        "pieces": lambda: count_pieces(workers, 2, 4),
    }
    calls[what]()
    while left <= 0:
        number += 1
        interrupting = _Interrupting(number)
        sys.settrace(interrupting)
        try:
            calls[what]()
        except KeyboardInterrupt:
            assert interrupting.left <= 0
        finally:
            sys.settrace(None)
        left = interrupting.left
        done = []
        other = threading.Thread(target=lambda done=done: (calls[what](), done.append(1)), daemon=True)
        other.start()
        other.join(30)
        assert done, f"after an interrupt at place {number} another thread waits for ever"
        run_on(workers, count_together, 3, np.array([20, 10, 0, 0]))
        calls["jobs"]()
    assert number > 5
