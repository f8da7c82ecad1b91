"""Which engines there are; the CPU engine's threads and their barrier."""

import ctypes
import math
import os
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import numbarnn as nr
from numbarnn import engines
from numbarnn.compile import types
from numbarnn.engines.base import Job
from numbarnn.engines.cpu import atomics, joined, sharing, thread_pool
from numbarnn.engines.cpu.records import Call, by_address, call_at, job_at
from numbarnn.engines.cpu.vectors import numbers_at


@pytest.fixture
def engine(cpu_on_threads):
    return cpu_on_threads


# ------------------------------------------------------------------------------------------------ which there are
def test_available_engines_are_those_without_a_problem():
    available = engines.available()
    assert "cpu" in available
    assert set(available) <= {"cpu", "cuda", "sim"}
    for name in ("cpu", "cuda", "sim"):
        problem = engines.why_not(name)
        assert (problem is None) == (name in available)
        assert problem is None or len(problem) > 20


def test_get_returns_one_engine_per_device():
    engine = engines.get("cpu")
    assert engine is engines.get("cpu") is engines.get(engine)
    assert engine.name == "cpu" and engine.array_module is np and engine.device
    assert engines.get("auto").name == ("cuda" if "cuda" in engines.available() else "cpu")


@pytest.mark.parametrize(
    "device", ("", "gpu", "CPU", "cpu:0", "sim:0", "cuda:", "cuda:-1", "cuda:a", 0, None, ["cpu"]), ids=repr
)
def test_unknown_device(device):
    with pytest.raises(ValueError, match=r"device must be 'auto', 'cpu', 'cuda', 'cuda:N' or 'sim', not "):
        engines.get(device)


def test_missing_engines_say_what_to_do():
    for name, cure in (("sim", "NUMBA_ENABLE_CUDASIM=1"), ("cuda", "pip install|nvidia-smi|no NVIDIA GPU")):
        if name not in engines.available():
            with pytest.raises(RuntimeError, match=f"device '{name}' cannot be used: .*({cure})"):
                engines.get(name)


def in_child(program, **environment):
    """Output of a Python program in a process of its own, which must end well and in time."""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_simulator_stands_in_for_no_gpu():
    program = """
        from numbarnn import engines
        assert engines.available() == ["cpu", "sim"]
        assert "simulator" in engines.why_not("cuda") and engines.get("auto").name == "cpu"
        assert engines.get("sim").name == "sim"
    """
    in_child(program, NUMBA_ENABLE_CUDASIM="1")


def test_gpu_needs_cupy():
    program = """
        import importlib.util
        from numbarnn import engines
        from numbarnn.common import install
        engines.find_spec = lambda name: None if name == "cupy" else importlib.util.find_spec(name)
        assert engines.available() == ["cpu"]
        assert install.command("cuda12") in engines.why_not("cuda")
    """
    in_child(program, NUMBA_ENABLE_CUDASIM="0")


# -------------------------------------------------------------------------------------------------------- threads
def test_set_num_threads(engine):
    for threads in (3, 1, 2):
        engine.set_num_threads(threads)
        assert engine.num_threads == threads
    for wrong in (0, -1, 1.0, "2", None, True):
        with pytest.raises((TypeError, ValueError), match="threads must be a positive int"):
            engine.set_num_threads(wrong)
    assert engine.num_threads == 2


def test_number_of_threads_of_the_package(engine):
    nr.set_num_threads(3)
    assert nr.get_num_threads() == engine.num_threads == 3


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
        piece = sharing.take(call, job, phase, sharing.NONE)
        while piece != sharing.NONE:
            for k in range((phase - 1) * call.pieces, phase * call.pieces):
                if k >= 0 and counts[k] != 1:
                    counts[phase * call.pieces + piece] += 100
            counts[phase * call.pieces + piece] += 1
            piece = sharing.take(call, job, phase, piece)
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


