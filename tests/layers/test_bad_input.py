"""Wrong arguments: a ValueError or TypeError that names the argument, what came, what was expected; nothing changed."""

import numpy as np
import pytest

import numbarnn as nr
from numbarnn import cells, engines, functional, schedules
from problems import CELLS, Case, assert_same_bits, infer, make_problem, named_gradients

by_cell = pytest.mark.parametrize("cell", CELLS)


def raises(error, *words):
    """pytest.raises for an error whose message has all the words, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(words))


# ---------------------------------------------------------------------------------------------------- making a layer
BAD_OPTIONS = {
    "input_size 0": (ValueError, dict(input_size=0), ("input_size", "at least 1", "0")),
    "input_size negative": (ValueError, dict(input_size=-3), ("input_size", "at least 1", "-3")),
    "input_size bool": (TypeError, dict(input_size=True), ("input_size", "int", "True")),
    "input_size float": (TypeError, dict(input_size=4.0), ("input_size", "int", r"4\.0")),
    "input_size None": (TypeError, dict(input_size=None), ("input_size", "int", "None")),
    "hidden_size 0": (ValueError, dict(hidden_size=0), ("hidden_size", "at least 1", "0")),
    "hidden_size negative": (ValueError, dict(hidden_size=-1), ("hidden_size", "at least 1", "-1")),
    "hidden_size bool": (TypeError, dict(hidden_size=True), ("hidden_size", "int", "True")),
    "hidden_size float": (TypeError, dict(hidden_size=5.0), ("hidden_size", "int", r"5\.0")),
    "hidden_size text": (TypeError, dict(hidden_size="5"), ("hidden_size", "int", "'5'")),
    "hidden_size empty": (ValueError, dict(hidden_size=[]), ("hidden_size", "at least one layer", "empty")),
    "hidden_size with 0": (ValueError, dict(hidden_size=[5, 0]), (r"hidden_size\[1\]", "at least 1", "0")),
    "hidden_size with float": (TypeError, dict(hidden_size=[5, 2.5]), (r"hidden_size\[1\]", "int", r"2\.5")),
    "hidden_size nested": (TypeError, dict(hidden_size=[[5]]), (r"hidden_size\[0\]", "int", r"\[5\]")),
    "num_layers 0": (ValueError, dict(num_layers=0), ("num_layers", "at least 1", "0")),
    "num_layers negative": (ValueError, dict(num_layers=-1), ("num_layers", "at least 1", "-1")),
    "num_layers bool": (TypeError, dict(num_layers=True), ("num_layers", "int", "True")),
    "num_layers False": (TypeError, dict(num_layers=False), ("num_layers", "int", "False")),
    "num_layers float": (TypeError, dict(num_layers=2.0), ("num_layers", "int", r"2\.0")),
    "num_layers against the list": (ValueError, dict(hidden_size=[5, 6], num_layers=3), ("num_layers", "3", "2")),
    "bias number": ((TypeError, ValueError), dict(bias=1), ("bias", "True, False or one of", "1")),
    "bidirectional text": (TypeError, dict(bidirectional="yes"), ("bidirectional", "True or False", "'yes'")),
    "allow_tf32 text": (TypeError, dict(allow_tf32="yes"), ("allow_tf32", "True or False", "'yes'")),
    "batch_first None": (TypeError, dict(batch_first=None), ("batch_first", "True or False", "None")),
    "dropout above 1": (ValueError, dict(dropout=1.1), ("dropout", r"\[0, 1\]", r"1\.1")),
    "dropout negative": (ValueError, dict(dropout=-0.1), ("dropout", r"\[0, 1\]", r"-0\.1")),
    "dropout NaN": (ValueError, dict(dropout=float("nan")), ("dropout", r"\[0, 1\]", "nan")),
    "dropout infinite": (ValueError, dict(dropout=float("inf")), ("dropout", r"\[0, 1\]", "inf")),
    "dropout bool": (TypeError, dict(dropout=True), ("dropout", r"\[0, 1\]", "True")),
    "dropout text": (TypeError, dict(dropout="0.5"), ("dropout", r"\[0, 1\]", "'0.5'")),
    "dtype int": (ValueError, dict(dtype=int), ("dtype", "float32, float64", "'int64'")),
    "dtype unknown": (TypeError, dict(dtype="single precision"), ("dtype", "float32, float64", "single precision")),
    "dtype None": ((TypeError, ValueError), dict(dtype=None), ("dtype", "float32, float64", "None")),
    "device unknown": (ValueError, dict(device="gpu"), ("device", "'cpu'", "'cuda'", "'gpu'")),
    "device number": (ValueError, dict(device=0), ("device", "'cpu'", "0")),
    "device cpu with number": (ValueError, dict(device="cpu:0"), ("device", "'cuda:N'", "'cpu:0'")),
    "device cuda with a letter": (ValueError, dict(device="cuda:x"), ("device", "'cuda:N'", "'cuda:x'")),
    "device None": (ValueError, dict(device=None), ("device", "'auto'", "None")),
    "schedule unknown": (ValueError, dict(schedule="fast"), ("schedule", "stepwise", "'fast'")),
    "schedule list": ((TypeError, ValueError), dict(schedule=["stepwise"]), ("schedule", "stepwise")),
    "seed negative": (ValueError, dict(seed=-1), ("seed", "2^64", "-1")),
    "seed too large": (ValueError, dict(seed=2**64), ("seed", "2^64", str(2**64))),
    "seed float": (TypeError, dict(seed=1.5), ("seed", "int", r"1\.5")),
    "seed bool": (TypeError, dict(seed=True), ("seed", "int", "True")),
}


@pytest.mark.parametrize("make", (nr.LSTM, nr.GRU, nr.RNN), ids=lambda make: make.__name__)
@pytest.mark.parametrize("error, options, words", BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_layer_rejects(make, error, options, words):
    with raises(error, *(word.replace("^", r"\^") for word in words)):
        make(**{"input_size": 4, "hidden_size": 5, "device": "cpu", **options})


@pytest.mark.parametrize("nonlinearity", ("sigmoid", None, "Tanh"))
def test_rnn_rejects_nonlinearity(nonlinearity):
    with raises(ValueError, "nonlinearity", "'tanh' or 'relu'", repr(nonlinearity)):
        nr.RNN(4, 5, nonlinearity=nonlinearity)


@pytest.mark.parametrize("name", ("lstm2", "", None, "LSTM"))
def test_unknown_cell(name):
    with raises(ValueError, "cell", "lstm, gru, gru_reset_before, rnn_tanh, rnn_relu", repr(name)):
        cells.get(name)


def test_unknown_schedule():
    with raises(ValueError, "schedule", "stepwise", "persistent", "'fast'"):
        schedules.choose("fast")


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


def test_seed_of_any_integer_type_and_numpy_sizes_are_taken():
    layer = nr.GRU(
        np.int64(4), np.int32(5), num_layers=np.int64(2), seed=np.uint64(3), dropout=np.float32(0.5), device="cpu"
    )
    assert (layer.input_size, layer.hidden_size) == (4, (5, 5))


# ------------------------------------------------------------------------------------------------------ x and state
def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


class Foreign:
    """Something with a GPU's interface."""

    @property
    def __cuda_array_interface__(self):
        return {"shape": (7, 3, 4), "typestr": "<f4", "data": (1, False), "version": 3}


