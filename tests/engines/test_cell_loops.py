"""The library's equations: those of the built-in cells against torch.nn, and what papers say of others."""

import pytest

torch = pytest.importorskip("torch")

from cell_loops import Loop  # noqa: E402
from equations import loop_of  # noqa: E402
from numbarnn import cell, cells  # noqa: E402

T, B, I, H = 6, 3, 4, 5  # noqa: E741 - the legend's letters


def numbers(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def make(name, directions=1):
    """(loop, one dict of parameters per direction, x, states), the states positive."""
    loop = loop_of(name)
    generator = torch.Generator().manual_seed(1)
    parameters = [
        {name: torch.randn(shape, dtype=torch.float64, generator=generator) / 2 for name, shape in shapes.items()}
        for shapes in [loop.shapes(I, H)] * directions
    ]
    return (
        loop,
        parameters,
        numbers(T, B, I),
        [numbers(directions, B, H).abs() + k for k in range(len(loop.cell.states))],
    )


def pytorchs(kind, gates, parameters, **options):
    """A torch.nn module with a loop's parameters; b.q is the recurrent bias of n."""
    module = getattr(torch.nn, kind)(I, H, bidirectional=len(parameters) == 2, dtype=torch.float64, **options)
    for suffix, p in zip(("", "_reverse"), parameters, strict=False):
        last = p.get("b.q", torch.zeros(H, dtype=torch.float64))
        values = {
            "weight_ih": torch.cat([p[f"W.{gate}"] for gate in gates]),
            "weight_hh": torch.cat([p[f"R.{gate}"] for gate in gates]),
            "bias_ih": torch.cat([p[f"b.{gate}"] for gate in gates]),
            "bias_hh": torch.cat([*[torch.zeros_like(last)] * (len(gates) - 1), last]),
        }
        for parameter, value in values.items():
            getattr(module, f"{parameter}_l0{suffix}").data[...] = value
    return module


@pytest.mark.parametrize("directions", (1, 2))
@pytest.mark.parametrize(
    "name, kind, gates, options",
    [
        ("library lstm", "LSTM", "ifgo", {}),
        ("library gru", "GRU", "rzn", {}),
        ("library rnn_tanh", "RNN", "h", {}),
        ("library rnn_relu", "RNN", "h", {"nonlinearity": "relu"}),
    ],
)
def test_built_in_cells_are_pytorchs(name, kind, gates, options, directions):
    loop, parameters, x, states = make(name, directions)
    expected, final = pytorchs(kind, gates, parameters, **options)(x, tuple(states) if kind == "LSTM" else states[0])
    y, found = loop.run(parameters, x, states)
    torch.testing.assert_close(y, expected)
    for part, other in zip(found, final if kind == "LSTM" else (final,), strict=True):
        torch.testing.assert_close(part, other)


def test_slstm_without_its_stabiliser():
    """m changes the scale of c and n alone: h is that of plain exponential gates."""
    loop, (p,), x, (h, c, n, m) = make("slstm")
    y, _ = loop.run([p], x, [h, c, n, m])
    h, c, n = h[0], c[0] * torch.exp(m[0]), n[0] * torch.exp(m[0])
    for t in range(T):
        z, i, f, o = (x[t] @ p[f"W.{gate}"].T + h @ p[f"R.{gate}"].T + p[f"b.{gate}"] for gate in "zifo")
        c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
        n = torch.sigmoid(f) * n + torch.exp(i)
        h = torch.sigmoid(o) * c / n
        torch.testing.assert_close(y[t], h)


def test_a_highway_of_depth_one_is_a_coupled_gated_step():
    """It is the update-gate RNN, whose gate is 1 - t."""
    loop, (p,), x, (h,) = make("recurrent_highway 1")
    y, _ = loop.run([p], x, [h])
    other = {f"W.{g}": p[f"W.{t}"] for g, t in (("c", "h"), ("g", "t"))}
    other |= {f"{kind}.{g}": p[f"{kind}.{t}1"] for kind in "Rb" for g, t in (("c", "h"), ("g", "t"))}
    other |= {f"{kind}.g": -other[f"{kind}.g"] for kind in "WRb"}  # 1 - σ(a) = σ(-a)
    expected, _ = loop_of("ugrnn").run([other], x, [h])
    torch.testing.assert_close(y, expected)


def test_coupled_lstm_is_an_lstm_whose_forget_gate_is_opposed():
    loop, (p,), x, states = make("coupled_lstm")
    y, _ = loop.run([p], x, states)
    expected, _ = loop_of("library lstm").run([p | {f"{kind}.f": -p[f"{kind}.i"] for kind in "WRb"}], x, states)
    torch.testing.assert_close(y, expected)


def test_janet_lets_in_more_than_it_forgets():
    """With gates at s = 0: half of the state stays, 1 - σ(-beta) of the candidate, here 1, comes in."""
    loop, (p,), x, (h,) = make("janet")
    ones = {name: torch.zeros_like(value) for name, value in p.items()} | {"b.c": torch.full((H,), 50.0).double()}
    y, _ = loop.run([ones], x[:1], [torch.ones_like(h)])
    expected = 0.5 + (1 - torch.sigmoid(torch.tensor(-1.0).double()))
    torch.testing.assert_close(y, expected.expand_as(y))


def test_min_lstm_is_min_gru_with_the_normalised_gate():
    loop, (p,), x, (h,) = make("min_lstm")
    y, _ = loop.run([p], x, [h])
    f, i = (torch.sigmoid(x @ p[f"W.{gate}"].T + p[f"b.{gate}"]) for gate in "fi")
    before = torch.cat([h, y[:-1]])
    torch.testing.assert_close(y, before + i / (f + i) * (x @ p["W.h"].T + p["b.h"] - before))


def test_lem_with_whole_time_steps_forgets():
    """Gates at 1 (dt = 1): y and z are their candidates."""
    _, (p,), x, (y, z) = make("lem")
    p = p | {f"b.{gate}": torch.full((H,), 50.0).double() for gate in ("slow", "fast")}
    new_y, new_z = Loop(cell(cells.library.lem, dt=1.0)).step(p, x[0], y[0], z[0])
    torch.testing.assert_close(new_z, torch.tanh(x[0] @ p["W.z"].T + y[0] @ p["R.z"].T + p["b.z"]))
    torch.testing.assert_close(new_y, torch.tanh(x[0] @ p["W.y"].T + new_z @ p["R.y"].T + p["b.y"]))


def test_cornn_without_force_and_damping_swings():
    """y'' = -gamma y: energy stays within the integrator's error, and y comes back after a period."""
    _, (p,), x, _ = make("cornn")
    nothing = {name: torch.zeros_like(value) for name, value in p.items()}
    y, z = torch.ones(B, H).double(), torch.zeros(B, H).double()
    swinging = Loop(cell(cells.library.cornn, dt=0.01, gamma=1.0, epsilon=0.0))
    for _ in range(628):
        y, z = swinging.step(nothing, x[0], y, z)
    torch.testing.assert_close(y, torch.ones_like(y), atol=1e-2, rtol=0)
    torch.testing.assert_close(z, torch.zeros_like(z), atol=1e-2, rtol=0)
