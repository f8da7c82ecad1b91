"""What one step computes: every equation once, as a scalar function that all engines share."""

from numbarnn.cells.definition import Cell, specialise
from numbarnn.cells.gru import GRU, GRU_RESET_BEFORE
from numbarnn.cells.lstm import LSTM
from numbarnn.cells.rnn import RNN_RELU, RNN_TANH

CELLS = {cell.name: cell for cell in (LSTM, GRU, GRU_RESET_BEFORE, RNN_TANH, RNN_RELU)}

__all__ = ["CELLS", "GRU", "GRU_RESET_BEFORE", "LSTM", "RNN_RELU", "RNN_TANH", "Cell", "get", "specialise"]


def get(cell):
    """The `Cell` of that name; a `Cell` is returned as it is.

    Raises:
        ValueError: no cell has the name.
    """
    if isinstance(cell, Cell):
        return cell
    if not isinstance(cell, str) or cell not in CELLS:
        raise ValueError(f"cell must be one of {', '.join(CELLS)} or a Cell, not {cell!r}")
    return CELLS[cell]
