"""Import and export weights: PyTorch, Keras, ONNX and safetensors files.

Every `from_...` returns a new `LSTM`, `GRU` or `RNN`, every `to_...` new arrays. Sizes, directions, biases, projection
and skip input follow from the weights. Other options of the layer (device, dtype, schedule, dropout, ...) are keyword
arguments; dtype is the weights' by default. Numbers are copied exactly, except where two biases must be added
(`to_keras`, and `from_onnx` for custom cells). A network that the target cannot express raises ValueError. Only
PyTorch's modules and safetensors files have dropout.

What each format can express:

                              PyTorch   its cells   Keras   ONNX   safetensors
    layers of several sizes     no         yes       yes    yes        yes
    projection                  yes        no        no     yes        yes
    cell_clip                   no         no        no     yes        yes
    GRU(reset_after=False)      no         no        yes    yes        yes
    two biases                  yes        yes       sum*   yes        yes
    a single bias              as two     as two     yes*  as two      yes
    skip input                    as identity matrices                 yes
    custom cells                no         no        no     yes        yes

    * Keras' GRU with reset_after=True has two biases; a single one becomes two, one of them zero.

ONNX nodes with peepholes, other activations, `clip` or `input_forget` become an `RNN` of a custom cell, and so do Keras
layers with other activations. `to_onnx` writes such cells as nodes again, and any other cell as a `Scan` over its
equations. Files of custom cells have the cell's name and a digest of its equations; to read one, pass the cell.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numbarnn import cells
from numbarnn.cells.definition import CELL_OPTIONS
from numbarnn.common import files
from numbarnn.layers import GRU, LSTM, RNN, Recurrent
from numbarnn.weights import keras, onnx, onnx_cells, onnx_scan, onnx_write, safetensors, torch
from numbarnn.weights.network import OPTIONS, agreed, describe, described_cell, infer, of_parts, package

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from numbarnn.common.typing import Cell

    Path = str | os.PathLike[str]
    Prefix = str | Sequence[str] | Sequence[tuple[str, str]]
    Layer = Any  # an LSTM, GRU or RNN, depending on the source

__all__ = [
    "from_keras", "from_onnx", "from_torch", "from_torch_cells", "load_safetensors", "save_safetensors", "to_keras",
    "to_onnx", "to_torch", "to_torch_cells",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


_CLASSES = {
    "lstm": (LSTM, {}), "gru": (GRU, {}), "gru_reset_before": (GRU, {"reset_after": False}),
    "rnn_tanh": (RNN, {}), "rnn_relu": (RNN, {"nonlinearity": "relu"}),
}  # fmt: skip
_FROM_WEIGHTS = (
    "cell", "input_size", "hidden_size", "num_layers", "nonlinearity", "reset_after", "bias", "bidirectional",
    "input_mode", "proj_size",
)  # fmt: skip


# ---------------------------------------------------------------- PyTorch
def from_torch(source: Any, cell: str | None = None, *, prefix: Prefix = "", **options: Any) -> Layer:
    """Make a layer with the weights of a torch.nn.LSTM, GRU or RNN.

    Args:
        source: the module, of which batch_first and dropout are kept too, or its state dict (tensors or arrays).
        cell: "lstm", "gru", "gru_reset_before", "rnn_tanh" or "rnn_relu". Needed for the state dict of a vanilla RNN,
            and of a GRU with reset_after=False ("gru_reset_before").
        prefix: start of the names in a larger model, such as "encoder.lstm."; the names of a single cell ("weight_hh",
            without "_l0") may follow. For a list of prefixes see `from_torch_cells`.
        options: options of the layer, which override the module's.

    Raises:
        ValueError: entries are missing, unknown or have a wrong shape, or `cell` is not the module's.
        TypeError: an entry is no array of numbers, or dtypes differ and there is no `dtype`.

    >>> convert.from_torch(torch.nn.GRU(8, 16, num_layers=2, batch_first=True), device="cpu")
    GRU(8, 16, num_layers=2, batch_first=True, dtype='float32', device='cpu')
    >>> model = torch.nn.ModuleDict({"encoder": torch.nn.RNN(8, 16), "head": torch.nn.Linear(16, 2)})
    >>> convert.from_torch(model.state_dict(), "rnn_tanh", prefix="encoder.", device="cpu")
    RNN(8, 16, num_layers=1, dtype='float32', device='cpu')
    """
    network, found = torch.read(source, cell, prefix)
    return _layer(network, found, options)


def to_torch(layer: Recurrent) -> dict[str, np.ndarray[Any, Any]]:
    """Return a state dict for a torch.nn module of the layer's sizes: name -> NumPy array.

    A single bias becomes two, one of them zero. Skip input becomes identity matrices. Neither changes results.
    torch.from_numpy does not take bfloat16: write torch.tensor(array.astype("float32"), dtype=torch.bfloat16).

    Raises:
        ValueError: torch.nn cannot express the layer: sizes differ, cell_clip, or reset_after=False.

    >>> layer = numbarnn.LSTM(8, 16, device="cpu")
    >>> module = torch.nn.LSTM(8, 16)
    >>> module.load_state_dict({name: torch.from_numpy(array) for name, array in convert.to_torch(layer).items()})
    <All keys matched successfully>
    """
    return torch.write(_network(layer))


def from_torch_cells(source: Any, cell: str | None = None, *, prefix: Prefix = "", **options: Any) -> Layer:
    """Make a layer with the weights of stacked torch.nn.LSTMCell, GRUCell or RNNCell.

    Args:
        source: a list with one module or state dict per layer, or one pair of these (forward, reverse); or a larger
            model or its state dict. Modules may be scripted.
        cell, options: see `from_torch`.
        prefix: start of the names in each state dict of the list. For a larger model a list with one prefix or pair of
            prefixes per layer, such as ["cells.0.", "cells.1."].

    Raises:
        ValueError, TypeError: see `from_torch`, or the cells do not form a stack.

    >>> convert.from_torch_cells([torch.nn.LSTMCell(8, 16), torch.nn.LSTMCell(16, 4)], device="cpu")
    LSTM(8, [16, 4], num_layers=2, dtype='float32', device='cpu')
    >>> model = torch.nn.ModuleDict({"below": torch.nn.GRUCell(8, 16), "above": torch.nn.GRUCell(16, 16)})
    >>> convert.from_torch_cells(model.state_dict(), prefix=["below.", "above."], device="cpu")
    GRU(8, 16, num_layers=2, dtype='float32', device='cpu')
    """
    return _layer(torch.read_cells(source, cell, prefix), {}, options)


def to_torch_cells(layer: Recurrent) -> list[Any]:
    """Return a state dict for a torch.nn cell per layer, or a pair (forward, reverse) for two directions.

    Raises:
        ValueError: torch.nn's cells cannot express the layer: a projection, cell_clip, or reset_after=False.

    >>> below, above = convert.to_torch_cells(numbarnn.GRU(8, [16, 4], device="cpu"))
    >>> {name: array.shape for name, array in above.items()}
    {'weight_ih': (12, 16), 'weight_hh': (12, 4), 'bias_ih': (12,), 'bias_hh': (12,)}
    """
    return torch.write_cells(_network(layer))


# ---------------------------------------------------------------- Keras
def from_keras(
    source: Any, cell: str | None = None, *, reset_after: bool | None = None, activation: str | None = None,
    recurrent_activation: str | None = None, **options: Any,
) -> Layer:  # fmt: skip
    """Make a layer with the weights of Keras' LSTM, GRU, SimpleRNN or Bidirectional, or of a stack of them.

    A single bias becomes b_w (bias="input"). Layers with unusual activations become an `RNN` of a custom cell.

    Args:
        source: a Keras layer, its `get_weights()`, or a list of either, layer 0 first.
        cell: "lstm", "gru", "gru_reset_before", "rnn_tanh" or "rnn_relu". Needed only for the weights of a SimpleRNN
            without `activation`.
        reset_after: whether a GRU resets after the product. Needed only for False and weights without a bias.
        activation, recurrent_activation: Keras' names, if source is weights. Default: "tanh" and "sigmoid".
            "hard_sigmoid" is "hard_sigmoid_keras2" (0.2 x + 0.5, Keras 1 and 2) or "hard_sigmoid_keras3" (x / 6 + 0.5).
        options: options of the layer. batch_first is True by default, as in Keras.

    Raises:
        ValueError: a shape does not fit, `cell` is not the layer's, or numbarnn lacks an option of the layer: a custom
            activation, go_backwards, a merge_mode other than "concat".
        TypeError: source has something else than Keras' recurrent layers or arrays.

    >>> gru = keras.layers.GRU(16, reset_after=False, return_sequences=True)
    >>> gru.build((None, None, 8))
    >>> convert.from_keras(gru, device="cpu")
    GRU(8, 16, num_layers=1, batch_first=True, bias='input', reset_after=False, dtype='float32', device='cpu')
    """
    return _layer(
        keras.read(source, cell, reset_after, activation, recurrent_activation), {"batch_first": True}, options
    )


def to_keras(layer: Recurrent) -> list[list[np.ndarray[Any, Any]]]:
    """Return for each layer the arrays that `set_weights` of a Keras layer (or Bidirectional) takes.

    Make the Keras layer with use_bias=layer.bias, a GRU with reset_after=layer.reset_after, an RNN with its activation.
    Two biases are added, with one rounding, except for a GRU with reset_after=True. Skip input becomes identity
    matrices.

    Raises:
        ValueError: Keras cannot express the layer: a projection, or cell_clip.

    >>> (weights,) = convert.to_keras(numbarnn.LSTM(8, 16, device="cpu"))
    >>> lstm = keras.layers.LSTM(16, return_sequences=True)
    >>> lstm.build((None, None, 8))
    >>> lstm.set_weights(weights)
    """
    return keras.write(_network(layer))


# ---------------------------------------------------------------- ONNX
def from_onnx(
    model: Any, node: Any = None, *, reverse_as_forward: bool = False, cell: Cell | None = None, **options: Any
) -> Layer:  # fmt: skip
    """Make a layer with the weights of an ONNX model's LSTM, GRU or RNN nodes.

    Nodes with peepholes, other activations, `clip` or `input_forget` become an `RNN` of a custom cell, with one bias;
    `nr.show(layer.stack.cell)` prints it. `clip` limits the inputs of all activations but the LSTM's last, as in
    onnxruntime.

    Weights may be computed from constants by any operators. Two nodes with the same input and concatenated outputs
    become one bidirectional layer, if one has direction "reverse" or the model reverses its input and output.

    Pass the model's other inputs to the layer's calls: sequence_lens as `lengths`, initial_h and initial_c (D, B,
    H), stacked to (L*D, B, H), as `state`. If the model computes a state itself, a warning says so.

    Args:
        model: a file's path, its bytes, or an onnx.ModelProto. External data need the path.
        node: name of a node or of its output, or its number among the recurrent nodes (those within `If`, `Loop` and
            `Scan` come last); or a list of these, layer 0 first. None takes all; they must form one stack in one graph.
        reverse_as_forward: import a node of direction "reverse" as a forward layer. Reverse x and y in time yourself,
            each sequence from its last step.
        cell: the cell of a model that `to_onnx` wrote as a `Scan`. The library's cells are found by their names.
        options: options of the layer. batch_first is True by default if the nodes' `layout` is 1, or if the model
            transposes its input to time first, as `to_onnx` and PyTorch do.

    Raises:
        ValueError: numbarnn lacks an option of a node, weights depend on the model's inputs, an initial state is a
            constant other than zero, the nodes do not form a stack, or the graph has a cycle.
        ImportError: the package onnx is not installed.

    >>> model = convert.to_onnx(numbarnn.GRU(8, 16, num_layers=2, device="cpu"), lengths=True)
    >>> layer = convert.from_onnx(model, device="cpu")
    >>> y, state = layer(np.zeros((5, 3, 8), "float32"), lengths=[5, 2, 4])  # the model's input "lengths"
    >>> convert.from_onnx(model, "gru_l1", device="cpu")  # the second node alone
    GRU(16, 16, num_layers=1, dtype='float32', device='cpu')
    """
    model = onnx.load(model)
    known = onnx.described(model) if node is None else None
    if known is not None:
        return _described(*known, cell, "the ONNX model", options)
    if cell is not None:
        raise TypeError("cell must be left out: only models that to_onnx wrote as a Scan have a cell of their own")
    network, found = onnx.read(model, node, reverse_as_forward)
    return _layer(network, found, options)


def to_onnx(layer: Recurrent, path: Path | None = None, *, state: bool = False, lengths: bool = False) -> Any:
    """Return an onnx.ModelProto that computes what a call of the layer does, for any T and B.

    Built-in cells become one LSTM, GRU or RNN node per layer. Any other cell, and an LSTM with projection or cell clip,
    becomes one `Scan` per layer and direction, whose body is the equations.

    Inputs are x, lengths (B,) as int32, hx and cx; outputs are y, hy and cy, all in the layer's shapes. A custom cell's
    states keep their names: `def f(x, h, m, p)` has hx and mx. If sizes differ there is one state per layer: hx_l0,
    hx_l1, ... In LSTM, GRU and RNN nodes, a layer with one bias gets a second one of zeros, and input_mode "skip" or
    "given" becomes a W of identity matrices. onnxruntime runs float32 and float16, and float64 only in a Scan.

    Args:
        layer: the layer.
        path: file to write the model to. An existing file is replaced only if writing succeeds.
        state: add the initial state as inputs; otherwise it is zero.
        lengths: add the sequences' lengths as an input; y is 0 beyond them. For length 0 onnxruntime's nodes return
            zero states; numbarnn and a Scan return the initial state.

    Raises:
        ValueError: ONNX cannot express the layer: a custom cell written as functions, or a Scan in bfloat16.
        OSError: the file cannot be written.
        ImportError: the package onnx is not installed.

    >>> model = convert.to_onnx(numbarnn.LSTM(8, 16, device="cpu"), state=True, lengths=True)
    >>> [one.name for one in model.graph.input], [one.name for one in model.graph.output]
    (['x', 'lengths', 'hx', 'cx'], ['y', 'hy', 'cy'])
    >>> model = convert.to_onnx(numbarnn.RNN(numbarnn.cells.library.min_gru, 8, 16, device="cpu"), "min_gru.onnx")
    >>> convert.from_onnx("min_gru.onnx", device="cpu")
    RNN(min_gru, 8, 16, num_layers=1, dtype='float32', device='cpu')
    """
    model = _onnx_model(layer, state, lengths)
    if path is not None:
        with files.replacing(path) as part:
            package("onnx", "writing ONNX models").save(model, os.fspath(part))
    return model


def _onnx_model(layer, state, lengths):
    """Return the model of `to_onnx`, with LSTM, GRU or RNN nodes where they can express the layer."""
    custom = _custom(layer)
    if custom or (_is_built_in(layer) and not (layer.proj_size or layer.stack.cell.varied_by)):
        return onnx_write.write(custom or _network(layer), layer.batch_first, state, lengths)
    if not (_is_built_in(layer) or hasattr(layer.stack.cell, "structure")):
        raise ValueError(f"ONNX models need a cell's equations, but cell {layer.cell} is written as functions")
    if layer.dtype == "bfloat16":
        raise ValueError("ONNX models of custom cells are float16, float32 or float64. Convert the layer's weights")
    return onnx_scan.write(layer.stack, layer.state_dict(), describe(layer), layer.batch_first, state, lengths)


# ---------------------------------------------------------------- safetensors
def save_safetensors(layer: Recurrent, path: Path) -> None:
    """Write a layer to a file: its state dict, with the cell's name and the layer's options.

    Device, schedule, seed, allow_tf32 and checkpoint_every are not kept. Of a custom cell the file has the name and a
    digest of the equations.

    Raises:
        OSError: the file cannot be written.
        ImportError: the package safetensors is not installed.

    >>> convert.save_safetensors(numbarnn.LSTM(8, 16, proj_size=4, cell_clip=2.0, device="cpu"), "lstm.safetensors")
    """
    if not _is_built_in(layer) or layer.input_mode == "given":  # the arrays do not determine the sizes
        safetensors.write(os.fspath(path), layer.state_dict(), describe(layer))
        return
    network = _network(layer)
    options = {"cell": network.cell, "batch_first": layer.batch_first, "dropout": layer.dropout}
    safetensors.write(os.fspath(path), network.parameters, options | layer.stack.cell_options)


def load_safetensors(path: Path, cell: str | Cell | None = None, *, prefix: Prefix = "", **options: Any) -> Layer:
    """Make a layer from a file of `save_safetensors`, or from one of PyTorch's state dicts.

    Args:
        path: the file.
        cell: the custom cell with which the file was written; the library's cells are found by their names. For files
            that do not come from numbarnn see `from_torch`.
        prefix: see `from_torch`; for files that do not come from numbarnn.
        options: options of the layer; they override the file's.

    Raises:
        ValueError, TypeError: see `from_torch`; or the file is no safetensors file, or `cell` is not the file's.
        OSError: the file cannot be read.
        ImportError: the package safetensors is not installed.

    >>> convert.save_safetensors(numbarnn.LSTM(8, 16, proj_size=4, cell_clip=2.0, device="cpu"), "lstm.safetensors")
    >>> convert.load_safetensors("lstm.safetensors", device="cpu")
    LSTM(8, 16, num_layers=1, proj_size=4, cell_clip=(-2.0, 2.0), dtype='float32', device='cpu')
    """
    arrays, found = safetensors.read(os.fspath(path))
    if "digest" in found:
        return _described(found, arrays, cell, os.fspath(path), options)
    file_cell = found.pop("cell", None)
    network, _ = torch.read(arrays, agreed(cell, file_cell, path) if file_cell else cell, prefix)
    return _layer(network, found, options)


# ---------------------------------------------------------------- layers and networks
def _is_built_in(layer):
    """Return whether a layer has a built-in cell; raise TypeError unless it is a layer."""
    if not isinstance(layer, Recurrent):
        raise TypeError(f"layer must be a numbarnn LSTM, GRU or RNN, not a {type(layer).__qualname__}")
    return isinstance(layer._cell, str) and layer.cell in _CLASSES


def _network(layer):
    """Return a layer's `NetworkData`, with copies of its parameters."""
    if not (_is_built_in(layer) or layer.cell in _CLASSES):
        raise ValueError(
            f"layer must have one of the cells {', '.join(_CLASSES)}, got {layer.cell!r}: PyTorch and Keras have no "
            "such layer. Write it by to_onnx or save_safetensors"
        )
    network = replace(infer(layer.state_dict(), layer.cell), cell_options=dict(layer.stack.cell.varied_by))
    if layer.input_mode == "given":  # cannot be inferred from the arrays
        network = replace(network, input_mode="given", input_size=layer.input_size)
    return network


