"""Every cell with every option by every schedule in every dtype, forward, backward and in inference, against float64:
the points of matrix.py, on the CPU, with the GPU's kernels in the simulator, and on a GPU.

    python -m pytest tests/test_conformance.py
    NUMBARNN_TEST_GPU=emulated python -m pytest -m gpu tests/test_conformance.py    compiled, on the emulated GPU
    python -m pytest -m gpu tests/test_conformance.py                               on a GPU

Every test run includes a few of the emulated GPU's (test_emulated.py). With `-m full`, every combination of what
chooses code.
"""

from importlib.util import find_spec
from itertools import combinations, product

import numpy as np
import pytest

import cases
import comparing
import emulator
import matrix
import problems
import running
from grouped_tiles import choose
from numbarnn.engines.gpu import profiles

ENGINES = matrix.ENGINES
MARKS = {"cuda": [pytest.mark.gpu]}
CALLS = comparing.CALLS - emulator.is_wanted()  # there a call takes seconds: one replay is enough


def pytest_generate_tests(metafunc):
    """(engine, point) of all, those that only `-m full` runs marked so; without PyTorch built-in cells alone."""
    if "point" not in metafunc.fixturenames:
        return
    found = []
    for engine in ENGINES:
        usual, marks = matrix.points(engine), MARKS.get(engine, [])
        more = matrix.points(engine, full=True) if "full" in metafunc.config.option.markexpr else []
        for point in dict.fromkeys([*usual, *more]):
            if point.case.of_reference or find_spec("torch"):
                full = [] if point in usual else [pytest.mark.full]
                found.append(pytest.param(engine, point, marks=[*marks, *full], id=f"{engine}-{point}"))
    metafunc.parametrize("engine, point", found, indirect=["engine"])


@pytest.fixture
def engine(request, monkeypatch):
    """The engine's name; the CPU's shares small work too, the simulator's plans are of few threads."""
    name = request.param
    point = request.node.callspec.params.get("point")
    if name == "cpu" and point and point.threads > 1:
        request.getfixturevalue("cpu_on_threads").set_num_threads(point.threads)
    elif name == "sim":
        choose(monkeypatch, "sim", profiles.SIMULATOR, UNITS=(4,), SLICES=(1,))
    return name


def test_agrees_with_float64(engine, point):
    calls = {"cpu": 2, "sim": 1, "cuda": CALLS}[engine]  # later calls replay, or find what earlier ones left
    comparing.check(point.case, engine, point.schedule, calls, checkpoints=engine == "cpu")


EDGES = {
    "one of everything": dict(T=1, B=1, I=1, hidden=(1, 1)),
    "one step, several layers": dict(T=1, hidden=(5, 33, 1), directions=2, bias=False),
    "one sequence": dict(T=2, B=1, hidden=(33, 5), batch_first=True),
    "a wide x": dict(T=2, I=70, hidden=(5, 6), state=False),
    "more units than a block": dict(T=3, B=2, hidden=(129, 130)),
    "many steps": dict(T=60, B=2, hidden=(9,)),
    "dy alone": dict(hidden=(5, 3), given=("dy",), directions=2),
    "dhy alone": dict(hidden=(5,), given=("dhy",)),
    "no gradients": dict(hidden=(5,), given=()),
    "everything is dropped": dict(hidden=(5, 5), dropout=1.0),
    "dropout of one layer is none": dict(dropout=0.5, hidden=(5,)),
}
SLOW_IN_SIMULATOR = {"more units than a block", "many steps", "a wide x"}


def edges():
    """Every cell at every edge, by `auto`, in dtypes in turn; on the CPU in both."""
    for name in ENGINES:
        for number, (edge, cell) in enumerate(product(EDGES, cases.CELLS)):
            slow = name == "sim" and (edge in SLOW_IN_SIMULATOR or number % 3)
            for dtype in ("float32", "float64")[:: 1 if name == "cpu" else 2 - number % 2]:
                marks = [*MARKS.get(name, []), *([pytest.mark.full] if slow else [])]
                yield pytest.param(name, cell, edge, dtype, marks=marks, id=f"{name}-{cell}-{edge}-{dtype}")


@pytest.mark.parametrize("engine, cell, edge, dtype", list(edges()), indirect=["engine"])
def test_edges_agree_with_float64(engine, cell, edge, dtype):
    comparing.check(cases.Case(cell, **EDGES[edge], dtype=dtype), engine, "auto", {"cuda": CALLS}.get(engine, 1))


# ----------------------------------------------------------------------------------------------- one layer, more calls
HERE = [pytest.param(name, marks=MARKS.get(name, [])) for name in ENGINES]
on_engines = pytest.mark.parametrize("engine", HERE, indirect=True)


def schedules():
    """Every engine with each of its schedules."""
    for name in ENGINES:
        for schedule in matrix.SCHEDULES[name]:
            yield pytest.param(name, schedule, marks=MARKS.get(name, []))


@pytest.mark.parametrize("engine, schedule", list(schedules()), indirect=["engine"])
def test_calls_with_other_lengths_and_resets(engine, schedule):
    """Of one layer: what was recorded of an earlier call is right for the later ones, without lengths too."""
    options = dict(T=4, B=3, hidden=(5, 3), directions=2, resets=True)
    every = ((2, 0, 4), None) if engine == "sim" else ((2, 0, 4), (4, 4, 1), None, (0, 1, 2))
    given = [problems.make_problem(cases.Case("gru", lengths=lengths, **options)) for lengths in every]
    layer = given[0].layer(engine, schedule=schedule)
    for problem in given:
        problem.parameters = given[0].parameters
    for problem in given * (1 if engine == "sim" else 2):  # in the simulator nothing is recorded
        expected = problem.expected()
        comparing.assert_close(problem.case, running.train(layer, problem)[0], expected)


