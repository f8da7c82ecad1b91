"""Layers and cells are pickled and copied: a copy has weights of its own and goes on where the layer is."""

import copy
import pickle

import numpy as np
import pytest

import numbarnn as nr
from comparing import assert_same_bits
from numbarnn import cells, engines
from numbarnn import functional as F
from numbarnn.cells import library


@nr.cell
def of_this_module(x, h, p, slope=1.0):
    return nr.tanh(slope * (p.W.h @ x + p.R.h @ h + p.b.h))


def local_cell():
    @nr.cell
    def local(x, h, p):
        return nr.tanh(p.W.h @ x + p.R.h @ h + p.b.h)

    return local


def through_pickle(value):
    return pickle.loads(pickle.dumps(value))


by_way = pytest.mark.parametrize("way", (through_pickle, copy.deepcopy, copy.copy), ids=("pickle", "deepcopy", "copy"))

LAYERS = {
    "lstm": lambda **o: nr.LSTM(4, [5, 6], dropout=0.5, bidirectional=True, cell_clip=1.0, seed=2**63, **o),
    "projected lstm": lambda **o: nr.LSTM(4, 5, proj_size=2, bias="input", batch_first=True, **o),
    "gru": lambda **o: nr.GRU(4, 5, 2, reset_after=False, bias=False, dropout=0.3, schedule="wavefront", **o),
    "rnn": lambda **o: nr.RNN(5, 5, nonlinearity="relu", input_mode="skip", dtype="float64", **o),
    "rnn of a cell by name": lambda **o: nr.RNN(cells.LSTM, 4, 5, **o),
    "library": lambda **o: nr.RNN(library.layer_norm_gru, 4, 5, **o),
    "library by options": lambda **o: nr.RNN(nr.cell(library.slstm, heads=5), 4, 5, **o),
    "library by function": lambda **o: nr.RNN(library.recurrent_highway(2), 4, 5, **o),
    "own": lambda **o: nr.RNN(of_this_module, 4, 5, **o),
    "own by options": lambda **o: nr.RNN(nr.cell(of_this_module, slope=2.0, save="minimal"), 4, 5, **o),
}


@pytest.mark.parametrize("device", [name for name in ("cpu", "sim") if name in engines.available()])
@by_way
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_a_copy_is_the_same_with_weights_of_its_own(make, way, device):
    layer = make(device=device)
    layer.training_calls, layer.note = 3, ["of its user"]
    other = way(layer)
    assert repr(other) == repr(layer) and other.note == layer.note
    assert_same_bits(other.state_dict(), layer.state_dict())
    assert not np.shares_memory(other.weights, layer.weights)
    assert (other.training_calls, other.stack.seed) == (3, layer.stack.seed)
    assert (other.stack.schedule, other.engine) == (layer.stack.schedule, layer.engine)
    assert other.stack.space.parameters == layer.stack.space.parameters
    other.weights = np.zeros_like(layer.weights)
    assert layer.weights.any() and not any(value.any() for value in other.state_dict().values())


@by_way
def test_a_descriptor(way):
    rnn = F.Descriptor("lstm", 4, 5, cell_clip=(-1.0, 2.0), device="cpu", seed=3)
    other = way(rnn)
    assert type(other) is F.Descriptor and other.weight_space_size == rnn.weight_space_size
    assert (other.cell_clip, other.seed, other.cell.name) == (rnn.cell_clip, 3, rnn.cell.name)


def test_cells():
    for cell in (*cells.CELLS.values(), library.gru, library.lstm_with(), of_this_module):
        assert through_pickle(cell) is cell and copy.deepcopy(cell) is cell and copy.copy(cell) is cell
    variant = nr.cell(of_this_module, slope=2.0)
    again = through_pickle(variant)
    assert (again.name, again.hyperparameters, again.source) == (variant.name, {"slope": 2.0}, variant.source)


def test_a_cell_without_a_name_to_find_it_by():
    cell = local_cell()
    with pytest.raises(pickle.PicklingError, match=r"cell local cannot be pickled.*local_cell.*top of a module"):
        pickle.dumps(nr.RNN(cell, 4, 5, device="cpu"))
    layer = nr.RNN(cell, 4, 5, device="cpu")
    assert copy.deepcopy(layer).stack.cell is cell


def test_a_cell_that_has_changed_since(monkeypatch):
    pickled = pickle.dumps(of_this_module)

    def edited(x, h, p, slope=1.0):
        return nr.sigmoid(slope * (p.W.h @ x + p.R.h @ h + p.b.h))

    monkeypatch.setitem(globals(), "of_this_module", nr.cell(edited, name="of_this_module"))
    with pytest.raises(pickle.UnpicklingError, match=r"of_this_module have changed"):
        pickle.loads(pickled)
    monkeypatch.delitem(globals(), "of_this_module")
    with pytest.raises(pickle.UnpicklingError, match=r"cell of_this_module cannot be unpickled.*are not found"):
        pickle.loads(pickled)


@by_way
def test_tapes_are_refused(way):
    layer = nr.GRU(4, 5, device="cpu")
    tape = layer.forward(np.ones((2, 3, 4), np.float32))[2]
    with pytest.raises(TypeError, match=r"tape cannot be copied or pickled"):
        way(tape)
