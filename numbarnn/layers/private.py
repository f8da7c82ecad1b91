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
