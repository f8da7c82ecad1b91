"""What parameter names and shapes say about a network, and clear errors where they disagree.

Every array that passes through here comes back as a float64 copy, so that the reference never shares memory
with its caller.
"""

from dataclasses import dataclass

import numpy as np

from .cells import CELLS, Cell


@dataclass(frozen=True)
class Weights:
    """Parameters of one layer and direction, float64: W (G*H, I_k), R (G*H, H), b_w and b_r (G*H,)."""

    W: np.ndarray
    R: np.ndarray
    b_w: np.ndarray
    b_r: np.ndarray


@dataclass(frozen=True)
class Network:
    """A cell and its parameters: `weights[layer][direction]`. Without bias, b_w and b_r are zeros."""

    cell: Cell
    bias: bool
    weights: list

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
        """H of each layer."""
        return [layer[0].R.shape[1] for layer in self.weights]


def parameter_names(layer, direction, bias):
    """PyTorch's names of W, R and, with bias, b_w, b_r of one layer and direction (0 forward, 1 reverse)."""
    kinds = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if bias else [])
    return [f"{kind}_l{layer}{'_reverse' if direction else ''}" for kind in kinds]


def read_network(cell, parameters):
    """Infer layers, directions, sizes and bias from a dict of parameters by PyTorch's names."""
    if cell not in CELLS:
        raise ValueError(f"cell: expected one of {', '.join(CELLS)}; got {cell!r}")
    num_layers = 0
    while f"weight_ih_l{num_layers}" in parameters:
        num_layers += 1
    num_directions = 2 if "weight_ih_l0_reverse" in parameters else 1
    bias = "bias_ih_l0" in parameters
    names = {
        (layer, direction): parameter_names(layer, direction, bias)
        for layer in range(max(num_layers, 1))
        for direction in range(num_directions)
    }
    _check_names(parameters, [name for group in names.values() for name in group])

    weights, input_size = [], None
    for layer in range(num_layers):
        directions, hidden_size = [], None
        for direction in range(num_directions):
            one = _read_weights(parameters, names[layer, direction], CELLS[cell].gates, input_size, hidden_size)
            input_size, hidden_size = one.W.shape[1], one.R.shape[1]
            directions.append(one)
        weights.append(directions)
        input_size = num_directions * hidden_size  # of the layer above
    return Network(CELLS[cell], bias, weights)


def _check_names(parameters, expected):
    missing = [name for name in expected if name not in parameters]
    unknown = [name for name in parameters if name not in expected]
    if missing or unknown:
        raise ValueError(
            f"parameters: missing {', '.join(missing) or 'none'}; unexpected {', '.join(unknown) or 'none'}. "
            f"Layers count from 0, all layers have the same directions, and all biases are given or none"
        )


def _read_weights(parameters, names, gates, input_size, hidden_size):
    """One layer and direction; a size of None is taken from the arrays, any other is checked."""
    w_name, r_name = names[:2]
    shape = np.shape(parameters[r_name])
    if len(shape) != 2 or shape[1] < 1 or shape[0] != gates * shape[1]:
        raise ValueError(f"{r_name}: expected shape (G*H, H) with G = {gates} gates; got {shape}")
    rows = gates * (hidden_size or shape[1])
    R = read_array(r_name, parameters[r_name], (rows, rows // gates))
    shape = np.shape(parameters[w_name])
    if input_size is None and (len(shape) != 2 or shape[1] < 1):
        raise ValueError(f"{w_name}: expected shape ({rows}, I) with I at least 1; got {shape}")
    W = read_array(w_name, parameters[w_name], (rows, input_size or shape[1]))
    if len(names) == 2:
        return Weights(W, R, np.zeros(rows), np.zeros(rows))
    return Weights(W, R, *(read_array(name, parameters[name], (rows,)) for name in names[2:]))


def copied(value):
    """A copy in float64, or in longdouble where that is what came."""
    wide = getattr(value, "dtype", None) == np.longdouble
    return np.array(value, dtype=np.longdouble if wide else np.float64)


def read_array(name, value, shape):
    """A float64 copy of `value`, which must have exactly this shape."""
    array = copied(value)
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}; got {array.shape}")
    return array


def read_input(x, network):
    """x as a float64 copy (T, B, I), with T and B at least 1."""
    array = copied(x)
    input_size = network.weights[0][0].W.shape[1]
    if array.ndim != 3 or array.shape[2] != input_size or 0 in array.shape:
        raise ValueError(f"x: expected shape (T, B, I) with I = {input_size} and T, B at least 1; got {array.shape}")
    return array


def read_state(name, state, network, batch):
    """A state, or the gradient of one, as a list with one float64 copy (D, B, H_l) per layer.

    Takes None (zeros), a list or tuple of such arrays, or one array (L*D, B, H) if all H are equal.
    """
    D, sizes = network.num_directions, network.hidden_sizes
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


def read_cell_state(name, state, network, batch):
    """As `read_state` for an LSTM's cell state; other cells have none, so giving one is an error."""
    if network.cell.has_c:
        return read_state(name, state, network, batch)
    if state is not None:
        raise ValueError(f"{name}: only the LSTM has a cell state; expected None")
    return [[None] * network.num_directions] * network.num_layers


def read_masks(masks, network, steps, batch):
    """Dropout masks as a list of L-1 float64 copies (T, B, D*H_l); None gives no masks (None per layer)."""
    between = network.num_layers - 1
    if masks is None:
        return [None] * between
    if len(masks) != between:
        raise ValueError(f"masks: expected {between} arrays, one between two layers each; got {len(masks)}")
    widths = [network.num_directions * size for size in network.hidden_sizes[:-1]]
    return [
        read_array(f"masks[{layer}]", mask, (steps, batch, width))
        for layer, (mask, width) in enumerate(zip(masks, widths, strict=True))
    ]
