"""Parameters as views of one flat buffer: theirs, their gradients', and when they came from elsewhere."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import numbarnn as nr
import numbarnn.torch as nrt
import torch_modules
from numbarnn.cells import library
from running import nan_filled, not_prepared


def are_one_buffer(tensors):
    """Whether these tensors share a memory that holds nothing else."""
    memories = {one.untyped_storage().data_ptr() for one in tensors}
    return len(memories) == 1 and tensors[0].untyped_storage().nbytes() == sum(one.nbytes for one in tensors)


def step(module, x):
    module(x)[0].sum().backward()
    return [one.grad for one in module.parameters()]


@pytest.mark.parametrize("make", [
    lambda: nrt.LSTM(3, 5, 2, bidirectional=True, proj_size=2), lambda: nrt.GRU(3, [5, 4], bias=False),
    lambda: nrt.LSTM(3, 5, 3, dropout=0.1).double().float(), lambda: nrt.GRUCell(3, 5),
])  # fmt: skip
def test_parameters_and_gradients_are_views_of_one_buffer_each(make):
    module = make()
    own = list(module.parameters())
    places = [one.data_ptr() for one in own]
    assert are_one_buffer(own)
    gradients = step(module, torch.randn(2, 3) if isinstance(module, nrt.GRUCell) else torch.randn(4, 2, 3))
    if not module._computation.by_layer:  # else one buffer per layer
        assert are_one_buffer(gradients)
    torch.optim.Adam(own).step()
    assert [one.data_ptr() for one in own] == places


def test_frozen_parameters():
    module = nrt.LSTM(3, 5)
    module.weight_ih_l0.requires_grad_(False)
    gradients = step(module, torch.randn(4, 2, 3))
    assert gradients[0] is None and all(one is not None for one in gradients[1:])
    y, _ = module.requires_grad_(False)(torch.randn(4, 2, 3))
    assert not y.requires_grad


@pytest.mark.parametrize("names", [["weight_hh_l0"], ["weight_ih_l1"], ["bias_ih_l0", "bias_hh_l0"], ["weight_hh_l1"]])
def test_a_layer_that_was_frozen_has_its_gradients_back(names):
    """What a repeated call has prepared without these gradients is not used for calls that need them."""
    theirs, ours = torch_modules.pair("LSTM", 6, 7, 2)
    x = torch.randn(5, 3, 6)
    for wanted in (False, True, False, True):
        for module in (theirs, ours):
            for name in names:
                module.get_parameter(name).requires_grad_(wanted)
        for _ in range(3):
            theirs.zero_grad()
            ours.zero_grad()
            expected, found = step(theirs, x), step(ours, x)
            for one, other in zip(found, expected, strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


FROZEN = {
    "lstm": lambda: nrt.LSTM(3, 5, 3, bidirectional=True),
    "gru": lambda: nrt.GRU(3, 5, 3, bidirectional=True, batch_first=True),
    "sums": lambda: nrt.Recurrent(nr.cells.library.layer_norm_gru, 3, 5, 3, bidirectional=True),
    "formed": lambda: nrt.Recurrent(nr.cells.library.low_rank_rnn, 3, 5, 3, bidirectional=True),
    "checkpoints": lambda: nrt.LSTM(3, 5, 3, bidirectional=True, checkpoint_every=3),
}


@pytest.mark.parametrize("binds", [nullcontext, not_prepared], ids=["prepared", "not_prepared"])
@pytest.mark.parametrize("name", FROZEN)
def test_frozen_layers_cost_no_product(name, binds, monkeypatch):
    """The other layers' gradients have the same bits, also where memory that nobody writes has NaN."""
    with binds():
        module, x, done = FROZEN[name](), torch.randn(4, 2, 3, requires_grad=True), []
        engine, _ = module._computation.stack.engine, module(x)
        with nan_filled(engine):
            expected = gradients(module, x)
            method = engine.weight_gradients
            monkeypatch.setattr(engine, "weight_gradients", lambda *given, **more: done.append(method(*given, **more)))
            for frozen in (("_l0",), ("_l1", "_l2_reverse"), ("_l0", "_l1", "_l2")):
                done.clear()
                for own, one in module.named_parameters():
                    one.requires_grad_(not own.endswith(frozen))
                with torch.autograd.set_detect_anomaly(True):  # looks for NaN in all that backward returns
                    found = [gradients(module, x) for _ in range(2)][1]
                for own, gradient in found.items():
                    assert (gradient is None) == own.endswith(frozen)
                    assert gradient is None or torch.equal(gradient, expected[own])
                if binds is not_prepared and name not in ("formed", "checkpoints"):  # which leave no product out
                    assert len(done) == 2 * (6 - len(frozen))


def gradients(module, x):
    """Name -> the parameter's gradient."""
    module.zero_grad()
    return dict(zip(dict(module.named_parameters()), step(module, x), strict=True))


def test_data_from_elsewhere():
    theirs, ours = torch_modules.pair("GRU", 3, 5)
    own = torch.randn(15, 5)
    for module in (theirs, ours):
        module.weight_hh_l0.data = own.clone()
    x = torch.randn(4, 2, 3)
    torch_modules.assert_same(theirs, ours, x)
    assert not are_one_buffer(list(ours.parameters()))
    ours.flatten_parameters()
    assert are_one_buffer(list(ours.parameters()))
    torch_modules.assert_same(theirs, ours, x)


