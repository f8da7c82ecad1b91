"""Modules in torch.compile without a graph break, and in torch.export; what calls compile to is in test_compiled."""

import os
import shutil

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

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


def nodes_of(model, x):
    """How many nodes the graphs of a training call have, forward and backward."""
    counts = []

    def count(graph, inputs):
        counts.append(len(graph.graph.nodes))
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=count, bw_compiler=count)
    torch.compile(model, fullgraph=True, backend=backend)(x).sum().backward()
    return counts


def test_graphs_do_not_grow_with_steps():
    """What takes time to compile: of six layers less than three nodes per parameter, for 10 steps and for 1,000."""
    model = Model(nrt.LSTM(3, 4, 6))
    short, long = nodes_of(model, torch.randn(10, 2, 3)), nodes_of(model, torch.randn(1000, 2, 3))
    assert short == long and len(short) == 2
    assert max(short) < 3 * len(list(model.parameters()))


def test_compiled_by_inductor():
    """With PyTorch's default back end, which writes C++ around the operators."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("inductor needs a C++ compiler: there is no g++, and CXX names none")
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(3, 3), Model(nrt.LSTM(3, 5, 2)), nn.Linear(5, 2))
    x, found = torch.randn(6, 4, 3), []
    for call in (model, torch.compile(model, fullgraph=True)):
        y = call(x)
        found.append((y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))))
    torch.testing.assert_close(*found)


RANDOM = nr.cell(nr.cells.library.lstm, zoneout_h=0.5, name="lstm_of_random_steps")


@pytest.mark.parametrize("make", [lambda: nrt.LSTM(3, 5, 2, dropout=0.5), lambda: nrt.Recurrent(RANDOM, 3, 5)])
def test_vmap_draws_as_it_is_told(make):
    """By "error", the default, not at all; by "same" the same numbers for all, by "different" others for each."""
    module = make()
    x = torch.randn(1, 4, 2, 3).expand(3, 4, 2, 3)

    def of(x):
        return module(x)[0]

    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(of)(x)
    for keep in (True, False):
        with torch.set_grad_enabled(keep):
            same = torch.vmap(of, randomness="same")(x)
            different = torch.vmap(of, randomness="different")(x)
        assert torch.equal(same[0], same[1]) and torch.equal(same[1], same[2])
        assert not torch.allclose(different[0], different[1]) and not torch.allclose(different[1], different[2])
        assert not torch.allclose(same[:, :, 0], same[:, :, 1])
    module.eval()
    torch.testing.assert_close(torch.vmap(of)(x)[2], of(x[0]))


class Packing(nn.Module):
    """Packs and unpacks around a module."""

    def __init__(self):
        super().__init__()
        self.linear, self.rnn = nn.Linear(3, 3), nrt.LSTM(3, 5)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.linear(x), lengths, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0])[0]


@pytest.mark.filterwarnings("error:Dynamo detected a call to a `functools.lru_cache`")
def test_a_packed_input_ends_the_graph():
    """As with torch.nn's modules: the sizes of what follows stand in tensors."""
    torch._dynamo.reset()
    model, x, lengths = Packing(), torch.randn(6, 3, 3), torch.tensor([4, 6, 1])
    found = []
    for call in (model, torch.compile(model, backend="aot_eager")):
        y = call(x, lengths)
        found.append((y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))))
    torch.testing.assert_close(*found)