def _custom(layer):
    """Return the `NetworkData` of a layer whose cell `from_onnx` made, None for other cells."""
    kind = onnx_cells.kind_of(layer.stack.cell) if isinstance(layer, Recurrent) else None
    if kind is None:
        return None
    if layer.input_mode != "linear":
        raise ValueError(f"ONNX has no input_mode {layer.input_mode!r} for cell {layer.cell}")
    flat = layer.engine.to_host(layer.weights)
    parts = {
        place: kind.arrays({name: flat[where].reshape(shape) for name, (_, where, shape) in blocks.items()})
        for place, blocks in layer.stack.space.blocks.items()
    }
    return of_parts(parts, kind)


def _check_options(options, decides):
    if decided := [name for name in options if name in _FROM_WEIGHTS]:
        raise TypeError(f"{', '.join(decided)} must be left out: {decides}")


def _described(description, arrays, cell, source, options):
    """Make a layer from `describe`'s description in a file. `options` override those of the description."""
    cell = described_cell(description, cell, source)
    sizes = {name: description[name] for name in ("input_size", "hidden_size")}
    described = {name: description[name] for name in (*OPTIONS, *CELL_OPTIONS) if name in description}
    _check_options(options, f"{source} decides")
    options = {"dtype": str(next(iter(arrays.values())).dtype)} | described | options
    if cell.bias is not None:  # the equations decide
        del options["bias"]
    if cells.CELLS.get(cell.name) is cell:
        make, kind = _CLASSES[cell.name]
    else:
        make, kind = RNN, {"cell": cell}
    layer = make(**sizes, **kind, **options)
    layer.load_state_dict({name: arrays[name] for name in layer.parameters})
    return layer


def _layer(network, found, options):
    """Make a layer with the network's weights. `options` override `found`, the options that came with the weights."""
    _check_options(options, "the weights decide (for a state dict also cell=)")
    options = found | options
    if "dtype" not in options:
        options["dtype"] = network.dtype
    sizes = {"input_size": network.input_size, "hidden_size": list(network.hidden_sizes)}
    if isinstance(network.cell, onnx_cells.Kind):
        layer = RNN(onnx_cells.cell_of(network.cell), **sizes, bidirectional=network.bidirectional, **options)
        several = len(network.pseudo_layers()) > 1
        layer.load_state_dict({
            f"l{number}.{'reverse.' * direction}{name}" if several else name: array
            for number, direction in network.pseudo_layers()
            for name, array in network.cell.named(network.parts(number, direction)).items()
        })  # fmt: skip
        return layer
    made, kind = _CLASSES[network.cell]
    sizes |= {"proj_size": network.proj_size} if network.proj_size else {}
    modes = {"bias": network.bias, "input_mode": network.input_mode, "bidirectional": network.bidirectional}
    layer = made(**sizes, **modes, **kind, **options)
    layer.load_state_dict(network.parameters)
    return layer
