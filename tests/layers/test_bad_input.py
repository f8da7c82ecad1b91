"""Wrong options of layers and wrong state dicts: a ValueError or TypeError that names the argument, what came, and what
was expected; nothing changed. Wrong arguments of calls: test_bad_calls.py."""

import numpy as np
import pytest

import numbarnn as nr
from cases import Case
from comparing import assert_same_bits
from numbarnn import cells, functional
from problems import make_problem
from rejecting import ones, raises
from running import infer

# ---------------------------------------------------------------------------------------------------- making a layer
BAD_OPTIONS = {
    "input_size 0": (ValueError, dict(input_size=0), ("input_size", "at least 1", "0")),
    "input_size float": (TypeError, dict(input_size=4.0), ("input_size", "int", r"4\.0")),
    "input_size None": (TypeError, dict(input_size=None), ("input_size", "int", "None")),
    "hidden_size 0": (ValueError, dict(hidden_size=0), ("hidden_size", "at least 1", "0")),
    "hidden_size text": (TypeError, dict(hidden_size="5"), ("hidden_size", "int", "'5'")),
    "hidden_size empty": (ValueError, dict(hidden_size=[]), ("hidden_size", "at least one layer", "empty")),
    "hidden_size with 0": (ValueError, dict(hidden_size=[5, 0]), (r"hidden_size\[1\]", "at least 1", "0")),
    "hidden_size with float": (TypeError, dict(hidden_size=[5, 2.5]), (r"hidden_size\[1\]", "int", r"2\.5")),
    "hidden_size nested": (TypeError, dict(hidden_size=[[5]]), (r"hidden_size\[0\]", "int", r"\[5\]")),
    "num_layers 0": (ValueError, dict(num_layers=0), ("num_layers", "at least 1", "0")),
    "num_layers False": (TypeError, dict(num_layers=False), ("num_layers", "int", "False")),
    "num_layers against the list": (ValueError, dict(hidden_size=[5, 6], num_layers=3), ("num_layers", "3", "2")),
    "bias number": ((TypeError, ValueError), dict(bias=1), ("bias", "True, False or one of", "1")),
    "bidirectional text": (TypeError, dict(bidirectional="yes"), ("bidirectional", "True or False", "'yes'")),
    "allow_tf32 text": (TypeError, dict(allow_tf32="yes"), ("allow_tf32", "True, False", "'yes'")),
    "allow_tf32 2x": (TypeError, dict(allow_tf32="2x"), ("allow_tf32", "True, False, or '3x'", "'2x'")),
    "batch_first None": (TypeError, dict(batch_first=None), ("batch_first", "True or False", "None")),
    "dropout above 1": (ValueError, dict(dropout=1.1), ("dropout", r"\[0, 1\]", r"1\.1")),
    "dropout NaN": (ValueError, dict(dropout=float("nan")), ("dropout", r"\[0, 1\]", "nan")),
    "dropout bool": (TypeError, dict(dropout=True), ("dropout", r"\[0, 1\]", "True")),
    "dropout text": (TypeError, dict(dropout="0.5"), ("dropout", r"\[0, 1\]", "'0.5'")),
    "dtype unknown": (TypeError, dict(dtype="single precision"), ("dtype", "float32, float64", "single precision")),
    "dtype None": ((TypeError, ValueError), dict(dtype=None), ("dtype", "float32, float64", "None")),
    "device unknown": (ValueError, dict(device="gpu"), ("device", "'cpu'", "'cuda'", "'gpu'")),
    "device cpu with number": (ValueError, dict(device="cpu:0"), ("device", "'cuda:N'", "'cpu:0'")),
    "schedule unknown": (ValueError, dict(schedule="fast"), ("schedule", "stepwise", "'fast'")),
    "seed too large": (ValueError, dict(seed=2**64), ("seed", "2^64", str(2**64))),
    "seed float": (TypeError, dict(seed=1.5), ("seed", "int", r"1\.5")),
}


