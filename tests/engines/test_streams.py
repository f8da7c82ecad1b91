"""Jobs on streams and their CUDA graphs, without a GPU: streams, events and graphs that only keep order.

A stream here is a list of functions and of waits for events. They run when a test says so, the streams taking turns at
random; what is right in every such order is ordered by events, as it must be on a GPU.
"""

import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from cases import Case
from comparing import assert_same_bits
from numbarnn import engines
from numbarnn.engines import Job
from numbarnn.engines.gpu import graphs as streams_module
from numbarnn.engines.gpu.graphs import Streams
from problems import Problem, make_problem


class Mark:
    """A point in a stream; `recording` is the graph that it belongs to, or None."""

    def __init__(self, recording=None):
        self.recording, self.reached = recording, False


class Event:
    def __init__(self, disable_timing):
        assert disable_timing
        self.mark = Mark()
        self.mark.reached = True  # CUDA: an event never recorded is not waited for


class Stream:
    """A CUDA stream that runs nothing by itself."""

    current = None

    def __init__(self, non_blocking=True):
        self.ptr, self.work, self.recording = id(self), [], None

    def __enter__(self):
        self.before, Stream.current = Stream.current, self

    def __exit__(self, *_):
        Stream.current = self.before

    def is_capturing(self):
        return self.recording is not None

    def add(self, item):
        (self.work if self.recording is None else self.recording.work.setdefault(self, [])).append(item)

    def record(self, event):
        event.mark = Mark(self.recording)
        self.add(event.mark)

    def wait_event(self, event):
        if event.mark.recording is None:
            assert self.recording is None, "a recording waits for something outside of it"
        else:
            assert self.recording in (None, event.mark.recording)
            if self.recording is None:
                event.mark.recording.joined.append(self)
            self.recording = event.mark.recording
        self.add(("wait", event.mark))

    def begin_capture(self):
        assert self.recording is None
        self.recording = Graph(self)

    def end_capture(self):
        graph = self.recording
        for stream in (self, *graph.joined):
            stream.recording = None
        return graph


class Graph:
    """What streams were given while they recorded."""

    def __init__(self, origin):
        self.origin, self.work, self.joined = origin, {}, []

    def launch(self, stream):
        stream.add(self)


def finish(streams, until, order):
    """Run what the streams hold, in random turns, until one stream is done; then nothing may be left anywhere."""
    left = {stream: list(work) for stream, work in streams.items()}
    while left[until]:
        ready = [s for s, work in left.items() if work and not (isinstance(work[0], tuple) and not work[0][1].reached)]
        assert ready, "the streams wait for each other"
        item = left[order.choice(ready)].pop(0)
        if isinstance(item, Mark):
            item.reached = True
        elif isinstance(item, Graph):
            for mark in (mark for work in item.work.values() for mark in work if isinstance(mark, Mark)):
                mark.reached = False
            finish(item.work, item.origin, order)
        elif not isinstance(item, tuple):
            item()
    assert not any(left.values()), "work that the caller's stream does not wait for"


class Device:
    """Runs the CPU engine's jobs as if they were a GPU's: later, in an order that only events decide."""

    def __init__(self, monkeypatch, engine, seed=0):
        self.caller, self.order, self.engine = Stream(), random.Random(seed), engine
        self.on = True  # off: jobs run at once, in order
        cuda = SimpleNamespace(Stream=Stream, Event=Event, get_current_stream=lambda: self.caller)
        self.streams = Streams(SimpleNamespace(cuda=cuda))
        monkeypatch.setattr(engine, "run_jobs", self.run_jobs)
        monkeypatch.setattr(engine, "prepares_calls", False)
        monkeypatch.setattr(engine, "records_jobs", True)

    def run_jobs(self, make_jobs, key, arrays):
        if not self.on:
            engines.Engine.run_jobs(self.engine, make_jobs, key, arrays)
            return

        def later(job):
            def bind():
                assert not Stream.current.is_capturing(), "bound while recording"
                run = job.bind()
                return lambda: Stream.current.add(run)

            return Job(job.lane, job.needs, bind)

        places = tuple(map(self.engine.address, arrays))
        self.streams.run_jobs(lambda: [later(job) for job in make_jobs()], key, places)
        self.finish()

    def finish(self):
        streams = (self.caller, *self.streams._lanes.values())
        work = {stream: stream.work[:] for stream in streams}
        for stream in streams:
            stream.work.clear()
        finish(work, self.caller, self.order)


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch, engines.get("cpu"))


def same_places(monkeypatch, engine):
    """Let the engine's n-th new array after each call of the function returned be the same array as ever, as in a
    steady loop on a GPU."""
    arrays, turn, make = {}, [0], engine.empty

    def empty(shape, dtype):
        turn[0] += 1
        key = (turn[0], shape, dtype)
        if key not in arrays:
            arrays[key] = make(shape, dtype)
        if np.dtype(dtype).kind == "f":
            arrays[key].fill(np.nan)
        return arrays[key]

    def zeros(shape, dtype):
        array = empty(shape, dtype)
        array.fill(0)
        return array

    def from_host(array):
        copy = empty(array.shape, array.dtype.name)
        copy[...] = array
        return copy

    monkeypatch.setattr(engine, "empty", empty)
    monkeypatch.setattr(engine, "zeros", zeros)
    monkeypatch.setattr(engine, "from_host", from_host)
    return lambda: turn.__setitem__(0, 0)


def results(layer, problem, **sequences):
    """Name -> result of a training call on the problem's own arrays."""
    y, _, tape = layer.forward(problem.x, problem.state, **sequences)
    gradients = layer.backward(tape, problem.dy, problem.dstate)
    values = {"y": y, "dx": gradients.x} | gradients.params
    return {name: value.copy() for name, value in values.items()}


