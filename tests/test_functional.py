"""The four calls in cuDNN's terms: against the layers, None as NULL, accumulation, outputs in place, errors."""

import numpy as np
import pytest

from cases import CELLS, Case
from comparing import assert_same_bits
from numbarnn import functional as F
from problems import make_problem
from rejecting import raises
from running import nan_filled, train

by_cell = pytest.mark.parametrize("cell", CELLS)
UNEQUAL = dict(hidden=(5, 3), directions=2)
EQUAL = dict(hidden=(5, 5), directions=2)


class Setup:
    """A descriptor, its weights, and a layer with the same ones."""

    def __init__(self, cell, **options):
        self.case = Case(cell, **options)
        self.problem = make_problem(self.case)
        self.layer = self.problem.layer(seed=3)
        only = {name: options[name] for name in ("input_mode", "proj_size", "cell_clip") if name in options}
        self.rnn = F.Descriptor(
            cell, self.case.I, self.case.hidden, bias=self.case.bias, dropout=self.case.dropout,
            bidirectional=self.case.directions == 2, dtype=self.case.dtype, device="cpu", seed=3, **only,
        )  # fmt: skip
        self.w = self.rnn.zeros_weights()
        views = self.rnn.weight_params(self.w)
        for name, value in self.problem.parameters.items():
            views[name][...] = value

    def forward(self, x=None, **options):
        """forward_training of the problem, or of its x in another layout."""
        p = self.problem
        options = {"seq_lengths": self.case.lengths, "resets": p.resets} | options
        with nan_filled(self.rnn.engine):
            return F.forward_training(self.rnn, p.x if x is None else x, p.h, p.c, self.w, **options)

    def gradients(self, reserve, dy=None, **outputs):
        """(dx, dhx, dcx, dw) of the problem."""
        p, dw = self.problem, self.rnn.zeros_weights()
        with nan_filled(self.rnn.engine):
            dy = p.dy if dy is None else dy
            dx, dhx, dcx = F.backward_data(self.rnn, reserve, dy, p.dhy, p.dcy, self.w, **outputs)
            assert F.backward_weights(self.rnn, reserve, dw) is dw
        return dx, dhx, dcx, dw

    def named(self, y, hy, cy, dx, dhx, dcx, dw):
        """As running.train returns them."""
        values = {"y": y, "hy": hy, "cy": cy, "dx": dx, "dhx": dhx, "dcx": dcx}
        values |= {f"d{name}": view for name, view in self.rnn.weight_params(dw).items()}
        return {name: value for name, value in values.items() if value is not None}


