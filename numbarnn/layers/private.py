"""States besides h: callers see one array per state, engines one array with all of them side by side.

A state of fewer units than h (`numbarnn.sized`, and x of the step before) has its own width for callers; for engines it
is as wide as h, and zero beyond at first. What the further units compute reaches nothing: their gradients are zero.
"""


def join(module, parts, shapes, dtype):
    """The private states, each an array (L*D, B, H) or a list of one (D, B, H) per layer, or None, as one state with
    N H in place of H; None if all are None.

    Args:
        module: numpy or cupy.
        shapes: of one state, in its form.
    """
    if len(parts) == 1 or all(part is None for part in parts):
        return parts[0]
    if isinstance(shapes, list):
        layers = range(len(shapes))
        per_layer = [[None if part is None else part[n] for part in parts] for n in layers]
        return [join(module, per_layer[n], shapes[n], dtype) for n in layers]
    return module.concatenate([module.zeros(shapes, dtype) if part is None else part for part in parts], axis=2)


def split(state, count):
    """The `count` private states of what `join` returned: views."""
    if count == 1:
        return (state,)
    if isinstance(state, list):
        return tuple(map(list, zip(*(split(part, count) for part in state), strict=True)))
    H = state.shape[2] // count
    return tuple(state[:, :, k * H : (k + 1) * H] for k in range(count))


# --------------------------------------------------------------------------------------- of every step: (.., .., D*N*H)
def join_steps(module, parts, directions):
    """The private states of every step, each an array (T, B, D*H) or None, as one (T, B, D*N*H) as engines have them;
    None if all are None."""
    if len(parts) == 1 or all(part is None for part in parts):
        return parts[0]
    like = next(part for part in parts if part is not None)
    apart = (module.zeros_like(like) if part is None else part for part in parts)
    parts = [part.reshape(*like.shape[:2], directions, -1) for part in apart]
    return module.stack(parts, axis=3).reshape(*like.shape[:2], -1)


def split_steps(states, count, directions):
    """The `count` private states of every step, each (T, B, D*H), of what engines have."""
    if count == 1:
        return (states,)
    outer = states.shape[:2]
    apart = states.reshape(*outer, directions, count, -1)
    return tuple(apart[:, :, :, number].reshape(*outer, -1) for number in range(count))


# --------------------------------------------------------------------------------------- states of fewer units than h
def _wide(module, part, H):
    """A state (.., B, N), H wide."""
    wide = module.zeros((*part.shape[:-1], H), dtype=part.dtype)
    wide[..., : part.shape[-1]] = part
    return wide


def widened(module, parts, stack):
    """[private state] of callers -> of engines' width; None stays None.

    Args:
        module: numpy or cupy.
    """
    return [None if part is None else _each_layer(module, part, stack, stack.hidden_sizes, _wide) for part in parts]


def narrowed(module, parts, stack):
    """The reverse of `widened`."""
    sizes = zip(parts, stack.private_sizes, strict=True)
    return tuple(_each_layer(module, part, stack, own, lambda _, one, size: one[..., :size]) for part, own in sizes)


def _each_layer(module, state, stack, sizes, function):
    """A state, each layer's part (D, B, N) of which becomes `function(module, part, size)`: one array, (L*D, B, size),
    if the sizes are equal, else a list of one (D, B, size) per layer."""
    if len(set(sizes)) == 1 and not isinstance(state, list | tuple):
        return function(module, state, sizes[0])
    D = stack.directions
    layers = [
        state[number] if isinstance(state, list | tuple) else state[number * D : (number + 1) * D]
        for number in range(stack.num_layers)
    ]
    made = [function(module, part, size) for part, size in zip(layers, sizes, strict=True)]
    return module.concatenate(made, axis=0) if len(set(sizes)) == 1 else made


def widened_steps(module, parts, stack):
    """The gradients of private states of every step, each (T, B, D*N), of engines' width, D*H: zero beyond."""
    H, D = stack.hidden_sizes[-1], stack.directions
    made = []
    for part in parts:
        if part is not None:
            part = _wide(module, part.reshape(*part.shape[:2], D, -1), H).reshape(*part.shape[:2], -1)
        made.append(part)
    return made


def narrowed_steps(parts, stack):
    """The private states of every step, each (T, B, D*H), as callers get them."""
    D, outer = stack.directions, parts[0].shape[:2]
    sizes = zip(parts, stack.private_sizes, strict=True)
    return tuple(part.reshape(*outer, D, -1)[..., : own[-1]].reshape(*outer, -1) for part, own in sizes)
