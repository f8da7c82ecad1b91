"""What a steady call asks of the driver, without a GPU: pinned, as small problems are bound by it."""

import gc
import random

import pytest

from gpu_stand_in import B, H, layer_and_input, steady
from numbarnn.engines.gpu import buffer_pool


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
    cupy.pool.room = 100
    with pytest.raises(MemoryError, match=r"no room for an array \(\d+, 4, 32\)"):
        layer(x[:-1])
    gc.collect()
    assert engine.buffer_pool.kept_bytes() == 0
