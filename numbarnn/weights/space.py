"""The weight space: all parameters of a stack of layers in one flat buffer, in cuDNN's order.

First the matrices of all pseudo-layers (layer 0 forward, layer 0 backward, layer 1 forward, ...), each W, then R, gate
after gate, row-major, then with projection W_hr; then all biases, each b_w then b_r (cudnnGetRNNWeightParams).
Names are PyTorch's: weight_ih_l0 (W), weight_hh_l0 (R), weight_hr_l0 (W_hr), bias_ih_l0 (b_w), bias_hh_l0 (b_r), with
"_reverse" for the backward direction.
"""

import math
from dataclasses import dataclass

# The biases of cuDNN's four bias modes (CUDNN_RNN_NO_BIAS, _SINGLE_INP_BIAS, _SINGLE_REC_BIAS, _DOUBLE_BIAS).
BIAS_MODES = {"none": (), "input": ("b_w",), "recurrent": ("b_r",), "double": ("b_w", "b_r")}
INPUT_MODES = ("linear", "skip")

_PREFIX = {"W": "weight_ih", "R": "weight_hh", "W_hr": "weight_hr", "b_w": "bias_ih", "b_r": "bias_hh"}


@dataclass(frozen=True)
class Parameter:
    """One part of the weight space.

    Attributes:
        name: PyTorch's name.
        kind: "W" (G*H, I), "R" (G*H, H), "b_w" (G*H,) or "b_r" (G*H,); with projection R is (G*H, P), "W_hr" (P, H).
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


def parameter_name(kind, layer, direction):
    """PyTorch's name of a parameter of that kind ("W", "R", "W_hr", "b_w", "b_r")."""
    return f"{_PREFIX[kind]}_l{layer}{'_reverse' if direction else ''}"


class WeightSpace:
    """Where each parameter stands in the flat buffer.

    Args:
        num_gates: G.
        input_size: I of layer 0.
        hidden_sizes: H of each layer.
        directions: D, 1 or 2.
        bias: one of `BIAS_MODES`.
        proj_size: P, or 0 for no projection.
        input_mode: "linear", or "skip": layer 0 has no W.

    Attributes:
        parameters: tuple of `Parameter`, in the buffer's order.
        size: elements of the buffer.
    """

    def __init__(
        self, num_gates, input_size, hidden_sizes, directions=1, bias="double", proj_size=0, input_mode="linear"
    ):
        matrices = ("W", "R", "W_hr") if proj_size else ("W", "R")
        parts = []
        for kinds in (matrices, BIAS_MODES[bias]):
            inputs = input_size
            for layer, hidden in enumerate(hidden_sizes):
                rows, outputs = num_gates * hidden, proj_size or hidden
                shapes = {"W": (rows, inputs), "R": (rows, outputs), "W_hr": (outputs, hidden)}
                shapes |= {"b_w": (rows,), "b_r": (rows,)}
                own = kinds if layer > 0 or input_mode == "linear" else [kind for kind in kinds if kind != "W"]
                parts += [(kind, layer, d, shapes[kind]) for d in range(directions) for kind in own]
                inputs = directions * outputs
        self.parameters = ()
        self.size = 0
        for kind, layer, direction, shape in parts:
            name = parameter_name(kind, layer, direction)
            self.parameters += (Parameter(name, kind, layer, direction, self.size, shape),)
            self.size += math.prod(shape)

    def views(self, flat):
        """Name -> view of a flat buffer (NumPy or CuPy), in the order of PyTorch's state_dict."""
        order = ("W", "R", "b_w", "b_r", "W_hr")  # of one pseudo-layer
        parts = sorted(self.parameters, key=lambda part: (part.layer, part.direction, order.index(part.kind)))
        return {part.name: self._view(flat, part) for part in parts}

    def pseudo_layer(self, flat, layer, direction):
        """Kind -> view of a flat buffer, of one layer and direction: {"W": ..., "R": ..., "b_w": ..., "b_r": ...}."""
        return {
            part.kind: self._view(flat, part)
            for part in self.parameters
            if part.layer == layer and part.direction == direction
        }

    @staticmethod
    def _view(flat, part):
        return flat[part.offset : part.offset + part.size].reshape(part.shape)
