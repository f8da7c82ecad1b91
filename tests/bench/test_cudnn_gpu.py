"""cuDNN on a GPU, through the binding: against the float64 reference, and experiments on what nobody documents.

    python -m pytest -m gpu tests/bench/test_cudnn_gpu.py -rA

An experiment prints what cuDNN did, records it (--junitxml), and fails where it is not what this package does: then
the package, or the experiment's constant and what cites it, has to change. Besides an NVIDIA GPU these need cuDNN
(pip install nvidia-cudnn-cu12) and skip themselves without.
"""

import numpy as np
import pytest

from cudnn_problem import LAYOUTS_OF_WEIGHTS, STANDARD, Problem, as_id, as_weight_space
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.cudnn import options
from numbarnn.bench.peers.cudnn.assumptions import ASSUMED
from numbarnn.common.precision import is_half

pytestmark = [pytest.mark.gpu, pytest.mark.real_gpu]


@pytest.fixture(autouse=True)
def cudnn_here():
    if problem := cudnn.why_not():
        pytest.skip(problem)


@pytest.fixture
def outcome(record_property, capsys, request):
    """A function that tells what an experiment found, and checks it against the assumption of that name."""

    def tell(found, asked):
        source, assumed = str(cudnn.default_session()), ASSUMED[asked]
        record_property("outcome", found)
        record_property("source", source)
        with capsys.disabled():
            print(f"\n{request.node.name}: {found} ({source})")
        assert found == assumed, f"{source}: {found}; this package assumes: {assumed}"

    return tell


def run(problem):
    """What cuDNN computes; skips, in cuDNN's words, where it refuses."""
    try:
        return problem.run()
    except cudnn.CudnnError as error:
        if error.refused:
            pytest.skip(str(error))
        raise


def distance(values, others, mask=None):
    """Largest difference of two arrays, where the mask is true."""
    difference = np.abs(np.asarray(values, np.float64) - np.asarray(others, np.float64))
    return float(np.max(difference if mask is None else difference[mask], initial=0.0))


def differing(problem, values, expected, names):
    """Those of some quantities that are not as expected; of y and dx what is no padding counts."""
    masks = {"y": problem.valid, "dx": problem.valid}
    return [name for name in names if not distance(values[name], expected[name], masks.get(name)) <= problem.limit]


# ------------------------------------------------------------------------------------------------ against the reference
@pytest.mark.parametrize("chosen", STANDARD.values(), ids=STANDARD)
def test_agrees_with_reference(chosen):
    problem = Problem(**chosen)
    problem.assert_agrees(run(problem), "cuDNN")


@pytest.mark.parametrize("chosen", STANDARD.values(), ids=STANDARD)
def test_unequal_lengths_agree_with_reference(chosen):
    lengths = (4, 3, 1) if chosen.get("layout") == "seq_major_packed" else (2, 1, 4)
    problem = Problem(**chosen, lengths=lengths)
    problem.assert_agrees(run(problem), "cuDNN")


@pytest.mark.parametrize("cell", options.CELLS)
@pytest.mark.parametrize("dtype", options.DTYPES)
@pytest.mark.parametrize("algorithm", options.ALGORITHMS)
def test_every_algorithm_agrees_with_reference(algorithm, dtype, cell):
    """Sizes that all of them take: multiples of 32, hidden sizes up to 128, a batch of 8."""
    if cell == "rnn_relu" and is_half(dtype):
        pytest.skip("where a ReLU's argument is nearer to 0 than a rounding, its gradient is all or nothing")
    problem = Problem(cell, 64, 64, T=5, B=8, algorithm=algorithm, dtype=dtype)
    problem.assert_agrees(run(problem), f"cuDNN {algorithm}")


@pytest.mark.parametrize("layers, bidirectional", [(1, True), (3, False), (2, True)])
@pytest.mark.parametrize("cell", options.CELLS)
def test_stacks_agree_with_reference(cell, layers, bidirectional):
    problem = Problem(cell, 7, 33, layers, bidirectional=bidirectional, T=7, B=3, dtype="float64")
    problem.assert_agrees(run(problem), "cuDNN")


@pytest.mark.parametrize("chosen", LAYOUTS_OF_WEIGHTS, ids=as_id)
def test_the_weight_space_is_cudnns(chosen):
    rnn = cudnn.Rnn(**chosen)
    expected, size = as_weight_space(chosen)
    assert {name: tuple(place) for name, place in rnn.places.items()} == expected
    assert rnn.weight_space_size == size


@pytest.mark.parametrize("cell", options.CELLS)
def test_what_is_not_given_is_zero(cell):
    problem = Problem(cell, 3, 5, 2, bidirectional=True, states=False, gradients=False)
    problem.assert_agrees(run(problem), "cuDNN")


