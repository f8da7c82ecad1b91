"""Every option of the layers on a GPU: against the float64 reference, against the CPU engine, in graphs replayed with
other lengths; arrays of other libraries.

    python -m pytest -m gpu tests/layers/test_gpu_options.py

The same kernels run in the simulator (tests/simulated/test_options_simulated.py).
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from general_cells import GENERAL
from general_problem import GeneralCase, check_general
from general_problem import make_problem as make_general
from general_problem import train as train_general
from helpers import CALLS, assert_close, assert_same_bits, on_engine
from numbarnn import PackedSequence, engines, pack_padded_sequence
from numbarnn.common.precision import HALVES
from option_cases import (
    OptionCase,
    OptionProblem,
    assert_matches,
    check_options,
    infer,
    make_problem,
    named,
    pairwise_choices,
    to_engine,
    train,
)

pytestmark = pytest.mark.gpu
CELLS = ("lstm", "gru", "gru_reset_before", "rnn_tanh", "rnn_relu")
by_cell = pytest.mark.parametrize("cell", CELLS)
RAGGED, PACKED = (3, 0, 6, 7), (3, 1, 6, 7)  # of B = 4 sequences with T = 7 steps

COMMON = {
    "bias": ("double", "input", "recurrent", "none"),
    "input_mode": ("linear", "skip"),
    "sequences": (dict(), dict(lengths=RAGGED, padding_value=-0.5), dict(lengths=PACKED, packed=True)),
    "resets": (False, True),
    "sizes": (dict(hidden=(33,)), dict(hidden=(5, 3, 4)), dict(hidden=(3, 130), I=1)),  # one block of units, and two
    "directions": (1, 2),
    "dropout": (0.0, 0.4),
    "batch_first": (False, True),
    "state": (True, False),
    "dtype": ("float32", "float64"),
    "schedule": ("stepwise", "wavefront"),
}
LSTM_ONLY = {"proj_size": (0, 1), "cell_clip": (None, 0.5, (-0.3, 0.4))}
# Of many numbers of 16 bits some come too near to a bound of the cell state, or to the ReLU's kink: few and small ones.
FEW = {"lengths": (2, 0, 3), "padding_value": -0.5}
HALF = COMMON | {
    "sequences": (dict(T=3, B=3), dict(T=3, B=3, **FEW), dict(T=3, B=3, lengths=(2, 1, 3), packed=True)),
    "sizes": (dict(hidden=(5,)), dict(hidden=(3, 2))),
    "dtype": HALVES,
}


@pytest.fixture
def engine():
    return engines.get("cuda")


def paired_cases(factors, cells):
    """(case, schedule), so that every pair of values of two factors meets in one."""
    for cell in cells:
        for choice in pairwise_choices(factors | (LSTM_ONLY if cell == "lstm" else {})):
            schedule = choice.pop("schedule")
            case = OptionCase(cell, **{"B": 4, **choice.pop("sequences")}, **choice.pop("sizes"), **choice)
            yield pytest.param(case, schedule, id=f"{case}-{schedule}")


# ------------------------------------------------------------------------------------------------ against the reference
@pytest.mark.parametrize("case, schedule", list(paired_cases(COMMON, CELLS)))
def test_agrees_with_reference(case, schedule):
    """First calls, and later ones, which are replays."""
    check_options(case, "cuda", schedule, calls=CALLS)


@pytest.mark.parametrize("case, schedule", list(paired_cases(HALF, CELLS[:-1])))
def test_halves_agree_with_reference(case, schedule):
    check_options(case, "cuda", schedule)


PERSISTENT = [
    OptionCase("lstm", T=12, B=5, hidden=(64,), lengths=(12, 0, 3, 11, 1)),
    OptionCase("lstm", T=12, B=5, hidden=(64, 33), directions=2, lengths=(12, 0, 3, 11, 1), resets=True, dropout=0.3),
    OptionCase("lstm", T=9, B=3, hidden=(33,), cell_clip=(-0.3, 0.4), bias="input", resets=True),
    OptionCase("lstm", T=9, B=2, hidden=(16,), dtype="float16", lengths=(4, 9), padding_value=-0.5),
    OptionCase("gru", T=12, B=5, hidden=(65,), input_mode="skip", bias="recurrent", lengths=(12, 0, 3, 11, 1)),
    OptionCase("gru", T=9, B=4, hidden=(32, 32), dtype="bfloat16", lengths=(9, 1, 5, 2), packed=True),
    OptionCase("rnn_tanh", T=12, B=5, hidden=(64, 64), dtype="float64", bias="none", resets=True, batch_first=True),
]


@pytest.mark.parametrize("case", PERSISTENT, ids=str)
def test_persistent_agrees_with_reference(case):
    check_options(case, "cuda", "persistent", calls=CALLS)


@pytest.mark.parametrize("case", [
    OptionCase("lstm", T=2, B=2, hidden=(32,), proj_size=8),
    OptionCase("gru_reset_before", T=2, B=2, hidden=(32,)),
], ids=str)  # fmt: skip
def test_auto_takes_what_persistent_refuses(case):
    problem = make_problem(case)
    with pytest.raises(RuntimeError, match="schedule 'persistent'"):
        infer(problem.layer("cuda", schedule="persistent"), problem)
    check_options(case, "cuda", "auto")


# ----------------------------------------------------------------------------------------------- against the CPU engine
def random_lengths(batch, steps, seed=0):
    """In no order, with 0 and T among them."""
    lengths = np.random.default_rng(seed).integers(0, steps + 1, batch)
    lengths[[1, -1]] = steps, 0
    return tuple(map(int, lengths))


LARGE = dict(T=40, B=20, I=24, hidden=(130, 65), directions=2, lengths=random_lengths(20, 40), resets=True)
ON_BOTH = [
    *(OptionCase(cell, **LARGE, dropout=0.3) for cell in CELLS[:-1]),
    OptionCase("lstm", **LARGE, proj_size=40, bias="input", padding_value=2.0),
    OptionCase("gru", **LARGE, input_mode="skip", bias="recurrent", batch_first=True, dtype="float64"),
]


@pytest.mark.parametrize("case", ON_BOTH, ids=str)
def test_agrees_with_the_cpu_engine(case):
    """Many sequences of all lengths: the same dropout masks bit for bit, results within rounding."""
    problem, found = OptionProblem(case), []
    for device in ("cuda", "cpu"):
        layer = problem.layer(device, seed=11)
        found.append((train(layer, problem), infer(layer, problem)))
    ((values, masks), outputs), ((expected, expected_masks), expected_outputs) = found
    for mask, expected_mask in zip(masks, expected_masks, strict=True):
        np.testing.assert_array_equal(mask, expected_mask, strict=True)
    assert_close(case, values, expected, "training")
    assert_close(case, outputs, expected_outputs, "inference")


# -------------------------------------------------------------------------------------------------------- general cells
def general_cases(sizes):
    """(case, schedule) of each of the hand-written general cells: vectors, unequal gates, stages, no R."""
    for cell, (number, size) in product(GENERAL, enumerate(sizes)):
        for schedule in ("stepwise", "wavefront", *["persistent"] * (not GENERAL[cell].stages)):
            dtype = size.get("dtype") or ("float32", "float64")[number % 2]
            case = GeneralCase(cell, **size | {"dtype": dtype})
            yield pytest.param(case, schedule, id=f"{case}-{schedule}")


GENERAL_SIZES = (
    dict(hidden=(33,), directions=2),
    dict(hidden=(5, 3, 4), directions=2, dropout=0.4),
    dict(LARGE),
    dict(hidden=(32, 32), B=4, lengths=RAGGED, padding_value=-0.5, bias="input"),
    dict(hidden=(5,), T=1, B=1, input_mode="skip", bias="recurrent"),
)
GENERAL_HALVES = tuple(
    dict(hidden=(5, 3), T=3, B=3, lengths=(2, 0, 3), resets=True, directions=2, dtype=dtype) for dtype in HALVES
)


@pytest.mark.parametrize("case, schedule", list(general_cases(GENERAL_SIZES)))
def test_general_cells_agree_with_the_cpu_engine(case, schedule):
    """First calls and later ones, which are replays."""
    problem, masks = make_general(case), []
    layer, runs = problem.layer("cuda", schedule=schedule), []
    for _ in range(CALLS):
        layer.training_calls = 0  # the same dropout masks
        values, masks = train_general(layer, problem)
        runs.append(values)
    expected, expected_masks = train_general(problem.layer("cpu"), problem)
    for mask, expected_mask in zip(masks, expected_masks, strict=True):
        np.testing.assert_array_equal(mask, expected_mask, strict=True)
    assert_close(case, runs[0], expected)
    for values in runs[1:]:
        assert_same_bits(values, runs[0])


@pytest.mark.parametrize("case, schedule", list(general_cases(GENERAL_HALVES)))
def test_general_cells_in_halves(case, schedule):
    """Which the CPU engine does not have: against PyTorch's autograd in float64, on the CPU."""
    pytest.importorskip("torch")
    check_general(case, "cuda", schedule, calls=CALLS)


