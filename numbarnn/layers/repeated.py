"""Inference like the call before: of arrays with the same shapes, which compiled code finds out.

In short calls Python takes most of the time, more than half of it for checks, and for finding out what kind of call it
is. Whatever is out of the ordinary here, a checked call does, or refuses.
"""

import numpy as np


def repetition(stack, x, state, batch_first):
    """The `Repetition.run` of calls like one that is over; None where a `Repetition` cannot do such calls.

    Args:
        x, state: as that call had them, and took them. batch_first: of the layer.
    """
    if stack.has_narrow or stack.cell.num_private > 1:
        return None
    arrays = () if state is None else state if type(state) is tuple else (state,)
    as_one = len(arrays) in (0, 1 + stack.cell.num_private)  # else h of each layer, say
    if not as_one or any(type(one) is not np.ndarray for one in (x, *arrays)):
        return None
    h, c = (*map(type, arrays), *[type(None)] * (2 - len(arrays)))
    free = stack.bound.free((x.shape, False, batch_first, h, c))  # the kind, as `Stack.forward` has it
    last = free[-1:] if free else ()
    return Repetition(stack, free, batch_first).run if last and last[0].repeats else None


class Repetition:
    """Calls of one kind, by a method that Python calls in half the time of an object.

    Args:
        stack: of the layer. free: the `passes.bound_kinds.Free` of the kind. batch_first: of the layer.
    """

    def __init__(self, stack, free, batch_first):
        self._available, self._threads, self._free = stack.engine.thread_pool.available, stack.engine.num_threads, free
        self._has_private, self._batch_first = stack.cell.num_private > 0, batch_first

    def run(self, weights, x, state, batch_first):
        """(y, state) of a call of the kind; None if it is of another."""
        if batch_first is not self._batch_first or self._available() != self._threads:
            return None
        h, c = state, None
        if self._has_private and state is not None:
            if type(state) is not tuple or len(state) != 2:
                return None
            h, c = state
        results = self._free.repeat(weights, x, h, c)
        if results is None:
            return None
        y, h, c = results
        return y, (h, c) if self._has_private else h
