"""Times of calls of layers by pytest-benchmark: inference, training, a cell of one's own, single steps.

    python -m pytest tests/benchmarks --benchmark-only

Its tables compare runs on one machine (--benchmark-autosave, --benchmark-compare). Peers, correctness and pairing are
those of `numbarnn bench`.
"""

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.cells import library

SIZES = {"small": (20, 1, 64, 128), "middle": (50, 16, 128, 256), "large": (50, 64, 512, 512)}  # T, B, I, H
LAYERS = {"lstm": nr.LSTM, "gru": nr.GRU}


def problem(make, size, **options):
    """(layer, x, dy) of random numbers."""
    T, B, inputs, H = SIZES[size]
    random = np.random.default_rng(0)
    layer = make(inputs, H, device="cpu", **options)
    return layer, *(random.standard_normal((T, B, width)).astype("float32") for width in (inputs, H))


def own(inputs, H, **options):
    """The LSTM written as equations."""
    return nr.RNN(library.lstm, inputs, H, **options)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cell", [*LAYERS, "own"])
def test_inference(cell, size, benchmark):
    layer, x, _ = problem(LAYERS.get(cell, own), size)
    y, _ = benchmark(layer, x)
    assert np.isfinite(y).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cell", [*LAYERS, "own"])
def test_training(cell, size, benchmark):
    layer, x, dy = problem(LAYERS.get(cell, own), size)

    def step():
        *_, tape = layer.forward(x)
        return layer.backward(tape, dy)

    assert np.isfinite(benchmark(step).weights).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cell", LAYERS)
def test_single_steps(cell, size, benchmark):
    layer, x, _ = problem(LAYERS[cell], size)
    step = layer.stepper(batch=x.shape[1])
    assert np.isfinite(benchmark(step, x[0])).all()
