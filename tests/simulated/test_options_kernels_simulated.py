"""The kernels of sequences of different lengths, of sequences that begin anew, of projection, of skip input and of
steps with two products, each alone, in the simulator, against a line of NumPy; all steps against the CPU engine's.

What a kernel must not read is NaN: x of skipped steps, states that count as zero, gradients that come from nowhere.
"""

import numpy as np
import pytest
from one_step import Step, assert_near, assert_only_written, nans, normal, split
from row_cases import (
    SHAPES,
    check_gather,
    check_select,
    check_spread,
    check_step_codes,
    check_sum_gates,
    integers,
    random_codes,
)
from step_buffers import backward_buffers, forward_buffers, kinds_of_steps, results

from numbarnn import cells, engines
from numbarnn.cells import lstm
from numbarnn.cells.order import RESET, SKIP
from numbarnn.cells.precision import DTYPES, compute_dtype
from numbarnn.kernels import inner, pointwise, projection, sequences
from numbarnn.kernels.launch import LaunchConfig

ALL_CELLS = cells.CELLS | {"lstm_clip": lstm.clipped(-0.3, 0.4)}
by_dtype = pytest.mark.parametrize("dtype", ("float32", "float64"))
by_direction = pytest.mark.parametrize("direction", (0, 1))
by_cell = pytest.mark.parametrize("cell", ALL_CELLS.values(), ids=ALL_CELLS)


# -------------------------------------------------------------------------------------------- rows, by code or number
ENGINE = engines.get("sim")
by_every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.mark.parametrize("with_resets", (False, True))
@pytest.mark.parametrize("directions, steps, batch", [(1, 1, 1), (2, 1, 2), (2, 2, 3), (1, 5, 7), (2, 7, 9)])
def test_step_codes(directions, steps, batch, with_resets):
    check_step_codes(ENGINE, directions, steps, batch, with_resets)


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
    config, x, codes = LaunchConfig(blocks, threads), normal("float32", 3, 4, 7), random_codes(3, 4)
    select, gather = sequences.make_select("float32")[0], sequences.make_gather("float32")[0]
    out, expected = nans("float32", *x.shape), nans("float32", *x.shape)
    select.bind(config, out, x, codes, np.float32(2))(SKIP)
    ENGINE.select(expected, x, codes, SKIP, 2.0)
    np.testing.assert_array_equal(out, expected)
    index = np.array([2, -1, 0, 2, 1])
    out, expected = nans("float32", 5, 7), nans("float32", 5, 7)
    gather.bind(config, out, x[0], index, np.float32(2))()
    ENGINE.gather(expected, x[0], index, 2.0)
    np.testing.assert_array_equal(out, expected)
    codes, expected = np.full((2, 2, 5, 4), 255, np.uint8)
    lengths, resets = np.int32([3, 0, 1, 2]), (random_codes(3, 4) == RESET).view(np.uint8)
    sequences.make_step_codes().bind(config, codes, lengths, resets)()
    ENGINE.step_codes(expected, lengths, resets)
    np.testing.assert_array_equal(codes, expected)


# ------------------------------------------------------------------------------------------------ masked pointwise
def where_rows(rows, values, others):
    """Tuples of arrays (B, N): the rows of one, else those of the other."""
    return tuple(np.where(rows[:, None], one, other) for one, other in zip(values, others, strict=True))


