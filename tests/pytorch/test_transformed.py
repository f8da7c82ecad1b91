"""Several calls, or several backward passes, as one: what vmap does around modules that have gradients."""

import pytest
import torch

import numbarnn.torch as nrt

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")  # PyTorch's own
X = 4, 2, 3


def gradients_one_by_one(modules, x, dy):
    """Name -> the gradients of the modules' parameters, stacked."""
    names, found = [name for name, _ in modules[0].named_parameters()], []
    for module, own in zip(modules, dy, strict=True):
        found.append(torch.autograd.grad(module(x)[0], list(module.parameters()), own))
    return dict(zip(names, map(torch.stack, zip(*found, strict=True)), strict=True))


@pytest.mark.parametrize("name, compiled", [("LSTM", False), ("GRU", False), ("LSTM", True)])
def test_an_ensemble_is_trained(name, compiled):
    """Stacked parameters have gradients outside of vmap, where the call within does not see it."""
    modules, x = [getattr(nrt, name)(3, 5, 2, bidirectional=True) for _ in range(3)], torch.randn(X)
    parameters, buffers = torch.func.stack_module_state(modules)
    call = torch.func.vmap(lambda own: torch.func.functional_call(modules[0], (own, buffers), (x,))[0])
    y = (torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call)(parameters)
    torch.testing.assert_close(y, torch.stack([module(x)[0] for module in modules]))
    dy = torch.randn_like(y)
    y.backward(dy)
    expected = gradients_one_by_one(modules, x, dy)
    assert expected.keys() == parameters.keys()
    for name, own in parameters.items():
        torch.testing.assert_close(own.grad, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("what", ["x", "state"])
def test_what_is_batched_alone_has_gradients(what):
    module = nrt.GRU(3, 5).requires_grad_(False)
    x, h = torch.randn(3, *X), torch.randn(3, 1, 2, 5)
    leaf = (x if what == "x" else h).requires_grad_()
    y = torch.func.vmap(lambda *given: module(*given)[0])(x, h)
    (found,) = torch.autograd.grad(y.square().sum(), leaf)
    singly = torch.stack([module(*given)[0] for given in zip(x, h, strict=True)])
    torch.testing.assert_close(found, *torch.autograd.grad(singly.square().sum(), leaf))


def test_an_operator_that_was_told_to_keep_nothing_computes_once_more():
    network = nrt.LSTM(3, 5)._computation._networks[0]
    x, weights = torch.randn(X, requires_grad=True), [torch.randn(network.size, requires_grad=True)]
    lengths, resets = torch.tensor([4, 2]), torch.rand(4, 2) < 0.3
    states, found = [torch.randn(1, 2, 5, requires_grad=True) for _ in range(2)], []
    for keep in (False, True):
        options = lengths, resets, None, network.key, 0.5, True, keep
        results = torch.ops.numbarnn.rnn_forward(x, *states, weights, *options)[:4]
        found.append(torch.autograd.grad([one.square().sum() for one in results], [x, *states, *weights]))
    torch.testing.assert_close(*found)


# ------------------------------------------------------------------------------------------ several backward passes
def several_by_autograd(module, x, dy, inputs):
    return torch.autograd.grad(module(x)[0], inputs, dy, is_grads_batched=True)


def several_by_func(module, x, dy, inputs):
    y = module(x)[0]
    return torch.func.vmap(lambda own: torch.autograd.grad(y, inputs, own, retain_graph=True))(dy)


@pytest.mark.parametrize("several", [several_by_autograd, several_by_func])
@pytest.mark.parametrize("make", [lambda: nrt.LSTM(3, 5, 2), lambda: nrt.GRU(3, 5, batch_first=True)])
def test_several_backward_passes_at_once(make, several):
    module, x = make(), torch.randn(X, requires_grad=True)
    for _ in range(2):  # the second repeats the first
        inputs = [x, *module.parameters()]
        dy = torch.randn(3, *module(x)[0].shape)
        singly = [torch.autograd.grad(module(x)[0], inputs, own) for own in dy]
        found = several(module, x, dy, inputs)
        for one, expected in zip(found, zip(*singly, strict=True), strict=True):
            torch.testing.assert_close(one, torch.stack(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobians(vectorize):
    theirs, ours = torch.nn.GRU(3, 2), nrt.GRU(3, 2)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 1, 3)
    expected = torch.autograd.functional.jacobian(lambda x: theirs(x)[0], x)
    found = torch.autograd.functional.jacobian(lambda x: ours(x)[0], x, vectorize=vectorize)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.func.jacrev(lambda x: ours(x)[0])(x), expected)


def test_a_module_that_is_made_under_a_transformation():
    made = torch.func.jacrev(lambda x: nrt.GRU(3, 2)(x)[0])(torch.randn(3, 1, 3))
    assert made.shape == (3, 1, 2, 3, 1, 3)


@pytest.mark.parametrize("dual", ["x", "h", "weight_hh"])
@pytest.mark.parametrize("make, ending, steps", [(nrt.GRU, "_l0", (4,)), (nrt.GRUCell, "", ())], ids=["layers", "cell"])
def test_forward_mode_where_nothing_has_a_gradient(make, ending, steps, dual):
    """A tangent that is lost would count as zero."""
    frozen, name = make(3, 2, dtype=torch.double).requires_grad_(False), "weight_hh" + ending
    h = torch.randn(*(1 for _ in steps), 2, 2).double()
    tensors = {"x": torch.randn(*steps, 2, 3).double(), "h": h, "weight_hh": frozen.get_parameter(name)}

    def call(given):
        own = tensors | {dual: given}
        return torch.func.functional_call(frozen, {name: own["weight_hh"]}, (own["x"], own["h"]))[0]

    given = tensors[dual]
    y = [call(given) for _ in range(2)]  # calls that are remembered
    expected = (call(given * (1 + 1e-6)) - call(given * (1 - 1e-6))) / 2e-6
    with torch.autograd.forward_ad.dual_level():
        found = torch.autograd.forward_ad.unpack_dual(call(torch.autograd.forward_ad.make_dual(given, given)))
        torch.testing.assert_close(call(given), y[0])  # without a tangent
    with torch.no_grad():
        others = [torch.func.jvp(call, (given,), (given,))[1], torch.func.linearize(call, given)[1](given)]
    torch.testing.assert_close(found.primal, y[0])
    for tangent in (found.tangent, *others):
        torch.testing.assert_close(tangent, expected, rtol=1e-7, atol=1e-8)


def test_derivatives_by_torch_func_within_a_compiled_function():
    """An operator knows nothing of them; the compiler leaves such calls out, as it does torch.nn's modules."""
    frozen, x = nrt.GRU(3, 2).requires_grad_(False), torch.randn(4, 2, 3)

    def loss(x):
        return frozen(x)[0].square().sum()

    def of_each(x):
        return torch.func.vmap(torch.func.grad(lambda x: loss(x[:, None])), in_dims=1)(x)

    for function in (torch.func.grad(loss), of_each, lambda x: torch.func.jvp(loss, (x,), (x,))):
        compiled = torch.compile(lambda x, function=function: function(x), backend="aot_eager")
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_inference_over_several_inputs_at_once(name):
    module, x = getattr(nrt, name)(3, 5, 2), torch.randn(6, *X)
    with torch.no_grad():
        y = torch.func.vmap(lambda own: module(own)[0])(x)
        torch.testing.assert_close(y, torch.stack([module(own)[0] for own in x]))


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_resets_of_several_calls_at_once(name, batch_first):
    """Each call has resets of its own, in the axes of its x."""
    module, x = getattr(nrt, name)(3, 5, batch_first=batch_first), torch.randn(6, *X)
    resets = torch.rand(6, *X[:2]) < 0.3
    y = torch.func.vmap(lambda own, at: module(own, resets=at)[0])(x, resets)
    torch.testing.assert_close(y, torch.stack([module(own, resets=at)[0] for own, at in zip(x, resets, strict=True)]))
