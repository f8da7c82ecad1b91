"""The kernels of sequences of different lengths, of sequences that begin anew, of projection, of skip input and of
steps with further products, each alone, in the simulator, against a line of NumPy; all steps against the CPU engine's.

What a kernel must not read is NaN: x of skipped steps, states that count as zero, gradients that come from nowhere.
"""

import numpy as np
import pytest
from one_step import Step, assert_near, assert_only_written, joined, nans, normal, split

from general_cells import GENERAL
from numbarnn import cells, engines
from numbarnn.cells import lstm
from numbarnn.common.order import RESET, SKIP
from numbarnn.common.precision import DTYPES, compute_dtype
from numbarnn.cuda.launch import LaunchConfig
from numbarnn.kernels.arrays import masks
from numbarnn.kernels.step import pointwise, projection, stages
from row_cases import (
    SHAPES,
    check_gather,
    check_select,
    check_spread,
    check_step_mask,
    check_sum_gates,
    integers,
    random_step_mask,
)
from step_buffers import backward_buffers, forward_buffers, kinds_of_steps, results

ALL_CELLS = cells.CELLS | {"lstm_clip": lstm.clipped(-0.3, 0.4)} | GENERAL
by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))
by_direction = pytest.mark.parametrize("direction", (0, 1))
by_cell = pytest.mark.parametrize("cell", ALL_CELLS.values(), ids=ALL_CELLS)


# -------------------------------------------------------------------------------------------- rows, by code or number
ENGINE = engines.get("sim")
by_every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.mark.parametrize("with_resets", (False, True))
@pytest.mark.parametrize("directions, steps, batch", [(1, 1, 1), (2, 1, 2), (2, 2, 3), (1, 5, 7), (2, 7, 9)])
def test_fill_step_mask(directions, steps, batch, with_resets):
    check_step_mask(ENGINE, directions, steps, batch, with_resets)


