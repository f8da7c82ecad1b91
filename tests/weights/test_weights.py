"""The weight space: cuDNN's order of the flat buffer, and PyTorch's names for its parts."""

import doctest
from itertools import product

import numpy as np
import pytest

import numbarnn
import weights_helpers
from numbarnn import convert
from numbarnn.weights import WeightSpace

BIASES = {"double": ("b_w", "b_r"), "none": (), "input": ("b_w",), "recurrent": ("b_r",)}
SIZES = list(product((1, 3, 4), ((5,), (5, 5), (5, 3, 2)), (1, 2), BIASES))  # G, hidden sizes, D, bias


def pseudo_layers(hidden, directions):
    """(layer, direction) in cuDNN's order."""
    return [(layer, d) for layer in range(len(hidden)) for d in range(directions)]


@pytest.mark.parametrize("G, hidden, D, bias", SIZES)
def test_matrices_of_all_pseudo_layers_then_all_biases(G, hidden, D, bias):
    space = WeightSpace(G, 4, hidden, D, bias)
    order = [(kind, *where) for where in pseudo_layers(hidden, D) for kind in ("W", "R")]
    order += [(kind, *where) for where in pseudo_layers(hidden, D) for kind in BIASES[bias]]
    assert [(part.kind, part.layer, part.direction) for part in space.parameters] == order
    offset = 0
    for part in space.parameters:
        H = hidden[part.layer]
        inputs = 4 if part.layer == 0 else D * hidden[part.layer - 1]
        assert part.shape == {"W": (G * H, inputs), "R": (G * H, H)}.get(part.kind, (G * H,))
        assert part.offset == offset and part.size == np.prod(part.shape)
        offset += part.size
    assert space.size == offset


def shapes_and_offsets(space):
    return {part.name: (part.offset, part.shape) for part in space.parameters}


def test_general_cells_written_out():
    """Three gates of x, two of h, bidirectional layers of 3 and 2 units; two parameters per unit beside the biases."""
    space = WeightSpace(3, 4, (3, 2), 2, "input", num_ah=2, per_unit=("peep", "scale"))
    assert shapes_and_offsets(space) == {
        "weight_ih_l0": (0, (9, 4)), "weight_hh_l0": (36, (6, 3)),
        "weight_ih_l0_reverse": (54, (9, 4)), "weight_hh_l0_reverse": (90, (6, 3)),
        "weight_ih_l1": (108, (6, 6)), "weight_hh_l1": (144, (4, 2)),
        "weight_ih_l1_reverse": (152, (6, 6)), "weight_hh_l1_reverse": (188, (4, 2)),
        "bias_ih_l0": (196, (9,)), "peep_l0": (205, (3,)), "scale_l0": (208, (3,)),
        "bias_ih_l0_reverse": (211, (9,)), "peep_l0_reverse": (220, (3,)), "scale_l0_reverse": (223, (3,)),
        "bias_ih_l1": (226, (6,)), "peep_l1": (232, (2,)), "scale_l1": (234, (2,)),
        "bias_ih_l1_reverse": (236, (6,)), "peep_l1_reverse": (242, (2,)), "scale_l1_reverse": (244, (2,)),
    }  # fmt: skip
    assert space.size == 246
    assert {part.kind for part in space.parameters} == {"W", "R", "b_w", "per_unit"}
    assert list(space.views(np.zeros(246)))[:5] == [
        "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "peep_l0", "scale_l0",
    ]  # fmt: skip


def test_vectors_of_a_pseudo_layer_are_one_array():
    """In the order of the cell's names, as kernels take them."""
    space = WeightSpace(1, 2, (3,), 2, per_unit=("a", "b", "z"))
    flat = np.arange(float(space.size))
    for direction, suffix in enumerate(("", "_reverse")):
        part, views = space.pseudo_layer(flat, 0, direction), space.views(flat)
        assert set(part) == {"W", "R", "b_w", "b_r", "per_unit"} and part["per_unit"].shape == (9,)
        expected = np.concatenate([views[f"{name}_l0{suffix}"] for name in "abz"])
        np.testing.assert_array_equal(part["per_unit"], expected)
        assert np.shares_memory(part["per_unit"], flat)
    assert set(WeightSpace(1, 2, (3,)).pseudo_layer(flat, 0, 0)) == {"W", "R", "b_w", "b_r"}


def spaces():
    """One for each of the sizes and biases; then with projection and skip input."""
    for G, hidden, D, bias in SIZES:
        yield WeightSpace(G, 4, hidden, D, bias)
    for hidden, D, bias, P, mode in product(((5,), (5, 3)), (1, 2), BIASES, (0, 2), ("linear", "skip")):
        yield WeightSpace(4, 5, hidden, D, bias, P, mode)
    for hidden, D, bias, A in product(((5,), (5, 3)), (1, 2), BIASES, (0, 2, 6)):
        yield WeightSpace(4, 5, hidden, D, bias, num_ah=A, per_unit=("peep", "scale"))


def test_views_cover_the_buffer_once():
    for space in spaces():
        flat = np.zeros(space.size)
        for view in space.views(flat).values():
            assert view.base is not None and view.flags.c_contiguous
            view += 1
        assert (flat == 1).all()
        wanted = {(part.layer, part.direction): {} for part in space.parameters}
        for part in space.parameters:
            if part.kind != "per_unit":
                wanted[part.layer, part.direction][part.kind] = part
        for (layer, direction), parts in wanted.items():
            found = space.pseudo_layer(flat, layer, direction)
            if "per_unit" in found:  # all as one: see below
                found.pop("per_unit")[:] += 1
            assert set(found) == set(parts)
            for kind, view in found.items():
                assert view.shape == parts[kind].shape
                assert np.shares_memory(view, space.views(flat)[parts[kind].name])
                view += 1
        assert (flat == 2).all()


@pytest.mark.parametrize("hidden, D, bias, P", list(product(((5,), (5, 5, 5)), (1, 2), (True, False), (0, 2))), ids=str)
def test_names_and_their_order_are_pytorchs(hidden, D, bias, P):
    torch = pytest.importorskip("torch")
    space = WeightSpace(4, 4, hidden, D, "double" if bias else "none", P)
    theirs = torch.nn.LSTM(4, 5, len(hidden), bidirectional=D == 2, bias=bias, proj_size=P).state_dict()
    ours = space.shapes
    assert list(ours.items()) == [(name, tuple(value.shape)) for name, value in theirs.items()]


# ------------------------------------------------------------------------------------------------------------- examples
EXAMPLES = {test.name.split(".")[-1]: test for test in doctest.DocTestFinder().find(convert) if test.examples}
PACKAGES = ("torch", "onnx", "safetensors")  # whose names are in those of the functions that need them


def test_every_function_has_an_example():
    assert set(EXAMPLES) == set(convert.__all__)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")  # Keras'
@pytest.mark.parametrize("name", convert.__all__)
def test_example(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"numbarnn": numbarnn, "convert": convert, "np": np}
    given |= {package: pytest.importorskip(package) for package in PACKAGES if package in name}
    given |= {"keras": weights_helpers.import_keras()} if "keras" in name else {}
    test = EXAMPLES[name]
    said = []
    test.globs = given
    result = doctest.DocTestRunner().run(test, out=said.append, clear_globs=False)
    assert result.attempted and not result.failed, "".join(said)