def test_shared_parameters_stay_shared():
    first, second = nrt.RNN(5, 5), nrt.RNN(5, 5)
    second.weight_hh_l0 = first.weight_hh_l0
    model = nn.Sequential(first, second).double()
    assert model[1].weight_hh_l0 is model[0].weight_hh_l0
    own = nrt.RNN(5, 5)
    own.weight_ih_l0.data = own.weight_hh_l0.data
    own.flatten_parameters()
    assert own.weight_ih_l0.data_ptr() == own.weight_hh_l0.data_ptr()


def test_functional_call():
    theirs, ours = torch_modules.pair("LSTM", 3, 5, 2)
    x, parameters = torch.randn(4, 2, 3), {name: torch.randn_like(one) for name, one in theirs.named_parameters()}

    def loss(parameters, module):
        return torch.func.functional_call(module, parameters, (x,))[0].square().sum()

    expected, found = (torch.func.grad(loss)(parameters, module) for module in (theirs, ours))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_replica():
    """What `DataParallel` calls on each device: a module whose parameters are plain tensors."""
    module, x = nrt.GRU(3, 5), torch.randn(4, 2, 3)
    replica = module._replicate_for_data_parallel()
    assert not replica._parameters
    for name, one in module.named_parameters():
        setattr(replica, name, one * 1.0)
    torch.testing.assert_close(step(module, x), [*torch.autograd.grad(replica(x)[0].sum(), list(module.parameters()))])


def test_files_of_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    theirs, ours = torch_modules.pair("LSTM", 3, 5, 2)
    safetensors.save_file(ours.state_dict(), tmp_path / "ours.safetensors")
    other = nn.LSTM(3, 5, 2)
    other.load_state_dict(safetensors.load_file(tmp_path / "ours.safetensors"))
    torch_modules.assert_same(theirs, other, torch.randn(4, 2, 3))


def test_parameters_by_the_equations_names():
    """As a layer has them; gradients flow through the views, and what is assigned is copied in."""
    module = nrt.LSTM(3, 4, 2, bidirectional=True, dtype=torch.float64)
    layer = nr.LSTM(3, 4, 2, bidirectional=True, dtype="float64", device="cpu")
    layer.load_state_dict({name: value.detach().numpy() for name, value in module.state_dict().items()})
    assert list(module.named) == list(layer.named) and repr(module.named) == repr(layer.named)
    for name, value in module.named.items():
        np.testing.assert_array_equal(value.detach().numpy(), layer.named[name])
    assert module.named.grad["l1.reverse.R.f"] is None
    (3 * module.named["l1.reverse.R.f"]).sum().backward()
    expected = torch.zeros(16, 4)
    expected[4:8] = 3
    assert torch.equal(module.weight_hh_l1_reverse.grad, expected.double())
    assert torch.equal(module.named.grad["l1.reverse.R.f"], expected.double()[4:8])
    module.named["l0.b_w.f"] = 1.0
    assert module.bias_ih_l0[4:8].tolist() == [1] * 4 and module.bias_ih_l0[:4].abs().max() < 1
    with pytest.raises(ValueError, match=r"named\['l0.R.f'\] must have shape \(4, 4\), but has \(3,\)"):
        module.named["l0.R.f"] = torch.ones(3)
    with pytest.raises(TypeError, match="gradients cannot be assigned by name"):
        module.named.grad["l0.R.f"] = 1
    assert nrt.GRUCell(3, 4).named["R.n"].shape == (4, 4)


@pytest.mark.parametrize("first", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [nrt.LSTM, nrt.LSTMCell], ids=["layers", "cell"])
def test_parameters_of_several_dtypes_are_refused(make, first):
    """One of float64 among others made all of them float64, which the engine read as the numbers of another dtype."""
    module, x = make(3, 4, dtype=first), torch.randn(2, 3, dtype=first)
    x = x if make is nrt.LSTMCell else x[None]
    name = next(name for name, _ in module.named_parameters() if name.startswith("weight_hh"))
    message = rf"one dtype: weight_ih_l0 has {first}, .* weight_hh_l0 torch.float64. Convert .* \.to\({first}\)"
    for change in (
        lambda given: setattr(module.get_parameter(name), "data", given),
        lambda given: setattr(module, name, torch.nn.Parameter(given)),
    ):
        module(x)
        change(module.get_parameter(name).detach().double())
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                module(x)
        with torch.no_grad(), pytest.raises(ValueError, match=message):
            module(x)
        module.to(first)
    expected = make(3, 4, dtype=first)
    expected.load_state_dict(module.state_dict())
    torch.testing.assert_close(module(x)[0], expected(x)[0])


def test_a_state_dict_tells_the_cell(tmp_path):
    """Through a file too; one of another cell with the same shapes is refused, one without a name is not."""
    model = torch.nn.Sequential(nrt.Recurrent(library.li_gru, 3, 4))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt")
    assert state._metadata["0"]["cell"] == ("li_gru", library.li_gru.digest)
    torch.nn.Sequential(nrt.Recurrent(library.li_gru, 3, 4, schedule="loop")).load_state_dict(state)
    other = nr.cell(lambda x, h, p: nr.tanh(p.W.z @ x + p.R.z @ h + p.b.z) * (p.W.n @ x + p.R.n @ h + p.b.n))
    for cell, said in (
        (other, "of cell 'li_gru', but this one's is 'cell'"),
        (nr.cell(other, name="li_gru"), "equations"),
    ):
        module = torch.nn.Sequential(nrt.Recurrent(cell, 3, 4))
        with pytest.raises(RuntimeError, match=said):
            module.load_state_dict(state)
        module.load_state_dict(dict(state))
