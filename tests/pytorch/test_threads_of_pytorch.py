"""PyTorch's threads do the CPU engine's work: the same bits, and nobody waits for threads that are not there."""

import ctypes
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import numbarnn.torch as nrt
from child import in_child
from numbarnn.compile import types
from numbarnn.engines.cpu import atomics, openmp, thread_pool
from numbarnn.engines.cpu.records import FusedStep, by_address, job_at
from numbarnn.engines.cpu.vectors import numbers_at

needs_openmp = pytest.mark.skipif(
    openmp.functions_of_pytorch() is None, reason="PyTorch's threads are not of an OpenMP that numbarnn can use"
)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PyTorch may have other threads")
def test_pytorch_for_linux_has_threads_that_can_be_used():
    """So that the other tests here are not left out everywhere."""
    if "OpenMP" not in torch.__config__.parallel_info():
        pytest.skip("PyTorch was built without OpenMP")
    assert openmp.functions_of_pytorch() is not None


@by_address
def count_threads(zero, address):
    """All threads meet; each tells its number, and of how many. After each round all must have counted as many."""
    job = job_at(address)
    found = numbers_at(np.int64(0), job.record)
    for turn in range(1, 101):
        found[3 * job.thread] += 1
        atomics.barrier(job.counters, job.thread, job.threads)
        for other in range(job.threads):
            if found[3 * other] != turn:
                found[3 * job.thread + 2] += 1
        atomics.barrier(job.counters, job.thread, job.threads)
    found[3 * job.thread + 1] = job.threads


def counted(pool, threads, room=8):
    """(Rounds, of how many threads, failures) of each thread of a pool's run."""
    found = np.zeros((room, 3), np.int64)
    step = FusedStep(function=count_threads.address(types.float64), record=found.ctypes.data, threads=threads)
    pool.run(8, ctypes.addressof(step), 1, threads)
    return found[: np.count_nonzero(found[:, 0])].tolist()


@pytest.fixture
def pool():
    """Of three threads, PyTorch's where it has as many."""
    pool = thread_pool.ThreadPool(3)
    pool.join_pytorch(torch.get_num_threads)
    yield pool
    pool.resize(1)


@needs_openmp
@pytest.mark.parametrize("theirs, own", [(3, False), (5, False), (2, True), (1, True)])
def test_whose_threads_work(pool, theirs, own):
    """PyTorch's where a call wants no more than `torch.set_num_threads` allows it, else numbarnn's: either number of
    threads means what it says."""
    torch.set_num_threads(theirs)
    assert counted(pool, 3) == [[100, 3, 0]] * 3
    assert (pool._helpers is not None) == own
    assert counted(pool, 8) == [[100, 3, 0]] * 3  # as the pool says


@needs_openmp
def test_more_threads_later(pool):
    torch.set_num_threads(6)
    for threads in (2, 6, 3):
        pool.resize(threads)
        assert counted(pool, threads) == [[100, threads, 0]] * threads
    assert pool._helpers is None


@needs_openmp
def test_within_a_region_of_somebody_else(pool):
    """OpenMP then has one thread for us."""
    torch.set_num_threads(3)
    library = {name: ctypes.CFUNCTYPE(ctypes.c_int)(address(function)) for name, function in functions()}
    begin = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    found = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def in_region(_):
        if library["omp_get_thread_num"]() == 0:
            found.append((library["omp_get_num_threads"](), counted(pool, 3)))

    begin(address(dict(functions())["GOMP_parallel"]))(ctypes.cast(in_region, ctypes.c_void_p), None, 0, 0)
    assert found == [(3, [[100, 1, 0]])]


def functions():
    return openmp.functions_of_pytorch().items()


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


@pytest.fixture
def engine(cpu_on_threads):
    """Small work is shared too; PyTorch has as many threads, and the engine uses them."""
    torch.set_num_threads(3)
    cpu_on_threads.set_num_threads(3)
    cpu_on_threads.join_pytorch(torch.get_num_threads)
    return cpu_on_threads


def results(module, x):
    """y and all gradients."""
    module.zero_grad()
    y, _ = module(x)
    y.square().sum().backward()
    return [y.detach(), *(one.grad.clone() for one in module.parameters())]


