"""What a steady call asks of the driver, without a GPU: pinned, as small problems are bound by it."""

import gc
import random
import threading

import pytest

import numbarnn
from gpu_stand_in import Array, B, H, T, layer_and_input, steady
from numbarnn.cuda import cublas, gemm
from numbarnn.engines.gpu import buffer_pool, graphs
from numbarnn.engines.gpu import engine as device


def test_other_streams_wait_for_the_call_before(gpu):
    """And have memory of their own."""
    _, counts, cupy = gpu
    layer, x, _ = layer_and_input(cupy)
    streams = cupy.cuda.Stream(), cupy.cuda.Stream()

    def call():
        for stream in streams:
            with stream:
                layer(x)

    assert steady(counts, call) == {"graph": 2, "record": 2, "wait": 2, "copy": 2}


@pytest.mark.parametrize("schedule", ("persistent", "wavefront", "stepwise"))
def test_a_training_loop_replays_from_the_third_turn_on(gpu, schedule):
    """Two layers, results of the last turn that live on, and other allocations of all sizes in between."""
    engine, _, cupy = gpu
    pairs = [layer_and_input(cupy, schedule=schedule, num_layers=2) for _ in range(2)]
    others, order, kept, found = [], random.Random(0), {}, []
    for _ in range(8):
        before = engine.streams.replays
        for number, (layer, x, dy) in enumerate(pairs):
            others.append(cupy.empty((order.randrange(1, 10_000),), "float32"))
            kept["y"], _, kept["tape"] = layer.forward(x)
            kept["gradients"] = layer.backward(kept["tape"], dy)
            kept[number] = kept["gradients"].params
        found.append(engine.streams.replays - before)
    assert found[3:] == [4] * 5


def test_what_training_read_may_be_written_over(gpu):
    """The tape has a copy of x of its own, even of one that stands in memory that comes round."""
    _, _, cupy = gpu
    layer, x, _ = layer_and_input(cupy)
    y, _, tape = layer.forward(layer.forward(x)[0])
    again = layer.forward(y)[2]
    assert again.forward.arrays["x"].data.ptr != y.data.ptr
    assert tape.forward.arrays["x"].data.ptr != x.data.ptr


def test_results_that_are_kept_are_not_written_again(gpu):
    """Memory comes back when the last view of it is gone, not before."""
    _, _, cupy = gpu
    layer, x, _ = layer_and_input(cupy)
    results = [layer(x) for _ in range(6)]
    addresses = [array.data.ptr for y, state in results for array in (y, *state)]
    assert len(set(addresses)) == len(addresses)
    part = results[0][0][2:, :1]
    place = results[0][0].data.ptr
    del results
    new = [layer(x)[0].data.ptr for _ in range(6)]
    assert place not in new and part.data.ptr > place
    del part
    more = [layer(x) for _ in range(6)]
    assert place in [y.data.ptr for y, _ in more]


def test_kept_memory_is_bounded(gpu, monkeypatch):
    engine, _, cupy = gpu
    monkeypatch.setattr(buffer_pool, "KINDS", 3)
    layer, _, _ = layer_and_input(cupy)
    kept = []
    for steps in range(1, 9):
        layer(cupy.empty((steps, B, H), "float32"))
        kept.append(engine.buffer_pool.kept_bytes())
        assert len(engine.buffer_pool._kinds) <= 3
    engine.buffer_pool._limit = kept[-1] // 4
    layer(cupy.empty((9, B, H), "float32"))
    assert 0 < engine.buffer_pool.kept_bytes() < kept[-1] / 2
    engine.buffer_pool.clear()
    assert engine.buffer_pool.kept_bytes() == 0


def test_a_full_device_gets_back_what_is_kept(gpu):
    engine, _, cupy = gpu
    layer, x, _ = layer_and_input(cupy)
    layer(x)
    assert engine.buffer_pool.kept_bytes() > 0
    cupy.device_memory.room = 100
    with pytest.raises(MemoryError, match=r"no memory for an array \(\d+, 4, 32\)"):
        layer(x[:-1])
    gc.collect()
    assert engine.buffer_pool.kept_bytes() == 0


BATCHES = 200


def many(cupy, *shape):
    """As many arrays at as many addresses."""
    return [cupy.empty(shape, "float32") for _ in range(BATCHES)]


