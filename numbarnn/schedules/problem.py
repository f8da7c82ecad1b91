"""What a schedule is asked to run: sizes and options, no arrays."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from numbarnn.cells import Cell
from numbarnn.cells.precision import compute_dtype


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
        allow_tf32: float32 products may be computed by tensor cores, which round their operands to TF32 (GPUs only).
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
    allow_tf32: bool = False
    profile: Any = None

    def __hash__(self):
        return self._hash

    @cached_property
    def _hash(self):  # plans and graphs are looked up by problems at each call
        return hash(tuple(getattr(self, item.name) for item in fields(self)))

    @property
    def layers(self):
        """L."""
        return len(self.hidden_sizes)

    @property
    def dropping(self):
        """Whether there is dropout between layers in this call."""
        return self.training and self.dropout > 0 and self.layers > 1

    @cached_property
    def state_dtype(self):
        """The dtype in which states accumulate."""
        return compute_dtype(self.dtype)

    @cached_property
    def state_shapes(self):
        """The shape of a state: (L * D, B, H), or if sizes differ a list of one (D, B, H) per layer."""
        return state_shapes(self.hidden_sizes, self.directions, self.batch)


def state_shapes(hidden_sizes, directions, batch):
    """The shape of a state of layers of these sizes; see `Problem.state_shapes`."""
    if len(set(hidden_sizes)) == 1:
        return (len(hidden_sizes) * directions, batch, hidden_sizes[0])
    return [(directions, batch, hidden) for hidden in hidden_sizes]
