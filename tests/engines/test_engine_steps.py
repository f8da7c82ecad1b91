"""The CPU engine's steps of one direction: in pieces, on threads, with lengths, resets and projection."""

import numpy as np
import pytest

import numbarnn as nr
from general_cells import GENERAL
from numbarnn import cells
from step_buffers import kinds_of_steps, normal, walk

# One with a projection, one with a stage and vectors: each takes long to compile, and test_conformance.py has them all.
FEW_CELLS = {"lstm": cells.LSTM, "blend": GENERAL["blend"]}
by_threads = pytest.mark.parametrize("threads", (1, 2, 3))


@pytest.fixture
def engine(cpu_on_threads):
    return cpu_on_threads


# ------------------------------------------------------------------------------------------------------- time loops
by_kind = pytest.mark.parametrize("cell, kind", list(kinds_of_steps(FEW_CELLS)))


@by_threads
@pytest.mark.parametrize("direction", (0, 1))
@by_kind
def test_steps_may_be_run_in_pieces(engine, cell, kind, direction, threads):
    """Blocks of steps one after another are the same bits as all at once; later schedules rely on it."""
    engine.set_num_threads(threads)
    found = [walk(engine, cell, direction, cuts, **kind)[1] for cuts in ((0, 7), (0, 3, 4, 7))]
    for whole, pieces in zip(*found, strict=True):
        np.testing.assert_array_equal(whole, pieces)


@by_kind
def test_steps_do_not_depend_on_the_number_of_threads(engine, cell, kind):
    """Products of other sizes may add up in another order: 33 terms of size 1, passed on from step to step."""
    found = []
    for threads in (1, 2, 3):
        engine.set_num_threads(threads)
        found.append(walk(engine, cell, 1, **kind)[1])
    for one, *others in zip(*found, strict=True):
        for other in others:
            np.testing.assert_allclose(one, other, rtol=0, atol=64 * np.finfo(np.float32).eps)


@by_kind
def test_one_direction_leaves_the_other_alone(engine, cell, kind):
    forward, _ = walk(engine, cell, 1, **kind)
    for array in (forward.states.h, forward.states.c, forward.states.m):
        if array is not None:
            width = array.shape[2] // 2
            assert np.isnan(array[1:-1, :, :width]).all() and np.isfinite(array[1:-1, :, width:]).all()


@pytest.mark.parametrize("direction", (0, 1))
@pytest.mark.parametrize("cell, kind", [case for case in kinds_of_steps(FEW_CELLS) if "masked" in case.values[1]])
def test_what_stands_beyond_lengths_and_before_resets_is_not_read(engine, cell, kind, direction):
    """x Wᵀ and dy of skipped steps, and the state before a first step that is reset, may be NaN."""
    _, expected = walk(engine, cell, direction, **kind)
    forward, found = walk(engine, cell, direction, spoiled=True, **kind)
    assert np.isnan(forward.states.h[0]).any() == (direction == 0)
    for one, other in zip(expected, found, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("T", (1, 2, 9))
def test_one_sequence_may_lie_as_a_row_of_a_batch_first_array(T):
    """Its strides are those of (1, T, I): between sequences, of which there is but one, NumPy says, are T rows."""
    layer, x, dy = nr.GRU(5, 7, device="cpu", seed=0), normal("float32", 1, T, 5), normal("float32", 1, T, 7, seed=1)
    found = []
    for turned in (lambda array: array.swapaxes(0, 1), lambda array: array.swapaxes(0, 1).copy()):
        y, _, tape = layer.forward(turned(x))
        gradients = layer.backward(tape, turned(dy))
        found.append((layer(turned(x))[0], y, gradients.x, gradients.weights))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
