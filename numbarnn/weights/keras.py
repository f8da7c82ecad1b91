"""Read and write weights of Keras' LSTM, GRU and SimpleRNN, alone or in Bidirectional, without importing Keras.

A layer's `get_weights()` is [kernel (I, G*H), recurrent_kernel (H, G*H), bias], with gates in the order `gates.KERAS`.
Bidirectional has the forward layer's arrays, then the backward layer's. The bias (G*H,) is our b_w; a GRU with
reset_after=True has b_w and b_r in one array (2, 3H). Other activations than the usual ones need a custom cell, see
`onnx_cells`.
"""

import sys
from dataclasses import replace

import numpy as np

from numbarnn import cells
from numbarnn.weights import gates
from numbarnn.weights.network import GRU_FORMS, agreed, cell_name, completed, host, of_parts, refuse, type_name
from numbarnn.weights.onnx_cells import BUILT_IN, KERAS, Kind

CLASSES = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "rnn"}


# ---------------------------------------------------------------- reading
def read(source, cell=None, reset_after=None, activation=None, recurrent_activation=None):
    """Return the `NetworkData` of Keras layers or of their weights, see `numbarnn.convert.from_keras`."""
    if not (_is_layer(source) or isinstance(source, tuple | list)):
        raise TypeError(f"source must be a Keras layer, or a list of arrays or layers, not {type_name(source)}")
    if not (_is_layer(source) or source):
        raise ValueError("weights must have at least one layer, but are empty")
    cell = None if cell is None else cell_name(cell)
    if reset_after is not None:
        form = "gru" if reset_after else "gru_reset_before"
        if cell not in (None, form):
            raise ValueError(
                f"reset_after={reset_after!r} is cell {form!r}, but cell is {cell!r}. Leave one of them out"
            )
        cell = form
    several = not _is_layer(source) and any(isinstance(entry, tuple | list) or _is_layer(entry) for entry in source)
    items = source if several else [source]  # one layer, or its list of arrays
    if cell in ("rnn_tanh", "rnn_relu"):
        if activation not in (None, cell.removeprefix("rnn_")):
            raise ValueError(f"activation {activation!r} is not that of cell {cell!r}. Leave cell out")
        activation = cell.removeprefix("rnn_")
    arguments = activation, recurrent_activation
    kinds, parts, widths = set(), {}, set()
    for layer, item in enumerate(items):
        where, kind, functions = f"layer {layer}" if len(items) > 1 else "the layer", cell, arguments
        if _is_layer(item):
            kind, functions = _layer_cell(item, where)
            kind = agreed(cell, kind, where)
            if arguments not in ((None, None), functions):
                raise ValueError(f"{where} has activations of its own, {functions}. Leave those arguments out")
            item = item.get_weights()
        directions, kind = _split([host(array, where) for array in item], kind, where, functions[0])
        kinds.add((kind, _functions(*functions, where)))
        widths.add(len(directions))
        parts |= {(layer, direction): part for direction, part in enumerate(directions)}
    if len(kinds) > 1 or len(widths) > 1:
        raise ValueError(
            f"the layers of a stack must be alike, but their cells are {sorted({kind for kind, _ in kinds})}, their "
            f"numbers of directions {sorted(widths)}, their activations {sorted({one for _, one in kinds})}. Convert "
            "them one by one"
        )
    cell, (activation, recurrent) = kinds.pop()
    operator = cell.split("_")[0].upper()
    activations = {"LSTM": (recurrent, activation, activation), "GRU": (recurrent, activation), "RNN": (activation,)}
    kind = Kind(operator, activations[operator], linear_before_reset=cell == "gru")
    cell = BUILT_IN.get(kind) or replace(kind, bias="b_w" in parts[0, 0])
    return of_parts(parts, cell, "the state dict made of Keras' weights")


def _functions(activation, recurrent_activation, where):
    """Return Keras' two activations in the form of `onnx_cells.Kind`; None is Keras' default."""
    names = []
    for name, usual in ((activation, "tanh"), (recurrent_activation, "sigmoid")):
        name = usual if name is None else name
        if name == "hard_sigmoid":
            raise ValueError(
                "'hard_sigmoid' is two functions. Pass 'hard_sigmoid_keras2', clip(0.2 x + 0.5, 0, 1), for weights of "
                "Keras 1 and 2, or 'hard_sigmoid_keras3', clip(x / 6 + 0.5, 0, 1), for those of Keras 3"
            )
        if not isinstance(name, str) or name not in KERAS:
            raise ValueError(f"{where} has the activation {name!r}, but numbarnn has only {', '.join(sorted(KERAS))}")
        names.append(KERAS[name])
    return tuple(names)


def _is_layer(value):
    return hasattr(value, "get_weights") and hasattr(value, "get_config")


