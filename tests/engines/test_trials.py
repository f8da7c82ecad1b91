"""Steps that are tried alone and on several threads: which of both a call is, by a clock of the test's own."""

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.engines.cpu import engine as cpu
from numbarnn.engines.cpu import joined
from numbarnn.engines.cpu.trials import EVERY, FEW, PAUSE, SLOWER, Trial


class Clock:
    """A clock that calls move."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def calls(trial, clock, count, alone, shared, amount=1):
    """ "a" or "s" for each of so many calls that take so long."""
    done = []

    def run(letter, took):
        done.append(letter)
        clock.now += took * amount

    for _ in range(count):
        trial.run(lambda: run("s", shared), lambda: run("a", alone), amount)
    return "".join(done)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def trial(clock):
    return Trial(clock)


def test_shared_where_that_is_faster(trial, clock):
    """Some of many calls are alone, which tells when alone has become faster."""
    assert calls(trial, clock, 2 * EVERY, 2.0, 1.0) == 2 * ("a" * FEW + "s" * (EVERY - FEW))


def test_alone_for_a_while_after_a_slow_call(trial, clock):
    calls(trial, clock, FEW, 2.0, 0.0)
    slow = 1.25 * SLOWER * 2.0
    after = int(PAUSE * slow / 2.0)
    assert calls(trial, clock, after + 2, 2.0, slow) == "s" + "a" * after + "s"


def test_little_slower_is_no_reason(trial, clock):
    """Threads that sleep take a while to wake up, which a trial must not take for another program."""
    assert calls(trial, clock, 10, 2.0, 0.95 * SLOWER * 2.0) == "aa" + 8 * "s"


def test_a_call_that_was_late_alone_does_not_count(trial, clock):
    calls(trial, clock, FEW, 2.0, 1.0)
    trial._calls = 0
    calls(trial, clock, FEW, 100.0, 1.0)
    assert calls(trial, clock, 2, 2.0, 2 * SLOWER * 2.0) == "sa"


def test_time_is_that_of_the_steps(trial, clock):
    """Calls of one kind may have more steps or fewer."""
    calls(trial, clock, FEW, 2.0, 1.0, amount=10)
    assert calls(trial, clock, 3, 2.0, 2.1, amount=100) == "sss"


def test_results_are_the_same_alone_and_shared(monkeypatch):
    """One sequence: a call is tried alone, then shared; other numbers of sequences are other kinds of calls."""
    engine, threads = nr.engines.get("cpu"), []
    monkeypatch.setattr(cpu, "SERIAL_WORK", 0)
    monkeypatch.setattr(joined.Steps, "_run", _noting(joined.Steps._run, threads))
    before = engine.num_threads
    engine.set_num_threads(2)
    engine._trials.clear()
    try:
        layer = nr.LSTM(200, 256, device="cpu", seed=0)
        x = np.random.default_rng(0).standard_normal((20, 2, 200)).astype(np.float32)
        for batch in (1, 2):
            del threads[:]
            found = [layer(x[:, :batch])[0] for _ in range(FEW + 2)]
            assert threads[: FEW + 1] == [1] * FEW + [2]
            for other in found[1:]:
                np.testing.assert_array_equal(found[0], other)
        assert len(engine._trials) == 2
    finally:
        engine.set_num_threads(before)


def _noting(run, threads):
    def noted(steps, count):
        threads.append(count)
        run(steps, count)

    return noted
