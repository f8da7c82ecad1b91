"""Executors: they walk a plan and call the engine. No cell maths here.

`ForwardPass` and `BackwardPass` hold the arrays of one call; `run` does a plan's tasks in order.
"""

from dataclasses import dataclass, field
from typing import Any

from numbarnn.cells import Cell
from numbarnn.engines import BackwardBuffers, Engine, ForwardBuffers


@dataclass
class ForwardPass:
    """The arrays of a forward call; after training, the tape that backward reads.

    Attributes:
        x: (T, B, I).
        weights: weights[layer][direction], a dict with "W", "R", "b_w", "b_r".
        hidden_sizes: H of each layer.
        training: keep what backward needs, and drop out.
        p, seed, call: dropout between layers: probability, key, number of the training call.
        h: h[layer] (T + 2, B, D * H), slot t + 1 is step t, slots 0 and T + 1 the initial states.
        c: c[layer], likewise (T + 2, B, D * N * H); (2, B, D * N * H) in inference.
        gates: gates[layer, direction] (T, B, max(K, G) * H): x Wᵀ, then, in training, what the cell saves.
    """

    engine: Engine
    cell: Cell
    x: Any
    weights: list
    hidden_sizes: tuple
    training: bool
    p: float = 0.0
    seed: int = 0
    call: int = 0
    h: list = field(default_factory=list)
    c: list = field(default_factory=list)
    gates: dict = field(default_factory=dict)
    _inputs: dict = field(default_factory=dict)
    _walks: dict = field(default_factory=dict)  # (layer, direction) -> the engine's function of [first, last)

    def __post_init__(self):
        self.steps, self.batch, _ = self.x.shape  # T, B
        self.directions = len(self.weights[0])  # D
        self.dropping = self.training and self.p > 0 and len(self.weights) > 1  # between layers, in this call

    def output(self, layer):
        """(T, B, D * H), the layer's output: a view."""
        return self.h[layer][1:-1]

    def input(self, layer):
        """(T, B, I), what the layer reads: x, or the output of the layer below after dropout."""
        if layer == 0:
            return self.x
        if not self.dropping:
            return self.output(layer - 1)
        if layer not in self._inputs:
            below = self.output(layer - 1)
            dropped = self.engine.empty(below.shape, below.dtype)
            self.engine.dropout(dropped, below, self.p, self.seed, layer - 1, self.call)
            self._inputs[layer] = dropped
        return self._inputs[layer]

    def forget_input(self, layer):
        """Free the dropped-out copy of a layer's input; `input` makes it again."""
        self._inputs.pop(layer, None)

    def run(self, plan):
        """Do the plan's tasks."""
        do = {"dropout": self._dropout, "input": self._input_product, "steps": self._steps}
        for task in plan.tasks:
            do[task.kind](task)
        self._inputs.clear()

    def _dropout(self, task):
        self.input(task.layer)

    def _input_product(self, task):
        """x Wᵀ for the task's steps; in training into a buffer that also holds what the cell saves."""
        G, K, H = self.cell.num_gates, self.cell.num_saved, self.hidden_sizes[task.layer]
        x, W, key = self.input(task.layer), self.weights[task.layer][task.direction]["W"], (task.layer, task.direction)
        if key not in self.gates:
            width = (max(K, G) if self.training else G) * H
            self.gates[key] = self.engine.empty((self.steps, self.batch, width), x.dtype)
        if self.engine.fuses_input:
            return
        when = task.times(self.steps)
        self.engine.multiply(rows(self.gates[key][when])[:, : G * H], rows(x[when]), W, transpose_b=True)

    def _steps(self, task):
        key = (task.layer, task.direction)
        if key not in self._walks:
            self._walks[key] = self._walk(task)
        self._walks[key](task.first, task.last)
        if task.last == self.steps:
            del self._walks[key]
            if not (self.training and self.cell.num_saved):
                del self.gates[key]  # nothing in it is needed any more

    def _walk(self, task):
        """The engine's function that runs steps [first, last) of the task's layer and direction."""
        part, ax = self.weights[task.layer][task.direction], self.gates[task.layer, task.direction]
        fused = {"x": self.input(task.layer), "W": part["W"]} if self.engine.fuses_input else {}
        return self.engine.forward_steps(
            ForwardBuffers(
                cell=self.cell,
                direction=task.direction,
                save=self.training,
                h=self.h[task.layer],
                c=self.c[task.layer],
                ax=ax,
                ah=self.engine.empty((self.batch, self.cell.num_gates * self.hidden_sizes[task.layer]), ax.dtype),
                R=part["R"],
                b_w=part["b_w"],
                b_r=part["b_r"],
                **fused,
            )
        )