OPTIONS = {
    "equal": EQUAL,
    "unequal": UNEQUAL,
    "dropout": dict(hidden=(5, 5, 5), dropout=0.5),
    "no_bias-float64": dict(hidden=(33,), bias=False, dtype="float64"),
    "lengths_and_resets": EQUAL | dict(lengths=(7, 0, 3), resets=True),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@by_cell
def test_four_calls_equal_the_layer(cell, options):
    s = Setup(cell, **options)
    expected, _ = train(s.layer, s.problem)
    y, hy, cy, reserve = s.forward()
    assert (cy is None) == (cell != "lstm")
    assert_same_bits(s.named(y, hy, cy, *s.gradients(reserve)), expected)


@by_cell
def test_none_is_zero(cell):
    """hx, cx, dy, dhy, dcy: as NULL in cuDNN."""
    s = Setup(cell, **EQUAL)
    zeros = np.zeros_like(s.problem.h)
    zero_c = zeros if cell == "lstm" else None
    results = []
    for h, c, dy in ((None, None, None), (zeros, zero_c, np.zeros_like(s.problem.dy))):
        y, hy, cy, reserve = F.forward_training(s.rnn, s.problem.x, h, c, s.w)
        dhy = np.ones_like(zeros)
        data = F.backward_data(s.rnn, reserve, dy, dhy, c, s.w)
        results.append(s.named(y, hy, cy, *data, F.backward_weights(s.rnn, reserve, s.rnn.zeros_weights())))
    assert_same_bits(*results)


@pytest.mark.parametrize("options", (EQUAL, UNEQUAL), ids=("equal", "unequal"))
@by_cell
def test_outputs_are_written_where_asked(cell, options):
    s = Setup(cell, **options)
    y, hy, cy, reserve = s.forward()
    dx, dhx, dcx, _ = s.gradients(reserve)

    def like(value):
        if value is None:
            return None
        return (
            [np.full_like(part, np.nan) for part in value] if isinstance(value, list) else np.full_like(value, np.nan)
        )

    outputs = {"y": like(y), "hy": like(hy), "cy": like(cy)}
    results = s.forward(**outputs)
    for name, value, expected in zip(outputs, results, (y, hy, cy), strict=False):
        if value is not None:
            assert_same_bits({name: outputs[name]}, {name: value})
            assert_same_bits({name: value}, {name: expected})
    assert results[0] is outputs["y"]
    outputs = {"dx": like(dx), "dhx": like(dhx), "dcx": like(dcx)}
    results = s.gradients(s.forward()[3], **outputs)
    for name, expected in (("dx", dx), ("dhx", dhx), ("dcx", dcx)):
        if expected is not None:
            assert_same_bits({name: outputs[name]}, {name: expected})


# ---------------------------------------------------------------------------------------------------------- errors
@pytest.fixture
def setup():
    return Setup("lstm", **EQUAL)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


BAD_FORWARD = {
    "x": (ValueError, dict(x=zeros(7, 3, 5)), ("x", r"\(T, B, 4\)", r"\(7, 3, 5\)")),
    "x dtype": (TypeError, dict(x=zeros(7, 3, 4, dtype=np.float64)), ("x", "float64", "float32")),
    "hx": (ValueError, dict(hx=zeros(4, 2, 5)), ("hx", r"\(4, 3, 5\)", r"\(4, 2, 5\)")),
    "cx": (ValueError, dict(cx=zeros(4, 3, 4)), ("cx", r"\(4, 3, 5\)", r"\(4, 3, 4\)")),
    "w missing": (TypeError, dict(w=None), ("w", "missing")),
    "w size": (ValueError, dict(w=zeros(7)), ("w", "weight space", r"\(7,\)")),
    "w dtype": ((TypeError, ValueError), dict(w=zeros(7, dtype=np.float64)), ("w", "float32", "float64")),
    "w list": (TypeError, dict(w=[0.0]), ("w", "NumPy array", "list")),
    "unknown": (TypeError, dict(lengths=[7, 7, 7]), ("no argument 'lengths'", "seq_lengths, padding_fill")),
}


@pytest.mark.parametrize("call", (F.forward_inference, F.forward_training), ids=lambda call: call.__name__)
@pytest.mark.parametrize("error, change, words", BAD_FORWARD.values(), ids=BAD_FORWARD)
def test_forward_rejects(setup, call, error, change, words):
    p = setup.problem
    with raises(error, *words):
        call(setup.rnn, **{"x": p.x, "hx": p.h, "cx": p.c, "w": setup.w, **change})


def test_cells_without_c_reject_it():
    s = Setup("gru", hidden=(5,))
    with raises(ValueError, "cx", "None", "gru"):
        F.forward_inference(s.rnn, s.problem.x, None, zeros(1, 3, 5), s.w)
    reserve = s.forward()[3]
    with raises(ValueError, "dcy", "None", "gru"):
        F.backward_data(s.rnn, reserve, None, None, zeros(1, 3, 5), s.w)
    s.gradients(reserve)


BAD_BACKWARD = {
    "dy": (ValueError, dict(dy=zeros(7, 3, 5)), ("dy", r"\(7, 3, 10\)", r"\(7, 3, 5\)")),
    "dhy": (ValueError, dict(dhy=zeros(4, 3, 6)), ("dhy", r"\(4, 3, 5\)", r"\(4, 3, 6\)")),
    "dcy": (TypeError, dict(dcy=zeros(4, 3, 5, dtype=np.float64)), ("dcy", "float64", "float32")),
    "w missing": ((TypeError, ValueError), dict(w=None), ("w", "forward_training")),
    "w another": (ValueError, dict(w=zeros(700)), ("w",)),
    "dx": (ValueError, dict(dx=zeros(7, 3, 5)), ("dx", r"\(7, 3, 4\)", r"\(7, 3, 5\)")),
    "dhx": (ValueError, dict(dhx=zeros(4, 3, 6)), ("dhx", r"\(4, 3, 5\)", r"\(4, 3, 6\)")),
    "dcx": ((TypeError, ValueError), dict(dcx=zeros(4, 3, 5, dtype=np.float64)), ("dcx", "float64", "float32")),
}


@pytest.mark.parametrize("error, change, words", BAD_BACKWARD.values(), ids=BAD_BACKWARD)
def test_backward_data_rejects_and_leaves_the_reserve_usable(setup, error, change, words):
    reserve = setup.forward()[3]
    with raises(error, *words):
        F.backward_data(setup.rnn, reserve, **{"w": setup.w, **change})
    expected, _ = train(setup.layer, setup.problem)
    assert_same_bits({"dx": setup.gradients(reserve)[0]}, {"dx": expected["dx"]})


def test_reserve_is_for_one_backward_data(setup):
    reserve = setup.forward()[3]
    with raises(ValueError, "reserve", "backward_data"):
        F.backward_weights(setup.rnn, reserve, setup.rnn.zeros_weights())
    setup.gradients(reserve)
    with raises(ValueError, "reserve", "already used"):
        setup.gradients(reserve)


def test_reserve_of_another_descriptor_or_none_at_all(setup):
    other = Setup("lstm", **EQUAL)
    reserve = other.forward()[3]
    with raises(ValueError, "reserve", "another descriptor"):
        F.backward_data(setup.rnn, reserve, w=setup.w)
    for nothing in (None, 3, "reserve"):
        with raises(TypeError, "reserve", "forward_training", type(nothing).__name__):
            F.backward_data(setup.rnn, nothing, w=setup.w)
        with raises(TypeError, "reserve", "forward_training", type(nothing).__name__):
            F.backward_weights(setup.rnn, nothing, setup.w)


@pytest.mark.parametrize(
    "dw, error, words",
    [
        (zeros(7), ValueError, ("dw", r"\(7,\)")),
        (zeros(1, dtype=np.float64), (TypeError, ValueError), ("dw", "float64")),
        ([0.0], TypeError, ("dw", "NumPy array", "list")),
        (None, TypeError, ("dw", "NoneType")),
    ],
    ids=("shape", "dtype", "list", "None"),
)
def test_backward_weights_rejects_dw(setup, dw, error, words):
    reserve = setup.forward()[3]
    dw_ = setup.gradients(reserve)[3].copy()
    with raises(error, *words):
        F.backward_weights(setup.rnn, reserve, dw)
    again = F.backward_weights(setup.rnn, reserve, setup.rnn.zeros_weights())
    assert_same_bits({"dw": again}, {"dw": dw_})


BAD_OUTPUTS = {
    "y shape": (dict(y=zeros(7, 3, 5)), ("y", r"\(7, 3, 10\)", r"\(7, 3, 5\)")),
    "hy shape": (dict(hy=zeros(4, 3, 6)), ("hy", r"\(4, 3, 5\)", r"\(4, 3, 6\)")),
    "cy dtype": (dict(cy=zeros(4, 3, 5, dtype=np.float64)), ("cy", "float64", "float32")),
    "hy is a list": (dict(hy=[zeros(2, 3, 5)] * 2), ("hy", "NumPy array", "list")),
}


@pytest.mark.parametrize("outputs, words", BAD_OUTPUTS.values(), ids=BAD_OUTPUTS)
def test_outputs_are_checked_before_anything_is_written(setup, outputs, words):
    y = np.full((7, 3, 10), 5, np.float32)
    with raises((TypeError, ValueError), *words):
        setup.forward(**{"y": y, **outputs})
    assert (y == 5).all()


def test_final_state_may_replace_the_initial_one(setup):
    """hy = hx and cy = cx: state carried in place; the reserve does not read them again."""
    p = setup.problem
    expected, _ = train(setup.layer, p)
    hx, cx = p.h.copy(), p.c.copy()
    y, hy, cy, reserve = F.forward_training(setup.rnn, p.x, hx, cx, setup.w, hy=hx, cy=cx)
    assert hy is hx and cy is cx
    assert_same_bits(setup.named(y, hy, cy, *setup.gradients(reserve)), expected)


def test_results_may_not_be_written_over_what_is_read_again(setup):
    p, rnn, size = setup.problem, setup.rnn, setup.w.size
    w, room = setup.w.copy(), np.zeros(max(size, 7 * 3 * 14), np.float32)
    y_in_w, dw = w[: 7 * 3 * 10].reshape(7, 3, 10), rnn.zeros_weights()
    with raises(ValueError, "y shares memory with w", "give y an array of its own"):
        F.forward_inference(rnn, p.x, None, None, w, y=y_in_w)
    with raises(ValueError, "cy shares memory with hy"):
        F.forward_inference(rnn, p.x, None, None, w, hy=room[:60].reshape(4, 3, 5), cy=room[59:119].reshape(4, 3, 5))
    both = room[: 7 * 3 * 14].reshape(7, 3, 14)  # columns side by side share nothing
    x, y = both[:, :, :4], both[:, :, 4:]
    x[...] = p.x
    reserve = F.forward_training(rnn, x, None, None, w, y=y)[3]
    with raises(ValueError, "dx shares memory with w"):
        F.backward_data(rnn, reserve, p.dy, w=w, dx=w[:84].reshape(7, 3, 4))
    F.backward_data(rnn, reserve, y, w=w, dx=x)  # x was copied, as it is not contiguous
    for other, name in ((w, "w"), (room[:size], "x")):
        reserve = F.forward_training(rnn, room[:84].reshape(7, 3, 4), None, None, w)[3]
        F.backward_data(rnn, reserve, p.dy, w=w)
        with raises(ValueError, f"dw shares memory with {name}"):
            F.backward_weights(rnn, reserve, other)
        assert np.isfinite(F.backward_weights(rnn, reserve, dw)).all()


# ------------------------------------------------------------------------------------------------------ cuDNN's options
LENGTHS = (6, 4, 4, 1)  # sorted, so that every layout takes them
RAGGED = dict(T=6, B=4, I=5, hidden=(5, 5), lengths=LENGTHS, dtype="float64")


def packed(array):
    """Padded (T, B, N) as cuDNN packs it: time after time, the sequences that are that long."""
    return np.concatenate([rows[t < np.array(LENGTHS)] for t, rows in enumerate(array)])


DESCRIPTORS = (
    {},
    {"directions": 2},
    {"proj_size": 3, "directions": 2},
    {"cell_clip": 0.3, "bias": "input"},
    {"cell": "gru", "bias": "recurrent", "input_mode": "skip"},
    {"cell": "gru_reset_before", "directions": 2, "bias": False},
    {"cell": "rnn_relu"},
)
by_options = pytest.mark.parametrize("options", DESCRIPTORS, ids=lambda options: "-".join(map(str, options)) or "plain")


@by_options
def test_packed_is_time_major_without_padding(options):
    s = Setup(**{"cell": "lstm", **RAGGED, **options})
    y, hy, cy, reserve = s.forward()
    dx, *gradients = s.gradients(reserve)
    x, dy = packed(s.problem.x), packed(s.problem.dy)
    *found, reserve = s.forward(x, layout="seq_major_packed")
    expected = packed(y), hy, cy, packed(dx), *gradients
    for one, other in zip([*found, *s.gradients(reserve, dy)], expected, strict=True):
        assert (one is None and other is None) or np.array_equal(one, other)


@pytest.mark.parametrize(
    "error, message, data",
    [
        (ValueError, "layout must be one of 'seq_major_unpacked', .* got 'packed'", {"layout": "packed"}),
        (ValueError, "seq_lengths must be given with layout 'seq_major_packed'", {"layout": "seq_major_packed"}),
        (ValueError, "never increase", {"layout": "seq_major_packed", "seq_lengths": [4, 6, 4, 1]}),
        (ValueError, "at least 1", {"layout": "seq_major_packed", "seq_lengths": [6, 4, 4, 0]}),
        (TypeError, "seq_lengths must be ints", {"layout": "seq_major_packed", "seq_lengths": [6.0, 4.0, 4.0, 1.0]}),
        (ValueError, r"seq_lengths must be 0 to 6.* seq_lengths\[1\] is 7", {"seq_lengths": [6, 7, 0, 0]}),
        (TypeError, "padding_fill must be a number", {"seq_lengths": LENGTHS, "padding_fill": "zero"}),
        (ValueError, r"x must have 2 dimensions \(15, 5\)", {"layout": "seq_major_packed", "seq_lengths": LENGTHS}),
    ],
)
def test_what_is_refused(error, message, data):
    s = Setup("lstm", **RAGGED)
    with pytest.raises(error, match=message):
        F.forward_inference(s.rnn, s.problem.x, s.problem.h, s.problem.c, s.w, **data)
