"""What a schedule is asked to run: sizes and options, no arrays."""

from dataclasses import dataclass
from typing import Any

from numbarnn.cells import Cell


@dataclass(frozen=True)
class Problem:
    """One call of a stack of layers, as plans and CUDA graphs depend on it: whatever changes what is computed, but
    arrays, is here.

    Attributes:
        engine: "cpu", "cuda" or "sim".
        dtype: of x, the weights and the output.
        input_size, hidden_sizes: I, and H of each layer.
        directions, steps, batch: D, T, B.
        training: keep what backward needs, and drop out.
        dropout: its probability between layers in training.
        profile: what planners know of the device (`Engine.profile`), or None.
    """

    engine: str
    cell: Cell
    dtype: str
    input_size: int
    hidden_sizes: tuple[int, ...]
    directions: int
    steps: int
    batch: int
    training: bool
    dropout: float = 0.0
    profile: Any = None

    @property
    def layers(self):
        """L."""
        return len(self.hidden_sizes)

    @property
    def dropping(self):
        """Whether there is dropout between layers in this call."""
        return self.training and self.dropout > 0 and self.layers > 1
