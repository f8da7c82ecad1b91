"""`nr.normal()` and `nr.uniform()`: the same numbers on every engine, none without training."""

import numpy as np
import pytest

import numbarnn as nr


@nr.cell
def noisy(x, h, p):
    a = p.W.h @ x + p.R.h @ h + p.b.h
    return nr.tanh(a + p.scale * nr.normal() + p.shift * nr.uniform(each_step=False))


@nr.cell
def drawn(x, h, n, u, once, p):
    return 1e-30 * (p.W.h @ x), nr.normal(), nr.uniform(), nr.uniform(each_step=False)


def make(cell, dtype="float64", **options):
    return nr.RNN(cell, 3, 8, **{"device": "cpu", "seed": 0, "dtype": dtype} | options)


def test_the_numbers_have_their_distributions():
    layer = nr.RNN(drawn, 1, 64, device="cpu", seed=0)
    x = np.zeros((60, 20, 1), np.float32)
    normal, uniform, once = layer.forward(x, output_states=True)[2]
    count = normal.size  # 76,800: the bounds are five standard deviations of each figure
    assert abs(normal.mean()) < 5 / count**0.5 and abs(normal.var() - 1) < 5 * (2 / count) ** 0.5
    assert abs((normal**4).mean() - 3) < 5 * (96 / count) ** 0.5
    assert 0 < uniform.min() < 1e-3 and 1 - 1e-3 < uniform.max() <= 1
    assert abs(uniform.mean() - 0.5) < 5 * (1 / 12 / count) ** 0.5 and abs(uniform.var() - 1 / 12) < 5e-3
    assert abs(np.corrcoef(normal[:-1].ravel(), normal[1:].ravel())[0, 1]) < 5 / count**0.5
    assert (once == once[:1]).all() and np.unique(once[0]).size > 1200  # of 1280: one for each unit and sequence


def test_without_training_there_is_none():
    layer = nr.RNN(drawn, 1, 4, device="cpu")
    normal, uniform, once = layer(np.zeros((2, 3, 1), np.float32), output_states=True)[2]
    assert not normal.any() and (uniform == 0.5).all() and (once == 0.5).all()
    p = make(noisy).named.p()
    expected = np.tanh(p.b.h + 0.5 * p.shift)
    np.testing.assert_allclose(noisy.function(np.zeros((3, 1)), np.zeros((8, 1)), p), expected)


@pytest.mark.parametrize("device, schedule", [("cpu", "wavefront"), ("sim", "stepwise"), ("sim", "persistent")])
def test_every_engine_draws_the_same(device, schedule):
    x = np.random.default_rng(0).standard_normal((3, 2, 3))
    expected = make(noisy, num_layers=2, schedule="stepwise").forward(x)[0]
    dtype = "float32" if device == "sim" else "float64"
    layer = make(noisy, dtype, num_layers=2, device=device, schedule=schedule)
    assert np.abs(layer.forward(x.astype(dtype))[0] - expected).max() < (1e-6 if dtype == "float32" else 1e-14)
    assert np.abs(layer.forward(x.astype(dtype))[0] - expected).max() > 1e-3  # the next call draws others


def test_gradients_go_through_what_scales_the_noise():
    assert nr.gradcheck(noisy, bidirectional=True).ok
    layer, x = make(noisy), np.random.default_rng(0).standard_normal((3, 2, 3))
    y, dy, *_ = layer.jvp(x, np.ones_like(x), training=True)
    layer.training_calls = 0
    assert np.abs(layer.forward(x)[0] - y).max() < 1e-15 and dy.any()


def test_a_number_is_no_size_of_the_noise():
    with pytest.raises(TypeError, match=r"each_step must be a bool, not 0\.1. Scale the number"):
        nr.cell(lambda x, h, p: nr.tanh(p.W.a @ x) + nr.normal(0.1))


def test_pytorch_draws_them_too():
    torch = pytest.importorskip("torch")
    import numbarnn.torch as nrt

    ours, loop = (nrt.Recurrent(noisy, 3, 8, schedule=schedule).double() for schedule in ("auto", "loop"))
    loop.load_state_dict(ours.state_dict())
    x, found = torch.randn(4, 2, 3, dtype=torch.float64), []
    for module in (ours, loop):
        for train in (True, False):
            torch.manual_seed(0)
            found.append(module.train(train)(x)[0])
    assert (found[0] - found[2]).abs().max() < 1e-14 and (found[1] - found[3]).abs().max() < 1e-14
    assert (found[0] - found[1]).abs().max() > 1e-3
