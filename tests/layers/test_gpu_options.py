"""Options of the layers on a GPU: graphs replayed with other lengths, arrays of other libraries. What every option
computes with every other is in test_conformance.py."""

from dataclasses import replace

import numpy as np
import pytest

from cases import Case
from comparing import assert_close, assert_same_bits
from numbarnn import PackedSequence, engines
from problems import Problem, make_problem
from running import infer, named_gradients, named_outputs, on_engine

pytestmark = pytest.mark.gpu


@pytest.fixture
def engine():
    return engines.get("cuda")


def random_lengths(batch, steps, seed=0):
    """In no order, with 0 and T among them."""
    lengths = np.random.default_rng(seed).integers(0, steps + 1, batch)
    lengths[[1, -1]] = steps, 0
    return tuple(map(int, lengths))


# -------------------------------------------------------------------------------------------------------------- replays
def turns(case, count):
    """Problems with the same numbers, but with lengths and resets of their own."""
    for turn in range(count):
        lengths = random_lengths(case.B, case.T, turn)
        problem = Problem(replace(case, lengths=lengths, resets=False))
        problem.case = replace(problem.case, resets=True)
        problem.resets = np.random.default_rng(turn).random((case.T, case.B)) < 0.2
        yield problem


@pytest.mark.parametrize("schedule", ("stepwise", "wavefront", "persistent"))
@pytest.mark.parametrize("batch_first", (False, True))
@pytest.mark.parametrize("cell", ("lstm", "gru"))
def test_replays_go_by_their_own_calls_lengths_and_resets(engine, cell, batch_first, schedule):
    """x and dy stand where they stood, with other contents; lengths and resets change in every call."""
    case = Case(cell, T=11, B=6, hidden=(33, 20), directions=2, batch_first=batch_first)
    problems = list(turns(case, 8))
    layer, replays = problems[0].layer("cuda", schedule=schedule), engine.streams.replays
    x, dy = on_engine(engine, [np.ascontiguousarray(problems[0].sequences(a)) for a in (problems[0].x, problems[0].dy)])
    state, dstate = on_engine(engine, [problems[0].state, problems[0].dstate])
    for turn, problem in enumerate(problems):
        for array, value in ((x, problem.x), (dy, problem.dy)):
            array[...] = engine.from_host(np.ascontiguousarray(problem.sequences(value)))
        y, new_state, tape = layer.forward(x, state, **problem.options())
        values = named_outputs(layer, y, new_state)
        gradients = layer.backward(tape, dy, dstate)
        values |= named_gradients(layer, gradients)
        assert_close(problem.case, values, problem.expected(), f"call {turn}")
        del y, new_state, tape, gradients  # so that the next call gets the same memory
    assert engine.streams.replays - replays >= 2 * (len(problems) - 4)


# -------------------------------------------------------------------------------------------------- arrays in and out
def test_cupy_packed_in_cupy_packed_out(cupy):
    problem = make_problem(Case("lstm", T=5, B=3, hidden=(33,), lengths=(2, 5, 1), packed=True))
    layer = problem.layer("cuda")
    x = on_engine(layer.engine, problem.sequences(problem.x))
    y, _, tape = layer.forward(x)
    gradients = layer.backward(tape, y)
    for packed, width in ((y, 33), (gradients.x, 4)):
        assert type(packed) is PackedSequence and type(packed.data) is cupy.ndarray and packed.data.shape == (8, width)
        assert all(type(part) is np.ndarray for part in (packed.batch_sizes, packed.sorted_indices))


def test_a_packed_sequence_of_pytorch(cupy):
    """Its data and its indices are on the GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch was built without CUDA")
    problem = make_problem(Case("gru", T=5, B=3, hidden=(33,), lengths=(2, 5, 1), packed=True, state=False))
    layer = problem.layer("cuda")
    x = torch.tensor(np.nan_to_num(problem.x), device="cuda")
    theirs = torch.nn.utils.rnn.pack_padded_sequence(x, [2, 5, 1], enforce_sorted=False)
    torch.cuda.synchronize()
    expected = infer(layer, problem)
    assert_same_bits(named_outputs(layer, *layer(theirs)), expected)


def test_resets_of_the_gpu_and_of_the_host(cupy):
    """On the GPU they may change from call to call, in place."""
    problem = make_problem(Case("gru", T=7, B=3, hidden=(33,), directions=2, resets=True))
    layer = problem.layer("cuda")
    x = layer.engine.from_host(problem.x)
    resets = cupy.zeros((7, 3), bool)
    for turn in range(5):
        host = np.random.default_rng(turn).random((7, 3)) < 0.4
        resets[...] = cupy.asarray(host)
        results = [named_outputs(layer, *layer(x, resets=given)) for given in (resets, host, host.tolist())]
        for other in results[1:]:
            assert_same_bits(other, results[0], f"call {turn}")


def test_lengths_on_the_gpu_are_refused(cupy):
    problem = make_problem(Case("gru", T=7, B=3, hidden=(5,)))
    layer = problem.layer("cuda")
    with pytest.raises(TypeError, match=r"lengths must be on the host.*lengths\.get\(\)"):
        layer(layer.engine.from_host(problem.x), lengths=cupy.asarray([7, 3, 1]))
