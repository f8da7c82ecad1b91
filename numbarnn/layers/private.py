"""Convert states besides h: callers see one array per state, engines one array with all of them side by side.

The size of a state may differ from that of h: the cell sets it by `numbarnn.sized`, or the state is the previous step's
x. Callers see it with its own width. On engines, h and all states are as wide as the widest of them. The additional
units have no effect: matrices have zero columns for them, and their gradients are zero. In all functions, `module` is
numpy, cupy or torch.
"""


def join(module, parts, shapes, dtype):
    """Concatenate cell states, each an array (L*D, B, H), a list with one (D, B, H) per layer, or None, for which zeros
    of these shapes stand. Return None if all are None."""
    if len(parts) == 1 or all(part is None for part in parts):
        return parts[0]
    if isinstance(shapes, list):
        layers = [[part and part[number] for part in parts] for number in range(len(shapes))]
        return [join(module, *one, dtype) for one in zip(layers, shapes, strict=True)]
    return module.concatenate([module.zeros(shapes, dtype) if part is None else part for part in parts], axis=2)


def split(state, count):
    """Return views of the `count` cell states that `join` concatenated."""
    if count == 1:
        return (state,)
    if isinstance(state, list):
        return tuple(map(list, zip(*(split(part, count) for part in state), strict=True)))
    H = state.shape[2] // count
    return tuple(state[:, :, k * H : (k + 1) * H] for k in range(count))


# --------------------------------------------------------------------------------------- of every step: (.., .., D*N*H)
def join_steps(module, parts, directions):
    """Concatenate the cell states of every step, each (T, B, D*H) or None, to (T, B, D*N*H); None if all are None."""
    if len(parts) == 1 or all(part is None for part in parts):
        return parts[0]
    like = next(part for part in parts if part is not None)
    apart = (module.zeros_like(like) if part is None else part for part in parts)
    parts = [part.reshape(*like.shape[:2], directions, -1) for part in apart]
    return module.stack(parts, axis=3).reshape(*like.shape[:2], -1)


def split_steps(states, count, directions):
    """Return the `count` cell states of every step, each (T, B, D*H), from (T, B, D*N*H)."""
    if count == 1:
        return (states,)
    outer = states.shape[:2]
    apart = states.reshape(*outer, directions, count, -1)
    return tuple(apart[:, :, :, number].reshape(*outer, -1) for number in range(count))


# ----------------------------------------------------------------------------- states of other widths than engines have
def for_engines(module, parts, stack, gradients=False):
    """Widen [state, h first] to engines' widths; None stays None. Additional units repeat the last one, so they stay
    finite if it does; in gradients they are zero."""

    def wide(part, width):
        last = module.zeros_like(part[..., -1:]) if gradients else part[..., -1:]
        return module.concatenate([part, *[last] * (width - part.shape[2])], 2)

    return _resized(module, parts, stack, stack.state_sizes, stack.state_widths, wide)


def for_callers(module, parts, stack):
    """Narrow [state, h first] from engines' widths to callers'."""
    return _resized(module, parts, stack, stack.state_widths, stack.state_sizes, lambda part, size: part[..., :size])


def _resized(module, parts, stack, before, after, function):
    """Apply `function(part, its new size)` to each layer's part (D, B, N) of each state whose sizes change. Return one
    array (L*D, B, size) if the new sizes are equal, else a list with one (D, B, size) per layer."""
    resized, D = [], stack.directions
    for state, old, sizes in zip(parts, before, after, strict=True):
        if state is not None and old != sizes:
            several, equal = isinstance(state, list | tuple), len(set(sizes)) == 1
            if equal and not several:
                state = function(state, sizes[0])
            else:
                layers = state if several else [state[n * D : (n + 1) * D] for n in range(stack.num_layers)]
                layers = [function(*one) for one in zip(layers, sizes, strict=True)]
                state = module.concatenate(layers, 0) if equal else layers
        resized.append(state)
    return tuple(resized)


def steps_for_engines(module, parts, stack, first=0):
    """Widen gradients of y and of cell states of every step, each (T, B, D*N) or None, to engines' widths, with zeros.
    `first` is the index of the first part's state; 0 is h, whose steps are y."""
    widened, D = [], stack.directions
    for part, sizes, widths in zip(parts, stack.state_sizes[first:], stack.state_widths[first:], strict=False):
        if part is not None and sizes[-1] != widths[-1]:
            wide = module.zeros((*part.shape[:2], D, widths[-1]), dtype=part.dtype)
            wide[..., : sizes[-1]] = part.reshape(*part.shape[:2], D, -1)
            part = wide.reshape(*part.shape[:2], -1)
        widened.append(part)
    return widened


def steps_for_callers(parts, stack, first=0):
    """Narrow y and cell states of every step to callers' widths; `first` as in `steps_for_engines`."""
    sizes = zip(parts, stack.state_sizes[first:], stack.state_widths[first:], strict=False)
    return tuple(part if a[-1] == b[-1] else first_columns(part, a[-1], stack.directions) for part, a, b in sizes)


def first_columns(array, width, directions):
    """Return the first `width` columns of each direction of (T, B, D*N), an array or tensor, as (T, B, D*width)."""
    *outer, columns = array.shape
    return array.reshape(*outer, directions, columns // directions)[..., :width].reshape(*outer, directions * width)
