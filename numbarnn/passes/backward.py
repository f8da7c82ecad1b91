"""The arrays of a backward call, and its tasks on them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from numbarnn.common.order import RESET
from numbarnn.engines import BackwardBuffers
from numbarnn.kernels.step.groups import Gradients, Parameters, Saved, Scratch
from numbarnn.passes.executor import (
    Pass,
    arrays_of_state,
    form_of_state,
    new_state,
    one_after_another,
    part_of_state,
    rows,
)
from numbarnn.passes.forward import ForwardPass


@dataclass
class BackwardPass(Pass):
    """The arrays of a backward call.

    Attributes:
        tape: the forward call; its `gates` are overwritten.
        dy_last: the gradient of the last layer's output, of the shape of the tape's `y`; None is zero.
        dhy, dcy: the gradients of the final states, like ForwardPass.hx; None is zero.
        parts: function of `dw`: parts(dw)[layer][direction], dicts like the weights'.
        dw: a buffer for the parameters' gradients, laid out as the weights.
        accumulate: gradients are added to dw, not written over it.
        dy: dy[layer] (T, B, D * H), the gradient of the layer's output.
        dh, dc: [layer][direction] (B, H) and (B, N * H): the gradient of the final states, at last of the initial ones.
            With projection dh is P wide.
        dx: (T, B, I) when done.
        dhx, dcx: the gradients of the initial states, when done; dcx is None without private states.
    """

    tape: ForwardPass
    dy_last: Any
    dhy: Any
    dcy: Any
    parts: Callable
    dw: Any = None
    accumulate: bool = True
    dy: dict = field(default_factory=dict)
    dx: Any = None
    dhx: Any = None
    dcx: Any = None
    _dax: dict = field(default_factory=dict)
    _dah: dict = field(default_factory=dict)
    _dht: dict = field(default_factory=dict)  # (layer, direction) -> with projection, all of the gradient of h
    _dm: dict = field(default_factory=dict)  # (layer, direction) -> that of m of one step, scratch
    _d_v: dict = field(default_factory=dict)  # (layer, direction) -> the gradient of v of one step, scratch
    _d_sums: dict = field(default_factory=dict)  # (layer, direction) -> that of its sums of one step, scratch
    _d_per_unit: dict = field(default_factory=dict)  # (layer, direction) -> that of the cell's per_unit in each step
    _h_before: dict = field(default_factory=dict)  # (layer, direction) -> with resets, see `h_before`
    _dR: dict = field(default_factory=dict)  # (layer, direction) -> the gradient of R before it is added, see `_dR_of`
    _walks: dict = field(default_factory=dict)  # (layer, direction) -> the engine's function of [first, last)

    engine = property(lambda self: self.tape.engine)
    problem = property(lambda self: self.tape.problem)
    caller = property(lambda self: self.tape.caller)
    batch_major = property(lambda self: self.tape.batch_major)
    rewrites = property(lambda self: self.tape.batch_major)

    def __post_init__(self):
        problem, last = self.problem, self.dy_last
        make = self._room = self.tape.room_for_gradients()
        self.trouble = self.tape.trouble  # what is wrong with the tape is wrong with gradients
        self.dhy, self.dcy = self.settled_state("dhy", self.dhy), self.settled_state("dcy", self.dcy)
        if last is not None:
            last = self.dy_last = self.settled("dy given" if self.batch_major else "dy", last)
        self._dx_copy = None
        if self.batch_major:
            self._dx_copy = make("dx copy", self.tape.x_shape, problem.dtype)
        if last is None or self.batch_major:
            width = problem.directions * problem.output_sizes[-1]
            last = make("dy", (problem.steps, problem.batch, width), problem.dtype)
        self.dy[problem.layers - 1] = last
        private, rounded = problem.cell.num_private, problem.dtype != problem.state_dtype
        h_shapes, c_shapes = problem.h_shapes, problem.c_shapes
        self._dh_sum = self.dhx = new_state(make, "dh", h_shapes, problem.state_dtype)
        self._dc_sum = self.dcx = new_state(make, "dc", c_shapes, problem.state_dtype) if private else None
        if rounded:  # what accumulates is rounded once, at the end
            self.dhx = new_state(make, "dhx", h_shapes, problem.dtype)
            self.dcx = new_state(make, "dcx", c_shapes, problem.dtype) if private else None

    @cached_property
    def dh(self):
        return [part_of_state(self.problem, self._dh_sum, layer) for layer in range(self.problem.layers)]

    @cached_property
    def dc(self):
        problem = self.problem
        if self._dc_sum is None:
            nothing = self.engine.empty((problem.directions, problem.batch, 0), problem.state_dtype)
            return [nothing] * problem.layers
        return [part_of_state(problem, self._dc_sum, layer) for layer in range(problem.layers)]

    def dax_of(self, layer, direction):
        """The gradient of x Wᵀ: (T, B, max(K, G) * H), in the place of what the cell saved; (T, B, G * H) if it saved
        nothing."""
        if self.problem.cell.num_saved and (layer, direction) not in self._dax:
            return self.tape.gates[layer, direction]
        return self._gradient("dax", self._dax, layer, direction, self.problem.cell.num_gates)

    def separate_gradients(self, layer, direction):
        """From now on `dax_of` and `dah_of` are arrays (T, B, G * H) apart from what the cell saved; returns these: one
        or, where the cell's two gradients differ, two (dah first)."""
        dax = self._gradient("dax", self._dax, layer, direction, self.problem.cell.num_gates)
        return (dax,) if self.problem.cell.same_gradient else (self.dah_of(layer, direction), dax)

    def dah_of(self, layer, direction):
        """The gradient of h Rᵀ, (T, B, A * H): the same array as `dax_of` where the cell's two gradients are equal."""
        if self.problem.cell.same_gradient:
            return self.dax_of(layer, direction)
        return self._gradient("dah", self._dah, layer, direction, self.problem.cell.num_ah)

    def _gradient(self, name, arrays, layer, direction, gates):
        width = gates * self.problem.hidden_sizes[layer]
        shape = (self.tape.steps, self.tape.batch, width)
        return self._made(arrays, name, (layer, direction), shape, self.problem.dtype)

    def dx_of(self, layer):
        """(T, B, I), the gradient of the layer's input: `dx`, or `dy` of the layer below."""
        made = self.dx if layer == 0 else self.dy.get(layer - 1)
        if made is None:
            made = self._room(("dx", layer), self.tape.input(layer).shape, self.problem.dtype)
            if layer == 0:
                self.dx = made
            else:
                self.dy[layer - 1] = made
        return made

    def d_per_unit_of(self, layer, direction):
        """(T, B, V * H): the gradient of the cell's per_unit in each step."""
        width = len(self.problem.cell.per_unit) * self.problem.hidden_sizes[layer]
        shape = (self.tape.steps, self.tape.batch, width)
        return self._made(self._d_per_unit, "d_per_unit", (layer, direction), shape, self.problem.dtype)

    def _dht_of(self, layer, direction):
        """With projection, (T, B, P): all of the gradient of h."""
        shape = (self.tape.steps, self.tape.batch, self.problem.projection)
        return self._made(self._dht, "dht", (layer, direction), shape, self.problem.dtype)

    def _scratch_of(self, arrays, name, layer, direction, count=1):
        """(B, count * H), a gradient of one step."""
        shape = (self.tape.batch, count * self.problem.hidden_sizes[layer])
        return self._made(arrays, name, (layer, direction), shape, self.problem.state_dtype)

    def _d_sums_of(self, layer, direction):
        """(B, Q), the gradient of the sums over units of one step, scratch."""
        shape = (self.tape.batch, self.problem.cell.num_sums)
        return self._made(self._d_sums, "d_sums", (layer, direction), shape, self.problem.state_dtype)

    def _h_before_of(self, layer, direction):
        """With resets, (T, B, H): the states before the steps with zeros where they count as zero."""
        shape = (self.tape.steps, self.tape.batch, self.problem.output_sizes[layer])
        return self._made(self._h_before, "h before", (layer, direction), shape, self.problem.dtype)

    @property
    def _adds_dropped(self):
        """Whether gradients of R are dropped out and then added to others."""
        return self.accumulate and self.tape.recurrent is not None and self.tape.recurrent.words is not None

    def _dR_of(self, place):
        """Like the parameter R, scratch for its gradient where that is dropped out and then added."""
        return self._made(self._dR, "dR", place, self.tape.recurrent.parameter(place).shape, self.problem.dtype)

    def _made(self, arrays, name, key, shape, dtype):
        if key not in arrays:
            arrays[key] = self._room((name, key), shape, dtype)
        return arrays[key]

    def make_room(self, task):
        place = task.layer, task.direction
        if task.kind == "steps":
            self.dax_of(*place), self.dah_of(*place)
            if self.problem.projection:
                self._dht_of(*place), self._scratch_of(self._dm, "dm", *place)
            if self.problem.cell.num_products:
                self._scratch_of(self._d_v, "d_v", *place, self.problem.cell.num_products)
            if self.problem.cell.num_sums:
                self._d_sums_of(*place)
            if self.problem.cell.per_unit:
                self.d_per_unit_of(*place)
        elif task.kind == "input":
            self.dx_of(task.layer)
        elif task.kind == "remake":
            self.tape.input(task.layer)
        elif task.kind == "weights":
            if self.problem.resets:
                self._h_before_of(*place)
            if self._adds_dropped:
                self._dR_of(place)

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
        tape, problem, layer, direction = self.tape, self.problem, task.layer, task.direction
        own, cell, place = tape.weights[layer][direction], problem.cell, (layer, direction)
        buffers = BackwardBuffers(
            cell=cell,
            direction=direction,
            parameters=Parameters(
                R=own["R"] if tape.recurrent is None else tape.recurrent.R(place),
                b_w=own["b_w"],
                b_r=own["b_r"],
                W_hr=own["W_hr"] if problem.projection else None,
                per_unit=own["per_unit"] if cell.per_unit else None,
            ),
            states=tape.states_of(layer),
            saved=Saved(gates=self.dax_of(*place), v=tape.v.get(place), sums=tape.sums.get(place)),
            gradients=Gradients(
                dh=self.dh[layer][direction],
                dc=self.dc[layer][direction],
                dax=self.dax_of(*place),
                dah=self.dah_of(*place),
                dy=self.dy[layer],
                dht=self._dht.get(place),
                d_per_unit=self._d_per_unit.get(place),
            ),
            scratch=Scratch(dm=self._dm.get(place), d_v=self._d_v.get(place), d_sums=self._d_sums.get(place)),
            options=tape.options_of(*place),
            allow_tf32=problem.allow_tf32,
        )
        return self.engine.backward_steps(buffers)

    def _bind_input(self, task):
        """dx = dax W for the task's times, summed over the directions."""
        when = task.times(self.tape.steps)
        dx, products = rows(self.dx_of(task.layer)[when]), []
        for direction, part in enumerate(self.tape.weights[task.layer]):
            gates = self.problem.cell.num_gates
            dax = self._columns(self.dax_of(task.layer, direction)[when], task.layer, gates)
            if self.tape.skips_input(task.layer):
                products.append(partial(self.engine.sum_gates, dx, dax, gates, accumulate=direction > 0))
                continue
            options = {"accumulate": direction > 0, "allow_tf32": self.problem.allow_tf32}
            products.append(partial(self.engine.multiply, dx, dax, part["W"], **options))
        return partial(one_after_another, products)

    def _bind_dropout(self, task):
        """The gradient through dropout: the same mask."""
        tape, when = self.tape, task.times(self.tape.steps)
        dy, mask = self.dx_of(task.layer)[when], tape.masks[task.layer - 1]
        return partial(self.engine.dropout, dy, dy, mask, tape.scale, when.start * dy[0].size)

    def _bind_weights(self, task):
        """The gradients of the parameters of one layer and direction."""
        tape, place, direction = self.tape, (task.layer, task.direction), task.direction
        P, h, cell = self.problem.output_sizes[task.layer], tape.h[task.layer], self.problem.cell
        h_before, columns = h[2 * direction :][: tape.steps], slice(direction * P, (direction + 1) * P)
        dax = self._columns(self.dax_of(*place), task.layer, cell.num_gates)
        dah = self._columns(self.dah_of(*place), task.layer, cell.num_ah)
        dw, x, work = self.parts(self.dw)[task.layer][direction], rows(tape.input(task.layer)), []
        if self.problem.resets:
            states, step_mask = self._h_before_of(*place), tape.step_mask[direction][1:-1]
            work.append(partial(self.engine.select, states, h_before[:, :, columns], step_mask, RESET, 0.0))
            h_before, columns = states, slice(None)
        outer, h_before = dw, rows(h_before)[:, columns]
        if tape.recurrent is not None:
            outer = {kind: part for kind, part in dw.items() if kind != "R"}
        elif cell.num_products:  # their rows of R multiplied something else
            outer = dw | {"R": dw["R"][: cell.num_recurrent * self.problem.hidden_sizes[task.layer]]}
        operands = outer, dax, dah, x, h_before
        work.append(partial(self.engine.weight_gradients, *operands, self.accumulate, self.problem.allow_tf32))
        work += self._recurrent_gradients(dw, dah, h_before, place)
        work += self._further_gradients(dw, dah, place)
        return partial(one_after_another, work)

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
            scratch = self._dR_of(place) if self._adds_dropped else None
            yield from recurrent.gradient(dw["R"], scratch, dah, per_unit, place, **options)

    def _further_gradients(self, dw, dah, place):
        """Functions for the gradients of what not every cell has besides: per_unit, W_hr."""
        cell, H, engine = self.problem.cell, self.problem.hidden_sizes[place[0]], self.engine
        options = {"transpose_a": True, "accumulate": self.accumulate, "allow_tf32": self.problem.allow_tf32}
        if cell.per_unit:
            if not self.accumulate:
                yield partial(engine.zero, dw["per_unit"])
            yield partial(engine.add_column_sums, dw["per_unit"], rows(self._d_per_unit[place]))
        if "W_hr" in dw:
            m = rows(self.tape.m[place[0]][1:-1])[:, place[1] * H : (place[1] + 1) * H]
            yield partial(engine.multiply, dw["W_hr"], rows(self._dht_of(*place)), m, **options)

    def _columns(self, gradient, layer, gates):
        """(T * B, gates * H) of pre-activation gradients, whose rows may be longer."""
        return rows(gradient)[:, : gates * self.problem.hidden_sizes[layer]]

    def forget(self, task):
        """Nothing: `backward_weights` may follow."""

    def finish(self):
        self._walks.clear()
        self.tape.finish()

    def results(self):
        """(dx as x was given, dhx, dcx) for the caller."""
        name, dx = ("dx copy", self._dx_copy) if self.batch_major else (("dx", 0), self.dx)
        dx = self.engine.handed_over(self._room, name, dx)
        dh, dc = ("dh", "dc") if self.dhx is self._dh_sum else ("dhx", "dcx")
        return dx, self.handed_over_state(dh, self.dhx), self.handed_over_state(dc, self.dcx)

    def first_copies(self):
        """The gradients of the final states to where they accumulate."""
        yield from self.tape.unchanged()
        last = self.dy[self.problem.layers - 1]
        if self.dy_last is None:
            yield self.put(last, None)
        elif self.batch_major:
            yield self.put(last, self.dy_last.transpose(1, 0, 2))
        yield from self.put_state(self._dh_sum, self.dhy)
        yield from self.put_state(self._dc_sum, self.dcy)

    def last_copies(self):
        """The gradients of the initial states, rounded to the layers' dtype; dx as x was given."""
        if self.batch_major:
            yield self.put(self._dx_copy, self.dx.transpose(1, 0, 2))
        if self.problem.resets:  # nothing reaches an initial state that counted as zero
            for layer in range(self.problem.layers):
                for direction in range(self.problem.directions):
                    step_mask = self.tape.step_mask[direction][1 if direction == 0 else -2][None]
                    for d_state in (self.dh[layer][direction][None], self.dc[layer][direction][None]):
                        if d_state.size:
                            yield partial(self.engine.select, d_state, d_state, step_mask, RESET, 0.0)
        if self.dhx is not self._dh_sum:
            yield from self.put_state(self.dhx, self._dh_sum)
            yield from self.put_state(self.dcx, self._dc_sum)

    def arrays(self):
        states = (self.dhy, self.dcy, self._dh_sum, self._dc_sum, self.dhx, self.dcx)
        groups = (self.dy, self._dax, self._dah, self._dht, self._dm, self._h_before)
        groups = (*groups, self._d_v, self._d_sums, self._d_per_unit, self._dR)
        made = [array for group in groups for array in group.values()]
        others = self.dw, self.dx, self.dy_last, self._dx_copy, self.trouble
        made += [array for array in others if array is not None]
        return [*self.tape.kept_arrays(), *(array for state in states for array in arrays_of_state(state)), *made]

    def result_arrays(self):
        dx = self._dx_copy if self.batch_major else self.dx
        given = [array for array in (dx, self.dw) if array is not None]
        return [*given, *arrays_of_state(self.dhx), *arrays_of_state(self.dcx)]

    def facts(self):
        forms = form_of_state(self.dhy), form_of_state(self.dcy)
        return self.problem, self.caller, self.accumulate, self.dy_last is None, *forms
