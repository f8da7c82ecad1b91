"""jvp and hvp of every cell of the library, against calls, backward, and central differences of both, in float64."""

import numpy as np
import pytest

import numbarnn as nr
from directions import Line, positive
from numbarnn.cells import library

STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 3, 4
MADE = {"lstm_with": library.lstm_with, "recurrent_highway": library.recurrent_highway}  # functions that make cells
SIZES = {"delta_rule": 8, "lmu": 8}
FOUR_INPUTS = ("highway_lstm", "intersection")  # x goes into h itself
STEEP = {"layer_norm_lstm": 1e-5, "layer_norm_gru": 1e-7}  # differences err more where few units have one deviation


def test_every_cell_is_here():
    assert set(library.__all__) >= {*MADE, *SIZES, *FOUR_INPUTS, *STEEP, "lsnn"}


@pytest.mark.parametrize("name", library.__all__)
def test_tangents_and_second_derivatives(name):
    cell, hidden = getattr(library, name), SIZES.get(name, HIDDEN)
    both = name not in FOUR_INPUTS
    layer = nr.RNN(
        cell() if name in MADE else cell, INPUTS if both else hidden, hidden, 1 if both else 2, bidirectional=both,
        dtype="float64", device="cpu", seed=1,
    )  # fmt: skip
    resets = np.random.default_rng(2).random((STEPS, BATCH)) < 0.2
    line = Line(layer, STEPS, BATCH, adjust=positive, lengths=[4, 2, 3], resets=resets)
    errors = line.errors()
    limit = STEEP.get(name, 1e-8)
    if name == "lsnn":
        errors = errors[::2]
    assert max(errors[::2]) < 1e-13 and max(errors) < limit, errors
