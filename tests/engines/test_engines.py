"""Which engines there are, one per process; how many threads the CPU's uses, and calls from several threads."""

import os
import sys

import numpy as np
import pytest

import numbarnn as nr
from child import in_child
from numbarnn import engines


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


def test_missing_engines_say_what_to_do():
    for name, cure in (("sim", "pip install"), ("cuda", "pip install|nvidia-smi|no NVIDIA GPU")):
        if name not in engines.available():
            with pytest.raises(RuntimeError, match=f"device '{name}' cannot be used: .*({cure})"):
                engines.get(name)


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
        assert engines.available() == ["cpu", "sim"]
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


# The end of a program that has forked a child. Counted, as the clock goes on while tests are stopped.
CHILD_ENDS = """
        for _ in range(300):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            time.sleep(0.1)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise SystemExit("the child hung")
        assert os.waitstatus_to_exitcode(status) == 0, status
        print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("schedule", ["stepwise", "wavefront"])
def test_a_process_forked_while_another_thread_computes(schedule):
    program = """
        import os, signal, threading, time
        import numpy as np
        import numbarnn as nr
        nr.set_num_threads(2)
        layers = [nr.GRU(16, 144, 2, device="cpu", seed=0, schedule=SCHEDULE) for _ in range(2)]
        x = np.ones((20, 16, 16), np.float32)
        expected = layers[0](x)[0]
        going, begun = [True], threading.Event()

        def compute():
            while going:
                layers[1](x)
                begun.set()

        thread = threading.Thread(target=compute)
        thread.start()
        begun.wait()
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(layers[0](x)[0], expected) else 3)
    """.replace("SCHEDULE", repr(schedule))
    ends = CHILD_ENDS.replace('print("done")', 'going.clear()\n        print("done")')
    assert in_child(program + ends).strip() == "done"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_has_its_own_locks():
    """Whatever other threads did when it was forked: DataLoaders fork beside a thread that computes."""
    program = """
        import os, signal, threading, time
        import numpy as np
        import numbarnn as nr
        from numbarnn import engines
        from numbarnn.compile import native
        from numbarnn.engines import base
        from numbarnn.layers import stack
        layer = nr.GRU(64, 64, 2, dropout=0.5, device="cpu", seed=0)
        x = np.ones((20, 16, 64), np.float32)
        layer.forward(x)
        held, done = threading.Event(), threading.Event()

        def hold():
            with engines._lock, base._lock, stack._lock, layer.engine._memory._lock:
                with native.lock:
                    held.set()
                    time.sleep(0.5)  # that long it compiles
                done.wait()

        threading.Thread(target=hold).start()
        held.wait()
        child = os.fork()
        if child == 0:
            layer.forward(x)
            engines.get("cpu").constant(np.ones(3))
            nr.RNN(8, 8, dtype="float64", device="cpu").forward(np.ones((1, 1, 8)))
            os._exit(0)
        done.set()
    """
    assert in_child(program + CHILD_ENDS).strip() == "done"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no names that all libraries share")
def test_openblas_stays_out_of_other_libraries_way():
    """SciPy looks for functions of the same names: found in our one-thread copy, they would take its threads away."""
    program = """
        import ctypes
        from numbarnn import engines
        engines.get("cpu")
        assert not hasattr(ctypes.CDLL(None), "scipy_cblas_sgemm")
    """
    in_child(program)