BAD_X = {
    "two dimensions": (ValueError, ones(3, 4), ("x", "3 dimensions", r"\(T, B, 4\)", r"\(3, 4\)")),
    "four dimensions": (ValueError, ones(1, 7, 3, 4), ("x", "3 dimensions", r"\(1, 7, 3, 4\)")),
    "a number": (ValueError, np.float32(1) * ones(), ("x", "3 dimensions", r"\(\)")),
    "T is 0": (ValueError, ones(0, 3, 4), ("x", "T >= 1", r"\(0, 3, 4\)")),
    "B is 0": (ValueError, ones(7, 0, 4), ("x", "B >= 1", r"\(7, 0, 4\)")),
    "too wide": (ValueError, ones(7, 3, 5), ("x", r"\(T, B, 4\)", r"\(7, 3, 5\)")),
    "float64": (
        TypeError,
        ones(7, 3, 4, dtype=np.float64),
        ("x", "float64", "float32", r"x\.astype\('float32'\), or make the layer with dtype='float64'$"),
    ),
    "float16": (
        TypeError,
        ones(7, 3, 4, dtype=np.float16),
        ("x", "float16", r"pass x\.astype\('float32'\), or make the layer with dtype='float16'$"),
    ),
    "integers": (TypeError, ones(7, 3, 4, dtype=np.int64), ("x", "int64", r"pass x\.astype\('float32'\)$")),
    "complex": (
        TypeError,
        ones(7, 3, 4, dtype=np.complex64),
        ("x", "complex64", "no imaginary part", r"x\.real\.astype\('float32'\)$"),
    ),
    "other byte order": (
        TypeError,
        ones(7, 3, 4).astype(">f4"),
        ("x has dtype >f4, float32 with its bytes in the other order", r"pass x\.astype\('float32'\)$"),
    ),
    "masked": (TypeError, np.ma.masked_less(ones(7, 3, 4), 2), ("x is a masked array", r"x\.filled\(0\)", "lengths=")),
    "objects": (TypeError, ones(7, 3, 4).astype(object), ("x", "object", "float32")),
    "a list": (TypeError, [[[1.0] * 4] * 3] * 7, ("x", "NumPy array", "list")),
    "None": (TypeError, None, ("x", "NumPy array", "NoneType")),
    "text": (TypeError, "x", ("x", "NumPy array", "str")),
    "on a GPU": (TypeError, Foreign(), ("x", "GPU", "asnumpy", "device='cuda'")),
}


