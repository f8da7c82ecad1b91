"""jvp and hvp of every cell of the library, against calls, backward, and central differences of both, in float64."""

import numpy as np
import pytest

import numbarnn as nr
from directions import Line, error, positive
from numbarnn.cells import library

STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 3, 4
MADE = {"lstm_with": library.lstm_with, "recurrent_highway": library.recurrent_highway}  # functions that make cells
SIZES = {"delta_rule": 8, "lmu": 8}
WIDE_INPUT = ("highway_lstm", "intersection")  # x goes into h itself
OFTEN = (  # the others, with -m full, have no operation that these do not have
    "gru", "ind_rnn", "recurrent_highway", "cornn", "peephole_lstm", "multiplicative_lstm", "slstm", "phased_lstm",
    "layer_norm_gru", "highway_lstm", "delta_rule", "tgru", "lsnn", "additive_network",
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
    assert max(errors[::2]) < 1e-13 and max(errors) < limit, errors


def test_second_derivatives_of_a_surrogate():
    """As of a PyTorch loop whose spikes have a derivative, and that a derivative in turn."""
    torch = pytest.importorskip("torch")
    layer = nr.RNN(library.lsnn, INPUTS, HIDDEN, dtype="float64", device="cpu", seed=1)
    layer.weights[...] *= 4  # some units fire
    line = Line(layer, 6, BATCH)
    parts = {name: torch.tensor(layer.named[name], requires_grad=True) for name in layer.named}
    x, *state = (torch.tensor(one, requires_grad=True) for one in (line.x, *line.state))
    z, v, a = (one[0] for one in state)
    y = []
    for x_t in x:
        v = 0.9 * v + x_t @ parts["W.v"].T + z @ parts["R.v"].T - (z * (0.6 + 0.7 * a)).detach()
        a = 0.97 * a + 0.03 * z
        excess = v - (0.6 + 0.7 * a)
        near = excess.clamp(-1, 1)
        told = 0.3 * (near - near * near.abs() / 2)  # whose derivative is the surrogate
        z = (excess > 0).double() + told - told.detach()
        y.append(z)
    finals = [torch.stack(y), *(one[None] for one in (z, v, a))]
    point = [x, *state, *parts.values()]
    moves = [line.dx, *line.dstate, *(line.dweights[one].reshape(part.shape) for one, part in places(layer))]
    along = list(map(torch.tensor, moves))
    first = [torch.tensor(one, requires_grad=True) for one in (line.dy, *line.of_state)]
    gradients = torch.autograd.grad(finals, point, first, create_graph=True)
    slope = sum((one * other).sum() for one, other in zip(gradients, along, strict=True))
    *tangents, _ = torch.autograd.grad(slope, [*first, x], retain_graph=True)
    second = torch.autograd.grad(slope, point, retain_graph=True)
    changes = torch.autograd.grad(finals, point, list(map(torch.tensor, (line.ddy, *line.dd_state))))
    second = [one + other for one, other in zip(second, changes, strict=True)]
    (y, final), found, tape = line.jvp()
    assert 0.1 < y.mean() < 0.9
    results = (y, *final), found, *line.hvp(tape)
    expected = [[one.detach().numpy() for one in part] for part in (finals, tangents, gradients, second)]
    for one, other in zip(results, expected, strict=True):
        assert error(one, other) < 1e-13


def places(layer):
    """(slice of the flat weights, parameter) by the equations' names."""
    for part in layer.named.values():
        first = (part.__array_interface__["data"][0] - layer.weights.__array_interface__["data"][0]) // 8
        yield slice(first, first + part.size), part
