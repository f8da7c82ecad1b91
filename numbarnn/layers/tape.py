"""What a training call leaves for backward, and how backward notices that the weights or x were changed since.

Both are read again by backward, so a change in between would give wrong gradients. `Watched` says of which lines of
these arrays a fingerprint is taken after forward; `Tape.require_unchanged` takes it again and compares. A GPU's engine
does both as jobs on the device, at the places that `Watched` says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbarnn.common.precision import known_dtype
from numbarnn.kernels.arrays import samples
from numbarnn.layers.sequences import Packing
from numbarnn.passes.backward import BackwardPass
from numbarnn.passes.bound import BoundForward
from numbarnn.passes.forward import ForwardPass

SIZES = 64  # of calls whose places are remembered, of up to a MiB each


@dataclass
class Tape:
    """What a training forward call keeps for backward. One backward pass consumes it.

    Attributes:
        stack: the `Stack` that made it.
        weights: the flat weight buffer it was made with.
        version: the weights' version then.
        forward: the arrays.
        x: that backward reads again: the caller's, or a copy.
        backward: the backward pass, once it was run.
        used: backward is done: the saved gates have been overwritten.
        packing: of a packed x, where its elements stand.
        watch: gives the fingerprints of the weights and, unless forward copied it, of x (`Engine.watch`); None where
            the engine notes and compares as jobs.
        seen: these after forward.
        dw: the gradients of all parameters, after a backward that makes an array for them.
        bound: the `BoundForward` that did forward, if one did: others may use it when nobody has the tape any more.
    """

    stack: Any
    weights: Any
    version: int
    forward: ForwardPass
    x: Any
    backward: BackwardPass | None = None
    used: bool = False
    packing: Packing | None = None
    watch: Callable[[], tuple] | None = None
    seen: tuple = ()
    dw: Any = None
    bound: BoundForward | None = None

    def __del__(self):
        if self.bound is not None:
            self.bound.give_back()

    def __reduce_ex__(self, protocol):
        raise TypeError("a tape cannot be copied or pickled: it is good for one backward of the layer that made it")

    def require_unchanged(self, weights=True):
        """Raise ValueError if what backward reads again is not what it was in forward, where that is known at once.

        Args:
            weights: they are read again, not x alone.
        """
        if self.watch is None or (seen := self.watch()) == self.seen:
            return
        if weights and seen[0] != self.seen[0]:
            raise ValueError(
                "the weights were changed between forward and backward, which reads them again: call backward before "
                "you change them (an optimizer's step, a write into `parameters`), or forward once more"
            )
        if seen[1:] != self.seen[1:]:
            raise ValueError(
                "x was overwritten between forward and backward, which reads it again: give forward a copy (x.copy()), "
                "or overwrite it after backward"
            )


class Watched:
    """Which lines of the weights, and of x, fingerprints are taken of.

    Args:
        engine: the stack's engine.
        space: its `WeightSpace`.
        dtype: its dtype, a name.
        input_size: I.
        output_size: the width of y, D*H or D*P.
    """

    def __init__(self, engine, space, dtype, input_size, output_size):
        self._engine, self._space = engine, space
        self._words = max(1, np.dtype(known_dtype(dtype)).itemsize // 4)  # of a number
        self._input_size, self._output_size = input_size, output_size
        self._places = {}  # (steps, batch) of a call -> its places

    def remember(self, tape, *arrays):
        """Note in the tape the weights, and x, as they are, for an engine that compares at once."""
        bound = tape.bound
        if bound is not None and bound.work.flat is not arrays[0]:  # a widened copy of these weights is
            bound = None
        tape.watch = bound and bound.watch
        if tape.watch is None:
            places = self.places(tape.forward.steps, tape.forward.batch)
            tape.watch = self._engine.watch(arrays, places[: len(arrays)])
            if bound is not None:
                bound.watch = tape.watch
        else:
            for other in arrays[1:]:
                tape.watch.read(1, other)
        tape.seen = tape.watch()

    def places(self, steps, batch):
        """(places in the weights, places in x) of a training call, as `samples.places` has them; for an engine that
        notes fingerprints itself the places are in the last layer's h, from which callers get y, not in x."""
        found = self._places.get((steps, batch))  # one read: another thread may clear them
        if found is None:
            if len(self._places) >= SIZES:
                self._places.clear()
            engine, words, size = self._engine, self._words, self._space.size
            allowed = min(samples.MOST, max(engine.few_lines, steps * batch * size // engine.work_per_line))
            stride = samples.stride_for(words * size // samples.LINE, allowed)
            parts = [  # of one number per unit more lines are read: these arrays are short
                (words * part.offset, words * part.size, min(stride, 7) if len(part.shape) == 1 else stride)
                for part in self._space.parameters
            ]
            other = words * steps * batch * self._input_size
            if engine.watches_in_jobs:
                other = words * (steps + 2) * batch * self._output_size
            other_stride = samples.stride_for(other // samples.LINE, allowed)
            found = samples.places(parts), samples.places([(0, other, other_stride)])
            if engine.watches_in_jobs:
                found = tuple(map(engine.from_host, found))
            self._places[steps, batch] = found
        return found
