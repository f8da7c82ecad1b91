"""The weight space: all parameters of a stack of layers in one flat buffer, in cuDNN's order.

First the matrices of all pseudo-layers (layer 0 forward, layer 0 backward, layer 1 forward, ...), each W, then R, gate
after gate, row-major, then with projection W_hr; then all biases, each b_w then b_r (cudnnGetRNNWeightParams).
Names are PyTorch's: weight_ih_l0 (W), weight_hh_l0 (R), weight_hr_l0 (W_hr), bias_ih_l0 (b_w), bias_hh_l0 (b_r), with
"_reverse" for the backward direction.
"""

import math
from collections import namedtuple
from dataclasses import dataclass

# The biases of cuDNN's four bias modes (CUDNN_RNN_NO_BIAS, _SINGLE_INP_BIAS, _SINGLE_REC_BIAS, _DOUBLE_BIAS).
BIAS_MODES = {"none": (), "input": ("b_w",), "recurrent": ("b_r",), "double": ("b_w", "b_r")}
INPUT_MODES = ("linear", "skip", "given")
WITHOUT_W = ("skip", "given")  # of these, those in which layer 0 has no W

PER_UNIT = "per_unit"  # the kind of a parameter per unit of a cell that has such
_PREFIX = {"W": "weight_ih", "R": "weight_hh", "W_hr": "weight_hr", "b_w": "bias_ih", "b_r": "bias_hh"}


@dataclass(frozen=True)
class Parameter:
    """One part of the weight space.

    Attributes:
        name: PyTorch's name.
        kind: "W" (G*H, I), "R" (A*H, H), "b_w" (G*H,), "b_r" (A*H,), `PER_UNIT` (H,); with projection R is (A*H, P),
            and there is "W_hr" (P, H). A, the gates of h Rᵀ, is G but for general cells. With n heads R is n times
            narrower: row g H + j multiplies the numbers of head j div (H/n) alone.
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


# What cells that are written as equations may have: A (None: G), the names of parameters per unit, and the number of
# heads, n, which divides H and P.
General = namedtuple("General", "num_ah per_unit heads", defaults=(None, (), 1))


def parameter_name(kind, layer, direction):
    """PyTorch's name of a parameter of that kind ("W", "R", "W_hr", "b_w", "b_r")."""
    return named(_PREFIX[kind], layer, direction)


def named(name, layer, direction):
    """The name of a pseudo-layer's own."""
    return f"{name}_l{layer}{'_reverse' if direction else ''}"


class WeightSpace:
    """Where each parameter stands in the flat buffer.

    Args:
        num_gates: G.
        input_size: I of layer 0.
        hidden_sizes: H of each layer.
        directions: D, 1 or 2.
        bias: one of `BIAS_MODES`.
        proj_size: P, or 0 for no projection.
        input_mode: "linear", or one of `WITHOUT_W`: layer 0 has no W.
        general: of a cell that is written as equations: see `General`.

    Raises:
        ValueError: a parameter per unit has the name of another parameter.

    Attributes:
        parameters: tuple of `Parameter`, in the buffer's order.
        size: elements of the buffer.
    """

    def __init__(
        self, num_gates, input_size, hidden_sizes, directions=1, bias="double", proj_size=0, input_mode="linear",
        **general,
    ):  # fmt: skip
        num_ah, per_unit, heads = General(**general)
        taken = set(_PREFIX.values()).intersection(per_unit)
        if taken:
            raise ValueError(f"a cell's parameters per unit must not be called {', '.join(sorted(taken))}: rename them")
        matrices = ("W", "R", "W_hr") if proj_size else ("W", "R")
        self.parameters, self.size, self._places = (), 0, {}
        for kinds in (matrices, (*BIAS_MODES[bias], *[PER_UNIT] * len(per_unit))):
            inputs = input_size
            for layer, hidden in enumerate(hidden_sizes):
                rows, outputs = num_gates * hidden, proj_size or hidden
                recurrent = rows if num_ah is None else num_ah * hidden
                shapes = {"W": (rows, inputs), "R": (recurrent, outputs // heads), "W_hr": (outputs, hidden)}
                shapes |= {"b_w": (rows,), "b_r": (recurrent,), PER_UNIT: (hidden,)}
                missing = {"W"} if layer == 0 and input_mode in WITHOUT_W else set()
                missing |= set() if recurrent else {"R", "b_r"}
                own = [kind for kind in kinds if kind not in missing]
                for direction in range(directions):
                    self._add(own, iter(per_unit), layer, direction, shapes)
                inputs = directions * outputs

    def _add(self, kinds, names, layer, direction, shapes):
        """Parameters of these kinds, one after another; names: of parameters per unit."""
        for kind in kinds:
            name = named(next(names) if kind == PER_UNIT else _PREFIX[kind], layer, direction)
            part = Parameter(name, kind, layer, direction, self.size, shapes[kind])
            self._places.setdefault((layer, direction), []).append(part)
            self.parameters += (part,)
            self.size += part.size

    def views(self, flat):
        """Name -> view of a flat buffer (NumPy or CuPy), in the order of PyTorch's state_dict."""
        return {part.name: self._view(flat, part) for part in self._in_order()}

    @property
    def shapes(self):
        """Name -> shape of each parameter, in the same order."""
        return {part.name: part.shape for part in self._in_order()}

    def _in_order(self):
        order = ("W", "R", "b_w", "b_r", PER_UNIT, "W_hr")  # of one pseudo-layer
        return sorted(self.parameters, key=lambda part: (part.layer, part.direction, order.index(part.kind)))

    def pseudo_layer(self, flat, layer, direction):
        """Kind -> view of a flat buffer, of one layer and direction: {"W": ..., "R": ..., "b_w": ..., "b_r": ...}; all
        parameters per unit are one, (V * H,), "per_unit"."""
        own = self._places[layer, direction]
        views = {part.kind: self._view(flat, part) for part in own if part.kind != PER_UNIT}
        per_unit = [part for part in own if part.kind == PER_UNIT]
        if per_unit:
            views["per_unit"] = flat[per_unit[0].offset : per_unit[-1].offset + per_unit[-1].size]
        return views

    @staticmethod
    def _view(flat, part):
        return flat[part.offset : part.offset + part.size].reshape(part.shape)
