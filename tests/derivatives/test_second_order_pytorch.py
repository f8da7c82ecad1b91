"""Second derivatives and forward mode of numbarnn.torch, against torch.nn's modules and finite differences."""

import threading
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import func  # noqa: E402
from torch.autograd import forward_ad, gradcheck, gradgradcheck  # noqa: E402

import numbarnn as nr  # noqa: E402
import numbarnn.torch as nrt  # noqa: E402
from numbarnn.cells import library  # noqa: E402
from torch_networks import run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*functorch.*", "ignore:.*vmap.*performance.*")
DOUBLE = torch.double
grad = torch.autograd.grad


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def pair(name, *sizes, **options):
    """torch.nn's module and ours, with the same parameters."""
    theirs, ours = (getattr(kind, name)(*sizes, dtype=DOUBLE, **options) for kind in (torch.nn, nrt))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def random(*shape):
    return torch.randn(*shape, dtype=DOUBLE)


def first(results):
    return results[0] if isinstance(results, tuple) else results


def penalty(results, inputs):
    """The gradients of the squares of gradients of the squares of results."""
    gradients = grad(sum(one.square().sum() for one in results), inputs, create_graph=True)
    return grad(sum(one.square().sum() for one in gradients), inputs, allow_unused=True)


def assert_close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


# -------------------------------------------------------------------------------------------------- finite differences
def by_tensors(module, sizes, **about):
    """(a function of x, the states and all parameters, such tensors)."""
    names, count = [name for name, _ in module.named_parameters()], len(sizes)

    def call(x, *rest):
        state, own = rest[:count], dict(zip(names, rest[count:], strict=True))
        state = () if not state else (state[0],) if count == 1 else (state,)
        y, final = func.functional_call(module, own, (x, *state), about)
        return torch.utils._pytree.tree_leaves((y, final))

    x, states = random(3, 2, 3), [random(*size) for size in sizes]
    tensors = [x, *states, *(one.detach().clone() for one in module.parameters())]
    return lambda *all_of_them: tuple(call(*all_of_them)), [one.requires_grad_() for one in tensors]


