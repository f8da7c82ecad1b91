"""The CPU engine's steps of one direction, and what it does to rows: lengths, resets, projection, skip input."""

import numpy as np
import pytest

import numbarnn as nr
from general_cells import GENERAL
from numbarnn import cells, engines
from numbarnn.common.order import RESET, SKIP
from row_cases import (
    SHAPES,
    check_gather,
    check_select,
    check_spread,
    check_step_mask,
    check_sum_gates,
)
from step_buffers import kinds_of_steps, normal, walk

# One with a projection, one with a stage and vectors: each takes long to compile, and test_conformance.py has them all.
FEW_CELLS = {"lstm": cells.LSTM, "blend": GENERAL["blend"]}
by_threads = pytest.mark.parametrize("threads", (1, 2, 3))
by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))


@pytest.fixture
def engine(cpu_on_threads):
    return cpu_on_threads


# ------------------------------------------------------------------------------------------- rows, by code or number
@pytest.mark.parametrize("with_resets", (False, True))
@pytest.mark.parametrize("directions, steps, batch", [(1, 1, 1), (2, 1, 2), (2, 2, 3), (1, 5, 7), (2, 7, 9)])
def test_fill_step_mask(engine, directions, steps, batch, with_resets):
    check_step_mask(engine, directions, steps, batch, with_resets)


def test_step_codes_written_out():
    """Five times of three sequences of 5, 3 and 0 elements that begin anew at 0, 2 and 4; R resets, S is skipped."""
    resets = np.zeros((5, 3), np.uint8)
    resets[[0, 2, 4]] = 1
    step_mask = np.full((2, 7, 3), 255, np.uint8)
    engines.get("cpu").fill_step_mask(step_mask, np.int32([5, 3, 0]), resets)
    words = {0: ".", RESET: "R", SKIP: "S"}
    forward = ["".join(words[code] for code in sequence) for sequence in step_mask[0].T]
    backward = ["".join(words[code] for code in sequence) for sequence in step_mask[1].T]
    assert forward == [".R.R.R.", ".R.RSS.", ".SSSSS."]
    assert backward == ["..R.R..", "..R.SS.", ".SSSSS."]


@by_dtype
@pytest.mark.parametrize("in_place, transposed", [(False, ()), (True, ()), (False, ("x",)), (False, ("out",))], ids=str)
@pytest.mark.parametrize("dropped, fill", [(SKIP, -0.5), (RESET, 0.0), (RESET | SKIP, np.nan)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_select(engine, shape, dropped, fill, in_place, transposed, dtype):
    check_select(engine, dtype, shape, dropped, fill, in_place, transposed)


@by_dtype
@pytest.mark.parametrize("rows, columns, fill", [(1, 1, 0.0), (9, 5, -2.0), (3, 33, np.nan), (0, 4, 0.0)])
def test_gather(engine, rows, columns, fill, dtype):
    check_gather(engine, dtype, rows, columns, fill)


@by_dtype
@pytest.mark.parametrize("gates", (1, 3, 4))
@pytest.mark.parametrize("rows, hidden", [(1, 1), (7, 5), (3, 33)])
def test_spread_and_sum_gates(engine, rows, hidden, gates, dtype):
    check_spread(engine, dtype, rows, hidden, gates)
    for accumulate in (False, True):
        check_sum_gates(engine, dtype, rows, hidden, gates, accumulate)


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
