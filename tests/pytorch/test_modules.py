"""Modules as torch.nn's are used: constructors, attributes, copies, files, devices, dtypes, hooks, errors, options."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import numbarnn.torch as nrt
import torch_modules

SIZES = {
    "LSTM": (3, 5, 2),
    "GRU": (3, 5, 2),
    "RNN": (3, 5, 2),
    "LSTMCell": (3, 5),
    "GRUCell": (3, 5),
    "RNNCell": (3, 5),
}
ALL = tuple(SIZES)

each = pytest.mark.parametrize("name", ALL)
each_stack = pytest.mark.parametrize("name", torch_modules.LAYERS)


def pair(name, **options):
    return torch_modules.pair(name, *SIZES[name], **options)


def x_for(name, dtype=torch.float32):
    torch.manual_seed(2)
    return torch.randn((4, 3) if name.endswith("Cell") else (6, 4, 3), dtype=dtype)


# ---------------------------------------------------------------- what is there
@each
def test_attributes_names_and_first_values(name):
    theirs, ours = pair(name)
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other) and one.requires_grad
    public = {key: value for key, value in vars(theirs).items() if not key.startswith("_")}
    assert public.items() <= vars(ours).items()
    assert isinstance(ours, nn.RNNCellBase if name.endswith("Cell") else nn.RNNBase)


@each_stack
def test_methods_of_rnn_base(name):
    """Those that code written for torch.nn's modules calls, or calls for an LSTM's two states."""
    found = []
    for module in pair(name, bidirectional=True):
        x = x_for(name)
        names = ("hidden", "cell") if name == "LSTM" else ("hidden",)
        sizes = [getattr(module, f"get_expected_{one}_size")(x, None) for one in names]
        state = tuple(torch.arange(float(np.prod(size))).reshape(size) for size in sizes)
        state = state if name == "LSTM" else state[0]
        module.check_forward_args(x, state, None)
        with pytest.raises(RuntimeError, match="Expected hidden"):
            module.check_forward_args(x[:, 1:], state, None)
        found.append((sizes, module.permute_hidden(state, torch.tensor([2, 0, 3, 1]))))
    torch.testing.assert_close(*found, rtol=0, atol=0)


@each
def test_state_dicts_both_ways(name):
    theirs, ours = pair(name)
    x = x_for(name)
    other = getattr(nn, name)(*SIZES[name])
    assert ours.load_state_dict(other.state_dict()) == theirs.load_state_dict(ours.state_dict())
    torch_modules.assert_same(other, ours, x)
    torch_modules.assert_same(theirs, ours, x)


@each
def test_reset_parameters(name):
    theirs, ours = pair(name)
    for module in (theirs, ours):
        torch.manual_seed(4)
        module.reset_parameters()
    torch_modules.assert_same(theirs, ours, x_for(name))


# ---------------------------------------------------------------- copies, files, devices, dtypes
@each
@pytest.mark.parametrize("how", ("deepcopy", "pickle", "save"))
def test_copies(name, how):
    theirs, ours = pair(name)
    if how == "deepcopy":
        other = copy.deepcopy(ours)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(ours))
    else:
        file = io.BytesIO()
        torch.save(ours, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    with torch.no_grad():
        for one in ours.parameters():
            one.zero_()
    torch_modules.assert_same(theirs, other, x_for(name))


@each
def test_device_meta(name):
    with torch.device("meta"):
        module = getattr(nrt, name)(*SIZES[name])
    assert all(one.is_meta for one in module.parameters())
    theirs, _ = pair(name)
    module.to_empty(device="cpu").load_state_dict(theirs.state_dict())
    torch_modules.assert_same(theirs, module, x_for(name))
    other = getattr(nrt, name)(*SIZES[name], device="meta")
    nn.Sequential(other).load_state_dict({f"0.{key}": value for key, value in theirs.state_dict().items()}, assign=True)
    assert len({one.untyped_storage().data_ptr() for one in other.parameters()}) == 1
    torch_modules.assert_same(theirs, other, x_for(name))


@each
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_16_bits_on_the_cpu(name, dtype):
    """Computed in float32 from the rounded numbers: closer to that than torch.nn, whose every step rounds."""
    theirs, ours = (module.to(dtype) for module in pair(name))
    x = x_for(name).to(dtype)
    (found, gradients), expected = torch_modules.trained(ours, x), torch_modules.trained(theirs.float(), x.float())
    assert all(one.dtype == dtype for one in found + gradients)
    for one, other in zip(found + gradients, expected[0] + expected[1], strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.02, atol=0.02)


def test_autocast_on_the_cpu():
    theirs, ours = pair("LSTM")
    x = x_for("LSTM").bfloat16().requires_grad_()
    expected, _ = theirs(x.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = ours(x)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert x.grad.dtype == torch.bfloat16


@each_stack
def test_hooks(name):
    module, seen = getattr(nrt, name)(3, 5), []
    module.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    module.register_forward_hook(lambda module, inputs, results: seen.append(results[0].shape))
    module.register_full_backward_hook(lambda module, into, out: seen.append(out[0].shape))
    module.weight_hh_l0.register_post_accumulate_grad_hook(lambda one: seen.append(one.grad.shape))
    x = x_for(name)
    y, _ = module(x)
    y.sum().backward()
    assert sorted(map(tuple, seen)) == sorted([(6, 4, 5), (6, 4, 5), tuple(module.weight_hh_l0.shape)])
    assert torch.equal(module.forward(x * 2)[0], y)


# ---------------------------------------------------------------- inputs
@each_stack
@pytest.mark.parametrize("shape", [(6, 0, 3), (0, 4, 3)], ids=str)
def test_nothing_to_do(name, shape):
    theirs, ours = pair(name)
    if shape[0]:
        torch_modules.assert_same(theirs, ours, torch.zeros(shape))
        for module in (theirs, ours):
            x = torch.zeros(shape)
            state = [torch.zeros_like(one, requires_grad=True) for one in torch_modules.tensors(module(x)[1])]
            y, _ = module(x, tuple(state) if len(state) > 1 else state[0])
            found = torch.autograd.grad(y.sum(), [*state, *module.parameters()], allow_unused=True)
            assert [one.shape for one in found] == [one.shape for one in (*state, *module.parameters())]
    else:
        for module in (theirs, ours):
            with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in RNN"):
                module(torch.zeros(shape))


@each_stack
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"dropout": 0.5}], ids=str)
def test_what_is_drawn_after_a_batch_first_module_is_torchs(name, options):
    """Random numbers are drawn in the order in which elements lie in memory: y has torch.nn's strides."""
    modules = pair(name, batch_first=True, **options)
    for training in (True, False, False):  # the last call is one like the one before
        found = []
        for module in modules:
            torch.manual_seed(3)
            with torch.set_grad_enabled(training):
                y, state = module(torch.arange(5 * 4 * 3.0).sin().reshape(5, 4, 3))
                strides = [one.stride() for one in torch_modules.tensors((y, state))]
                found.append((strides, nn.functional.dropout(y, 0.5) != 0, torch.randn_like(y)))
        theirs, ours = found
        assert ours[0] == theirs[0] and torch.equal(ours[1], theirs[1]) and torch.equal(ours[2], theirs[2])


