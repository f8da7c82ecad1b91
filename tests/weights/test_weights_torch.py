"""Weights from and to PyTorch: the same outputs, the same bits there and back, and errors that name everything."""

import copy
from functools import partial

import numpy as np
import pytest

import torch_peer
import weights_helpers
from numbarnn import convert
from numbarnn.cells.definition import CELL_OPTIONS
from weights_helpers import FORMS, TORCH_CELLS, TORCH_SIZES, assert_close, assert_same_bits, assert_same_layer

torch = pytest.importorskip("torch")
module = partial(torch_peer.module, torch)

CELL_FROM_NAME = {"lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell}


def run_torch(model, x, states):
    """[y, hy] or [y, hy, cy] of PyTorch, as NumPy arrays."""
    has_c = isinstance(model, torch.nn.LSTM)
    given = [torch.from_numpy(array) for array in states]
    with torch.no_grad():
        y, state = model(torch.from_numpy(x), tuple(given) if has_c else given[0])
    return [part.numpy() for part in (y, *(state if has_c else [state]))]


def tensors(arrays):
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("cell, hidden, D", TORCH_SIZES)
def test_outputs_are_pytorchs(cell, hidden, D, dtype):
    model = module(cell, hidden, D, dtype)
    layer = convert.from_torch(model, device="cpu")
    assert (layer.cell, layer.hidden_sizes, layer.dtype) == (cell, hidden, dtype)
    x, states = weights_helpers.problem(layer)
    assert_close(weights_helpers.run(layer, x, states), run_torch(model, x, states), dtype)


def test_nothing_is_shared():
    model = module("gru")
    layer = convert.from_torch(model, device="cpu")
    before = layer.state_dict()
    arrays = convert.to_torch(layer)
    with torch.no_grad():
        model.weight_hh_l0.zero_()
    arrays["weight_hh_l0"][...] = 0
    assert_same_bits(layer.state_dict(), before)


def test_a_modules_options_are_taken_over_and_can_be_replaced():
    model = module("lstm", (5, 5), 2, batch_first=True, dropout=0.25, bias=False)
    layer = convert.from_torch(model, device="cpu", seed=3)
    assert (layer.batch_first, layer.dropout, layer.bias, layer.bidirectional) == (True, 0.25, False, True)
    layer = convert.from_torch(model, device="cpu", batch_first=False, dropout=0.0, dtype="float64")
    assert (layer.batch_first, layer.dropout, layer.dtype) == (False, 0.0, "float64")
    np.testing.assert_array_equal(layer.parameters["weight_ih_l0"], model.weight_ih_l0.detach().numpy())


def test_without_a_module_options_are_arguments():
    state_dict = module("rnn_relu", (5, 5)).state_dict()
    layer = convert.from_torch(state_dict, "rnn_relu", device="cpu", batch_first=True)
    assert (layer.cell, layer.batch_first, layer.dropout) == ("rnn_relu", True, 0.0)
    with pytest.raises(TypeError, match="bidirectional, bias must be left out: the weights decide"):
        convert.from_torch(state_dict, "rnn_relu", bidirectional=True, bias=False)
    with pytest.raises(ValueError, match="must have 4 rows per unit"):
        convert.from_torch(state_dict)


def test_parameters_that_require_gradients():
    model = module("gru")
    layer = convert.from_torch(dict(model.named_parameters()), device="cpu")
    assert_same_bits(layer.state_dict(), {k: v.numpy() for k, v in model.state_dict().items()})


class Model(torch.nn.Module):
    """A model with two recurrent layers in it."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.ModuleDict({"lstm": torch.nn.LSTM(3, 5)})
        self.decoder = torch.nn.GRU(5, 2, batch_first=True)
        self.head = torch.nn.Linear(2, 1)


def test_prefix_of_a_larger_model():
    model = Model()
    lstm = convert.from_torch(model.state_dict(), prefix="encoder.lstm.", device="cpu")
    assert_same_bits(lstm.state_dict(), {k: v.numpy() for k, v in model.encoder["lstm"].state_dict().items()})
    gru = convert.from_torch(model, prefix="decoder.", device="cpu")
    assert (gru.cell, gru.batch_first, gru.hidden_size) == ("gru", True, 2)
    with pytest.raises(ValueError, match=r"'weight_hh_l0', as prefix is ''.*\['decoder\.', 'encoder\.lstm\.'\]"):
        convert.from_torch(model.state_dict())
    with pytest.raises(ValueError, match=r"'lstm\.weight_hh_l0', as prefix is 'lstm\.'"):
        convert.from_torch(model.state_dict(), prefix="lstm.")
    with pytest.raises(TypeError, match=r"but is test_weights_torch.Model\. For a part of a larger model"):
        convert.from_torch(model)
    with pytest.raises(ValueError, match=r"Its entries are \['weight', 'bias'\]"):
        convert.from_torch(model.head.state_dict())


def test_wrong_sources():
    with pytest.raises(TypeError, match=r"source must be a state dict or a torch.nn.LSTM, GRU or RNN, but is list"):
        convert.from_torch([1, 2])
    with pytest.raises(TypeError, match=r"RNN, but is str\. Load the file first \(torch.load, load_safetensors\)"):
        convert.from_torch("model.pt")
    with pytest.raises(TypeError, match=r"but is torch.nn.modules.rnn.GRUCell. .* single cells to from_torch_cells"):
        convert.from_torch(cell_module("gru", 4))
    with pytest.raises(TypeError, match=r"^LSTM has no argument 'batchfirst': do you mean batch_first"):
        convert.from_torch(weights_helpers.make("lstm").state_dict(), batchfirst=True)
    with pytest.raises(TypeError, match="reset_after must be left out: the weights decide"):
        convert.from_torch(module("gru").state_dict(), reset_after=False)
    with pytest.raises(TypeError, match=r"state_dict must map names to arrays, but has the keys \[1\]"):
        convert.from_torch({1: 2})
    with pytest.raises(TypeError, match=r"layer must be a numbarnn LSTM, GRU or RNN, not a LSTM"):
        convert.to_torch(module("lstm"))
    with pytest.raises(ValueError, match="cell must be one of lstm, gru"):
        convert.from_torch(module("lstm").state_dict(), "elman")
    state_dict = module("lstm").state_dict()
    del state_dict["bias_hh_l0"], state_dict["bias_ih_l0"]
    state_dict["weight_ih_l0"] = state_dict["weight_ih_l0"][:-1]
    with pytest.raises(ValueError, match=r"weight_ih_l0 has shape \(19, 4\), expected \(20, 4\)"):
        convert.from_torch(state_dict)


def test_what_torch_lacks():
    with pytest.raises(ValueError, match=r"one hidden_size for all layers, got \(5, 3\)"):
        convert.to_torch(weights_helpers.make("lstm", (5, 3)))


@pytest.mark.parametrize("bias", ("input", "recurrent"))
def test_single_bias_and_skip_input_become_what_torch_has(bias):
    layer = weights_helpers.make("gru", (5, 5), 2, I=5, dtype="float64", bias=bias, input_mode="skip")
    model = module("gru", (5, 5), 2, I=5, dtype="float64")
    model.load_state_dict(tensors(convert.to_torch(layer)))
    x, states = weights_helpers.problem(layer)
    assert_close(weights_helpers.run(layer, x, states), run_torch(model, x, states), "float64")


@pytest.mark.parametrize("hidden, D", [((5,), 1), ((5, 5), 2)])
def test_projection(hidden, D):
    model = module("lstm", hidden, D, "float64", proj_size=3)
    layer = convert.from_torch(model, device="cpu")
    assert layer.proj_size == 3
    rng = np.random.default_rng(0)
    x, states = weights_helpers.problem(layer)
    states = [rng.standard_normal((len(hidden) * D, 3, size)) for size in (3, 5)]
    assert_close(weights_helpers.run(layer, x, states), run_torch(model, x, states), "float64")
    assert_same_bits(convert.to_torch(layer), {k: v.numpy() for k, v in model.state_dict().items()})


def test_formats_keep_or_refuse_options_of_a_cell(tmp_path):
    options = {"cell_clip": (-0.1, 0.1), "clip_propagate_nan": False}
    assert options.keys() == CELL_OPTIONS.keys(), "a new option belongs here, too"
    layer, x = weights_helpers.make("lstm", **options), np.full((5, 2, 4), 3, "float32")
    np.testing.assert_allclose(layer.jvp(x)[0], layer(x)[0], rtol=1e-5)  # the equations in `library` have them, too
    for function in (convert.to_torch, convert.to_torch_cells, convert.to_keras):
        with pytest.raises(ValueError, match=r"has no cell_clip, but this layer has cell_clip=\(-0.1"):
            function(layer)
    for write, read in ((convert.save_safetensors, convert.load_safetensors), (convert.to_onnx, convert.from_onnx)):
        write(layer, tmp_path / "file")
        assert read(tmp_path / "file", device="cpu").stack.cell_options == options


def test_the_reset_gate_before_the_product():
    """torch.nn has no such GRU; a state dict with its arrays, by PyTorch's names, is one if it is said to be."""
    layer = weights_helpers.make("gru_reset_before", (5, 5), 2)
    for function, target in ((convert.to_torch, "GRU"), (convert.to_torch_cells, "GRUCell")):
        with pytest.raises(ValueError, match=rf"torch.nn.{target} applies the reset gate after.*to_keras.*to_onnx"):
            function(layer)
    assert_same_layer(convert.from_torch(layer.state_dict(), "gru_reset_before", device="cpu"), layer)
    with pytest.raises(ValueError, match=f"the module is of cell 'gru', not 'gru_reset_before' as.*out. {FORMS}"):
        convert.from_torch(module("gru"), "gru_reset_before")
    with pytest.raises(ValueError, match=f"the list of cells is of cell 'gru', not 'gru_reset_before' as.*{FORMS}"):
        convert.from_torch_cells([cell_module("gru", 4)], "gru_reset_before")


def test_a_module_is_what_it_is():
    assert convert.from_torch(module("rnn_relu"), "RNN_ReLU", device="cpu").cell == "rnn_relu"
    with pytest.raises(ValueError, match=r"the module is of cell 'rnn_relu', not 'rnn_tanh' as asked for. Leave"):
        convert.from_torch(module("rnn_relu"), "rnn_tanh")
    with pytest.raises(ValueError, match=r"the list of cells is of cell 'lstm', not 'gru' as asked for. Leave"):
        convert.from_torch_cells([cell_module("lstm", 4)], "gru")


# ---------------------------------------------------------------- what does not fit
def test_everything_that_does_not_fit_is_named():
    parameters = weights_helpers.make("lstm", (5, 5), 2).state_dict()
    del parameters["bias_hh_l1"], parameters["weight_ih_l0_reverse"]
    parameters["weight_hh_l1_reverse"] = np.zeros((20, 4))
    parameters["bias_ih_l0"] = np.zeros(19)
    parameters["bias_xx_l0"] = parameters["fc.weight"] = np.zeros(3)
    with pytest.raises(ValueError) as caught:
        convert.from_torch(parameters)
    message = str(caught.value)
    for part in (
        "lstm of input_size 4, hidden_size (5, 5), 2 direction(s)",
        "missing bias_hh_l1 (20,)",
        "missing weight_ih_l0_reverse (20, 4)",
        "weight_hh_l1_reverse has shape (20, 4), expected (20, 5)",
        "bias_ih_l0 has shape (19,), expected (20,)",
        "unknown bias_xx_l0",
        "unknown fc.weight",
    ):
        assert part in message


@pytest.mark.parametrize(
    "change, message",
    [
        ({"weight_hh_l0": np.zeros(20)}, r"lacks the matrices \['weight_hh_l0'\]"),
        ({"weight_ih_l2": np.zeros((20, 5))}, r"lacks the matrices \['weight_hh_l1', 'weight_hh_l2'\]"),
        ({"weight_ih_l0": np.zeros((20, 0))}, "sizes of 0: input_size 0"),
        ({"weight_ih_l0": np.zeros(20)}, r"weight_ih_l0 has shape \(20,\), expected \(20, 5\)"),
        ({"weight_hr_l0": np.zeros((3, 5))}, r"weight_hh_l0 has shape \(20, 5\), expected \(20, 3\)"),
        ({"weight_ih_l01": np.zeros((20, 4))}, "unknown weight_ih_l01"),
    ],
)
def test_what_does_not_fit(change, message):
    parameters = weights_helpers.make("lstm").state_dict() | change
    with pytest.raises(ValueError, match=message):
        convert.from_torch(parameters)


def test_a_gru_has_no_projection():
    parameters = weights_helpers.make("lstm", proj_size=3).state_dict()
    with pytest.raises(ValueError, match="only an LSTM has a projection, not gru"):
        convert.from_torch(parameters, "gru")


def test_an_entry_that_is_no_array():
    parameters = weights_helpers.make("gru").state_dict() | {"bias_ih_l0": "biases"}
    with pytest.raises(ValueError, match=r"bias_ih_l0 has shape \(\), expected \(15,\)"):
        convert.from_torch(parameters)
    with pytest.raises(TypeError, match=r"state_dict\['bias_ih_l0'\] must be an array of numbers, not {1}"):
        convert.from_torch(parameters | {"bias_ih_l0": {1}})


def test_dtypes_that_differ_or_are_not_ours():
    parameters = weights_helpers.make("gru").state_dict()
    with pytest.raises(TypeError, match=r"one dtype, but are {'weight_ih_l0': 'float32'.*'bias_ih_l0': 'float64'"):
        convert.from_torch(parameters | {"bias_ih_l0": np.zeros(15)})
    with pytest.raises(TypeError, match=r"of dtype int64. Pass dtype=, one of float32"):
        convert.from_torch({name: np.zeros(array.shape, np.int64) for name, array in parameters.items()})


# ---------------------------------------------------------------- single cells
def cell_module(cell, inputs, hidden=5):
    options = {"nonlinearity": cell.removeprefix("rnn_")} if cell.startswith("rnn_") else {}
    return CELL_FROM_NAME.get(cell, torch.nn.RNNCell)(inputs, hidden, dtype=torch.float64, **options)


@pytest.mark.parametrize("cell", TORCH_CELLS)
def test_cells_stacked(cell):
    modules = [cell_module(cell, 4), cell_module(cell, 5, 3)]
    layer = convert.from_torch_cells(modules, device="cpu")
    assert (layer.cell, layer.hidden_size, layer.dtype) == (cell, (5, 3), "float64")
    x = np.random.default_rng(0).standard_normal((4, 2, 4))
    states, outputs = [None, None], []
    with torch.no_grad():
        for step in torch.from_numpy(x):
            for number, one in enumerate(modules):
                states[number] = one(step, states[number])
                step = states[number][0] if cell == "lstm" else states[number]
            outputs.append(step.numpy())
    assert_close([layer(x)[0]], [np.stack(outputs)], "float64")

    for one, state_dict in zip(modules, convert.to_torch_cells(layer), strict=True):
        other = copy.deepcopy(one)
        other.load_state_dict(tensors(state_dict))
        assert_same_bits(state_dict, {k: v.numpy() for k, v in one.state_dict().items()})


@pytest.mark.parametrize("cell", TORCH_CELLS)
def test_cells_of_a_larger_model_by_prefix(cell):
    """Of a state dict or a module; a prefix was taken for an option of the layer."""
    modules = [cell_module(cell, 4), cell_module(cell, 5)]
    model = torch.nn.ModuleDict({"decoder": torch.nn.ModuleList(modules), "head": torch.nn.Linear(5, 2)})
    expected, prefixes = convert.from_torch_cells(modules, device="cpu"), ["decoder.0.", "decoder.1."]
    state_dict = model.state_dict()
    for layer in (
        convert.from_torch_cells(state_dict, cell, prefix=prefixes, device="cpu"),
        convert.from_torch_cells(model, prefix=prefixes, device="cpu"),
        convert.from_torch(state_dict, cell, prefix=prefixes, device="cpu"),
    ):
        assert_same_layer(layer, expected)
    first = convert.from_torch_cells(modules[:1], device="cpu")
    for layer in (
        convert.from_torch_cells(state_dict, cell, prefix="decoder.0.", device="cpu"),
        convert.from_torch_cells([model], prefix="decoder.0.", device="cpu"),
        convert.from_torch(state_dict, cell, prefix="decoder.0.", device="cpu"),
        convert.from_torch(modules[0].state_dict(), cell, device="cpu"),
    ):
        assert_same_layer(layer, first)
    both = convert.from_torch_cells(state_dict, cell, prefix=[("decoder.0.", "decoder.0.")], device="cpu")
    assert both.bidirectional
    with pytest.raises(ValueError, match=r"Prefixes with such an entry: \['decoder\.0\.', 'decoder\.1\.'\]"):
        convert.from_torch(state_dict, cell)
    with pytest.raises(ValueError, match=r"cells\[0\] is no state dict of a cell: missing \['other\.weight_ih'"):
        convert.from_torch_cells(state_dict, cell, prefix="other.")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cell", TORCH_CELLS)
def test_scripted_cells(cell):
    module = cell_module(cell, 4)
    expected = convert.from_torch_cells([module], device="cpu")
    assert_same_layer(convert.from_torch_cells([torch.jit.script(module)], device="cpu"), expected)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = torch.nn.ModuleList([module])

        def forward(self, x):
            return [cell(x) for cell in self.cells]

    model = torch.jit.script(Model())
    assert_same_layer(convert.from_torch_cells(model, prefix="cells.0.", device="cpu"), expected)


def test_modules_without_numbers_are_refused():
    with pytest.raises(ValueError, match=r"\['weight_ih_l0'\] is a tensor on device 'meta', which has no numbers"):
        convert.from_torch(torch.nn.GRU(4, 5, device="meta"))


def test_cells_that_are_no_stack():
    lstm, gru = cell_module("lstm", 4), cell_module("gru", 5)
    with pytest.raises(ValueError, match=r"cells must be of one kind, but are \['gru', 'lstm'\]"):
        convert.from_torch_cells([lstm, gru])
    with pytest.raises(ValueError, match=r"weight_ih_l1 has shape \(20, 4\), expected \(20, 5\)"):
        convert.from_torch_cells([lstm, lstm])
    with pytest.raises(TypeError, match=r"cells\[0\] must be a torch.nn.LSTMCell, .*, not torch.*ModuleList"):
        convert.from_torch_cells(torch.nn.ModuleList([lstm]))
    for source, kind in ((3, "a int"), ([], "an empty")):
        with pytest.raises(TypeError, match=f"source must be a list with one state dict or module .*, got {kind}"):
            convert.from_torch_cells(source)
    with pytest.raises(TypeError, match=r"cells\[1\] must be a torch.nn.LSTMCell, GRUCell, RNNCell, not torch.*Linear"):
        convert.from_torch_cells([lstm, torch.nn.Linear(2, 2)])
    with pytest.raises(ValueError, match=r"the same 1 or 2 directions, but they have \[1, 2\]"):
        convert.from_torch_cells([lstm, (lstm, lstm)])
    with pytest.raises(ValueError, match=r"cells\[0\]\[1\] is no state dict of a cell: missing \['weight_ih'\]"):
        convert.from_torch_cells([(lstm, {"weight_hh": 1, "bias": 2})])
