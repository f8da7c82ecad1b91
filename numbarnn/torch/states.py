"""States of a module: h, or a tuple (h, c, ...).

Inside a state is a tuple with one entry per state of the cell, h first: a tensor (L*D, B, H), or where layers' sizes
differ a list with one (D, B, H) per layer.
"""

import torch
from torch import Tensor

from numbarnn.layers import private
from numbarnn.programs.states import with_each
from numbarnn.torch import checks


def taken(names, hx, batched):
    """The state of a call's argument, with an axis for the batch.

    Args:
        names: of the cell's states.
        hx: h, or a tuple of all states; of one sequence, unless `batched`, without the axis of the batch.

    Raises:
        TypeError, RuntimeError: it is no such tuple; a state has too many dimensions, or too few.
    """
    if len(names) > 1:
        if not isinstance(hx, tuple | list) or len(hx) != len(names):
            came = f"{len(hx)} items" if isinstance(hx, tuple | list) else f"a {type(hx).__name__}"
            raise TypeError(f"hx must be a tuple ({', '.join(names)}), not {came}")
        state = tuple(hx)
    else:
        state = (hx,)
    if batched and [one.dim() for one in state if isinstance(one, Tensor)] == [3] * len(state):
        return state
    dims = [one.dim() for value in state for one in (value if isinstance(value, list | tuple) else (value,))]
    wanted = 3 if batched else 2
    if any(dim != wanted for dim in dims):
        known_as = "hx" if len(names) == 1 else "hx and cx" if len(names) == 2 else "all states"
        came = f"{dims[0]}-D tensor" if len(dims) == 1 else f"({', '.join(f'{dim}-D' for dim in dims)}) tensors"
        kind = "batched 3-D" if batched else "unbatched 2-D"
        raise RuntimeError(f"For {kind} input, {known_as} should also be {wanted}-D but got {came}")
    return state if batched else with_each(state, lambda one: one.unsqueeze(1))


def shapes(stack, batch):
    """[state] -> its shape as engines have it, or a list of one per layer where these differ."""
    D = stack.directions
    if stack.equal_widths:
        return [(stack.num_layers * D, batch, widths[0]) for widths in stack.state_widths]
    return [[(D, batch, width) for width in widths] for widths in stack.state_widths]


def check(stack, state, batch, x):
    """Raise what torch.nn raises of a state that does not fit x of that batch; see `numbarnn.torch.checks`."""
    if stack.equal_widths:
        rows, widths = stack.num_layers * stack.directions, (stack.output_widths[0], stack.widths[0])
        for number, one in enumerate(state):
            fits = isinstance(one, Tensor) and one.shape == (rows, batch, widths[number > 0])
            if not fits or one.dtype is not x.dtype or one.device != x.device:
                break
        else:
            return
    for number, (one, shape) in enumerate(zip(state, shapes(stack, batch), strict=True)):
        name = f"hidden[{number}]" if len(state) > 1 else "hidden"
        if not isinstance(shape, list):
            checks.refuse_state(one, shape, name, x)
            continue
        if not isinstance(one, list | tuple) or len(one) != len(shape):
            raise RuntimeError(f"Expected {name} to be a list of one tensor per layer, of shapes {shape}, got {one!r}")
        for layer, (part, size) in enumerate(zip(one, shape, strict=True)):
            checks.refuse_state(part, size, f"{name}[{layer}]", x)


def for_engines(stack, state, batch, x):
    """A state of callers, checked, as wide as engines have it, as `check` takes it; see `numbarnn.layers.private`."""
    D = stack.directions
    for number, (one, sizes) in enumerate(zip(state, stack.state_sizes, strict=True)):
        if len(set(sizes)) == 1:
            checks.refuse_state(one, (len(sizes) * D, batch, sizes[0]), f"hidden[{number}]", x)
            continue
        if not isinstance(one, list | tuple) or len(one) != len(sizes):
            raise RuntimeError(f"Expected hidden[{number}] to be a list of one tensor per layer, got {one!r}")
        for layer, (part, size) in enumerate(zip(one, sizes, strict=True)):
            checks.refuse_state(part, (D, batch, size), f"hidden[{number}][{layer}]", x)

    def widen(_, part, width):
        return torch.cat([part, part[..., -1:].expand(-1, -1, width - part.shape[2])], dim=2)

    parts = zip(state, stack.state_widths, strict=True)
    return tuple(private._each_layer(torch, one, stack, widths, widen) for one, widths in parts)


def of_layer(state, layer, directions):
    """One layer's part of a state; None of None."""
    if state is None:
        return None
    rows = slice(layer * directions, (layer + 1) * directions)
    return tuple(one[rows] if isinstance(one, Tensor) else one[layer] for one in state)


def of_layers(found, equal):
    """The state of all layers, from one per layer, which may be of equal sizes."""
    return tuple(torch.cat(one) if equal else list(one) for one in zip(*found, strict=True))
