"""LSTM, GRU and RNN on the CPU at sizes around tiles and shares of threads, and against PyTorch.

How layers behave from call to call is tested in test_layers_calls.py; wrong arguments in test_bad_calls.py.
"""

import numpy as np
import pytest

import torch_peer
from cases import CELLS, Case
from comparing import assert_close, check, error
from problems import make_problem
from running import infer, train

DTYPES = ("float32", "float64")


@pytest.mark.parametrize("threads", (1, 2, 3))
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "sizes",
    [
        dict(T=20, B=20, I=24, hidden=(80,)),
        dict(T=20, B=20, I=24, hidden=(80, 48), directions=2),
        dict(T=40, B=1, I=24, hidden=(256,)),
    ],
    ids=lambda sizes: f"T{sizes['T']}-B{sizes['B']}-H{'_'.join(map(str, sizes['hidden']))}",
)
def test_several_threads_agree_with_reference(cpu_on_threads, cell, sizes, threads):
    cpu_on_threads.set_num_threads(threads)
    check(Case(cell, **sizes), "cpu", "auto")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [(33, 50), (17, 65), (16,)], ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_small_problems_on_three_threads(cpu_on_threads, cell, hidden, dtype):
    """Sizes that the engine would leave to one thread, cut into shares that do not fit."""
    cpu_on_threads.set_num_threads(3)
    check(Case(cell, hidden=hidden, directions=2, dropout=0.3, dtype=dtype), "cpu", "auto")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("H", (15, 16, 17, 31, 47, 64, 130))
@pytest.mark.parametrize("cell", CELLS)
def test_sizes_around_the_loops_tiles(cell, H, dtype):
    """The compiled loops work on tiles of units: full ones, and what is left."""
    check(Case(cell, T=3, B=2, hidden=(H,), directions=2, dtype=dtype), "cpu", "auto")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", CELLS)
def test_large_recurrent_product(cell, dtype):
    check(Case(cell, T=3, B=40, I=8, hidden=(200,), dtype=dtype), "cpu", "auto")


# ------------------------------------------------------------------------------------------------------ PyTorch
@pytest.fixture
def torch():
    """PyTorch on one thread: its pool, NumPy's and the engine's would fight for the cores."""
    module = pytest.importorskip("torch")
    threads = module.get_num_threads()
    module.set_num_threads(1)
    yield module
    module.set_num_threads(threads)


TORCH_SIZES = {
    "T7-B3-H33_33-bidirectional": dict(hidden=(33, 33), directions=2),
    "T20-B20-H80-batch_first": dict(T=20, B=20, I=24, hidden=(80,), batch_first=True),
    "T15-B16-H64_64": dict(T=15, B=16, I=32, hidden=(64, 64), bias=False),
    "T50-B1-H96": dict(T=50, B=1, I=32, hidden=(96,)),
    "T60-B64-H32": dict(T=60, B=64, I=16, hidden=(32,)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", TORCH_SIZES.values(), ids=TORCH_SIZES)
@pytest.mark.parametrize("cell", CELLS)
def test_error_is_at_most_twice_pytorchs(torch, cell, sizes, dtype):
    case = Case(cell, **sizes, dtype=dtype)
    problem = make_problem(case)
    values, _ = train(problem.layer(), problem)
    torch_peer.assert_at_most_twice_torchs_error(case, values, torch_peer.values(torch, problem), problem.expected())


@pytest.mark.parametrize("bias", (True, False))
@pytest.mark.parametrize("directions", (1, 2))
@pytest.mark.parametrize("cell", CELLS)
def test_state_dict_is_pytorchs(torch, cell, directions, bias):
    case = Case(cell, hidden=(5, 5, 5), directions=directions, bias=bias)
    problem = make_problem(case)
    torchs, ours = torch_peer.layer(torch, problem).state_dict(), case.layer()
    assert [(name, tuple(value.shape)) for name, value in torchs.items()] == [
        (name, value.shape) for name, value in ours.state_dict().items()
    ]
    ours.load_state_dict(torchs)  # tensors as they are
    assert_close(case, infer(ours, problem), {name: problem.expected()[name] for name in infer(ours, problem)})


def test_float64_of_numpy_is_kept_to_the_last_bits():
    """A float32 step anywhere in a float64 layer would show as 1e-8."""
    case = Case("lstm", T=20, B=4, hidden=(64, 64), dtype="float64")
    problem = make_problem(case)
    values, _ = train(problem.layer(), problem)
    assert max(error(values[name], expected) for name, expected in problem.expected().items()) < 1e-14
    assert all(value.dtype == np.float64 for value in values.values())
