"""The backward pass: its tasks on the arrays of a call."""

from functools import partial
from typing import Any, NamedTuple

from numbarnn.common.order import RESET
from numbarnn.engines.base import EVERY_ROW
from numbarnn.kernels.step.groups import BackwardBuffers, Gradients, Saved, Scratch
from numbarnn.passes import buffers
from numbarnn.passes.executor import Pass, form_of_state, one_after_another, part_of_state, rows, state_arrays

_GATES = frozenset(["gates"])


class Need(NamedTuple):
    """What a backward pass is asked for besides the gradients of the initial states, which come with its steps.

    Attributes:
        x, weights: the gradients of x and of the parameters: products over all steps that are left out otherwise.
        again: the tape is kept as it is, for further backward passes. Gradients of pre-activations get memory of their
            own; otherwise they overwrite what the cell saved.
        frozen: (layer, direction) pairs whose parameters' gradients nobody reads. What stands for them in dw is not
            specified: plans may leave their tasks out (`Plan.without_weights`).
    """

    x: bool = True
    weights: bool = True
    again: bool = False
    frozen: frozenset = frozenset()


ALL = Need()


class Given(NamedTuple):
    """The gradients of what forward returned; None is zero.

    Attributes:
        y: of the last layer's output, of the shape of the tape's `y`.
        h, c: of the final states, like ForwardPass.hx.
        states: of the private states of every step, of the shape of y but for its width, D * N * H.
    """

    y: Any = None
    h: Any = None
    c: Any = None
    states: Any = None