class MaskedStep(Step):
    """A step whose sequences have every pair of codes of the step and of the one after it."""

    B = 9

    def __init__(self, cell, dtype, direction):
        super().__init__(cell, dtype, direction)
        self.codes = np.full((self.T + 2, self.B), 99, np.uint8)
        every = np.uint8([0, RESET, SKIP])
        self.codes[self.t + 1], self.codes[self.after] = np.repeat(every, 3), np.tile(every, 3)
        code, after = self.codes[self.t + 1], self.codes[self.after]
        self.reset, self.skip, self.cut_off = code == RESET, code == SKIP, after == RESET
        self.started = where_rows(self.reset, [np.zeros_like(part) for part in self.state_before], self.state_before)

    @property
    def after(self):
        """The slot of the step after, in the order of the direction."""
        return self.t + 2 if self.direction == 0 else self.t

    def expected(self):
        """(new state, saved), where the state before counts as zero or is carried through."""
        carried = [part.astype(np.float64) for part in self.state_before]
        G, H = self.cell.num_gates, self.H
        ax = split(self.ax[self.t, :, : G * H].astype(np.float64) + self.b_w, G)
        ah = split(np.where(self.reset[:, None], 0, self.ah).astype(np.float64) + self.b_r, G)
        new_state, saved = self.cell.forward(ax, ah, tuple(part.astype(np.float64) for part in self.started))
        return where_rows(self.skip, carried, new_state), saved

    def spoil(self):
        """Make NaN what must not be read."""
        self.ah[self.reset | self.skip] = np.nan
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
    pointwise.bind_forward(cell, s.h, c, s.ax, s.ah, s.b_w, s.b_r, s.codes, direction, save)(s.t, s.before)
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
        for projected in (False, True) if cell.num_private else (False,):
            yield pytest.param(cell, projected, id=f"{name}-projected" if projected else name)


@by_dtype
@by_direction
@pytest.mark.parametrize("cell, projected", list(backward_cases()))
def test_masked_pointwise_backward(cell, projected, direction, dtype):
    """With projection dh is all of the gradient of the cell's output: dy and the step after are in it already."""
    s = MaskedStep(cell, dtype, direction)
    G, N, K, H = cell.num_gates, cell.num_private, cell.num_saved, s.H
    new_state, saved = s.expected()
    s.h[s.t + 1, :, s.h_columns] = new_state[0]
    if N:
        s.c[s.t + 1, :, s.c_columns] = np.concatenate(new_state[1:], axis=1)
    dy = normal(dtype, s.T, s.B, 2 * H, seed=7)
    dh, dc = normal(dtype, s.B, H, seed=8), normal(dtype, s.B, N * H, seed=9)
    cut_off = s.cut_off[:, None]
    d_h = dh.astype(np.float64) if projected else np.where(cut_off, 0, dh).astype(np.float64)
    d_private = split(np.where(cut_off, 0, dc).astype(np.float64), N)
    d_output = d_h if projected else d_h + dy[s.t, :, s.h_columns]
    d_ax, d_ah, d_before = cell.backward(saved, s.started, new_state, (d_output, *d_private))
    nothing = [np.zeros((s.B, H))] * G
    d_ax, d_ah = where_rows(s.skip, nothing, d_ax), where_rows(s.skip, nothing, d_ah)
    d_before = where_rows(s.skip, (d_h, *d_private), d_before)

    s.spoil()
    dy[s.t, s.skip] = dc[s.cut_off] = np.nan
    if not projected:
        dh[s.cut_off] = np.nan
    dax = nans(dtype, s.T, s.B, s.width)
    if K:
        dax[s.t, :, : K * H] = np.concatenate(saved, axis=1)
        dax[s.t, s.skip] = np.nan
    dah = dax if cell.same_gradient else nans(dtype, s.T, s.B, G * H)
    given = None if projected else dy
    pointwise.bind_backward(cell, dh, dc, dax, dah, given, s.h, s.c, s.codes, direction)(s.t, s.before)
    assert_near(dax[s.t, :, : G * H], np.concatenate(d_ax, axis=1))
    assert np.isnan(dax[[0, 2]]).all()
    if not cell.same_gradient:
        assert_only_written(dah, s.t, np.concatenate(d_ah, axis=1))
    assert_near(dh, d_before[0])
    if N:
        assert_near(dc, np.concatenate(d_before[1:], axis=1))


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
        pointwise.bind_backward(cells.LSTM, dh, dc, dax, dax, dy, s.h, s.c, None, direction)(s.t, s.before)
        found.append((dh, dc, dax))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


# --------------------------------------------------------------------------------------------- between two products
by_inner = pytest.mark.parametrize("cell", [cell for cell in cells.CELLS.values() if cell.inner], ids=lambda c: c.name)
by_masked = pytest.mark.parametrize("masked", (False, True), ids=("ordinary", "masked"))


