"""R of blocks on the diagonal and DropConnect with the real kernels, in the simulator: the kernel alone against NumPy,
threads in any order. What layers compute with them is in test_conformance.py."""

import numpy as np
import pytest
from persistent_setup import few_threads

import numbarnn
from cases import Case
from comparing import check
from numbarnn.cuda import simulator
from numbarnn.cuda.launch import LaunchConfig
from numbarnn.kernels.arrays import copies
from problems import dense


@pytest.mark.parametrize("dtype", ("float32", "float64", "float16"))
@pytest.mark.parametrize("gates, heads, size, width", [(1, 1, 1, 1), (4, 2, 3, 3), (3, 5, 1, 2), (2, 3, 4, 1)])
def test_spread_blocks(gates, heads, size, width, dtype):
    x = np.random.default_rng(0).standard_normal((gates * heads * size, width)).astype(dtype)
    out = np.full((len(x), heads * width), np.nan, dtype)
    copies.spread_blocks(out, x, gates)
    np.testing.assert_array_equal(out, dense(x, gates, heads), strict=True)


@pytest.mark.parametrize("grid, threads", [((1, 1), 1), ((3, 2), 2), ((1, 13), 5)], ids=str)
def test_spread_blocks_is_right_for_any_grid(grid, threads):
    x = np.random.default_rng(0).standard_normal((12, 2))
    out = np.full((12, 6), np.nan)
    copies.make_spread_blocks().bind(LaunchConfig(grid, threads), out, x)(2)
    np.testing.assert_array_equal(out, dense(x, 2, 3))


@pytest.mark.parametrize("seed", range(2))
def test_every_order_of_the_threads_gives_the_same(monkeypatch, seed):
    few_threads(monkeypatch)
    with simulator.schedule(seed):
        check(Case("rnn_tanh", T=2, B=2, hidden=(4, 2), heads=2, drop=0.4), "sim", "persistent")


@numbarnn.cell
def normed_lstm(x, h, c, p):
    """Sums over units, blocks, DropConnect and a projection at once."""
    R = numbarnn.heads(numbarnn.drop_connect(p.R, 0.3), 2)
    i, f, g = numbarnn.layer_norm(p.W.i @ x + R.i @ h, p.W.f @ x + R.f @ h, p.W.g @ x + R.g @ h)
    c_new = numbarnn.sigmoid(f) * c + numbarnn.sigmoid(i) * numbarnn.tanh(g)
    return p.P.h @ numbarnn.tanh(numbarnn.layer_norm(c_new)), c_new


@pytest.mark.parametrize("P", (2, 6))
def test_gradients_of_a_traced_cell_with_all_of_it(P):
    check = numbarnn.gradcheck(normed_lstm, 2, 4, steps=2, device="sim", proj_size=P)
    assert "weight_hr_l0" in check.errors
