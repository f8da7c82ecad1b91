"""Calls that repeat the last one see everything that has changed since."""

import threading

import pytest
import torch

import torch_modules

X = 4, 3, 5


def both(name="LSTM", **options):
    """torch.nn's module and ours, called often enough that ours repeats its last call."""
    modules = torch_modules.pair(name, 5, 5, **options)
    for _ in range(3):
        torch_modules.assert_same(*modules, torch.randn(X))
        with torch.no_grad():
            modules[1](torch.randn(X))
    return modules


def set_data(module):
    module.weight_hh_l0.data = module.weight_hh_l0.data.clone() * 2


def transpose_data(module):
    own = module.weight_ih_l0
    own.data = own.data.view(5, 4, 5).transpose(0, 2).reshape(20, 5)


def transpose_in_place(module):
    """The same memory, read in another order."""
    module.weight_hh_l0.data = module.weight_hh_l0.data.t()


def step(module):
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    module(torch.ones(X))[0].sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def set_parameter(module):
    module.weight_hh_l0 = torch.nn.Parameter(module.weight_hh_l0.detach() * 2)


def load(module):
    module.load_state_dict({name: one * 2 for name, one in module.state_dict().items()})


def assign(module):
    module.load_state_dict({name: one * 2 for name, one in module.state_dict().items()}, assign=True)


def write(module):
    with torch.no_grad():
        module.bias_hh_l0[3] = 4.0
        module.weight_ih_l0.mul_(0.5)


def normalize(module):
    torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")


def normalize_as_before(module):
    torch.nn.utils.weight_norm(module, "weight_hh_l0")


def prune(module):
    from torch.nn.utils.prune import l1_unstructured

    l1_unstructured(module, "weight_hh_l0", 0.5)


def there_and_back(module):
    module.double()
    module.float()


CHANGES = (
    set_data, transpose_data, step, set_parameter, load, assign, write, normalize, normalize_as_before, prune,
    there_and_back,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_what_is_changed_is_seen(name, change):
    modules = both(name) if change is not transpose_data else torch_modules.pair(name, 5, 5)
    if change is transpose_data and name == "GRU":
        pytest.skip("of another shape")
    for module in modules:
        change(module)
    for _ in range(3):
        torch_modules.assert_same(*modules, torch.randn(X))
    with torch.no_grad():
        x = torch.randn(X)
        torch.testing.assert_close(modules[1](x), modules[0](x))


def test_what_wants_gradients_may_change():
    theirs, ours = both()
    x, found = torch.randn(X), []
    for module in (theirs, ours):
        module.zero_grad()
        module.requires_grad_(False)
        assert not module(x)[0].requires_grad
        leaf = x.clone().requires_grad_()
        module(leaf)[0].sum().backward()
        module.weight_hh_l0.requires_grad_()
        module(x)[0].sum().backward()
        assert module.weight_ih_l0.grad is None
        found.append((leaf.grad, module.weight_hh_l0.grad))
    torch.testing.assert_close(*found)


def test_the_same_memory_read_otherwise_is_seen():
    theirs, ours = both("RNN")
    for _ in range(3):
        for module in (theirs, ours):
            transpose_in_place(module)
        theirs.flatten_parameters()
        torch_modules.assert_same(theirs, ours, torch.randn(X))


def test_calls_of_other_forms_in_turns():
    theirs, ours = both(batch_first=True)
    state = tuple(torch.randn(1, X[0], 5) for _ in range(2))
    inputs = [
        (torch.randn(X),), (torch.randn(X), state), (torch.randn(2, 3, 5),), (torch.randn(X), state),
        (torch.randn(3, 4, 5).transpose(0, 1),), (torch.randn(3, 5),), (torch.randn(X),),
    ]  # fmt: skip
    for given in inputs * 2:
        torch_modules.assert_same(theirs, ours, *given)
    for module in (theirs, ours):
        module.batch_first = False
    torch_modules.assert_same(theirs, ours, torch.randn(X))
    x = torch.randn(X)
    with pytest.raises(RuntimeError, match="must be equal to input_size"):
        ours(x[..., :4])
    with pytest.raises(ValueError, match="does not match weight dtype"):
        ours(x.double())
    with pytest.raises(RuntimeError, match="Expected hidden"):
        ours(x, tuple(one[:, :2] for one in state))
    torch_modules.assert_same(theirs, ours, x)


def test_hooks_on_saved_tensors_are_asked():
    _, ours = both()
    x, packed = torch.randn(X), []

    def pack(tensor):
        packed.append(tensor)
        return tensor.clone()

    expected = torch.autograd.grad(ours(x)[0].sum(), list(ours.parameters()))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y, _ = ours(x)
    write(ours)  # not the copies
    torch.testing.assert_close(torch.autograd.grad(y.sum(), list(ours.parameters())), expected)
    assert len(packed) >= 5


def test_weights_that_change_before_backward_are_an_error():
    _, ours = both()
    y, _ = ours(torch.randn(X))
    write(ours)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_threads_have_results_of_their_own():
    _, ours = both()
    inputs = [torch.randn(X) for _ in range(4)]
    expected, found = [ours(x)[0].detach() for x in inputs], [None] * 4

    def work(number):
        for _ in range(50):
            y, _ = ours(inputs[number])
            found[number] = y.detach()
            y.sum().backward()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ("LSTM", "GRU"))
def test_calls_in_inference_mode_and_outside(name):
    """Arrays that are kept from one call to the next are written to in both, whichever came first."""
    own, ours = torch_modules.pair(name, 5, 5)
    x, state = torch.randn(X), torch.randn(1, X[1], 5)
    state = (state, state) if name == "LSTM" else state
    for modes in ((torch.inference_mode, torch.no_grad), (torch.no_grad, torch.inference_mode)):
        for mode in modes:
            with mode():
                for arguments in ((x,), (x, state)):
                    torch.testing.assert_close(ours(*arguments), own(*arguments))
    torch_modules.assert_same(own, ours, x)
