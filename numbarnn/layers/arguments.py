"""Convert a layer's checked arguments to the form that its `Stack` takes, and results to the form that callers get.

Callers pass a state as h, or as a tuple of h and cell states, and sequences padded or packed. A stack takes h and one
array (or list) with all cell states, and padded sequences.
"""

import numpy as np

from numbarnn.common.precision import known_dtype
from numbarnn.layers import array_checks, checks, private, sequences
from numbarnn.layers.planned import Tape
from numbarnn.layers.sequences import PackedSequence


# ---------------------------------------------------------------- sequences: x, y, dy, dx
def sequence(stack, value, name, width, batch_first, sizes=("T", "B")):
    """Return an argument as a checked, contiguous array (T, B, width), or (B, T, width) with `batch_first`."""
    shape = (*sizes[::-1], width) if batch_first else (*sizes, width)
    return array_checks.array(stack.engine, value, name, shape, stack.dtype)


def with_side(stack, x, side, batch_first):
    """Append side inputs, name -> array, to x as its last columns."""
    if sequences.is_packed(x):
        raise TypeError("x cannot be packed where side is given: pack it with the side inputs as its last columns")
    layout, side = stack.cell.parameters, checks.side_by_name(stack.cell, side)
    x = sequence(stack, x, "x", stack.input_size - layout.side_width, batch_first)
    sizes = x.shape[1::-1] if batch_first else x.shape[:2]
    parts = [
        sequence(stack, one, f"side[{name!r}]", layout.side[name], batch_first, sizes) for name, one in side.items()
    ]
    with stack.engine.activate():
        return stack.engine.array_module.concatenate([x, *parts], axis=2)


def steps_and_batch(stack, shape, batch_first):
    """Return (T, B) for the shape of an x, the argument of `explain`."""
    if np.shape(shape) != (3,):
        came = f"an array of shape {np.shape(shape)}" if hasattr(shape, "shape") else repr(shape)
        raise ValueError(f"shape must be the shape of x, three numbers, got {came}")
    first, second, inputs = (checks.positive_int(size, f"shape[{axis}]") for axis, size in enumerate(shape))
    if inputs != stack.input_size:
        letters = "(B, T, I)" if batch_first else "(T, B, I)"
        raise ValueError(f"shape must be {letters} with I = {stack.input_size}, but is {tuple(shape)}")
    return (second, first) if batch_first else (first, second)


def unpacked(stack, value, name, width, packing=None):
    """Return (Packing, padded array) of a packed argument. A gradient must be packed like `packing`."""
    if not sequences.is_packed(value):
        raise TypeError(f"{name} must be a PackedSequence, as x was, not a {type(value).__qualname__}")
    packed_as = sequences.Packing.of(value)
    if packing is not None and not packed_as.equals(packing):
        raise ValueError(f"{name} must be packed as y was, but its batch_sizes or sorted_indices differ")
    shape = int(packed_as.batch_sizes.sum()), width
    data = array_checks.array(stack.engine, value.data, f"{name}.data", shape, stack.dtype)
    return packed_as, packed_as.pad(stack.engine, data)


def input_of(stack, x, lengths, batch_first):
    """Return a call's x, checked and padded, its `Packing` or None, its lengths, and whether it is batch-first."""
    packing = None
    if sequences.is_packed(x):
        packing, x = unpacked(stack, x, "x", stack.input_size)
        if lengths is not None:
            raise ValueError("lengths must be None with a packed x, which has its own")
        lengths, batch_first = packing.lengths, False
    return sequence(stack, x, "x", stack.input_size, batch_first), packing, lengths, batch_first


def packed(engine, packing, array):
    """Pack a result (T, B, N) like x."""
    data = packing.pack(engine, array)
    return PackedSequence(data, packing.batch_sizes, packing.order, packing.ranks)


# ---------------------------------------------------------------- states
def states(stack, state, name, batch, gradients=False):
    """Return (h, cell states side by side with engines' widths) of an argument; None is zero."""
    if not stack.cell.num_private:
        return checked_state(stack, state, name, batch, stack.output_sizes), None
    if state is None:
        return None, None
    names = stack.cell.states
    if not isinstance(state, tuple | list) or len(state) != len(names):
        raise TypeError(f"{name} must be a tuple ({', '.join(names)}), not {_came(state)}")
    parts = enumerate(zip(state, ("h", *names[1:]), stack.state_sizes, strict=True))
    h, *cell_states = (
        checked_state(stack, one, f"{name}[{n}] ({known_as})", batch, sizes) for n, (one, known_as, sizes) in parts
    )
    if len(cell_states) == 1 and not stack.has_narrow:
        return h, cell_states[0]
    with stack.engine.activate():
        module = stack.engine.array_module
        if stack.has_narrow:
            h, *cell_states = private.for_engines(module, [h, *cell_states], stack, gradients)
        return h, private.join(module, cell_states, stack.c_shapes(batch), known_dtype(stack.dtype))


