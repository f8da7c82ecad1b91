"""What `numbarnn.__getattr__` loads on first use, for type checkers; tests/test_typing.py compares the two."""

from numbarnn import cells as cells
from numbarnn import convert as convert
from numbarnn import engines as engines
from numbarnn import functional as functional
from numbarnn import optim as optim
from numbarnn.cells.functions import *  # noqa: F403 - its __all__
from numbarnn.cells.tracing import CellError as CellError
from numbarnn.cells.tracing import cell as cell
from numbarnn.cells.tracing import show as show
from numbarnn.cells.tracing import side as side
from numbarnn.cells.tracing import step as step
from numbarnn.engines import get_num_threads as get_num_threads
from numbarnn.engines import set_num_threads as set_num_threads
from numbarnn.layers import GRU as GRU
from numbarnn.layers import LSTM as LSTM
from numbarnn.layers import RNN as RNN
from numbarnn.layers import Gradients as Gradients
from numbarnn.layers import PackedSequence as PackedSequence
from numbarnn.layers import gradcheck as gradcheck
from numbarnn.layers import pack_padded_sequence as pack_padded_sequence
from numbarnn.layers import pad_packed_sequence as pad_packed_sequence

__version__: str
