"""Problems for tests of the float64 reference: random arrays for every option, and comparisons of its results."""

import numpy as np

import kinks
import problems
from cases import Case
from numbarnn import reference

GATES = {"lstm": 4, "gru": 3, "gru_reset_before": 3, "rnn_tanh": 1, "rnn_relu": 1}
CELLS = list(GATES)
# For the ReLU: a seed with which no unit comes near its kink and no gradient is all zero (both are asserted).
SEEDS = {"rnn_relu": 9}


class Problem:
    """A cell with random parameters, input, states, masks and output gradients, all float64.

    Options as in `reference.forward`, with skip, proj and bias (as `Case` has it) for what parameters there are. Any of
    them can be changed afterwards: they are what `forward` passes on.
    """

    def __init__(
        self, cell, T=3, B=2, I=3, H=(4, 3), D=1, bias="double", masks=False, skip=False, proj=0,  # noqa: E741
        **options,
    ):  # fmt: skip
        input_mode, dropout = "skip" if skip else "linear", 0.4 if masks else 0.0
        case = Case(cell, T, B, I, H, D, bias, input_mode, proj, dropout=dropout, dtype="float64")
        drawn = problems.Problem(case, SEEDS.get(cell, 0))
        self.cell, self.H, self.options = cell, H, options
        self.parameters, self.x, self.masks = drawn.parameters, drawn.x, drawn.masks if masks else None
        # the loss is linear in the outputs: sum(dy * y) + sum(dhy * hy) + sum(dcy * cy)
        self.dy, (self.h0, *c0), (self.dhy, *dcy) = drawn.dy, drawn.states, drawn.d_states
        self.c0, self.dcy = (c0[0], dcy[0]) if case.has_c else (None, None)

    def forward(self):
        arguments = (self.cell, self.x, self.parameters, self.h0, self.c0)
        return reference.forward(*arguments, masks=self.masks, **self.options)

    def backward(self, result=None):
        return reference.backward(result or self.forward(), self.dy, self.dhy, self.dcy)

    def loss(self):
        result = self.forward()
        terms = [(self.dy, result.y), *zip(self.dhy, result.hy, strict=True)]
        terms += zip(self.dcy, result.cy, strict=True) if self.cell == "lstm" else []
        return sum(np.sum(weight * output) for weight, output in terms)

    def padding(self):
        """(T, B) bools: whether a step is padding."""
        T, B, _ = self.x.shape
        lengths = self.options.get("lengths")
        return np.arange(T)[:, None] >= (np.full(B, T) if lengths is None else np.asarray(lengths))

    def inputs(self):
        """Every array that has a gradient, by name; the arrays themselves, not copies."""
        arrays = {"x": self.x, **self.parameters}
        for layer in range(len(self.H)):
            arrays[f"h0[{layer}]"] = self.h0[layer]
            if self.cell == "lstm":
                arrays[f"c0[{layer}]"] = self.c0[layer]
        return arrays


def gradients_by_name(gradients):
    """The gradients under the names of `Problem.inputs`."""
    named = {"x": gradients.dx, **gradients.params}
    named |= {f"h0[{layer}]": dh for layer, dh in enumerate(gradients.dhx)}
    named |= {f"c0[{layer}]": dc for layer, dc in enumerate(gradients.dcx or [])}
    return named


def central_differences(loss, array, step):
    """d loss / d array, one element at a time; array is changed in place and put back."""
    gradient = np.full(array.shape, np.nan)
    for index in np.ndindex(array.shape):
        value = array[index]
        array[index] = value + step
        above = loss()
        array[index] = value - step
        below = loss()
        array[index] = value
        gradient[index] = (above - below) / (2 * step)
    return gradient


def central_difference_along(loss, array, change):
    """What the loss gains from array - change to array + change; array is changed in place and put back."""
    before = array.copy()
    array += change
    above = loss()
    array[...] = before - change
    below = loss()
    array[...] = before
    return above - below


def assert_same(actual, expected, message=""):
    """The same sums in float64; memory alignment or another order may change their rounding, nothing else."""
    assert actual.dtype == expected.dtype == np.float64, message
    assert actual.shape == expected.shape, message
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13, err_msg=message)


def assert_same_gradients(actual, expected):
    actual, expected = gradients_by_name(actual), gradients_by_name(expected)
    assert actual.keys() == expected.keys()
    for name in expected:
        assert_same(actual[name], expected[name], name)


# Central differences of a step s err by the truncation s² f'''/6 and the rounding 1e-16 |f| / s. Where f
# and its derivatives are of order 1 to 10, both are about 1e-10 at s = 1e-5; the largest error seen is 3e-9.
STEP = 1e-5
FINITE_DIFFERENCE_LIMIT = 1e-6


def assert_gradients_are_differences(problem):
    """Every gradient against central differences of the loss along DIRECTIONS of each array, in which all elements go
    up or down at once: one that is wrong shows in every one of them."""
    result = problem.forward()
    assert_away_from_kinks(problem, result)
    gradients, inputs, rng = gradients_by_name(problem.backward(result)), problem.inputs(), np.random.default_rng(0)
    assert gradients.keys() == inputs.keys()
    for name, array in inputs.items():
        scale = np.max(np.abs(gradients[name]))
        assert scale > 1e-3, "a gradient this small would test nothing"
        assert gradients[name].shape == array.shape
        for _ in range(DIRECTIONS):
            direction = rng.choice([-1.0, 1.0], array.shape)
            numeric = central_difference_along(problem.loss, array, STEP * direction) / (2 * STEP)
            assert abs(np.sum(gradients[name] * direction) - numeric) < FINITE_DIFFERENCE_LIMIT * scale, name


DIRECTIONS = 4  # of two elements whose errors are opposite, one in 16 is not seen


def assert_away_from_kinks(problem, result):
    """No ReLU and no clipped cell state may change side within a step of a difference; both sides must occur."""
    sides = kinks.sides(problem.cell, problem.options.get("cell_clip"), result)
    if sides is None:
        return
    assert np.min(np.abs(sides)) > 100 * STEP
    assert np.any(sides > 0) and np.any(sides < 0)
    if problem.cell == "lstm":  # at either bound
        c = np.concatenate([kinks.saved(result, name) for name in ("c", "c_prev")])[sides < 0]
        assert np.any(c < 0) and np.any(c > 0)