def found(engine, epoch, epochs=3):
    """[(recordings, replays) in each epoch]."""
    counts = []
    for _ in range(epochs):
        recordings, replays = engine.streams.recordings, engine.streams.replays
        epoch()
        counts.append((engine.streams.recordings - recordings, engine.streams.replays - replays))
    return counts


@pytest.mark.parametrize("schedule", ("persistent", "wavefront"))
def test_recordings_do_not_grow_with_the_number_of_batches(gpu, schedule):
    """Each batch, its gradient and its states have places of their own: two graphs of forward, two of backward."""
    engine, _, cupy = gpu
    layer, _, _ = layer_and_input(cupy, schedule=schedule)
    h, c, dh, dc = (many(cupy, 1, B, H) for _ in range(4))
    resets = [cupy.zeros((T, B), "bool") for _ in range(BATCHES)]
    batches = list(zip(many(cupy, T, B, H), many(cupy, T, B, H), h, c, dh, dc, resets, strict=True))

    def epoch():
        for x, dy, h, c, dh, dc, starts in batches:
            y, _, tape = layer.forward(x, (h, c), resets=starts)
            gradients = layer.backward(tape, dy, (dh, dc))
        del y, gradients

    assert found(engine, epoch) == [(4, 2 * BATCHES - 4), (0, 2 * BATCHES), (0, 2 * BATCHES)]


def test_results_may_be_collected(gpu):
    """Callers may keep any number of results: from some number on they get copies, and calls are replays."""
    engine, _, cupy = gpu
    layer, xs = layer_and_input(cupy)[0], many(cupy, T, B, H)

    def epoch():
        results = [layer(x) for x in xs]
        assert len({y.data.ptr for y, _ in results} | {h.data.ptr for _, (h, _) in results}) == 2 * BATCHES

    assert found(engine, epoch) == [(1, BATCHES - device.RESULTS - 1), (device.RESULTS, BATCHES), (0, BATCHES)]


def test_sizes_that_vary_among_a_few_are_recorded_once_each(gpu):
    engine, _, cupy = gpu
    layer, order = layer_and_input(cupy)[0], random.Random(0)
    batches = [cupy.empty((steps, batch, H), "float32") for steps in (3, 4, 5, 6) for batch in (2, 4)]
    kept = {}

    def epoch():
        for x in order.choices(batches, k=BATCHES):
            kept["y"], kept["state"], kept["tape"] = layer.forward(x)
            kept["gradients"] = layer.backward(kept["tape"], x)

    first, *later = found(engine, epoch, 4)
    assert first[0] + later[0][0] <= 4 * len(batches)  # of each kind, forward and backward, two places
    assert later[-1] == (0, 2 * BATCHES)


def test_gradients_are_added_where_the_caller_keeps_them(gpu):
    """One buffer is a replay, without a copy of it; of many buffers few calls are recorded."""
    engine, counts, cupy = gpu
    layer, x, dy = layer_and_input(cupy)
    buffers = [cupy.empty(layer.weights.shape, "float32") for _ in range(graphs.GRAPHS + 20)]

    def train(dw):
        return layer.backward(layer.forward(x)[2], dy, dw=dw)

    assert steady(counts, lambda: train(buffers[0])) == {"graph": 2, "record": 2, "copy": 4}
    epochs = found(engine, lambda: [train(dw) for dw in buffers])
    assert sum(recordings for recordings, _ in epochs) < 0.03 * 3 * 2 * len(buffers)


