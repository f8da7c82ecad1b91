"""split=True: a parameter for each matrix and vector of the equations; groups of parameters for an optimizer."""

import copy
import pickle

import pytest
import torch

import numbarnn.torch as nrt
from numbarnn.cells import library
from torch_modules import trained

CASES = [
    ("lstm", 6, dict(num_layers=2, bidirectional=True)),
    ("lstm", 6, dict(proj_size=3)),
    ("lstm", [6, 4], {}),
    ("gru", 6, {}),
    ("gru", 6, dict(schedule="loop")),
    (library.peephole_lstm, 6, dict(num_layers=2, dropout=0.3)),
    (library.low_rank_rnn, 6, {}),
]


def both(cell, hidden, options):
    """A module with whole arrays and one with split ones, made after the same seed."""
    made = []
    for split in (False, True):
        torch.manual_seed(0)
        made.append(nrt.Recurrent(cell, 6, hidden, **options, split=split))
    return made


@pytest.mark.parametrize("cell, hidden, options", CASES)
def test_same_numbers_by_other_names(cell, hidden, options):
    whole, split = both(cell, hidden, options)
    assert [*split.named] == [*whole.named] and len([*split.parameters()]) == len(split.named)
    x = torch.randn(5, 3, 6)
    (ours, (dx, *_)), (theirs, (their_dx, *_)) = trained(split, x), trained(whole, x)
    assert all(map(torch.equal, [*ours, dx], [*theirs, their_dx]))
    assert all(torch.equal(split.named.grad[name], whole.named.grad[name]) for name in whole.named)
    places = [one.data_ptr() for one in split.parameters()]
    assert max(places) - min(places) < 4 * sum(one.numel() for one in split.parameters())  # views of one buffer


@pytest.mark.parametrize("cell, hidden, options", CASES)
def test_state_dicts_load_into_each_other(cell, hidden, options):
    whole, split = both(cell, hidden, options)
    with torch.no_grad():
        for one in whole.parameters():
            one.normal_()
    split.load_state_dict(whole.state_dict())
    assert all(torch.equal(split.named[name], whole.named[name]) for name in whole.named)
    again = nrt.Recurrent(cell, 6, hidden, **options)
    model = torch.nn.ModuleDict({"rnn": again})
    model.load_state_dict({f"rnn.{name}": value for name, value in split.state_dict().items()})
    assert all(map(torch.equal, again.parameters(), whole.parameters()))


def test_a_frozen_matrix_has_no_gradient_and_copies_keep_their_names():
    split = nrt.LSTM(4, 4, split=True)
    split.R_f_l0.requires_grad_(False)
    x = torch.ones(3, 1, 4)
    split(x)[0].sum().backward()
    assert split.R_f_l0.grad is None and split.R_i_l0.grad.shape == (4, 4)
    for one in (copy.deepcopy(split), pickle.loads(pickle.dumps(split)), torch.compile(split, backend="aot_eager")):
        assert torch.equal(one(x)[0], split(x)[0])
        assert "R_f_l0" in " ".join(dict(one.named_parameters()))


def test_groups_of_parameters():
    split, whole = nrt.LSTM(4, 4, split=True), nrt.LSTM(4, 4, num_layers=2)
    groups = split.parameter_groups({"R.*": {"lr": 1e-4}, "b_*": {"weight_decay": 0.0}})
    assert [len(group.pop("params")) for group in groups] == [4, 8, 4]
    assert groups == [{"lr": 1e-4}, {"weight_decay": 0.0}, {}]
    assert [len(group["params"]) for group in whole.parameter_groups({"l1.*": {"lr": 1e-4}})] == [4, 4]
    torch.optim.SGD(split.parameter_groups({"R.f": {"lr": 1e-4}}), lr=1e-3)
    with pytest.raises(ValueError, match=r"l0.R.i, .* are one parameter, .*make the module with split=True"):
        whole.parameter_groups({"l0.R.f": {}})
    with pytest.raises(ValueError, match=r"no parameter fits 'Q'; there are W.i, "):
        split.parameter_groups({"Q": {}})
    with pytest.raises(ValueError, match=r"earlier patterns take all that 'R.f' fits"):
        split.parameter_groups({"R.*": {}, "R.f": {}})
    for wrong in (["R.*"], {"R.*": None}, {"R.*": {"params": []}}):
        with pytest.raises(TypeError, match="parameter_groups"):
            split.parameter_groups(wrong)
    torch.nn.utils.parametrizations.weight_norm(split, "R_i_l0")
    with pytest.raises(ValueError, match="R_i_l0 is computed by a parametrization"):
        split.parameter_groups({"b_*": {}})


def test_a_state_dict_of_another_size_is_refused_by_name():
    with pytest.raises(RuntimeError, match="size mismatch for R_i_l0"):
        nrt.LSTM(4, 4, split=True).load_state_dict(nrt.LSTM(4, 5).state_dict())