def test_layouts_agree_bit_for_bit():
    lengths = (4, 3, 1)
    kinds = dict(num_layers=2, bidirectional=True, lengths=lengths, dtype="float64")
    runs = [Problem("lstm", 3, 5, layout=layout, **kinds) for layout in options.LAYOUTS]
    values = [problem.run() for problem in runs]
    for other in values[1:]:
        for name, value in other.items():
            mask = runs[0].valid if name in ("y", "dx") else ...
            np.testing.assert_array_equal(value[mask], values[0][name][mask], err_msg=name)


def test_two_runs_give_the_same_bits():
    first, second = (Problem("gru", 16, 33, 2, T=7, B=5).run() for _ in range(2))
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_inference_equals_training():
    problem = Problem("lstm", 3, 5, 2, dtype="float64")
    rnn = problem.rnn()
    arguments = (problem.x, problem.hx, problem.cx, problem.parameters)
    training, inference = rnn.forward(*arguments)[:3], rnn.forward(*arguments, training=False)
    assert inference[3] is None
    for one, other in zip(training, inference, strict=False):
        assert distance(one, other) <= problem.limit


def test_dw_accumulates():
    problem = Problem("lstm", 3, 5, dtype="float64")
    rnn = problem.rnn()
    reserve = rnn.forward(problem.x, problem.hx, problem.cx, problem.parameters)[3]
    rnn.backward_data(reserve, problem.dy)
    once = rnn.backward_weights(reserve)
    assert distance(rnn.backward_weights(reserve, np.ones_like(once)), once + 1) <= problem.limit


@pytest.mark.parametrize("algorithm", options.ALGORITHMS)
def test_prepared_calls_give_what_calls_give(algorithm, record_property):
    """Again and again, as one CUDA graph where cuDNN can be recorded; which that is, is recorded."""
    problem = Problem("lstm", 64, 64, T=5, B=8, algorithm=algorithm)
    problem.padding_value = 0.0
    rnn = problem.rnn()
    try:
        call = rnn.prepare(problem.x, problem.hx, problem.cx, problem.parameters, problem.dy, problem.dhy, problem.dcy)
    except cudnn.CudnnError as error:
        pytest.skip(str(error))
    record_property("graph", call.why_no_graph or "recorded")
    for _ in range(3):
        call.run()
    values = call.results()
    problem.assert_agrees(values | rnn.split(values.pop("dw")), f"cuDNN {algorithm}, prepared")


def test_dropout_is_between_layers_and_only_in_training():
    """Its masks are cuDNN's own: one seed gives one y, another seed another y, and inference has none."""
    problem = Problem("gru", 3, 33, 2, dtype="float64")
    arguments = (problem.x, problem.hx, None, problem.parameters)
    first, second = (cudnn.Rnn("gru", 3, 33, 2, dropout=0.5, seed=1, dtype="float64") for _ in range(2))
    other = cudnn.Rnn("gru", 3, 33, 2, dropout=0.5, seed=2, dtype="float64")
    ys = [rnn.forward(*arguments)[0] for rnn in (first, second, other)]
    np.testing.assert_array_equal(ys[0], ys[1])
    assert distance(ys[0], ys[2]) > 1e-3
    y = first.forward(*arguments, training=False)[0]
    assert distance(y, problem.expected()["y"]) <= problem.limit


# ---------------------------------------------------------------------------------------------------------- experiments
@pytest.mark.parametrize(
    "bias, own, other, asked",
    [
        ("recurrent", "bias_hh", "bias_ih", "recurrent bias of the GRU"),
        ("input", "bias_ih", "bias_hh", "input bias of the GRU"),
    ],
)
def test_experiment_single_bias_of_the_gru(outcome, bias, own, other, asked):
    """CUDNN_RNN_SINGLE_REC_BIAS, _INP_BIAS: is n = tanh(W x + r (R h + b)) or tanh(W x + r (R h) + b)?"""
    problem, H = Problem("gru", 3, 5, bias=bias, dtype="float64"), 5
    values, moved = run(problem), dict(problem.parameters)
    b = moved[f"{own}_l0"]
    moved[f"{other}_l0"] = np.concatenate([np.zeros(2 * H), b[2 * H :]])
    moved[f"{own}_l0"] = np.concatenate([b[: 2 * H], np.zeros(H)])
    inside, outside = "r * (R h + b)", "r * (R h) + b"
    names = (inside, outside) if bias == "recurrent" else (outside, inside)
    formulas = dict(zip(names, (problem.expected(), problem.expected(moved)), strict=True))
    near = [name for name, expected in formulas.items() if distance(values["y"], expected["y"]) <= problem.limit]
    outcome(" and ".join(near) or "neither formula", asked)


