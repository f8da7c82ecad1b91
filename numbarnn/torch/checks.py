"""Refuse what torch.nn's modules refuse, with the same exception types, and with torch.nn's messages where it has any.

Within numbarnn.torch a state is a tuple with one entry per state of the cell, h first: a tensor (L*D, B, H), or a list
of one (D, B, H) per layer if layers' sizes differ.
"""

import numbers
import warnings

import torch
from torch import Tensor

from numbarnn.layers import checks
from numbarnn.programs.states import with_each
from numbarnn.weights import BIAS_MODES


# ---------------------------------------------------------------------------------------------------------- arguments
def sizes(input_size, hidden_size, num_layers=1, proj_size=0):
    """Raise torch.nn's errors for impossible sizes; `hidden_size` may also be one int per layer."""
    hidden = hidden_size if isinstance(hidden_size, list | tuple) else [hidden_size]
    size_types(input_size, *hidden)
    for name, size in (
        ("input_size", input_size),
        *(("hidden_size", one) for one in hidden),
        ("num_layers", num_layers),
    ):
        if size <= 0:
            raise ValueError(f"{name} must be greater than zero")
    if proj_size < 0:
        raise ValueError("proj_size should be a positive integer or zero to disable projections")


def size_types(*sizes):
    """Raise TypeError, as torch.nn does, unless sizes, input_size first, are ints."""
    for name, one in zip(["input_size"] + ["hidden_size"] * len(sizes), sizes, strict=False):
        if not isinstance(one, int) or isinstance(one, bool):
            raise TypeError(f"{name} should be of type int, got: {type(one).__name__}")


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


def nonlinearity(value):
    """Raise torch.nn's error unless a nonlinearity is "tanh" or "relu"."""
    if value not in ("tanh", "relu"):
        raise ValueError(f"Unknown nonlinearity '{value}'. Select from 'tanh' or 'relu'.")


def layers_of(hidden_size, num_layers):
    """Return L: the number of sizes if there is one per layer, which num_layers may repeat."""
    if not isinstance(hidden_size, list | tuple):
        return num_layers
    return len(checks.hidden_sizes(hidden_size, None if num_layers == 1 else num_layers))


# ------------------------------------------------------------------------------------------------------------- inputs
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


def nested(x, batch_first):
    """Raise torch.nn's errors for nested tensors: ValueError for a jagged one with batch_first, else RuntimeError."""
    raise (ValueError if batch_first and x.layout is torch.jagged else RuntimeError)(
        "input is a nested tensor, which recurrent modules do not take: pass input.to_padded_tensor(0.0) and lengths=, "
        "or a packed sequence"
    )


# ------------------------------------------------------------------------------------------------------------- states
def _as_tuple(names, hx, prefix=""):
    """Return (hx,) of a cell with one state, else the tuple hx. Raise TypeError if it does not fit the names."""
    if len(names) == 1:
        return (hx,)
    if not isinstance(hx, tuple | list) or len(hx) != len(names):
        came = f"{len(hx)} items" if isinstance(hx, tuple | list) else f"a {type(hx).__name__}"
        raise TypeError(f"{prefix}hx must be a tuple ({', '.join(names)}), not {came}")
    return tuple(hx)


def state_of(names, hx, batched):
    """Return a call's initial state as a tuple, with a batch axis; raise torch.nn's errors if it is none.

    names: of the cell's states. hx: h, or a tuple of all states; of one sequence unless `batched`."""
    state = _as_tuple(names, hx)
    dims = [one.dim() for value in state for one in (value if isinstance(value, list | tuple) else (value,))]
    wanted = 3 if batched else 2
    if any(dim != wanted for dim in dims):
        known_as = "hx" if len(names) == 1 else "hx and cx" if len(names) == 2 else "all states"
        came = f"{dims[0]}-D tensor" if len(dims) == 1 else f"({', '.join(f'{dim}-D' for dim in dims)}) tensors"
        kind = "batched 3-D" if batched else "unbatched 2-D"
        raise RuntimeError(f"For {kind} input, {known_as} should also be {wanted}-D but got {came}")
    return state if batched else with_each(state, lambda one: one.unsqueeze(1))


def sizes_of_state(stack, state, x):
    """Raise torch.nn's errors for a state that does not fit x (T, B, I)."""
    D, batch = stack.directions, x.shape[1]
    for number, (one, sizes) in enumerate(zip(state, stack.state_sizes, strict=True)):
        name = f"hidden[{number}]" if len(state) > 1 else "hidden"
        if len(set(sizes)) == 1 and (stack.equal_widths or stack.has_narrow):
            _part_of_state(one, (len(sizes) * D, batch, sizes[0]), name, x)
            continue
        shapes = [(D, batch, size) for size in sizes]
        if not isinstance(one, list | tuple) or len(one) != len(shapes):
            raise RuntimeError(f"Expected {name} to be a list of one tensor per layer, of shapes {shapes}, got {one!r}")
        for layer, (part, shape) in enumerate(zip(one, shapes, strict=True)):
            _part_of_state(part, shape, f"{name}[{layer}]", x)


def _part_of_state(state, shape, name, x):
    if not isinstance(state, Tensor):
        raise TypeError(f"{name} must be a tensor of shape {shape}, not {state!r}")
    if state.shape != shape:
        raise RuntimeError(f"Expected {name} size {shape}, got {list(state.shape)}")
    if state.dtype != x.dtype or state.device != x.device:
        raise RuntimeError(
            f"Input and hidden tensors are not of the same dtype and device: input is {x.dtype} on {x.device}, {name} "
            f"is {state.dtype} on {state.device}"
        )


def single_step(kind, names, input, hx):
    """Return x (1, B, I) and the state, a tuple of (1, B, H) or None, of a single step; raise torch.nn's errors.

    kind: the module's class. names: of the cell's states. input: (B, I) or (I,). hx: h, or a tuple of all states."""
    if input.dim() not in (1, 2):
        raise ValueError(f"{kind}: Expected input to be 1D or 2D, got {input.dim()}D instead")
    batched = input.dim() == 2
    x = input.unsqueeze(0) if batched else input[None, None]
    if hx is None:
        return x, None
    state = _as_tuple(names, hx, f"{kind}: ")
    for number, one in enumerate(state):
        name = f"hx[{number}]" if len(names) > 1 else "hidden"
        if not isinstance(one, Tensor):
            raise TypeError(f"{kind}: {name} must be a tensor, got {type(one).__name__}")
        if one.dim() not in (1, 2):
            raise ValueError(f"{kind}: Expected {name} to be 1D or 2D, got {one.dim()}D instead")
        if one.shape[:-1] != input.shape[:-1]:
            came = f"of shape {list(one.shape)}" if one.dim() != input.dim() else one.shape[0]
            raise RuntimeError(f"Input batch size {x.shape[1]} doesn't match hidden{number} batch size {came}")
    return x, tuple(one.unsqueeze(0) if batched else one[None, None] for one in state)