@pytest.mark.parametrize("error, x, words", BAD_X.values(), ids=BAD_X)
@pytest.mark.parametrize("call", ("inference", "training"))
def test_x_is_rejected(call, error, x, words):
    layer = nr.LSTM(4, 5, device="cpu", seed=1)
    with raises(error, *words):
        layer(x) if call == "inference" else layer.forward(x)
    assert layer.stack.calls == 0  # a rejected call has used no dropout mask


def test_x_of_batch_first_is_named_in_its_own_layout():
    layer = nr.LSTM(4, 5, batch_first=True, device="cpu")
    with raises(ValueError, "x", r"\(B, T, 4\)", r"\(3, 7, 5\)"):
        layer(ones(3, 7, 5))
    with raises(ValueError, "x", "T >= 1", r"\(3, 0, 4\)"):
        layer(ones(3, 0, 4))


H = (4, 3, 5)  # (L*D, B, H) of the layers below
BAD_H = {
    "wrong batch": (ValueError, ones(4, 2, 5), (r"\(4, 3, 5\)", r"\(4, 2, 5\)")),
    "wrong size": (ValueError, ones(4, 3, 6), (r"\(4, 3, 5\)", r"\(4, 3, 6\)")),
    "one layer": (ValueError, ones(2, 3, 5), (r"\(4, 3, 5\)", r"\(2, 3, 5\)")),
    "two dimensions": (ValueError, ones(3, 5), ("3 dimensions", r"\(4, 3, 5\)", r"\(3, 5\)")),
    "float64": (TypeError, ones(*H, dtype=np.float64), ("float64", "float32", r"pass d?state(\[\d\])?\.astype")),
    "masked": (TypeError, np.ma.masked_less(ones(*H), 2), ("masked", r"pass d?state(\[\d\])?\.filled")),
    "a number": (TypeError, 0.0, ("NumPy array", "float")),
    "list too long": (ValueError, [ones(2, 3, 5)] * 3, ("per layer", "3 arrays")),
    "list of wrong shapes": (ValueError, [ones(2, 3, 5), ones(4, 3, 5)], (r"\[1\]", r"\(2, 3, 5\)", r"\(4, 3, 5\)")),
}


@pytest.mark.parametrize("error, h, words", BAD_H.values(), ids=BAD_H)
@by_cell
def test_state_is_rejected(cell, error, h, words):
    """As initial state and as its gradient; for the LSTM as h and as c."""
    layer = Case(cell, hidden=(5, 5), directions=2).layer()
    x, good = ones(7, 3, 4), ones(*H)
    choices = {r"\[0\] \(h\)": (h, good), r"\[1\] \(c\)": (good, h)} if cell == "lstm" else {"": h}
    for part, state in choices.items():
        with raises(error, "state" + part, *words):
            layer(x, state)
        _, _, tape = layer.forward(x)
        with raises(error, "dstate" + part, *words):
            layer.backward(tape, None, state)
        layer.backward(tape, None, (good, good) if cell == "lstm" else good)