@pytest.mark.parametrize("make", (nr.LSTM, nr.GRU, nr.RNN), ids=lambda make: make.__name__)
@pytest.mark.parametrize("error, options, words", BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_layer_rejects(make, error, options, words):
    with raises(error, *(word.replace("^", r"\^") for word in words)):
        make(**{"input_size": 4, "hidden_size": 5, "device": "cpu", **options})


OF_CLASSES = {
    "reset-after": ("GRU", dict(reset_after="yes"), TypeError, "reset_after must .*'yes'"),
    "reset-after-lstm": ("LSTM", dict(reset_after=False), (TypeError, ValueError), "reset_after"),
    "bias-name": ("LSTM", dict(bias="both"), ValueError, "bias must be .*'recurrent'.*, not 'both'"),
    "input-mode-name": ("GRU", dict(input_mode="linnear"), ValueError, "input_mode must be one of .*not 'linnear'"),
    "input-mode-unhashable": ("GRU", dict(input_mode=["skip"]), (TypeError, ValueError), "input_mode must be one of"),
    "skip-sizes": ("GRU", dict(input_size=3, input_mode="skip"), ValueError, "input_size must be .*5, not 3"),
    "proj-negative": ("LSTM", dict(proj_size=-1), (TypeError, ValueError), "proj_size must be .*-1"),
    "proj-float": ("LSTM", dict(proj_size=2.0), (TypeError, ValueError), "proj_size must be .*2.0"),
    "proj-bool": ("LSTM", dict(proj_size=True), (TypeError, ValueError), "proj_size must be .*True"),
    "proj-large": ("LSTM", dict(proj_size=5), ValueError, "proj_size must be smaller than .*5"),
    "proj-one-layer": ("LSTM", dict(hidden_size=[5, 3], proj_size=3), ValueError, "proj_size must be smaller than .*3"),
    "proj-gru": ("GRU", dict(proj_size=2), (TypeError, ValueError), "proj_size"),
    "proj-rnn": ("RNN", dict(proj_size=2), (TypeError, ValueError), "proj_size"),
    "clip-gru": ("GRU", dict(cell_clip=1.0), (TypeError, ValueError), "cell_clip"),
    "clip-crossed": ("LSTM", dict(cell_clip=(0.5, -0.5)), ValueError, r"cell_clip must .*\(0.5, -0.5\)"),
    "clip-negative": ("LSTM", dict(cell_clip=-1.0), ValueError, r"cell_clip must .*-1.0"),
    "clip-zero": ("LSTM", dict(cell_clip=0), ValueError, r"cell_clip must .*0"),
    "clip-nan": ("LSTM", dict(cell_clip=(float("nan"), 1.0)), ValueError, "cell_clip must .*nan"),
    "clip-three": ("LSTM", dict(cell_clip=(0.0, 1.0, 2.0)), (TypeError, ValueError), "cell_clip must .*2.0"),
    "clip-text": ("LSTM", dict(cell_clip="1"), TypeError, "cell_clip must .*'1'"),
    "clip-bool": ("LSTM", dict(cell_clip=True), TypeError, "cell_clip must .*True"),
    "clip-nan-flag": ("LSTM", dict(cell_clip=1.0, clip_propagate_nan=2), TypeError, "clip_propagate_nan must .*2"),
}


@pytest.mark.parametrize(("kind", "options", "error", "message"), OF_CLASSES.values(), ids=OF_CLASSES.keys())
def test_classes_reject(kind, options, error, message):
    with pytest.raises(error, match=message):
        getattr(nr, kind)(**(dict(input_size=5, hidden_size=5, device="cpu") | options))


@pytest.mark.parametrize("nonlinearity", ("sigmoid", None, "Tanh"))
def test_rnn_rejects_nonlinearity(nonlinearity):
    with raises(ValueError, "nonlinearity", "'tanh' or 'relu'", repr(nonlinearity)):
        nr.RNN(4, 5, nonlinearity=nonlinearity)


@pytest.mark.parametrize("name", ("lstm2", "", None, "LSTM"))
def test_unknown_cell(name):
    with raises(ValueError, "cell", "lstm, gru, gru_reset_before, rnn_tanh, rnn_relu", repr(name)):
        cells.get(name)


def equations(x, h, p):
    return nr.tanh(p.W.a @ x + p.R.a @ h)


@pytest.mark.parametrize("make", (nr.RNN, nr.LSTM, nr.GRU), ids=lambda make: make.__name__)
def test_a_function_that_is_no_cell_yet(make):
    with raises(TypeError, "equations is no cell", r"numbarnn\.cell\(equations\)"):
        make(equations, 4, 5, device="cpu")
    with raises(TypeError, "equations is no cell", r"numbarnn\.cell\(equations\)"):
        nr.gradcheck(equations)


def test_cells_that_stand_elsewhere():
    cell = nr.cell(equations)
    made = [nr.RNN(cell, 4, 5, seed=0), nr.RNN(cell=cell, input_size=4, hidden_size=5, seed=0)]
    assert np.array_equal(*(layer.weights for layer in made)) and made[1].cell == "equations"
    with raises(TypeError, "equations is no cell"):
        nr.RNN(cell=equations, input_size=4, hidden_size=5)
    for make in (nr.LSTM, nr.GRU):
        with raises(TypeError, f"{make.__name__} takes no cell", r"numbarnn\.RNN\(equations, \.\.\.\)"):
            make(cell, 4, 5)


@pytest.mark.parametrize("call", ("inference", "forward", "explain"))
def test_persistent_on_the_cpu(call):
    layer, x = nr.LSTM(4, 5, device="cpu", schedule="persistent"), np.ones((2, 3, 4), np.float32)
    with raises(RuntimeError, "schedule 'persistent'", "device='cuda'", "not on the CPU", "schedule='auto'"):
        {"inference": layer, "forward": layer.forward, "explain": lambda x: layer.explain(x.shape)}[call](x)


@pytest.mark.parametrize(
    "make, options, words",
    [
        (nr.LSTM, dict(hiden_size=5), ("LSTM has no argument 'hiden_size'", "mean hidden_size")),
        (nr.GRU, dict(hidden_size=5, bidirectionnal=True), ("GRU has no argument", "mean bidirectional")),
        (nr.GRU, dict(hidden_size=5, resetafter=False), ("GRU has no argument", "mean reset_after")),
        (nr.RNN, dict(hidden_size=5, non_linearity="relu"), ("RNN has no argument", "mean nonlinearity")),
        (nr.LSTM, dict(hidden_size=5, nonlinearity="relu"), ("LSTM has no argument 'nonlinearity'$",)),
        (nr.LSTM, dict(hidden_size=5, xyzzy=1), ("LSTM has no argument 'xyzzy'$",)),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_unknown_argument(make, options, words):
    with raises(TypeError, *words):
        make(4, device="cpu", **options)


def test_unknown_argument_of_a_cells_network_and_of_a_class_of_ones_own():
    class Mine(nr.LSTM):
        pass

    with raises(TypeError, "RNN has no argument 'nonlinearity'$"):
        nr.RNN(cells.LSTM, 4, 5, nonlinearity="relu", device="cpu")
    with raises(TypeError, "Mine has no argument 'drop_out'", "mean dropout"):
        Mine(4, 5, drop_out=0.5, device="cpu")


@pytest.mark.parametrize("size", (10**7, 10**9, 10**12))  # no addresses, no int64 of bytes, nor of numbers
def test_sizes_that_cannot_be_allocated(size):
    with raises(
        MemoryError, rf"hidden_size \[{size}\] with input_size 4", "bytes in float32", "'cpu'", "smaller sizes"
    ):
        nr.LSTM(4, size, device="cpu")
    with raises(MemoryError, "hidden_size", "bytes in float64"):
        functional.Descriptor("gru", 4, 10**12, dtype="float64", device="cpu").zeros_weights()


# ------------------------------------------------------------------------------------------------------- state dicts
def without(name):
    return lambda state: {key: value for key, value in state.items() if key != name}


BAD_STATE_DICTS = {
    "missing": (ValueError, without("bias_hh_l1"), ("missing", "bias_hh_l1")),
    "unknown": (ValueError, lambda state: {**state, "bias": ones(1)}, ("unknown", "'bias'")),
    "empty": (ValueError, lambda state: {}, ("missing", "weight_ih_l0")),
    "transposed": (
        ValueError,
        lambda state: {**state, "weight_hh_l1": state["weight_hh_l1"].T},
        ("weight_hh_l1", r"\(20, 5\)", r"\(5, 20\)"),
    ),
    "broadcastable": (
        ValueError,
        lambda state: {**state, "bias_ih_l0": ones(1)},
        ("bias_ih_l0", r"\(20,\)", r"\(1,\)"),
    ),
    "text": ((TypeError, ValueError), lambda state: {**state, "bias_ih_l0": "zero"}, ("bias_ih_l0", "zero")),
    "None": ((TypeError, ValueError), lambda state: {**state, "bias_ih_l0": None}, ("bias_ih_l0", "None")),
    "ragged": ((TypeError, ValueError), lambda state: {**state, "bias_ih_l0": [[1], [2, 3]]}, ("bias_ih_l0",)),
    "complex": (
        (TypeError, ValueError),
        lambda state: {**state, "bias_ih_l0": 1j * state["bias_ih_l0"]},
        ("bias_ih_l0", "complex"),
    ),
    "masked": (
        TypeError,
        lambda state: {**state, "bias_ih_l0": np.ma.masked_less(state["bias_ih_l0"], 0)},
        ("bias_ih_l0", "masked"),
    ),
    "beyond float32": (
        ValueError,
        lambda state: {**state, "weight_hh_l1": np.full((20, 5), 1e60)},
        ("weight_hh_l1", "100 values beyond the range of float32", r"1e\+60 at \[0, 0\]"),
    ),
    "not a dict": (TypeError, lambda state: None, ("state_dict", "None")),
    "a list of arrays": (TypeError, lambda state: list(state.values()), ("state_dict", "list")),
}


@pytest.mark.parametrize("error, change, words", BAD_STATE_DICTS.values(), ids=BAD_STATE_DICTS)
def test_state_dict_is_rejected_and_no_parameter_changed(error, change, words):
    problem = make_problem(Case("lstm", hidden=(5, 5)))
    layer = problem.layer()
    before, weights = infer(layer, problem), layer.weights.copy()
    tape = layer.forward(problem.x)[2]
    with raises(error, *words):
        layer.load_state_dict(change({name: value + 1 for name, value in layer.state_dict().items()}))
    assert_same_bits({"weights": layer.weights}, {"weights": weights})
    assert_same_bits(infer(layer, problem), before)
    layer.backward(tape, problem.dy)  # the weights are those of its forward


def test_state_dict_of_float64_is_rounded():
    problem = make_problem(Case("gru"))
    layer = problem.layer()
    layer.load_state_dict({name: value.astype(np.float64) for name, value in problem.parameters.items()})
    assert_same_bits(layer.state_dict(), problem.parameters)


def test_state_dict_of_bfloat16_from_a_file_of_numpy(tmp_path):
    """NumPy's files keep its bytes, but not its dtype."""
    pytest.importorskip("ml_dtypes")
    saved = nr.LSTM(4, 5, device="cpu", dtype="bfloat16", seed=0)
    np.savez(tmp_path / "saved.npz", **saved.state_dict())
    for dtype in ("bfloat16", "float32"):
        loaded = nr.LSTM(4, 5, device="cpu", dtype=dtype, seed=1)
        loaded.load_state_dict(np.load(tmp_path / "saved.npz"))
        assert np.array_equal(loaded.weights, saved.weights.astype(dtype))


def test_infinity_and_nan_in_a_state_dict_stay_what_they_are():
    layer = nr.GRU(4, 5, device="cpu")
    odd = np.resize([np.inf, -np.inf, np.nan, 1e-60], 15)
    layer.load_state_dict({**layer.state_dict(), "bias_ih_l0": odd})
    np.testing.assert_array_equal(layer.parameters["bias_ih_l0"], odd.astype(np.float32))


# ---------------------------------------------------------------------------------------------------------- PyTorch
def test_tensors_of_pytorch_on_the_cpu():
    torch = pytest.importorskip("torch")
    layer, x = nr.LSTM(4, 5, device="cpu", seed=0), torch.ones(7, 3, 4)
    y, (h, _), tape = layer.forward(x)
    assert all(type(array) is np.ndarray for array in (y, h, layer.backward(tape, torch.ones(7, 3, 5)).x))
    assert_same_bits({"y": y}, {"y": layer(x.numpy())[0]})
    recorded = torch.ones(7, 3, 4, requires_grad=True)
    with raises(TypeError, "x is a tensor that requires a gradient", r"x\.detach\(\)", "backward"):
        layer(recorded)
    with raises(TypeError, r"state\[0\] \(h\) is a tensor that requires", r"pass state\[0\]\.detach\(\)"):
        layer(x, (torch.ones(1, 3, 5, requires_grad=True), None))
    with raises(TypeError, "x", "BFloat16"):
        layer(x.bfloat16())


def test_seed_of_any_integer_type_and_numpy_sizes_are_taken():
    layer = nr.GRU(
        np.int64(4), np.int32(5), num_layers=np.int64(2), seed=np.uint64(3), dropout=np.float32(0.5), device="cpu"
    )
    assert (layer.input_size, layer.hidden_size, layer.hidden_sizes) == (4, 5, (5, 5))
