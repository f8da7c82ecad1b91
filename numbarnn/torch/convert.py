"""Replace torch.nn's recurrent modules in a model, and back, in place and with the same parameters."""

from __future__ import annotations

from typing import TypeVar

import torch

from numbarnn.torch import cells, modules

# torch.nn's class -> ours. Subclasses are not listed: they may compute something else.
_PAIRS = {
    torch.nn.LSTM: modules.LSTM,
    torch.nn.GRU: modules.GRU,
    torch.nn.RNN: modules.RNN,
    torch.nn.LSTMCell: cells.LSTMCell,
    torch.nn.GRUCell: cells.GRUCell,
    torch.nn.RNNCell: cells.RNNCell,
}
M = TypeVar("M", bound=torch.nn.Module)
_BACK = {ours: theirs for theirs, ours in _PAIRS.items()}


def convert(model: M) -> M:
    """Replace every torch.nn.LSTM, GRU, RNN, LSTMCell, GRUCell and RNNCell in a model by numbarnn's, in place.

    Modules and parameters stay the same objects, so optimizers and hooks keep working. Subclasses of torch.nn's modules
    are left alone.

    Args:
        model: a `torch.nn.Module`, which may be a recurrent module itself. It is changed and returned.

    Example:
        >>> convert(torch.nn.Sequential(torch.nn.GRU(8, 16)))[0].__class__.__module__
        'numbarnn.torch.modules'
    """
    for module in _modules(model):
        ours = _PAIRS.get(type(module))
        if ours is not None:
            vars(module).pop("_flat_weights", None)  # a property of our modules
            module.__class__ = ours
            ours._take_over(module)
    return model


def restore(model: M) -> M:
    """Replace numbarnn's modules in a model by torch.nn's, in place: the reverse of `convert`.

    Modules that torch.nn cannot express are left alone: `Recurrent`, and modules with a hidden size per layer, a single
    bias, `cell_clip`, `reset_after=False`, `split=True`, or an `input_mode` other than "linear".

    Args:
        model: a `torch.nn.Module`. It is changed and returned.
    """
    for module in _modules(model):
        theirs = _BACK.get(type(module))
        if theirs is not None and module._is_torchs():
            for name in module._OWN:
                vars(module).pop(name, None)
            module.__class__ = theirs
            if isinstance(module, torch.nn.RNNBase):
                module._init_flat_weights()
    return model


def _modules(model):
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    return list(model.modules())
