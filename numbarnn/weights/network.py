"""The common form of all conversions: a stack's sizes and options, and its parameters by PyTorch's names.

The module of a format (`torch`, `keras`, `onnx`, `safetensors`) converts to a `NetworkData` and back, without a layer
or an engine. `numbarnn.convert` makes layers from networks. For a custom cell, a file holds no `NetworkData` but a
description (`describe`): the cell's name and a digest of its equations, which cannot be run from a file.
"""

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from numbarnn import cells
from numbarnn.cells.definition import Cell
from numbarnn.cells.layout import BIAS_MODES, STACKED
from numbarnn.common import install
from numbarnn.common.precision import DTYPES, numpy_dtype
from numbarnn.weights import space
from numbarnn.weights.space import WeightSpace, parameter_name

# a layer's options in its description, and defaults that are left out
OPTIONS = ("bias", "bidirectional", "batch_first", "dropout", "proj_size", "input_mode")
_DEFAULTS = {"proj_size": 0, "input_mode": "linear"}
NAME = re.compile(r"(weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)_l(0|[1-9]\d*)(_reverse)?")

# explanation in messages that refuse to convert one form of the GRU to the other
GRU_FORMS = (
    "'gru' applies the reset gate after the recurrent product (cuDNN, PyTorch, Keras with reset_after=True, ONNX with "
    "linear_before_reset=1), 'gru_reset_before' before it (Keras with reset_after=False, ONNX with "
    "linear_before_reset=0). With the same weights they compute different things, so neither is converted to the other"
)


@dataclass(frozen=True, eq=False)
class NetworkData:
    """A stack of recurrent layers as data.

    Attributes:
        cell: the cell's name, or an `onnx_cells.Kind`. parameters: PyTorch's name -> array, in a state dict's order.
        bias, input_mode: see `BIAS_MODES`, `INPUT_MODES`. proj_size: P, or 0.
        cell_options: name -> value of the options that change the cell.
    """

    cell: Any
    input_size: int
    hidden_sizes: tuple[int, ...]
    parameters: dict
    bidirectional: bool = False
    bias: str = "double"
    input_mode: str = "linear"
    proj_size: int = 0
    cell_options: dict = field(default_factory=dict)

    directions = property(lambda self: 2 if self.bidirectional else 1)
    like = property(lambda self: getattr(self.cell, "like", self.cell), doc="The built-in cell with the same gates.")
    name = property(lambda self: getattr(self.cell, "name", self.cell), doc="The cell's name.")

    @property
    def dtype(self):
        """Name of the parameters' dtype, one of DTYPES; TypeError if they have several."""
        dtypes, cure = {name: array.dtype.name for name, array in self.parameters.items()}, ", ".join(DTYPES)
        name, *others = set(dtypes.values())
        if others:
            raise TypeError(f"the parameters must be of one dtype, but are {dtypes}. Pass dtype=, one of {cure}")
        if name not in DTYPES:
            raise TypeError(f"the parameters are of dtype {name}. Pass dtype=, one of {cure}")
        return name

    @cached_property
    def space(self):
        """The `WeightSpace` of these sizes and options."""
        sizes = cells.get(self.like).num_gates, self.input_size, self.hidden_sizes, self.directions
        per_unit = getattr(self.cell, "per_unit", ())
        return WeightSpace(*sizes, self.bias, self.proj_size, self.input_mode, per_unit=per_unit)

    def parts(self, layer, direction=0):
        """Return kind ("W", "R", "W_hr", "b_w", "b_r") or name of a peephole -> array, of one layer and direction."""
        flat = STACKED | {name: name for name in getattr(self.cell, "per_unit", ())}
        names = {kind: space.named(name, layer, direction) for kind, name in flat.items()}
        return {kind: self.parameters[name] for kind, name in names.items() if name in self.parameters}

    def pseudo_layers(self):
        """Return (layer, direction) in cuDNN's order."""
        return [(layer, d) for layer in range(len(self.hidden_sizes)) for d in range(self.directions)]


