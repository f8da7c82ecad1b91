"""OpenMP's threads sleep soon while a thread that calls has to wait for its processor, and as before afterwards."""

import os
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

import numbarnn.torch as nrt
from child import in_child
from numbarnn.engines.cpu import openmp, openmp_waits
from numbarnn.engines.cpu.openmp_waits import LASTS, SHARE, WINDOW

pytestmark = pytest.mark.skipif(
    openmp.functions_of_pytorch() is None, reason="PyTorch's threads are not of an OpenMP that numbarnn can use"
)


@pytest.fixture
def machine(monkeypatch):
    """A clock, and how long threads have waited for a processor, as a test sets them."""
    machine = SimpleNamespace(now=100.0, waited=5.0)
    monkeypatch.setattr(openmp_waits, "monotonic", lambda: machine.now)
    monkeypatch.setattr(openmp_waits, "seconds_waited", lambda: machine.waited)
    return machine


@pytest.fixture
def waits():
    """Of as many threads as there are processors."""
    functions = openmp.functions_of_pytorch()
    waits = openmp_waits.OpenMPWaits(functions, functions["omp_get_num_procs"])
    yield waits
    waits.end()


def pass_time(waits, machine, seconds, share):
    """Let time go by, of which a thread waits a share for its processor, and look."""
    machine.now += seconds
    machine.waited += share * seconds
    waits.look()


def test_short_while_a_thread_waits_for_its_processor(machine, waits):
    waits.look()  # what it waited before counts not
    pass_time(waits, machine, WINDOW, 0.9 * SHARE)
    assert not waits.short
    pass_time(waits, machine, 0.5 * WINDOW, 1.0)  # before the window ends
    assert not waits.short
    pass_time(waits, machine, 0.6 * WINDOW, 0.0)
    assert waits.short


def test_as_before_a_while_after_the_last_time(machine, waits):
    waits.look()
    pass_time(waits, machine, WINDOW, 1.0)
    pass_time(waits, machine, 0.9 * LASTS, 1.0)
    team = waits._thread
    pass_time(waits, machine, 0.9 * LASTS, 0.0)
    assert waits.short
    machine.now += 0.2 * LASTS
    team.join(30)  # which ends by itself, whether somebody looks or not
    assert not waits.short
    pass_time(waits, machine, WINDOW, 0.0)
    assert not waits.short
    pass_time(waits, machine, WINDOW, 1.0)
    assert waits.short


def test_each_python_thread_has_a_window_of_its_own(machine, waits):
    """Else the times of two threads would be taken for one's."""
    waits.look()
    machine.waited += 100
    other = threading.Thread(target=pass_time, args=(waits, machine, WINDOW, 1.0))
    other.start()
    other.join()
    assert not waits.short


def test_not_for_many_more_threads(machine):
    """PyTorch's few spin beside others on a machine with many processors, and take no turns from them."""
    waits = openmp_waits.OpenMPWaits(openmp.functions_of_pytorch(), lambda: 4)
    waits._processors = lambda: 64
    waits.look()
    pass_time(waits, machine, WINDOW, 1.0)
    assert not waits.short


def test_not_where_the_system_does_not_tell(monkeypatch, waits):
    monkeypatch.setattr(openmp_waits, "_WAITED", os.devnull)
    assert openmp_waits.seconds_waited() is None
    for _ in range(3):
        waits.look()
    assert not waits.short


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it")
def test_linux_tells_how_long_a_thread_waited():
    before = openmp_waits.seconds_waited()
    if before is None:
        pytest.skip("this Linux does not")
    assert 0 <= before <= openmp_waits.seconds_waited()


def test_calls_look(machine, cpu_on_threads):
    torch.set_num_threads(2)
    cpu_on_threads.set_num_threads(2)
    cpu_on_threads.join_pytorch(torch.get_num_threads)
    waits = cpu_on_threads.thread_pool.openmp.waits
    waits.end()
    waits._own = openmp_waits._OfThread()
    waits._processors = torch.get_num_threads
    module, x = nrt.LSTM(40, 160), torch.randn(9, 16, 40)
    for _ in range(2):
        module(x)
        machine.now += WINDOW
        machine.waited += WINDOW
    assert waits.short
    waits.end()
    assert not waits.short


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ended_ahead_of_forks():
    """A forked process has the count of threads, but not those who would end."""
    program = """
        import os, time
        import torch
        import numbarnn as nr, numbarnn.torch as nrt
        torch.set_num_threads(2)
        nr.set_num_threads(2)
        module, x = nrt.LSTM(64, 256), torch.randn(20, 16, 64)
        expected = module(x)[0]
        waits = nr.engines.get("cpu").thread_pool.openmp.waits
        waits._processors = torch.get_num_threads
        waits._shorten(time.monotonic() + 100)
        assert waits.short
        child = os.fork()
        if child == 0:
            os._exit(0 if not waits.short and torch.equal(module(x)[0], expected) else 3)
        assert not waits.short
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print("done")
    """
    assert in_child(program).strip() == "done"
