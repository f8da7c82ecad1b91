"""General cells on the CPU engine: vectors, unequal gates, stages, no R, several states; against PyTorch's autograd."""

import numpy as np
import pytest

pytest.importorskip("torch")

from general_cells import GENERAL
from general_problem import GeneralCase, check_general, make_problem, train
from helpers import assert_close, assert_same_bits

LENGTHS = dict(T=9, B=4, lengths=(4, 9, 0, 1))
by_cell = pytest.mark.parametrize("cell", GENERAL)


def cases():
    """Each cell with each of these, dtypes taking turns."""
    options = (
        dict(hidden=(33,), directions=2),
        dict(hidden=(5, 3), directions=2, dropout=0.4),
        dict(T=1, B=1, hidden=(1,)),
        dict(hidden=(7,), bias="input", state=False),
        dict(hidden=(7, 7), bias="recurrent", batch_first=True),
        dict(hidden=(130,), bias="none", B=2, T=3),
        dict(hidden=(5,), input_mode="skip", directions=2),
        dict(hidden=(9,), directions=2, resets=True),
        dict(hidden=(5, 9), directions=2, padding_value=-0.5, **LENGTHS),
        dict(hidden=(5, 9), directions=2, resets=True, dropout=0.3, **LENGTHS),
        dict(hidden=(17,), T=9, packed=True, lengths=(4, 9, 2), directions=2, bias="input"),
    )
    for turn, cell in enumerate(GENERAL):
        for number, option in enumerate(options):
            yield GeneralCase(cell, **option, dtype=("float32", "float64")[(turn + number) % 2])


@pytest.mark.parametrize("schedule", ("stepwise", "wavefront"))
@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_agrees_with_autograd(case, schedule):
    check_general(case, "cpu", schedule)


@by_cell
def test_threads_give_the_same(cpu_on_threads, cell):
    """Products of other sizes may add up in another order."""
    case, found = GeneralCase(cell, hidden=(40, 33), directions=2, resets=True, **LENGTHS), []
    for threads in (1, 2, 3):
        cpu_on_threads.set_num_threads(threads)
        found.append(train(make_problem(case).layer("cpu"), make_problem(case))[0])
    for other in found[1:]:
        assert_close(case, other, found[0])


@by_cell
def test_gradients_accumulate_into_dw(cell):
    """The products of stages and the sums of vectors too."""
    case = GeneralCase(cell, hidden=(5, 3), dtype="float64")
    problem = make_problem(case)
    layer = problem.layer("cpu")
    once = layer.backward(layer.forward(problem.x)[2], problem.dy)
    single = {name: view.copy() for name, view in once.params.items()}
    twice = layer.backward(layer.forward(problem.x)[2], problem.dy, dw=once.weights)
    assert_close(case, twice.params, {name: 2 * value for name, value in single.items()})


@by_cell
def test_weights_gradients_apart_from_the_datas(cell):
    """As a schedule's own tasks, in a dw of their own: the same bits."""
    problem = make_problem(GeneralCase(cell, hidden=(5, 3), directions=2))
    layer, found = problem.layer("cpu"), []
    for apart in (False, True):
        tape = layer.forward(problem.x)[2]
        dw = np.zeros_like(layer.weights)
        layer.stack.backward_data(tape, problem.dy, None, None, None if apart else dw)
        if apart:
            layer.stack.backward_weights(tape, dw)
        found.append(layer.stack.space.views(dw))
    assert_same_bits(*found)


@pytest.mark.parametrize("cell, hidden, names", [
    ("blend", 5, {
        "weight_ih_l0": (15, 4), "weight_hh_l0": (20, 5), "bias_ih_l0": (15,), "bias_hh_l0": (20,), "peep_l0": (5,),
        "scale_l0": (5,),
    }),
    ("light", 3, {"weight_ih_l0": (6, 4), "bias_ih_l0": (6,), "peep_l0": (3,)}),
])  # fmt: skip
def test_parameters(cell, hidden, names):
    layer = GeneralCase(cell, hidden=(hidden,)).layer()
    assert {name: value.shape for name, value in layer.state_dict().items()} == names


def test_states_come_one_by_one():
    problem = make_problem(GeneralCase("light", hidden=(5, 5), directions=2))
    layer = problem.layer()
    y, states = layer(problem.x, problem.state_argument(problem.states))
    assert y.shape == (7, 3, 10) and [state.shape for state in states] == [(4, 3, 5)] * 3
    with pytest.raises(TypeError, match=r"state must be a tuple \(h, c, n\), not 2 items"):
        layer(problem.x, states[:2])
