"""The forward pass: its tasks on the arrays of a call."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from numbarnn.common.order import SKIP
from numbarnn.common.philox import WHOLE, Origin, noise_words
from numbarnn.engines import Engine
from numbarnn.kernels.step.groups import ForwardBuffers, Options, Saved, Scratch, States
from numbarnn.passes import buffers
from numbarnn.passes.executor import Pass, form_of_state, one_after_another, part_of_state, rows, state_arrays
from numbarnn.passes.recurrent_weights import RecurrentWeights
from numbarnn.passes.reserve import Reserving
from numbarnn.schedules.plan import BOTH
from numbarnn.schedules.problem import Problem


class Call(NamedTuple):
    """What a pass knows of its call besides the caller's arrays.

    Attributes:
        weights: what kernels read of the parameters: its `views` [layer][direction] -> `Parameters` (what there is not
            is None, but for R and biases), the buffer `flat` that these are views of, and `formed`, a `FormedWeights`
            where kernels read what is made of the parameters, else None.
        seed, number: key of the dropout masks and of noise, number of the training call.
        caller: who called, as text: what an error says that is found out later.
        keeps: work with copies of the weights and of x, which the caller may change before backward reads them again.
        reserves: keep all that backward reads besides x and the weights in one buffer (`reserve`).
        from_zero: of a call with a reserve, whose initial states backward does not see: there is no initial h.
        origin: where the steps stand in the call whose random numbers they draw.
        step_mask: of a segment, (1, T + 2, B); None where there is none, or it follows from lengths and resets.
    """

    engine: Engine
    problem: Problem
    weights: Any
    seed: int = 0
    number: int = 0
    caller: str = ""
    keeps: bool = False
    reserves: bool = False
    from_zero: bool = False
    origin: Origin = WHOLE
    step_mask: Any = None


class ForwardPass(Pass, Reserving):
    """A forward call; after training, the tape that backward reads.

    Args:
        call: the `Call`.
        x: (T, B, I), or (B, T, I) if the problem is batch-major.
        hx, cx: the initial states, an array or a list with one per layer (`problem.state_shapes`); None is zero.
        lengths, resets: (B,) int32 and (T, B) uint8, of NumPy or the engine; None: nothing out of the ordinary.
        fill: what stands in y beyond a sequence's length.

    Attributes:
        the buffers of `buffers.FORWARD`; what the call knows.
        remade: it was made of a reserve.
        from_zero: there is no initial h: products with it are left out, of R here and of its gradient in backward.
    """

    table = buffers.Table(buffers.FORWARD)
    remade = False

    def __init__(self, call, x, hx=None, cx=None, lengths=None, resets=None, fill=0.0):
        super().__init__(call, call.engine.allocate(call.weights.flat, call.problem))
        engine, problem = self.engine, self.problem
        if call.reserves:
            self.keep_in(None)
        self.allocate("call")
        self.hx, self.cx = self.take("hx", hx), self.take("cx", cx)
        self.fill = fill
        if not call.reserves:
            self.from_zero = hx is None
        self.rewrites = self.y_copy is not None
        if self.x_copy is None:
            self.x = self.keep("x", x) if call.keeps else self.take("x", x, own=problem.training)
        else:
            self.x_given, self.x = self.take("x_given", x), self.x_copy
        if problem.masked and problem.is_segment:
            self.step_mask_given = self.take("step_mask_given", call.step_mask)
        elif problem.masked:
            if lengths is None:
                self.lengths = engine.constant(np.full(self.batch, self.steps, np.int32))
            else:
                self.lengths = self._on_engine("lengths", lengths)
            self.resets = self.step_mask[0, :0] if resets is None else self._on_engine("resets", resets)
        self._draw()

    @classmethod
    def of_reserve(cls, call, x, reserve):
        """The tape of a forward pass that is over, made again; it is good for backward alone.

        Args:
            call: what the `Call` was. x: as it was, or None where backward needs no gradients of parameters, or the
                reserve has a copy of x (`Problem.copies_x`).
            reserve: that pass's, or a copy.
        """
        self = cls.__new__(cls)
        Reserving.__init__(self, call, call.engine.allocate(call.weights.flat, call.problem))
        self.remade = True
        self.find_in(reserve)
        self.x = self.x_copy if self.x_copy is not None else self.take("x", x, own=True)
        self._draw()
        return self

    def _draw(self):
        """What the call's random numbers follow from; and R where steps have another one."""
        problem = self.problem
        if problem.dropping:
            self.draw_masks()
        self.recurrent = RecurrentWeights.made_for(self)
        if problem.training and problem.cell.noise:
            words = noise_words(self.seed, problem.layers * problem.directions, self.call, self.origin)
            self.noise = self.from_host("noise", words)

    def _on_engine(self, name, array):
        """An array of the engine, copied there if it is NumPy's."""
        if not isinstance(array, np.ndarray) or self.engine.array_module is np:
            return self.take(name, array)
        return self.from_host(name, array)

    @property
    def y(self):
        """The last layer's output: a view (T, B, D * P), or the copy that the caller gets."""
        return self.output(self.problem.layers - 1) if self.y_copy is None else self.y_copy

    def output(self, layer):
        """(T, B, D * P), the layer's output: a view."""
        return self.h[layer][1:-1]

    def input(self, layer):
        """(T, B, I), what the layer reads: x, or the output of the layer below; with dropout an array of its own, which
        the layer's "dropout" (in backward "remake") tasks fill."""
        if layer == 0:
            return self.x
        return self.dropped_input[layer] if self.dropping else self.output(layer - 1)

    def form_weights(self):
        if self.formed is not None:
            self.formed.form()

    # -------------------------------------------------------------------------------------------------------- tasks
    def bind_dropout(self, task):
        """Fill the layer's input for the task's times."""
        when, below = task.times(self.steps), self.output(task.layer - 1)
        out, mask = self.input(task.layer)[when], self.masks[task.layer - 1]
        return partial(self.engine.dropout, out, below[when], mask, self.scale, when.start * below[0].size)

    def bind_input(self, task):
        """x Wᵀ for the task's steps."""
        layer, direction, cell = task.layer, task.direction, self.problem.cell
        when = task.times(self.steps)
        ax = rows(self.ax[layer, direction][when])[:, : cell.num_gates * self.problem.hidden_sizes[layer]]
        x = rows(self.input(layer)[when])
        mode = self.input_mode(layer)
        if mode == "skip":
            return partial(self.engine.spread, ax, x, cell.num_gates)
        if mode == "given":
            return partial(self.engine.copy, ax, x[:, direction * ax.shape[1] :][:, : ax.shape[1]])
        W, work = self.W_of(layer, direction), []
        if len(W):
            options = {"transpose_b": True, "allow_tf32": self.problem.allow_tf32}
            work.append(partial(self.engine.multiply, ax[:, : len(W)], x, W, **options))
        for first in range(len(W), ax.shape[1], x.shape[1]):
            work.append(partial(self.engine.copy, ax[:, first : first + x.shape[1]], x))
        return work[0] if len(work) == 1 else partial(one_after_another, work)

    def W_of(self, layer, direction):
        """The rows of W that multiply x; those of gates that are x itself come after them."""
        W, copied = self.weights[layer][direction].W, self.problem.copied_gates[layer]
        return W[: len(W) - copied * self.problem.hidden_sizes[layer]] if copied else W

    def input_mode(self, layer):
        """How x Wᵀ of a layer comes to be, one of `numbarnn.weights.INPUT_MODES`."""
        return self.problem.input_mode if layer == 0 else "linear"

    def allocate_for(self, task):
        super().allocate_for(task)
        if task.launch is not None:  # which drops out between its layers itself
            for layer in task.launch.layer_range[1:]:
                self.allocate("dropout", layer, BOTH)

    def bind_launch(self, task):
        """All steps of several layers."""
        from numbarnn.passes import launches  # and with them Numba for GPUs, half a second

        return launches.bind_forward(self, task.launch)

    def steps_function(self, layer, direction):
        problem, place = self.problem, (layer, direction)
        fuses = layer not in problem.input_products
        group = ForwardBuffers(
            cell=problem.cell,
            direction=direction,
            save=problem.training,
            parameters=self.parameters_of(layer, direction, fuses),
            states=self.states_of(layer),
            saved=Saved(self.gates.get(place), self.v.get(place), self.sums.get(place)),
            scratch=Scratch(ax=self.ax[place], ah=self.ah[place]),
            options=self.options_of(*place),
            x=self.input(layer) if fuses else None,
            from_zero=self.from_zero,
            allow_tf32=problem.allow_tf32,
            call_steps=problem.segment_of or problem.steps,
        )
        return self.engine.forward_steps(group)

    def parameters_of(self, layer, direction, fuses=False):
        """The `Parameters` of a layer and direction as steps take them; W where they multiply x themselves."""
        own = self.weights[layer][direction]
        if own.W is not None:
            own = own._replace(W=self.W_of(layer, direction) if fuses else None)
        return own if self.recurrent is None else own._replace(R=self.recurrent.R((layer, direction)))

    def states_of(self, layer):
        """The layer's `States`."""
        return States(self.h[layer], self.c[layer], self.m.get(layer))

    def options_of(self, layer, direction):
        """What is out of the ordinary in a layer and direction: `Options`."""
        step_mask = None if self.step_mask is None else self.step_mask[direction]
        noise = None if self.noise is None else self.noise[layer * self.problem.directions + direction]
        return Options(step_mask, noise, self.problem.chances)

    # ------------------------------------------------------------------------------------------ before and after them
    def first_copies(self):
        """R where steps have one of their own; the step mask; x as tasks read it; initial states into their slots: the
        first of the forward direction, the last of the backward."""
        problem, engine = self.problem, self.engine
        if self.recurrent is not None:
            yield from self.recurrent.fill()
        if problem.masked:
            if problem.is_segment:
                yield partial(engine.copy, self.step_mask, self.step_mask_given)
            else:
                yield partial(engine.fill_step_mask, self.step_mask, self.lengths, self.resets)
            for m in self.m.values():  # carried through where the first step is skipped, multiplied by gradients of 0
                yield from (self.put(m[0], None), self.put(m[-1], None))
        if self.x_given is not None:
            given = self._time_major(self.x_given)
            if problem.padded:
                yield partial(engine.select, self.x, given, self.step_mask[0, 1:-1], SKIP, 0.0)
            else:
                yield self.put(self.x, given)
        yield from self._copies_in(_without(self.h, self.launched), self.hx)
        if problem.cell.num_private:
            yield from self._copies_in(_without(self.c, self.launched), self.cx)

    def last_copies(self):
        """y as the caller gets it; the states after each direction's last step."""
        problem = self.problem
        if self.rewrites:
            y, output = self._time_major(self.y), self.output(problem.layers - 1)
            if problem.padded:
                yield partial(self.engine.select, y, output, self.step_mask[0, 1:-1], SKIP, self.fill)
            else:
                yield self.put(y, output)

        if self.all_states is not None:
            own, c = self._time_major(self.all_states), self.c[problem.layers - 1][1:-1]
            if problem.padded:
                step_mask = self.step_mask[0, 1:-1]
                yield partial(self.engine.select, own, c, step_mask, SKIP, self.fill)
            else:
                yield self.put(own, c)

        yield from self._copies_out(_without(self.h, self.launched), self.hy)
        if problem.cell.num_private:
            yield from self._copies_out(_without(self.c, self.launched), self.cy)

    def _copies_in(self, states, given):
        """The functions that copy a state into the slots from which the directions start; without one they clear them:
        in whole, as other columns of a slot are the other direction's, which starts at zero too."""
        for slot, columns, part in self._slots(states, given, (0, self.problem.steps + 1)):
            yield partial(self.engine.zero, slot) if part is None else partial(self.engine.copy, columns, part)

    def _copies_out(self, states, results):
        """Those that copy the slots after each direction's last step."""
        for _, columns, part in self._slots(states, results, (self.problem.steps, 1)):
            yield partial(self.engine.copy, part, columns)

    def _slots(self, states, other, numbers):
        """(Slot, the direction's columns of it, that part of the other state) for each layer's h or c, in the slot with
        each direction's number."""
        directions = self.problem.directions
        for layer, slots in states.items():
            for direction, number in enumerate(numbers[:directions]):
                slot = slots[number % len(slots)]
                width = slot.shape[1] // directions
                columns = slot[:, direction * width : (direction + 1) * width] if directions > 1 else slot
                part = None if other is None else part_of_state(self.problem, other, layer)[direction]
                yield slot, columns, part

    def _time_major(self, array):
        """A view of the caller's x or y with time first."""
        return array.transpose(1, 0, 2) if self.batch_major else array

    def finish(self):
        if self.problem.training:
            self.x_given = self.hx = self.cx = self.step_mask_given = None  # copied to where backward needs them
            if self.dropping:
                self.dropped_input.clear()
            self.release_all()

    def results(self):
        """(y, hy, cy) for the caller, and all private states where the problem keeps them."""
        name = "y_copy"
        if self.y_copy is None:
            name = ("h", self.problem.layers - 1) if self.reserve is None else "reserve"
        if self.keeps and self.y_copy is None and self.engine.records_jobs:
            y = self.engine.settled(self._allocate, "y_result", self.y, own=True)  # backward reads h again
        else:
            y = self.hand_over(name, self.y)
        own = y, self.hand_over("hy", self.hy), self.hand_over("cy", self.cy)
        return own if self.all_states is None else (*own, self.hand_over("all_states", self.all_states))

    def arrays(self):
        if self.recurrent is not None:
            self.recurrent.allocate()
        return [self.flat, self.read.no_bias, *super().arrays()]

    def result_arrays(self):
        return [self.y, *state_arrays(self.hy), *state_arrays(self.cy), *state_arrays(self.all_states)]

    def facts(self):  # the fill as text: NaN is not equal to itself
        forms = form_of_state(self.hx), form_of_state(self.cx)
        return self.problem, self.origin.place, self.caller, str(self.fill), *forms


def _without(states, layers):
    """States by layer, without those of some layers."""
    return {layer: slots for layer, slots in states.items() if layer not in layers}
