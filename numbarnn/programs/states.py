"""Handle states of a stack of layers: one array (L*D, B, H), or a list of one (D, B, H) per layer if sizes differ."""

from numbarnn.programs.views import View


def state_arrays(state):
    """Return a state's arrays: none, one, or one per layer."""
    if state is None:
        return ()
    return state if isinstance(state, list) else (state,)


def with_each(state, function):
    """Apply a function to each array of an array, a state, or a tuple or list of these; None stays None."""
    if isinstance(state, (list, tuple)):
        return type(state)([with_each(part, function) for part in state])
    return None if state is None else function(state)


def part_of_state(problem, state, layer):
    """Return one layer's part of a state, (D, B, H)."""
    return state[layer] if isinstance(state, list) else state[layer * problem.directions :][: problem.directions]


def state_parts(problem, out, value):
    """Pair the arrays of two states; the second state may be None."""
    if value is None:
        return [(array, None) for array in state_arrays(out)]
    if not isinstance(out, list) and not isinstance(value, list):
        return [(out, value)]
    return [(part_of_state(problem, out, n), part_of_state(problem, value, n)) for n in range(problem.layers)]


def form_of_state(state):
    """Return None for no state, else whether it is a list."""
    return None if state is None else type(state) is list


def named_arrays(name, state):
    """Return (buffer's name, array) for each array of a state, or for a single array."""
    if type(state) is list:
        return [((name, layer), part) for layer, part in enumerate(state)]
    return [] if state is None else [(name, state)]


def rows(view):
    """Reshape (T, B, N), all or some columns of a contiguous array or view, to (T*B, N)."""
    steps, batch, width = view.shape
    if not isinstance(view, View):
        return view.reshape(steps * batch, width)
    return View(view.buffer, view.dtype, (steps * batch, width), view.offset, view.strides[1:])
