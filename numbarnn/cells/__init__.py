"""Define the equations of one step, once, as scalar functions that all engines call.

`lstm`, `gru` and `rnn` are written by hand. `tracing` makes cells from equations (`numbarnn.cell`). `library` has
cells from the literature.
"""

from importlib import import_module
from inspect import signature

from numbarnn.cells import lstm
from numbarnn.cells.definition import CELL_OPTIONS, CELLS, Cell, get
from numbarnn.cells.gru import GRU, GRU_RESET_BEFORE
from numbarnn.cells.lstm import LSTM
from numbarnn.cells.rnn import RNN_RELU, RNN_TANH

CELLS.update((cell.name, cell) for cell in (LSTM, GRU, GRU_RESET_BEFORE, RNN_TANH, RNN_RELU))
_OPTIONS = signature(lstm.with_options).parameters.values()
CELL_OPTIONS.update((one.name, ("lstm", lstm.with_options, one.default)) for one in _OPTIONS)

__all__ = ["CELLS", "GRU", "GRU_RESET_BEFORE", "LSTM", "RNN_RELU", "RNN_TANH", "Cell", "get"]


def __getattr__(name):
    if name == "library":  # imported on first use, as it traces its cells
        return import_module("numbarnn.cells.library")
    raise AttributeError(f"module 'numbarnn.cells' has no attribute {name!r}")
