"""Modules in torch.compile without a graph break, and in torch.export; what calls compile to is in test_compiled."""

import pytest
import torch
from torch import nn

import numbarnn as nr
import numbarnn.torch as nrt


class Model(nn.Module):
    """A recurrent module between two operations that a compiler would fuse."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x, *inputs, **options):
        results = self.rnn(2 * x, *inputs, **options)
        y = results[0] if isinstance(results, tuple) else results
        return y.sin()


X, STATE = (6, 4, 3), torch.zeros(2, 6, 5)
CASES = {
    "dropout": (lambda: nrt.LSTM(3, 5, 2, dropout=0.5), X, (), {}),
    "state": (lambda: nrt.GRU(3, 5, 2, batch_first=True), X, (STATE,), {}),
    "lengths": (lambda: nrt.RNN(3, 5), X, (), {"lengths": torch.tensor([1, 6, 0, 3])}),
    "unbatched": (lambda: nrt.LSTM(3, [4, 5]), X[1:], (), {}),
    "own": (lambda: nrt.Recurrent(nr.cells.library.slstm, 3, 5), X, (), {}),
    "cell": (lambda: nrt.LSTMCell(3, 5), X[1:], (), {}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_compiled_whole(case):
    make, shape, inputs, options = case
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Model(make()), torch.randn(shape)
    found = []
    for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(1)
        y = call(x, *inputs, **options)
        found.append((y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))))
    torch.testing.assert_close(*found)


class OfXAlone(Model):
    """The same for `torch.export`, which wants to know the shapes of all arguments."""

    def forward(self, x):
        return super().forward(x)


def test_exported_for_any_length():
    model = OfXAlone(nrt.GRU(3, 5, 2)).eval()
    sizes = {0: torch.export.Dim("T"), 1: torch.export.Dim("B")}
    program = torch.export.export(model, (torch.randn(6, 4, 3),), dynamic_shapes=(sizes,))
    x = torch.randn(9, 2, 3)
    torch.testing.assert_close(program.module()(x), model(x))
