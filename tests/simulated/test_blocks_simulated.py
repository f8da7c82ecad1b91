"""R of blocks on the diagonal and DropConnect with the real kernels, in the simulator, by every schedule; the kernel
alone against NumPy."""

from dataclasses import replace

import numpy as np
import pytest
from persistent_setup import few_threads

from helpers import assert_close
from numbarnn.cuda import simulator
from numbarnn.cuda.launch import LaunchConfig
from numbarnn.kernels.arrays import blocks
from recurrent_weights_cases import WeightCase, check_weights, dense, make_problem, train

LENGTHS = dict(T=4, B=3, lengths=(3, 0, 4))


@pytest.mark.parametrize("dtype", ("float32", "float64", "float16"))
@pytest.mark.parametrize("gates, heads, size, width", [(1, 1, 1, 1), (4, 2, 3, 3), (3, 5, 1, 2), (2, 3, 4, 1)])
def test_spread_blocks(gates, heads, size, width, dtype):
    x = np.random.default_rng(0).standard_normal((gates * heads * size, width)).astype(dtype)
    out = np.full((len(x), heads * width), np.nan, dtype)
    blocks.spread_blocks(out, x, gates)
    np.testing.assert_array_equal(out, dense(x, gates, heads), strict=True)


@pytest.mark.parametrize("grid, threads", [((1, 1), 1), ((3, 2), 2), ((1, 13), 5)], ids=str)
def test_spread_blocks_is_right_for_any_grid(grid, threads):
    x = np.random.default_rng(0).standard_normal((12, 2))
    out = np.full((12, 6), np.nan)
    blocks.make_spread_blocks().bind(LaunchConfig(grid, threads), out, x)(2)
    np.testing.assert_array_equal(out, dense(x, 2, 3))


def cases():
    """Each cell with options in turn; each dtype."""
    options = (
        dict(T=3, B=2, hidden=(4,), heads=2, directions=2),
        dict(T=3, B=2, hidden=(3, 2), drop=0.4, dtype="float64"),
        dict(hidden=(6,), heads=3, drop=0.3, directions=2, resets=True, **LENGTHS),
        dict(T=2, B=2, hidden=(4, 2), heads=2, drop=0.3, dropout=0.4, dtype="float16"),
        dict(T=2, B=1, hidden=(3,), heads=3, input_mode="skip", dtype="bfloat16"),
    )
    for cell in ("lstm", "gru_reset_before", "rnn_tanh"):
        for option in options:
            yield WeightCase(cell, **option)
    yield WeightCase("lstm", T=2, B=2, hidden=(4,), proj_size=2, heads=2, drop=0.3, directions=2)


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_agrees_with_dense_reference(case):
    check_weights(case, "sim", "stepwise", calls=1)


@pytest.mark.parametrize("case", list(cases())[2::5], ids=str)
def test_wavefront_agrees_with_dense_reference(case):
    check_weights(case, "sim", "wavefront")


PERSISTENT = [case for case in cases() if case.cell != "gru_reset_before" and not case.proj_size]


@pytest.mark.parametrize("case", PERSISTENT, ids=str)
def test_persistent_agrees_with_dense_reference(monkeypatch, case):
    """Its kernels find all weights in one array, R among them."""
    few_threads(monkeypatch)
    check_weights(case, "sim", "persistent", calls=2 if case.resets else 1)


@pytest.mark.parametrize("seed", range(2))
def test_every_order_of_the_threads_gives_the_same(monkeypatch, seed):
    few_threads(monkeypatch)
    with simulator.schedule(seed):
        check_weights(WeightCase("rnn_tanh", T=2, B=2, hidden=(4, 2), heads=2, drop=0.4), "sim", "persistent", calls=1)


@pytest.mark.parametrize("case", (
    WeightCase("gru_reset_before", hidden=(6, 4), heads=2, drop=0.3, directions=2, resets=True, **LENGTHS),
    WeightCase("lstm", hidden=(4, 2), heads=2, drop=0.3, proj_size=6, directions=2, resets=True, **LENGTHS),
), ids=str)  # fmt: skip
def test_agrees_with_the_cpu_engine(case):
    """Also with h wider than the cell."""
    case = replace(case, dtype="float64")
    problem = make_problem(case)
    assert_close(case, *(train(problem.layer(device), problem)[0] for device in ("sim", "cpu")))


def test_gradients_are_added_to_dw():
    case = WeightCase("lstm", T=2, B=2, hidden=(4,), heads=2, drop=0.4, dtype="float64")
    problem = make_problem(case)
    layer = problem.layer("sim")
    start = np.random.default_rng(0).standard_normal(layer.weights.shape)
    once = layer.backward(layer.forward(problem.x)[2], problem.dy)
    layer.training_calls = 0
    added = layer.backward(layer.forward(problem.x)[2], problem.dy, dw=start.copy())
    started = layer.stack.space.views(start)
    assert_close(case, added.params, {name: started[name] + view for name, view in once.params.items()})