# -------------------------------------------------------------------------------------------------------------- replays
def turns(case, count):
    """Problems with the same numbers, but with lengths and resets of their own."""
    for turn in range(count):
        lengths = random_lengths(case.B, case.T, turn)
        problem = OptionProblem(replace(case, lengths=lengths, resets=False))
        problem.case = replace(problem.case, resets=True)
        problem.resets = np.random.default_rng(turn).random((case.T, case.B)) < 0.2
        yield problem


@pytest.mark.parametrize("schedule", ("stepwise", "wavefront", "persistent"))
@pytest.mark.parametrize("batch_first", (False, True))
@pytest.mark.parametrize("cell", ("lstm", "gru"))
def test_replays_go_by_their_own_calls_lengths_and_resets(engine, cell, batch_first, schedule):
    """x and dy stand where they stood, with other contents; lengths and resets change in every call."""
    case = OptionCase(cell, T=11, B=6, hidden=(33, 20), directions=2, batch_first=batch_first)
    problems = list(turns(case, 8))
    layer, replays = problems[0].layer("cuda", schedule=schedule), engine.streams.replays
    x, dy = on_engine(engine, [np.ascontiguousarray(problems[0].sequences(a)) for a in (problems[0].x, problems[0].dy)])
    state, dstate = (
        on_engine(engine, problems[0].form(*parts))
        for parts in ((problems[0].h, problems[0].c), (problems[0].dhy, problems[0].dcy))
    )
    for turn, problem in enumerate(problems):
        for array, value in ((x, problem.x), (dy, problem.dy)):
            array[...] = engine.from_host(np.ascontiguousarray(problem.sequences(value)))
        y, new_state, tape = layer.forward(x, state, **problem.options())
        values = named(layer, y, new_state)
        gradients = layer.backward(tape, dy, dstate)
        values |= named(layer, gradients.x, gradients.state, "dx", "dhx", "dcx")
        values |= {f"d{name}": engine.to_host(value) for name, value in gradients.params.items()}
        assert_matches(problem.case, values, problem.expected(), f"call {turn}")
        del y, new_state, tape, gradients  # so that the next call gets the same memory
    assert engine.streams.replays - replays >= 2 * (len(problems) - 4)


