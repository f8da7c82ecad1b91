"""The arrays of a forward call, and its tasks on them."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numbarnn.cells.philox import dropout_masks
from numbarnn.engines import Engine, ForwardBuffers
from numbarnn.schedules.execution import Pass, arrays_of_state, form_of_state, new_state, part_of_state, rows
from numbarnn.schedules.problem import Problem


@dataclass
class ForwardPass(Pass):
    """The arrays of a forward call; after training, the tape that backward reads.

    Attributes:
        x: (T, B, I). With `batch_major` it is given as (B, T, I), `x_given`, and copied.
        weights: weights[layer][direction], a dict with "W", "R", "b_w", "b_r".
        flat: the buffer that these are views of (the biases only if the layers have any).
        hx, cx: the initial states, in one of the forms that `Problem.state_shapes` has; None is zero.
        seed, call: key of the dropout masks, number of the training call.
        batch_major: the caller's arrays have the axes of batch and time exchanged.
        y: (T, B, D * H), the last layer's output, a view; with `batch_major` (B, T, D * H), a copy.
        hy, cy: the final states, in the form of `Problem.state_shapes`; cy is None without private states.
        masks, scale: with dropout, what `philox.dropout_masks` returns for all layers but the last; else None.
        h: h[layer] (T + 2, B, D * H), slot t + 1 is step t, slots 0 and T + 1 the initial states.
        c: c[layer], likewise (T + 2, B, D * N * H); (2, B, D * N * H) in inference.
        gates: see `gates_of`.
    """

    engine: Engine
    problem: Problem
    x: Any
    weights: list
    flat: Any
    hx: Any = None
    cx: Any = None
    seed: int = 0
    call: int = 0
    batch_major: bool = False
    hy: Any = None
    cy: Any = None
    h: list = field(default_factory=list)
    c: list = field(default_factory=list)
    gates: dict = field(default_factory=dict)
    _inputs: dict = field(default_factory=dict)
    _products: dict = field(default_factory=dict)  # (layer, direction) -> h Rᵀ of one step
    _walks: dict = field(default_factory=dict)  # (layer, direction) -> the engine's function of [first, last)

    masks: Any = None
    scale: float | None = None

    def __post_init__(self):
        problem = self.problem
        make = self._room = self.engine.rooms((problem, self.engine.address(self.flat)))
        T, B, private = problem.steps, problem.batch, problem.cell.num_private * problem.directions
        kept = T + 2 if problem.training else 2
        for layer, hidden in enumerate(problem.hidden_sizes):
            self.h.append(make(("h", layer), (T + 2, B, problem.directions * hidden), problem.dtype))
            self.c.append(make(("c", layer), (kept, B, private * hidden), problem.state_dtype))
        self.x_given, self._y_copy = self.x, None
        if self.batch_major:
            self.x = make("x", (T, B, problem.input_size), problem.dtype)
            self._y_copy = make("y", (B, T, problem.directions * hidden), problem.dtype)
        self.hy = new_state(make, "hy", problem, problem.dtype)
        if private:
            self.cy = new_state(make, "cy", problem, problem.dtype)
        if self.dropping:
            self.scale, masks = dropout_masks(problem.dropout, self.seed, problem.layers - 1, self.call)
            self.masks = self.engine.from_host_into(make, "masks", masks)

    steps = property(lambda self: self.problem.steps, doc="T.")
    batch = property(lambda self: self.problem.batch, doc="B.")
    dropping = property(lambda self: self.problem.dropping, doc="Whether there is dropout between layers.")

    @property
    def y(self):
        return self.output(self.problem.layers - 1) if self._y_copy is None else self._y_copy

    def output(self, layer):
        """(T, B, D * H), the layer's output: a view."""
        return self.h[layer][1:-1]

    def input(self, layer):
        """(T, B, I), what the layer reads: x, or the output of the layer below; with dropout an array of its own, which
        the layer's "dropout" (in backward "remake") tasks fill."""
        if layer == 0:
            return self.x
        below = self.output(layer - 1)
        if not self.dropping:
            return below
        if layer not in self._inputs:
            self._inputs[layer] = self._room(("input", layer), below.shape, self.problem.dtype)
        return self._inputs[layer]

    def gates_of(self, layer, direction):
        """(T, B, G * H): x Wᵀ; in training (T, B, max(K, G) * H), later what the cell saves."""
        key = (layer, direction)
        if key not in self.gates:
            cell = self.problem.cell
            width = max(cell.num_saved, cell.num_gates) if self.problem.training else cell.num_gates
            shape = (self.steps, self.batch, width * self.problem.hidden_sizes[layer])
            self.gates[key] = self._room(("gates", key), shape, self.problem.dtype)
        return self.gates[key]

    def _product_of(self, layer, direction):
        """(B, G * H): h Rᵀ of one step, scratch."""
        key = (layer, direction)
        if key not in self._products:
            shape = (self.batch, self.problem.cell.num_gates * self.problem.hidden_sizes[layer])
            self._products[key] = self._room(("product", key), shape, self.problem.state_dtype)
        return self._products[key]

    def make_room(self, task):
        if task.kind == "dropout":
            self.input(task.layer)
        else:
            self.gates_of(task.layer, task.direction)
            if task.kind == "steps":
                self._product_of(task.layer, task.direction)

    def bind(self, task):
        return {"dropout": self.bind_dropout, "input": self._bind_input, "steps": self._bind_steps}[task.kind](task)

    def bind_dropout(self, task):
        """Fill the layer's input for the task's times."""
        when, below = task.times(self.steps), self.output(task.layer - 1)
        out, mask = self.input(task.layer)[when], self.masks[task.layer - 1]
        return partial(self.engine.dropout, out, below[when], mask, self.scale, when.start * below[0].size)

    def _bind_input(self, task):
        """x Wᵀ for the task's steps."""
        if self.engine.fuses_input:
            return _nothing
        columns = self.problem.cell.num_gates * self.problem.hidden_sizes[task.layer]
        when = task.times(self.steps)
        ax = rows(self.gates_of(task.layer, task.direction)[when])[:, :columns]
        W = self.weights[task.layer][task.direction]["W"]
        x, allow_tf32 = rows(self.input(task.layer)[when]), self.problem.allow_tf32
        return partial(self.engine.multiply, ax, x, W, transpose_b=True, allow_tf32=allow_tf32)

    def make_walk(self, task):
        part = self.weights[task.layer][task.direction]
        fused = {"x": self.input(task.layer), "W": part["W"]} if self.engine.fuses_input else {}
        return self.engine.forward_steps(
            ForwardBuffers(
                cell=self.problem.cell,
                direction=task.direction,
                save=self.problem.training,
                h=self.h[task.layer],
                c=self.c[task.layer],
                ax=self.gates_of(task.layer, task.direction),
                ah=self._product_of(task.layer, task.direction),
                R=part["R"],
                b_w=part["b_w"],
                b_r=part["b_r"],
                allow_tf32=self.problem.allow_tf32,
                **fused,
            )
        )

    def forget(self, task):
        if task.kind == "steps" and task.last == self.steps:
            key = (task.layer, task.direction)
            self._walks.pop(key, None)
            del self._products[key]
            if not (self.problem.training and self.problem.cell.num_saved):
                del self.gates[key]  # nothing in it is needed any more

    def finish(self):
        self._walks.clear()
        self._inputs.clear()

    def room_for_gradients(self):
        """What makes the arrays of the backward pass; see `Engine.rooms`."""
        return self.engine.rooms((self.problem, self.engine.address(self.flat), "backward"))

    def first_copies(self):
        """The initial states into their slots: the first of the forward direction, the last of the backward."""
        problem = self.problem
        if self.batch_major:
            yield self.x, self.x_given.transpose(1, 0, 2)
        for arrays, given in ((self.h, self.hx), (self.c, self.cx)):
            for layer, array in enumerate(arrays):
                for direction in range(problem.directions):
                    slot = array[(0 if direction == 0 else self.steps + 1) % len(array)]
                    if given is None:  # other columns of the slot are the other direction's, which start at zero too
                        yield slot, None
                    else:
                        part = part_of_state(problem, given, layer)[direction]
                        yield self._of_direction(slot, direction), part

    def last_copies(self):
        """The states after each direction's last step."""
        problem = self.problem
        if self.batch_major:
            yield self.y, self.output(problem.layers - 1).transpose(1, 0, 2)
        for arrays, result in ((self.h, self.hy), (self.c, self.cy)):
            for layer, array in enumerate(arrays if result is not None else ()):
                part = part_of_state(problem, result, layer)
                for direction in range(problem.directions):
                    slot = array[(self.steps if direction == 0 else 1) % len(array)]
                    yield part[direction], self._of_direction(slot, direction)

    def _of_direction(self, slot, direction):
        """The direction's columns of a slot of h or c."""
        width = slot.shape[1] // self.problem.directions
        return slot[:, direction * width : (direction + 1) * width]

    def arrays(self):
        made = [*self.gates.values(), *self._products.values(), *self._inputs.values()]
        made += [] if self.masks is None else [self.masks]
        made += [self.x_given, self._y_copy] if self.batch_major else []
        states = [array for state in (self.hx, self.cx, self.hy, self.cy) for array in arrays_of_state(state)]
        # the biases may be apart from the other weights: then all are parts of one array
        return [self.x, self.flat, self.weights[0][0]["b_w"], *self.h, *self.c, *states, *made]

    def facts(self):
        return self.problem, self.batch_major, form_of_state(self.hx), form_of_state(self.cx)


def _nothing():
    """The task of an engine that does it as part of another."""
