"""Networks: what a state dict tells about a stack of layers, what does not fit, and other forms of the same network."""

from itertools import product

import numpy as np
import pytest

import weights_helpers
from numbarnn import cells
from numbarnn.weights import BIAS_MODES, gates
from numbarnn.weights.network import infer, with_both_biases, with_input_matrix
from weights_helpers import CELLS, SIZES, assert_same_bits

OPTIONS = [*product(BIAS_MODES, ("linear", "skip"))]


@pytest.mark.parametrize("bias, input_mode", OPTIONS)
@pytest.mark.parametrize("cell, hidden, D", SIZES)
def test_a_state_dict_tells_everything(cell, hidden, D, bias, input_mode):
    network = weights_helpers.network(cell, hidden, D, bias, input_mode)
    assert network.input_size == (4 if input_mode == "linear" else 5)
    found = (network.cell, network.hidden_sizes, network.directions, network.bias, network.input_mode)
    assert found == (cell, hidden, D, bias, input_mode)
    assert (network.proj_size, network.dtype, network.cell_clip) == (0, "float32", None)


@pytest.mark.parametrize("hidden, D", [((5,), 1), ((5, 5), 2), ((7, 5), 2)])
def test_a_projection_is_seen(hidden, D):
    network = weights_helpers.network("lstm", hidden, D, proj_size=3)
    assert (network.proj_size, network.hidden_sizes, network.directions) == (3, hidden, D)
    assert infer(network.parameters).proj_size == 3  # without being told the cell


def test_layers_may_differ_in_size_and_order_of_names_does_not_matter():
    network = weights_helpers.network("gru", (5, 3, 2), 2)
    shuffled = dict(sorted(network.parameters.items(), reverse=True))
    assert_same_bits(infer(shuffled).parameters, network.parameters)


def test_the_cell_follows_from_the_number_of_gates_but_for_the_rnn():
    assert infer(weights_helpers.network("lstm").parameters).cell == "lstm"
    assert infer(weights_helpers.network("gru").parameters).cell == "gru"
    before = weights_helpers.network("gru_reset_before").parameters  # the same names and shapes: it has to be said
    assert (infer(before).cell, infer(before, "gru_reset_before").cell) == ("gru", "gru_reset_before")
    with pytest.raises(ValueError, match=r"shape \(5, 5\), from which no cell.*pass cell='rnn_tanh' or 'rnn_relu'"):
        infer(weights_helpers.network("rnn_relu").parameters)
    assert infer(weights_helpers.network("rnn_relu").parameters, "RNN_RELU").cell == "rnn_relu"  # PyTorch's `mode`


def test_everything_that_does_not_fit_is_named():
    parameters = weights_helpers.network("lstm", (5, 5), 2).parameters
    del parameters["bias_hh_l1"], parameters["weight_ih_l0_reverse"]
    parameters["weight_hh_l1_reverse"] = np.zeros((20, 4))
    parameters["bias_ih_l0"] = np.zeros(19)
    parameters["bias_xx_l0"] = parameters["fc.weight"] = np.zeros(3)
    with pytest.raises(ValueError) as caught:
        infer(parameters)
    message = str(caught.value)
    for part in (
        "lstm of input_size 4, hidden_size (5, 5), 2 direction(s)",
        "missing bias_hh_l1 (20,)",
        "missing weight_ih_l0_reverse (20, 4)",
        "weight_hh_l1_reverse has shape (20, 4), expected (20, 5)",
        "bias_ih_l0 has shape (19,), expected (20,)",
        "unknown bias_xx_l0",
        "unknown fc.weight",
    ):
        assert part in message


