"""Networks on tensors with parameters, and torch.nn's with the same ones, for tests of `numbarnn.torch`."""

import torch

from numbarnn.torch.calls import call
from numbarnn.torch.core import CallSettings
from numbarnn.torch.networks import Network

SIZES = (5, 8, 2)  # I, H, L
CELLS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn_tanh": torch.nn.RNN}


def run(network, x, hx, cx, weights, **about):
    """y, hy, cy of an LSTM's network, cy None of other cells, and with `output_states` the states of every step."""
    private = None if cx is None else (cx,)
    y, (hy, *cy), *states = call(network, CallSettings(**about), x, hx, private, weights)
    return y, hy, cy[0] if cy else None, *states


class Setup:
    """A network with parameters, and torch.nn's with the same ones.

    Args:
        views: parameters are views of one flat buffer.
    """

    def __init__(self, cell="lstm", dtype=torch.float32, views=True, **options):
        torch.manual_seed(0)
        self.cell, self.options = cell, options
        self.module = CELLS[cell](*SIZES, batch_first=False, dtype=dtype, **options)
        self.network = Network(cell, *SIZES, **options)
        named = dict(self.module.named_parameters())
        self.peers = [named[part.name] for part in self.network.parts]
        self.flat = torch.cat([peer.detach().reshape(-1) for peer in self.peers])
        parts = [self.flat[part.offset :][: part.size].view(part.shape) for part in self.network.parts]
        self.weights = [torch.nn.Parameter(part if views else part.clone()) for part in parts]
        self.x = torch.randn(6, 4, 5, dtype=dtype)
        self.dy = torch.randn_like(self.module(self.x)[0])

    def loss(self, x, weights, **options):
        y, hy, cy, *every = run(self.network, x, None, None, weights, **options)
        states = [hy] if cy is None else [hy, cy, *(state for part in every for state in part)]
        return (y * self.dy).sum() + sum(state.square().sum() for state in states)


def leaf(x):
    return x.detach().clone().requires_grad_()


def assert_near(one, other):
    torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)
