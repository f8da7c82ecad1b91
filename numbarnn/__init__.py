"""numbarnn: recurrent networks from scratch, every step a readable kernel.

One legend of dimensions holds for the whole package:

    T  time steps          B  batch              I  input size         H  hidden size
    P  projection size     G  gates of a cell    L  layers             D  directions (1 or 2)

Arrays are row-major (last axis fastest) and time-major: x (T, B, I), y (T, B, D*H), states (L*D, B, H). With
projection y and h have P features instead of H. Gate order is cuDNN's and PyTorch's: LSTM i f g o, GRU r z n.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

if __spec__.loader.get_source(__name__) is None:
    raise ImportError(
        "numbarnn compiles its functions from their sources, and only .pyc files are here: collect its .py files too "
        "(PyInstaller: module_collection_mode={'numbarnn': 'py'})"
    )

# Module -> public names that it defines. They are loaded on first use, so that `import numbarnn` is fast and needs
# neither CuPy nor a compiler.
_MODULES = {
    "numbarnn.layers": "LSTM GRU RNN Gradients gradcheck PackedSequence pack_padded_sequence pad_packed_sequence",
    "numbarnn.functional": "functional",
    "numbarnn.convert": "convert",
    "numbarnn.optim": "optim",
    "numbarnn.engines": "engines set_num_threads get_num_threads",
    "numbarnn.cells": "cells",
    "numbarnn.cells.tracing": "cell show side step CellError",
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names.split()}
# The functions for the equations of a cell.
_FUNCTIONS = (
    "abs", "chrono", "clip", "columns", "constant", "cos", "cumax", "cumsum", "custom_derivative", "drop_connect",
    "dropout", "elu", "erf", "exp", "eye", "floor", "gelu", "hard_sigmoid", "hard_sigmoid_keras2", "hard_tanh",
    "heads", "initial", "layer_norm", "leaky_relu", "log", "log_sigmoid", "logsumexp", "maximum", "mean", "minimum",
    "mish", "normal", "normal_cdf", "relu", "selu", "sigmoid", "sign", "silu", "sin", "sized", "softmax", "softplus",
    "softsign", "sqrt", "stop_gradient", "sum", "tanh", "uniform", "where", "zoneout",
)  # fmt: skip
_PUBLIC |= dict.fromkeys(_FUNCTIONS, "numbarnn.cells.functions")

# `from numbarnn import *` leaves Python's own functions alone.
__all__ = [*(name for name in _PUBLIC if name not in ("abs", "sum")), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        from difflib import get_close_matches

        write = import_module("numbarnn.cells.tracing.hints").WRITE
        if name in write:
            raise AttributeError(f"module 'numbarnn' has no attribute {name!r}; in equations write {write[name]}")
        alike = get_close_matches(name, _PUBLIC, 3, 0.7)
        hint = f"; did you mean {' or '.join(f'numbarnn.{one}' for one in alike)}?" if alike else ""
        raise AttributeError(f"module 'numbarnn' has no attribute {name!r}{hint or '; it has ' + ', '.join(_PUBLIC)}")
    module = import_module(_PUBLIC[name])
    value = module if module.__name__ == f"numbarnn.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_PUBLIC, "__version__"])
