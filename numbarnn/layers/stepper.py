"""Streaming: one step per call, with the state kept between calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numbarnn.layers import arguments, array_checks, checks
from numbarnn.programs.states import with_each

if TYPE_CHECKING:
    from numbarnn.common.typing import Array, State


class Stepper:
    """Run a layer one step per call and keep its state; made by `layer.stepper`.

        step = layer.stepper(batch=1)
        for x in stream:  # (B, I)
            y = step(x)  # (B, H)

    What does not change between steps is prepared once, so a step on the CPU costs little more than its arithmetic.
    Each step reads the layer's current weights. `set_num_threads` affects later steppers only. Do not run two steps of
    one stepper at the same time. A copy or a pickle continues from the same state, and keeps its own.

    Args:
        layer: a layer of one direction.
        batch: number of sequences (B).
        state: the initial state, as calls of the layer take it. None is zero.

    Raises:
        ValueError, TypeError: the layer is bidirectional, or an argument does not fit.
    """

    def __init__(self, layer: Any, batch: int = 1, state: State | None = None) -> None:
        if layer.bidirectional:
            raise ValueError(
                "a stepper needs a layer of one direction, got bidirectional=True: the second direction starts at the "
                "last step, which a stream does not have"
            )
        self.layer, self.batch = layer, checks.positive_int(batch, "batch")
        self._shape, self._dtype = (self.batch, layer.input_size), layer.weights.dtype
        self._array_type = layer.engine.array_module.ndarray
        self._prepared = layer.stack.prepared_step(layer.weights, self.batch)
        (*_, width), (*_, engine_width) = layer.stack.output_sizes, layer.stack.output_widths
        self._width = None if width == engine_width else width  # of y, where engines have a wider one
        self.state = state

    def __call__(self, x: Array, out: Array | None = None) -> Array:
        """Run one step.

        Args:
            x: the input of the step, (B, I), an array of the layer's engine and dtype.
            out: an array for y, in which case the step makes none; of the same shape and dtype. None: a new one.

        Returns:
            y: the output, (B, H), or (B, P) with projection.

        Raises:
            ValueError, TypeError: x has the wrong shape, dtype or device. The state does not change.
        """
        if type(x) is not self._array_type or x.shape != self._shape or x.dtype != self._dtype:
            x = array_checks.array(self.layer.engine, x, "x", self._shape, self.layer.dtype)
        if out is not None:
            written = array_checks.buffer(
                self.layer.engine, out, "out", (self.batch, self.layer.stack.output_sizes[-1]), self.layer.dtype
            )
        if self._prepared is not None:
            y = self._prepared.step(x)
        else:
            time = 1 if self.layer.batch_first else 0
            y, self._state = self.layer(x.reshape(*self._shape[:time], 1, *self._shape[time:]), self._state)
            y = y.reshape(self.batch, -1)
        y = y if self._width is None or self._prepared is None else y[:, : self._width]
        if out is None:
            return y.copy() if self._prepared is not None else y
        written[...] = y
        return out

    def block(self, x: Array) -> Array:
        """Run several steps in one call, as when frames of a stream arrive together.

        Args:
            x: the input of the steps, (T, B, I), or (B, T, I) for a layer with `batch_first`; T may differ each time.

        Returns:
            y: the outputs, (T, B, H), or (B, T, H); a new array.

        Raises:
            ValueError, TypeError: x has the wrong shape, dtype or device. The state does not change.
        """
        if self._prepared is None:
            y, self.state = self.layer(x, self.state)
            return y
        layer, stack = self.layer, self.layer.stack
        h, c = self._prepared.state
        results = stack.infer_again(x, h, c, layer.weights, layer.batch_first) if type(x) is self._array_type else None
        if results is None:
            x = arguments.sequence(stack, x, "x", layer.input_size, layer.batch_first, ("T", self.batch))
            results = stack.forward(x, h, c, layer.weights, False, layer.batch_first)[:3]
        y, *self._prepared.state = results
        return arguments.output(stack, y)

    @property
    def state(self) -> State:
        """Copy the state after the last step, in the form that the layer's calls return. Assign a state, or None for
        zero, to continue from it."""
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