def _came(value):
    return f"{len(value)} items" if isinstance(value, tuple | list) else f"a {type(value).__qualname__}"


def checked_state(stack, value, name, batch, sizes):
    """Check one state and return it: an array (L*D, B, N), or a list with one (D, B, N) per layer if sizes differ. None
    stays None. sizes: N of each layer."""
    if value is None:
        return None
    engine, dtype, D, differ = stack.engine, stack.dtype, stack.directions, len(set(sizes)) > 1
    if not differ and not isinstance(value, list | tuple):
        return array_checks.array(engine, value, name, (len(sizes) * D, batch, sizes[0]), dtype)
    if not isinstance(value, list | tuple) or len(value) != len(sizes):
        wanted = "a list with" if differ else f"one array {(len(sizes) * D, batch, sizes[0])}, or a list with"
        why = f", as the layers' sizes {sizes} differ" if differ else ""
        raise ValueError(f"{name} must be {wanted} one array (D, B, H) per layer{why}, but is {_came(value)}")
    return [
        array_checks.array(engine, part, f"{name}[{layer}]", (D, batch, size), dtype)
        for layer, (part, size) in enumerate(zip(value, sizes, strict=True))
    ]


def as_state(stack, h, c):
    """Undo `states`: return h, or a tuple of all states."""
    if not stack.cell.num_private:
        return h
    parts = (h, *private.split(c, stack.cell.num_private))
    if not stack.has_narrow:
        return parts
    with stack.engine.activate():
        return private.for_callers(stack.engine.array_module, parts, stack)


def output(stack, y):
    """Return y for the caller, a narrower copy if engines use a wider y."""
    with stack.engine.activate():
        return stack.engine.array_module.ascontiguousarray(private.steps_for_callers([y], stack)[0])


def output_gradient(stack, dy):
    """Return dy with engines' width."""
    with stack.engine.activate():
        return private.steps_for_engines(stack.engine.array_module, [dy], stack)[0]


def every_state(stack, dstates, problem, packing):
    """Return the gradients of the cell states of every step as one array; None is zero."""
    if dstates is None:
        return None
    names = stack.cell.states[1:]
    if not problem.keeps_states:
        raise ValueError(
            "dstates needs a forward with output_states=True, got a tape of one without it: pass dstates=None"
        )
    if not isinstance(dstates, tuple | list) or len(dstates) != len(names):
        raise TypeError(
            f"dstates must be a tuple of gradients ({', '.join(names)},), one per state; got {type(dstates).__name__}"
        )
    parts, sizes = [], (problem.steps, problem.batch, problem.batch_major)
    for number, value in enumerate(dstates):
        width = stack.directions * stack.state_sizes[1 + number][-1]
        parts.append(result_gradient(stack, value, f"dstates[{number}]", width, sizes, packing))
    with stack.engine.activate():
        module = stack.engine.array_module
        return private.join_steps(module, private.steps_for_engines(module, parts, stack, first=1), stack.directions)


def result_gradient(stack, value, name, width, sizes, packing):
    """Return a checked gradient or tangent of all steps, packed with a packing; None stays None. sizes: (T, B,
    batch_first)."""
    if packing is not None and value is not None:
        value = unpacked(stack, value, name, width, packing)[1]
    steps, batch, batch_first = sizes
    return value if value is None else sequence(stack, value, name, width, batch_first, (steps, batch))


# ---------------------------------------------------------------- backward: the tape and dw
def require_own(stack, tape, unused=False):
    """Raise TypeError or ValueError unless this is a tape of this stack and, with `unused`, no backward has used it."""
    if not isinstance(tape, Tape):
        raise TypeError(f"tape must be what forward returned, not a {type(tape).__qualname__}")
    if tape.stack is not stack:
        raise ValueError("tape was made by another layer: call backward on the layer whose forward made it")
    if unused and tape.used:
        raise ValueError(
            "tape was already used, and backward overwrites it: call forward again, or pass retain=True to the first "
            "backward"
        )


def added_to(stack, dw, others):
    """Check `dw`, a flat buffer that must share no memory with the arrays in `others`, name -> array or tuple of
    arrays."""
    dw = array_checks.buffer(stack.engine, dw, "dw", (stack.space.size,), stack.dtype)
    zeros = "cupy.zeros_like" if stack.engine.name == "cuda" else "np.zeros_like"
    cure = f"pass dw={zeros}(layer.weights), or the weights of earlier Gradients"
    array_checks.apart(stack.engine, dw, "dw", others.items(), cure)
    return dw
