"""`numbarnn.torch.calls.call` and the operators under it, against torch.nn and in what PyTorch does with functions."""

from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import numbarnn as nr  # noqa: E402
import numbarnn.torch as nrt  # noqa: E402
from numbarnn.torch.networks import Network  # noqa: E402
from torch_networks import SIZES, Setup, assert_near, leaf, run  # noqa: E402


def flags(probability, *shape):
    return torch.rand(shape) < probability


def test_lengths_and_resets_are_tensors():
    s = Setup()
    lengths, resets = torch.tensor([6, 2, 0, 4]), flags(0.3, 6, 4)
    x = s.x.requires_grad_()
    y, hy, cy = run(s.network, x, None, None, s.weights, lengths=lengths, resets=resets, padding_value=7.0)
    options = {"lengths": lengths.tolist(), "resets": resets.numpy(), "padding_value": 7.0}
    other = run(s.network, x, None, None, [s.flat], **options)
    assert_near((y, hy, cy), other)
    assert (y[2:, 1] == 7).all() and (y[:, 2] == 7).all()
    grads = [torch.autograd.grad(result.square().sum(), x)[0] for result in (y, other[0])]
    assert_near(*grads)


@pytest.mark.parametrize("steps", (3, 400), ids=lambda steps: f"T{steps}")  # bound, and read where they are
@pytest.mark.parametrize("kind", ("negated", "zeros"))
def test_views_that_are_not_what_stands_in_memory(kind, steps):
    """PyTorch notes on a tensor that its numbers are those in memory with the other sign, as of the imaginary part of a
    conjugate, or that all are 0."""
    torch.manual_seed(0)
    x, h = torch.randn(steps, 8, 4), torch.randn(1, 8, 64)
    zeros = lambda like: torch._efficientzerotensor(like.shape)  # noqa: E731
    view, plain = (torch._neg_view, torch.neg) if kind == "negated" else (zeros, torch.zeros_like)
    module, results = nrt.GRU(4, 64), []
    for change in (view, plain):
        module.zero_grad()
        y, _ = module(change(x), change(h))
        y.backward(change(torch.ones_like(y)))
        results.append((y.detach(), *(one.grad.clone() for one in module.parameters())))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@nr.cell
def noisy(x, h, p):
    return nr.dropout(nr.tanh(p.W.h @ x + p.R.h @ h), 0.4)


@pytest.mark.parametrize("cell, options, every_state", [
    ("lstm", {}, False), ("lstm", {}, True), ("lstm", {"num_layers": 2, "dropout": 0.5}, True),
    ("gru", {"num_layers": 2, "dropout": 0.5}, False), (noisy, {"bidirectional": True}, False),
], ids=("plain", "states", "dropout_states", "dropout", "noise"))  # fmt: skip
def test_results_of_the_operator_share_no_memory(cell, options, every_state):
    """torch.compile writes into a result that nothing reads any more; backward reads the reserve."""
    network = Network(cell, 5, 8, **options)
    seed = torch.tensor([3]) if network.draws else None
    about = None, None, seed, network.key, 0.0, every_state, True
    found = torch.ops.numbarnn.rnn_forward(torch.randn(6, 4, 5), None, None, [torch.randn(network.size)], *about)
    places = sorted((one.data_ptr(), one.data_ptr() + one.nbytes) for one in found if one.numel())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(places))


def by_operators(s, x, weights):
    """y of the operators themselves."""
    return torch.ops.numbarnn.rnn_forward(x, None, None, weights, None, None, None, s.network.key, 0.0, False, True)[0]


@pytest.mark.parametrize("how", ["eager", "operators"])
def test_several_backward_passes_through_one_forward(how):
    s = Setup()
    x = leaf(s.x)
    loss = s.loss(x, s.weights) if how == "eager" else by_operators(s, x, s.weights).square().sum()
    first = torch.autograd.grad(loss, [x, *s.weights], retain_graph=True)
    again = torch.autograd.grad(2 * loss, [x, *s.weights], loss.new_tensor(0.5), retain_graph=True)
    assert_near(first, again)
    assert_near(first, torch.autograd.grad(loss, [x, *s.weights]))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_second_derivatives_of_operators_are_refused():
    s = Setup()
    x = leaf(s.x)
    (grad,) = torch.autograd.grad(by_operators(s, x, s.weights).square().sum(), x, create_graph=True)
    assert_near(grad, torch.autograd.grad(s.module(x)[0].square().sum(), x)[0])
    with pytest.raises(NotImplementedError, match=r"programs of torch\.compile.*call the module itself"):
        grad.sum().backward()


