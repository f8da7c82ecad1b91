"""Modules that keep the states of every k-th step only: torch's gradients are those without it."""

import copy

import pytest
import torch

import numbarnn.torch as nrt
from numbarnn.cells import library
from numbarnn.torch.networks import Network

K, T, B, I, H = 6, 23, 3, 5, 7  # noqa: E741 - the legend's letter
OPTIONS = {
    "plain": {},
    "bidirectional": {"bidirectional": True},
    "batch_first": {"batch_first": True, "bidirectional": True},
    "dropout": {"dropout": 0.4},
}


def both(options):
    """The same module without and with checkpoints."""
    modules = [nrt.LSTM(I, H, 2, checkpoint_every=k, **options) for k in (None, K)]
    modules[1].load_state_dict(modules[0].state_dict())
    return modules


def results(module, call=None, again=False):
    """y, the final state, and gradients of x, the initial state and parameters; the same random numbers each time."""
    torch.manual_seed(1)
    module.zero_grad()
    outer = (B, T) if module.batch_first else (T, B)
    x, h = torch.randn(*outer, I), torch.randn(4 if module.bidirectional else 2, B, H)
    x.requires_grad_(), h.requires_grad_()
    y, (hn, cn) = (module if call is None else call)(x, (h, h))
    loss = y.sin().sum() + (hn * cn).sum()
    loss.backward(retain_graph=again)
    if again:
        loss.backward()
    return [y, hn, cn, x.grad, h.grad, *(one.grad for one in module.parameters())]


def assert_same(found, expected, factor=1):
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(one, other * factor if number > 2 else other, rtol=1e-5, atol=2e-5)
    assert all(torch.equal(one, other) for one, other in zip(found[:3], expected[:3], strict=True))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_same_as_without(options):
    plain, module = both(options)
    expected = results(plain)
    assert_same(results(module), expected)
    assert_same(results(module, again=True), expected, factor=2)
    assert_same(results(module, torch.compile(module, fullgraph=True, backend="aot_eager")), expected)


def test_any_number_of_steps_compiled_once():
    plain, module = both({})
    call = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    for steps in (20, 31):
        gradients = []
        for one in (plain, call):
            x = torch.ones(steps, B, I, requires_grad=True)
            one(x)[0].sin().sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("bidirectional", (False, True))
def test_states_of_more_units_than_h(bidirectional):
    """x of the step before, of 9 units beside 5: layers whose states differ in size, for engines and for callers."""
    options = {"bidirectional": bidirectional, "dtype": torch.float64}
    modules = [nrt.Recurrent(library.tgru, 9, 5, 2, checkpoint_every=k, **options) for k in (None, K)]
    modules[1].load_state_dict(modules[0].state_dict())
    torch._dynamo.reset()
    found = []
    for call in (*modules, torch.compile(modules[1], fullgraph=True, backend="aot_eager")):
        modules[1].zero_grad()
        x = torch.linspace(-1, 1, T * B * 9, dtype=torch.float64).reshape(T, B, 9).sin().requires_grad_()
        y, (h, before) = call(x)
        (y.sin().sum() + h.square().sum() + sum(one.square().sum() for one in before)).backward()
        module = modules[0] if call is modules[0] else modules[1]
        found.append([y, h, *before, x.grad, *(one.grad.clone() for one in module.parameters())])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


def test_without_gradients_of_parameters():
    torch._dynamo.reset()
    plain, module = (one.requires_grad_(False) for one in both({}))
    for call in (lambda one: one, lambda one: torch.compile(one, fullgraph=True, backend="aot_eager")):
        gradients = []
        for one in (plain, module):
            x = torch.ones(T, B, I, requires_grad=True)
            call(one)(x)[0].sin().sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)


def test_what_is_kept_for_backward():
    """A tenth of what is kept without, and not y, which callers may write to."""

    def kept(module):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one: sizes.append(one.nbytes) or one, lambda one: one):
            y = module(torch.ones(300, B, I))[0]
        return sum(sizes) - 300 * B * I * 4 - sum(one.nbytes for one in module.parameters()), y

    plain, module = both({})
    (found, y), (without, _) = kept(module), kept(plain)
    assert 0 < 10 * found < without - y.nbytes
    (2 * plain(torch.ones(300, B, I))[0]).mean().backward()
    y.mul_(2).mean().backward()
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_what_a_module_says_and_copies():
    module = nrt.GRU(I, H, checkpoint_every=K)
    assert "checkpoint_every=6" in repr(module) and copy.deepcopy(module).checkpoint_every == K
    assert "checkpoint" not in repr(nrt.GRU(I, H))
    with pytest.raises(ValueError, match=r"checkpoint_every must be .* at least 1 .*, or None to keep all, got 0"):
        nrt.LSTM(I, H, checkpoint_every=0)


@pytest.mark.parametrize("steps, needed", [(T, True), (K, False)])
def test_the_operator_without_x_says_what_is_missing(steps, needed):
    """Called directly; calls of at most k steps are computed without it."""
    network = Network("lstm", I, H, checkpoint_every=K)
    x = torch.randn(steps, B, I)
    weights = [torch.randn(network.size)]
    options = None, None, None, network.key, 0.0, False, True
    with torch.no_grad():
        y, *_, reserve = torch.ops.numbarnn.rnn_forward(x, None, None, weights, *options)

    def backward():
        about = network.key, steps, B, [False, False, False, False, True]
        return torch.ops.numbarnn.rnn_backward(y, None, None, None, None, weights, reserve, None, *about, True, [False])

    if needed:
        with pytest.raises(ValueError, match=f"needs x with checkpoint_every={K} and {T} steps, got None"):
            backward()
    else:
        assert backward()[0].abs().sum() > 0
