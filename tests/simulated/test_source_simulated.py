"""Kernels as `numbarnn kernels --source` prints them compute the same as the full ones, bit for bit."""

import ast
from types import SimpleNamespace

import pytest
from threads import small_device

from cases import Case
from comparing import assert_same_bits
from numbarnn.bench import source
from numbarnn.cuda import launch, simulator
from numbarnn.cuda.language import PythonKernel
from problems import make_problem
from running import infer, train

CASES = (
    Case("lstm", T=2, B=2, hidden=(5, 6), dropout=0.3),
    Case("lstm", T=3, B=2, hidden=(6,), proj_size=3, lengths=(3, 1)),
    Case("gru_reset_before", T=2, B=1, hidden=(6,)),
    pytest.param(Case("layer_norm_lstm", T=2, B=1, hidden=(6,)), marks=pytest.mark.full),
)


@pytest.fixture
def printed(monkeypatch):
    """Run every kernel from its printed source; the set of their Python names."""
    bind, names = launch._bind_simulated, set()

    def bind_printed(kernel, *others):
        function = kernel.dispatcher.py_func
        tree = ast.parse(source.reduced(function))
        tree.body[0].decorator_list = []
        names.add(function.__name__)
        namespace = {**function.__globals__, **source.outside(function)}
        exec(compile(tree, "printed", "exec"), namespace)
        dispatcher = PythonKernel(namespace[function.__name__])
        return bind(SimpleNamespace(name=kernel.name, dispatcher=dispatcher), *others)

    def use():
        monkeypatch.setattr(launch, "_bind_simulated", bind_printed)
        return names

    return use


def results(case, schedule):
    problem = make_problem(case)
    with simulator.schedule(seed=1):
        layer = problem.layer("sim", schedule=schedule)
        return infer(layer, problem), train(layer, problem)[0]


@pytest.mark.parametrize("schedule", ("persistent", "stepwise"))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_printed_kernels_compute_the_same_bits(monkeypatch, printed, case, schedule):
    small_device(monkeypatch)
    full = results(case, schedule)
    names = printed()
    for found, expected in zip(results(case, schedule), full, strict=True):
        assert_same_bits(found, expected, str(case))
    assert names
    if schedule == "persistent":
        assert {"persistent_forward_kernel", "persistent_backward_kernel"} <= names
