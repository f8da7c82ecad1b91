"""General cells made of the real kernels, in the simulator: vectors, unequal gates, stages, no R; against PyTorch's
autograd, and one that persistent kernels run."""

import pytest

pytest.importorskip("torch")

from persistent_setup import few_threads

from general_cells import GENERAL
from general_problem import GeneralCase, check_general, make_problem, train
from helpers import assert_close
from numbarnn.common.precision import DTYPES
from own_cases import OwnCase

LENGTHS = dict(T=4, B=3, lengths=(3, 0, 4))


def cases():
    """Each cell in each dtype, with options taking turns."""
    options = (
        dict(T=3, B=2, hidden=(5,), directions=2),
        dict(hidden=(3,), directions=2, padding_value=-0.5, **LENGTHS),
        dict(T=4, B=3, hidden=(3, 2), resets=True),
        dict(hidden=(3,), directions=2, resets=True, bias="input", **LENGTHS),
        dict(T=2, B=1, hidden=(9,), bias="recurrent", state=False),
        dict(T=2, B=2, hidden=(3, 4), directions=2, dropout=0.4, batch_first=True),
        dict(T=2, B=2, hidden=(5,), input_mode="skip", bias="none"),
    )
    for turn, cell in enumerate(GENERAL):
        for number, option in enumerate(options):
            yield GeneralCase(cell, **option, dtype=DTYPES[(turn + number) % len(DTYPES)])


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_agrees_with_autograd(case):
    check_general(case, "sim", "stepwise", calls=1)


@pytest.mark.parametrize("cell", GENERAL)
def test_wavefront_agrees_with_autograd(cell):
    check_general(GeneralCase(cell, hidden=(3, 2), directions=2, **LENGTHS), "sim", "wavefront")


@pytest.mark.parametrize("cell", GENERAL)
def test_agrees_with_the_cpu_engine(cell):
    case = GeneralCase(cell, hidden=(5, 3), directions=2, resets=True, dtype="float64", **LENGTHS)
    problem = make_problem(case)
    assert_close(case, *(train(problem.layer(device), problem)[0] for device in ("sim", "cpu")))


# ----------------------------------------------------------------------------------------------------------- persistent
PERSISTENT = (
    GeneralCase("peephole", T=3, B=2, hidden=(5,)),
    GeneralCase("peephole", hidden=(5,), directions=2, resets=True, **LENGTHS),
    GeneralCase("peephole", T=3, B=2, hidden=(5, 6), bias="input", dtype="float64"),
    GeneralCase("peephole", T=2, B=2, hidden=(8,), dtype="float16"),
    GeneralCase("light", hidden=(5, 6), directions=2, resets=True, **LENGTHS),
    OwnCase("fewer", T=3, B=2, hidden=(5, 6)),
    OwnCase("more", T=3, B=2, hidden=(5, 6), directions=2),
)


@pytest.mark.parametrize("case", PERSISTENT, ids=str)
def test_persistent_agrees_with_autograd(monkeypatch, case):
    few_threads(monkeypatch)
    check_general(case, "sim", "persistent", calls=1)


@pytest.mark.parametrize("cell, products", {"blend": 2, "chain": 3}.items())
def test_persistent_refuses_what_it_cannot_do(cell, products):
    case = GeneralCase(cell, hidden=(32,))
    with pytest.raises(RuntimeError, match=rf"'persistent' has one .*'{cell}', has {products} products per step"):
        case.layer("sim", schedule="persistent").explain((7, 3, 4))
