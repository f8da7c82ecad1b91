"""The kernels of sequences of different lengths, of sequences that begin anew, of projection and of skip input, each
alone, in the simulator, against a line of NumPy; what steps must not read.

What a kernel must not read is NaN: x of skipped steps, states that count as zero, gradients that come from nowhere.
"""

import numpy as np
import pytest

from general_cells import GENERAL
from numbarnn import cells, engines
from numbarnn.cells import lstm
from numbarnn.common.order import RESET, SKIP
from numbarnn.common.precision import DTYPES, compute_dtype
from numbarnn.cuda.launch import LaunchConfig
from numbarnn.kernels.arrays import masks
from numbarnn.kernels.step import projection
from numbarnn.kernels.step.groups import Gradients, Options
from row_cases import integers, random_step_mask
from step_buffers import kinds_of_steps, nans, normal, walk

ALL_CELLS = cells.CELLS | {"lstm_clip": lstm.clipped(-0.3, 0.4)} | GENERAL
by_direction = pytest.mark.parametrize("direction", (0, 1))


# -------------------------------------------------------------------------------------------- rows, by code or number
ENGINE = engines.get("sim")
by_every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.mark.parametrize("blocks, threads", [(1, 1), ((1, 5), 16)])
def test_row_kernels_are_right_for_any_grid(blocks, threads):
    config, x, step_mask = LaunchConfig(blocks, threads), normal("float32", 3, 4, 7), random_step_mask(3, 4)
    select, gather = masks.make_select("float32")[0], masks.make_gather("float32")[0]
    out, expected = nans("float32", *x.shape), nans("float32", *x.shape)
    select.bind(config, out, x, step_mask, np.float32(2))(SKIP)
    ENGINE.select(expected, x, step_mask, SKIP, 2.0)
    np.testing.assert_array_equal(out, expected)
    index = np.array([2, -1, 0, 2, 1])
    out, expected = nans("float32", 5, 7), nans("float32", 5, 7)
    gather.bind(config, out, x[0], index, np.float32(2))()
    ENGINE.gather(expected, x[0], index, 2.0)
    np.testing.assert_array_equal(out, expected)
    step_mask, expected = np.full((2, 2, 5, 4), 255, np.uint8)
    lengths, resets = np.int32([3, 0, 1, 2]), (random_step_mask(3, 4) == RESET).view(np.uint8)
    masks.make_step_mask_kernel().bind(config, step_mask, lengths, resets)()
    ENGINE.fill_step_mask(expected, lengths, resets)
    np.testing.assert_array_equal(step_mask, expected)


# ------------------------------------------------------------------------------------------------------ projection
@by_every_dtype
@by_direction
def test_carry(direction, dtype):
    """The rows of skipped steps of one direction become those before them; all else stays."""
    T, B, P, t = 3, 5, 7, 1
    before, columns = t + 2 * direction, slice(direction * P, (direction + 1) * P)
    h, step_mask = integers(dtype, T + 2, B, 2 * P), random_step_mask(T + 2, B, seed=2)
    expected = h.copy()
    expected[t + 1, step_mask[t + 1] == SKIP, columns] = h[before, step_mask[t + 1] == SKIP, columns]
    projection.bind_carry(h[:, :, columns], step_mask)(t, before)
    assert (step_mask[t + 1] == SKIP).any() and (step_mask[t + 1] != SKIP).any()
    np.testing.assert_array_equal(h.astype(np.float64), expected.astype(np.float64))


@by_every_dtype
@by_direction
@pytest.mark.parametrize("masked", (False, True))
def test_join(masked, direction, dtype):
    """dht[t] = dy[t] + dh and dh = 0; of skipped steps dht[t] = 0 and dh stays; what comes from a reset counts as 0."""
    T, B, P, t = 3, 9, 7, 1
    before, columns = t + 2 * direction, slice(direction * P, (direction + 1) * P)
    step_mask, every = np.full((T + 2, B), 99, np.uint8), np.uint8([0, RESET, SKIP])
    step_mask[t + 1] = np.repeat(every, 3)
    step_mask[t if direction else t + 2] = np.tile(every, 3)  # the next step's
    skip, cut_off = (rows[:, None] & masked for rows in (step_mask[t + 1] == SKIP, np.tile(every, 3) == RESET))
    dh, dy = integers(compute_dtype(dtype), B, P, seed=1), integers(dtype, T, B, 2 * P, seed=2)
    d_h = np.where(cut_off, 0, dh)
    expected, expected_dh = np.where(skip, 0, dy[t, :, columns] + d_h), np.where(skip, d_h, 0)
    dh[cut_off[:, 0]] = dy[t, skip[:, 0]] = np.nan
    dht = np.full((T, B, P), np.nan, dy.dtype)
    gradients = Gradients(dh, None, None, None, dy[:, :, columns], dht)
    projection.bind_join(gradients, Options(step_mask if masked else None))(t, before)
    np.testing.assert_array_equal(dht[t].astype(np.float64), expected)
    assert np.isnan(dht[[0, 2]].astype(np.float64)).all()
    np.testing.assert_array_equal(dh, expected_dh)


# ------------------------------------------------------------------------------------------------------------ steps
@by_direction
@pytest.mark.parametrize(
    "cell, kind", [one for one in kinds_of_steps(ALL_CELLS, projection=3) if "masked" in one.values[1]]
)
def test_what_stands_beyond_lengths_and_before_resets_is_not_read(cell, kind, direction):
    """x Wᵀ and dy of skipped steps, and the state before a first step that is reset, may be NaN."""
    expected, found = (
        walk(ENGINE, cell, direction, cuts=(0, 4), spoiled=spoiled, T=4, H=5, **kind)[1] for spoiled in (False, True)
    )
    for one, other in zip(expected, found, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)
