"""Executors: they walk a plan and call the engine. No cell maths here.

`ForwardPass` and `BackwardPass` hold the arrays of one call; `run` does a plan's tasks, in order or, if the plan is
concurrent, as jobs of the engine. For each task there are two things to do: `make_room` for what it writes (the arrays
come from the caller's stream), and `bind` it to its arrays, which gives the function that does it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numbarnn.cells import precision
from numbarnn.cells.philox import dropout_masks
from numbarnn.engines import BackwardBuffers, Engine, ForwardBuffers, Job
from numbarnn.schedules.problem import Problem


class _Pass(ABC):
    """What both passes do alike: run a plan."""

    def run(self, plan):
        """Do the plan's tasks."""
        if plan.concurrent:
            self._run_side_by_side(plan)
        else:
            for task in plan.tasks:
                self.make_room(task)
                self.bind(task)()
                self.forget(task)
        self.finish()

    def _run_side_by_side(self, plan):
        for task in plan.last_of_each:  # an array is for all tasks of its kind, layer and direction
            self.make_room(task)
        self.engine.run_jobs(lambda: self._jobs(plan), (plan, *self.facts()), self.arrays())
        for task in plan.last_of_each:
            self.forget(task)

    def _jobs(self, plan):
        tasks_and_needs = zip(plan.tasks, plan.needs, strict=True)
        return [Job(task.lane, needs, partial(self.bind, task)) for task, needs in tasks_and_needs]

    @abstractmethod
    def make_room(self, task):
        """Make the arrays that the task and all of its kind, layer and direction write, where they do not exist."""

    @abstractmethod
    def bind(self, task):
        """A function without arguments that does the task; makes no arrays."""

    @abstractmethod
    def forget(self, task):
        """Let go of what no task needs once the last of its kind, layer and direction is done."""

    @abstractmethod
    def finish(self):
        """Let go of what this plan's tasks needed and later ones make again."""

    @abstractmethod
    def arrays(self):
        """Every array that the pass reads or writes."""

    @abstractmethod
    def facts(self):
        """A hashable tuple of what its tasks depend on besides the plan and the arrays."""

    @abstractmethod
    def make_walk(self, task):
        """The engine's function that runs steps [first, last) of the task's layer and direction."""

    def _bind_steps(self, task):
        key = (task.layer, task.direction)
        if key not in self._walks:
            self._walks[key] = self.make_walk(task)
        return partial(self._walks[key], task.first, task.last)


