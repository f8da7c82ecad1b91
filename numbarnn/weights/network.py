"""The common form of all conversions: a stack's sizes and options, and its parameters by PyTorch's names.

A format's module (`torch`, `keras`, `onnx`, `safetensors`) turns its own form into a `NetworkData` and back; it needs
no layer and no engine. `numbarnn.convert` makes layers from networks.
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from numbarnn import cells
from numbarnn.cells.layout import BIAS_MODES, STACKED
from numbarnn.common import install
from numbarnn.common.precision import DTYPES, numpy_dtype
from numbarnn.weights import space
from numbarnn.weights.space import WeightSpace, parameter_name

NAME = re.compile(r"(weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)_l(0|[1-9]\d*)(_reverse)?")

# in every refusal to take one form of the GRU for the other
GRU_FORMS = (
    "'gru' applies the reset gate after the recurrent product (cuDNN, PyTorch, Keras with reset_after=True, ONNX with "
    "linear_before_reset=1), 'gru_reset_before' before it (Keras with reset_after=False, ONNX with "
    "linear_before_reset=0); with the same weights they compute different things, so neither is converted to the other"
)


@dataclass(frozen=True, eq=False)
class NetworkData:
    """A stack of recurrent layers as data.

    Attributes:
        cell: the cell's name; or an `onnx_cells.Kind`, from which a cell is made.
        parameters: PyTorch's name -> NumPy array, in the order of a state dict.
        bias, input_mode: of `BIAS_MODES`, `INPUT_MODES`. proj_size: P, or 0. cell_clip: (lclip, rclip), or None.
    """

    cell: Any
    input_size: int
    hidden_sizes: tuple[int, ...]
    parameters: dict
    bidirectional: bool = False
    bias: str = "double"
    input_mode: str = "linear"
    proj_size: int = 0
    cell_clip: tuple[float, float] | None = None

    directions = property(lambda self: 2 if self.bidirectional else 1)
    like = property(lambda self: getattr(self.cell, "like", self.cell), doc="The built-in cell that has its gates.")
    name = property(lambda self: getattr(self.cell, "name", self.cell), doc="What the cell is called.")

    @property
    def dtype(self):
        """The name of the parameters' dtype, one of DTYPES; TypeError if they do not share one."""
        dtypes, cure = {name: array.dtype.name for name, array in self.parameters.items()}, ", ".join(DTYPES)
        name, *others = set(dtypes.values())
        if others:
            raise TypeError(f"the parameters must be of one dtype, but are {dtypes}: pass dtype=, one of {cure}")
        if name not in DTYPES:
            raise TypeError(f"the parameters are of dtype {name}: pass dtype=, one of {cure}")
        return name

    @cached_property
    def space(self):
        """The names and shapes of its parameters."""
        sizes = cells.get(self.like).num_gates, self.input_size, self.hidden_sizes, self.directions
        per_unit = getattr(self.cell, "per_unit", ())
        return WeightSpace(*sizes, self.bias, self.proj_size, self.input_mode, per_unit=per_unit)

    def parts(self, layer, direction=0):
        """Return kind ("W", "R", "W_hr", "b_w", "b_r"), or the name of a peephole -> array, for those that exist."""
        flat = STACKED | {name: name for name in getattr(self.cell, "per_unit", ())}
        names = {kind: space.named(name, layer, direction) for kind, name in flat.items()}
        return {kind: self.parameters[name] for kind, name in names.items() if name in self.parameters}

    def pseudo_layers(self):
        """Return (layer, direction) in cuDNN's order."""
        return [(layer, d) for layer in range(len(self.hidden_sizes)) for d in range(self.directions)]


