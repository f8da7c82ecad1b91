"""`convert` and `restore`: modules change in place, their parameters stay the same objects."""

import pytest
import torch
from torch import nn

import numbarnn.torch as nrt
import torch_modules


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.LSTM(3, 5, 2, dropout=0.2), nn.GRU(5, 4), nn.RNN(4, 4, nonlinearity="relu")])
        self.cells = nn.ModuleList([nn.LSTMCell(4, 4), nn.GRUCell(4, 4), nn.RNNCell(4, 4, nonlinearity="relu")])

    def forward(self, x):
        for layer in self.layers:
            x, _ = layer(x)
        last = x[-1]
        for cell in self.cells:
            last = cell(last)
            last = last[0] if isinstance(last, tuple) else last
        return last


def test_there_and_back():
    torch.manual_seed(0)
    model, x = Model(), torch.randn(6, 2, 3)
    parameters, optimizer = list(model.parameters()), torch.optim.SGD(model.parameters(), 0.1)
    kinds = [type(one) for one in model.modules()]
    attributes = [set(vars(one)) for one in model.modules()]
    expected = torch_modules.trained(model, x)

    assert nrt.convert(model) is model
    assert [type(one).__name__ for one in model.modules()] == [kind.__name__ for kind in kinds]
    assert [type(one) for one in model.layers] == [nrt.LSTM, nrt.GRU, nrt.RNN]
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    torch.testing.assert_close(torch_modules.trained(model, x), expected)
    before = model.layers[0].weight_hh_l0.detach().clone()
    optimizer.step()
    assert not torch.equal(model.layers[0].weight_hh_l0, before)

    expected = torch_modules.trained(model, x)
    assert nrt.restore(model) is model
    assert [type(one) for one in model.modules()] == kinds
    assert [set(vars(one)) for one in model.modules()] == attributes
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    torch.testing.assert_close(torch_modules.trained(model, x), expected)


def test_a_module_itself_with_hooks():
    seen = []
    module = nn.LSTM(3, 5)
    module.register_forward_hook(lambda *_: seen.append(1))
    nrt.convert(module)(torch.randn(4, 2, 3))
    assert type(module) is nrt.LSTM and seen


def test_what_is_left_alone():
    class Own(nn.LSTM):
        def forward(self, input, hx=None):
            return input, hx

    model = nn.ModuleList([Own(3, 5), nn.Linear(3, 5)])
    nrt.convert(model)
    assert type(model[0]) is Own
    ours = nn.ModuleList([
        nrt.LSTM(3, 5, cell_clip=1.0), nrt.GRU(3, 5, reset_after=False), nrt.RNN(3, [5, 4]),
        nrt.RNN(3, 5, bias="input"), nrt.Recurrent("lstm", 3, 5), nrt.GRUCell(3, 5, bias="recurrent"),
        nrt.LSTM(3, 5, schedule="stepwise"),
    ])  # fmt: skip
    kinds = [type(one) for one in ours]
    nrt.restore(ours)
    assert [type(one) for one in ours] == [*kinds[:-1], nn.LSTM]


def test_no_module():
    for function in (nrt.convert, nrt.restore):
        with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, not int"):
            function(3)
