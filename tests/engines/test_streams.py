"""Jobs on streams and their CUDA graphs, without a GPU: the emulated GPU's graphs run in any order that events allow.

Whole calls: tests/engines/test_gpu_engine.py and tests/test_emulated.py.
"""

import threading

import pytest

from emulator import cupy_module
from numbarnn.engines import EngineJob
from numbarnn.engines.gpu import graphs as streams_module
from numbarnn.engines.gpu.graphs import Streams

LANES = ("a", 0), ("b", 0), ("c", 0), ("a", 0)
NEEDS = (), (0,), (0,), (1, 2)


@pytest.fixture
def streams():
    return Streams(cupy_module)


def jobs_of(log):
    """A job for each of LANES, whose work is to say its number."""

    def bind(number):
        assert not cupy_module.get_current_stream().is_capturing(), "bound while recording"
        return lambda: cupy_module.get_current_stream().do(lambda: log.append(number))

    return [EngineJob(lane, NEEDS[n], lambda n=n: bind(n)) for n, lane in enumerate(LANES)]


def keeps_needs(order):
    """Whether all jobs are there, each after those that it needs."""
    return sorted(order) == [0, 1, 2, 3] and all(order.index(n) < order.index(m) for m in order for n in NEEDS[m])


@pytest.mark.parametrize("missing", (None, "fork", "needs"))
def test_replays_run_jobs_after_those_that_they_need(monkeypatch, streams, missing):
    """And without one kind of wait some order goes wrong."""
    wait, log, orders = cupy_module.Stream.wait_event, [], set()

    def some(stream, event):
        if (("needs" if event in streams._events[1:] else "fork") != missing) or event is streams._over:
            wait(stream, event)

    monkeypatch.setattr(cupy_module.Stream, "wait_event", some)
    for _ in range(20):
        log.clear()
        streams.run_jobs(lambda: jobs_of(log), "key")
        orders.add(tuple(log))
    assert streams.recordings == 1 and streams.replays == 19
    assert all(map(keeps_needs, orders)) == (missing is None) and (missing == "fork" or len(orders) > 1)


def test_other_kinds_or_places_are_other_calls(streams):
    log = []
    for kind, places in (("a", (1,)), ("a", (2,)), ("b", (1,))) * 3:
        streams.run_jobs(lambda: [EngineJob("a", (), lambda: lambda: log.append((kind, places)))], kind, places)  # noqa: B023
    assert streams.recordings == 3 and streams.replays == 6


def test_no_more_calls_are_remembered_than_allowed(monkeypatch, streams):
    monkeypatch.setattr(streams_module, "GRAPHS", 2)
    monkeypatch.setattr(streams_module, "SEEN", 2)
    done = []
    for key in "abcabcccab":
        do = lambda key=key: cupy_module.get_current_stream().do(lambda: done.append(key))  # noqa: E731
        streams.run_jobs(lambda do=do: [EngineJob("a", (), lambda: do)], key)
        assert len(streams._graphs) <= 2 and len(streams._seen) <= 2
    assert "".join(done) == "abcabcccab"
    assert streams.replays == 3  # of "ccc" the second and third, and the last b: it was seen two calls before


def test_a_failure_while_recording_ends_the_recording(streams):
    def fail():
        raise RuntimeError("cannot launch")

    jobs = [EngineJob("a", (), lambda: lambda: None), EngineJob("b", (0,), lambda: fail)]
    with pytest.raises(RuntimeError, match="cannot launch"):
        streams.run_jobs(lambda: jobs, "key")  # the first sight is not recorded
    streams.run_jobs(lambda: jobs[:1], "key")
    with pytest.raises(RuntimeError, match="cannot launch"):
        streams.run_jobs(lambda: jobs, "key")
    assert not any(stream.is_capturing() for stream in streams._lanes.values())


def test_another_threads_default_stream_waits_for_the_call_before(monkeypatch, streams):
    """Under the same address each thread has a default stream of its own."""
    waits = []
    monkeypatch.setattr(cupy_module.Stream, "wait_event", lambda stream, event: waits.append(event is streams._over))

    def run():
        waits.clear()
        streams.run_jobs(lambda: [EngineJob("a", (), lambda: lambda: None)], "key")
        return sum(waits)

    assert run() == 1 and run() == 0
    other = threading.Thread(target=run)
    other.start()
    other.join()
    assert sum(waits) == 1, "it waits for the call of the other thread"
