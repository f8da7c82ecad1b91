"""The weight space: all parameters of a stack of layers in one flat buffer, in cuDNN's order.

First the matrices of all pseudo-layers (layer 0 forward, layer 0 backward, layer 1 forward, ...), each W then R, gate
after gate, row-major; then all biases, each b_w then b_r (cudnnGetRNNWeightParams). The parts' names are PyTorch's:
weight_ih_l0 (W), weight_hh_l0 (R), bias_ih_l0 (b_w), bias_hh_l0 (b_r), with "_reverse" for the backward direction.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Parameter:
    """One part of the weight space.

    Attributes:
        name: PyTorch's name.
        kind: "W" (G*H, I), "R" (G*H, H), "b_w" (G*H,) or "b_r" (G*H,).
        layer, direction: its pseudo-layer.
        offset: of its first element in the flat buffer.
        shape: its shape.
    """

    name: str
    kind: str
    layer: int
    direction: int
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self):
        """Number of elements."""
        return math.prod(self.shape)


_PREFIX = {"W": "weight_ih", "R": "weight_hh", "b_w": "bias_ih", "b_r": "bias_hh"}


class WeightSpace:
    """Where each parameter stands in the flat buffer.

    Args:
        num_gates: G.
        input_size: I of layer 0.
        hidden_sizes: H of each layer.
        directions: D, 1 or 2.
        bias: whether there are biases.

    Attributes:
        parameters: tuple of `Parameter`, in the buffer's order.
        size: elements of the buffer.
    """

    def __init__(self, num_gates, input_size, hidden_sizes, directions=1, bias=True):
        parts = []
        for kinds in (("W", "R"), ("b_w", "b_r") if bias else ()):
            inputs = input_size
            for layer, hidden in enumerate(hidden_sizes):
                rows = num_gates * hidden
                shapes = {"W": (rows, inputs), "R": (rows, hidden), "b_w": (rows,), "b_r": (rows,)}
                parts += [(kind, layer, d, shapes[kind]) for d in range(directions) for kind in kinds]
                inputs = directions * hidden
        self.parameters = ()
        self.size = 0
        for kind, layer, direction, shape in parts:
            name = f"{_PREFIX[kind]}_l{layer}{'_reverse' if direction else ''}"
            self.parameters += (Parameter(name, kind, layer, direction, self.size, shape),)
            self.size += math.prod(shape)

    def views(self, flat):
        """Name -> view of a flat buffer (NumPy or CuPy), in the order of PyTorch's state_dict."""
        by_pseudo_layer = sorted(self.parameters, key=lambda part: (part.layer, part.direction))
        return {part.name: self._view(flat, part) for part in by_pseudo_layer}

    def pseudo_layer(self, flat, layer, direction):
        """{"W": ..., "R": ..., "b_w": ..., "b_r": ...} of one layer and direction, as views of a flat buffer."""
        return {
            part.kind: self._view(flat, part)
            for part in self.parameters
            if part.layer == layer and part.direction == direction
        }

    @staticmethod
    def _view(flat, part):
        return flat[part.offset : part.offset + part.size].reshape(part.shape)
