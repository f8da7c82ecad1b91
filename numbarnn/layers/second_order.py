"""Compute tangents (`jvp`) and Hessian-vector products (`hvp`) of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numbarnn.common.precision import known_dtype
from numbarnn.layers import arguments, array_checks, checks, private, sequences
from numbarnn.layers.parameters import Gradients
from numbarnn.layers.tangents import Point, Tangents


@dataclass
class TangentTape:
    """The tape of one `jvp`, for one `hvp`.

    Attributes:
        layer: the layer that made it. kept: the tape of `Tangents.backward`. steps, batch: T, B.
        packing: the `Packing` of a packed x, or None. used: whether an `hvp` has been computed.
    """

    layer: Any
    kept: Any
    steps: int
    batch: int
    packing: Any = None
    used: bool = False

    def __reduce_ex__(self, protocol):
        raise TypeError("a tape cannot be copied or pickled: it is good for one hvp of the layer that made it")


def jvp(layer, at, along, ends, training, tape):
    """Compute `Recurrent.jvp`; at: (x, state), along: (dx, dstate, weights), ends: (lengths, resets)."""
    (x, state), (dx, dstate, weights), (lengths, resets) = at, along, ends
    stack = layer.stack
    x, packing, lengths, batch_first = arguments.input_of(stack, x, lengths, layer.batch_first)
    steps, batch = x.shape[1::-1] if batch_first else x.shape[:2]
    dx = arguments.result_gradient(stack, dx, "dx", layer.input_size, (steps, batch, batch_first), packing)
    x_and_tangent = [_exchanged(one, batch_first) for one in (x, dx)]
    states = [_checked_state(stack, one, name, batch) for one, name in ((state, "state"), (dstate, "dstate"))]
    if weights is not None:
        weights = array_checks.array(layer.engine, weights, "weights", (stack.space.size,), stack.dtype)
    ends = sequences.checked(layer.engine, lengths, resets, sequences.NO_PADDING_VALUE, steps, batch, batch_first)
    tape = checks.flag(tape, "tape")
    draws = (stack.seed, stack._next_call()) if checks.flag(training, "training") else None
    at = [x_and_tangent[0], states[0], layer.weights], [x_and_tangent[1], states[1], weights]
    if tape:  # the caller may change these before hvp
        with layer.engine.activate():
            at = [[one if one is None or n == 1 else one.copy() for n, one in enumerate(part)] for part in at]
    results, tangents, kept = tangents_of(stack).forward(*(Point(*part) for part in at), ends, draws, tape)
    outputs = []
    with layer.engine.activate():
        for one in (results, tangents):
            y = one.x.astype(known_dtype(stack.dtype), copy=tape)  # which hvp reads again
            y = _exchanged(arguments.output(stack, y), batch_first)
            outputs.append(y if packing is None else arguments.packed(layer.engine, packing, y))
        final = (arguments.as_state(stack, *joined(stack, one.states)) for one in (results, tangents))
    everything = (*outputs, *final)
    return (*everything, TangentTape(layer, kept, steps, batch, packing)) if tape else everything


def hvp(layer, tape, dy, dstate, ddy, ddstate):
    """Compute `Recurrent.hvp`."""
    stack = layer.stack
    if not isinstance(tape, TangentTape):
        raise TypeError(f"tape must be what jvp(..., tape=True) returned last, not a {type(tape).__qualname__}")
    if tape.layer is not layer:
        raise ValueError("tape was made by another layer: call hvp on the layer whose jvp made it")
    if tape.used:
        raise ValueError("tape was already used, and hvp overwrites it: call jvp(..., tape=True) again")
    width, packed = stack.directions * stack.output_sizes[-1], tape.packing
    batch_first = layer.batch_first and packed is None
    of_y, of_states = [], []
    for value, name in ((dy, "dy"), (ddy, "ddy")):
        value = arguments.result_gradient(stack, value, name, width, (tape.steps, tape.batch, batch_first), packed)
        if value is not None:
            value = _exchanged(arguments.output_gradient(stack, value), batch_first)
        of_y.append(value)
    for value, name in ((dstate, "dstate"), (ddstate, "ddstate")):
        of_states.append(_checked_state(stack, value, name, tape.batch))
    tape.used, tangents = True, tangents_of(stack)
    of_y = [one if one is None else one.astype(tangents.dtype, copy=False) for one in of_y]
    with_tangents = Point(of_y[1], of_states[1]), Point(of_y[0], of_states[0])
    results = []
    kept, tape.kept = tape.kept, None  # a tape that is used up takes no memory
    for values in tangents.backward(kept, *with_tangents):
        with layer.engine.activate():
            dtype = known_dtype(stack.dtype)
            gx = _exchanged(values.x.astype(dtype, copy=False), batch_first)
            gx = gx if packed is None else arguments.packed(layer.engine, packed, gx)
            results.append(
                Gradients(
                    gx,
                    arguments.as_state(stack, *joined(stack, values.states)),
                    values.weights.astype(dtype),
                    stack.space,
                )
            )
    return results[1], results[0]


def tangents_of(stack):
    """Return the `Tangents` of a stack, made at the first call."""
    if stack.tangents is None:
        stack.tangents = Tangents(stack)
    return stack.tangents


def _exchanged(array, batch_first):
    """Return an array with the axes of time and batch exchanged, contiguous, or as it is."""
    return array.swapaxes(0, 1).copy() if batch_first and array is not None else array


def _checked_state(stack, state, name, batch):
    """Return a state as a `Point` has it; tangents and gradients, too, are zero for units that callers do not see."""
    return by_layer(stack, *arguments.states(stack, state, name, batch, gradients=name != "state"))


def by_layer(stack, h, c):
    """Split h and c, with engines' widths, by layer: a list with [h, each other state] per layer; None if both are
    None."""
    if h is None and c is None:
        return None
    D, num_others, layers = stack.directions, stack.cell.num_private, []
    for layer in range(stack.num_layers):
        of_layer = slice(layer * D, (layer + 1) * D)
        own_h, own_c = (
            None if one is None else one[layer] if isinstance(one, list) else one[of_layer] for one in (h, c)
        )
        rest = [None] * num_others if own_c is None else private.split(own_c, num_others) if num_others else []
        layers.append([own_h, *rest])
    return layers


def joined(stack, states):
    """Undo `by_layer`, for states that are all there: h and c, which is None without other states."""
    xp, dtype = stack.engine.array_module, known_dtype(stack.dtype)

    def whole(parts):
        parts = [part.astype(dtype, copy=False) for part in parts]
        return xp.concatenate(parts) if len({part.shape for part in parts}) == 1 else parts

    h = whole([one[0] for one in states])
    return h, whole([xp.concatenate(one[1:], axis=2) for one in states]) if stack.cell.num_private else None
