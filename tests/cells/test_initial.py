"""What parameters begin with, where a cell's equations say so."""

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.cells import begin, library

H = 6


def log_uniform(shape, rng):
    return rng.uniform(0, 3, shape)


@nr.cell
def initialized(x, h, c, p):
    W, R = nr.initial(p.W, "xavier"), nr.initial(p.R, "orthogonal")
    b_f, b_i = nr.chrono(p.b.f, p.b.i, 50)
    f = nr.sigmoid(W.f @ x + R.f @ h + b_f)
    i = nr.sigmoid(W.i @ x + R.i @ h + b_i)
    g = nr.tanh(p.W.g @ x + nr.initial(p.R.g, "identity") @ h + p.b.g)
    decay = nr.exp(-nr.exp(nr.initial(p.log_period, log_uniform)))
    c_new = f * c + i * g + decay * nr.initial(p.scalar.rate, 0.25) + nr.initial(p.shift, np.arange(6.0))
    return nr.tanh(c_new), c_new


def layer_of(cell, seed=0, **options):
    return nr.RNN(cell, 3, H, seed=seed, device="cpu", **options)


def test_by_layer_direction_and_name():
    layer = layer_of(initialized, num_layers=2, bidirectional=True)
    seen = []
    for own in layer.stack.space.blocks.values():
        values = {name: layer.weights[where].reshape(shape) for name, (_, where, shape) in own.items()}
        for name in ("R.f", "R.i"):
            np.testing.assert_allclose(values[name] @ values[name].T, np.eye(H), atol=1e-6)
        np.testing.assert_array_equal(values["R.g"], np.eye(H))
        inputs = values["W.f"].shape[1]
        assert 0.7 < np.abs(values["W.f"]).max() / np.sqrt(6 / (H + inputs)) <= 1
        assert np.abs(values["W.g"]).max() <= 1 / np.sqrt(H)  # as others do
        np.testing.assert_array_equal(values["b.f"], -values["b.i"])
        assert (0 <= values["b.f"]).all() and (values["b.f"] <= np.log(49)).all()
        assert (values["log_period"] >= 0).all() and (values["log_period"] <= 3).all()
        assert values["scalar.rate"] == 0.25
        np.testing.assert_array_equal(values["shift"], np.arange(6))
        seen.append(values["b.f"])
    assert len({tuple(one) for one in seen}) == 4, "each layer and direction draws its own"


def test_follows_from_the_seed():
    same, other = layer_of(initialized), layer_of(initialized, seed=1)
    np.testing.assert_array_equal(layer_of(initialized).weights, same.weights)
    assert (same.parameters["log_period_l0"] != other.parameters["log_period_l0"]).all()


def test_other_parameters_begin_as_they_would_anyway():
    """What is drawn by equations comes after all else."""
    plain = nr.cell(lambda x, h, p: nr.tanh(p.W.a @ x + p.R.a @ h + p.b.a))
    own = nr.cell(lambda x, h, p: nr.tanh(p.W.a @ x + nr.initial(p.R.a, "orthogonal") @ h + p.b.a))
    one, other = layer_of(plain), layer_of(own)
    for name in ("weight_ih_l0", "bias_ih_l0"):
        np.testing.assert_array_equal(one.parameters[name], other.parameters[name])


def test_in_pytorch():
    torch = pytest.importorskip("torch")
    import numbarnn.torch as nrt

    def module(seed):
        torch.manual_seed(seed)
        return nrt.Recurrent(initialized, 3, H, num_layers=2)

    one, same, other = module(1), module(1), module(2)
    for name, parameter in one.named_parameters():
        torch.testing.assert_close(parameter, dict(same.named_parameters())[name], rtol=0, atol=0)
    R = one.weight_hh_l1[H : 2 * H]
    torch.testing.assert_close(R @ R.T, torch.eye(H), rtol=0, atol=1e-6)
    assert one.rate_l0 == 0.25 if hasattr(one, "rate_l0") else one.scalar_rate_l0 == 0.25
    assert (one.log_period_l0 != other.log_period_l0).all()
    one.reset_parameters()
    assert (one.log_period_l0 != same.log_period_l0).all(), "drawn anew"


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (5, 5)])
def test_orthogonal(shape):
    Q = begin.orthogonal(shape, np.random.default_rng(0))
    assert Q.shape == shape
    product = Q.T @ Q if shape[0] > shape[1] else Q @ Q.T
    np.testing.assert_allclose(product, np.eye(min(shape)), atol=1e-14)


def of(value, vector=False):
    """A layer of a cell whose matrix, or vector, begins with a value."""
    if vector:
        return layer_of(nr.cell(lambda x, h, p: nr.tanh(p.W.a @ x + nr.initial(p.b.a, value))))
    return layer_of(nr.cell(lambda x, h, p: nr.tanh(p.W.a @ x + nr.initial(p.R.a, value) @ h)))


def test_bad_values():
    for value in ("orthonormal", "zero"):
        with pytest.raises(
            ValueError, match=rf"value must be a number, .* orthogonal, identity, xavier, not '{value}'"
        ):
            of(value)
    with pytest.raises(TypeError, match="value must be a number, an array, a function"):
        of(object())
    with pytest.raises(ValueError, match=r"p.b.a cannot be initialized as orthogonal, which is for matrices"):
        of("orthogonal", vector=True)
    with pytest.raises(ValueError, match=r"p.R.a has shape \(6, 6\), but its initial value \(wrong\) has shape \(2,\)"):

        def wrong(shape, rng):
            return np.ones(2)

        of(wrong)
    with pytest.raises(nr.CellError, match=r"p.R.a has the initial value .* here and .* elsewhere"):
        nr.cell(lambda x, h, p: p.W.a @ x + nr.initial(p.R.a, 1) @ h + nr.initial(p.R.a, 2) @ nr.tanh(h))
    with pytest.raises(ValueError, match="longest must be a number from 3 on"):
        nr.chrono(np.ones(3), np.ones(3), 2)


#: Cell of the library -> name of a parameter -> what all its elements begin with, by its paper; others are random.
FIRST = {
    "layer_norm_lstm": {**dict.fromkeys(("gain_x.i", "gain_h.f", "gain_h.o", "gain.c"), 1), "shift.c": 0},
    "layer_norm_gru": dict.fromkeys(("gain_x.r", "gain_x.n", "gain_h.z"), 1),
    "fast_rnn": {"scalar.alpha": -3, "scalar.beta": 3},
    "structurally_constrained": {"scalar.alpha": 0.95},
    "lmu": {"e.m": 0},
    "liquid_time_constant": {"log_tau": 0},
}


@pytest.mark.parametrize("name", sorted(set(library.__all__) - {"lstm_with", "recurrent_highway"}))
def test_first_values_of_the_librarys_cells(name):
    """Those that the paper says, in each layer; all others are drawn, uniform to 1 / √H, of other numbers each."""
    layer = nr.RNN(getattr(library, name), 8, 8, num_layers=2, device="cpu", seed=0)
    said = {f"l{number}.{one}": value for number in (0, 1) for one, value in FIRST.get(name, {}).items()}
    assert said.keys() <= layer.named.keys()
    for one, array in layer.named.items():
        if one in said:
            np.testing.assert_array_equal(array, np.float32(said[one]), err_msg=one)
        elif not one.partition(".")[2].startswith(("gain_x", "gain_h")):
            assert 0 < np.abs(array).max() <= 1 / np.sqrt(8) and len(np.unique(array)) == array.size, one
