"""What cuDNN does where its documentation is silent or contradicts itself (`ASSUMED`).

Each answer has an experiment that asks cuDNN. On a GPU `tests/bench/test_cudnn_calls.py` runs them, and fails where
cuDNN answers otherwise: then the cell has to change, and what refers to this list. cuDNN 9.19 on an H200 was asked on
2026-11-28. The answers with "limited" in them, and that about length zero, follow from what it said then and from the
recorded vectors (tests/data/cudnn-lstm-*.npz); they have not been asked in these words yet. Where parameters stand in
the weight space, and which options each algorithm refuses, the library tells without a GPU.

An experiment returns what cuDNN did, in the words of the answer if it did that. It computes in float64, in which
rounding hides no difference between two formulas.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from numbarnn.bench import accuracy
from numbarnn.bench.cases import Case, make_instance
from numbarnn.bench.expected import reference_results, run_reference
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.cudnn_peer import CudnnNetwork

UNSORTED, WITH_ZERO = (2, 1, 4), (2, 0, 4)
FLOORS = 8  # of rounding, within which two results are the same


def _instance(cell="lstm", lengths=None, layers=2, **options):
    """An instance of T=4, B=3 in float64; where there are lengths, x and dy are NaN in the padding."""
    options = {"bidirectional": True, "dtype": "float64"} | options
    made = make_instance(Case(cell, 4, 3, 3, (5,) * layers, **options))
    if lengths is not None:
        made = replace(made, lengths=np.array(lengths))
        for array in (made.x, made.dy):
            array[made.padding] = np.nan
    return made


def _computed(instance):
    """cuDNN's results by quantity; the padding of x and dy is passed on as it is."""
    network = CudnnNetwork(instance)
    return network.results(network.call(instance.x, (instance.dy, instance.dhy, instance.dcy), instance.lengths))


def _same(instance, one, other):
    return accuracy.error(one, other) <= FLOORS * accuracy.floor(instance.case)


def _differing(instance, results):
    """The quantities that differ from the reference's; padding of y and dx is not compared."""
    wanted, valid, wrong = reference_results(instance), ~instance.padding, []
    for name, value in results.items():
        part = valid if name in ("y", "dx") else slice(None)
        if not _same(instance, value[part], wanted[name][part]):
            wrong.append(name)
    return wrong


def _single_bias(bias):
    """CUDNN_RNN_SINGLE_REC_BIAS, _INP_BIAS: is n = tanh(W x + r (R h + b)) or tanh(W x + r (R h) + b)?"""
    instance = _instance("gru", layers=1, bidirectional=False, bias=bias)
    case, y = instance.case, _computed(instance)["y"]
    own, other = ("bias_hh_l0", "bias_ih_l0") if bias == "recurrent" else ("bias_ih_l0", "bias_hh_l0")
    (H,), b = case.hidden, instance.parameters[own]
    of_n = np.arange(3 * H) >= 2 * H
    moved = instance.parameters | {own: np.where(of_n, 0, b), other: np.where(of_n, b, 0)}
    given = (instance.parameters, moved) if bias == "recurrent" else (moved, instance.parameters)
    near = [
        formula for formula, parameters in zip(("r * (R h + b)", "r * (R h) + b"), given, strict=True)
        if _same(instance, y, run_reference(case, None, instance.x, parameters, instance.h0)[0].y)
    ]  # fmt: skip
    return " and ".join(near) or "neither formula"


def one_unit(cx, **chosen):
    """(cy, dcx) of an LSTM of one unit and one step, for dcy = 1; without clipping its c would be cx / 2."""
    rnn = cudnn.Rnn("lstm", 1, 1, dtype="float64", bias=False, **chosen)
    zeros = {"weight_ih_l0": np.zeros((4, 1)), "weight_hh_l0": np.zeros((4, 1))}  # i = f = o = 1/2, g = 0
    one = np.ones((1, 1, 1))
    found = rnn.call(one, (0 * one, cx * one), zeros, (0 * one, 0 * one, one)).results()
    return float(found["cy"][0, 0, 0]), float(found["dcx"][0, 0, 0])


