"""Types of the public API's arguments and results, for type checkers and for readers of signatures."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any] | Any"  # NumPy's; of a layer on a GPU CuPy's, which need not be installed
State: TypeAlias = "Array | list[Array] | tuple[Array | list[Array], ...]"  # h, or (h, c); lists have one per layer
Results: TypeAlias = "tuple[Any, ...]"  # y and the state, and other requested results
Value: TypeAlias = Any  # in equations: a traced value, a number, or a NumPy array; a result has the same type
Bias: TypeAlias = "bool | Literal['double', 'none', 'input', 'recurrent']"
AllowTF32: TypeAlias = "bool | Literal['3x']"  # False, True for one product, '3x' for three
Cell: TypeAlias = Any  # a `numbarnn.cells.Cell`, or the name of one
Arrays: TypeAlias = Mapping[str, Any]  # name -> array, or a tensor on the CPU
Sizes: TypeAlias = "int | Sequence[int]"  # of all layers, or one per layer


class Options(TypedDict, total=False):
    """The options that `numbarnn.LSTM`, `GRU` and `RNN` take by keyword; see their docstrings."""

    input_mode: Literal["linear", "skip", "given"]
    dtype: str
    device: Any
    schedule: str
    allow_tf32: AllowTF32
    seed: int | None
    checkpoint_every: int | None
