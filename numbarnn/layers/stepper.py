"""Streaming: a step at a time, with the state kept from one to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numbarnn.layers import arguments, array_checks, checks
from numbarnn.programs.states import with_each

if TYPE_CHECKING:
    from numbarnn.common.typing import Array, State


class Stepper:
    """Inference one step at a time, as `Recurrent.stepper` makes it.

        step = layer.stepper(batch=1)
        for x in stream:  # (B, I)
            y = step(x)  # (B, H)

    Everything that does not change from step to step is worked out once: on the CPU a step costs little more than its
    arithmetic. The layer's weights are read at each step; a new `set_num_threads` counts from the next stepper on.
    Steps of one stepper must not run at the same time. A copy (by `copy`; by `deepcopy` and pickle with a copy of the
    layer) goes on from the same state, and keeps its own.

    Args:
        layer: the layer, of one direction.
        batch: B.
        state: the state to begin with, as calls of the layer take it; None is zero.
    """

    def __init__(self, layer: Any, batch: int = 1, state: State | None = None) -> None:
        if layer.bidirectional:
            raise ValueError(
                "a stepper needs a layer of one direction: the backward direction of a bidirectional one begins with "
                "the last step, which a stream does not have"
            )
        self.layer, self.batch = layer, checks.positive_int(batch, "batch")
        self._shape, self._dtype = (self.batch, layer.input_size), layer.weights.dtype
        self._array_type = layer.engine.array_module.ndarray
        self._prepared = layer.stack.prepared_step(layer.weights, self.batch)
        (*_, width), (*_, own) = layer.stack.output_sizes, layer.stack.output_widths
        self._width = None if width == own else width  # of y, where engines have a wider one
        self.state = state

    def __call__(self, x: Array) -> Array:
        """One step.

        Args:
            x: (B, I), an array of the layer's engine and dtype.

        Returns:
            y: (B, H), or (B, P) with projection; a new array.

        Raises:
            ValueError, TypeError: x has the wrong shape, dtype or device. The state is what it was.
        """
        if type(x) is not self._array_type or x.shape != self._shape or x.dtype != self._dtype:
            x = array_checks.array(self.layer.engine, x, "x", self._shape, self.layer.dtype)
        if self._prepared is not None:
            y = self._prepared.step(x)
            return y if self._width is None else y[:, : self._width].copy()
        time = 1 if self.layer.batch_first else 0
        y, self._state = self.layer(x.reshape(*self._shape[:time], 1, *self._shape[time:]), self._state)
        return y.reshape(self.batch, -1)

    @property
    def state(self) -> State:
        """The state after the last step, in the form in which the layer's calls return it: a copy. Assign to it to go
        on from another one; None is zero."""
        if self._prepared is not None:
            return arguments.as_state(self.layer.stack, *self._prepared.state)
        return self._copied(self._state)

    @state.setter
    def state(self, state: State | None) -> None:
        stack = self.layer.stack
        h, c = arguments.states(stack, state, "state", self.batch)
        if self._prepared is not None:
            self._prepared.state = h, c
        else:
            zeros = stack.zero_state(self.batch)
            given = [zero if one is None else one for one, zero in zip((h, c), zeros, strict=True)]
            self._state = self._copied(arguments.as_state(stack, *given))

    def _copied(self, state):
        with self.layer.engine.activate():
            return with_each(state, lambda array: array.copy())

    def __reduce__(self) -> tuple[type[Stepper], tuple[Any, int, State]]:
        return Stepper, (self.layer, self.batch, self.state)