def _gradient_of_the_clip(cx):
    """Is c limited where it is read, and is the gradient then 0, or passed on as if it had not been limited?"""
    cy, dcx = one_unit(cx, cell_clip=1.0)
    return f"{'limited' if cy == 0.5 else f'cy = {cy}'}, dcx = {dcx}"


def _nan_when_clipped(propagate):
    cy, _ = one_unit(np.nan, cell_clip=(-0.75, 0.5), clip_propagate_nan=propagate)
    return "NaN" if np.isnan(cy) else {-0.375: "limited to lclip", 0.25: "limited to rclip"}.get(cy, f"cy = {cy}")


def _padding_is_read():
    instance = _instance(lengths=UNSORTED)
    wrong = _differing(instance, _computed(instance))
    return f"read: {', '.join(wrong)} differ" if wrong else "not read"


def _padding_of_dx():
    """Zero, or what stood there (NaN)?"""
    instance = _instance(lengths=UNSORTED)
    padding = _computed(instance)["dx"][instance.padding]
    return "zero" if (padding == 0).all() else "not written" if np.isnan(padding).all() else f"{padding.ravel()[:6]}"


def _padding_value_of_y():
    instance = _instance("gru", lengths=UNSORTED, bidirectional=False, padding_value=-1.5)
    padding = _computed(instance)["y"][instance.padding]
    return "filled" if (padding == -1.5).all() else f"{padding.ravel()[:6]}"


def _length_zero():
    """Taken? Then numbarnn's hy is hx, its cy is cx, and their gradients pass through."""
    instance = _instance(lengths=WITH_ZERO)
    for array in (instance.x, instance.dy):  # whether padding is read is asked apart
        array[instance.padding] = 0
    try:
        results = _computed(instance)
    except cudnn.CudnnError as error:
        return f"refused: {error}"
    of_states = [name for name in _differing(instance, results) if name in ("hy", "cy", "dhx", "dcx")]
    zeros = [name for name in of_states if not any(np.any(part[:, 1]) for part in results[name])]
    return f"taken, {', '.join(zeros)} are zero"


def _unsorted_lengths():
    """Sequences in any order, both directions, unpacked: the same numbers, whatever the order?"""
    instance = _instance("gru", lengths=UNSORTED)
    for array in (instance.x, instance.dy):
        array[instance.padding] = 0
    results = _computed(instance)
    wrong = _differing(instance, {name: results[name] for name in ("hy", "dhx", "weight_hh_l1_reverse")})
    return f"{', '.join(wrong)} differ" if wrong else "right"


class Assumption(NamedTuple):
    """The answer that this package is built on, and the experiment that asks cuDNN for its own."""

    answer: str
    ask: Callable[[], str]


#: What is asked -> its `Assumption`.
ASSUMED = {
    # CUDNN_RNN_SINGLE_REC_BIAS has b_n within the reset gate's product, CUDNN_RNN_SINGLE_INP_BIAS outside of it.
    "recurrent bias of the GRU": Assumption("r * (R h + b)", lambda: _single_bias("recurrent")),
    "input bias of the GRU": Assumption("r * (R h) + b", lambda: _single_bias("input")),
    # Whether c is limited where it is read (cudnnRNNSetClip), and its gradient there; and where it is at the bound.
    "gradient of the clip": Assumption("limited, dcx = 0.0", lambda: _gradient_of_the_clip(4.0)),
    "gradient at a bound": Assumption("limited, dcx = 0.5", lambda: _gradient_of_the_clip(1.0)),
    # When c is clipped: CUDNN_PROPAGATE_NAN, CUDNN_NOT_PROPAGATE_NAN.
    "NaN, propagated": Assumption("NaN", lambda: _nan_when_clipped(True)),
    "NaN, not propagated": Assumption("limited to lclip", lambda: _nan_when_clipped(False)),
    "padding of x and dy": Assumption("not read", _padding_is_read),
    "padding of dx": Assumption("zero", _padding_of_dx),
    "padding value of y": Assumption("filled", _padding_value_of_y),
    # numbarnn's pass the state on, as a call of no steps would; `bench.peers.cudnn_peer` leaves such calls out.
    "sequences of length zero": Assumption("taken, hy, cy, dhx, dcx are zero", _length_zero),
    "unsorted lengths": Assumption("right", _unsorted_lengths),
}