def wide_state(parts):
    """A step's state in float64."""
    return tuple(part.astype(np.float64) for part in parts)


@by_dtype
@by_direction
@by_masked
@by_inner
def test_inner_forward(cell, masked, direction, dtype):
    """Of skipped steps v is left open."""
    s = (MaskedStep if masked else Step)(cell, dtype, direction)
    first, reset = cell.inner.gates, s.reset[:, None] if masked else False
    ax = split(s.ax[s.t, :, : first * s.H] + s.b_w[: first * s.H].astype(np.float64), first)
    ah = split(np.where(reset, 0, s.ah[:, : first * s.H]) + s.b_r[: first * s.H].astype(np.float64), first)
    expected = cell.inner.forward(ax, ah, wide_state(s.started if masked else s.state_before))
    if masked:
        s.spoil()
    codes, rows = (s.codes, ~s.skip) if masked else (None, slice(None))
    s.ah[:, first * s.H :] = s.b_r[first * s.H :] = np.nan  # those gates' product comes later
    for save in (True, False):
        v, c = nans(dtype, s.T if save else 1, s.B, s.H), s.c if save else nans(dtype, 2, *s.c.shape[1:])
        bound = inner.bind_forward(cell, v, s.h, c, s.ax, s.ah, s.b_w, s.b_r, codes, direction, save)
        bound(s.t, s.before)
        assert_near(v[s.t if save else 0][rows], expected[rows])
        assert np.isnan(np.delete(v, s.t if save else 0, axis=0)).all()


@by_dtype
@by_direction
@by_masked
@by_inner
def test_inner_backward(cell, masked, direction, dtype):
    """The first gates' gradients, and what reaches h through v; nothing where dv and the gates' gradients are 0."""
    s = (MaskedStep if masked else Step)(cell, dtype, direction)
    first, H = cell.inner.gates, s.H
    dax, dv, dh = nans(dtype, s.T, s.B, s.width), normal(dtype, s.B, H, seed=7), normal(dtype, s.B, H, seed=8)
    dax[s.t] = normal(dtype, s.B, s.width, seed=9)
    if masked:
        dv[s.skip] = dax[s.t, s.skip] = 0
    kept = [part.astype(np.float64) for part in split(dax[s.t, :, : first * H], first)]
    gates, d_h = cell.inner.backward(kept, dv.astype(np.float64), wide_state(s.started if masked else s.state_before))
    others, expected = dax[s.t, :, first * H :].copy(), dh + d_h
    if masked:
        s.spoil()
    inner.bind_backward(cell, dh, dax, dv, s.h, s.c, s.codes if masked else None, direction)(s.t, s.before)
    assert_near(dax[s.t, :, : first * H], np.concatenate(gates, axis=1))
    np.testing.assert_array_equal(dax[s.t, :, first * H :], others)
    assert np.isnan(dax[[0, 2]]).all()
    assert_near(dh, expected)
    if masked:
        assert (gates[0][s.skip] == 0).all() and (d_h[s.skip] == 0).all()


# ------------------------------------------------------------------------------------------------------ projection
@by_every_dtype
@by_direction
def test_carry(direction, dtype):
    """The rows of skipped steps of one direction become those before them; all else stays."""
    T, B, P, t = 3, 5, 7, 1
    before, columns = t + 2 * direction, slice(direction * P, (direction + 1) * P)
    h, codes = integers(dtype, T + 2, B, 2 * P), random_codes(T + 2, B, seed=2)
    expected = h.copy()
    expected[t + 1, codes[t + 1] == SKIP, columns] = h[before, codes[t + 1] == SKIP, columns]
    projection.bind_carry(h[:, :, columns], codes)(t, before)
    assert (codes[t + 1] == SKIP).any() and (codes[t + 1] != SKIP).any()
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
    projection.bind_join(dht, dh, dy[:, :, columns], s.codes if masked else None)(s.t, s.before)
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
