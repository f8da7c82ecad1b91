"""States besides h: callers see one array per state, engines one array with all of them side by side."""


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
