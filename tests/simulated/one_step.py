"""Random arrays for one kernel, and for one pointwise step of a layer, with what it should give."""

import numpy as np

from numbarnn.common.philox import noise_words
from numbarnn.compile import units
from numbarnn.compile.specialise import backward_function, forward_function


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
        T, B, H, G, A, N = self.T, self.B, self.H, cell.num_gates, cell.num_ah, cell.num_private
        self.t = 1
        self.before = self.t if direction == 0 else self.t + 2
        self.h_columns = slice(direction * H, (direction + 1) * H)
        self.c_columns = slice(direction * N * H, (direction + 1) * N * H)
        self.h, self.c = nans(dtype, T + 2, B, 2 * H), nans(dtype, T + 2, B, 2 * N * H)
        self.h[self.before, :, self.h_columns] = normal(dtype, B, H, seed=1)
        self.c[self.before, :, self.c_columns] = normal(dtype, B, N * H, seed=2)
        self.width = max(cell.num_saved, G) * H
        self.ax = normal(dtype, T, B, self.width, seed=3)
        self.ah = normal(dtype, B, A * H, seed=4)
        self.b_w, self.b_r = normal(dtype, G * H, seed=5), normal(dtype, A * H, seed=6)
        self.per_unit = normal(dtype, cell.num_per_unit * H, seed=10)
        self.words, self.draws = noise_words(2**35 + 5, 4, 9)[3], True

    @property
    def state_before(self):
        """The state's arrays (B, H)."""
        h, c = self.h[self.before, :, self.h_columns], self.c[self.before, :, self.c_columns]
        return (h, *split(c, self.cell.num_private))

    def given(self):
        """(ax, ah, state, per_unit) of the step, biases added, in float64."""
        G, A, H = self.cell.num_gates, self.cell.num_ah, self.H
        ax = split(self.ax[self.t, :, : G * H].astype(np.float64) + self.b_w, G)
        ah = split(self.ah.astype(np.float64) + self.b_r, A)
        per_unit = split(self.per_unit.astype(np.float64), self.cell.num_per_unit)
        return ax, ah, tuple(part.astype(np.float64) for part in self.state_before), per_unit

    @property
    def noise(self):
        """The random numbers, arrays (B, H); their means unless `draws`."""
        draw = units.noise_loader(self.cell.noise, "python", "float64")
        units_of_all, t = range(self.B * self.H), np.uint64(self.t)
        drawn = [draw(self.words, np.uint64(position), t) for position in units_of_all]
        if not self.draws:
            drawn = [units.mean_noise(self.cell.noise, "python", "float64")()] * len(units_of_all)
        return tuple(np.reshape(values, (self.B, self.H)) for values in zip(*drawn, strict=True))

    def wide(self, terms):
        """Arrays (B, H) of a tuple's values, some of which may be the same for all units."""
        return [np.broadcast_to(value, (self.B, self.H)) for value in terms]

    def totals(self, terms):
        """Their sums over units, (B, 1) each."""
        return [value.sum(axis=1, keepdims=True) for value in self.wide(terms)]

    def forward_arguments(self, stage=None):
        """(ax, ah, state, per_unit, sums, noise) as a stage (its number) gets them, or the cell's own forward."""
        given, sums, stages = self.given(), [], self.cell.stages
        count = (float(self.H),) if self.cell.num_sums else ()
        for one in stages[: len(stages) if stage is None else stage]:
            if one.sums:
                sums += self.totals(one.forward(*given, (*count, *sums), self.noise))
        return *given, (*count, *sums), self.noise

    def backward_arguments(self, saved, state, new_state, d_state, d_v, stage=-1):
        """The arguments of a stage's backward (its number), or of the cell's own."""
        sums, noise, d_sums = *self.forward_arguments()[4:], [None] * self.cell.num_sums
        per_unit = split(self.per_unit.astype(np.float64), self.cell.num_per_unit)
        for number in reversed(range(stage + 1, len(self.cell.stages))):
            first, one = self.cell.first_sum(number), self.cell.stages[number]
            if one.sums:
                terms = one.backward(saved, state, new_state, d_state, d_v, per_unit, sums, tuple(d_sums), noise)
                d_sums[first : first + len(one.sums)] = self.totals(terms)
        return saved, state, new_state, d_state, d_v, per_unit, sums, tuple(d_sums), noise

    def expected(self):
        """(new state, saved) by the cell's equations on whole arrays, in float64."""
        return forward_function(self.cell, "float64", "python")(*self.forward_arguments())

    def expected_gradients(self, saved, state, new_state, d_state, d_v):
        """(d_ax, d_ah, d_state_before, d_per_unit), each a list of arrays (B, H), likewise."""
        arguments = self.backward_arguments(saved, state, new_state, d_state, d_v)
        return [self.wide(part) for part in backward_function(self.cell, "float64", "python")(*arguments)]

    def keep(self, new_state):
        """Put a new state where the step's is."""
        self.h[self.t + 1, :, self.h_columns] = new_state[0]
        if self.cell.num_private:
            self.c[self.t + 1, :, self.c_columns] = np.concatenate(new_state[1:], axis=1)


def joined(parts, B):
    """Arrays (B, H) side by side; (B, 0) if there are none."""
    return np.concatenate(parts, axis=1) if len(parts) else np.zeros((B, 0))


def assert_near(value, expected):
    """A cell's arithmetic in the dtype: up to 8 operations on numbers below 8, some eps each."""
    np.testing.assert_allclose(value, expected, rtol=0, atol=64 * np.finfo(value.dtype).eps)


def assert_only_written(array, index, value):
    """array[index] is near value, and what is not there is NaN."""
    assert_near(array[index], value)
    rest = array.copy()
    rest[index] = np.nan
    assert np.isnan(rest).all()