class BackwardPass(Pass):
    """A backward call.

    Args:
        tape: the forward pass; what the cell saved is overwritten, unless it is needed again.
        given: the gradients of what forward returned, `Given`.
        space: the `WeightSpace` of dw.
        dw: a buffer for the parameters' gradients, laid out as the weights; None: one of its own where they are asked
            for without `accumulate`.
        accumulate: gradients are added to dw, not written over it.
        need: a `Need`.

    Attributes:
        the buffers of `buffers.BACKWARD`.
        dhx, dcx: the gradients of the initial states, when done; dcx is None without private states.
    """

    table = buffers.Table(buffers.BACKWARD)

    def __init__(self, tape, given, space, dw=None, accumulate=True, need=ALL):
        problem, self.tape, self.space, self.accumulate = tape.problem, tape, space, accumulate
        self.need = need
        allocate = tape.engine.allocate(tape.weights_of_kind, problem, "backward")
        super().__init__(tape.engine, problem, allocate)
        self.caller, self.rewrites = tape.caller, problem.batch_major
        self.recurrent = tape.recurrent if tape.remade else None  # a reserve does not have it
        if need.again:
            self.separate = _GATES
        self.trouble = tape.trouble  # what is wrong with the tape is wrong with gradients
        self.allocate("call")
        self.dhy, self.dcy = self.take("dhy", given.h), self.take("dcy", given.c)
        self.dy, self.d_states = self.take("dy", given.y), self.take("d_states", given.states)
        if problem.batch_major and given.states is not None:
            self.allocate("d_states_copy")
        if given.y is None or problem.batch_major:
            self.allocate("dy_copy")
        if need.x:
            self.allocate("dx_copy")
        if problem.is_segment or problem.dtype == problem.state_dtype:  # else what accumulates is rounded at the end
            self.dhx, self.dcx = self.dh, self.dc
        self.dw = dw
        if dw is None and not accumulate:
            self.allocate("dw")
        if self.dw is not None and tape.formed is not None:
            self.allocate("d_formed")

    def dx_of(self, layer):
        """(T, B, I), the gradient of the layer's input."""
        return self.dx[layer]

    def dy_of(self, layer):
        """(T, B, D * P), the gradient of the layer's output."""
        if layer + 1 < self.problem.layers:
            return self.dx[layer + 1]
        return self.dy if self.dy_copy is None else self.dy_copy

    def d_states_of(self, layer):
        """(T, B, D * N * H), the gradient of every step's private states, which the last layer's may have."""
        if layer + 1 < self.problem.layers:
            return None
        return self.d_states if self.d_states_copy is None else self.d_states_copy

    def state_gradients(self, layer, direction):
        """dh (B, P) and dc (B, N * H) of a layer and direction: at first of the final state, at last of the initial."""
        problem = self.problem
        dh = part_of_state(problem, self.dh, layer)[direction]
        if self.dc is not None:
            return dh, part_of_state(problem, self.dc, layer)[direction]
        return dh, self.engine.empty((problem.batch, 0), problem.state_dtype)

    def _shared(self, name):
        return getattr(self.tape if name == "gates" else self, name)

    @property
    def _adds_dropped(self):
        """Whether gradients of R are dropped out and then added to others."""
        return self.accumulate and self.tape.recurrent is not None and self.tape.recurrent.words is not None

    def form_weights(self):
        self.tape.form_weights()  # again: another call may have formed others there
        if self.tape.formed is not None and self.dw is not None:
            self.allocate("d_formed")
            if self.accumulate:
                self.engine.zero(self.d_formed)

    def pull_back(self):
        if self.tape.formed is not None and self.dw is not None:
            self.tape.formed.pull_back(self.dw, self.d_formed, self.accumulate)

    # -------------------------------------------------------------------------------------------------------- tasks
    def allocate_for(self, task):
        super().allocate_for(task)
        if task.kind == "remake":
            self.tape.allocate_for(task)
        elif task.kind == "weights" and self._adds_dropped:
            self.allocate("dR")

    def steps_function(self, layer, direction):
        tape, problem, place = self.tape, self.problem, (layer, direction)
        cell = problem.cell
        dh, dc = self.state_gradients(*place)
        group = BackwardBuffers(
            cell=cell,
            direction=direction,
            parameters=tape.parameters_of(*place),
            states=tape.states_of(layer),
            saved=Saved(tape.gates.get(place), tape.v.get(place), tape.sums.get(place)),
            gradients=Gradients(
                dh=dh,
                dc=dc,
                dax=self.dax[place],
                dah=self.dah[place],
                dy=self.dy_of(layer),
                dht=self.dht.get(place),
                d_per_unit=self.d_per_unit.get(place),
                d_states=self.d_states_of(layer),
            ),
            scratch=Scratch(dm=self.dm.get(place), d_v=self.d_v.get(place), d_sums=self.d_sums.get(place)),
            options=tape.options_of(*place),
            allow_tf32=problem.allow_tf32,
            call_steps=problem.segment_of or problem.steps,
        )
        return self.engine.backward_steps(group)

    def bind_launch(self, task):
        """All steps of several layers."""
        from numbarnn.passes import launches  # and with them Numba for GPUs, half a second

        return launches.bind_backward(self, task.launch)

    def bind_remake(self, task):
        """The layer's input, dropped out once more."""
        return self.tape.bind_dropout(task)

    def bind_input(self, task):
        """dx = dax W for the task's times, summed over the directions."""
        when = task.times(self.tape.steps)
        dx, products = rows(self.dx_of(task.layer)[when]), []
        for direction in range(self.problem.directions):
            gates = self.problem.cell.num_gates
            dax = self._columns(self.dax[task.layer, direction][when], task.layer, gates)
            mode = self.tape.input_mode(task.layer)
            if mode == "given":
                products.append(partial(self.engine.copy, dx[:, direction * dax.shape[1] :][:, : dax.shape[1]], dax))
                continue
            if mode == "skip":
                products.append(partial(self.engine.sum_gates, dx, dax, gates, accumulate=direction > 0))
                continue
            W, options = self.tape.W_of(task.layer, direction), {"accumulate": direction > 0}
            if len(W):
                allow_tf32 = self.problem.allow_tf32
                products.append(
                    partial(self.engine.multiply, dx, dax[:, : len(W)], W, allow_tf32=allow_tf32, **options)
                )
                options["accumulate"] = True
            if copied := self.problem.copied_gates[task.layer]:
                products.append(partial(self.engine.sum_gates, dx, dax[:, len(W) :], copied, **options))
        return partial(one_after_another, products)

    def bind_dropout(self, task):
        """The gradient through dropout: the same mask."""
        tape, when = self.tape, task.times(self.tape.steps)
        dy, mask = self.dx_of(task.layer)[when], tape.masks[task.layer - 1]
        return partial(self.engine.dropout, dy, dy, mask, tape.scale, when.start * dy[0].size)

    def bind_weights(self, task):
        """The gradients of the parameters of one layer and direction."""
        tape, place, direction = self.tape, (task.layer, task.direction), task.direction
        P, h, cell = self.problem.output_sizes[task.layer], tape.h[task.layer], self.problem.cell
        h_before, columns = h[2 * direction :][: tape.steps], slice(direction * P, (direction + 1) * P)
        dax = self._columns(self.dax[place], task.layer, cell.num_gates)
        dah = self._columns(self.dah[place], task.layer, cell.num_ah)
        dw, x, work = self.space.pseudo_layer(self.dw, *place, self.d_formed), rows(tape.input(task.layer)), []
        if self.problem.resets:
            states, step_mask = self.h_before[place], tape.step_mask[direction][1:-1]
            work.append(partial(self.engine.select, states, h_before[:, :, columns], step_mask, RESET, 0.0))
            h_before, columns = states, slice(None)
        plain, h_before = dict(dw), rows(h_before)[:, columns]
        if "W" in dw and self.problem.copied_gates[task.layer]:  # nobody asks for the gradients of an identity
            plain["W"] = dw["W"][: len(tape.W_of(*place))]
            plain = {kind: part for kind, part in plain.items() if len(part)}
        if tape.recurrent is not None:
            plain.pop("R", None)
        elif cell.num_products:  # their rows of R multiplied something else
            plain["R"] = dw["R"][: cell.num_recurrent * self.problem.hidden_sizes[task.layer]]
        operands = plain, dax, dah, x, h_before
        options = self.accumulate, self.problem.allow_tf32, self._rows_of_h(direction)
        work.append(partial(self.engine.weight_gradients, *operands, *options))
        work += self._recurrent_gradients(dw, dah, h_before, place)
        work += self._further_gradients(dw, place)
        return partial(one_after_another, work)

    def _rows_of_h(self, direction):
        """Which rows of h before each step, (T * B, P), may be other than zero: without an initial h not those of the
        direction's first step."""
        batch = self.problem.batch
        if not self.tape.from_zero:
            return EVERY_ROW
        return slice(batch, None) if direction == 0 else slice(0, batch * (self.tape.steps - 1))

    def _recurrent_gradients(self, dw, dah, h_before, place):
        """Functions for the gradients of those rows of R that are not one product with h: of stages, or all of them
        where steps multiply with another R."""
        cell, H, recurrent = self.problem.cell, self.problem.hidden_sizes[place[0]], self.tape.recurrent
        options = {"accumulate": self.accumulate, "allow_tf32": self.problem.allow_tf32}
        per_unit = [h_before] * cell.num_recurrent
        for stage in cell.product_stages:
            of_R, first = cell.rows_of_stage(stage, H), cell.product_number(stage) * H
            v = rows(self.tape.v[place])[:, first : first + H]
            per_unit += [v] * len(cell.stages[stage].gates)
            if recurrent is None:
                yield partial(self.engine.multiply, dw["R"][of_R], dah[:, of_R], v, transpose_a=True, **options)
        if recurrent is not None:
            scratch = self.dR[place] if self._adds_dropped else None
            yield from recurrent.gradient(dw["R"], scratch, dah, per_unit, place, **options)

    def _further_gradients(self, dw, place):
        """Functions for the gradients of what not every cell has besides: per_unit, W_hr."""
        cell, H, engine = self.problem.cell, self.problem.hidden_sizes[place[0]], self.engine
        options = {"transpose_a": True, "accumulate": self.accumulate, "allow_tf32": self.problem.allow_tf32}
        if cell.per_unit:
            if not self.accumulate:
                yield partial(engine.zero, dw["per_unit"])
            yield partial(engine.add_column_sums, dw["per_unit"], rows(self.d_per_unit[place]))
        if "W_hr" in dw:
            m = rows(self.tape.m[place[0]][1:-1])[:, place[1] * H : (place[1] + 1) * H]
            yield partial(engine.multiply, dw["W_hr"], rows(self.dht[place]), m, **options)

    def _columns(self, gradient, layer, gates):
        """(T * B, gates * H) of pre-activation gradients, whose rows may be longer."""
        return rows(gradient)[:, : gates * self.problem.hidden_sizes[layer]]

    # ------------------------------------------------------------------------------------------ before and after them
    def finish(self):
        self.tape.finish()

    def results(self):
        """(dx as x was given, dhx, dcx) for the caller."""
        name, dx = (("dx", 0), self.dx.get(0)) if self.dx_copy is None else ("dx_copy", self.dx_copy)
        dh, dc = ("dh", "dc") if self.dhx is self.dh else ("dhx", "dcx")
        return self.hand_over(name, dx), self.hand_over(dh, self.dhx), self.hand_over(dc, self.dcx)

    def first_copies(self):
        """The gradients of the final states to where they accumulate."""
        if self.recurrent is not None:
            yield from self.recurrent.fill()
        if self.dy_copy is not None:
            yield self.put(self.dy_copy, None if self.dy is None else self.dy.transpose(1, 0, 2))
        if self.d_states_copy is not None:
            yield self.put(self.d_states_copy, self.d_states.transpose(1, 0, 2))
        if not self.launched:  # which read them where they are, and write those of the initial states
            yield from self.put_state(self.dh, self.dhy)
            yield from self.put_state(self.dc, self.dcy)

    def last_copies(self):
        """The gradients of the initial states, rounded to the layers' dtype; dx as x was given."""
        if self.dx_copy is not None:
            yield self.put(self.dx_copy, self.dx[0].transpose(1, 0, 2))
        if self.launched:
            return
        if self.problem.resets:  # nothing reaches an initial state that counted as zero
            for layer in range(self.problem.layers):
                for direction in range(self.problem.directions):
                    step_mask = self.tape.step_mask[direction][1 if direction == 0 else -2][None]
                    for d_state in self.state_gradients(layer, direction):
                        if d_state.size:
                            yield partial(self.engine.select, d_state[None], d_state[None], step_mask, RESET, 0.0)
        if self.dhx is not self.dh:
            yield from self.put_state(self.dhx, self.dh)
            yield from self.put_state(self.dcx, self.dc)

    def arrays(self):
        others = [array for array in (self.dw, self.trouble) if array is not None]
        return [*self.tape.arrays(), *others, *super().arrays()]

    def result_arrays(self):
        dx = self.dx.get(0) if self.dx_copy is None else self.dx_copy
        given = [array for array in (dx, self.dw, self.d_formed) if array is not None]
        return [*given, *state_arrays(self.dhx), *state_arrays(self.dcx)]

    def facts(self):
        forms = form_of_state(self.dhy), form_of_state(self.dcy)
        absent = self.dy is None, self.d_states is None
        of_tape = self.tape.origin.place, self.tape.remade
        return self.problem, self.caller, self.accumulate, absent, self.need, *of_tape, *forms