# ---------------------------------------------------------------- arrays and cells
def host(value, name):
    """Return an array or a framework's tensor as a NumPy array. `name` is its name in errors."""
    if isinstance(value, np.ndarray):
        return value
    if getattr(value, "is_meta", False):
        raise ValueError(f"{name} is a tensor on device 'meta', which has no numbers. Load the weights first")
    if hasattr(value, "detach"):  # PyTorch's, whose bfloat16 NumPy can only take by way of float32
        value = value.detach().cpu()
        half = "bfloat16" in str(value.dtype)
        return value.float().numpy().astype(numpy_dtype("bfloat16")) if half else value.numpy()
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):  # CuPy's
        return value.get()
    value = np.asarray(value.numpy() if callable(getattr(value, "numpy", None)) else value)
    if value.dtype == object:
        raise TypeError(f"{name} must be an array of numbers, not {value!r}")
    return value


def package(name, purpose):
    """Import an optional package; ImportError says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        extra = name.split(".")[0]
        raise ImportError(f"{purpose} needs the package {extra}: {install.command(extra)}") from error


def of_parts(parts, cell, what="state_dict"):
    """Return the `NetworkData` of parts, {(layer, direction): {kind: array}}, see `infer`."""
    flat = {(STACKED.get(kind, kind), *place): array for place, own in parts.items() for kind, array in own.items()}
    return infer({space.named(*name): array for name, array in flat.items()}, cell, what)


def type_name(value):
    """Return a value's type with its module, for messages, as several frameworks have a class GRU."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def cell_name(cell):
    """Return a cell's name from a `Cell` or a name in capitals or small letters."""
    return cells.get(cell.lower() if isinstance(cell, str) else cell).name


def agreed(cell, name, where):
    """Return `name`, the cell's name in a source; ValueError if the user's argument `cell` is another cell."""
    if cell is None or cell_name(cell) == name:
        return name
    forms = f". {GRU_FORMS}" if {cell_name(cell), name} == {"gru", "gru_reset_before"} else ""
    raise ValueError(
        f"{where} is of cell {name!r}, not {cell_name(cell)!r} as asked for. Leave that argument out{forms}"
    )


