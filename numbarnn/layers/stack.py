"""A stack of recurrent layers as a computation: sizes and options, without parameters of its own.

Layers (`numbarnn.LSTM`, ...) give it their weights; `numbarnn.functional` those of its caller.
"""

from dataclasses import dataclass
from typing import Any

from numbarnn import cells, engines, schedules
from numbarnn.cells.precision import compute_dtype
from numbarnn.layers import checks
from numbarnn.schedules import BackwardPass, ForwardPass, Problem
from numbarnn.weights import WeightSpace


@dataclass
class Tape:
    """What a training forward call keeps for backward. One backward pass consumes it.

    Attributes:
        stack: the stack that made it.
        weights: the flat weight buffer it was made with.
        version: the weights' version then.
        forward: the arrays.
        walk: the backward pass, once data have been walked back.
        used: backward is done: the saved gates have been overwritten.
    """

    stack: "Stack"
    weights: Any
    version: int
    forward: ForwardPass
    walk: BackwardPass | None = None
    used: bool = False


class Stack:
    """Sizes and options of a stack of recurrent layers on an engine; forward and backward for given weights.

    Args:
        cell: a `Cell` or its name.
        input_size: I.
        hidden_size: H of all layers, or one int per layer.
        num_layers: L.
        bias, dropout, bidirectional: as in torch.nn.LSTM.
        dtype: "float32", "float64", or, on "cuda" and "sim", "float16" or "bfloat16" (see `numbarnn.cells.precision`).
        device: see `numbarnn.engines.get`.
        schedule: "auto" or a name in `numbarnn.schedules.SCHEDULES`.
        seed: key of the dropout masks, a non-negative int below 2^64.
    """

    def __init__(
        self,
        cell,
        input_size,
        hidden_size,
        num_layers=None,
        bias=True,
        dropout=0.0,
        bidirectional=False,
        dtype="float32",
        device="auto",
        schedule="auto",
        seed=0,
    ):
        self.cell = cells.get(cell)
        self.input_size = checks.positive_int(input_size, "input_size")
        self.hidden_sizes = checks.hidden_sizes(hidden_size, num_layers)
        self.num_layers = len(self.hidden_sizes)
        self.equal_sizes = len(set(self.hidden_sizes)) == 1  # then states are one array
        self.bias = checks.flag(bias, "bias")
        self.dropout = checks.probability(dropout, "dropout")
        self.directions = 2 if checks.flag(bidirectional, "bidirectional") else 1
        self.dtype = checks.dtype_name(dtype)
        self.state_dtype = compute_dtype(self.dtype)
        self.schedule = schedules.choose(schedule)
        self.engine = engines.get(device)
        checks.dtype_on(self.engine, self.dtype)
        self.seed = seed
        self.space = WeightSpace(self.cell.num_gates, self.input_size, self.hidden_sizes, self.directions, self.bias)
        self.calls = 0
        self._parts = (None, None)  # the last weight buffer and its views

    def parts(self, flat):
        """[layer][direction] -> dict of the flat buffer's views "W", "R" and, with bias, "b_w", "b_r"."""
        return [
            [self.space.pseudo_layer(flat, layer, d) for d in range(self.directions)]
            for layer in range(self.num_layers)
        ]

    def weights_with_biases(self, flat):
        """As `parts`, with zeros for biases that the stack does not have; the last buffer's are kept."""
        if self._parts[0] is not flat:
            parts = self.parts(flat)
            if not self.bias:
                for layer, hidden in enumerate(self.hidden_sizes):
                    no_bias = self.engine.zeros(self.cell.num_gates * hidden, self.dtype)
                    for part in parts[layer]:
                        part["b_w"] = part["b_r"] = no_bias
            self._parts = (flat, parts)
        return self._parts[1]

    # ---------------------------------------------------------------- states: (L*D, B, H), or one (D, B, H) per layer
    def split_state(self, state, name, batch):
        """The state as a list of one (D, B, H) array per layer; None stays None."""
        if state is None:
            return None
        D, L = self.directions, self.num_layers
        if self.equal_sizes and not isinstance(state, list | tuple):
            whole = checks.array(self.engine, state, name, (L * D, batch, self.hidden_sizes[0]), self.dtype)
            return [whole[layer * D : (layer + 1) * D] for layer in range(L)]
        if not isinstance(state, list | tuple) or len(state) != L:
            came = f"{len(state)} arrays" if isinstance(state, list | tuple) else f"a {type(state).__qualname__}"
            raise ValueError(
                f"{name} must be a list with one array (D, B, H) per layer, as the layers' sizes {self.hidden_sizes} "
                f"differ, but is {came}"
            )
        return [
            checks.array(self.engine, part, f"{name}[{layer}]", (D, batch, hidden), self.dtype)
            for layer, (part, hidden) in enumerate(zip(state, self.hidden_sizes, strict=True))
        ]

    def state_shapes(self, batch):
        """The shape of a state: (L*D, B, H), or a list of one (D, B, H) per layer."""
        if self.equal_sizes:
            return (self.num_layers * self.directions, batch, self.hidden_sizes[0])
        return [(self.directions, batch, hidden) for hidden in self.hidden_sizes]

    def _new_state(self, batch, dtype, zeros=False):
        """(the state as callers see it, the list of its (D, B, H) parts)."""
        D, make, shapes = self.directions, self.engine.zeros if zeros else self.engine.empty, self.state_shapes(batch)
        if self.equal_sizes:
            whole = make(shapes, dtype)
            return whole, [whole[layer * D : (layer + 1) * D] for layer in range(self.num_layers)]
        parts = [make(shape, dtype) for shape in shapes]
        return parts, parts

    def _accumulated_state(self, batch, given):
        """`_new_state` in the dtype in which states accumulate: a copy of the parts that were given, or zeros."""
        whole, parts = self._new_state(batch, self.state_dtype, zeros=given is None)
        for part, value in zip(parts, given or (), strict=False):
            self.engine.copy(part, value)
        return whole, parts

    def _as_stored(self, batch, whole, parts):
        """An accumulated state, given as `_new_state` gives it, in the stack's dtype."""
        if self.state_dtype == self.dtype:
            return whole
        stored, stored_parts = self._new_state(batch, self.dtype)
        for out, part in zip(stored_parts, parts, strict=True):
            self.engine.copy(out, part)
        return stored

    # ---------------------------------------------------------------- forward
    def problem(self, steps, batch, training):
        """The `Problem` of a call, for schedules."""
        return Problem(
            engine=self.engine.name,
            cell=self.cell,
            dtype=self.dtype,
            input_size=self.input_size,
            hidden_sizes=self.hidden_sizes,
            directions=self.directions,
            steps=steps,
            batch=batch,
            training=training,
            dropout=self.dropout,
            profile=self.engine.profile,
        )

    def forward(self, x, hx, cx, weights, training, version=0):
        """y (T, B, D*H), hy, cy (None without private states) and, in training, the tape (else None).

        Args:
            x: (T, B, I), an array of the engine, contiguous, of the stack's dtype; hx, cx as `split_state` returns
                them; weights: the flat buffer. All are taken as checked.
        """
        engine, cell = self.engine, self.cell
        steps, batch = x.shape[:2]
        with engine.activate():
            call = self.calls
            self.calls += training
            problem = self.problem(steps, batch, training)
            work = ForwardPass(engine, problem, x, self.weights_with_biases(weights), weights, self.seed, call)
            for layer, hidden in enumerate(self.hidden_sizes):
                width, N = self.directions * hidden, cell.num_private
                h = engine.empty((steps + 2, batch, width), self.dtype)
                c = engine.empty((steps + 2 if training else 2, batch, N * width), self.state_dtype)
                self._set_initial(h, hx[layer] if hx else None, hidden, steps)
                if N:
                    self._set_initial(c, cx[layer] if cx else None, N * hidden, steps)
                work.h.append(h)
                work.c.append(c)
            self.schedule.run_forward(work)
            hy, cy = self._final_states(work)
        tape = Tape(self, weights, version, work) if training else None
        return work.output(self.num_layers - 1), hy, cy, tape

    def _set_initial(self, buffer, initial, width, steps):
        """Put a layer's initial state into its slots: the first of the forward direction, the last of the backward."""
        for direction in range(self.directions):
            number = (0 if direction == 0 else steps + 1) % len(buffer)
            slot = self._columns(buffer[number], direction, width)
            if initial is None:
                slot[...] = 0
            else:
                self.engine.copy(slot, initial[direction])

    def _columns(self, array, direction, width):
        """The direction's columns of a (B, D * width) array."""
        return array if self.directions == 1 else array[:, direction * width : (direction + 1) * width]

    def _final_states(self, work):
        """Copies of the states after each direction's last step."""
        hy, h_parts = self._new_state(work.batch, self.dtype)
        cy, c_parts = self._new_state(work.batch, self.dtype) if self.cell.num_private else (None, [])
        for layer, hidden in enumerate(self.hidden_sizes):
            for direction in range(self.directions):
                slot = work.steps if direction == 0 else 1
                h = self._columns(work.h[layer][slot], direction, hidden)
                self.engine.copy(h_parts[layer][direction], h)
                if c_parts:
                    c = self._columns(work.c[layer][slot % len(work.c[layer])], direction, hidden)
                    self.engine.copy(c_parts[layer][direction], c)
        return hy, cy

    # ---------------------------------------------------------------- backward
    def backward_data(self, tape, dy, dhy, dcy, dw=None, accumulate=True):
        """dx (T, B, I), dhx, dcx (None without private states); with `dw`, a flat buffer, parameters' gradients too.

        Args:
            accumulate: add to dw; without it dw is overwritten.
            dy: (T, B, D*H), or None for zero; dhy, dcy as `split_state` returns them. All are taken as checked.
        """
        work, engine = tape.forward, self.engine
        steps, batch, N = work.steps, work.batch, self.cell.num_private
        with engine.activate():
            if dy is None:
                dy = engine.zeros((steps, batch, self.directions * self.hidden_sizes[-1]), self.dtype)
            dhx, dh = self._accumulated_state(batch, dhy)
            if N:
                dcx, dc = self._accumulated_state(batch, dcy)
            else:
                dcx, dc = None, [engine.empty((self.directions, batch, 0), self.state_dtype)] * self.num_layers
            parts = None if dw is None else self.parts(dw)
            walk = BackwardPass(work, {self.num_layers - 1: dy}, dh, dc, parts, accumulate)
            tape.walk = walk
            self.schedule.run_backward(walk, weights=dw is not None)
            dhx = self._as_stored(batch, dhx, dh)
            dcx = self._as_stored(batch, dcx, dc) if N else None
        return walk.dx, dhx, dcx

    def backward_weights(self, tape, dw):
        """Add the parameters' gradients to the flat buffer dw, after `backward_data` without them."""
        with self.engine.activate():
            tape.walk.dw, tape.walk.accumulate = self.parts(dw), True
            self.schedule.run_weights(tape.walk)