LENGTHS = dict(hidden=(6, 4), directions=2, lengths=(7, 0, 3))


@pytest.mark.parametrize("case", (
    cases.Case("gru", **LENGTHS),
    cases.Case("lstm", heads=2, drop=0.4, **LENGTHS),  # an R that is made of the parameter
    cases.Case("blend", hidden=(5, 3)),  # a stage's product, vectors
    cases.Case("ladder", **LENGTHS),
), ids=str)  # fmt: skip
@pytest.mark.parametrize("engine, schedule", list(schedules()), indirect=["engine"])
def test_weight_gradients_are_added_to_dw(engine, schedule, case):
    """What a call without dw returns, to what is there; the same bits where a schedule computes them apart."""
    problem = problems.make_problem(case)
    layer = problem.layer(engine, schedule=schedule)
    x, dy = running.on_engine(layer.engine, [problem.x, problem.dy])
    start = np.random.default_rng(0).standard_normal(layer.weights.shape).astype(case.dtype)

    def tape():
        layer.training_calls = 0  # the same numbers at random
        return layer.forward(x, **problem.options())[2]

    def views(dw):
        return layer.stack.space.views(layer.engine.to_host(dw))

    once, before = views(layer.backward(tape(), dy).weights), layer.stack.space.views(start)
    added = views(layer.backward(tape(), dy, dw=layer.engine.from_host(start)).weights)
    comparing.assert_close(case, added, {name: before[name] + once[name] for name in once})
    found = []
    for apart in (False, True):
        given, dw = tape(), layer.engine.zeros(start.shape, case.dtype)
        layer.stack.backward_data(given, dy, None, None, *[dw] * (not apart))
        if apart:
            layer.stack.backward_weights(given, dw)
        found.append(views(dw))
    comparing.assert_same_bits(*found)


@pytest.mark.parametrize("cell", ("lstm", "gru_reset_before"))
@on_engines
def test_nothing_passes_a_reset(engine, cell):
    """Not even what is no number, forward and backward: x of the steps before, dy of those after."""
    case = cases.Case(cell, T=5, B=2, hidden=(5,), resets=True, given=("dy",))
    problem = problems.Problem(case)
    problem.resets[:] = (np.arange(5) == 2)[:, None]
    layer = problem.layer(engine, schedule="stepwise")
    clean, _ = running.train(layer, problem)
    problem.x[:2] = np.nan
    spoiled, _ = running.train(layer, problem)
    np.testing.assert_array_equal(spoiled["y"][2:], clean["y"][2:])
    assert np.isnan(spoiled["y"][:2]).all()
    problem = problems.Problem(case)
    problem.resets[:] = (np.arange(5) == 2)[:, None]
    problem.dy[2:] = np.nan
    spoiled, _ = running.train(layer, problem)
    np.testing.assert_array_equal(spoiled["dx"][:2], clean["dx"][:2])
    assert np.isnan(spoiled["dx"][2:]).all()


@on_engines
def test_random_numbers_are_those_of_the_layers_noise(engine):
    """Of a cell whose h says what it drew; backward draws the same once more; in inference there are means."""
    case = cases.Case("drawn", T=3, B=2, hidden=(5, 6), directions=2, state=False)
    problem = problems.make_problem(case)
    layer, weights = problem.layer(engine, schedule="stepwise"), 2 ** np.arange(len(case.definition.noise))
    for _ in range(2):
        values, drawn = running.train_and_draw(layer, problem)
        noise = np.einsum("dtbnh,n->tbdh", drawn.noise[-1], weights).reshape(3, 2, 12)
        assert len(np.unique(noise)) > 20
        np.testing.assert_array_equal(values["y"], noise)
        d_y = problem.dy.copy()
        for direction, columns in enumerate((slice(0, 6), slice(6, 12))):
            d_y[0 if direction else -1, :, columns] += problem.d_states[0][1][direction]
        d_bias = (noise * d_y).sum((0, 1))
        found = np.concatenate([values["dbias_ih_l1"], values["dbias_ih_l1_reverse"]])
        np.testing.assert_allclose(found, d_bias, rtol=1e-5, atol=1e-4)
    means = sum(weight * one.mean for weight, one in zip(weights, case.definition.noise, strict=True))
    assert np.all(running.infer(layer, problem)["y"] == means)


# ---------------------------------------------------------------------------------------------------- the matrix itself
@pytest.mark.parametrize("engine", matrix.ENGINES)
def test_every_pair_of_options_meets(engine):
    """Every two values, but those that are said to exclude each other."""
    factors, met = (
        matrix.factors(engine),
        {pair for choice in matrix.all_pairs(engine) for pair in matrix.pairs(choice)},
    )
    for one, two in combinations(factors, 2):
        for values in product(factors[one], factors[two]):
            excluded = any(
                values[0] in a.get(one, ()) and values[1] in b.get(two, ())
                for pair in matrix.EXCLUDED for a, b in (pair, pair[::-1])
            )  # fmt: skip
            assert (frozenset(zip((one, two), values, strict=True)) in met) != excluded, (one, two, values)
    assert len(matrix.all_pairs(engine)) <= 60, "more than pairs need"


@pytest.mark.parametrize("engine", matrix.ENGINES)
def test_every_cell_is_there(engine):
    names = {point.case.cell for point in matrix.points(engine)}
    assert names == {*cases.BUILT_IN} | (matrix.ON_CPU if engine == "cpu" else {*matrix.WRITTEN, *matrix.LIBRARY})
    assert {point.case.cell for point in matrix.points(engine, full=True)} >= {*matrix.WRITTEN, *matrix.LIBRARY}
