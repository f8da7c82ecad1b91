"""States of a module: h, or a tuple (h, c, ...).

Inside a state is a tuple with one entry per state of the cell, h first: a tensor (L*D, B, H), or a list with one
(D, B, H) per layer if layers' sizes differ.
"""

from torch import Tensor

from numbarnn.programs.states import with_each


def taken(names, hx, batched):
    """Return the state from a call's argument, with a batch axis; raise torch.nn's errors if it is none.
    hx: h, or a tuple of all states; unless `batched` of one sequence. names: of the cell's states."""
    if len(names) > 1 and (not isinstance(hx, tuple | list) or len(hx) != len(names)):
        came = f"{len(hx)} items" if isinstance(hx, tuple | list) else f"a {type(hx).__name__}"
        raise TypeError(f"hx must be a tuple ({', '.join(names)}), not {came}")
    state = tuple(hx) if len(names) > 1 else (hx,)
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


def check_state(stack, state, batch, x):
    """Raise torch.nn's errors for a state that does not fit x of that batch."""
    for number, (one, sizes) in enumerate(zip(state, stack.state_sizes, strict=True)):
        name, D = f"hidden[{number}]" if len(state) > 1 else "hidden", stack.directions
        if len(set(sizes)) == 1 and (stack.equal_widths or stack.has_narrow):
            _check_part(one, (len(sizes) * D, batch, sizes[0]), name, x)
            continue
        shapes = [(D, batch, size) for size in sizes]
        if not isinstance(one, list | tuple) or len(one) != len(shapes):
            raise RuntimeError(f"Expected {name} to be a list of one tensor per layer, of shapes {shapes}, got {one!r}")
        for layer, (part, shape) in enumerate(zip(one, shapes, strict=True)):
            _check_part(part, shape, f"{name}[{layer}]", x)


def _check_part(state, shape, name, x):
    if not isinstance(state, Tensor):
        raise TypeError(f"{name} must be a tensor of shape {shape}, not {state!r}")
    if state.shape != shape:
        raise RuntimeError(f"Expected {name} size {shape}, got {list(state.shape)}")
    if state.dtype != x.dtype or state.device != x.device:
        raise RuntimeError(
            f"Input and hidden tensors are not of the same dtype and device: input is {x.dtype} on {x.device}, {name} "
            f"is {state.dtype} on {state.device}"
        )


def of_layer(state, layer, directions):
    """Return one layer's part of a state; None of None."""
    if state is None:
        return None
    rows = slice(layer * directions, (layer + 1) * directions)
    return tuple(one[rows] if isinstance(one, Tensor) else one[layer] for one in state)