@by_cell
def test_two_runs_give_the_same_bits(cell):
    problem = OptionProblem(OptionCase(cell, **LARGE, dropout=0.2))
    runs = [train(problem.layer("cuda"), problem)[0] for _ in range(2)]
    assert_same_bits(*runs)


# -------------------------------------------------------------------------------------------------- arrays in and out
def test_cupy_packed_in_cupy_packed_out(cupy):
    problem = make_problem(OptionCase("lstm", T=5, B=3, hidden=(33,), lengths=(2, 5, 1), packed=True))
    layer = problem.layer("cuda")
    x = to_engine(layer.engine, problem.sequences(problem.x))
    y, _, tape = layer.forward(x)
    gradients = layer.backward(tape, y)
    for packed, width in ((y, 33), (gradients.x, 4)):
        assert type(packed) is PackedSequence and type(packed.data) is cupy.ndarray and packed.data.shape == (8, width)
        assert all(type(part) is np.ndarray for part in (packed.batch_sizes, packed.sorted_indices))


def test_packing_on_the_gpu(cupy):
    x = np.random.default_rng(0).standard_normal((5, 3, 4)).astype(np.float32)
    ours, expected = pack_padded_sequence(cupy.asarray(x), [2, 5, 1]), pack_padded_sequence(x, [2, 5, 1])
    np.testing.assert_array_equal(cupy.asnumpy(ours.data), expected.data)


def test_a_packed_sequence_of_pytorch(cupy):
    """Its data and its indices are on the GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch was built without CUDA")
    problem = make_problem(OptionCase("gru", T=5, B=3, hidden=(33,), lengths=(2, 5, 1), packed=True, state=False))
    layer = problem.layer("cuda")
    x = torch.tensor(np.nan_to_num(problem.x), device="cuda")
    theirs = torch.nn.utils.rnn.pack_padded_sequence(x, [2, 5, 1], enforce_sorted=False)
    torch.cuda.synchronize()
    expected = infer(layer, problem)
    assert_same_bits(named(layer, *layer(theirs)), expected)


def test_resets_of_the_gpu_and_of_the_host(cupy):
    """On the GPU they may change from call to call, in place."""
    problem = make_problem(OptionCase("gru", T=7, B=3, hidden=(33,), directions=2, resets=True))
    layer = problem.layer("cuda")
    x = layer.engine.from_host(problem.x)
    resets = cupy.zeros((7, 3), bool)
    for turn in range(5):
        host = np.random.default_rng(turn).random((7, 3)) < 0.4
        resets[...] = cupy.asarray(host)
        results = [named(layer, *layer(x, resets=given)) for given in (resets, host, host.tolist())]
        for other in results[1:]:
            assert_same_bits(other, results[0], f"call {turn}")


def test_lengths_on_the_gpu_are_refused(cupy):
    problem = make_problem(OptionCase("gru", T=7, B=3, hidden=(5,)))
    layer = problem.layer("cuda")
    with pytest.raises(TypeError, match=r"lengths must be on the host.*lengths\.get\(\)"):
        layer(layer.engine.from_host(problem.x), lengths=cupy.asarray([7, 3, 1]))
