"""Side inputs of cells: `numbarnn.side`."""

import pickle

import numpy as np
import numpy.testing as npt
import pytest

import numbarnn as nr

T, B, H = 5, 3, 6


@nr.cell
def decaying(x, h, p, gap=nr.side(1), mask=nr.side(3)):
    kept = nr.exp(-abs(p.decay) * gap) * h
    return nr.tanh(p.W.a @ x + p.R.a @ kept + p.V @ mask + p.b)


@nr.cell
def masked(x, h, c, p, mask=nr.side(6)):
    """Each unit has its own column; x itself is used, too."""
    g = nr.sigmoid(p.W.g @ x + p.R.g @ h)
    new = mask * nr.tanh(x + p.U @ c + p.b) + (1 - mask) * c
    return g * new, new


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def of_decaying():
    return numbers(T, B, 8), {"gap": abs(numbers(T, B, 1, seed=1)), "mask": numbers(T, B, 3, seed=2)}


def test_gradients_by_differences():
    assert nr.gradcheck(decaying, bidirectional=True).ok
    assert nr.gradcheck(decaying, 9, 4, batch_first=True).ok
    assert nr.gradcheck(masked, 12, 6).ok
    assert nr.gradcheck(masked, device="sim", schedule="wavefront").ok


def test_the_persistent_kernel_in_the_simulator_equals_the_cpu():
    x = numbers(T, B, 12).astype("f4")
    found = []
    for options in ({"device": "cpu"}, {"device": "sim", "schedule": "persistent"}):
        layer = nr.RNN(decaying, 12, H, seed=3, **options)
        y, h, tape = layer.forward(x)
        grads = layer.backward(tape, np.sin(x[..., :H]))
        found.append([y, h, grads.x, grads.weights])
    for one, other in zip(*found, strict=True):
        npt.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_by_name_or_as_the_last_columns_of_x():
    layer = nr.RNN(decaying, 12, H, device="cpu", dtype="float64", seed=3)
    x, side = of_decaying()
    whole = np.concatenate([x, side["gap"], side["mask"]], axis=-1)
    y, h, tape = layer.forward(x, side=dict(reversed(side.items())))
    for y_2, h_2 in (layer(whole), layer(x, side=side)):
        npt.assert_array_equal(y_2, y)
        npt.assert_array_equal(h_2, h)
    grads = layer.backward(tape, np.ones_like(y))
    *_, tape = layer.forward(whole)
    expected = layer.backward(tape, np.ones_like(y))
    npt.assert_array_equal(np.concatenate([grads.x, grads.side["gap"], grads.side["mask"]], -1), expected.x)
    assert expected.side is None and expected.x.shape == (T, B, 12)
    step = layer.stepper(B)
    npt.assert_allclose([step(one) for one in whole], y, atol=1e-14)


def test_every_call_takes_them():
    layer = nr.RNN(decaying, 12, H, device="cpu", dtype="float64", seed=3)
    x, side = of_decaying()
    whole, lengths = np.concatenate([x, *side.values()], axis=-1), [5, 2, 0]
    y, _, values = layer(x, side=side, lengths=lengths, record=("kept",))
    npt.assert_array_equal(y, layer(whole, lengths=lengths)[0])
    before = np.concatenate([np.zeros((1, B, H)), y[:-1]])
    kept = np.exp(-abs(layer.parameters["decay_l0"]) * side["gap"]) * before
    npt.assert_allclose(values["kept"][0][:, 0], kept[:, 0], atol=1e-14)
    dx, e = numbers(T, B, 12, seed=4), 1e-6
    _, dy, *_ = layer.jvp(whole, dx)
    npt.assert_allclose(dy, (layer(whole + e * dx)[0] - layer(whole - e * dx)[0]) / (2 * e), atol=1e-8)


def test_names_sizes_and_copies():
    layer = nr.RNN(decaying, 12, H, device="cpu", seed=3)
    assert {name: one.shape for name, one in layer.parameters.items()} == {
        "weight_ih_l0": (H, 8), "weight_hh_l0": (H, H), "bias_ih_l0": (H,), "decay_l0": (H,), "V_l0": (H, 3)
    }  # fmt: skip
    wider = nr.cell(decaying, mask=nr.side(4))
    assert wider.parameters.side == {"gap": 1, "mask": 4} and wider.digest != decaying.digest
    assert pickle.loads(pickle.dumps(wider)).parameters.side == wider.parameters.side
    x, side = of_decaying()
    again = pickle.loads(pickle.dumps(layer))
    npt.assert_array_equal(*(one(x.astype("f4"), side={k: v.astype("f4") for k, v in side.items()})[0]
                             for one in (layer, again)))  # fmt: skip


def test_in_pytorch():
    torch = pytest.importorskip("torch")
    import numbarnn.torch as nrt

    x, side = of_decaying()
    x, *parts = (torch.tensor(one, requires_grad=True) for one in (x, *side.values()))
    found = []
    for schedule in ("auto", "loop"):
        torch.manual_seed(0)
        module = nrt.Recurrent(decaying, 12, H, dtype=torch.float64, schedule=schedule)
        y, h = module(x, side=dict(zip(side, parts, strict=True)))
        found.append([y, h, *torch.autograd.grad(y.sin().sum(), [x, *parts, *module.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_in_onnx(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    layer = nr.RNN(decaying, 12, H, device="cpu", seed=3)
    x, side = of_decaying()
    whole = np.concatenate([x, *side.values()], axis=-1).astype("f4")
    nr.convert.to_onnx(layer, tmp_path / "decaying.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "decaying.onnx", providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    y = session.run(None, {names[0]: whole})[0]
    npt.assert_allclose(y.reshape(T, B, H), layer(whole)[0], atol=1e-5)
    back = nr.convert.from_onnx(tmp_path / "decaying.onnx", cell=decaying, device="cpu")
    npt.assert_array_equal(back(whole)[0], layer(whole)[0])


@pytest.mark.parametrize(("make", "error", "says"), [
    (lambda x, side: nr.RNN(decaying, 4, H), ValueError, "it must be above 4 for cell decaying, which has gap (1)"),
    (lambda x, side: nr.RNN(decaying, 12, H, num_layers=2), ValueError, "which need num_layers=1, got 2"),
    (lambda x, side: nr.RNN(masked, 13, 6), ValueError, "x is used itself, element by element"),
    (lambda x, side: nr.RNN(masked, 11, 5), ValueError, "mask is used itself, element by element"),
    (lambda x, side: nr.side(0), ValueError, "width must be a positive int"),
    (lambda x, side: nr.RNN(decaying, 12, H, device="cpu")(x, side={"gap": side["gap"]}), ValueError,
     "side must have the side inputs of cell decaying: gap (1 columns), mask (3 columns); got gap"),
    (lambda x, side: nr.RNN(decaying, 12, H, device="cpu", dtype="float64")(x, side=side | {"gap": side["gap"][:4]}),
     ValueError, "side['gap'] must"),
    (lambda x, side: nr.LSTM(8, H, device="cpu")(x, side=side), ValueError, "side inputs of cell lstm: none"),
])  # fmt: skip
def test_what_does_not_fit_is_named(make, error, says):
    with pytest.raises(error) as raised:
        make(*of_decaying())
    assert says in str(raised.value)


def test_a_hyperparameter_without_a_value_tells_of_side_inputs():
    def gapped(x, h, p, gap):
        return nr.tanh(p.W @ x + p.R @ h) * gap

    with pytest.raises(TypeError, match=r"besides x is gap=numbarnn.side\(width\)"):
        nr.cell(gapped)
