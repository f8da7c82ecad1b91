"""Random arrays for one kernel, and for one pointwise step of a layer, with what it should give."""

import numpy as np


def normal(dtype, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def nans(dtype, *shape):
    return np.full(shape, np.nan, dtype)


def split(row, parts):
    """(B, parts * H) as `parts` arrays (B, H)."""
    return np.split(row, parts, axis=-1) if parts else []


class Step:
    """Random arrays of one step of a layer with two directions, as the kernels take them, and what they should hold."""

    T, B, H = 3, 3, 9  # two blocks of four threads cover the 9 units in two turns, two rows of blocks 3 sequences

    def __init__(self, cell, dtype, direction):
        self.cell, self.dtype, self.direction = cell, dtype, direction
        T, B, H, G, N = self.T, self.B, self.H, cell.num_gates, cell.num_private
        self.t = 1
        self.before = self.t if direction == 0 else self.t + 2
        self.h_columns = slice(direction * H, (direction + 1) * H)
        self.c_columns = slice(direction * N * H, (direction + 1) * N * H)
        self.h, self.c = nans(dtype, T + 2, B, 2 * H), nans(dtype, T + 2, B, 2 * N * H)
        self.h[self.before, :, self.h_columns] = normal(dtype, B, H, seed=1)
        self.c[self.before, :, self.c_columns] = normal(dtype, B, N * H, seed=2)
        self.width = max(cell.num_saved, G) * H
        self.ax = normal(dtype, T, B, self.width, seed=3)
        self.ah = normal(dtype, B, G * H, seed=4)
        self.b_w, self.b_r = normal(dtype, G * H, seed=5), normal(dtype, G * H, seed=6)

    @property
    def state_before(self):
        """The state's arrays (B, H)."""
        h, c = self.h[self.before, :, self.h_columns], self.c[self.before, :, self.c_columns]
        return (h, *split(c, self.cell.num_private))

    def expected(self):
        """(new state, saved) by the cell's equations on whole arrays, in float64."""
        G, H = self.cell.num_gates, self.H
        ax = split(self.ax[self.t, :, : G * H].astype(np.float64) + self.b_w, G)
        ah = split(self.ah.astype(np.float64) + self.b_r, G)
        return self.cell.forward(ax, ah, tuple(part.astype(np.float64) for part in self.state_before))


def assert_near(value, expected):
    """A cell's arithmetic in the dtype: up to 8 operations on numbers below 8, some eps each."""
    np.testing.assert_allclose(value, expected, rtol=0, atol=64 * np.finfo(value.dtype).eps)


def assert_only_written(array, index, value):
    """array[index] is near value, and what is not there is NaN."""
    assert_near(array[index], value)
    rest = array.copy()
    rest[index] = np.nan
    assert np.isnan(rest).all()
