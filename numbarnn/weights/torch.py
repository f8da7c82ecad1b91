"""Read and write state dicts of PyTorch's nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell and nn.RNNCell.

PyTorch is not imported: a module is anything with `state_dict`, a tensor anything with `detach`.
"""

import os
from collections.abc import Mapping, Sequence
from functools import reduce

from numbarnn.weights.network import agreed, completed, infer, of_parts, refuse, type_name

CELL_ENTRIES = {"weight_ih": "W", "weight_hh": "R", "bias_ih": "b_w", "bias_hh": "b_r"}  # of nn.LSTMCell and others
CELL_MODULES = {"LSTMCell": "lstm", "GRUCell": "gru", "RNNCell": "rnn"}


def read(source, cell=None, prefix=""):
    """Return (`NetworkData`, the module's batch_first and dropout), see `numbarnn.convert.from_torch`."""
    if not isinstance(prefix, str):
        return read_cells(source, cell, prefix), {}
    if isinstance(source, Mapping):
        if wrong := [name for name in source if not isinstance(name, str)]:
            raise TypeError(f"state_dict must map names to arrays, but has the keys {wrong}")
        return infer(_with_prefix(source, prefix), cell), {}
    if not hasattr(source, "state_dict"):
        file = ". Load the file first (torch.load, load_safetensors)" if isinstance(source, str | os.PathLike) else ""
        raise TypeError(f"source must be a state dict or a torch.nn.LSTM, GRU or RNN, but is {type_name(source)}{file}")
    module = _submodule(source, prefix)
    mode = getattr(module, "mode", None)  # "LSTM", "GRU", "RNN_TANH" or "RNN_RELU"
    if not isinstance(mode, str):
        raise TypeError(
            f"module must be a torch.nn.LSTM, GRU or RNN, but is {type_name(module)}. For a part of a larger model "
            "pass the submodule, or its name as prefix=. Pass single cells to from_torch_cells"
        )
    options = {"batch_first": bool(module.batch_first), "dropout": float(module.dropout)}
    return infer(module.state_dict(), agreed(cell, mode.lower(), "the module")), options


def _with_prefix(state_dict, prefix):
    """Return the entries that start with a prefix, without it; a single cell's entries get the suffix _l0."""
    chosen = _without(state_dict, prefix)
    if "weight_hh" in chosen:
        chosen = {name + "_l0" * (name in CELL_ENTRIES): value for name, value in chosen.items()}
    if "weight_hh_l0" not in chosen:
        firsts = ("weight_hh_l0", "weight_hh")
        others = sorted({name.removesuffix(first) for first in firsts for name in state_dict if name.endswith(first)})
        raise ValueError(
            f"no entry of state_dict is called {prefix + firsts[0]!r}, as prefix is {prefix!r}. "
            + (f"Prefixes with such an entry: {others}" if others else f"Its entries are {list(state_dict)}")
        )
    return chosen


def _submodule(module, prefix):
    return reduce(getattr, filter(None, prefix.split(".")), module)  # scripted modules have no get_submodule


def _without(state_dict, prefix):
    return {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}


def write(network):
    """Return a state dict for torch.nn's module of the same sizes, see `numbarnn.convert.to_torch`."""
    _refuse_reset_before(network, "torch.nn.GRU")
    refuse(network, "torch.nn", "proj_size")
    if len(set(network.hidden_sizes)) > 1:
        raise ValueError(
            f"torch.nn has one hidden_size for all layers, got {network.hidden_sizes}. Use to_torch_cells, or "
            "layer.state_dict()"
        )
    return dict(completed(network).parameters)


def _refuse_reset_before(network, target):
    if network.cell == "gru_reset_before":
        raise ValueError(
            f"{target} applies the reset gate after the recurrent product, but this layer has reset_after=False. Use "
            "to_keras, to_onnx, save_safetensors or layer.state_dict()"
        )


# ---------------------------------------------------------------- single cells
def read_cells(source, cell=None, prefix=""):
    """Return the `NetworkData` of a stack of cells, see `numbarnn.convert.from_torch_cells`."""
    if isinstance(source, Mapping) or hasattr(source, "state_dict"):
        prefixes = [prefix] if isinstance(prefix, str) else prefix
        stack = [[(source, one) for one in ([entry] if isinstance(entry, str) else entry)] for entry in prefixes]
    elif not isinstance(source, Sequence) or isinstance(source, str) or not source or not isinstance(prefix, str):
        raise TypeError(
            "source must be a list with one state dict or module (or a pair, for two directions) per layer, or a whole "
            "model with a list of prefixes, got "
            + ("an empty list" if isinstance(source, list | tuple) and not source else f"a {type(source).__name__}")
        )
    else:
        stack = [[(one, prefix) for one in (e if isinstance(e, tuple | list) else [e])] for e in source]
    if len({len(pair) for pair in stack}) != 1 or len(stack[0]) not in (1, 2):
        raise ValueError(f"every layer must have the same 1 or 2 directions, but they have {[len(p) for p in stack]}")
    kinds, parts = set(), {}
    for layer, pair in enumerate(stack):
        for direction, (one, start) in enumerate(pair):
            where = f"cells[{layer}]" + (f"[{direction}]" if len(pair) == 2 else "")
            state_dict, kind = _cell_state(one, start, where)
            kinds.add(kind)
            parts[layer, direction] = {CELL_ENTRIES[name]: value for name, value in state_dict.items()}
    if len(kinds) > 1:
        raise ValueError(f"cells must be of one kind, but are {sorted(map(str, kinds))}")
    cell_kind = kinds.pop()
    cell = agreed(cell, cell_kind, "the list of cells") if cell_kind else cell
    return of_parts(parts, cell, "the state dict made of the cells")


def _cell_state(source, prefix, where):
    """Return a cell's state dict and name; the name is None if `source` is a state dict."""
    kind = None
    if hasattr(source, "state_dict"):
        source = _submodule(source, prefix)
        names = [getattr(source, "original_name", ""), *(base.__name__ for base in type(source).__mro__)]
        kind = next((CELL_MODULES[name] for name in names if name in CELL_MODULES), None)
        if kind is None:
            raise TypeError(f"{where} must be a torch.nn.{', '.join(CELL_MODULES)}, not {type_name(source)}")
        kind += f"_{source.nonlinearity}" if kind == "rnn" else ""
        source, prefix = source.state_dict(), ""
    if not isinstance(source, Mapping):
        raise TypeError(f"{where} must be a state dict or a module, not {type_name(source)}")
    source = _without(source, prefix)
    missing = [prefix + name for name in ("weight_ih", "weight_hh") if name not in source]
    unknown = [prefix + name for name in source if name not in CELL_ENTRIES]
    if missing or unknown:
        raise ValueError(f"{where} is no state dict of a cell: missing {missing}, unknown {unknown}")
    return source, kind


def write_cells(network):
    """Return state dicts of torch.nn's cells, see `numbarnn.convert.to_torch_cells`."""
    _refuse_reset_before(network, "torch.nn.GRUCell")
    refuse(network, "A cell of torch.nn")
    network = completed(network)
    states = []
    for where in network.pseudo_layers():
        parts = network.parts(*where)
        states.append({name: parts[kind] for name, kind in CELL_ENTRIES.items() if kind in parts})
    return list(zip(states[::2], states[1::2], strict=True)) if network.bidirectional else states
