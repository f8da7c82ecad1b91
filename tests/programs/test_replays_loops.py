"""What loops over many batches, sizes and results pay for recording calls, without a GPU; see test_replays.py."""

import random

import pytest

from gpu_stand_in import B, H, T, layer_and_input, steady
from numbarnn.engines.gpu import engine as device
from numbarnn.engines.gpu import graphs

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
