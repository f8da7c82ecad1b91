"""What the tests of conversions share: networks of every kind, layers of every kind, and when two are the same."""

import os
from itertools import product

import numpy as np
import pytest

from cases import Case

CELLS = ("lstm", "gru", "gru_reset_before", "rnn_tanh", "rnn_relu")
TORCH_CELLS = tuple(cell for cell in CELLS if cell != "gru_reset_before")
SIZES = [*product(CELLS, ((5,), (5, 5, 5)), (1, 2))]  # cell, hidden sizes, D
TORCH_SIZES = [sizes for sizes in SIZES if sizes[0] in TORCH_CELLS]
FORMS = "'gru' applies the reset gate after the recurrent product.*'gru_reset_before' before it.*neither is converted"
# Outputs are at most 1 in size (an RNN's with ReLU: a few), each step adds a few roundings: see
# tests/support/cases.py.
ROUNDINGS = 16


def make(cell, hidden=(5,), D=1, dtype="float32", I=4, **options):  # noqa: E741
    """A layer on the CPU."""
    return Case(cell, I=I, hidden=hidden, directions=D, dtype=dtype).layer(seed=5, **options)


def problem(layer, T=7, B=3):
    """x and an initial state for a layer whose sizes are all the same, not batch_first."""
    rng = np.random.default_rng(11)
    directions = 2 if layer.bidirectional else 1
    x = rng.standard_normal((T, B, layer.input_size)).astype(layer.dtype)
    shape = (layer.num_layers * directions, B, layer.hidden_sizes[0])
    states = [rng.standard_normal(shape).astype(layer.dtype) * 0.5 for _ in range(2)]
    return x, states


def import_keras():
    """Keras on PyTorch, in whose absence a test is skipped."""
    pytest.importorskip("torch")
    os.environ.setdefault("KERAS_BACKEND", "torch")
    return pytest.importorskip("keras")


def run(layer, x, states):
    """[y, hy] or [y, hy, cy]."""
    has_c = layer.cell == "lstm"
    y, state = layer(x, tuple(states) if has_c else states[0])
    return [y, *(state if has_c else [state])]


def run_onnx(model, inputs):
    """Outputs of onnxruntime."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert {one.name for one in session.get_inputs()} == set(inputs)
    return session.run(None, inputs)


def assert_close(found, expected, dtype):
    """Arrays agree within a few roundings."""
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        scale = max(1.0, np.max(np.abs(theirs)))
        assert np.max(np.abs(ours - theirs)) <= ROUNDINGS * np.finfo(dtype).eps * scale


def assert_same_bits(found, expected):
    """Dicts of arrays have the same names in the same order, shapes, dtypes and bits."""
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


def assert_same_layer(found, expected):
    """Two layers are of one class, with the same options and the same bits."""
    assert type(found) is type(expected) and repr(found) == repr(expected)
    assert_same_bits(found.state_dict(), expected.state_dict())
