"""What modules of `numbarnn.torch` have that torch.nn's do not."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import numbarnn as nr
import numbarnn.torch as nrt
import torch_modules


@pytest.mark.parametrize("form", ("time_first", "batch_first", "unbatched", "packed", "layer_by_layer"))
def test_states_of_every_step(form):
    """c after each step, as torch.nn gives it for one step at a time; with gradients."""
    options = dict(batch_first=form == "batch_first", dropout=0.5 if form == "layer_by_layer" else 0.0)
    theirs, ours = (module.eval() for module in torch_modules.pair("LSTM", 3, 5, 2, proj_size=2, **options))
    x, state, expected = torch.randn(6, 2, 3), None, []
    for x_t in x:
        _, state = theirs(x_t[:, None] if options["batch_first"] else x_t[None], state)
        expected.append(state[1][1])
    expected = torch.stack(expected)
    given = {"batch_first": x.transpose(0, 1), "unbatched": x[:, 0], "packed": pack_padded_sequence(x, [6, 6])}
    _, _, (every,) = ours(given.get(form, x), output_states=True)
    if form == "packed":
        every = pad_packed_sequence(every)[0]
    if form in ("batch_first", "unbatched"):
        every = every.transpose(0, 1) if form == "batch_first" else every[:, None]
    torch.testing.assert_close(every[:, 0], expected[:, 0])
    both = (every, ours), (expected, theirs)
    gradients = [torch.autograd.grad(one[:, 0].square().sum(), module.weight_hh_l0) for one, module in both]
    torch.testing.assert_close(*gradients)
    with pytest.raises(ValueError, match="output_states must be False: a gru has no state besides h, and y is h"):
        nrt.GRU(3, 5)(x, output_states=True)
    assert [one.shape for one in nrt.LSTM(3, 5)(x[:, :0], output_states=True)[2]] == [(6, 0, 5)]


@pytest.mark.parametrize("P", [0, 2])
def test_a_hidden_size_per_layer(P):
    options = dict(bidirectional=True, batch_first=True, proj_size=P)
    module = nrt.LSTM(3, [5, 4], **options)
    assert module.num_layers == 2 and module.weight_ih_l1.shape == (16, 2 * (P or 5))
    x = torch.randn(2, 6, 3)
    y, (h, c) = module(x)
    assert y.shape == (2, 6, 2 * (P or 4)) and [one.shape for one in c] == [(2, 2, 5), (2, 2, 4)]
    layers = [nn.LSTM(3, 5, **options), nn.LSTM(2 * (P or 5), 4, **options)]
    expected = x
    for number, layer in enumerate(layers):
        own = {key: value for key, value in module.state_dict().items() if f"_l{number}" in key}
        layer.load_state_dict({key.replace(f"_l{number}", "_l0"): value for key, value in own.items()})
        expected, final = layer(expected, None)
        torch.testing.assert_close((h[number], c[number]), final)
    torch.testing.assert_close(y, expected)
    found = torch.autograd.grad(sum(one.square().sum() for one in (y, *h, *c)), module.weight_hh_l1)
    own = torch.autograd.grad(sum(one.square().sum() for one in (expected, *final)), layers[1].weight_hh_l0)
    torch.testing.assert_close(found, own)
    again, _ = module(x, (h, c))
    assert not torch.allclose(again, y)
    _, (again, _) = torch.func.vmap(module)(torch.stack([x, x]))
    torch.testing.assert_close([one[1] for one in again], h)
    with pytest.raises(RuntimeError, match=r"Expected hidden\[1\]\[1\] size \(2, 2, 4\), got \[2, 2, 5\]"):
        module(x, (h, c[:1] * 2))


@pytest.mark.parametrize("own", [torch.float32, torch.float16])
@pytest.mark.parametrize("sizes, P", [([5, 4], 0), ([5, 4], 2), ([5, 5], 0)])
def test_states_in_autocast(sizes, P, own):
    """Of another dtype than autocast's, and perhaps than the module's."""
    module = nrt.LSTM(3, sizes, proj_size=P)
    x = torch.randn(6, 2, 3)
    _, state = module(x)
    expected, _ = module(x, state)
    module.to(own)
    halves = [[one.half() for one in part] if isinstance(part, list) else part.half() for part in state]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = module(x.half(), halves)
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("options", [
    dict(cell_clip=0.1), dict(bias="input"), dict(input_mode="skip"), dict(schedule="stepwise"), dict(dropout=0.5),
    dict(allow_tf32="3x"),
], ids=str)  # fmt: skip
def test_options_as_in_numbarnn(options):
    """The same as numbarnn's own layer with the same parameters."""
    torch.manual_seed(0)
    module = nrt.LSTM(5, 5, 2, **options).eval()
    layer = nr.LSTM(5, 5, 2, device="cpu", **options)
    layer.load_state_dict(module.state_dict())
    x = torch.randn(6, 4, 5)
    y, (h, c) = layer(x.numpy())
    torch.testing.assert_close(module(x), (torch.tensor(y), (torch.tensor(h), torch.tensor(c))))
    (name, value), *_ = options.items()
    assert f"{name}={value}" in repr(module) or f"{name}={value!r}" in repr(module)


def test_reset_before():
    module = nrt.GRU(3, 5, reset_after=False)
    layer = nr.GRU(3, 5, device="cpu", reset_after=False)
    layer.load_state_dict(module.state_dict())
    x = torch.randn(6, 4, 3)
    torch.testing.assert_close(module(x)[0], torch.tensor(layer(x.numpy())[0]))
    assert "reset_after=False" in repr(module)


@nr.cell
def leaky(x, h, u, p):
    u_new = 0.9 * u + nr.tanh(p.W.u @ x + p.R.u @ h + p.gain * u + p.b.u)
    return nr.sigmoid(u_new), u_new


def leaky_loop(x, module):
    """The same as a loop in PyTorch."""
    W, R, b, gain = (getattr(module, name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "gain_l0"))
    h = u = x.new_zeros(x.shape[1], module.hidden_size)
    outputs = []
    for x_t in x:
        u = 0.9 * u + torch.tanh(x_t @ W.T + h @ R.T + gain * u + b)
        h = torch.sigmoid(u)
        outputs.append(h)
    return torch.stack(outputs), (h[None], u[None])


def test_a_cell_of_ones_own():
    module = nrt.Recurrent(leaky, 3, 5, dtype=torch.float64)
    assert "leaky, 3, 5" in repr(module)
    x = torch.randn(6, 4, 3, dtype=torch.float64)
    for other in (module, copy.deepcopy(module)):
        found = other(x)
        expected = leaky_loop(x, other)
        torch.testing.assert_close(found, expected)
        gradients = [
            torch.autograd.grad(sum(one.square().sum() for one in torch_modules.tensors(results)), other.parameters())
            for results in (found, expected)
        ]
        torch.testing.assert_close(*gradients)


def test_cells_of_the_library():
    library = nr.cells.library
    module = nrt.Recurrent(library.slstm, 4, 8, bidirectional=True)
    y, state = module(torch.randn(5, 2, 4))
    assert y.shape == (5, 2, 16) and [one.shape for one in state] == [(2, 2, 8)] * 4
    again, _ = module(torch.randn(5, 2, 4), state)
    assert torch.isfinite(again).all()
    assert nrt.Recurrent("gru", 3, 5).mode == "GRU"
