"""Wrong arguments of forward and backward calls: a ValueError or TypeError that names the argument, what came, and what
was expected; nothing changed."""

import numpy as np
import pytest

import numbarnn as nr
from cases import CELLS, Case
from comparing import assert_same_bits
from problems import make_problem
from rejecting import ones, raises
from running import named_gradients

by_cell = pytest.mark.parametrize("cell", CELLS)


class Foreign:
    """Something with a GPU's interface."""

    @property
    def __cuda_array_interface__(self):
        return {"shape": (7, 3, 4), "typestr": "<f4", "data": (1, False), "version": 3}


BAD_X = {
    "two dimensions": (ValueError, ones(3, 4), ("x", "3 dimensions", r"\(T, B, 4\)", r"\(3, 4\)")),
    "a number": (ValueError, np.float32(1) * ones(), ("x", "3 dimensions", r"\(\)")),
    "T is 0": (ValueError, ones(0, 3, 4), ("x", "T >= 1", r"\(0, 3, 4\)")),
    "B is 0": (ValueError, ones(7, 0, 4), ("x", "B >= 1", r"\(7, 0, 4\)")),
    "too wide": (ValueError, ones(7, 3, 5), ("x", r"\(T, B, 4\)", r"\(7, 3, 5\)")),
    "float64": (
        TypeError,
        ones(7, 3, 4, dtype=np.float64),
        ("x", "float64", "float32", r"x\.astype\('float32'\), or make the layer with dtype='float64'$"),
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
    "a list": (TypeError, [[[1.0] * 4] * 3] * 7, ("x", "NumPy array", "list")),
    "None": (TypeError, None, ("x", "NumPy array", "NoneType")),
    "on a GPU": (TypeError, Foreign(), ("x", "GPU", "asnumpy", "device='cuda'")),
}


@pytest.mark.parametrize("error, x, words", BAD_X.values(), ids=BAD_X)
@pytest.mark.parametrize("call", ("inference", "training"))
def test_x_is_rejected(call, error, x, words):
    layer = nr.LSTM(4, 5, device="cpu", seed=1)
    with raises(error, *words):
        layer(x) if call == "inference" else layer.forward(x)
    assert layer.stack.calls == 0  # a rejected call has used no dropout mask


H = (4, 3, 5)  # (L*D, B, H) of the layers below
BAD_H = {
    "wrong batch": (ValueError, ones(4, 2, 5), (r"\(4, 3, 5\)", r"\(4, 2, 5\)")),
    "wrong size": (ValueError, ones(4, 3, 6), (r"\(4, 3, 5\)", r"\(4, 3, 6\)")),
    "one layer": (ValueError, ones(2, 3, 5), (r"\(4, 3, 5\)", r"\(2, 3, 5\)")),
    "two dimensions": (ValueError, ones(3, 5), ("3 dimensions", r"\(4, 3, 5\)", r"\(3, 5\)")),
    "float64": (TypeError, ones(*H, dtype=np.float64), ("float64", "float32", r"pass d?state(\[\d\])?\.astype")),
    "masked": (TypeError, np.ma.masked_less(ones(*H), 2), ("masked", r"pass d?state(\[\d\])?\.filled")),
    "a number": (TypeError, 0.0, ("NumPy array", "float")),
    "list too long": (ValueError, [ones(2, 3, 5)] * 3, (r"one array \(4, 3, 5\), or a list", "layer, but is 3 items$")),
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
    "float64": (TypeError, lambda w: w.astype(np.float64), ("dw", "float64", "pass an array of that dtype")),
    "other byte order": (TypeError, lambda w: w.astype(">f4"), ("dw", ">f4", "pass an array of that dtype")),
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


@pytest.mark.parametrize("tape", (None, 0, ones(7, 3, 4), "tape"), ids=lambda tape: type(tape).__name__)
def test_not_a_tape(tape):
    layer = nr.LSTM(4, 5, device="cpu")
    with raises(TypeError, "tape", "forward", type(tape).__name__):
        layer.backward(tape, ones(7, 3, 5))
    with raises(TypeError, "tape", "forward", type(tape).__name__):
        layer.dropout_masks(tape)


def test_explain_rejects_what_is_no_shape():
    array = ones(7, 3, 4), r"an array of shape \(7, 3, 4\)$"
    for shape, came in (((7, 3), r"\(7, 3\)"), ((7, 3, 4, 1), r"\(7, 3, 4, 1\)"), (7, "got 7"), array):
        with raises(ValueError, "shape", "three", came):
            nr.LSTM(4, 5, device="cpu").explain(shape)


# -------------------------------------------------------------------------------------------------- about sequences
T, B = 7, 4
BAD_CALLS = {
    "lengths-number": (dict(lengths=3), (TypeError, ValueError), "lengths must .*"),
    "lengths-few": (dict(lengths=[3, 3, 3]), ValueError, "lengths must .*4"),
    "lengths-two-axes": (dict(lengths=np.full((4, 1), 3)), ValueError, "lengths must .*4"),
    "lengths-floats": (dict(lengths=[3.0, 1.0, 2.0, 2.0]), TypeError, "lengths must .*int"),
    "lengths-bools": (dict(lengths=[True] * 4), TypeError, "lengths must .*int"),
    "lengths-masked": (dict(lengths=np.ma.masked_less([3, 1, 2, 2], 2)), TypeError, "lengths is a masked array"),
    "resets-masked": (dict(resets=np.ma.masked_less(np.zeros((T, B), int), 2)), TypeError, "resets is a masked"),
    "lengths-text": (dict(lengths="3333"), (TypeError, ValueError), "lengths must"),
    "lengths-negative": (dict(lengths=[3, -1, 2, 2]), ValueError, "lengths must .*-1"),
    "lengths-long": (dict(lengths=[3, 8, 2, 2]), ValueError, "lengths must .*8"),
    "lengths-huge": (dict(lengths=[3, 2**40, 2, 2]), ValueError, "lengths must .*1099511627776"),
    "resets-turned": (dict(resets=np.zeros((B, T), bool)), ValueError, r"resets must .*\(7, 4\)"),
    "resets-one-axis": (dict(resets=np.zeros(T, bool)), ValueError, r"resets must"),
    "resets-floats": (dict(resets=np.zeros((T, B), np.float32)), TypeError, "resets must .*bool"),
    "resets-ragged": (dict(resets=[[0] * 4] * 6 + [[0]]), (TypeError, ValueError), "resets must"),
    "resets-true": (dict(resets=True), (TypeError, ValueError), "resets must"),
    "padding-text": (dict(lengths=[3, 1, 2, 2], padding_value="0"), TypeError, "padding_value must .*'0'"),
    "padding-array": (dict(padding_value=np.zeros(3)), TypeError, "padding_value must"),
    "padding-none": (dict(lengths=[3, 1, 2, 2], padding_value=None), TypeError, "padding_value must .*None"),
}


@pytest.mark.parametrize("train", (False, True), ids=("inference", "training"))
@pytest.mark.parametrize(("options", "error", "message"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_calls_reject(options, error, message, train):
    layer = nr.GRU(3, 5, device="cpu")
    x = np.zeros((T, B, 3), np.float32)
    with pytest.raises(error, match=message):
        (layer.forward if train else layer)(x, **options)


def test_resets_in_the_order_of_the_axes():
    layer = nr.GRU(3, 5, batch_first=True, device="cpu")
    x = np.zeros((B, T, 3), np.float32)
    layer(x, resets=np.zeros((B, T), bool))
    with pytest.raises(ValueError, match=r"resets must .*\(4, 7\)"):
        layer(x, resets=np.zeros((T, B), bool))


def packed_zeros(batch_sizes, rows=None, order=None, width=3):
    indices = (None, None) if order is None else (np.array(order), np.argsort(order))
    rows = sum(batch_sizes) if rows is None else rows
    return nr.PackedSequence(np.zeros((rows, width), np.float32), np.array(batch_sizes), *indices)


BAD_PACKED = {
    "lengths-too": (packed_zeros([3, 2]), dict(lengths=[2, 2, 1]), ValueError, "lengths must be None with a packed x"),
    "rows": (packed_zeros([3, 2], rows=6), {}, ValueError, "batch_sizes must .* 6 rows"),
    "width": (packed_zeros([3, 2], width=4), {}, ValueError, "x.* must .*3.*4"),
    "growing": (packed_zeros([2, 3]), {}, ValueError, "batch_sizes must"),
    "zero": (packed_zeros([2, 0]), {}, ValueError, "batch_sizes must"),
    "empty": (
        nr.PackedSequence(np.zeros((0, 3), np.float32), np.zeros(0, int)),
        {},
        ValueError,
        "batch_sizes must",
    ),
    "order-short": (packed_zeros([3, 2], order=[1, 0]), {}, ValueError, "sorted_indices must"),
    "order-twice": (packed_zeros([3, 2], order=[1, 0, 1]), {}, ValueError, "sorted_indices must"),
}


@pytest.mark.parametrize(("x", "options", "error", "message"), BAD_PACKED.values(), ids=BAD_PACKED.keys())
def test_packed_sequences_rejected(x, options, error, message):
    with pytest.raises(error, match=message):
        nr.GRU(3, 5, device="cpu")(x, **options)


def test_gradients_must_be_packed_as_x_was():
    layer = nr.GRU(3, 5, device="cpu")
    x, padded = packed_zeros([3, 2]), np.zeros((2, 3, 5), np.float32)
    for dy in (padded, packed_zeros([3, 1], width=5), packed_zeros([3, 2], order=[2, 1, 0], width=5)):
        _, _, tape = layer.forward(x)
        with pytest.raises((TypeError, ValueError), match="dy"):
            layer.backward(tape, dy)
    _, _, tape = layer.forward(np.zeros((2, 3, 3), np.float32))
    with pytest.raises((TypeError, ValueError), match="dy"):
        layer.backward(tape, packed_zeros([3, 3], width=5))
