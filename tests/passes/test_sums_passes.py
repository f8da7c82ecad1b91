"""Sums over units and noise in the passes, what all engines share: gradients of stacks by finite differences, and the
arrays that engines get."""

import numpy as np
import pytest

import numbarnn
from numbarnn.common.philox import noise_words
from sum_cells import NOISE_CELLS, SUM_CELLS

CELLS = {name: (SUM_CELLS | NOISE_CELLS)[name] for name in ("normed", "ladder", "noisy", "noisy_mean")}


@pytest.mark.parametrize("options", ({}, {"batch_first": True, "dropout": 0.3}), ids=str)
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_gradients_of_two_layers_and_directions(cell, options):
    """Backward finds each layer's and direction's sums, vectors and random numbers again."""
    check = numbarnn.gradcheck(cell, 2, 3, num_layers=2, steps=2, device="cpu", bidirectional=True, **options)
    assert check.ok


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_arrays_of_a_call(cell):
    """In training sums of all steps, and words of the seed, the call, and each layer and direction."""
    layer = numbarnn.RNN(cell, 2, 3, num_layers=2, bidirectional=True, device="cpu", seed=7)
    layer.training_calls = 5
    tape = layer.forward(np.zeros((4, 3, 2), np.float32))[2].forward
    places, sums = [(0, 0), (0, 1), (1, 0), (1, 1)], (4, 3, cell.num_sums)
    assert {place: array.shape for place, array in tape.sums.items()} == dict.fromkeys(
        places if cell.num_sums else (), sums
    )
    assert {place: array.shape for place, array in tape.v.items()} == dict.fromkeys(
        places if cell.num_products else (), (4, 3, 3 * cell.num_products)
    )
    if cell.noise:
        np.testing.assert_array_equal(tape.noise, noise_words(7, 4, 5), strict=True)
    else:
        assert tape.noise is None
    known = [array for array in tape.arrays() if array is not None]
    for array in (*tape.sums.values(), *tape.v.values(), *(() if tape.noise is None else (tape.noise,))):
        assert any(array is other for other in known)