@pytest.mark.parametrize(
    "state", [ones(*H), (ones(*H),), (ones(*H),) * 3, {"h": 1}, 0.0], ids=lambda s: type(s).__name__
)
def test_lstm_state_must_be_a_pair(state):
    layer = nr.LSTM(4, 5, num_layers=2, bidirectional=True, device="cpu")
    with raises((TypeError, ValueError), "state", r"tuple \(h, c\)"):
        layer(ones(7, 3, 4), state)


def test_state_of_unequal_layers_must_be_a_list():
    layer = nr.GRU(4, [5, 6], device="cpu")
    with raises(ValueError, "state", "one array", "per layer", r"\(5, 6\)", "ndarray"):
        layer(ones(7, 3, 4), ones(2, 3, 5))
    with raises(ValueError, r"state\[1\]", r"\(1, 3, 6\)", r"\(1, 3, 5\)"):
        layer(ones(7, 3, 4), [ones(1, 3, 5)] * 2)


# --------------------------------------------------------------------------------------------------------- backward
class Rejected:
    """A layer with a tape; after a rejected call everything must be as before, and the tape still good."""

    def __init__(self, cell="lstm", **options):
        self.problem = make_problem(Case(cell, **{"hidden": (5, 5), "directions": 2, **options}))
        self.layer = self.problem.layer()
        self.tape = self.layer.forward(self.problem.x, self.problem.state)[2]
        self.dw = np.full_like(self.layer.weights, 2)
        self.before = {"weights": self.layer.weights.copy(), "dw": self.dw.copy()}

    def check(self):
        """Nothing was changed, and the tape gives the gradients it would have given."""
        assert_same_bits({"weights": self.layer.weights, "dw": self.dw}, self.before)
        fresh = self.layer.forward(self.problem.x, self.problem.state)[2]
        gradients = [
            named_gradients(self.layer, self.layer.backward(tape, self.problem.dy, self.problem.dstate))
            for tape in (self.tape, fresh)
        ]
        assert_same_bits(*gradients)


BAD_DY = {
    "two dimensions": (ValueError, ones(7, 10), ("dy", "3 dimensions", r"\(7, 3, 10\)", r"\(7, 10\)")),
    "wrong T": (ValueError, ones(6, 3, 10), ("dy", r"\(7, 3, 10\)", r"\(6, 3, 10\)")),
    "wrong B": (ValueError, ones(7, 1, 10), ("dy", r"\(7, 3, 10\)", r"\(7, 1, 10\)")),
    "one direction": (ValueError, ones(7, 3, 5), ("dy", r"\(7, 3, 10\)", r"\(7, 3, 5\)")),
    "float64": (TypeError, ones(7, 3, 10, dtype=np.float64), ("dy", "float64", "float32")),
    "a list": (TypeError, [1.0], ("dy", "NumPy array", "list")),
}


@pytest.mark.parametrize("error, dy, words", BAD_DY.values(), ids=BAD_DY)
@by_cell
def test_dy_is_rejected(cell, error, dy, words):
    rejected = Rejected(cell)
    with raises(error, *words):
        rejected.layer.backward(rejected.tape, dy, dw=rejected.dw)
    rejected.check()


def test_dstate_is_rejected_and_nothing_changed():
    rejected = Rejected()
    with raises(ValueError, r"dstate\[1\] \(c\)", r"\(4, 3, 5\)", r"\(4, 3, 6\)"):
        rejected.layer.backward(rejected.tape, None, (ones(4, 3, 5), ones(4, 3, 6)), dw=rejected.dw)
    rejected.check()


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


