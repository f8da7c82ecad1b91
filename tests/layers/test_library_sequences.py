"""Cells of the library, one of each structure, with lengths and resets."""

import pytest

from cut_cases import check_pieces
from numbarnn.cells import library
from numbarnn.cells.tracing import cell

CELLS = {
    "layer_norm_lstm": library.layer_norm_lstm,  # sums over units
    "slstm": cell(library.slstm, heads=2),  # four states, heads
    "recurrent_highway": library.recurrent_highway(2),  # a further product
    "projected_lstm": library.projected_lstm,
    "sru": library.sru,  # vectors, no product of h
}


@pytest.mark.parametrize("name", CELLS)
def test_pieces_are_independent(name):
    check_pieces(CELLS[name], "cpu")
