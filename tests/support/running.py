"""A layer run with a `problems.Problem`: its results by name, as NumPy arrays. Every new buffer of the engine is filled
with NaN first."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

import numbarnn
from numbarnn.layers import stack
from problems import Drawn, plain


@contextmanager
def nan_filled(engine):
    """Fill every new buffer of the engine with NaN, so that an element that is read before it is written shows; of ints
    with the largest there is, as no step's code."""
    original = engine.empty

    def empty(shape, dtype):
        array = original(shape, dtype)
        array.fill(np.iinfo(array.dtype).max if array.dtype.kind in "iu" else np.nan)
        return array

    engine.empty = empty
    try:
        yield
    finally:
        del engine.empty


@contextmanager
def not_prepared():
    """Layers that are made meanwhile prepare no calls (`numbarnn.layers.prepared`)."""
    before, stack.PreparedCalls = stack.PreparedCalls, lambda: None
    try:
        yield
    finally:
        stack.PreparedCalls = before


def on_engine(engine, value):
    """A state, array or packed sequence of NumPy arrays as arrays of the engine."""
    if isinstance(value, numbarnn.PackedSequence):
        return replace(value, data=engine.from_host(value.data))
    if isinstance(value, tuple | list):
        return type(value)(on_engine(engine, part) for part in value)
    return None if value is None else engine.from_host(value)


def on_host(engine, value):
    """A state, array or packed sequence's data of the engine as NumPy arrays."""
    if isinstance(value, tuple | list):
        return type(value)(on_host(engine, part) for part in value)
    return None if value is None else engine.to_host(plain(value))


def _named(layer, state, form):
    names = layer.stack.cell.states
    return {form.format(name): part for name, part in zip(names, state if len(names) > 1 else (state,), strict=True)}


def named_outputs(layer, y, state):
    """{"y": ..., "hy": ..., "cy": ...} as NumPy arrays."""
    y, state = on_host(layer.engine, [y, state])
    return {"y": y, **_named(layer, state, "{}y")}


def named_gradients(layer, gradients):
    """{"dx": ..., "dhx": ..., "dcx": ..., "dweight_ih_l0": ..., ...} as NumPy arrays."""
    dx, state = on_host(layer.engine, [gradients.x, gradients.state])
    params = {f"d{name}": layer.engine.to_host(value) for name, value in gradients.params.items()}
    return {"dx": dx, **_named(layer, state, "d{}x"), **params}


def infer(layer, problem):
    """Name -> result of an inference call."""
    with nan_filled(layer.engine):
        x, state = on_engine(layer.engine, [problem.sequences(problem.x), problem.state])
        return named_outputs(layer, *layer(x, state, **problem.options()))


def train_and_draw(layer, problem):
    """(name -> result of forward and backward, what was `Drawn`)."""
    engine = layer.engine
    with nan_filled(engine):
        x, dy = on_engine(engine, [problem.sequences(problem.x), problem.sequences(problem.dy)])
        state, dstate = on_engine(engine, [problem.state, problem.dstate])
        y, state, tape = layer.forward(x, state, **problem.options())
        values = named_outputs(layer, y, state)
        drawn = Drawn(layer.dropout_masks(tape), layer.drop_connect_masks(tape), layer.noise(tape))
        values |= named_gradients(layer, layer.backward(tape, dy, dstate))
    return values, drawn


def train(layer, problem):
    """(name -> result of forward and backward, the dropout masks)."""
    values, drawn = train_and_draw(layer, problem)
    return values, drawn.masks