def test_strides_of_a_compiled_batch_first_module():
    theirs, ours = pair("LSTM", batch_first=True, bidirectional=True)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch_modules.assert_same(theirs, compiled, torch.randn(5, 4, 3))


@each_stack
@pytest.mark.parametrize("batch_first", (False, True))
@pytest.mark.parametrize("layout", (torch.jagged, torch.strided), ids=str)
def test_nested_tensors(name, layout, batch_first):
    x = torch.nested.nested_tensor([torch.randn(3, 3), torch.randn(2, 3)], layout=layout)
    theirs, ours = pair(name, batch_first=batch_first)
    with pytest.raises(Exception) as expected:
        theirs(x)
    with pytest.raises(expected.type, match="nested tensor, which recurrent modules do not take: pass"):
        ours(x)


# ---------------------------------------------------------------- cells
@pytest.mark.parametrize("name", torch_modules.CELLS)
@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_cells_of_size_0(name, sizes):
    for bias in (True, False):
        theirs, ours = torch_modules.pair(name, *sizes, bias=bias)
        assert [(key, one.shape) for key, one in ours.state_dict().items()] == [
            (key, one.shape) for key, one in theirs.state_dict().items()
        ]
        for batch in ((4,), (0,), ()):
            h = torch.randn(*batch, sizes[1])
            torch_modules.assert_same(theirs, ours, torch.randn(*batch, sizes[0]), (h, h) if "LSTM" in name else h)
            torch_modules.assert_same(theirs, ours, torch.randn(*batch, sizes[0]))
        converted = nrt.convert(torch_modules.pair(name, *sizes, bias=bias)[0])
        torch_modules.assert_same(theirs, converted, torch.randn(4, sizes[0]))


@pytest.mark.parametrize("name", torch_modules.CELLS)
@pytest.mark.parametrize("options", [dict(input_size=-1), dict(hidden_size=-1), dict(input_size=2.0)], ids=str)
def test_constructor_errors_of_cells(name, options):
    options = dict(input_size=3, hidden_size=5) | options
    with pytest.raises(Exception) as theirs:
        getattr(nn, name)(**options)
    with pytest.raises(theirs.type):
        getattr(nrt, name)(**options)


@pytest.mark.parametrize("name", torch_modules.CELLS)
def test_cells_do_not_read_training(name):
    """Whoever makes modules without `Module.__init__`, or takes them apart, may have cells without it."""
    theirs, ours = pair(name)
    del theirs.training, ours.training
    torch_modules.assert_same(theirs, ours, torch.randn(4, 3))


