"""Refuse what torch.nn's modules refuse, with the same exception types and, where it has one, the same message."""

import numbers
import warnings

import torch

from numbarnn.layers import checks
from numbarnn.programs.states import with_each
from numbarnn.weights import BIAS_MODES


def sizes(input_size, hidden_size, num_layers=1, proj_size=0):
    """Raise torch.nn's errors for impossible sizes; `hidden_size` may also be one int per layer."""
    hidden = hidden_size if isinstance(hidden_size, list | tuple) else [hidden_size]
    size_types(input_size, *hidden)
    for name, size in (("input_size", input_size), *(("hidden_size", one) for one in hidden)):
        if size <= 0:
            raise ValueError(f"{name} must be greater than zero")
    if num_layers <= 0:
        raise ValueError("num_layers must be greater than zero")
    if proj_size < 0:
        raise ValueError("proj_size should be a positive integer or zero to disable projections")


def size_types(*sizes):
    """Raise TypeError, as torch.nn does, unless sizes, input_size first, are ints."""
    for name, one in zip(["input_size"] + ["hidden_size"] * len(sizes), sizes, strict=False):
        if not isinstance(one, int) or isinstance(one, bool):
            raise TypeError(f"{name} should be of type int, got: {type(one).__name__}")


def nested(x, batch_first):
    """Raise torch.nn's errors for nested tensors: ValueError for a jagged one with batch_first, else RuntimeError."""
    raise (ValueError if batch_first and x.layout is torch.jagged else RuntimeError)(
        "input is a nested tensor, which recurrent modules do not take: pass input.to_padded_tensor(0.0) and lengths=, "
        "or a packed sequence"
    )


def options(bias, batch_first, dropout, num_layers):
    """Raise torch.nn's errors for impossible options; `bias` may also be a bias mode's name."""
    if isinstance(dropout, bool) or not isinstance(dropout, numbers.Number) or not 0 <= dropout <= 1:
        raise ValueError(
            f"dropout should be a number in range [0, 1] representing the probability of an element being zeroed, "
            f"got: {dropout!r}"
        )
    if dropout > 0 and num_layers == 1:
        warnings.warn(
            "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects num_layers "
            f"greater than 1, but got dropout={dropout} and num_layers={num_layers}",
            stacklevel=4,
        )
    if not isinstance(bias, bool) and not (isinstance(bias, str) and bias in BIAS_MODES):
        came, modes = f" {bias!r}" * isinstance(bias, str), ", ".join(map(repr, BIAS_MODES))
        raise TypeError(f"bias should be of type bool, got: {type(bias).__name__}{came}; or one of {modes}")
    if not isinstance(batch_first, bool):
        raise TypeError(f"batch_first should be of type bool, got: {type(batch_first).__name__}")


def bias_of_cell(bias):
    """Return `bias` of a cell; a nonlinearity in its place counts as True, with a warning, as in torch.nn."""
    if bias not in ("tanh", "relu"):
        return bias
    warnings.warn(
        f"bias={bias!r} counts as True, as in torch.nn: to set the nonlinearity write nonlinearity={bias!r}",
        stacklevel=5,
    )
    return True


def layers_of(hidden_size, num_layers):
    """Return L: the number of sizes if there is one per layer, which num_layers may repeat."""
    if not isinstance(hidden_size, list | tuple):
        return num_layers
    return len(checks.hidden_sizes(hidden_size, None if num_layers == 1 else num_layers))


def fitted_input(input_size, x, state, weights):
    """Return x (T, B, I) and the state in the dtype of the weights; raise torch.nn's error if x does not fit these."""
    if x.shape[2] != input_size:
        raise RuntimeError(f"input.size(-1) must be equal to input_size. Expected {input_size}, got {x.shape[2]}")
    if x.device != weights.device:
        raise RuntimeError(
            f"Input and parameter tensors are not at the same device, found input tensor at {x.device} and parameter "
            f"tensor at {weights.device}: move the input or the model by .to(...)"
        )
    if x.shape[0] == 0:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    if x.dtype == weights.dtype:
        return x, state
    if not torch.is_autocast_enabled(x.device.type):
        raise ValueError(
            f"RNN input dtype ({x.dtype}) does not match weight dtype ({weights.dtype}). "
            f"Convert input: input.to({weights.dtype}), or convert model: model.to({x.dtype})"
        )
    return with_each((x, state), lambda one: one.to(weights.dtype))


def cell_state(kind, state, names):
    """Raise torch.nn's cells' errors if the state of a single step is not h, or (h, c)."""
    if len(state) != len(names):
        raise TypeError(f"{kind}: hx must be a tuple ({', '.join(names)}), not {len(state)} items")
    for number, one in enumerate(state):
        if one.dim() not in (1, 2):
            name = f"hx[{number}]" if len(names) > 1 else "hidden"
            raise ValueError(f"{kind}: Expected {name} to be 1D or 2D, got {one.dim()}D instead")


def cell_sizes(x, state, input_size, hidden_size):
    """Raise torch.nn's cells' errors if sizes of x (1, B, I), or of states, each (1, B, H), do not fit."""
    batch = x.shape[1]
    if x.shape[2] != input_size:
        raise RuntimeError(f"input has inconsistent input_size: got {x.shape[2]} expected {input_size}")
    for number, one in enumerate(state):
        name = f"hidden{number}"
        if one.dim() != 3 or one.shape[1] != batch:
            came = one.shape[1] if one.dim() == 3 else f"of shape {list(one.shape[1:])}"
            raise RuntimeError(f"Input batch size {batch} doesn't match {name} batch size {came}")
        if one.shape[2] != hidden_size:
            raise RuntimeError(f"{name} has inconsistent hidden_size: got {one.shape[2]}, expected {hidden_size}")
