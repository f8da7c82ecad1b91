"""Weights in and out: layers from and to PyTorch, Keras, ONNX and safetensors files.

Every `from_...` returns a new layer, every `to_...` new arrays: nothing is shared. Sizes, directions, biases,
projection and skip input follow from the weights; all other options of the layer (device, dtype, schedule, dropout,
batch_first, ...) are keyword arguments. Without `dtype` the layer has the weights' own. No bit of a weight changes,
but for two biases that `to_keras` has to add up, as `from_onnx` has for cells that it makes.

A network that the other side cannot express is refused, with what it is that it lacks, and never approximated. Dropout
is a matter of training: it travels only with PyTorch's modules and with safetensors files.

What exists where:

                              PyTorch   its cells   Keras   ONNX   safetensors
    layers of several sizes     no         yes       yes    yes        yes
    projection                  yes        no        no     no         yes
    cell_clip                   no         no        no     no         yes
    GRU(reset_after=False)      no         no        yes    yes        yes
    two biases                  yes        yes       sum*   yes        yes
    a single bias              as two     as two     yes*  as two      yes
    skip input                    as identity matrices                 yes

    * Keras' GRU with reset_after=True has two biases; a single one becomes two, one of them zero.

ONNX nodes with peepholes, other activations, `clip` or `input_forget`, and Keras' layers with other activations, become
an `RNN` of a cell that is made for them, which `to_onnx` writes if ONNX has the activations.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numbarnn.common import files
from numbarnn.layers import GRU, LSTM, RNN, Recurrent
from numbarnn.weights import keras, onnx, onnx_cells, onnx_write, safetensors, torch
from numbarnn.weights.network import infer, named, package

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    Path = str | os.PathLike[str]
    Prefix = str | Sequence[str] | Sequence[tuple[str, str]]
    Layer = Any  # an LSTM, a GRU or an RNN: the source tells which

__all__ = [
    "from_keras", "from_onnx", "from_torch", "from_torch_cells", "load_safetensors", "save_safetensors", "to_keras",
    "to_onnx", "to_torch", "to_torch_cells",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


_CLASSES = {"lstm": LSTM, "gru": GRU, "gru_reset_before": GRU, "rnn_tanh": RNN, "rnn_relu": RNN}
_FROM_WEIGHTS = (
    "cell", "input_size", "hidden_size", "num_layers", "nonlinearity", "reset_after", "bias", "bidirectional",
    "input_mode", "proj_size",
)  # fmt: skip


# ---------------------------------------------------------------- PyTorch
def from_torch(source: Any, cell: str | None = None, *, prefix: Prefix = "", **options: Any) -> Layer:
    """A layer with the weights of a torch.nn.LSTM, GRU or RNN.

    Args:
        source: the module, whose batch_first and dropout are taken over; or its state dict, of tensors or arrays.
        cell: "lstm", "gru", "gru_reset_before", "rnn_tanh" or "rnn_relu". A module tells; of a state dict, an LSTM's
            and a GRU's shapes do, but not that the GRU is one with reset_after=False ("gru_reset_before").
        prefix: of the names that are meant, such as "encoder.lstm." in the state dict of a larger model, or of the
            module within a larger one. Names of a single cell ("weight_hh", without "_l0") are taken too; a list of
            prefixes is of cells: see `from_torch_cells`.
        options: of the layer; they come before the module's.

    Raises:
        ValueError: entries are missing, unknown or of a wrong shape; all are named. Or the module is no `cell`.
        TypeError: an entry is no array of numbers, or entries are of several dtypes and `dtype` is not given.

    >>> convert.from_torch(torch.nn.GRU(8, 16, num_layers=2, batch_first=True), device="cpu")
    GRU(8, 16, num_layers=2, batch_first=True, dtype='float32', device='cpu')
    >>> model = torch.nn.ModuleDict({"encoder": torch.nn.RNN(8, 16), "head": torch.nn.Linear(16, 2)})
    >>> convert.from_torch(model.state_dict(), "rnn_tanh", prefix="encoder.", device="cpu")
    RNN(8, 16, num_layers=1, dtype='float32', device='cpu')
    """
    network, found = torch.read(source, cell, prefix)
    return _layer(network, found, options)


def to_torch(layer: Recurrent) -> dict[str, np.ndarray[Any, Any]]:
    """A state dict for a torch.nn module of the layer's sizes: name -> NumPy array.

    A single bias becomes two, one of them zero, and skip input becomes identity matrices: neither changes results. (The
    layer's own parameters, as they are, are `layer.state_dict()`.) torch.from_numpy takes every dtype but bfloat16:
    there, torch.tensor(array.astype("float32"), dtype=torch.bfloat16).

    Raises:
        ValueError: torch.nn lacks something: layers of different sizes, cell_clip, or reset_after=False.

    >>> layer = numbarnn.LSTM(8, 16, device="cpu")
    >>> module = torch.nn.LSTM(8, 16)
    >>> module.load_state_dict({name: torch.from_numpy(array) for name, array in convert.to_torch(layer).items()})
    <All keys matched successfully>
    """
    return torch.write(_network(layer))


def from_torch_cells(source: Any, cell: str | None = None, *, prefix: Prefix = "", **options: Any) -> Layer:
    """A layer with the weights of torch.nn.LSTMCell, GRUCell or RNNCell, stacked.

    Args:
        source: a list with one module or state dict per layer, or one pair (forward, reverse) per layer. Or the module
            or state dict of a larger model, of which `prefix` names the cells. Modules may be scripted.
        cell, options: as in `from_torch`.
        prefix: of the names that are meant, in each state dict of a list; of a larger model, a list of one such prefix,
            or pair of them, per layer, such as ["cells.0.", "cells.1."].

    Raises:
        ValueError, TypeError: as in `from_torch`; or the entries are no stack.

    >>> convert.from_torch_cells([torch.nn.LSTMCell(8, 16), torch.nn.LSTMCell(16, 4)], device="cpu")
    LSTM(8, [16, 4], num_layers=2, dtype='float32', device='cpu')
    >>> model = torch.nn.ModuleDict({"below": torch.nn.GRUCell(8, 16), "above": torch.nn.GRUCell(16, 16)})
    >>> convert.from_torch_cells(model.state_dict(), prefix=["below.", "above."], device="cpu")
    GRU(8, 16, num_layers=2, dtype='float32', device='cpu')
    """
    return _layer(torch.read_cells(source, cell, prefix), {}, options)


def to_torch_cells(layer: Recurrent) -> list[Any]:
    """A list of state dicts, one per layer, for torch.nn's cells; of pairs (forward, reverse), for two directions.

    Raises:
        ValueError: torch.nn's cells lack something: a projection, cell_clip, or reset_after=False.

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
    """A layer with the weights of Keras' LSTM, GRU or SimpleRNN, alone or in Bidirectional, or of a stack of them.

    A single bias becomes b_w (bias="input"); only a GRU with reset_after=True has two, b_w and b_r. Layers with other
    activations than Keras' usual ones become an `RNN` of a cell made for them, as with `from_onnx`.

    Args:
        source: a Keras layer, whose options are checked, or its `get_weights()`; or a list of those, layer 0 first.
        cell: "lstm", "gru", "gru_reset_before", "rnn_tanh" or "rnn_relu"; needed only for the weights of a SimpleRNN
            without `activation`.
        reset_after: of a GRU; needed only for False and weights without a bias, as the shape of the bias tells.
        activation, recurrent_activation: Keras' names, of weights; by default "tanh" and "sigmoid". A layer has its
            own. Keras' "hard_sigmoid" is "hard_sigmoid_keras2" (0.2 x + 0.5) of Keras 1 and 2, and
            "hard_sigmoid_keras3" (x / 6 + 0.5, `numbarnn.hard_sigmoid`) of Keras 3.
        options: of the layer; batch_first is True if not given, as Keras' arrays are (B, T, ...).

    Raises:
        ValueError: a shape does not fit, the layer is another cell than the one asked for, or an option of a Keras
            layer has no counterpart: an activation of one's own, go_backwards, a merge_mode other than "concat".
        TypeError: something is no recurrent layer of Keras, or no array.

    >>> gru = keras.layers.GRU(16, reset_after=False, return_sequences=True)
    >>> gru.build((None, None, 8))
    >>> convert.from_keras(gru, device="cpu")
    GRU(8, 16, num_layers=1, batch_first=True, bias='input', reset_after=False, dtype='float32', device='cpu')
    """
    return _layer(
        keras.read(source, cell, reset_after, activation, recurrent_activation), {"batch_first": True}, options
    )


def to_keras(layer: Recurrent) -> list[list[np.ndarray[Any, Any]]]:
    """A list with, per layer, the arrays that `set_weights` of a Keras layer (or Bidirectional) takes.

    The Keras layer has use_bias=layer.bias, for a GRU reset_after=layer.reset_after, and for an RNN the activation
    "tanh" or "relu". Where it has one bias (all but the GRU with reset_after=True), the layer's two are added, with one
    rounding; skip input becomes identity matrices.

    Raises:
        ValueError: Keras lacks something: a projection, or cell_clip.

    >>> (weights,) = convert.to_keras(numbarnn.LSTM(8, 16, device="cpu"))
    >>> lstm = keras.layers.LSTM(16, return_sequences=True)
    >>> lstm.build((None, None, 8))
    >>> lstm.set_weights(weights)
    """
    return keras.write(_network(layer))


# ---------------------------------------------------------------- ONNX
def from_onnx(model: Any, node: Any = None, *, reverse_as_forward: bool = False, **options: Any) -> Layer:
    """A layer with the weights of an ONNX model's LSTM, GRU or RNN nodes.

    Nodes with peepholes (P), other activations, their alpha and beta, `clip` or `input_forget` become an `RNN` of a
    cell made for them, whose two biases are added up; `nr.show(layer.stack.cell)` prints its equations, and `to_onnx`
    writes such nodes again. `clip` bounds the inputs of all activations but the LSTM's last, as onnxruntime has it.

    What the model computes from constants alone is computed, by ONNX' reference implementation: weights may stand
    behind any operators. Two nodes of one direction each, with the same input and concatenated outputs, become one
    bidirectional layer; one of them has direction "reverse", or its input and output are reversed by the model.

    Args:
        model: a file's path, its bytes, or an onnx.ModelProto. Numbers in files beside it are read of a path only.
        node: a node's name, the name of its output, or its number among the model's LSTM, GRU and RNN nodes, of which
            those in branches of `If` and in bodies of `Loop` and `Scan` come last; or a list of those, layer 0 first.
            None: all of them, which have to be one stack, in one graph.
        reverse_as_forward: take a node of direction "reverse" for a forward layer, to which x has to be passed reversed
            in time (each sequence from its own last element), and whose y is reversed likewise.
        options: of the layer; batch_first, if not given, is True where the nodes' `layout` is 1, or where the first one
            gets an input of the model transposed to time first, as `to_onnx` and PyTorch write it.

    A layer keeps weights only; where the model computes a state, a warning says so. What the model passes to its nodes
    besides x goes to the layer's calls:

        sequence_lens (B,)                      `lengths`, on the host
        initial_h, initial_c (D, B, H)          `state`: h, or (h, c) for an LSTM; (L*D, B, H) has all nodes', layer 0
                                                first. Where layout is 1 the nodes' are (B, D, H), the layer's are not.

    Raises:
        ValueError: a node has what numbarnn lacks (named, with its value) or other activations for its second direction
            than for its first; its weights depend on what the model is given, or its initial state does not and is not
            zero; the nodes are no stack; the model's graph has a circle.
        ImportError: the package onnx is not installed.

    >>> model = convert.to_onnx(numbarnn.GRU(8, 16, num_layers=2, device="cpu"), lengths=True)
    >>> layer = convert.from_onnx(model, device="cpu")
    >>> y, state = layer(np.zeros((5, 3, 8), "float32"), lengths=[5, 2, 4])  # the model's input "lengths"
    >>> convert.from_onnx(model, "gru_l1", device="cpu")  # the second node alone
    GRU(16, 16, num_layers=1, dtype='float32', device='cpu')
    """
    network, found = onnx.read(model, node, reverse_as_forward)
    return _layer(network, found, options)


def to_onnx(layer: Recurrent, path: Path | None = None, *, state: bool = False, lengths: bool = False) -> Any:
    """An onnx.ModelProto with one node per layer, which computes what calling the layer does, for any T and B.

    Inputs: x, shaped as the layer's; lengths (B,), int32, with `lengths`; hx, and cx of an LSTM, with `state`. Outputs:
    y, hy, and cy of an LSTM. States are shaped as the layer's; where sizes differ there is one per layer, hx_l0, hx_l1,
    ... A single bias becomes two, skip input becomes identity matrices. onnxruntime runs float32 and float16; it has no
    recurrent operators of float64.

    Args:
        path: a file to write it to as well; one that is there is replaced whole or, where writing fails, kept.
        state: whether the model takes the initial state; else it is zero.
        lengths: whether the model takes the sequences' lengths (the nodes' sequence_lens); y is 0 beyond them. After an
            empty sequence (length 0) hy and cy are the initial state here, but 0 in onnxruntime.

    Raises:
        ValueError: ONNX lacks something: a projection, cell_clip, or any cell but the built-in ones and those that
            `from_onnx` makes.
        OSError: the file cannot be written.
        ImportError: the package onnx is not installed.

    >>> model = convert.to_onnx(numbarnn.LSTM(8, 16, device="cpu"), state=True, lengths=True)
    >>> [one.name for one in model.graph.input], [one.name for one in model.graph.output]
    (['x', 'lengths', 'hx', 'cx'], ['y', 'hy', 'cy'])
    """
    model = onnx_write.write(_custom(layer) or _network(layer), layer.batch_first, state, lengths)
    if path is not None:
        with files.replacing(path) as part:
            package("onnx", "writing ONNX models").save(model, os.fspath(part))
    return model


# ---------------------------------------------------------------- safetensors
def save_safetensors(layer: Recurrent, path: Path) -> None:
    """Write the layer to a file: PyTorch's state dict, and the options that weights do not tell.

    Those are the cell (with it a GRU's reset_after), batch_first, dropout, cell_clip and clip_propagate_nan; device,
    schedule, seed, allow_tf32 and checkpoint_every are not kept.

    Raises:
        OSError: the file cannot be written.
        ImportError: the package safetensors is not installed.

    >>> convert.save_safetensors(numbarnn.LSTM(8, 16, proj_size=4, cell_clip=2.0, device="cpu"), "lstm.safetensors")
    """
    network = _network(layer)
    options = {"cell": network.cell, "batch_first": layer.batch_first, "dropout": layer.dropout}
    if network.cell == "lstm":
        options |= {"cell_clip": layer.cell_clip, "clip_propagate_nan": layer.clip_propagate_nan}
    if network.input_mode == "given":
        raise ValueError("a layer with input_mode 'given' is not written to safetensors files: keep its state_dict()")
    safetensors.write(os.fspath(path), network.parameters, options)


def load_safetensors(path: Path, cell: str | None = None, *, prefix: Prefix = "", **options: Any) -> Layer:
    """A layer from a file that `save_safetensors`, or PyTorch, wrote.

    Args:
        cell, prefix: as in `from_torch`, for files that do not come from numbarnn.
        options: of the layer; they come before the file's.

    Raises:
        ValueError, TypeError: as in `from_torch`, or the file is no safetensors file, or not of `cell`.
        OSError: the file cannot be read.
        ImportError: the package safetensors is not installed.

    >>> convert.save_safetensors(numbarnn.LSTM(8, 16, proj_size=4, cell_clip=2.0, device="cpu"), "lstm.safetensors")
    >>> convert.load_safetensors("lstm.safetensors", device="cpu")
    LSTM(8, 16, num_layers=1, proj_size=4, cell_clip=(-2.0, 2.0), dtype='float32', device='cpu')
    """
    network, found = safetensors.read(os.fspath(path), cell, prefix)
    return _layer(network, found, options)


# ---------------------------------------------------------------- layers and networks
def _network(layer):
    """The `NetworkData` of a layer: copies of its parameters on the host."""
    if not isinstance(layer, Recurrent):
        raise TypeError(f"layer must be a numbarnn LSTM, GRU or RNN, not a {type(layer).__qualname__}")
    if layer.cell not in _CLASSES:
        raise ValueError(
            f"layer has cell {layer.cell!r}, which no other format knows ({', '.join(_CLASSES)} are known): keep its "
            "state_dict()"
        )
    network = replace(infer(layer.state_dict(), layer.cell), cell_clip=layer.cell_clip)
    if layer.input_mode == "given":  # which arrays do not tell
        network = replace(network, input_mode="given", input_size=layer.input_size)
    return network


def _custom(layer):
    """The `NetworkData` of a layer whose cell was made for nodes; None of others."""
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
    return infer(named(parts), kind)


def _layer(network, found, options):
    """A layer with the network's weights; `options` come before those that were found with the weights."""
    if decided := [name for name in options if name in _FROM_WEIGHTS]:
        raise TypeError(f"leave out {', '.join(decided)}: the source tells (a state dict by its shapes, and cell=)")
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
    kind = {"bias": {"double": True, "none": False}.get(network.bias, network.bias)}
    kind |= {"nonlinearity": network.cell.removeprefix("rnn_")} if network.cell.startswith("rnn_") else {}
    kind |= {"reset_after": False} if network.cell == "gru_reset_before" else {}
    kind |= {"input_mode": network.input_mode} if network.input_mode != "linear" else {}
    kind |= {"proj_size": network.proj_size} if network.proj_size else {}
    layer = _CLASSES[network.cell](**sizes, bidirectional=network.bidirectional, **kind, **options)
    layer.load_state_dict(network.parameters)
    return layer
