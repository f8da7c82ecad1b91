"""As test_library_sequences.py, by every schedule that runs a cell."""

import pytest
from test_library_sequences import CELLS

from cut_cases import check_pieces


@pytest.mark.parametrize("schedule", ("stepwise", "wavefront"))
@pytest.mark.parametrize("name", CELLS)
def test_pieces_are_independent(name, schedule):
    check_pieces(CELLS[name], "sim", schedule)


@pytest.mark.parametrize("name", ("slstm", "sru"))
def test_pieces_are_independent_in_one_launch(name):
    check_pieces(CELLS[name], "sim", "persistent")