@dataclass
class BackwardPass:
    """The arrays of a backward call.

    Attributes:
        tape: the forward call; its `gates` are overwritten.
        dy: dy[layer] (T, B, D * H), the gradient of the layer's output; the last layer's at first.
        dh, dc: [layer][direction] (B, H) and (B, N * H): the gradient of the final states, at last of the initial ones.
        dw: dw[layer][direction], dicts like the weights', for the parameters' gradients.
        accumulate: gradients are added to dw, not written over it.
        dx: (T, B, I) when done.
    """

    tape: ForwardPass
    dy: dict
    dh: list
    dc: list
    dw: list | None = None
    accumulate: bool = True
    dx: Any = None
    _dax: dict = field(default_factory=dict)
    _dah: dict = field(default_factory=dict)
    _walks: dict = field(default_factory=dict)  # (layer, direction) -> the engine's function of [first, last)

    def run(self, plan):
        """Do the plan's tasks."""
        do = {
            "dropout": self._dropout,
            "input": self._input_gradient,
            "steps": self._steps,
            "weights": self._weights,
        }
        for task in plan.tasks:
            do[task.kind](task)

    def _steps(self, task):
        key = (task.layer, task.direction)
        if key not in self._walks:
            self._walks[key] = self._walk(task)
        self._walks[key](task.first, task.last)

    def _walk(self, task):
        """The engine's function that runs steps [first, last) of the task's layer and direction, walking back."""
        tape, cell, key = self.tape, self.tape.cell, (task.layer, task.direction)
        h = tape.h[task.layer]
        shape = (tape.steps, tape.batch, cell.num_gates * tape.hidden_sizes[task.layer])
        dax = tape.gates[key] if cell.num_saved else tape.engine.empty(shape, h.dtype)
        dah = dax if cell.same_gradient else tape.engine.empty(shape, h.dtype)
        self._dax[key], self._dah[key] = dax, dah
        return tape.engine.backward_steps(
            BackwardBuffers(
                cell=cell,
                direction=task.direction,
                dh=self.dh[task.layer][task.direction],
                dc=self.dc[task.layer][task.direction],
                dax=dax,
                dah=dah,
                dy=self.dy[task.layer],
                h=h,
                c=tape.c[task.layer],
                R=tape.weights[task.layer][task.direction]["R"],
            )
        )

    def _gates(self, gradients, task, direction):
        """(T * B, G * H) of a direction's pre-activation gradients."""
        return rows(gradients[task.layer, direction])[
            :, : self.tape.cell.num_gates * self.tape.hidden_sizes[task.layer]
        ]

    def _input_gradient(self, task):
        """dx = dax W, summed over the directions: the gradient of the output of the layer below."""
        tape = self.tape
        W = [part["W"] for part in tape.weights[task.layer]]
        dx = tape.engine.empty((tape.steps, tape.batch, W[0].shape[1]), tape.x.dtype)
        for direction in range(tape.directions):
            gates = self._gates(self._dax, task, direction)
            tape.engine.multiply(rows(dx), gates, W[direction], accumulate=direction > 0)
        if task.layer == 0:
            self.dx = dx
        else:
            self.dy[task.layer - 1] = dx

    def _dropout(self, task):
        """The gradient through dropout: the same mask."""
        tape, dy = self.tape, self.dy[task.layer - 1]
        tape.engine.dropout(dy, dy, tape.p, tape.seed, task.layer - 1, tape.call)

    def _weights(self, task):
        """The gradients of the parameters of one layer and direction."""
        tape, dw = self.tape, self.dw[task.layer][task.direction]
        H, h = tape.hidden_sizes[task.layer], tape.h[task.layer]
        h_before = h[:-2] if task.direction == 0 else h[2:]
        columns = slice(task.direction * H, (task.direction + 1) * H)
        dax, dah = (self._gates(part, task, task.direction) for part in (self._dax, self._dah))
        x, h_before = rows(tape.input(task.layer)), rows(h_before)[:, columns]
        tape.engine.weight_gradients(dw, dax, dah, x, h_before, self.accumulate)
        if task.direction == tape.directions - 1:
            tape.forget_input(task.layer)


def rows(array):
    """(T, B, N) as (T * B, N): a view, as all arrays here are contiguous."""
    return array.reshape(-1, array.shape[-1])