def test_what_needs_no_gradient_is_not_computed(monkeypatch):
    from numbarnn.torch import core

    asked = []

    def noted(*arguments):
        asked.append(arguments[5][:2])
        return core_backward(*arguments)

    core_backward = core.backward_tensors
    monkeypatch.setattr(core, "backward_tensors", noted)
    s = Setup()
    s.loss(s.x, s.weights).backward()
    for weight in s.weights:
        weight.requires_grad_(False)
    x = leaf(s.x)
    s.loss(x, s.weights).backward()
    s.weights[3].requires_grad_()
    s.loss(x, s.weights).backward()
    assert asked == [(False, True), (True, False), (True, True)]
    assert s.weights[3].grad is not None and s.weights[2].grad is not None  # of the first call
    assert not s.loss(s.x, [weight.detach() for weight in s.weights]).requires_grad


@pytest.mark.parametrize("what", ["weight", "y", "x"])
def test_changes_between_forward_and_backward_are_noticed(what):
    s = Setup()
    x = s.x.clone()
    y, *_ = run(s.network, x, None, None, s.weights)
    changed = {"weight": s.weights[1], "y": y.detach(), "x": x}[what]
    with torch.no_grad():
        changed.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    from torch.utils.checkpoint import checkpoint

    s = Setup()
    s.network = Network("lstm", *SIZES, dropout=0.5)
    grads = []
    for with_it in (False, True):
        x = leaf(s.x)
        torch.manual_seed(3)
        function = lambda x: s.loss(x, s.weights, training=True)  # noqa: E731
        (checkpoint(function, x, use_reentrant=reentrant) if with_it else function(x)).backward()
        grads.append([x.grad, *[weight.grad for weight in s.weights]])
        s.weights = [leaf(weight) for weight in s.weights]
    assert_near(*grads)


def test_saved_tensors_hooks_get_all_that_is_kept():
    s = Setup()
    x, kept = leaf(s.x), []

    def pack(tensor):
        kept.append(tensor.nbytes)
        return tensor.clone()

    expected = torch.autograd.grad(s.loss(x, s.weights), [x, *s.weights])
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.clone()):
        loss = s.loss(x, s.weights)
    assert sum(kept) > 6 * 4 * 8 * 2 * 4 * 5
    assert_near(expected, torch.autograd.grad(loss, [x, *s.weights]))
    with torch.autograd.graph.save_on_cpu():
        loss = s.loss(x, s.weights)
    assert_near(expected, torch.autograd.grad(loss, [x, *s.weights]))


@pytest.mark.parametrize("gradients", [False, True], ids=["folded", "one_after_another"])
def test_vmap_over_x(gradients):
    s = Setup()
    x = torch.randn(3, *s.x.shape)
    lengths, weights = torch.tensor([[6, 2, 0, 4]] * 3), s.weights if gradients else [w.detach() for w in s.weights]

    def call(x, lengths):
        return run(s.network, x, None, None, weights, lengths=lengths)

    together = torch.vmap(call)(x, lengths)
    singly = [
        torch.stack(results) for results in zip(*[call(*one) for one in zip(x, lengths, strict=True)], strict=True)
    ]
    assert_near(list(together), singly)
    assert_near(list(torch.vmap(call, (0, None))(x, lengths[0])), singly)


def gradients_by(route, module, x, state):
    """(y, the gradients of all parameters) of a module's call."""
    if route == "func":
        parameters = dict(module.named_parameters())

        def total(parameters):
            y = torch.func.functional_call(module, parameters, (x, state))[0]
            return y.sum(), y

        gradients, (_, y) = torch.func.grad_and_value(total, has_aux=True)(parameters)
        return y, [gradient.detach() for gradient in gradients.values()]
    compiled = torch.compile(module, backend="aot_eager") if route == "compiled" else module
    for _ in range(3):  # the later ones repeat the first
        module.zero_grad()
        y = compiled(x, state)[0]
        y.sum().backward()
    return y, [parameter.grad for parameter in module.parameters()]


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("route", ["eager", "func", "compiled"])
def test_without_a_state_there_is_no_product_of_zeros(route, steps):
    """In turns with calls that have one; the same bits as numbarnn's own calls, and R is not read by the first step."""
    module = nrt.LSTM(5, 24, bidirectional=True)
    layer, x = nr.convert.from_torch(module, device="cpu"), torch.randn(steps, 3, 5)
    zeros = torch.zeros(2, 3, 24)
    for state in (None, (zeros, zeros), None):
        y, gradients = gradients_by(route, module, x, state)
        arrays = None if state is None else tuple(one.numpy() for one in state)
        own, _, tape = layer.forward(x.numpy(), arrays)
        expected = layer.backward(tape, np.ones_like(own)).params
        np.testing.assert_array_equal(y.detach(), own)
        for (name, _), found in zip(module.named_parameters(), gradients, strict=True):
            np.testing.assert_array_equal(found, expected[name], err_msg=name)
    with torch.no_grad():
        module.weight_hh_l0.fill_(torch.nan), module.weight_hh_l0_reverse.fill_(torch.nan)
    y, gradients = gradients_by(route, module, x[:1], None)
    assert y.isfinite().all() and all(one.isfinite().all() for one in gradients)