@pytest.mark.parametrize(
    "change, message",
    [
        ({"weight_hh_l0": None}, r"matrices missing: \['weight_hh_l0'\]"),
        ({"weight_hh_l0": np.zeros(20)}, r"matrices missing: \['weight_hh_l0'\]"),
        ({"weight_ih_l2": np.zeros((20, 5))}, r"matrices missing: \['weight_hh_l1', 'weight_hh_l2'\]"),
        ({"weight_ih_l0": np.zeros((20, 0))}, "sizes of 0: input_size 0"),
        ({"weight_ih_l0": np.zeros(20)}, r"weight_ih_l0 has shape \(20,\), expected \(20, 5\)"),
        ({"weight_hr_l0": np.zeros((3, 5))}, r"weight_hh_l0 has shape \(20, 5\), expected \(20, 3\)"),
        ({"weight_ih_l01": np.zeros((20, 4))}, "unknown weight_ih_l01"),
    ],
)
def test_what_does_not_fit(change, message):
    parameters = weights_helpers.network("lstm").parameters | change
    with pytest.raises(ValueError, match=message):
        infer({name: array for name, array in parameters.items() if array is not None})


def test_a_gru_has_no_projection():
    parameters = weights_helpers.network("lstm", proj_size=3).parameters
    with pytest.raises(ValueError, match="only an LSTM has a projection, not gru"):
        infer(parameters, "gru")


def test_an_entry_that_is_no_array():
    parameters = weights_helpers.network("gru").parameters | {"bias_ih_l0": "biases"}
    with pytest.raises(ValueError, match=r"bias_ih_l0 has shape \(\), expected \(15,\)"):
        infer(parameters)
    with pytest.raises(TypeError, match=r"state_dict\['bias_ih_l0'\] must be an array of numbers, not {1}"):
        infer(parameters | {"bias_ih_l0": {1}})


def test_dtypes_that_differ_or_are_not_ours():
    parameters = weights_helpers.network("gru").parameters
    mixed = infer(parameters | {"bias_ih_l0": np.zeros(15)})
    with pytest.raises(TypeError, match=r"one dtype, but are {'weight_ih_l0': 'float32'.*'bias_ih_l0': 'float64'"):
        _ = mixed.dtype
    with pytest.raises(TypeError, match="of dtype int64: pass dtype=, one of float32"):
        _ = infer({name: np.zeros(array.shape, np.int64) for name, array in parameters.items()}).dtype


# ---------------------------------------------------------------- other forms of the same network
@pytest.mark.parametrize("cell, D", [*product(CELLS, (1, 2))])
def test_skip_input_as_identity_matrices(cell, D):
    network = weights_helpers.network(cell, (5, 5), D, "input", "skip", dtype="float64")
    linear = with_input_matrix(network)
    assert linear.input_mode == "linear" and next(iter(linear.parameters)) == "weight_ih_l0"
    x = np.random.default_rng(0).standard_normal((3, 5))
    for direction in range(D):
        ax = x @ linear.part("W", 0, direction).T
        np.testing.assert_array_equal(ax, np.tile(x, cells.get(cell).num_gates))
    assert with_input_matrix(linear) is linear


@pytest.mark.parametrize("bias", BIAS_MODES)
def test_single_bias_as_two(bias):
    network = weights_helpers.network("gru", (5, 3), 2, bias)
    both = with_both_biases(network)
    assert both.bias == ("none" if bias == "none" else "double")
    for where in network.pseudo_layers():
        for kind in ("b_w", "b_r") if bias != "none" else ():
            given = network.part(kind, *where)
            np.testing.assert_array_equal(
                both.part(kind, *where), np.zeros(15 if where[0] == 0 else 9) if given is None else given
            )


@pytest.mark.parametrize("order", (gates.KERAS, gates.ONNX))
@pytest.mark.parametrize("cell", CELLS)
def test_orders_of_gates_there_and_back(cell, order):
    names = cells.get(cell).gates
    array = np.arange(len(names) * 10.0).reshape(-1, 2)  # 5 rows per gate
    theirs = gates.to_order(array, cell, order)
    for number, gate in enumerate(order.get(cell, names)):
        ours = names.index(gate)
        np.testing.assert_array_equal(theirs[5 * number : 5 * number + 5], array[5 * ours : 5 * ours + 5])
    np.testing.assert_array_equal(gates.from_order(theirs, cell, order), array)
    assert not np.shares_memory(theirs, array)