@each_stack
def test_lengths_are_packing_without_it(name):
    theirs, ours = pair(name, bidirectional=True, batch_first=True)
    lengths, x = [2, 6, 1, 4], torch.randn(4, 6, 3)
    expected, state = theirs(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(expected, batch_first=True, padding_value=7.0)
    for given in (lengths, torch.tensor(lengths), np.array(lengths)):
        y, found = ours(x, lengths=given, padding_value=7.0)
        torch.testing.assert_close((y, found), (expected, state))


def test_resets_are_sequences_of_their_own():
    ours = nrt.LSTM(3, 5)
    x, resets = torch.randn(6, 2, 3), torch.zeros(6, 2, dtype=torch.bool)
    resets[4, 1] = True
    y, (h, c) = ours(x, resets=resets)
    torch.testing.assert_close(y[:4, 1], ours(x[:4, 1])[0])
    torch.testing.assert_close((y[4:, 1], (h[:, 1], c[:, 1])), ours(x[4:, 1]))
    torch.testing.assert_close(y[:, 0], ours(x[:, 0])[0])


def test_resets_of_packed_sequences():
    """They are given for sequences in their own order."""
    ours = nrt.GRU(3, 5)
    x, lengths, resets = torch.randn(6, 3, 3), [2, 6, 4], torch.zeros(6, 3, dtype=torch.bool)
    resets[3, 1] = resets[1, 2] = True
    expected = ours(x, lengths=lengths, resets=resets)
    y, state = ours(pack_padded_sequence(x, lengths, enforce_sorted=False), resets=resets)
    torch.testing.assert_close((pad_packed_sequence(y)[0], state), expected)


@each_stack
def test_dropout_by_the_network_itself(name, monkeypatch):
    """As on a GPU: other elements than torch.nn's, the same ones after the same seed; none in evaluation."""
    monkeypatch.setattr(nrt.Recurrent, "_is_on_gpu", lambda module: True)
    theirs, ours = pair(name, dropout=0.5)
    x = torch.randn(20, 8, 3)

    def drawn(seed):
        torch.manual_seed(seed)
        return ours(x)[0]

    assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))
    ours.dropout = 1.0
    expected = getattr(nn, name)(3, 5, 2, dropout=1.0)
    expected.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x)[0], expected(x)[0])
    torch_modules.assert_same(theirs.eval(), ours.eval(), x)


# ---------------------------------------------------------------- errors
@each_stack
@pytest.mark.parametrize("options", [
    dict(input_size=0), dict(input_size=2.0), dict(hidden_size=-1), dict(hidden_size="5"), dict(num_layers=0),
    dict(dropout=2.0), dict(dropout=True), dict(dropout="1"), dict(bias=None), dict(batch_first=1), dict(proj_size=9),
    dict(proj_size=-1), dict(wrong=1),
], ids=str)  # fmt: skip
def test_constructor_errors(name, options):
    options = dict(input_size=3, hidden_size=5) | options
    with pytest.raises(Exception) as theirs:
        getattr(nn, name)(**options)
    with pytest.raises(theirs.type) as ours:
        getattr(nrt, name)(**options)
    assert str(ours.value)


@each_stack
@pytest.mark.parametrize("shape, state_shape, dtype", [
    ((6, 4, 2), None, None), ((6,), None, None), ((6, 4, 3, 1), None, None), ((6, 4, 3), (2, 4), None),
    ((6, 4, 3), (2, 4, 6), None), ((6, 4, 3), (1, 4, 5), None), ((6, 4, 3), (2, 3, 5), None), ((6, 3), (2, 4, 5), None),
    ((6, 4, 3), None, torch.float64), ((6, 4, 3), None, torch.int64), ((6, 4, 3), (2, 4, 5), torch.float64),
], ids=str)  # fmt: skip
def test_call_errors(name, shape, state_shape, dtype):
    theirs, ours = pair(name)
    x = torch.zeros(shape, dtype=dtype if state_shape is None else None)
    state = None if state_shape is None else torch.zeros(state_shape, dtype=dtype)
    state = (state, state) if name == "LSTM" and state is not None else state
    with pytest.raises(Exception) as expected:
        theirs(x, state)
    with pytest.raises(expected.type) as found:
        ours(x, state)
    if "same dtype" not in str(expected.value) and "dtype" not in str(found.value):
        assert str(found.value) in (str(expected.value), str(expected.value).replace("D tensor instead", "D instead"))


@pytest.mark.parametrize("name", torch_modules.CELLS)
def test_dtypes_of_cells(name):
    for module in pair(name):
        with pytest.raises(RuntimeError, match="same dtype"):
            module(torch.zeros(4, 3, dtype=torch.float64))


def test_states_that_are_no_tuple():
    with pytest.raises(TypeError, match=r"hx must be a tuple \(h, c\), not a Tensor"):
        nrt.LSTM(3, 5)(torch.zeros(6, 4, 3), torch.zeros(1, 4, 5))
    for module in pair("LSTMCell"):
        with pytest.raises(TypeError, match=r"must be (a )?tuple"):
            module(torch.zeros(4, 3), torch.zeros(2, 4, 5))  # two states in one tensor


def test_lengths_of_a_packed_input():
    x = pack_padded_sequence(torch.zeros(6, 2, 3), [6, 3])
    with pytest.raises(ValueError, match="lengths must be None with a packed input"):
        nrt.LSTM(3, 5)(x, lengths=[6, 3])
