"""cuDNN on a GPU, through the binding: against the float64 reference, and experiments on what nobody documents.

    python -m pytest -m gpu tests/bench/test_cudnn_gpu.py -rA

An experiment (`numbarnn.bench.peers.cudnn.experiments`; `numbarnn prove` asks them too) prints what cuDNN did, records
it (--junitxml), and fails where it is not what this package does: then the package, or what is assumed and what cites
it, has to change. Besides an NVIDIA GPU these need cuDNN
(pip install nvidia-cudnn-cu12) and skip themselves without.
"""

import numpy as np
import pytest

from cudnn_problem import LAYOUTS_OF_WEIGHTS, STANDARD, Problem, as_id, as_weight_space
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.cudnn import options
from numbarnn.bench.peers.cudnn.assumptions import ASSUMED
from numbarnn.bench.peers.cudnn.experiments import EXPERIMENTS
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


def distance(values, others):
    """Largest difference of two arrays."""
    return float(np.max(np.abs(np.asarray(values, np.float64) - np.asarray(others, np.float64)), initial=0.0))


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
@pytest.mark.parametrize("asked", EXPERIMENTS)
def test_experiment(outcome, asked):
    outcome(EXPERIMENTS[asked](), asked)
