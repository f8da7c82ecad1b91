"""Read a network from the names and shapes of its parameters, with clear errors where they disagree.

All arrays are copied to float64, so that the reference shares no memory with its caller.
"""

from dataclasses import dataclass

import numpy as np

from .cells import CELLS, Cell, clipped_lstm

KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")  # PyTorch's order


@dataclass(frozen=True)
class Weights:
    """Parameters of one layer and direction, float64.

    Attributes:
        W: (G*H, I_k), or None for skip input. R: (G*H, H), or (G*H, P) with a projection.
        b_w, b_r: (G*H,), zeros for a missing bias. W_hr: (P, H), or None without a projection.
    """

    W: np.ndarray | None
    R: np.ndarray
    b_w: np.ndarray
    b_r: np.ndarray
    W_hr: np.ndarray | None

    def by_kind(self):
        """Return kind, as in KINDS -> array."""
        return dict(zip(KINDS, (self.W, self.R, self.b_w, self.b_r, self.W_hr), strict=True))


@dataclass(frozen=True)
class Network:
    """A cell, its `Weights`, weights[layer][direction], and names[layer][direction], a dict kind -> PyTorch's name."""

    cell: Cell
    weights: list
    names: list

    @property
    def num_layers(self):
        """L."""
        return len(self.weights)

    @property
    def num_directions(self):
        """D: 2 if bidirectional, else 1."""
        return len(self.weights[0])

    @property
    def hidden_sizes(self):
        """H of each layer: the size of c."""
        return [layer[0].R.shape[0] // self.cell.gates for layer in self.weights]

    @property
    def output_sizes(self):
        """P of each layer, or H without a projection: the size of h, and of one direction's y."""
        return [layer[0].R.shape[1] for layer in self.weights]

    @property
    def input_size(self):
        """I; with skip input it is H of the first layer."""
        W = self.weights[0][0].W
        return self.hidden_sizes[0] if W is None else W.shape[1]


@dataclass(frozen=True)
class Options:
    """The options of `forward`, besides arrays and states.

    Attributes:
        masks: dropout between layers: L-1 arrays (T, B, D*H_l), scaled by 1/(1-p), or None.
        lengths: (B,) ints from 0 to T, or None for T. Steps t >= lengths[b] of sequence b are padding: x is not read
            there, and y is `padding_value`. The final state is the state after the sequence's last step.
        resets: (T, B) bools, or None. At resets[t, b] no state passes between steps t - 1 and t of sequence b, in
            either direction. At t = 0 the forward direction's initial state is zero.
        cell_clip: bounds (lower, upper) of an LSTM's c, or c for (-c, c), or None.
        clip_propagate_nan: whether NaN stays NaN, or becomes `lower`.
    """

    masks: list | None = None
    lengths: np.ndarray | None = None
    resets: np.ndarray | None = None
    padding_value: float = 0.0
    cell_clip: tuple | float | None = None
    clip_propagate_nan: bool = True


def read_network(cell, parameters, options):
    """Infer layers, directions, sizes, biases, projection and skip input from parameters by PyTorch's names."""
    if cell not in CELLS:
        raise ValueError(f"cell: expected one of {', '.join(CELLS)}; got {cell!r}")
    num_layers = 0
    while f"weight_hh_l{num_layers}" in parameters:
        num_layers += 1
    num_directions = 2 if "weight_hh_l0_reverse" in parameters else 1
    optional = [kind for kind in ("bias_ih", "bias_hh", "weight_hr") if f"{kind}_l0" in parameters]
    skip = "weight_ih_l0" not in parameters
    names = []
    for layer in range(max(num_layers, 1)):
        kinds = ["weight_hh", *optional] if skip and layer == 0 else ["weight_ih", "weight_hh", *optional]
        suffixes = [f"_l{layer}", f"_l{layer}_reverse"][:num_directions]
        names.append([{kind: kind + suffix for kind in kinds} for suffix in suffixes])
    _check_names(cell, parameters, [name for layer in names for one in layer for name in one.values()])

    gates, weights, input_size = CELLS[cell].gates, [], None
    for layer_names in names:
        directions, sizes = [], None
        for one in layer_names:
            directions.append(_read_weights(parameters, one, gates, input_size, sizes))
            W, R = directions[-1].W, directions[-1].R
            input_size = None if W is None else W.shape[1]
            sizes = R.shape[0] // gates, R.shape[1]  # H, and P or H
        weights.append(directions)
        input_size = num_directions * sizes[1]  # of the layer above
    return Network(_read_cell(cell, options.cell_clip, options.clip_propagate_nan), weights, names)


def _check_names(cell, parameters, expected):
    missing = [name for name in expected if name not in parameters]
    unknown = [name for name in parameters if name not in expected]
    if missing or unknown:
        raise ValueError(
            f"parameters: missing {', '.join(missing) or 'none'}; unexpected {', '.join(unknown) or 'none'}. "
            f"Layers count from 0, and all layers have the same directions, the same biases (both, one or none) "
            f"and either a projection or none; only layer 0 may be without weight_ih (skip input)"
        )
    if "weight_hr_l0" in parameters and cell != "lstm":
        raise ValueError(f"weight_hr_l0: only the LSTM can have a projection; got it for cell {cell!r}")


def _read_cell(cell, cell_clip, propagate_nan):
    """Return the cell, with clipping if there is a `cell_clip`."""
    if cell_clip is None:
        return CELLS[cell]
    if cell != "lstm":
        raise ValueError(f"cell_clip: only the LSTM has a cell state to clip; expected None for {cell!r}")
    bounds = copied(cell_clip)
    if bounds.ndim == 0 and bounds > 0:
        bounds = np.array([-bounds, bounds])
    if bounds.shape != (2,) or not bounds[0] <= bounds[1]:  # `not <=` refuses NaN
        raise ValueError(
            f"cell_clip: expected None, a positive number or (lower, upper) with lower <= upper; got {cell_clip!r}"
        )
    return clipped_lstm(*bounds, propagate_nan)


def _read_weights(parameters, names, gates, input_size, sizes):
    """Read one layer and direction; input_size (I_k) and sizes (H, size of h) are None if the arrays determine them."""
    R_name, R_shape = names["weight_hh"], np.shape(parameters[names["weight_hh"]])
    if "weight_hr" in names:
        if len(R_shape) != 2 or not 0 < R_shape[1] < R_shape[0] / gates or R_shape[0] % gates:
            raise ValueError(f"{R_name}: expected shape (G*H, P) with G = {gates} gates and 0 < P < H; got {R_shape}")
    elif len(R_shape) != 2 or R_shape[1] < 1 or R_shape[0] != gates * R_shape[1]:
        raise ValueError(f"{R_name}: expected shape (G*H, H) with G = {gates} gates; got {R_shape}")
    H, h_size = sizes or (R_shape[0] // gates, R_shape[1])
    shapes = {"weight_hh": (gates * H, h_size)}
    if "weight_ih" in names:
        W_name, W_shape = names["weight_ih"], np.shape(parameters[names["weight_ih"]])
        if input_size is None and (len(W_shape) != 2 or W_shape[1] < 1):
            raise ValueError(f"{W_name}: expected shape ({gates * H}, I) with I at least 1; got {W_shape}")
        shapes["weight_ih"] = (gates * H, input_size or W_shape[1])
    shapes |= {"bias_ih": (gates * H,), "bias_hh": (gates * H,), "weight_hr": (h_size, H)}
    found = {
        kind: read_array(names[kind], parameters[names[kind]], shape) for kind, shape in shapes.items() if kind in names
    }
    b_w, b_r = (found.get(kind, np.zeros(gates * H)) for kind in ("bias_ih", "bias_hh"))
    return Weights(found.get("weight_ih"), found["weight_hh"], b_w, b_r, found.get("weight_hr"))


def copied(value):
    """Return a copy in float64, or in longdouble for longdouble."""
    wide = getattr(value, "dtype", None) == np.longdouble
    return np.array(value, dtype=np.longdouble if wide else np.float64)


def read_array(name, value, shape):
    """Return a copy of `value`; ValueError if it has another shape."""
    array = copied(value)
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}; got {array.shape}")
    return array


def read_input(x, network):
    """Return a copy of x (T, B, I), with T and B at least 1."""
    array = copied(x)
    size = network.input_size
    if array.ndim != 3 or array.shape[2] != size or 0 in array.shape:
        why = " (as H: weight_ih_l0 is missing, which means skip input)" if network.weights[0][0].W is None else ""
        raise ValueError(f"x: expected shape (T, B, I) with I = {size}{why} and T, B at least 1; got {array.shape}")
    return array


def read_state(name, state, sizes, network, batch):
    """Return a state, or a state's gradient, as a list with one copy (D, B, size) per layer.

    state: None (zeros), a list or tuple of arrays, or one array (L*D, B, size) if all sizes are equal.
    """
    D = network.num_directions
    if state is None:
        return [np.zeros((D, batch, size)) for size in sizes]
    if not isinstance(state, list | tuple):
        if len(set(sizes)) > 1:
            raise ValueError(
                f"{name}: hidden sizes {sizes} differ; expected a list with one array (D, B, H_l) per layer"
            )
        state = np.split(read_array(name, state, (len(sizes) * D, batch, sizes[0])), len(sizes))
    if len(state) != len(sizes):
        raise ValueError(f"{name}: expected a list of {len(sizes)} arrays, one per layer; got {len(state)}")
    return [
        read_array(f"{name}[{layer}]", array, (D, batch, size))
        for layer, (array, size) in enumerate(zip(state, sizes, strict=True))
    ]


def read_hidden_state(name, state, network, batch):
    """Return `read_state` of an h or its gradient."""
    return read_state(name, state, network.output_sizes, network, batch)


def read_cell_state(name, state, network, batch):
    """Return `read_state` of an LSTM's c or its gradient; of size 0 for other cells, which must get None."""
    if network.cell.has_c:
        return read_state(name, state, network.hidden_sizes, network, batch)
    if state is not None:
        raise ValueError(f"{name}: only the LSTM has a cell state; expected None")
    return [np.zeros((network.num_directions, batch, 0))] * network.num_layers


def read_masks(masks, network, steps, batch):
    """Return a list of L-1 masks: copies (T, B, D*H_l), or None for each without dropout."""
    between = network.num_layers - 1
    if masks is None:
        return [None] * between
    if len(masks) != between:
        raise ValueError(f"masks: expected {between} arrays, one for each layer but the last; got {len(masks)}")
    widths = [network.num_directions * size for size in network.output_sizes[:-1]]
    return [
        read_array(f"masks[{layer}]", mask, (steps, batch, width))
        for layer, (mask, width) in enumerate(zip(masks, widths, strict=True))
    ]
