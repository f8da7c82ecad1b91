"""Constants of each unit, and sums of all units up to each: against loops in NumPy, by every schedule that can."""

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.cells import library

T, B, I, H = 7, 3, 4, 6  # noqa: E741
PERIODS = np.array([1, 1, 2, 2, 4, 4])
RATES = 1 / np.geomspace(1, 20, H)


@nr.cell
def leaky(x, h, p):
    """Units with time constants, which are not learned. Of Jaeger 2002, and each of its own."""
    return (1 - RATES) * h + RATES * nr.tanh(p.W.a @ x + p.R.a @ h + p.b.a)


@nr.cell
def clockwork(x, h, p, t=nr.step):
    """Units that change every so many steps, each its own. Koutník et al. 2014, arXiv:1402.3511, with all of R."""
    return nr.where(t % PERIODS < 1, nr.tanh(p.W.a @ x + p.R.a @ h + p.b.a), h)


@nr.cell
def running(x, h, c, p):
    """Sums up to each unit of two values, and of x."""
    a = p.W.a @ x + p.R.a @ h
    c_new = 0.5 * c + nr.cumsum(nr.tanh(a)) / 4 + nr.cumsum(p.u * c) / 8
    return nr.tanh(c_new + RATES), c_new


def of_numpy(name, n, x):
    """y by a loop over time, and by the paper."""
    h = c = np.zeros((B, H))
    ys = []
    for t, x_t in enumerate(x):
        a = x_t @ n["W.a"].T + h @ n["R.a"].T
        if name == "leaky":
            h = (1 - RATES) * h + RATES * np.tanh(a + n["b.a"])
        elif name == "clockwork":
            h = np.where(t % PERIODS == 0, np.tanh(a + n["b.a"]), h)
        else:
            c = 0.5 * c + np.tanh(a).cumsum(axis=1) / 4 + (n["u"] * c).cumsum(axis=1) / 8
            h = np.tanh(c + RATES)
        ys.append(h)
    return np.stack(ys)


CELLS = {cell.name: cell for cell in (leaky, clockwork, running)}


@pytest.mark.parametrize("schedule", ("stepwise", "wavefront"))
@pytest.mark.parametrize("dtype", ("float64", "float32"))
@pytest.mark.parametrize("name", CELLS)
def test_agrees_with_numpy(name, dtype, schedule):
    layer = nr.RNN(CELLS[name], I, H, seed=0, device="cpu", dtype=dtype, schedule=schedule)
    x = np.random.default_rng(0).standard_normal((T, B, I)).astype(dtype)
    named = {key: np.asarray(value, np.float64) for key, value in layer.named.items()}
    expected = of_numpy(name, {key.removesuffix("_l0"): value for key, value in named.items()}, x.astype("float64"))
    np.testing.assert_allclose(layer(x)[0], expected, atol=1e-13 if dtype == "float64" else 2e-6)


@pytest.mark.parametrize("cell", [*CELLS.values(), library.on_lstm], ids=lambda cell: cell.name)
def test_gradients(cell):
    """By differences; constants have none, and are no parameters."""
    assert nr.gradcheck(cell, I, H, num_layers=2).ok
    assert not [name for name in cell.parameters.shapes() if "constant" in name or "cumsum" in name]


def test_constants_say_how_many_units_there_are():
    with pytest.raises(ValueError, match=r"an array of the equations has .* of any H.*, so its 6 and hidden size 5"):
        nr.RNN(leaky, I, 5, device="cpu")


def test_a_constant_is_not_a_bias():
    """Added to a product it stays what it is."""
    cell = nr.cell(lambda x, h, p: nr.tanh(p.W.a @ x + PERIODS + p.R.a @ h))
    assert cell.bias == "none" and cell.num_per_unit == 1
    twice = nr.cell(lambda x, h, p: nr.tanh(p.W.a @ x + RATES * h) * (2 - RATES.copy()))
    assert twice.num_per_unit == 2  # RATES, and 2 - RATES as NumPy computed it
