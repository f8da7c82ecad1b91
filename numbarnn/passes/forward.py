"""The arrays of a forward call, and its tasks on them."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from numbarnn.common.order import SKIP
from numbarnn.common.philox import dropout_masks, noise_words
from numbarnn.engines import Engine, ForwardBuffers
from numbarnn.kernels.step.groups import Options, Parameters, Saved, Scratch, States
from numbarnn.passes import recurrent_weights
from numbarnn.passes.executor import Pass, arrays_of_state, form_of_state, new_state, part_of_state, rows
from numbarnn.schedules.problem import Problem


@dataclass
class ForwardPass(Pass):
    """The arrays of a forward call; after training, the tape that backward reads.

    Attributes:
        x: (T, B, I). With `batch_major` it is given as (B, T, I) and copied; so it is in training where sequences may
            be shorter, with zeros beyond their lengths. x_shape: its shape as it was given.
        weights: weights[layer][direction], a dict with "W", "R", "b_w", "b_r".
        flat: the buffer that these are views of (the biases only if the layers have any).
        hx, cx: the initial states, an array or a list with one per layer, as `Problem.h_shapes`; None is zero.
        seed, call: key of the dropout masks and of noise, number of the training call.
        batch_major: the caller's arrays have the axes of batch and time exchanged.
        lengths, resets: (B,) int32 and (T, B) uint8, of NumPy or the engine; None: nothing out of the ordinary.
        fill: what stands in y beyond a sequence's length.
        caller: who called, as text: what an error says that is found out later.
        watched: in training, on an engine that compares as a job: `samples.places` of the weights and of the last
            layer's h, from which a change before backward is seen; else None.
        y: (T, B, D * H), the last layer's output, a view; with `batch_major` (B, T, D * H), a copy; a copy also where
            sequences may be shorter.
        hy, cy: the final states, in the form of `Problem.h_shapes`; cy is None without private states.
        step_mask: (D, T + 2, B) uint8, what each step of each sequence is (`numbarnn.common.order`); None if not
        masked.
        recurrent: a `RecurrentWeights` where steps multiply with another R than the parameter; else None.
        masks, scale: with dropout, what `philox.dropout_masks` returns for all layers but the last; else None.
        h: h[layer] (T + 2, B, D * H), slot t + 1 is step t, slots 0 and T + 1 the initial states.
        m: m[layer] (T + 2, B, D * H), with projection the cell's outputs before it; then h is D * P wide.
        c: c[layer], likewise (T + 2, B, D * N * H); (2, B, D * N * H) in inference.
        noise: (L * D, 4) uint64, `philox.noise_words` of each layer and direction; None in inference and without noise.
        gates: see `gates_of`. v, sums: see `v_of`, `sums_of`.
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
    lengths: Any = None
    resets: Any = None
    fill: float = 0.0
    caller: str = ""
    watched: Any = None
    rewrites: bool = False
    hy: Any = None
    cy: Any = None
    h: list = field(default_factory=list)
    c: list = field(default_factory=list)
    m: list = ()
    step_mask: Any = None
    gates: dict = field(default_factory=dict)
    _inputs: dict = field(default_factory=dict)
    v: dict = field(default_factory=dict)
    sums: dict = field(default_factory=dict)
    _products: dict = field(default_factory=dict)  # (layer, direction) -> h Rᵀ of one step
    _walks: dict = field(default_factory=dict)  # (layer, direction) -> the engine's function of [first, last)

    masks: Any = None
    scale: float | None = None
    noise: Any = None
    recurrent: Any = None

    def __post_init__(self):
        problem = self.problem
        make = self._room = self.engine.rooms((problem, self.engine.address(self.flat)))
        self.hx, self.cx = self.settled_state("hx", self.hx), self.settled_state("cx", self.cx)
        T, B, D = problem.steps, problem.batch, problem.directions
        for layer, (h_shape, m_shape, c_shape) in enumerate(problem.slot_shapes):
            self.h.append(make(("h", layer), h_shape, problem.dtype))
            self.c.append(make(("c", layer), c_shape, problem.state_dtype))
            if problem.projection:
                self.m = [*self.m, make(("m", layer), m_shape, problem.dtype)]
        self.x_shape, self._given, self._y_copy = self.x.shape, None, None
        self.rewrites = self.batch_major or problem.padded
        if self.rewrites:
            self._y_copy = make("y", (*self.x_shape[:2], h_shape[2]), problem.dtype)
        if self.batch_major or (problem.padded and problem.training):
            self._given = self.settled("x given", self.x)
            self.x = make("x", (T, B, problem.input_size), problem.dtype)
        else:  # backward reads it again
            self.x = self.settled("x", self.x, own=problem.training)
        self.hy = new_state(make, "hy", problem.h_shapes, problem.dtype)
        if problem.cell.num_private:
            self.cy = new_state(make, "cy", problem.c_shapes, problem.dtype)
        if problem.masked:
            self.step_mask = make("step_mask", (D, T + 2, B), "uint8")
            whole, none = self.lengths is None, self.resets is None
            self.lengths = (
                self.engine.constant(np.full(B, T, np.int32)) if whole else self._on_engine("lengths", self.lengths)
            )
            self.resets = self.step_mask[0, :0] if none else self._on_engine("resets", self.resets)
        if self.dropping:
            self.scale, masks = dropout_masks(problem.dropout, self.seed, problem.layers - 1, self.call)
            self.masks = self.engine.from_host_into(make, "masks", masks)
        self.recurrent = recurrent_weights.made_for(self, make)
        if problem.training and problem.cell.noise:
            words = noise_words(self.seed, problem.layers * D, self.call)
            self.noise = self.engine.from_host_into(make, "noise", words)
        if self.watched is not None:
            from numbarnn.kernels.arrays import fingerprint

            self._seen = make("seen", (fingerprint.MOST_ARRAYS, fingerprint.BLOCKS), "uint64")
            self.may_fail()  # backward says in this word what has changed

    def _on_engine(self, name, array):
        """An array of the engine, copied there if it is NumPy's."""
        if not isinstance(array, np.ndarray) or self.engine.array_module is np:
            return self.settled(name, array)
        return self.engine.from_host_into(self._room, name, array)

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
        """(B, A * H): h Rᵀ of one step, scratch; A gates, G but for general cells."""
        key = (layer, direction)
        if key not in self._products:
            shape = (self.batch, self.problem.cell.num_ah * self.problem.hidden_sizes[layer])
            self._products[key] = self._room(("product", key), shape, self.problem.state_dtype)
        return self._products[key]

    def v_of(self, layer, direction):
        """(T, B, S * H), what the rows of R of S further products multiply; in inference (1, B, S * H)."""
        width = self.problem.cell.num_products * self.problem.hidden_sizes[layer]
        return self._of_steps(self.v, "v", (layer, direction), width, self.problem.dtype)

    def sums_of(self, layer, direction):
        """(T, B, Q), the sums over units; in inference (1, B, Q)."""
        width = self.problem.cell.num_sums
        return self._of_steps(self.sums, "sums", (layer, direction), width, self.problem.state_dtype)

    def _of_steps(self, arrays, name, key, width, dtype):
        """An array (T, B, width) of what stages make, kept for backward; in inference (1, B, width)."""
        if key not in arrays:
            kept = self.steps if self.problem.training else 1
            arrays[key] = self._room((name, key), (kept, self.batch, width), dtype)
        return arrays[key]

    def make_room(self, task):
        if task.kind == "dropout":
            self.input(task.layer)
        else:
            self.gates_of(task.layer, task.direction)
            if task.kind == "steps":
                self._product_of(task.layer, task.direction)
                if self.problem.cell.num_products:
                    self.v_of(task.layer, task.direction)
                if self.problem.cell.num_sums:
                    self.sums_of(task.layer, task.direction)

    def bind(self, task):
        if task.kind == "steps":
            return self._bind_steps(task)
        return self._bind_input(task) if task.kind == "input" else self.bind_dropout(task)

    def bind_dropout(self, task):
        """Fill the layer's input for the task's times."""
        when, below = task.times(self.steps), self.output(task.layer - 1)
        out, mask = self.input(task.layer)[when], self.masks[task.layer - 1]
        return partial(self.engine.dropout, out, below[when], mask, self.scale, when.start * below[0].size)

    def _bind_input(self, task):
        """x Wᵀ for the task's steps."""
        skips = self.skips_input(task.layer)
        if self.engine.fuses_input and not skips:
            return _nothing
        gates = self.problem.cell.num_gates
        when = task.times(self.steps)
        ax = rows(self.gates_of(task.layer, task.direction)[when])[:, : gates * self.problem.hidden_sizes[task.layer]]
        x, allow_tf32 = rows(self.input(task.layer)[when]), self.problem.allow_tf32
        if skips:
            return partial(self.engine.spread, ax, x, gates)
        W = self.weights[task.layer][task.direction]["W"]
        return partial(self.engine.multiply, ax, x, W, transpose_b=True, allow_tf32=allow_tf32)

    def skips_input(self, layer):
        """Whether x itself stands for x Wᵀ."""
        return layer == 0 and self.problem.skip_input

    def make_walk(self, task):
        problem, layer, direction = self.problem, task.layer, task.direction
        own, cell, place = self.weights[layer][direction], problem.cell, (layer, direction)
        fuses = self.engine.fuses_input and not self.skips_input(layer)
        ax = self.gates_of(*place)
        buffers = ForwardBuffers(
            cell=cell,
            direction=direction,
            save=problem.training,
            parameters=Parameters(
                R=own["R"] if self.recurrent is None else self.recurrent.R(place),
                b_w=own["b_w"],
                b_r=own["b_r"],
                W=own["W"] if fuses else None,
                W_hr=own["W_hr"] if problem.projection else None,
                per_unit=own["per_unit"] if cell.per_unit else None,
            ),
            states=self.states_of(layer),
            saved=Saved(
                gates=ax if problem.training else None,
                v=self.v_of(*place) if cell.num_products else None,
                sums=self.sums_of(*place) if cell.num_sums else None,
            ),
            scratch=Scratch(ax=ax, ah=self._product_of(*place)),
            options=self.options_of(*place),
            x=self.input(layer) if fuses else None,
            allow_tf32=problem.allow_tf32,
        )
        return self.engine.forward_steps(buffers)

    def states_of(self, layer):
        """The layer's `States`."""
        return States(self.h[layer], self.c[layer], self.m[layer] if self.problem.projection else None)

    def options_of(self, layer, direction):
        """What is out of the ordinary in a layer and direction: `Options`."""
        step_mask = self.step_mask[direction] if self.problem.masked else None
        noise = None if self.noise is None else self.noise[layer * self.problem.directions + direction]
        return Options(step_mask, noise)

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
        self._given = self.hx = self.cx = None  # copied to where backward needs them

    def results(self):
        """(y, hy, cy) for the caller."""
        name = ("h", self.problem.layers - 1) if self._y_copy is None else "y"
        y = self.engine.handed_over(self._room, name, self.y)
        return y, self.handed_over_state("hy", self.hy), self.handed_over_state("cy", self.cy)

    def room_for_gradients(self):
        """What makes the arrays of the backward pass; see `Engine.rooms`."""
        return self.engine.rooms((self.problem, self.engine.address(self.flat), "backward"))

    def first_copies(self):
        """R where steps have one of their own; the step_mask; x as tasks read it; the initial states into their slots:
        the first of the forward direction, the last of the backward."""
        problem, engine = self.problem, self.engine
        if self.recurrent is not None:
            yield from self.recurrent.fill()
        if problem.masked:
            yield partial(engine.fill_step_mask, self.step_mask, self.lengths, self.resets)
            for m in self.m:  # carried through where the first step is skipped, and multiplied by gradients of zero
                yield from (self.put(m[0], None), self.put(m[-1], None))
        if self._given is not None:
            given = self._time_major(self._given)
            if problem.padded:
                yield partial(engine.select, self.x, given, self.step_mask[0, 1:-1], SKIP, 0.0)
            else:
                yield self.put(self.x, given)
        starts = (0, problem.steps + 1)[: problem.directions]
        for arrays, given in ((self.h, self.hx), (self.c if problem.cell.num_private else (), self.cx)):
            for layer, array in enumerate(arrays):
                for direction, start in enumerate(starts):
                    slot = array[start % len(array)]
                    if given is None:  # other columns of the slot are the other direction's, which start at zero too
                        yield self.put(slot, None)
                    else:
                        part = part_of_state(problem, given, layer)[direction]
                        yield self.put(self._of_direction(slot, direction), part)

    def last_copies(self):
        """y as the caller gets it; the states after each direction's last step."""
        problem = self.problem
        if self.rewrites:
            y, output = self._time_major(self.y), self.output(problem.layers - 1)
            if problem.padded:
                yield partial(self.engine.select, y, output, self.step_mask[0, 1:-1], SKIP, self.fill)
            else:
                yield self.put(y, output)
        ends = (problem.steps, 1)[: problem.directions]
        for arrays, result in ((self.h, self.hy), (self.c if problem.cell.num_private else (), self.cy)):
            for layer, array in enumerate(arrays):
                part = part_of_state(problem, result, layer)
                for direction, end in enumerate(ends):
                    slot = array[end % len(array)]
                    yield self.put(part[direction], self._of_direction(slot, direction))
        if self.watched is not None:
            yield partial(self.engine.note, *self._watch())

    def unchanged(self):
        """The functions that notice, before backward, whether what it reads again has changed."""
        if self.watched is not None:
            yield partial(self.engine.compare, *self._watch())

    def _watch(self):
        """The arguments of `note` and `compare`."""
        return self._seen, (self.flat, self.h[-1]), self.watched, self.trouble

    def _time_major(self, array):
        """A view of the caller's x or y with time first."""
        return array.transpose(1, 0, 2) if self.batch_major else array

    def _of_direction(self, slot, direction):
        """The direction's columns of a slot of h or c."""
        width = slot.shape[1] // self.problem.directions
        return slot[:, direction * width : (direction + 1) * width]

    def arrays(self):
        states = [array for state in (self.hx, self.cx, self.hy, self.cy) for array in arrays_of_state(state)]
        copied = [array for array in (self._given, self._y_copy) if array is not None]
        about = [self.lengths, self.resets] if self.problem.masked else []
        return [*self.kept_arrays(), *states, *copied, *about]

    def kept_arrays(self):
        """Those that backward works on too."""
        groups = (self.gates, self.v, self.sums, self._products, self._inputs)
        made = [array for group in groups for array in group.values()]
        made += [words for words in (self.masks, self.noise, self.trouble) if words is not None]
        made += [] if self.recurrent is None else self.recurrent.arrays()
        made += self.m
        made += [self.step_mask] if self.problem.masked else []
        made += [] if self.watched is None else [self._seen, *self.watched]
        # biases may be apart from the other weights: then all are parts of one array
        biases = [self.weights[0][0][name] for name in ("b_w", "b_r")]
        return [self.x, self.flat, *biases, *self.h, *self.c, *made]

    def result_arrays(self):
        return [self.y, *arrays_of_state(self.hy), *arrays_of_state(self.cy)]

    def facts(self):  # the fill as text: NaN is not equal to itself
        forms = form_of_state(self.hx), form_of_state(self.cx)
        return self.problem, self.caller, self.batch_major, str(self.fill), *forms


def _nothing():
    """The task of an engine that does it as part of another."""
