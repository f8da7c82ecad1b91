"""Options of the library's cells: heads, and what training drops at random, against loops with the same masks."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import numbarnn
from cell_loops import LOOPS
from helpers import assert_close
from library_cases import CellCase, joined
from numbarnn.cells import library
from numbarnn.cells.tracing import cell

T, B, I, H = 5, 3, 4, 6  # noqa: E741 - the legend's letter
CASE = CellCase("layer_norm_lstm", T, B, I, (H,), dtype="float32")  # of the widest limit


# Steps of the loops with masks: of R by its gates (drop), and of the units, noise (B, N, H) in the order of drawing.
def dropped(p, drop):
    return p | {f"R.{gate}": p[f"R.{gate}"] * mask for gate, mask in drop.items()}


def keep(mask, new, old):
    return mask * new + (1 - mask) * old


def lstm(p, x, h, c, drop, noise):
    p = dropped(p, drop)
    of_g, of_c, of_h = noise.unbind(1)
    i, f, g, o = (x @ p[f"W.{n}"].T + h @ p[f"R.{n}"].T + p[f"b.{n}"] for n in "ifgo")
    c = keep(of_c, torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g) * of_g, c)
    return keep(of_h, torch.sigmoid(o) * torch.tanh(c), h), c


def gru(p, x, h, drop, noise):
    p = dropped(p, drop)
    of_n, of_h = noise.unbind(1)
    r, z = (torch.sigmoid(x @ p[f"W.{n}"].T + h @ p[f"R.{n}"].T + p[f"b.{n}"]) for n in "rz")
    n = torch.tanh(x @ p["W.n"].T + p["b.n"] + r * (h @ p["R.n"].T + p["b.q"]))
    return (keep(of_h, (1 - z) * n * of_n + z * h, h),)


def layer_norm_lstm(p, x, h, c, drop, noise):
    new, c = LOOPS["layer_norm_lstm"].step(dropped(p, drop), x, h, c)
    return keep(noise[:, 0], new, h), c


def layer_norm_gru(p, x, h, drop, noise):
    (new,) = LOOPS["layer_norm_gru"].step(dropped(p, drop), x, h)
    return (keep(noise[:, 0], new, h),)


# name -> (the step, the cell)
RANDOM = {
    "lstm": (lstm, cell(library.lstm, zoneout_h=0.3, zoneout_c=0.2, dropout_g=0.25, drop_R=0.4, name="lstm_at_random")),
    "gru": (gru, cell(library.gru, zoneout_h=0.4, dropout_n=0.3, drop_R=0.5, name="gru_at_random")),
    "layer_norm_lstm": (layer_norm_lstm, cell(library.layer_norm_lstm, zoneout_h=0.3, drop_R=0.2)),
    "layer_norm_gru": (layer_norm_gru, cell(library.layer_norm_gru, zoneout_h=0.3, drop_R=0.2)),
}


class Drawn:
    """A layer of one cell, a training call with random numbers, and what a loop makes of its masks."""

    def __init__(self, name, device, schedule="auto", seed=0):
        self.step, self.cell = RANDOM[name]
        self.loop, rng = LOOPS[name], np.random.default_rng(seed)
        self.parameters = {key: rng.uniform(-1, 1, s).astype("float32") for key, s in self.loop.shapes(I, H).items()}
        self.layer = numbarnn.RNN(self.cell, I, H, device=device, schedule=schedule, seed=3)
        self.layer.load_state_dict({f"{k}_l0": array for k, array in joined(self.cell, self.parameters).items()})
        count = len(self.loop.states)
        draw = lambda *shape: rng.standard_normal(shape).astype("float32")  # noqa: E731
        self.x, self.dy = draw(T, B, I), draw(T, B, H)
        self.states, self.d_states = ([draw(1, B, H) for _ in range(count)] for _ in range(2))

    def run(self):
        """(results by name; what the loop makes of the same masks)."""
        layer, names = self.layer, self.loop.states
        form = (lambda parts: parts[0]) if len(names) == 1 else tuple
        y, state, tape = layer.forward(self.x, form(self.states))
        drop, noise = layer.drop_connect_masks(tape), layer.noise(tape)[0][0]
        values = {"y": y} | dict(zip(names, state if len(names) > 1 else (state,), strict=True))
        gradients = layer.backward(tape, self.dy, form(self.d_states))
        d_states = gradients.state if len(names) > 1 else (gradients.state,)
        values |= {"dx": gradients.x} | {f"d{n}": d for n, d in zip(names, d_states, strict=True)}
        values |= {f"d{n}": d for n, d in gradients.params.items()}
        return values, self.expected(drop["weight_hh_l0"], noise)

    def expected(self, drop, noise):
        def tensor(array, grad=True):
            return torch.tensor(np.asarray(array, np.float64), requires_grad=grad)

        p, x = {n: tensor(a) for n, a in self.parameters.items()}, tensor(self.x)
        gates = [name.removeprefix("R.") for name in self.loop.matrices]
        own = joined(self.cell, {f"R.{gate}": np.full((H, H), k) for k, gate in enumerate(gates)})["weight_hh"]
        rows = {gate: own[:, 0] == k for k, gate in enumerate(gates)}  # of R, that are a gate's
        drop, noise = {gate: tensor(drop[which], False) for gate, which in rows.items()}, tensor(noise, False)
        start = [tensor(part) for part in self.states]
        state, ys = [part[0] for part in start], []
        for x_t, noise_t in zip(x, noise, strict=True):
            state = self.step(p, x_t, *state, drop, noise_t)
            ys.append(state[0])
        y = torch.stack(ys)
        loss = (y * tensor(self.dy, False)).sum()
        loss = loss + sum((s * tensor(d[0], False)).sum() for s, d in zip(state, self.d_states, strict=True))
        loss.backward()
        values = {"y": y} | {n: s[None] for n, s in zip(self.loop.states, state, strict=True)} | {"dx": x.grad}
        values |= {f"d{n}": s.grad for n, s in zip(self.loop.states, start, strict=True)}
        values = {n: v.detach().numpy() for n, v in values.items()}
        of_parameters = joined(self.cell, {n: tensor.grad.numpy() for n, tensor in p.items()})
        return values | {f"d{n}_l0": d for n, d in of_parameters.items()}


@pytest.mark.parametrize("name", RANDOM)
def test_training_with_random_numbers(name):
    drawn = Drawn(name, "cpu")
    for _ in range(2):  # two calls, which draw anew
        values, expected = drawn.run()
        assert set(values) == set(expected)
        assert_close(CASE, {name: values[name] for name in expected}, expected)


@pytest.mark.parametrize("name", RANDOM)
def test_inference_uses_means(name):
    drawn = Drawn(name, "cpu")
    states = drawn.states[0] if len(drawn.states) == 1 else tuple(drawn.states)
    y, _ = drawn.layer(drawn.x, states)
    means = np.array([noise.mean for noise in drawn.cell.noise])[None, None, :, None]
    expected = drawn.expected(np.ones((drawn.cell.num_ah * H, H)), np.broadcast_to(means, (T, B, means.size, H)))
    assert_close(CASE, {"y": y}, {"y": expected["y"]})


# ------------------------------------------------------------------------------------------------------------- heads
def block_diagonal(matrix, heads):
    """(H, H) of the blocks (H, H / heads)."""
    return torch.block_diag(*matrix.chunk(heads))


@pytest.mark.parametrize("heads", (2, 3, 6))
def test_slstm_with_heads(heads):
    made, loop = cell(library.slstm, heads=heads), LOOPS["slstm"]
    rng = np.random.default_rng(heads)
    shapes = loop.shapes(I, H) | dict.fromkeys(loop.matrices, (H, H // heads))
    parameters = {name: rng.uniform(-1, 1, shape) for name, shape in shapes.items()}
    layer = numbarnn.RNN(made, I, H, dtype="float64", device="cpu")
    layer.load_state_dict({f"{kind}_l0": array for kind, array in joined(made, parameters).items()})
    x, dy = rng.standard_normal((T, B, I)), rng.standard_normal((T, B, H))
    states = tuple(0.5 + rng.random((1, B, H)) for _ in range(4))
    y, _, tape = layer.forward(x, states)
    gradients = layer.backward(tape, dy)
    p = {name: torch.tensor(array, requires_grad=True) for name, array in parameters.items()}
    dense = {name: block_diagonal(value, heads) if name.startswith("R.") else value for name, value in p.items()}
    state, ys = [torch.tensor(part[0]) for part in states], []
    for x_t in torch.tensor(x):
        state = loop.step(dense, x_t, *state)
        ys.append(state[0])
    (torch.stack(ys) * torch.tensor(dy)).sum().backward()
    np.testing.assert_allclose(y, torch.stack(ys).detach().numpy(), rtol=1e-12, atol=1e-13)
    for kind, expected in joined(made, {name: value.grad.numpy() for name, value in p.items()}).items():
        np.testing.assert_allclose(gradients.params[f"{kind}_l0"], expected, rtol=1e-11, atol=1e-12)


def test_equations_with_heads_run_on_arrays():
    """`heads` of an array, and of a group of arrays."""
    rng = np.random.default_rng(0)
    matrix, vector = rng.standard_normal((6, 2)), rng.standard_normal(6)
    dense = numbarnn.heads(matrix, 3)
    assert np.count_nonzero(dense) == 12
    for head in range(3):
        own = slice(2 * head, 2 * head + 2)
        np.testing.assert_allclose((dense @ vector)[own], matrix[own] @ vector[own])

    class Group:
        a = matrix

    np.testing.assert_array_equal(numbarnn.heads(Group, 3).a, dense)
    with pytest.raises(ValueError, match=r"a matrix \(H, H / 2\) of 2 heads is expected, not \(6, 2\)"):
        numbarnn.heads(matrix, 2)
