"""Look inside a call: named values of the equations at each step, and the gradients of each step's states.

A second call with the same inputs and random numbers runs a cell that returns these values
(`numbarnn.cells.tracing.tangent`), on the same engine. It runs only on request.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from numbarnn.cells.tracing.tangent import equations_of, looked_into, values_by_name
from numbarnn.common.precision import known_dtype
from numbarnn.layers import arguments
from numbarnn.layers.private import first_columns
from numbarnn.layers.second_order import by_layer
from numbarnn.layers.tangents import Point, Tangents


def checked(stack, names):
    """Return names of values as a tuple; raise TypeError or ValueError, naming all, unless the equations have them."""
    given, names = names, tuple(names) if isinstance(names, Iterable) else None
    if isinstance(given, str) or names is None or not all(isinstance(name, str) for name in names):
        raise TypeError(f"record must be a tuple of names, such as ('h',), not {given!r}")
    known = values_by_name(equations_of(stack.cell))
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"record: cell {stack.cell.name} has no value {unknown[0]!r}; it has {', '.join(known)}")
    return names


class Insides:
    """The recorded values of a call, and the gradients of its states.

    Args:
        layer: the layer. x, state: the call's checked arguments; state is (hx, cx).
        sequences: of the call. form: (whether x is batch-first, the `Packing` of a packed x, or None).
        names: of the values to record. key: (seed, number) of a training call; None: inference.

    Attributes:
        values: name -> [layer] -> (T, B, D*H), batch-first or packed if x is.
    """

    def __init__(self, layer, x, state, sequences, form, names, key):
        stack = self._stack = layer.stack
        self._known = stack.insides.get(names)
        if self._known is None:
            if len(stack.insides) == 16:  # each has compiled code
                stack.insides.clear()
            self._known = stack.insides[names] = Tangents(stack, partial(looked_into, names=names))
        self._form = form
        num_states, sequences = len(stack.cell.states), replace(sequences, padding_value=0.0, every_state=False)
        with layer.engine.activate():
            weights = layer.weights.copy() if key else layer.weights  # which backward reads again
            at = Point(self._time_first(x), by_layer(stack, *state), weights)
            *_, self._kept = self._known.forward(at, Point(), sequences, key, tape=key is not None)
            self.values = {name: [] for name in names}
            for number, one in enumerate(self._kept[0]):
                shape, values = (one.T, one.B, -1), one.values.reshape(one.T * one.B, one.D, -1, one.H)
                for place, name in enumerate(names, num_states - 1):
                    value = one.y if name == stack.cell.states[0] else values[:, :, place].reshape(shape)
                    value = self._known._ready(value, sequences)
                    self.values[name].append(self._for_callers(value, number, name))

    def backward(self, dy, dhy, dcy):
        """Return name of a state -> [layer] -> gradient of the state after each step, batch-first or packed if x is.
        dy, dhy, dcy: gradients of the call's results, see `Stack.backward_data`."""
        stack, (passes, *_) = self._stack, self._kept
        kept, self._kept = self._kept, None  # it is used up, and takes no memory
        with stack.engine.activate():
            dy = None if dy is None else self._time_first(dy)
            self._known.backward(kept, Point(dy, by_layer(stack, dhy, dcy)), Point(), of_along=False)
            gradients = {name: [] for name in stack.cell.states}
            for number, one in enumerate(passes):
                inputs = one.d_inputs.reshape(one.T * one.B, one.D, -1, one.H)
                for place, name in enumerate(gradients):
                    column = self._known.opened.inputs.index(f"E.{place}")
                    value = self._known._ready(inputs[:, :, column].reshape(one.T, one.B, -1), one.sequences)
                    gradients[name].append(self._for_callers(value, number, name))
        return gradients

    used = property(lambda self: self._kept is None, doc="Whether `backward` was called.")

    def _time_first(self, array):
        return array.swapaxes(0, 1).copy() if self._form[0] else array

    def _for_callers(self, value, layer, name):
        """Return a value (T, B, D*width) batch-first or packed if x is, without the units that only engines have."""
        stack, (batch_first, packing) = self._stack, self._form
        sizes = dict(zip(stack.cell.states, stack.state_sizes, strict=True)).get(name, stack.hidden_sizes)
        value = first_columns(value, sizes[layer], stack.directions).astype(known_dtype(stack.dtype))
        if packing is not None:
            return arguments.packed(stack.engine, packing, value)
        return value.swapaxes(0, 1).copy() if batch_first else value