@needs_openmp
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 32}], ids=str)
@pytest.mark.parametrize("batch", (1, 16))
def test_same_bits_on_either_threads(engine, monkeypatch, options, batch):
    torch.manual_seed(0)
    module, x = nrt.LSTM(40, 160, **options), torch.randn(9, batch, 40)
    regions, run = [], openmp.OpenMP.run
    monkeypatch.setattr(openmp.OpenMP, "run", lambda *given: (regions.append(given), run(*given)))
    on_theirs = results(module, x)
    assert regions
    monkeypatch.setattr(engine.thread_pool, "openmp", None)
    count = len(regions)
    on_own = results(module, x)
    assert len(regions) == count
    assert all(one.isfinite().all() and torch.equal(one, other) for one, other in zip(on_theirs, on_own, strict=True))


@needs_openmp
def test_calls_of_several_python_threads(engine):
    """OpenMP makes threads for each of them; ours take turns, or go on alone."""
    torch.manual_seed(0)
    module, inputs = nrt.GRU(40, 160), [torch.randn(9, 16, 40) for _ in range(4)]
    expected, start = [module(x)[0] for x in inputs], threading.Barrier(4)

    def work(number):
        torch.set_num_threads(3)
        start.wait()
        return all(torch.equal(module(inputs[number])[0], expected[number]) for _ in range(25))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


@pytest.mark.parametrize("missing", ("library", "function"))
def test_without_such_threads_there_are_our_own(monkeypatch, missing):
    """A PyTorch with other threads, or an OpenMP library without what is needed."""

    def load(name, mode=0):
        if missing == "library":
            raise OSError(f"{name}: not found")
        return object()

    monkeypatch.setattr(openmp.ctypes, "PyDLL", load)
    monkeypatch.setattr(openmp, "functions_of_pytorch", openmp.functions_of_pytorch.__wrapped__)
    torch.set_num_threads(3)
    pool = thread_pool.ThreadPool(3)
    pool.join_pytorch(torch.get_num_threads)
    assert pool.openmp is None
    assert counted(pool, 3) == [[100, 3, 0]] * 3
    pool.resize(1)


@needs_openmp
@pytest.mark.parametrize("told", (None, "2"))
def test_as_many_threads_as_pytorch_has(told):
    """So that a worker of a data loader, whom PyTorch allows one, takes no more; unless numbarnn is told a number. Also
    in a Python thread in which PyTorch has not computed yet, as of a server that was told one for each request. Calls
    of NumPy's arrays have our own threads: OpenMP's go on spinning afterwards, for those who use PyTorch's modules."""
    program = """
        from concurrent.futures import ThreadPoolExecutor
        import numpy as np, torch
        import numbarnn as nr
        nr.LSTM(4, 5, device="cpu")(np.zeros((2, 3, 4), np.float32))
        pool = nr.engines.get("cpu").thread_pool
        assert pool.openmp is None
        import numbarnn.torch as nrt
        pool.threads = 4 if pool._is_set is False else pool.threads  # as on a machine with so many processors
        before = nr.get_num_threads()
        nrt.LSTM(3, 5)
        for threads in (1, 3, before + 1):
            torch.set_num_threads(threads)
            expected = before if pool._is_set else min(threads, before)
            with ThreadPoolExecutor(1) as other:
                assert nr.get_num_threads() == other.submit(nr.get_num_threads).result() == expected
        nr.set_num_threads(3)
        torch.set_num_threads(1)
        assert nr.get_num_threads() == 3
    """
    in_child(program, **({"NUMBARNN_NUM_THREADS": told} if told else {}))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_has_threads_of_its_own():
    """As workers of a data loader that compute, and one that such a worker forks: PyTorch's and ours, and the parent's
    go on. Without the parent's preparation both would wait in the child for ever, for threads that are not there."""
    program = """
        import os, signal, time
        import torch
        import numbarnn as nr, numbarnn.torch as nrt
        torch.set_num_threads(2)
        nr.set_num_threads(2)
        module, x, large = nrt.LSTM(64, 256), torch.randn(20, 16, 64), torch.randn(1 << 20)
        expected, total = module(x)[0], large.exp()

        def right():
            return all(torch.equal(large.exp(), total) and torch.equal(module(x)[0], expected) for _ in range(3))

        def forked(inside):
            child = os.fork()
            if child == 0:
                os._exit(0 if inside() else 3)
            for _ in range(300):
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    return os.waitstatus_to_exitcode(status) == 0
                time.sleep(0.1)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise SystemExit("the child hung")

        assert right()
        assert forked(lambda: right() and forked(right))
        assert right()
        print("done")
    """
    assert in_child(program).strip() == "done"
