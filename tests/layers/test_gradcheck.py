"""gradcheck: right cells pass, wrong ones are named; networks of a cell that is passed in."""

import re
from dataclasses import replace

import numpy as np
import pytest

import numbarnn
from numbarnn import cells
from numbarnn.cells import library
from numbarnn.cells.lstm import lstm_backward


@pytest.mark.parametrize("name", ["lstm", "gru", "gru_reset_before", "rnn_tanh"])
def test_built_in_cells_pass(name):
    check = numbarnn.gradcheck(name, num_layers=2, bidirectional=True, steps=2)
    assert check.ok and {"x", "h", "weight_ih_l0", "weight_hh_l1_reverse"} <= check.errors.keys()
    assert max(check.errors.values()) < 1e-7


def forgets_a_factor(saved, state, new_state, d_state):
    gates, _, (dh, dc) = lstm_backward(saved, state, new_state, d_state)
    return gates, gates, (dh, dc + dc)


def test_a_wrong_backward_is_named():
    wrong = replace(cells.LSTM, name="wrong", backward=forgets_a_factor)
    with pytest.raises(ValueError, match=r"backward of cell 'wrong' is wrong; .*\n(.*\n)*  c  .*WRONG"):
        numbarnn.gradcheck(wrong)


def test_every_argument_reaches_the_network():
    check = numbarnn.gradcheck(cells.GRU, 2, 3, 2, steps=1, batch=1, seed=5, schedule="wavefront", bias=False)
    assert set(check.errors) == {"x", "h", *(f"weight_{kind}_l{layer}" for layer in (0, 1) for kind in ("ih", "hh"))}
    with pytest.raises(ValueError, match="is wrong"):
        numbarnn.gradcheck("gru", tolerance=0.0)


def test_sizes_are_those_that_the_equations_need():
    @numbarnn.cell
    def highway(x, h, p):
        t = numbarnn.sigmoid(p.W.t @ x + p.R.t @ h + p.b.t)
        return t * numbarnn.tanh(p.W.g @ x + p.R.g @ h) + (1 - t) * x

    speeds = np.array([0.1, 0.5, 0.9])

    @numbarnn.cell
    def leaky(x, h, p):
        return speeds * h + (1 - speeds) * numbarnn.tanh(p.W.g @ x + p.R.g @ h)

    assert numbarnn.gradcheck(highway).ok and numbarnn.gradcheck(highway, 2).ok and numbarnn.gradcheck(leaky).ok
    with pytest.raises(ValueError, match="hidden size 4 and input size 3 must be equal"):
        numbarnn.gradcheck(highway, 3, 4)


def test_input_and_hidden_size_differ_unless_the_equations_make_them_equal():
    """Else a matrix, or a vector, in the place of the other would pass; and it says which were taken, and why."""

    @numbarnn.cell
    def tied(x, h, p):
        return numbarnn.tanh(p.W @ x + p.W @ h)

    assert "input_size 4, hidden_size 4: equal, as p.W stands in p.W @ x and p.W @ h\n" in str(numbarnn.gradcheck(tied))
    for sizes in ((), (4,), (None, 3)):
        said = str(numbarnn.gradcheck(library.ugrnn, *sizes, steps=1, batch=1))
        (input_size, hidden_size), why = re.search(r"input_size (\d), hidden_size (\d): (.*)", said).group(1, 2), said
        assert input_size != hidden_size and "different, so that" in why
    assert "as asked for" in str(numbarnn.gradcheck(library.ugrnn, 4, 4, steps=1, batch=1))


@pytest.mark.parametrize("options", ({}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}))
def test_the_forward_is_compared_with_the_equations_in_numpy(options):
    """One that computes something else is named, though its gradients are those of what it computes."""
    check = numbarnn.gradcheck(library.phased_lstm, **options)
    assert check.errors["y, equations in NumPy"] < 1e-14
    wrong = replace(library.ugrnn, definition=lambda x, h, p: 1.001 * library.ugrnn.function(x, h, p))
    with pytest.raises(ValueError, match=r"the forward of cell 'ugrnn' is wrong; (.*\n)*  y, equations.*WRONG"):
        numbarnn.gradcheck(wrong, **options)


def test_gradients_that_are_not_meant_to_be_those_of_values():
    @numbarnn.cell
    def truncated(x, h, p):
        return numbarnn.tanh(p.W.g @ x + p.R.g @ numbarnn.stop_gradient(h))

    with pytest.raises(ValueError, match=r"'truncated' defines gradients by stop_gradient, .*detach"):
        numbarnn.gradcheck(truncated)


def test_a_network_of_a_given_cell():
    ours, same = numbarnn.RNN(cells.LSTM, 3, 4, 2, seed=0), numbarnn.LSTM(3, 4, 2, seed=0)
    x = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)
    (y, state), (expected, expected_state) = ours(x), same(x)
    np.testing.assert_array_equal(y, expected)
    for one, other in zip(state, expected_state, strict=True):
        np.testing.assert_array_equal(one, other)
    assert ours.cell == "lstm" and ours.num_layers == 2


def test_a_cell_with_biases_of_its_own_takes_no_option():
    own = replace(cells.LSTM, name="own", bias="input")
    assert numbarnn.RNN(own, 3, 4).bias_mode == "input"
    with pytest.raises(ValueError, match="bias must be left out: the equations of own say which biases there are"):
        numbarnn.RNN(own, 3, 4, bias=False)


def test_states_are_a_tuple_in_the_cells_order():
    layer = numbarnn.RNN(cells.LSTM, 3, 4)
    x = np.zeros((2, 1, 3), np.float32)
    with pytest.raises(TypeError, match=r"state must be a tuple \(h, c\), not 3 items"):
        layer(x, (None, None, None))


def test_a_cell_of_the_library_by_its_name():
    layer = numbarnn.RNN(numbarnn.cells.library.peephole_lstm, 3, 4)
    assert repr(layer).startswith("RNN(peephole_lstm, 3, 4, num_layers=1, dtype=")
    for write in (numbarnn.convert.to_torch, numbarnn.convert.to_keras):
        with pytest.raises(ValueError, match=r"layer must have one of the cells .*, got 'peephole_lstm'"):
            write(layer)
    assert set(layer.state_dict()) >= {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "peep_i_l0"}
