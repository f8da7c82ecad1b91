"""`numbarnn.torch.calls.run` and the operators under it, against torch.nn and in what PyTorch does with functions."""

import pytest

torch = pytest.importorskip("torch")

from numbarnn.torch.calls import run  # noqa: E402
from numbarnn.torch.networks import Network  # noqa: E402

SIZES = (5, 8, 2)  # I, H, L
CELLS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn_tanh": torch.nn.RNN}


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
        y, hy, cy = run(self.network, x, None, None, weights, **options)
        states = [hy] if cy is None else [hy, cy]
        return (y * self.dy).sum() + sum(state.square().sum() for state in states)

    def peer_loss(self, x):
        y, state = self.module(x)
        return (y * self.dy).sum() + sum(s.square().sum() for s in (state if type(state) is tuple else (state,)))


def leaf(x):
    return x.detach().clone().requires_grad_()


def assert_near(one, other):
    torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("views", [True, False], ids=["views", "apart"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one_way", "both_ways"])
@pytest.mark.parametrize("cell", CELLS)
def test_results_and_gradients_are_torchs(cell, bidirectional, views):
    s = Setup(cell, views=views, bidirectional=bidirectional)
    x, peer_x = leaf(s.x), leaf(s.x)
    loss, peer_loss = s.loss(x, s.weights), s.peer_loss(peer_x)
    assert_near(loss, peer_loss)
    loss.backward()
    peer_loss.backward()
    assert_near(x.grad, peer_x.grad)
    for weight, peer in zip(s.weights, s.peers, strict=True):
        assert_near(weight.grad, peer.grad)
    assert len({weight.grad.untyped_storage().data_ptr() for weight in s.weights}) == 1
    assert views == (s.network.last_weights is not None and s.network.last_weights[0] == s.flat.data_ptr())
