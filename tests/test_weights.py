"""The weight space: cuDNN's order of the flat buffer, and PyTorch's names for its parts."""

from itertools import product

import numpy as np
import pytest

from numbarnn.weights import WeightSpace

SIZES = list(product((1, 3, 4), ((5,), (5, 5), (5, 3, 2)), (1, 2), (True, False)))  # G, hidden sizes, D, bias


def pseudo_layers(hidden, directions):
    """(layer, direction) in cuDNN's order."""
    return [(layer, d) for layer in range(len(hidden)) for d in range(directions)]


@pytest.mark.parametrize("G, hidden, D, bias", SIZES)
def test_matrices_of_all_pseudo_layers_then_all_biases(G, hidden, D, bias):
    space = WeightSpace(G, 4, hidden, D, bias)
    order = [(kind, *where) for where in pseudo_layers(hidden, D) for kind in ("W", "R")]
    order += [(kind, *where) for where in pseudo_layers(hidden, D) for kind in ("b_w", "b_r")] if bias else []
    assert [(part.kind, part.layer, part.direction) for part in space.parameters] == order
    offset = 0
    for part in space.parameters:
        H = hidden[part.layer]
        inputs = 4 if part.layer == 0 else D * hidden[part.layer - 1]
        assert part.shape == {"W": (G * H, inputs), "R": (G * H, H)}.get(part.kind, (G * H,))
        assert part.offset == offset and part.size == np.prod(part.shape)
        offset += part.size
    assert space.size == offset


def test_offsets_written_out():
    """An LSTM of 4 inputs and 2 bidirectional layers of 3 units, by hand."""
    space = WeightSpace(4, 4, (3, 3), 2, True)
    offsets = {part.name: part.offset for part in space.parameters}
    assert offsets == {
        "weight_ih_l0": 0, "weight_hh_l0": 48, "weight_ih_l0_reverse": 84, "weight_hh_l0_reverse": 132,
        "weight_ih_l1": 168, "weight_hh_l1": 240, "weight_ih_l1_reverse": 276, "weight_hh_l1_reverse": 348,
        "bias_ih_l0": 384, "bias_hh_l0": 396, "bias_ih_l0_reverse": 408, "bias_hh_l0_reverse": 420,
        "bias_ih_l1": 432, "bias_hh_l1": 444, "bias_ih_l1_reverse": 456, "bias_hh_l1_reverse": 468,
    }  # fmt: skip
    assert space.size == 480


@pytest.mark.parametrize("G, hidden, D, bias", SIZES)
def test_views_cover_the_buffer_once(G, hidden, D, bias):
    space = WeightSpace(G, 4, hidden, D, bias)
    flat = np.zeros(space.size)
    for view in space.views(flat).values():
        assert view.base is not None and view.flags.c_contiguous
        view += 1
    assert (flat == 1).all()
    for layer, direction in pseudo_layers(hidden, D):
        for kind, view in space.pseudo_layer(flat, layer, direction).items():
            (part,) = [p for p in space.parameters if (p.kind, p.layer, p.direction) == (kind, layer, direction)]
            assert np.shares_memory(view, space.views(flat)[part.name]) and view.shape == part.shape
            view += 1
    assert (flat == 2).all()
    assert set(space.pseudo_layer(flat, 0, 0)) == ({"W", "R", "b_w", "b_r"} if bias else {"W", "R"})


@pytest.mark.parametrize("hidden, D, bias", list(product(((5,), (5, 5, 5)), (1, 2), (True, False))))
def test_names_and_their_order_are_pytorchs(hidden, D, bias):
    torch = pytest.importorskip("torch")
    space = WeightSpace(4, 4, hidden, D, bias)
    theirs = torch.nn.LSTM(4, 5, len(hidden), bidirectional=D == 2, bias=bias).state_dict()
    ours = {name: view.shape for name, view in space.views(np.zeros(space.size)).items()}
    assert list(ours.items()) == [(name, tuple(value.shape)) for name, value in theirs.items()]


def test_gates_are_rows_in_order():
    """Gate after gate: rows g H to (g + 1) H of W belong to gate g, and stand together in memory."""
    space = WeightSpace(3, 2, (5,))
    flat = np.arange(float(space.size))
    W = space.pseudo_layer(flat, 0, 0)["W"]
    for gate in range(3):
        np.testing.assert_array_equal(W[gate * 5 : (gate + 1) * 5].ravel(), np.arange(gate * 10.0, gate * 10 + 10))