def test_a_call_in_a_capture_of_the_callers_is_refused(gpu, monkeypatch):
    """Before anything changes: the number of the training call, the tape that is used up."""
    _, counts, cupy = gpu
    layer, x, dy = layer_and_input(cupy, num_layers=2, dropout=0.5)
    dw = cupy.empty(layer.weights.shape, "float32")
    reserve_of = numbarnn.functional.Descriptor("lstm", H, H, device="cuda")
    gradients = reserve_of.zeros_weights()
    reserve = numbarnn.functional.forward_training(reserve_of, x, w=reserve_of.zeros_weights())[3]
    _, _, tape = layer.forward(x)
    ready = numbarnn.functional.forward_training(reserve_of, x, w=reserve.weights)[3]
    numbarnn.functional.backward_data(reserve_of, ready, dy, w=reserve.weights)
    calls = [
        lambda: layer(x),
        lambda: layer.forward(x),
        lambda: layer.backward(tape, dy),
        lambda: layer.backward(tape, dy, dw=dw),
        lambda: numbarnn.functional.backward_data(reserve_of, reserve, dy, w=reserve.weights),
        lambda: numbarnn.functional.backward_weights(reserve_of, ready, gradients),
    ]
    with cupy.cuda.Stream() as stream:
        stream.begin_capture()
        counts.clear()
        for call in calls:
            with pytest.raises(RuntimeError, match="cannot be called while CuPy's current stream is captured"):
                call()
        assert not {"graph", "kernel", "product", "copy", "copy from host"} & set(counts)
    assert layer.training_calls == 1 and not tape.used and not reserve.used
    layer.backward(tape, dy)
    numbarnn.functional.backward_data(reserve_of, reserve, dy, w=reserve.weights)


@pytest.fixture
def handles(gpu, monkeypatch):
    """Stream -> handles of cuBLAS made for it, with products that ask for one as they should."""
    made = {}

    class Handle:
        def __init__(self, _, stream):
            made.setdefault(stream, []).append(self)
            self.closed = False

        def close(self):
            self.closed = True

    monkeypatch.setattr(cublas, "Handle", Handle)
    monkeypatch.setattr(cublas, "_handles", {})
    monkeypatch.setattr(gemm, "matmul", lambda *_, **__: cublas.handle())
    monkeypatch.setattr(gemm, "step_product", lambda *_, **__: lambda *_: cublas.handle())
    return made


def lanes(engine, made):
    return {lane for lane, stream in engine.streams._lanes.items() if stream.ptr in made}


def test_only_lanes_that_multiply_have_work_space(gpu, handles):
    """Not the one of copies, nor that of persistent kernels; and another thread has none of its own."""
    engine, _, cupy = gpu
    layer, x, dy = layer_and_input(cupy)
    assert not handles

    def train():
        for _ in range(3):
            layer.backward(layer.forward(x)[2], dy)

    train()
    other = threading.Thread(target=train)
    other.start()
    other.join()
    assert engine.streams.recordings >= 4
    assert lanes(engine, handles) == set(engine.streams._lanes) - {None, "copies", "marks", ("launches",)} != set()
    assert all(len(made) == 1 for made in handles.values())


def test_work_space_is_freed_with_the_buffer_pool(gpu, handles):
    """With the graphs that hold its address: calls after that begin anew."""
    engine, _, cupy = gpu
    layer, x, _ = layer_and_input(cupy, schedule="wavefront")
    for _ in range(3):
        layer(x)
    before = [handle for made in handles.values() for handle in made]
    engine.buffer_pool.clear()
    assert before and all(handle.closed for handle in before) and not cublas._handles
    recordings = engine.streams.recordings
    layer(x)
    assert engine.streams.recordings == recordings
    for _ in range(3):
        layer(x)
    assert engine.streams.recordings > recordings and len(cublas._handles) == len(handles)
    cupy.device_memory.room = 100  # so does a call that finds the device full
    with pytest.raises(MemoryError):
        layer(x[:-1])
    assert not cublas._handles


@pytest.mark.parametrize("what", ("x", "masks"))
def test_copies_wait_for_what_other_streams_do_with_the_memory(gpu, monkeypatch, what):
    """x of the next call comes to where the backward pass, on another stream, may still read that of the last."""
    _, _, cupy = gpu
    layer, x, dy = layer_and_input(cupy, num_layers=2, dropout=0.5)
    one, other, log = cupy.cuda.Stream(), cupy.cuda.Stream(), []
    with one:
        tape = layer.forward(x)[2]
    place = tape.forward.arrays[what].data.ptr
    with other:
        layer.backward(tape, dy)
    del tape
    gc.collect()
    monkeypatch.setattr(cupy.cuda.Stream, "wait_event", lambda *_: log.append("wait"))
    monkeypatch.setattr(cupy.cuda.MemoryPointer, "copy_from_device_async", lambda out, *_: log.append(out.ptr))
    monkeypatch.setattr(Array, "set", lambda array, *_: log.append(array.data.ptr))
    with one:
        layer.forward(x)
    assert log[0] == "wait" and place in log