# ---------------------------------------------------------------- arrays, and what they belong to
def host(value, name):
    """Return `value` as a NumPy array: a tensor of a framework is detached and copied to the host."""
    if isinstance(value, np.ndarray):
        return value
    if getattr(value, "is_meta", False):
        raise ValueError(f"{name} is a tensor on device 'meta', which has no numbers: load the weights first")
    if hasattr(value, "detach"):  # PyTorch's; NumPy cannot take its bfloat16, which float32 holds exactly
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
    """Return the module of that name, which only some conversions need; ImportError says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        extra = name.split(".")[0]
        raise ImportError(f"{purpose} needs the package {extra}: {install.command(extra)}") from error


def of_parts(parts, cell, what="state_dict"):
    """Return the `NetworkData` of {(layer, direction): {kind: array}}, see `infer`."""
    flat = {(STACKED.get(kind, kind), *place): array for place, own in parts.items() for kind, array in own.items()}
    return infer({space.named(*name): array for name, array in flat.items()}, cell, what)


def type_name(value):
    """Return a value's type for an error message, with its module: several frameworks have a class GRU."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def cell_name(cell):
    """Return the name of a cell given by its name, in any case, as PyTorch's `mode` has capitals."""
    return cells.get(cell.lower() if isinstance(cell, str) else cell).name


def agreed(cell, name, where):
    """Return `name`, the cell's name in a source; ValueError if `cell` asked for another."""
    if cell is None or cell_name(cell) == name:
        return name
    asked = cell_name(cell)
    forms = f"; {GRU_FORMS}" if {asked, name} == {"gru", "gru_reset_before"} else ""
    raise ValueError(f"{where} is of cell {name!r}, not {asked!r} as asked for: leave that argument out{forms}")


def infer(parameters, cell=None, what="state_dict"):
    """Return the `NetworkData` of a state dict: sizes, directions, bias mode, projection, skip input.

    Args:
        parameters: PyTorch's name -> array (NumPy's or a framework's). what: the state dict's name in errors.
        cell: as of a `NetworkData`; None if the number of gates decides (4: "lstm", 3: "gru"). A state dict does not
            tell an RNN's activation, nor whether a GRU is "gru_reset_before".

    ValueError if names are missing or unknown, or shapes do not fit (all are named); TypeError for what is no array.
    """
    arrays = {name: host(value, f"{what}[{name!r}]") for name, value in parameters.items()}
    matches = [match for name in arrays if (match := NAME.fullmatch(name))]
    layers = 1 + max((int(match[2]) for match in matches), default=0)
    expected = [parameter_name("R", layer, 0) for layer in range(layers)]
    if missing := [name for name in expected if name not in arrays or arrays[name].ndim != 2]:
        unknown = [name for name in arrays if not NAME.fullmatch(name)]
        raise ValueError(f"{what} does not fit a recurrent layer: matrices missing: {missing}, unknown: {unknown}")
    first, projection = ((array := arrays.get(name)) is not None and array.ndim == 2 and array.shape
                         for name in ("weight_ih_l0", "weight_hr_l0"))  # fmt: skip
    if cell is None:
        rows, columns = shape = arrays["weight_hh_l0"].shape
        cell = {4: "lstm", 3: "gru"}.get(rows / max(projection[1] if projection else columns, 1))
        if cell is None:
            raise ValueError(
                f"weight_hh_l0 of {what} must have 4 rows per unit (LSTM) or 3 (GRU), but has shape {shape}: pass "
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


# ---------------------------------------------------------------- what other formats have and lack
def completed(network, both_biases=True):
    """Return the same network with arrays that other formats always have; no bit of y changes.
    Layer 0 gets a W: the identity for every gate if it skips W, for the direction's own columns if W x is given. With
    `both_biases` a second, zero bias joins a single one."""
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


def refuse(network, target, **without):
    """Raise ValueError if the network has an option that the target format lacks: option -> the format's name."""
    for option, value in without.items():
        if getattr(network, option):
            raise ValueError(
                f"{target} has no {value}, but this layer has {option}={getattr(network, option)}; files of "
                "save_safetensors have all options"
            )
