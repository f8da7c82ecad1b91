"""Inference like the call before: of arrays with the same shapes, which need not be checked once more.

In short calls Python takes most of the time, more than half of it for checks, and for finding out what kind of call it
is. Whatever is out of the ordinary here, a checked call does, or refuses.
"""

import numpy as np


def repetition(stack, x, state, batch_first):
    """A `Repetition` of a call that is over; None where its kind has more to it.

    Args:
        x, state: as it had them; they were accepted. batch_first: of the layer.
    """
    if not stack.engine.binds_calls or stack.has_narrow or stack.cell.num_private > 1:
        return None
    arrays = () if state is None else state if type(state) is tuple else (state,)
    as_one = len(arrays) in (0, 1 + stack.cell.num_private)  # else h of each layer, say
    if not as_one or any(type(one) is not np.ndarray for one in (x, *arrays)):
        return None
    return Repetition(stack, x, arrays, batch_first)


class Repetition:
    """Calls of one kind.

    Args:
        stack: of the layer. x, arrays: of the first call: x, and its states, all or none. batch_first: of the layer.
    """

    def __init__(self, stack, x, arrays, batch_first):
        self._find, self._dtype, self._count = stack.bound.find, x.dtype, 1 + stack.cell.num_private
        self._shape, self._shapes, self._batch_first = x.shape, tuple([one.shape for one in arrays]), batch_first
        h, c = (*map(type, arrays), *[type(None)] * (2 - len(arrays)))
        self._kind = x.shape, False, batch_first, h, c  # as `Stack.forward` has it

    def __call__(self, weights, x, state, batch_first):
        """(y, state) of a call of the kind, with checked arrays' properties; None if it is of another."""
        if batch_first is not self._batch_first or not self._has(x, self._shape):
            return None
        h = c = None
        if state is None:
            if self._shapes:
                return None
        elif self._count == 1:
            h = state
            if not self._shapes or not self._has(h, self._shapes[0]):
                return None
        else:
            if type(state) is not tuple or len(state) != 2 or not self._shapes:
                return None
            h, c = state
            if not (self._has(h, self._shapes[0]) and self._has(c, self._shapes[1])):
                return None
        bound = self._find(self._kind, weights)
        if bound is None:
            return None
        y, h, c = bound.run(0, x, h, c)
        bound.give_back()
        return y, (h if self._count == 1 else (h, c))

    def _has(self, array, shape):
        """Whether it is an array that `checks.array` would return as it is."""
        return (
            type(array) is np.ndarray
            and array.shape == shape
            and array.dtype is self._dtype
            and array.flags.c_contiguous
        )
