"""States besides h: callers see one array per state, engines one array with all of them side by side.

A state of another size than h's (`numbarnn.sized`, and x of the step before) has its own width for callers; for engines
h and all states are as wide as the widest of them. What the further units compute reaches nothing: matrices have
columns of zeros for them, and their gradients are zero.
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


# ----------------------------------------------------------------------------- states of other widths than engines have
def for_engines(module, parts, stack, gradients=False):
    """[state, h first] of callers -> of engines' widths; None stays None.

    Units beyond are as the last one, so that they compute what it does, and are finite where it is.

    Args:
        module: numpy or cupy.
        gradients: of states: zero beyond.
    """
    fill = _with_zeros if gradients else _with_last
    widths = zip(parts, stack.state_sizes, stack.state_widths, strict=True)
    return [
        part if part is None or sizes == own else _each_layer(module, part, stack, own, fill)
        for part, sizes, own in widths
    ]


def for_callers(module, parts, stack):
    """[state, h first] of engines -> as callers get them."""
    sizes = zip(parts, stack.state_sizes, stack.state_widths, strict=True)
    return tuple(
        part if own == widths else _each_layer(module, part, stack, own, lambda _, one, size: one[..., :size])
        for part, own, widths in sizes
    )


def _with_zeros(module, part, width):
    """A state (.., B, N), `width` wide."""
    wide = module.zeros((*part.shape[:-1], width), dtype=part.dtype)
    wide[..., : part.shape[-1]] = part
    return wide


def _with_last(module, part, width):
    wide = _with_zeros(module, part, width)
    wide[..., part.shape[-1] :] = part[..., -1:]
    return wide


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


def steps_for_engines(module, parts, stack, first=0):
    """The gradients of y and private states of every step, each (T, B, D*N) or None, of engines' width: zero beyond.

    Args:
        module: numpy or cupy.
        first: the number of the first part's state: 0 is y's, h.
    """
    made, D = [], stack.directions
    for part, own, widths in zip(parts, stack.state_sizes[first:], stack.state_widths[first:], strict=False):
        if part is not None and own[-1] != widths[-1]:
            outer = part.shape[:2]
            part = _with_zeros(module, part.reshape(*outer, D, -1), widths[-1]).reshape(*outer, -1)
        made.append(part)
    return made


def steps_for_callers(parts, stack, first=0):
    """y and private states of every step of engines' width, as callers get them; `first` as in `steps_for_engines`."""
    made, D = [], stack.directions
    for part, own, widths in zip(parts, stack.state_sizes[first:], stack.state_widths[first:], strict=False):
        made.append(part if own[-1] == widths[-1] else first_columns(part, own[-1], D))
    return tuple(made)


def first_columns(array, width, directions):
    """(T, B, D*N) -> (T, B, D*width): the first columns of each direction; of a tensor too."""
    *outer, own = array.shape
    return array.reshape(*outer, directions, own // directions)[..., :width].reshape(*outer, directions * width)