@by_every_dtype
@pytest.mark.parametrize("in_place, transposed", [(False, ()), (True, ()), (False, ("x",)), (False, ("out",))], ids=str)
@pytest.mark.parametrize("dropped, fill", [(SKIP, -0.5), (RESET | SKIP, np.nan)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_select(shape, dropped, fill, in_place, transposed, dtype):
    check_select(ENGINE, dtype, shape, dropped, fill, in_place, transposed)


@by_every_dtype
@pytest.mark.parametrize("rows, columns, fill", [(1, 1, 0.0), (9, 5, -2.0), (3, 33, np.nan), (0, 4, 0.0)])
def test_gather(rows, columns, fill, dtype):
    check_gather(ENGINE, dtype, rows, columns, fill)


@by_every_dtype
@pytest.mark.parametrize("gates", (1, 3))
@pytest.mark.parametrize("rows, hidden", [(1, 1), (7, 5), (3, 9)])
def test_spread_and_sum_gates(rows, hidden, gates, dtype):
    check_spread(ENGINE, dtype, rows, hidden, gates)
    for accumulate in (False, True):
        check_sum_gates(ENGINE, dtype, rows, hidden, gates, accumulate)


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


# ------------------------------------------------------------------------------------------------ masked pointwise
def where_rows(rows, values, others):
    """Tuples of arrays (B, N): the rows of one, else those of the other."""
    return tuple(np.where(rows[:, None], one, other) for one, other in zip(values, others, strict=True))


def wide_state(parts):
    """A step's state in float64."""
    return tuple(part.astype(np.float64) for part in parts)


class MaskedStep(Step):
    """A step whose sequences have every pair of step_mask of the step and of the one after it."""

    B = 9

    def __init__(self, cell, dtype, direction):
        super().__init__(cell, dtype, direction)
        self.step_mask = np.full((self.T + 2, self.B), 99, np.uint8)
        every = np.uint8([0, RESET, SKIP])
        self.step_mask[self.t + 1], self.step_mask[self.after] = np.repeat(every, 3), np.tile(every, 3)
        code, after = self.step_mask[self.t + 1], self.step_mask[self.after]
        self.reset, self.skip, self.cut_off = code == RESET, code == SKIP, after == RESET
        self.started = where_rows(self.reset, [np.zeros_like(part) for part in self.state_before], self.state_before)

    @property
    def after(self):
        """The slot of the step after, in the order of the direction."""
        return self.t + 2 if self.direction == 0 else self.t

    def given(self):
        """As `Step.given`, after a reset from zero: of the gates that multiply h the biases alone."""
        ax, ah, _, per_unit = super().given()
        biases, outer = split(self.b_r.astype(np.float64), len(ah)), self.cell.num_recurrent
        after_reset = [np.broadcast_to(bias, (self.B, self.H)) for bias in biases[:outer]]
        return ax, [*where_rows(self.reset, after_reset, ah[:outer]), *ah[outer:]], wide_state(self.started), per_unit

    def expected(self):
        """(new state, saved), where the state before counts as zero or is carried through."""
        new_state, saved = super().expected()
        return where_rows(self.skip, wide_state(self.state_before), new_state), saved

    def expected_gradients(self, saved, state, new_state, d_state, d_v):
        """Of skipped steps: nothing, but what is carried through."""
        d_ax, d_ah, d_before, d_per_unit = super().expected_gradients(saved, state, new_state, d_state, d_v)
        nothing = [np.zeros((self.B, self.H))] * (self.cell.num_gates + self.cell.num_ah)
        d_ax, d_ah, d_per_unit = (where_rows(self.skip, nothing[: len(d)], d) for d in (d_ax, d_ah, d_per_unit))
        return d_ax, d_ah, where_rows(self.skip, d_state, d_before), d_per_unit

    def spoil(self):
        """Make NaN what must not be read."""
        self.ah[self.reset, : self.cell.num_recurrent * self.H] = self.ah[self.skip] = np.nan
        self.ax[self.t, self.skip] = np.nan
        for part in (self.h, self.c):
            part[self.before, self.reset] = np.nan


@by_dtype
@by_direction
@pytest.mark.parametrize("save", (True, False), ids=("training", "inference"))
@by_cell
def test_masked_pointwise_forward(cell, save, direction, dtype):
    s = MaskedStep(cell, dtype, direction)
    new_state, saved = s.expected()
    s.spoil()
    c = s.c
    if not save:
        c = nans(dtype, 2, *s.c.shape[1:])
        c[s.before % 2] = s.c[s.before]
    bind = pointwise.bind_forward
    bind(cell, s.h, c, s.ax, s.ah, s.b_w, s.b_r, s.per_unit, s.step_mask, direction, save)(s.t, s.before)
    s.h[s.before] = c[s.before if save else s.before % 2] = np.nan  # were given
    assert_only_written(s.h, (s.t + 1, slice(None), s.h_columns), new_state[0])
    if cell.num_private:
        slot = s.t + 1 if save else (s.t + 1) % 2
        assert_only_written(c, (slot, slice(None), s.c_columns), np.concatenate(new_state[1:], axis=1))
    if save and saved:
        kept = np.concatenate(saved, axis=1)
        assert_near(s.ax[s.t, ~s.skip, : cell.num_saved * s.H], kept[~s.skip])


def backward_cases():
    """(cell, projected)"""
    for name, cell in ALL_CELLS.items():
        for projected in (False, True) if "c" in cell.states and not cell.general else (False,):
            yield pytest.param(cell, projected, id=f"{name}-projected" if projected else name)


@by_dtype
@by_direction
@pytest.mark.parametrize("cell, projected", list(backward_cases()))
def test_masked_pointwise_backward(cell, projected, direction, dtype):
    """With projection dh is all of the gradient of the cell's output: dy and the step after are in it already."""
    s = MaskedStep(cell, dtype, direction)
    G, N, K, H, S = cell.num_gates, cell.num_private, cell.num_saved, s.H, len(cell.stages)
    new_state, saved = s.expected()
    s.keep(new_state)
    dy = normal(dtype, s.T, s.B, 2 * H, seed=7)
    dh, dc = normal(dtype, s.B, H, seed=8), normal(dtype, s.B, N * H, seed=9)
    d_v, d_per_unit = normal(dtype, s.B, S * H, seed=11), nans(dtype, s.T, s.B, s.per_unit.size)
    cut_off = s.cut_off[:, None]
    d_h = dh.astype(np.float64) if projected else np.where(cut_off, 0, dh).astype(np.float64)
    d_private = split(np.where(cut_off, 0, dc).astype(np.float64), N)
    d_output = d_h if projected else d_h + np.where(s.skip[:, None], 0, dy[s.t, :, s.h_columns])
    d_state, d_stages = (d_output, *d_private), split(d_v.astype(np.float64), S)
    d_ax, d_ah, d_before, d_own = s.expected_gradients(saved, s.started, new_state, d_state, d_stages)

    s.spoil()
    dy[s.t, s.skip] = dc[s.cut_off] = d_v[s.skip] = np.nan
    if not projected:
        dh[s.cut_off] = np.nan
    dax = nans(dtype, s.T, s.B, s.width)
    if K:
        dax[s.t, :, : K * H] = np.concatenate(saved, axis=1)
        dax[s.t, s.skip] = np.nan
    dah = dax if cell.same_gradient else nans(dtype, s.T, s.B, cell.num_ah * H)
    given = dh, dc, dax, dah, d_per_unit, None if projected else dy, s.h, s.c, s.per_unit, d_v, s.step_mask, direction
    pointwise.bind_backward(cell, *given)(s.t, s.before)
    assert_near(dax[s.t, :, : G * H], np.concatenate(d_ax, axis=1))
    assert np.isnan(dax[[0, 2]]).all()
    if not cell.same_gradient:
        assert_only_written(dah, (s.t, slice(None), slice(0, cell.num_recurrent * H)), joined(d_ah, s.B))
    assert_only_written(d_per_unit, s.t, joined(d_own, s.B))
    assert_near(dh, d_before[0])
    assert_near(dc, joined(d_before[1:], s.B))


@by_dtype
@by_direction
def test_projected_pointwise_backward(direction, dtype):
    """Where all steps are ordinary: as without projection and without dy."""
    found = []
    for projected in (False, True):
        s = Step(cells.LSTM, dtype, direction)
        new_state, saved = s.expected()
        s.h[s.t + 1, :, s.h_columns], s.c[s.t + 1, :, s.c_columns] = new_state
        dh, dc, dax = normal(dtype, s.B, s.H, seed=8), normal(dtype, s.B, s.H, seed=9), nans(dtype, s.T, s.B, s.width)
        dax[s.t] = np.concatenate(saved, axis=1)
        dy = None if projected else np.zeros((s.T, s.B, 2 * s.H), dtype)
        given = dh, dc, dax, dax, None, dy, s.h, s.c, s.per_unit, None, None, direction
        pointwise.bind_backward(cells.LSTM, *given)(s.t, s.before)
        found.append((dh, dc, dax))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


# ------------------------------------------------------------------------------------------------- further products
by_masked = pytest.mark.parametrize("masked", (False, True), ids=("ordinary", "masked"))
by_stage = pytest.mark.parametrize("cell, stage", [
    pytest.param(cell, stage, id=f"{name}-{stage}")
    for name, cell in ALL_CELLS.items() for stage in range(len(cell.stages))
])  # fmt: skip


@by_dtype
@by_direction
@by_masked
@by_stage
def test_stage_forward(cell, stage, masked, direction, dtype):
    """The stage's columns of v; of skipped steps they are left open. Its own and later gates' products come later."""
    s = (MaskedStep if masked else Step)(cell, dtype, direction)
    expected = cell.stages[stage].forward(*s.forward_arguments(stage))
    if masked:
        s.spoil()
    step_mask, rows = (s.step_mask, ~s.skip) if masked else (None, slice(None))
    s.ah[:, cell.first_of_stage(stage) * s.H :] = s.b_r[cell.first_of_stage(stage) * s.H :] = np.nan
    columns = slice(stage * s.H, (stage + 1) * s.H)
    for save in (True, False):
        v, c = nans(dtype, s.T if save else 1, s.B, len(cell.stages) * s.H), s.c
        if not save:
            c = nans(dtype, 2, *s.c.shape[1:])
            c[s.before % 2] = s.c[s.before]
        given = v, s.h, c, s.ax, s.ah, s.b_w, s.b_r, s.per_unit, step_mask, direction, save
        stages.bind_forward(cell, stage, *given)(s.t, s.before)
        slot = s.t if save else 0
        assert_near(v[slot, rows, columns], expected[rows])
        v[slot, :, columns] = np.nan
        assert np.isnan(v).all()


@by_dtype
@by_direction
@by_masked
@by_stage
def test_stage_backward(cell, stage, masked, direction, dtype):
    """The stage's columns of dah, from the gradients of later stages' vectors; 0 of skipped steps."""
    s, S = (MaskedStep if masked else Step)(cell, dtype, direction), len(cell.stages)
    H, N = s.H, cell.num_private
    state = wide_state(s.started if masked else s.state_before)
    new_state, saved = s.expected()
    s.keep(new_state)
    dy, dh, dc = (normal(dtype, *shape, seed=7) for shape in ((s.T, s.B, 2 * H), (s.B, H), (s.B, N * H)))
    d_v = normal(dtype, s.B, S * H, seed=11)
    cut_off = s.cut_off[:, None] if masked else np.zeros((s.B, 1), bool)
    d_h, d_private = np.where(cut_off, 0, dh), split(np.where(cut_off, 0, dc).astype(np.float64), N)
    d_state = (dy[s.t, :, s.h_columns].astype(np.float64) + d_h, *d_private)
    given = saved, state, new_state, d_state, split(d_v.astype(np.float64), S)
    expected = cell.stages[stage].backward(*s.backward_arguments(*given, stage))

    d_v[:, : (stage + 1) * H] = np.nan  # its own and earlier ones' come later
    dax = nans(dtype, s.T, s.B, s.width)
    dax[s.t, :, : cell.num_saved * H] = np.concatenate(saved, axis=1)
    if masked:
        s.spoil()
        expected = where_rows(s.skip, [np.zeros((s.B, H))] * len(expected), expected)
        dy[s.t, s.skip] = dax[s.t, s.skip] = dh[s.cut_off] = dc[s.cut_off] = np.nan
    dah, kept = nans(dtype, s.T, s.B, cell.num_ah * H), [array.copy() for array in (dax, dh, dc, d_v)]
    step_mask = s.step_mask if masked else None
    given = dah, dax, dh, dc, dy, s.h, s.c, s.per_unit, d_v, step_mask, direction
    stages.bind_backward(cell, stage, *given)(s.t, s.before)
    assert_only_written(dah, (s.t, slice(None), cell.rows_of_stage(stage, H)), joined(expected, s.B))
    for array, before in zip((dax, dh, dc, d_v), kept, strict=True):
        np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize("blocks, threads", [(1, 1), ((1, 5), 16)])
@by_stage
def test_stage_kernels_are_right_for_any_grid(cell, stage, blocks, threads):
    """One thread that does everything, and more threads than units."""
    config, found = LaunchConfig(blocks, threads), []
    for bound in (False, True):
        s, S = Step(cell, "float64", 0), len(cell.stages)
        s.keep(s.expected()[0])
        v, dah = nans("float64", s.T, s.B, S * s.H), nans("float64", s.T, s.B, cell.num_ah * s.H)
        forward = v, s.h, s.c, s.ax, s.ah, s.b_w, s.b_r, s.per_unit
        sizes = (s.B, s.H), (s.B, cell.num_private * s.H), (s.T, s.B, 2 * s.H), (s.B, S * s.H)
        dh, dc, dy, d_v = (normal("float64", *size) for size in sizes)
        backward = dah, s.ax, dh, dc, dy, s.h, s.c, s.per_unit, d_v
        if bound:
            stages.bind_forward(cell, stage, *forward, None, 0, True)(s.t, s.before)
            stages.bind_backward(cell, stage, *backward, None, 0)(s.t, s.before)
        else:
            step_mask = pointwise.no_step_mask(s.ah, None)
            makers = stages.make_stage_forward, stages.make_stage_backward
            kernels = [make(cell, stage, "float64") for make in makers]
            sums, d_sums, noise = s.h, dh, s.b_w  # none
            kernels[0].bind(config, *forward, sums, noise, step_mask, np.int32(0), np.int32(1))(s.t, s.before)
            kernels[1].bind(config, *backward, sums, d_sums, noise, step_mask, np.int32(0))(s.t, s.before)
        found.append((v, dah))
    for one, other in zip(*found, strict=True):
        assert np.isfinite(one).any()
        np.testing.assert_array_equal(one, other)


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
    s, P = MaskedStep(cells.LSTM, "float32", direction), 7
    columns = slice(direction * P, (direction + 1) * P)
    dh, dy = integers(compute_dtype(dtype), s.B, P, seed=1), integers(dtype, s.T, s.B, 2 * P, seed=2)
    skip, cut_off = (rows[:, None] & masked for rows in (s.skip, s.cut_off))
    d_h = np.where(cut_off, 0, dh)
    expected, expected_dh = np.where(skip, 0, dy[s.t, :, columns] + d_h), np.where(skip, d_h, 0)
    dh[cut_off[:, 0]] = dy[s.t, skip[:, 0]] = np.nan
    dht = np.full((s.T, s.B, P), np.nan, dy.dtype)
    projection.bind_join(dht, dh, dy[:, :, columns], s.step_mask if masked else None)(s.t, s.before)
    np.testing.assert_array_equal(dht[s.t].astype(np.float64), expected)
    assert np.isnan(dht[[0, 2]].astype(np.float64)).all()
    np.testing.assert_array_equal(dh, expected_dh)


# ------------------------------------------------------------------------------------------------------------ steps
@by_direction
@pytest.mark.parametrize("cell, kind", list(kinds_of_steps(ALL_CELLS, projection=3)))
def test_steps_agree_with_the_cpu_engine(cell, kind, direction):
    """All steps forward, then backward: sums of at most 20 numbers of size 1, over four steps."""
    found = []
    for name in ("sim", "cpu"):
        engine = engines.get(name)
        forward = forward_buffers(cell, direction, T=4, H=5, dtype="float64", spoiled="masked" in kind, **kind)
        engine.forward_steps(forward)(0, 4)
        kept = [array.copy() for array in results(forward)]
        backward = backward_buffers(forward, spoiled="masked" in kind)
        engine.backward_steps(backward)(0, 4)
        found.append(kept + results(backward))
    for one, other in zip(*found, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-13)
