"""`numbarnn.step`: the number of the step as an argument of equations."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.cells.tracing import CellError

T, B, H = 6, 3, 4


@nr.cell
def counting(x, h, p, t=nr.step):
    """h says which step it was."""
    return nr.where(t < 0, p.W.a @ x, t)


@nr.cell
def every_third(x, h, p, t=nr.step, period=3):
    return nr.where(t % period < 1, nr.tanh(p.W.a @ x + p.R.a @ h), h)


@pytest.fixture
def x():
    return np.random.default_rng(0).standard_normal((T, B, 2))


def layer_of(cell, **options):
    return nr.RNN(cell, 2, H, seed=0, device="cpu", dtype="float64", **options)


def test_counts_each_sequence_in_each_direction(x):
    """By lengths, from where a direction begins; the number after the last step is a state."""
    y, (_, t) = layer_of(counting, bidirectional=True)(x, lengths=[6, 2, 0], padding_value=-1)
    forward, backward = y[:, :, 0], y[:, :, H]
    np.testing.assert_array_equal(forward.T, [[0, 1, 2, 3, 4, 5], [0, 1, -1, -1, -1, -1], [-1] * 6])
    np.testing.assert_array_equal(backward.T, [[5, 4, 3, 2, 1, 0], [1, 0, -1, -1, -1, -1], [-1] * 6])
    np.testing.assert_array_equal(t[:, :, 0], [[6, 2, 0]] * 2)


def test_a_reset_begins_with_0_again(x):
    resets = np.zeros((T, B), bool)
    resets[4, 1] = True
    y, (_, t) = layer_of(counting, bidirectional=True)(x, resets=resets)
    np.testing.assert_array_equal(y[:, 1, 0], [0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(y[:, 1, H], [3, 2, 1, 0, 1, 0])
    np.testing.assert_array_equal(t[:, :, 0], [[6, 2, 6], [6, 4, 6]])


def test_goes_on_counting_with_the_state(x):
    layer = layer_of(every_third)
    y, _ = layer(x)
    first, state = layer(x[:4])
    step = layer.stepper(batch=B)
    np.testing.assert_allclose(np.concatenate([first, layer(x[4:], state)[0]]), y, rtol=1e-13)
    np.testing.assert_allclose(np.stack([step(x_t) for x_t in x]), y, rtol=1e-13)


def test_equals_a_loop_of_the_equations(x):
    layer, h = layer_of(every_third), np.zeros((B, H))
    W, R = layer.state_dict()["weight_ih_l0"], layer.state_dict()["weight_hh_l0"]
    for t, (y_t, x_t) in enumerate(zip(layer(x)[0], x, strict=True)):
        h = np.tanh(x_t @ W.T + h @ R.T) if t % 3 == 0 else h
        np.testing.assert_allclose(y_t, h, rtol=1e-13)
    assert nr.gradcheck(every_third).ok


def test_is_a_state_by_the_name_of_the_argument():
    assert every_third.states == ("h", "t") and every_third.counts == "t"
    assert pickle.loads(pickle.dumps(every_third)) is not None and pickle.loads(pickle.dumps(nr.step)) is nr.step
    assert nr.cell(every_third, period=2).name == "every_third_t_step_period_2"
    fixed = nr.cell(every_third, t=3)
    assert fixed.states == ("h",) and fixed.counts is None
    assert counting.function(np.ones(2), np.ones(3), SimpleNamespace(W=SimpleNamespace(a=np.ones((3, 2)))), t=7)[0] == 7


def test_what_it_is_not():
    with pytest.raises(TypeError, match=r"numbarnn.step is no function: .* f\(x, h, p, t=numbarnn.step\)"):
        nr.step()
    with pytest.raises(CellError, match=r"numbarnn.step in an equation: it is an argument of the equations"):
        nr.cell(lambda x, h, p: p.W.a @ x + nr.step)
    with pytest.raises(CellError, match=r"1 value returned; expected the new value of each state.*: h, c"):
        nr.cell(lambda x, h, c, p, t=nr.step: p.W.a @ x)