def one_unit(cx, **chosen):
    """(cy, dcx, f) of an LSTM of one unit and one step whose c is cx / 2 without clipping; the gradient is dcy = 1."""
    rnn = cudnn.Rnn("lstm", 1, 1, dtype="float64", bias=False, **chosen)
    zeros = {"weight_ih_l0": np.zeros((4, 1)), "weight_hh_l0": np.zeros((4, 1))}  # i = f = o = 1/2, g = 0
    one = np.ones((1, 1, 1))
    _, _, cy, reserve = rnn.forward(one, 0 * one, cx * one, zeros)
    return float(cy[0, 0, 0]), float(rnn.backward_data(reserve, 0 * one, 0 * one, one)[2][0, 0, 0]), 0.5


@pytest.mark.parametrize("cx, asked", [(4.0, "gradient of the clip"), (2.0, "gradient at a bound")])
def test_experiment_gradient_of_the_clip(outcome, cx, asked):
    """Of a cell state that was clipped, or was exactly at the bound before: 0, or as if it had not been clipped?"""
    cy, dcx, f = one_unit(cx, cell_clip=1.0)
    assert cy == 1.0
    outcome({0.0: "zero", f: "straight through"}.get(dcx, f"dcx = {dcx}"), asked)


@pytest.mark.parametrize("propagate, asked", [(True, "NaN, propagated"), (False, "NaN, not propagated")])
def test_experiment_nan_when_clipped(outcome, propagate, asked):
    cy, dcx, _ = one_unit(np.nan, cell_clip=(-0.75, 0.5), clip_propagate_nan=propagate)
    found = "NaN" if np.isnan(cy) else {-0.75: "lclip", 0.5: "rclip"}.get(cy, f"cy = {cy}")
    print(f"gradient: dcx = {dcx}")
    outcome(found, asked)


def with_nan_in_padding(lengths):
    """(problem, what cuDNN computes of it, with NaN in the padding of x and dy)."""
    problem = Problem("lstm", 3, 5, 2, bidirectional=True, lengths=lengths, dtype="float64")
    for array in (problem.x, problem.dy):
        array[~problem.valid] = np.nan
    return problem, run(problem)


def test_experiment_padding_of_x_and_dy(outcome):
    """Is what stands there read?"""
    problem, values = with_nan_in_padding((2, 1, 4))
    clean = Problem("lstm", 3, 5, 2, bidirectional=True, lengths=(2, 1, 4), dtype="float64").expected()
    wrong = differing(problem, values, clean, values)
    outcome(f"read: {', '.join(wrong)} differ" if wrong else "not read", "padding of x and dy")


def test_experiment_padding_of_dx(outcome):
    """Zero, or what stood there (NaN)?"""
    problem, values = with_nan_in_padding((2, 1, 4))
    padding = values["dx"][~problem.valid]
    found = "zero" if (padding == 0).all() else "not written" if np.isnan(padding).all() else f"{padding.ravel()[:6]}"
    outcome(found, "padding of dx")


def test_experiment_padding_value_of_y(outcome):
    problem = Problem("gru", 3, 5, 2, lengths=(2, 1, 4), padding_value=-1.5)
    padding = run(problem)["y"][~problem.valid]
    outcome("filled" if (padding == -1.5).all() else f"{padding.ravel()[:6]}", "padding value of y")


def test_experiment_sequences_of_length_zero(outcome):
    """Taken? Then hy is hx, cy is cx, and their gradients pass through."""
    problem = Problem("lstm", 3, 5, 2, bidirectional=True, lengths=(2, 0, 4), dtype="float64")
    try:
        values = problem.run()
    except cudnn.CudnnError as error:
        outcome(f"refused: {error}", "sequences of length zero")
    wrong = differing(problem, values, problem.expected(), values)
    found = f"taken, but {', '.join(wrong)} differ" if wrong else "the state passes through"
    outcome(found, "sequences of length zero")


def test_experiment_unsorted_lengths(outcome):
    """Sequences in any order, both directions, unpacked: the same numbers, whatever the order?"""
    kinds = dict(num_layers=2, bidirectional=True, dtype="float64")
    problem = Problem("gru", 3, 5, lengths=(2, 1, 4), **kinds)
    wrong = differing(problem, run(problem), problem.expected(), ("hy", "dhx", "weight_hh_l1_reverse"))
    outcome(f"{', '.join(wrong)} differ" if wrong else "right", "unsorted lengths")


def test_experiment_everything_is_dropped(outcome):
    """With dropout 1 the upper layer sees zeros."""
    problem = Problem("gru", 3, 5, 2, dtype="float64")
    rnn = cudnn.Rnn("gru", 3, 5, 2, dropout=1.0, dtype="float64")
    y = rnn.forward(problem.x, problem.hx, None, problem.parameters)[0]
    problem.parameters["weight_ih_l1"] = np.zeros_like(problem.parameters["weight_ih_l1"])
    near = distance(y, problem.expected()["y"]) <= problem.limit
    outcome("zeros" if near else "NaN" if np.isnan(y).any() else "something else", "everything is dropped")