def _layer_cell(layer, where):
    """Return (cell's name, (activation, recurrent_activation)) of a Keras layer; refuse options that we lack."""
    config = layer.get_config()
    if "forward_layer" in dir(layer) and "merge_mode" in config:
        if config["merge_mode"] != "concat":
            raise ValueError(f"{where} has merge_mode={config['merge_mode']!r}, but numbarnn has only 'concat'")
        pair = [_layer_cell(getattr(layer, name), f"{where}, {name}") for name in ("forward_layer", "backward_layer")]
        if pair[0] != pair[1]:
            raise ValueError(f"the directions of {where} must be of one kind, but are {pair}")
        return pair[0]
    base = next((base for base in type(layer).__mro__ if base.__name__ in CLASSES), None)
    if base is None:
        cure = ". Pass the model's recurrent layers one by one" if hasattr(layer, "layers") else ""
        kinds = ", ".join(CLASSES)
        raise TypeError(f"{where} must be a Keras {kinds} or Bidirectional layer, not {type_name(layer)}{cure}")
    if config["go_backwards"] and not where.endswith("backward_layer"):
        raise ValueError(f"{where} has go_backwards={config['go_backwards']!r}, but numbarnn has only False")
    version = getattr(sys.modules.get(base.__module__.split(".")[0]), "__version__", "3")
    hard = "hard_sigmoid_keras3" if version.startswith("3") else "hard_sigmoid_keras2"
    functions = [config.get(name) for name in ("activation", "recurrent_activation")]
    functions = tuple(hard if isinstance(one, str) and one == "hard_sigmoid" else one for one in functions)
    if base.__name__ == "SimpleRNN":
        return f"rnn_{functions[0]}", functions
    return CLASSES[base.__name__] + "_reset_before" * (not config.get("reset_after", True)), functions


def _split(arrays, cell, where, activation):
    """Return ([direction] -> {"W", "R", "b_w", "b_r"} in our order, the cell's name, "rnn_tanh" for any SimpleRNN)."""
    cell = "rnn_tanh" if cell and cell.startswith("rnn_") else cell
    if len(arrays) not in (2, 3, 4, 6):
        raise ValueError(
            f"{where} must have weights [kernel, recurrent_kernel] or [kernel, recurrent_kernel, bias], or twice as "
            f"many for two directions, but has {len(arrays)} arrays{'' if arrays else '. Build the layer first'}"
        )
    directions, size = [], len(arrays) if len(arrays) < 4 else len(arrays) // 2
    for begin in range(0, len(arrays), size):
        kernel, recurrent, *bias = arrays[begin : begin + size]
        if kernel.ndim != 2 or recurrent.ndim != 2 or kernel.shape[1] != recurrent.shape[1]:
            raise ValueError(
                f"kernel and recurrent_kernel of {where} must have shapes (I, G*H) and (H, G*H), but have "
                f"{kernel.shape} and {recurrent.shape}"
            )
        cell = cell or _cell_by_shape(recurrent.shape, bias, where, activation)
        columns = cells.get(cell).num_gates * recurrent.shape[0]
        if recurrent.shape[1] != columns:
            raise ValueError(
                f"recurrent_kernel of {where} must have shape (H, {columns}) for {cell}, not {recurrent.shape}"
            )
        expected = (2, columns) if cell == "gru" else (columns,)
        if bias and bias[0].shape != expected:
            other = {("gru", (columns,)): "gru_reset_before", ("gru_reset_before", (2, columns)): "gru"}
            other = other.get((cell, bias[0].shape))
            cure = f", which is that of {other!r}. Pass that cell, or none. {GRU_FORMS}" if other else ""
            raise ValueError(f"the bias of {where} must have shape {expected} for {cell}, not {bias[0].shape}{cure}")
        part = {"W": kernel.T, "R": recurrent.T}
        if bias:
            part |= {"b_w": bias[0][0], "b_r": bias[0][1]} if cell == "gru" else {"b_w": bias[0]}
        directions.append({kind: gates.from_order(array, cell, gates.KERAS) for kind, array in part.items()})
    return directions, cell


def _cell_by_shape(shape, bias, where, activation):
    """Infer the cell's name from the shape of recurrent_kernel and the list `bias`, [] or [the bias]."""
    gru = "gru_reset_before" if bias and bias[0].ndim == 1 else "gru"
    cell = {4: "lstm", 3: gru, 1: None if activation is None else "rnn_tanh"}.get(shape[1] / max(shape[0], 1))
    if cell is None:
        raise ValueError(
            f"recurrent_kernel of {where} must have 4 columns per unit (LSTM) or 3 (GRU), but has shape {shape}. Pass "
            "activation= for a SimpleRNN"
        )
    return cell


# ---------------------------------------------------------------- writing
def write(network):
    """Return for each Keras layer the list of arrays for `set_weights`, see `numbarnn.convert.to_keras`."""
    refuse(network, "Keras")
    network = completed(network, both_biases=network.cell == "gru")
    layers = [[] for _ in network.hidden_sizes]
    for layer, direction in network.pseudo_layers():
        parts = network.parts(layer, direction).values()
        W, R, *biases = (gates.to_order(array, network.cell, gates.KERAS) for array in parts)
        layers[layer] += [np.ascontiguousarray(W.T), np.ascontiguousarray(R.T)]
        if biases:
            layers[layer].append(np.stack(biases) if network.cell == "gru" else sum(biases[1:], start=biases[0]))
    return layers