CASES = {
    "lstm": (lambda: nrt.LSTM(3, 2, 2, dtype=DOUBLE), [(2, 2, 2)] * 2, {}),
    "gru": (lambda: nrt.GRU(3, 2, bidirectional=True, dtype=DOUBLE), [(2, 2, 2)], {}),
    "rnn": (lambda: nrt.RNN(3, 2, dtype=DOUBLE), [], {}),
    "projection, lengths": (
        lambda: nrt.LSTM(3, 3, proj_size=2, dtype=DOUBLE), [(1, 2, 2), (1, 2, 3)], {"lengths": [0, 2]},
    ),
    "resets": (lambda: nrt.GRU(3, 2, dtype=DOUBLE), [], {"resets": torch.tensor([[0, 1], [1, 0], [0, 0]]).bool()}),
    "unequal sizes": (lambda: nrt.GRU(3, [3, 2], dtype=DOUBLE), [], {}),
    "peepholes": (lambda: nrt.Recurrent(library.peephole_lstm, 3, 2, dtype=DOUBLE), [], {}),
    "sums over units": (lambda: nrt.Recurrent(library.layer_norm_gru, 3, 3, dtype=DOUBLE), [], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_against_finite_differences(name):
    make, sizes, about = CASES[name]
    function, tensors = by_tensors(make(), sizes, **about)
    assert gradcheck(function, tensors, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(function, tensors, fast_mode=True)
    options = {"check_fwd_over_rev": True, "check_rev_over_rev": False, "check_undefined_grad": False}
    assert gradgradcheck(function, tensors, fast_mode=True, **options)


def test_masks_are_the_same_in_all_passes():
    module = nrt.LSTM(3, 5, 3, dropout=0.5, dtype=DOUBLE)

    def loss(x):
        torch.manual_seed(7)
        return module(x)[0].square().sum()

    x = random(4, 2, 3).requires_grad_()
    assert gradcheck(loss, (x,), check_forward_ad=True) and gradgradcheck(loss, (x,))


def test_parameters_in_one_flat_tensor():
    network = nrt.LSTM(3, 2, dtype=DOUBLE)._computation._networks[0]
    tensors = [random(3, 2, 3).requires_grad_(), random(network.size).requires_grad_()]
    function = lambda x, weights: run(network, x, None, None, [weights])[0]  # noqa: E731
    assert gradcheck(function, tensors, check_forward_ad=True) and gradgradcheck(function, tensors)


# ------------------------------------------------------------------------------------------------------------ torch.nn
@pytest.mark.parametrize("wanted", ["x", "weight_hh", "bias", "reverse", "x weight_ih", "x weight bias"])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_double_backward_with_frozen_parameters(name, wanted):
    x, found = random(4, 2, 3), []
    for module in pair(name, 3, 4, 2, bidirectional=True):
        own = x.clone().requires_grad_("x" in wanted.split())
        for key, parameter in module.named_parameters():
            parameter.requires_grad_(any(word in key for word in wanted.split() if word != "x"))
        inputs = [one for one in (own, *module.parameters()) if one.requires_grad]
        found.append(penalty([module(own)[0]], inputs))
    assert_close(*found[::-1])


@pytest.mark.parametrize("name, options", [("LSTM", {}), ("GRU", {}), ("LSTM", {"proj_size": 2})])
@pytest.mark.parametrize("of", ["state", "all"])
def test_double_backward_through_states(name, options, of):
    x, found = random(4, 2, 3), []
    states = [random(2, 2, options.get("proj_size", 4)), random(2, 2, 4)][: 1 + (name == "LSTM")]
    for module in pair(name, 3, 4, 2, **options):
        own = [one.clone().requires_grad_() for one in states]
        y, final = module(x, tuple(own) if name == "LSTM" else own[0])
        final = final if isinstance(final, tuple) else (final,)
        found.append(penalty(final[-1:] if of == "state" else [y, *final], [*own, *module.parameters()]))
    assert_close(*found[::-1])


def called_twice(module, x):
    y, state = module(x)
    return module(y, state)[0]


def of_packed(module, x):
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, [2, 4, 1], enforce_sorted=False)
    y, (h, c) = module(packed)
    return torch.cat([y.data.reshape(-1), h.reshape(-1), c.reshape(-1)])


def of_cell(module, x):
    state = None
    for one in x:
        state = module(one, state)
    return first(state)


@pytest.mark.parametrize("name, options, call", [
    ("LSTM", {}, called_twice), ("LSTM", {"bidirectional": True}, of_packed), ("GRU", {}, lambda m, x: m(x[:, 0])[0]),
    ("GRU", {"batch_first": True}, lambda module, x: module(x.transpose(0, 1))[0]),
    *((cell, None, of_cell) for cell in ("LSTMCell", "GRUCell", "RNNCell")),
])  # fmt: skip
def test_double_backward_of_every_form_of_call(name, options, call):
    x, found = random(4, 3, 3), []
    for module in pair(name, 3, 3, **options or {}):
        own = x.clone().requires_grad_()
        found.append(penalty([call(module, own)], [own, *module.parameters()]))
    assert_close(*found[::-1])


def loss_of(module):
    return lambda x: module(x)[0].square().sum()


U = torch.linspace(-1, 1, 24, dtype=DOUBLE).view(4, 2, 3)
OTHERS = {
    "jvp": lambda module, x: func.jvp(lambda x: module(x)[0], (x,), (U,)),
    "jacfwd": lambda module, x: func.jacfwd(lambda x: module(x)[0])(x),
    "hessian": lambda module, x: func.hessian(loss_of(module))(x),
    "jacrev of jacrev": lambda module, x: func.jacrev(func.jacrev(loss_of(module)))(x),
    "grad of jvp": lambda module, x: func.grad(lambda x: func.jvp(loss_of(module), (x,), (U,))[1].square())(x),
    "jvp of grad": lambda module, x: func.jvp(func.grad(loss_of(module)), (x,), (U,)),
    "functional.hvp": lambda module, x: torch.autograd.functional.hvp(loss_of(module), x, U),
    "functional.vhp": lambda module, x: torch.autograd.functional.vhp(loss_of(module), x, U),
    "functional.hessian": lambda module, x: torch.autograd.functional.hessian(loss_of(module), x, vectorize=True),
    "vmap of jvp": lambda module, x: func.vmap(lambda u: func.jvp(loss_of(module), (x,), (u,))[1])(torch.stack([U, x])),
}


@pytest.mark.parametrize("name", OTHERS)
def test_torch_func_and_torch_autograd_functional(name):
    x = random(4, 2, 3)
    theirs, ours = (OTHERS[name](module, x) for module in pair("GRU", 3, 2))
    assert_close(ours, theirs)


@pytest.mark.parametrize("inner", [False, True], ids=["second", "first"])
def test_several_gradients_at_once(inner):
    """is_grads_batched of the second derivative, and of a first one that has second ones."""
    x, found = random(4, 2, 3), []
    v = random(3, 4, 2, 2 if inner else 3)
    for module in pair("GRU", 3, 2):
        own = x.clone().requires_grad_()
        inputs = [own, *module.parameters()]
        if inner:
            (g,) = grad(module(own)[0], own, v, is_grads_batched=True, create_graph=True)
            found.append(grad(g.square().sum(), inputs))
        else:
            (g,) = grad(module(own)[0].square().sum(), own, create_graph=True)
            found.append(grad(g, inputs, v, is_grads_batched=True))
    assert_close(*found[::-1])


def test_gradients_of_each_sequence():
    module, x = nrt.GRU(3, 4, dtype=DOUBLE), random(4, 3, 3)
    parameters = {name: one.detach() for name, one in module.named_parameters()}

    def loss(parameters, own):
        return func.functional_call(module, parameters, (own[:, None],))[0].square().sum()

    found = func.vmap(func.grad(loss), in_dims=(None, 1))(parameters, x)
    for b in range(3):
        assert_close({name: one[b] for name, one in found.items()}, func.grad(loss)(parameters, x[:, b]))


def test_a_gradient_penalty_trains_along_the_same_curve():
    """A critic of sequences as in WGAN-GP (Gulrajani et al. 2017, arXiv:1704.00028)."""
    real, fake, curves = random(5, 4, 3), random(5, 4, 3) + 1, []
    for module in pair("LSTM", 3, 8):
        optimizer, curve = torch.optim.SGD(module.parameters(), lr=0.1), []
        for step in range(10):
            mixed = (real + (fake - real) * ((step + 1) / 11)).requires_grad_()
            (slope,) = grad(module(mixed)[0][-1].sum(), mixed, create_graph=True)
            norm = slope.square().sum((0, 2)).sqrt()
            scores = [module(one)[0][-1].sum(-1).mean() for one in (fake, real)]
            loss = scores[0] - scores[1] + 10 * (norm - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(torch.tensor(curve))
    assert curves[0][-1] < curves[0][0] - 0.1
    assert_close(*curves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_other_dtypes(dtype):
    module, wide = nrt.GRU(3, 4, dtype=dtype), nrt.GRU(3, 4, dtype=DOUBLE)
    wide.load_state_dict(module.state_dict())
    x, found = random(4, 2, 3).to(dtype), []
    for own in (module, wide):
        at = x.to(own.weight_ih_l0.dtype).requires_grad_()
        found.append(penalty([own(at)[0]], [at, *own.parameters()]))
    for one, other in zip(*found, strict=True):
        assert one.dtype == dtype
        assert (one.double() - other).abs().max() < 8 * torch.finfo(dtype).eps * other.abs().max()


@pytest.mark.parametrize("proj_size", [0, 2])
def test_nothing_is_read_beyond_a_sequence(proj_size):
    module, x, found = nrt.LSTM(3, 4, proj_size=proj_size, bidirectional=True, dtype=DOUBLE), random(4, 2, 3), []
    for value in (0.0, torch.nan):
        own = x.clone()
        own[2:, 1] = value
        own.requires_grad_()
        found.append(penalty([module(own, lengths=[4, 2])[0]], [own, *module.parameters()]))
    torch.testing.assert_close(*found, rtol=0, atol=0)


# ------------------------------------------------------------------------------------------ around calls
def test_threads_saved_tensors_hooks_and_checkpoints_of_the_network():
    module, checkpointed = (nrt.LSTM(3, 8, 2, dtype=DOUBLE, checkpoint_every=every) for every in (None, 2))
    checkpointed.load_state_dict(module.state_dict())
    x, found = [random(6, 2, 3).requires_grad_() for _ in range(4)], {}

    def second(module, x):
        return penalty([module(x)[0]], [x, *module.parameters()])

    expected = [second(module, one) for one in x]
    threads = [threading.Thread(target=lambda n=n: found.update({n: second(module, x[n])})) for n in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert_close([found[n] for n in range(4)], expected)
    with torch.autograd.graph.save_on_cpu():
        assert_close(second(module, x[0]), expected[0])
    assert_close(second(checkpointed, x[0]), expected[0])
    again = torch.utils.checkpoint.checkpoint(lambda x: module(x)[0], x[0], use_reentrant=False)
    assert_close(penalty([again], [x[0], *module.parameters()]), expected[0])


@pytest.mark.parametrize("what", ["x", "h", "c"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_callers_may_write_into_what_a_frozen_module_was_given(batch_first, what):
    """Only second derivatives would read it again."""
    module = nrt.LSTM(3, 4, batch_first=batch_first, dtype=DOUBLE).requires_grad_(False)
    leaf, state = random(2, 2, 3).requires_grad_(), (random(1, 2, 4), random(1, 2, 4))
    given = {"x": leaf * 1, "h": state[0], "c": state[1]}
    expected = grad(module(leaf, tuple(one.clone() for one in state))[0].sum(), leaf)
    y, _ = module(given["x"], (given["h"], given["c"]))
    with torch.no_grad():
        given[what].mul_(2)
    assert_close(grad(y.sum(), leaf, retain_graph=True), expected)
    if what != "x" or not batch_first:
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*clone"):
            grad(y.sum(), leaf, create_graph=True)


# ---------------------------------------------------------------------------------------------------- what there is not
def test_third_derivatives_say_so():
    module, x = nrt.GRU(3, 2, dtype=DOUBLE), random(4, 2, 3).requires_grad_()
    (g,) = grad(loss_of(module)(x), x, create_graph=True)
    (second,) = grad(g.square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="first and second derivatives, but no third ones"):
        grad(second.sum(), x)
    for outer in (func.grad, lambda f: lambda x: func.jvp(f, (x,), (x,))):
        with pytest.raises(NotImplementedError, match="first and second derivatives"):
            outer(lambda x: func.grad(lambda x: func.grad(loss_of(module))(x).square().sum())(x).sum())(x.detach())
    with pytest.raises(NotImplementedError, match="forward mode of reverse mode"):
        func.jacfwd(func.jacfwd(loss_of(module)))(x.detach())


def test_second_derivatives_by_the_states_of_all_steps_say_so():
    module, x = nrt.LSTM(3, 2, dtype=DOUBLE), random(4, 2, 3).requires_grad_()
    y, _, states = module(x, output_states=True)
    (g,) = grad(y.square().sum(), x, create_graph=True)
    assert_close(grad(g.square().sum(), x), penalty([module(x)[0]], [x]))  # they are not in it
    _, _, states = module(x, output_states=True)
    (g,) = grad(states[0].square().sum(), x, create_graph=True)
    with pytest.raises(
        NotImplementedError, match=r"with output_states, second derivatives and forward mode are not computed"
    ):
        grad(g.square().sum(), x)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="output_states"):
        module(forward_ad.make_dual(x, x), output_states=True)


def test_cells_written_as_functions_say_so():
    by_hand = replace(nr.cells.LSTM, name="by_hand")
    module, x = nrt.Recurrent(by_hand, 3, 4), torch.randn(4, 2, 3, requires_grad=True)
    (g,) = grad(module(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="written as functions"):
        grad(g.square().sum(), x)