@dataclass
class ForwardPass(_Pass):
    """The arrays of a forward call; after training, the tape that backward reads.

    Attributes:
        x: (T, B, I).
        weights: weights[layer][direction], a dict with "W", "R", "b_w", "b_r".
        flat: the buffer that these are views of (the biases only if the layers have any).
        seed, call: key of the dropout masks, number of the training call.
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
    seed: int = 0
    call: int = 0
    h: list = field(default_factory=list)
    c: list = field(default_factory=list)
    gates: dict = field(default_factory=dict)
    _inputs: dict = field(default_factory=dict)
    _products: dict = field(default_factory=dict)  # (layer, direction) -> h Rᵀ of one step
    _walks: dict = field(default_factory=dict)  # (layer, direction) -> the engine's function of [first, last)

    masks: Any = None
    scale: float | None = None

    def __post_init__(self):
        if self.dropping:
            problem = self.problem
            self.scale, masks = dropout_masks(problem.dropout, self.seed, problem.layers - 1, self.call)
            self.masks = self.engine.from_host(masks)

    steps = property(lambda self: self.problem.steps, doc="T.")
    batch = property(lambda self: self.problem.batch, doc="B.")
    dropping = property(lambda self: self.problem.dropping, doc="Whether there is dropout between layers.")

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
            self._inputs[layer] = self.engine.empty(below.shape, below.dtype)
        return self._inputs[layer]

    def gates_of(self, layer, direction):
        """(T, B, G * H): x Wᵀ; in training (T, B, max(K, G) * H), later what the cell saves."""
        key = (layer, direction)
        if key not in self.gates:
            cell = self.problem.cell
            width = max(cell.num_saved, cell.num_gates) if self.problem.training else cell.num_gates
            shape = (self.steps, self.batch, width * self.problem.hidden_sizes[layer])
            self.gates[key] = self.engine.empty(shape, self.x.dtype)
        return self.gates[key]

    def _product_of(self, layer, direction):
        """(B, G * H): h Rᵀ of one step, scratch."""
        key = (layer, direction)
        if key not in self._products:
            shape = (self.batch, self.problem.cell.num_gates * self.problem.hidden_sizes[layer])
            self._products[key] = self.engine.empty(shape, precision.compute_dtype(self.problem.dtype))
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
        return partial(self.engine.multiply, ax, rows(self.input(task.layer)[when]), W, transpose_b=True)

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

    def arrays(self):
        weights = [part[name] for layer in self.weights for part in layer for name in ("W", "R", "b_w", "b_r")]
        made = [*self.gates.values(), *self._products.values(), *self._inputs.values()]
        made += [] if self.masks is None else [self.masks]
        return [self.x, *weights, *self.h, *self.c, *made]

    def facts(self):
        return (self.problem,)


@dataclass
class BackwardPass(_Pass):
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

    engine = property(lambda self: self.tape.engine)
    problem = property(lambda self: self.tape.problem)

    def dax_of(self, layer, direction):
        """The gradient of x Wᵀ: (T, B, max(K, G) * H), in the place of what the cell saved; (T, B, G * H) if it saved
        nothing."""
        if self.problem.cell.num_saved and (layer, direction) not in self._dax:
            return self.tape.gates[layer, direction]
        return self._gradient(self._dax, layer, direction)

    def separate_gradients(self, layer, direction):
        """From now on `dax_of` and `dah_of` are arrays (T, B, G * H) apart from what the cell saved; returns these: one, or
        two (dah first) where the cell's two gradients differ."""
        dax = self._gradient(self._dax, layer, direction)
        return (dax,) if self.problem.cell.same_gradient else (self.dah_of(layer, direction), dax)

    def dah_of(self, layer, direction):
        """The gradient of h Rᵀ, (T, B, G * H): the same array as `dax_of` where the cell's two gradients are equal."""
        if self.problem.cell.same_gradient:
            return self.dax_of(layer, direction)
        return self._gradient(self._dah, layer, direction)

    def _gradient(self, arrays, layer, direction):
        key = (layer, direction)
        if key not in arrays:
            width = self.problem.cell.num_gates * self.problem.hidden_sizes[layer]
            arrays[key] = self.engine.empty((self.tape.steps, self.tape.batch, width), self.tape.x.dtype)
        return arrays[key]

    def dx_of(self, layer):
        """(T, B, I), the gradient of the layer's input: `dx`, or `dy` of the layer below."""
        made = self.dx if layer == 0 else self.dy.get(layer - 1)
        if made is None:
            width = self.tape.weights[layer][0]["W"].shape[1]
            made = self.engine.empty((self.tape.steps, self.tape.batch, width), self.tape.x.dtype)
            if layer == 0:
                self.dx = made
            else:
                self.dy[layer - 1] = made
        return made

    def make_room(self, task):
        if task.kind == "steps":
            self.dah_of(task.layer, task.direction)
        elif task.kind == "input":
            self.dx_of(task.layer)
        elif task.kind == "remake":
            self.tape.input(task.layer)

    def bind(self, task):
        bind = {
            "dropout": self._bind_dropout,
            "input": self._bind_input,
            "remake": self.tape.bind_dropout,
            "steps": self._bind_steps,
            "weights": self._bind_weights,
        }
        return bind[task.kind](task)

    def make_walk(self, task):
        tape, place = self.tape, (task.layer, task.direction)
        return self.engine.backward_steps(
            BackwardBuffers(
                cell=self.problem.cell,
                direction=task.direction,
                dh=self.dh[task.layer][task.direction],
                dc=self.dc[task.layer][task.direction],
                dax=self.dax_of(*place),
                dah=self.dah_of(*place),
                dy=self.dy[task.layer],
                h=tape.h[task.layer],
                c=tape.c[task.layer],
                R=tape.weights[task.layer][task.direction]["R"],
            )
        )

    def _bind_input(self, task):
        """dx = dax W for the task's times, summed over the directions."""
        when, multiply = task.times(self.tape.steps), self.engine.multiply
        dx, products = rows(self.dx_of(task.layer)[when]), []
        for direction, part in enumerate(self.tape.weights[task.layer]):
            dax = self._columns(self.dax_of(task.layer, direction)[when], task.layer)
            products.append(partial(multiply, dx, dax, part["W"], accumulate=direction > 0))
        return partial(_one_after_another, products)

    def _bind_dropout(self, task):
        """The gradient through dropout: the same mask."""
        tape, when = self.tape, task.times(self.tape.steps)
        dy, mask = self.dx_of(task.layer)[when], tape.masks[task.layer - 1]
        return partial(self.engine.dropout, dy, dy, mask, tape.scale, when.start * dy[0].size)

    def _bind_weights(self, task):
        """The gradients of the parameters of one layer and direction."""
        tape, place = self.tape, (task.layer, task.direction)
        H, h = self.problem.hidden_sizes[task.layer], tape.h[task.layer]
        h_before = rows(h[2 * task.direction :][: tape.steps])[:, task.direction * H : (task.direction + 1) * H]
        dax, dah = (self._columns(part, task.layer) for part in (self.dax_of(*place), self.dah_of(*place)))
        dw, x = self.dw[task.layer][task.direction], rows(tape.input(task.layer))
        return partial(self.engine.weight_gradients, dw, dax, dah, x, h_before, self.accumulate)

    def _columns(self, gradient, layer):
        """(T * B, G * H) of pre-activation gradients, whose rows may be longer."""
        return rows(gradient)[:, : self.problem.cell.num_gates * self.problem.hidden_sizes[layer]]

    def forget(self, task):
        """Nothing: `backward_weights` may follow."""

    def finish(self):
        self._walks.clear()
        self.tape.finish()

    def arrays(self):
        gradients = [self.dy, self._dax, self._dah]
        states = [part for state in (self.dh, self.dc) for layer in state for part in layer]
        parameters = [array for layer in self.dw or () for part in layer for array in part.values()]
        made = [array for group in gradients for array in group.values()]
        dx = [] if self.dx is None else [self.dx]
        return [*self.tape.arrays(), *states, *parameters, *made, *dx]

    def facts(self):
        return (self.problem, self.accumulate)


def rows(array):
    """(T, B, N) as (T * B, N): a view, as all arrays here are contiguous."""
    return array.reshape(-1, array.shape[-1])


def _nothing():
    """The task of an engine that does it as part of another."""


def _one_after_another(functions):
    for function in functions:
        function()