def infer(parameters, cell=None, what="state_dict"):
    """Infer the `NetworkData` of a state dict: sizes, directions, bias mode, projection, skip input.

    Args:
        parameters: PyTorch's name -> array (NumPy's or a framework's). what: the state dict's name in errors.
        cell: see `NetworkData`. Default: by the number of gates, "lstm" (4) or "gru" (3).

    Raises:
        ValueError: names are missing or unknown, or shapes do not fit. The message names all of them.
        TypeError: a value is no array of numbers.
    """
    arrays = {name: host(value, f"{what}[{name!r}]") for name, value in parameters.items()}
    matches = [match for name in arrays if (match := NAME.fullmatch(name))]
    layers = 1 + max((int(match[2]) for match in matches), default=0)
    matrices = {name: array.shape for name, array in arrays.items() if array.ndim == 2}
    expected = [parameter_name("R", layer, 0) for layer in range(layers)]
    if missing := [name for name in expected if name not in matrices]:
        unknown = [name for name in arrays if not NAME.fullmatch(name)]
        raise ValueError(f"{what} lacks the matrices {missing} of a recurrent layer; its unknown names are {unknown}")
    first, projection = matrices.get("weight_ih_l0"), matrices.get("weight_hr_l0")
    if cell is None:
        rows, columns = shape = arrays["weight_hh_l0"].shape
        cell = {4: "lstm", 3: "gru"}.get(rows / max(projection[1] if projection else columns, 1))
        if cell is None:
            raise ValueError(
                f"weight_hh_l0 of {what} must have 4 rows per unit (LSTM) or 3 (GRU), but has shape {shape}. Pass "
                "cell='rnn_tanh' or 'rnn_relu' for a vanilla RNN, or another cell"
            )
    cell, kinds = cell if hasattr(cell, "gates") else cell_name(cell), {match[1] for match in matches}
    num_gates = cells.get(getattr(cell, "like", cell)).num_gates
    hidden = tuple(arrays[name].shape[0] // num_gates for name in expected)
    bias_kinds = ("b_w",) * ("bias_ih" in kinds) + ("b_r",) * ("bias_hh" in kinds)
    network = NetworkData(
        cell, first[1] if first else hidden[0], hidden, arrays, bidirectional=any(match[3] for match in matches),
        bias=next(mode for mode, biases in BIAS_MODES.items() if biases == bias_kinds),
        input_mode="linear" if any(name.startswith("weight_ih_l0") for name in arrays) else "skip",
        proj_size=projection[0] if projection else 0,
    )  # fmt: skip
    expected, shapes = network.space.shapes, {name: array.shape for name, array in arrays.items()}
    problems = [f"missing {name} {shape}" for name, shape in expected.items() if name not in shapes]
    problems += [f"unknown {name}" for name in shapes if name not in expected]
    wrong = {name: shape for name, shape in expected.items() if shapes.get(name, shape) != shape}
    problems += [f"{name} has shape {shapes[name]}, expected {shape}" for name, shape in wrong.items()]
    if network.proj_size and network.cell != "lstm":
        problems.append(f"weight_hr: only an LSTM has a projection, not {network.cell}")
    if 0 in (network.input_size, *hidden):
        problems.append(f"sizes of 0: input_size {network.input_size}, hidden_size {hidden}")
    if problems:
        raise ValueError(
            f"{what} does not fit {network.name} of input_size {network.input_size}, hidden_size {hidden}, "
            f"{network.directions} direction(s): {'; '.join(problems)}"
        )
    return replace(network, parameters={name: arrays[name] for name in expected})


# ---------------------------------------------------------------- differences between formats
def completed(network, both_biases=True):
    """Return a network that computes the same with the arrays that other formats always have.

    Layer 0 without a W gets identity matrices. With `both_biases` a single bias gets a second one of zeros."""
    added, D = {}, network.directions
    if network.input_mode != "linear":
        identity = np.eye(network.input_size, dtype=network.dtype)
        skips = network.input_mode == "skip"
        identities = [np.tile(identity, (cells.get(network.like).num_gates, 1))] * D if skips else np.split(identity, D)
        added = {parameter_name("W", 0, direction): W.copy() for direction, W in enumerate(identities)}
    if both_biases and network.bias in ("input", "recurrent"):
        (bias,) = BIAS_MODES[network.bias]
        for place in network.pseudo_layers():
            other = parameter_name("b_r" if bias == "b_w" else "b_w", *place)
            added[other] = np.zeros_like(network.parts(*place)[bias])
    return infer(added | network.parameters, network.cell, "the network") if added else network


def refuse(network, target, *known):
    """Raise ValueError if the network has a projection or an option of its cell that a format does not know."""
    projection = {"proj_size": network.proj_size} if network.proj_size else {}
    for option, value in (projection | network.cell_options).items():
        if option not in known:
            raise ValueError(
                f"{target} has no {option}, but this layer has {option}={value}. Files of save_safetensors have all "
                "options"
            )


# ---------------------------------------------------------------- descriptions of layers of any cell
def describe(layer):
    """Return a layer's cell, digest of equations and options as values for JSON."""
    options = {"bias": layer.bias_mode} | {name: getattr(layer, name) for name in OPTIONS[1:]}
    options |= layer.stack.cell_options
    kept = {name: value for name, value in options.items() if name not in _DEFAULTS or value != _DEFAULTS[name]}
    sizes = {"input_size": layer.input_size, "hidden_size": list(layer.hidden_sizes)}
    return {"cell": layer.cell, "digest": getattr(layer.stack.cell, "digest", None)} | sizes | kept


def described_cell(description, cell, source):
    """Return the `Cell` of a description: the user's `cell`, or one of numbarnn's, with the same equations.

    Args:
        cell: a `Cell`, a name, or None. source: the file's description in errors.

    Raises:
        ValueError: there is no such cell, or it has another name or other equations.
    """
    name, digest = description["cell"], description["digest"]
    if cell is not None:
        cell = cells.get(cell)
    else:
        from numbarnn.cells import library  # traces its cells

        known = getattr(library, name, None), cells.CELLS.get(name)  # some names are in both
        cell = known[digest is None] or next(filter(None, known), None)  # cells without equations have no digest
    if not isinstance(cell, Cell):
        raise ValueError(f"{source} is a layer of the cell {name!r}, which is not numbarnn's own. Pass cell=")
    if cell.name != name:
        raise ValueError(f"{source} is a layer of the cell {name!r}, but cell= is {cell.name!r}")
    if getattr(cell, "digest", None) != digest:
        raise ValueError(
            f"{source} is a layer of a cell {name!r} with other equations. Pass the cell with which it was written, or "
            "load its arrays by layer.load_state_dict(...)"
        )
    return cell