@pytest.mark.parametrize("options", ({}, {"directions": 2}, {"batch_first": True}), ids=str)
@pytest.mark.parametrize("schedule", ("wavefront", "stepwise"))
@pytest.mark.parametrize("cell", ("lstm", "gru", "rnn_tanh"))
def test_replays_compute_what_the_first_call_computes(monkeypatch, device, cell, schedule, options):
    """With what the arrays hold then: inputs and weights change between the calls, in place. A schedule whose tasks run
    one after another is recorded too."""
    problem = Problem(Case(cell, T=9, hidden=(5, 3, 4), **options))
    given = map(problem.sequences, (problem.x, problem.dy))
    problem.x, problem.dy = map(np.ascontiguousarray, given)  # else copied, to other places
    layer = problem.layer("cpu", schedule=schedule)
    start_again = same_places(monkeypatch, device.engine)
    for turn in range(5):
        generator = np.random.default_rng(turn)
        problem.x[...] = generator.standard_normal(problem.x.shape)
        layer.weights[...] = generator.uniform(-0.5, 0.5, layer.weights.shape)
        found = []
        for device.on in (False, True):
            start_again()
            found.append(results(layer, problem))
        assert_same_bits(*found, f"call {turn}")
        assert device.streams.replays == 2 * turn  # forward and backward; the first call is not recorded


def test_other_places_or_options_are_other_calls(monkeypatch, device):
    """What a recording holds is used for its own arrays and options only."""
    case = Case("lstm", T=9, hidden=(5, 3))
    start_again = same_places(monkeypatch, device.engine)
    problems = [Problem(case, seed) for seed in range(3)]
    layers = [problem.layer("cpu", schedule="wavefront") for problem in problems]
    for _ in range(3):
        for layer, problem in zip(layers, problems, strict=True):
            found = []
            for device.on in (False, True):
                start_again()
                found.append(results(layer, problem))
            assert_same_bits(*found)
    assert device.streams.replays == 2 * 3 * 2  # of each layer the second and third call

    dw, layer, problem = np.zeros_like(layers[0].weights), layers[0], problems[0]
    for _ in range(3):  # added to, not written over
        before = dw.copy()
        start_again()
        tape = layer.forward(problem.x, problem.state)[2]
        layer.backward(tape, problem.dy, problem.dstate, dw=dw)
        once = dw - before
    np.testing.assert_allclose(dw, 3 * once, rtol=1e-5, atol=1e-5)


def test_no_more_calls_are_remembered_than_allowed(monkeypatch, device):
    monkeypatch.setattr(streams_module, "GRAPHS", 2)
    monkeypatch.setattr(streams_module, "SIGHTS", 2)
    done = []

    def call(key):
        device.run_jobs(lambda: [Job("a", (), lambda: lambda: done.append(key))], key, ())

    for key in "abcabcccab":
        call(key)
        assert len(device.streams._graphs) <= 2 and len(device.streams._sights) <= 2
    assert "".join(done) == "abcabcccab"
    assert device.streams.replays == 3  # of "ccc" the second and third, and the last b: it was seen two calls before


def test_a_failure_while_recording_ends_the_recording(device):
    def fail():
        raise RuntimeError("cannot launch")

    jobs = [Job("a", (), lambda: lambda: None), Job("b", (0,), lambda: fail)]
    with pytest.raises(RuntimeError, match="cannot launch"):
        device.streams.run_jobs(lambda: jobs, "key")  # the first sight is not recorded
    device.finish()
    device.streams.run_jobs(lambda: jobs[:1], "key")
    device.finish()
    with pytest.raises(RuntimeError, match="cannot launch"):
        device.streams.run_jobs(lambda: jobs, "key")
    assert not any(stream.is_capturing() for stream in device.streams._lanes.values())


def test_another_threads_default_stream_waits_for_the_call_before(device):
    """Under the same address each thread has a default stream of its own."""
    job, waits = [Job("a", (), lambda: lambda: None)], []

    def run():
        before = len(device.caller.work)
        device.streams.run_jobs(lambda: job, "key")
        waits.append(sum(isinstance(item, tuple) for item in device.caller.work[before:]))

    run()
    run()
    other = threading.Thread(target=run)
    other.start()
    other.join()
    assert waits[2] == waits[1] + 1, "it waits for the call of the other thread too"


@pytest.mark.parametrize("missing", (None, "fork", "needs", "join"))
def test_a_missing_event_would_be_found(monkeypatch, device, missing):
    """The checks work: without one kind of wait some order goes wrong, with all of them none."""
    problem = make_problem(Case("gru", T=9, hidden=(5, 3, 4), directions=2))
    x, layer = problem.x.copy(), problem.layer("cpu", schedule="wavefront")
    wait, waited = Stream.wait_event, []

    def some(stream, event):
        kind = "join" if stream is device.caller else "needs" if event in device.streams._events[1:] else "fork"
        if kind == missing and event is not device.streams._over:
            waited.append(stream)
        else:
            wait(stream, event)

    monkeypatch.setattr(Stream, "wait_event", some)
    device.on = False
    expected = results(layer, problem)
    device.on, wrong = True, 0
    for _ in range(10):
        problem.x.fill(0)
        for _ in range(20):
            device.caller.add(lambda: None)  # the caller's stream is busy for a while
        device.caller.add(lambda: np.copyto(problem.x, x))  # the caller's stream writes x before the layer reads it
        try:
            assert_same_bits(results(layer, problem), expected)
        except AssertionError:
            wrong += 1
    assert bool(waited) == bool(wrong) == (missing is not None)