def test_threads_that_do_not_come_are_not_waited_for(monkeypatch):
    """The calling one takes all pieces. A thread that comes when a call is over has no part in it."""
    begin = threading.Event()
    late, help_ = [], thread_pool.help_forever
    monkeypatch.setattr(thread_pool, "help_forever", lambda slot: (begin.wait(), late.append(slot), help_(slot)))
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
    with workers._busy:
        assert (count_pieces(workers, 2, 1) == 1).all()


def test_after_a_late_call_threads_are_not_asked_for_a_while(monkeypatch):
    """A thread that has a piece and no processor is waited for; so would the next calls."""
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
    steps = joined.Steps(pool, 4, 0, 2, Call(pieces=4), ())
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


def test_steps_too_small_to_be_shared_stay_on_one_thread(monkeypatch):
    """Threads meet at each step, with a projection twice: where a step takes no longer than that, a second one only
    costs."""
    engine, used = engines.get("cpu"), []
    monkeypatch.setattr(engine, "joined", lambda functions: functions)  # each loop by itself
    monkeypatch.setattr(engine.thread_pool, "threads", 2)
    monkeypatch.setattr(
        engine.thread_pool,
        "run",
        lambda item, function, threads, what, waits=True: used.append((function, threads)),
    )
    # Each has at least 4 million multiply-adds. Per step the first have .13 and .2 million, those with a projection
    # .7 and 2.1; of 32 sequences each thread has its own, and nobody waits.
    for batch, H, P, expected in ((2, 128, 0, 1), (1, 224, 0, 2), (2, 320, 160, 1), (2, 512, 256, 2), (32, 48, 0, 2)):
        layer = nr.LSTM(H, H, device="cpu", seed=0, proj_size=P)
        y, _, tape = layer.forward(np.zeros((60, batch, H), np.float32))
        layer.backward(tape, y)
        known = {address: function.__name__ for (function, _), address in engine._functions.items()}
        threads = {known[function]: threads for function, threads in used}
        assert threads["forward_steps"] == threads["backward_steps"] == expected
        assert threads["multiply_and_add"] == 2  # all steps at once


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


def test_calls_from_several_python_threads_do_not_wait_for_each_other_for_ever():
    """Two calls that each got some of the thread pool's workers would never end."""
    program = """
        import faulthandler, sys, threading
        sys.setswitchinterval(1e-6)  # let Python's threads take turns between any two instructions
        faulthandler.dump_traceback_later(60, exit=True)
        import numpy as np
        import numbarnn as nr
        from numbarnn import engines
        engines.get("cpu").set_num_threads(4)
        layer = nr.GRU(16, 144, device="cpu", seed=0)
        x = np.ones((20, 16, 16), np.float32)
        expected = layer(x)[0]
        wrong = []

        def work():
            for _ in range(50):
                if not np.array_equal(layer(x)[0], expected):
                    wrong.append(1)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        print("done")
    """
    assert in_child(program).strip() == "done"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_has_its_own_threads():
    """multiprocessing forks by default on Linux up to Python 3.13; the parent's workers do not exist in the child."""
    program = """
        import os, signal, time
        import numpy as np
        import numbarnn as nr
        from numbarnn import engines
        engines.get("cpu").set_num_threads(2)
        layer = nr.GRU(16, 144, device="cpu", seed=0)
        x = np.ones((20, 16, 16), np.float32)
        expected = layer(x)[0]
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(layer(x)[0], expected) else 3)
        for _ in range(200):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.1)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise SystemExit("the child hung")
        assert os.waitstatus_to_exitcode(status) == 0, status
        print("done")
    """
    assert in_child(program).strip() == "done"


# ------------------------------------------------------------------------------------------------- one per process
def test_engines_are_made_once_by_threads_too():
    found = []
    workers = [threading.Thread(target=lambda: found.append(engines.get("cpu"))) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert {id(engine) for engine in found} == {id(engines.get("cpu"))}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no names that all libraries share")
def test_openblas_stays_out_of_other_libraries_way():
    """SciPy looks for functions of the same names: found in our one-thread copy, they would take its threads away."""
    program = """
        import ctypes
        from numbarnn import engines
        engines.get("cpu")
        assert not hasattr(ctypes.CDLL(None), "scipy_cblas_sgemm")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
