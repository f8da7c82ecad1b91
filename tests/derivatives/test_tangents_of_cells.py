"""jvp and hvp of every cell of the library, against calls, backward, and central differences of both, in float64."""

import numpy as np
import pytest

import numbarnn as nr
from directions import Line, by_autograd, error, positive
from numbarnn.cells import library

STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 3, 4
MADE = {"lstm_with": library.lstm_with, "recurrent_highway": library.recurrent_highway}  # functions that make cells
SIZES = {"delta_rule": 8, "lmu": 8}
WIDE_INPUT = ("highway_lstm", "intersection")  # x goes into h itself
OFTEN = (  # the others, with -m full, have no operation that these do not have
    "ind_rnn", "recurrent_highway", "cornn", "multiplicative_lstm", "slstm", "phased_lstm", "layer_norm_gru",
    "highway_lstm", "delta_rule", "lsnn",
)  # fmt: skip
STEEP = {"layer_norm_lstm": 1e-5, "layer_norm_gru": 1e-7}  # differences err more where few units have one deviation


def test_every_cell_is_here():
    assert set(library.__all__) >= {*MADE, *SIZES, *WIDE_INPUT, *STEEP, *OFTEN}


@pytest.mark.parametrize("name", [
    name if name in OFTEN else pytest.param(name, marks=pytest.mark.full) for name in library.__all__
])  # fmt: skip
def test_tangents_and_second_derivatives(name):
    cell, hidden = getattr(library, name), SIZES.get(name, HIDDEN)
    both = name not in WIDE_INPUT
    layer = nr.RNN(
        cell() if name in MADE else cell, INPUTS if both else hidden, hidden, 1 if both else 2, bidirectional=both,
        dtype="float64", device="cpu", seed=1,
    )  # fmt: skip
    resets = np.random.default_rng(2).random((STEPS, BATCH)) < 0.2
    line = Line(layer, STEPS, BATCH, adjust=positive, lengths=[4, 2, 3], resets=resets)
    errors = line.errors()
    limit = STEEP.get(name, 1e-8)
    if name == "lsnn":  # differences do not see through spikes
        errors = errors[::2]
    assert np.max(errors[::2]) < 1e-13 and np.max(errors) < limit, errors


def test_second_derivatives_of_a_surrogate():
    """As of a PyTorch loop whose spikes have a derivative, and that a derivative in turn."""
    torch = pytest.importorskip("torch")
    layer = nr.RNN(library.lsnn, INPUTS, HIDDEN, dtype="float64", device="cpu", seed=1)
    layer.weights[...] *= 4  # some units fire
    line = Line(layer, 6, BATCH)

    def loop(x, state, parameters):
        (z, v, a), y = (one[0] for one in state), []
        for x_t in x:
            v = 0.9 * v + x_t @ parameters["W.v"].T + z @ parameters["R.v"].T - (z * (0.6 + 0.7 * a)).detach()
            a = 0.97 * a + 0.03 * z
            excess = v - (0.6 + 0.7 * a)
            near = excess.clamp(-1, 1)
            told = 0.3 * (near - near * near.abs() / 2)  # whose derivative is the surrogate
            z = (excess > 0).double() + told - told.detach()
            y.append(z)
        return torch.stack(y), *(one[None] for one in (z, v, a))

    found = line.everything()
    assert 0.1 < found[0][0].mean() < 0.9
    for one, other in zip(found, by_autograd(line, loop, layer.named), strict=True):
        assert error(one, other) < 1e-13