BAD_DW = {
    "too short": (ValueError, lambda w: w[1:].copy(), ("dw", "shape")),
    "two dimensions": (ValueError, lambda w: w[None].copy(), ("dw", "shape")),
    "float64": ((TypeError, ValueError), lambda w: w.astype(np.float64), ("dw", "float32", "float64")),
    "a list": (TypeError, lambda w: w.tolist(), ("dw", "NumPy array", "list")),
    "a dict of gradients": (TypeError, lambda w: {"weight_ih_l0": w}, ("dw", "NumPy array", "dict")),
    "strided": (ValueError, lambda w: np.repeat(w, 2)[::2], ("dw", "contiguous")),
    "masked": (TypeError, lambda w: np.ma.masked_less(w, 2), ("dw", "masked")),
    "read-only": (ValueError, read_only, ("dw", "writ")),
}


@pytest.mark.parametrize("error, make, words", BAD_DW.values(), ids=BAD_DW)
def test_dw_is_rejected(error, make, words):
    rejected = Rejected()
    with raises(error, *words):
        rejected.layer.backward(rejected.tape, rejected.problem.dy, dw=make(rejected.dw))
    rejected.check()


def test_dw_that_is_the_weights_or_a_part_of_x_or_dy():
    rejected = Rejected()
    layer, problem, size = rejected.layer, rejected.problem, rejected.dw.size
    with raises(ValueError, "dw shares memory with weights", r"dw=np\.zeros_like\(layer\.weights\)"):
        layer.backward(rejected.tape, problem.dy, dw=layer.weights)
    rejected.check()
    room = np.zeros(size + problem.x.size + problem.dy.size, np.float32)  # dw begins where these end, less one
    x, dy = room[: problem.x.size].reshape(problem.x.shape), room[-problem.dy.size :].reshape(problem.dy.shape)
    x[...], dy[...] = problem.x, problem.dy
    for first, what in ((x.size - 1, "x"), (x.size + 1, "dy")):
        tape = layer.forward(x, problem.state)[2]
        with raises(ValueError, f"dw shares memory with {what},"):
            layer.backward(tape, dy, dw=room[first:][:size])
        layer.backward(tape, dy, dw=room[x.size :][:size])


def test_tape_may_be_used_once():
    rejected = Rejected(dropout=0.5)
    rejected.layer.backward(rejected.tape, rejected.problem.dy)
    with raises(ValueError, "tape", "already used"):
        rejected.layer.backward(rejected.tape, rejected.problem.dy, dw=rejected.dw)
    assert_same_bits({"dw": rejected.dw}, {"dw": rejected.before["dw"]})


def test_tape_of_another_layer():
    rejected, other = Rejected(), Rejected()
    with raises(ValueError, "tape", "another layer"):
        other.layer.backward(rejected.tape, rejected.problem.dy, dw=other.dw)
    rejected.check()
    other.check()


def test_tape_of_other_weights():
    rejected = Rejected()
    rejected.layer.load_state_dict(rejected.layer.state_dict())
    with raises(ValueError, "tape", "other weights", "load_state_dict"):
        rejected.layer.backward(rejected.tape, rejected.problem.dy, dw=rejected.dw)
    assert_same_bits({"dw": rejected.dw}, {"dw": rejected.before["dw"]})


@pytest.mark.parametrize("tape", (None, 0, ones(7, 3, 4), "tape"), ids=lambda tape: type(tape).__name__)
def test_not_a_tape(tape):
    layer = nr.LSTM(4, 5, device="cpu")
    with raises(TypeError, "tape", "forward", type(tape).__name__):
        layer.backward(tape, ones(7, 3, 5))
    with raises(TypeError, "tape", "forward", type(tape).__name__):
        layer.dropout_masks(tape)


def test_explain_rejects_what_is_no_shape():
    for shape in ((7, 3), (7, 3, 4, 1)):
        with raises(ValueError, "shape", "three"):
            nr.LSTM(4, 5, device="cpu").explain(shape)


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
        ("weight_hh_l1", "beyond the range of float32", "100 in all", r"1e\+60 at \[0, 0\]"),
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
    _, _, tape = layer.forward(x)
    x *= 2
    with raises(ValueError, "x was overwritten"):
        layer.backward(tape)


# ---------------------------------------------------------------------------------------------------------- devices
def test_engine_that_cannot_run_says_why():
    for name in ("cuda", "sim"):
        if name not in engines.available():
            with raises(RuntimeError, f"'{name}'", engines.why_not(name)[:20]):
                nr.LSTM(4, 5, device=name)
