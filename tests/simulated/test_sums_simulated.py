"""Steps in the simulator, right for any grid and any order of the threads: sums over units and plain cells. A block
has four threads here and of each sum two parts (kernels/unit_sums.py), so that nine units are several turns of a block.
What cells compute is in test_conformance.py.
"""

import numpy as np
import pytest

from cases import Case
from comparing import assert_same_bits, check
from numbarnn import engines
from numbarnn.cells import Cell
from numbarnn.cells.definition import Stage
from numbarnn.cuda import simulator
from numbarnn.cuda.launch import LaunchConfig
from numbarnn.kernels.step import pointwise, unit_sums
from problems import make_problem
from running import infer, train


@pytest.fixture
def launched_as(monkeypatch):
    """A function that lets all kernels of steps be launched in one way."""

    def choose(grid, threads):
        monkeypatch.setattr(pointwise, "launch_config", lambda *_: LaunchConfig(grid, threads))

    return choose


SIZES = (dict(B=3, hidden=(9,)), dict(B=5, hidden=(3,)))  # more units than threads; more sequences than rows of blocks


@pytest.mark.parametrize("sizes", SIZES, ids=("units", "sequences"))
@pytest.mark.parametrize("blocks, threads", [(1, 1), (1, 4), (2, 3), (7, 2)])
def test_sums_are_right_for_any_grid_one_block_wide(launched_as, blocks, threads, sizes):
    """Of one shape always the same bits, whatever the order in which threads run."""
    pytest.importorskip("torch")
    launched_as((1, blocks), threads)
    case = Case("ladder", T=2, **sizes, directions=2, dtype="float64")
    check(case, "sim")
    problem, found = make_problem(case), []
    for seed in range(2):
        layer = problem.layer("sim", schedule="stepwise")
        with simulator.schedule(seed=seed):
            found.append((infer(layer, problem), train(layer, problem)[0]))
    for one, other in zip(*found, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("grid, threads", [(1, 1), ((1, 5), 16)])
@pytest.mark.parametrize("cell", ("lstm", "gru", "rnn_tanh", "gru_reset_before"))
def test_steps_are_right_for_any_grid(launched_as, cell, grid, threads):
    """One thread that does everything, and more threads than units; with lengths and resets, too."""
    launched_as(grid, threads)
    for options in ({}, dict(lengths=(2, 3, 0), resets=True)):
        check(Case(cell, T=3, B=3, hidden=(9,), directions=2, dtype="float64", **options), "sim")


def many_sums(count):
    """A cell with a stage of so many sums."""

    def terms(ax, ah, state, given):
        return (ax[0],) * count

    stage = Stage((), terms, terms, sums=tuple(f"s{k}" for k in range(count)))
    return Cell("many", ("a",), ("h",), (), terms, terms, general=True, stages=(stage,))


@pytest.mark.parametrize("count, dtype, threads", [
    (1, "float32", 256), (45, "float32", 256), (46, "float32", 128), (23, "float64", 128), (128, "float64", 32),
])  # fmt: skip
def test_many_sums_get_fewer_threads(monkeypatch, count, dtype, threads):
    """So that shared memory holds all their terms."""
    monkeypatch.setattr(unit_sums, "THREADS_PER_BLOCK", 256)
    monkeypatch.setattr(unit_sums, "PARTS", 16)
    cell = many_sums(count)
    assert unit_sums.threads(cell, dtype, (0,)) == threads
    assert count * (threads + 16) * np.dtype(dtype).itemsize <= unit_sums.SHARED_BYTES
    assert unit_sums.threads(cell, dtype, ()) == 0


@pytest.mark.parametrize("cell, accumulate, sums", [("lstm", False, 1), ("lstm", True, 2), ("gru", False, 2)])
def test_gradients_of_two_biases_that_are_the_same_are_summed_once(monkeypatch, cell, accumulate, sums):
    """Where they are added to what is there, that may differ."""
    engine, summed = engines.get("sim"), []
    add = engine.add_column_sums
    monkeypatch.setattr(engine, "add_column_sums", lambda out, x: summed.append(out) or add(out, x), raising=False)
    case = Case(cell, T=2, B=2, hidden=(5,))
    problem = make_problem(case)
    layer = problem.layer("sim", schedule="stepwise")
    dw = layer.engine.zeros(layer.weights.shape, case.dtype) if accumulate else None
    found = layer.backward(layer.forward(problem.x, **problem.options())[2], problem.dy, dw=dw)
    assert len(summed) == sums
    biases = layer.stack.space.views(found.weights)
    same = np.array_equal(biases["bias_ih_l0"], biases["bias_hh_l0"])
    assert biases["bias_ih_l0"].any() and same == (cell == "lstm")
