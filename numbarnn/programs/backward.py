"""Build the backward program: turn each task of a plan into operations on the call's arrays."""

from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from numbarnn.common.order import RESET, SKIP
from numbarnn.kernels.step.groups import BackwardBuffers, Gradients, Scratch
from numbarnn.programs.forward import BUILDERS, ForwardSpec, as_given, forward
from numbarnn.programs.program import Builder
from numbarnn.programs.states import form_of_state, part_of_state, rows, state_arrays
from numbarnn.programs.views import stacked
from numbarnn.schedules.plan import Plan
from numbarnn.schedules.problem import state_shapes

EVERY_ROW = slice(None)


class Need(NamedTuple):
    """The gradients that a backward call computes besides those of the initial states, which it always computes.

    Attributes:
        x, weights: whether to compute the gradients of x and of the parameters, which take products over all steps.
        again: whether the tape must stay valid for another backward call. If not, gradients of pre-activations
            overwrite what the cell saved.
        frozen: (layer, direction) pairs whose parameters' gradients nobody reads. Plans may leave their tasks out
            (`Plan.without_weights`), and dw is then unspecified there.
        by_sequence: compute each sequence's gradients of the parameters, (B, ...), instead of their sum.
    """

    x: bool = True
    weights: bool = True
    again: bool = False
    frozen: frozenset = frozenset()
    by_sequence: bool = False


ALL = Need()


class ResultGrads(NamedTuple):
    """The gradients dL/d(result) that backward starts from; None is zero.

    Attributes:
        y: gradient of the last layer's output, shaped like the forward call's y.
        h, c: gradients of the final states, in the form of states.
        states: gradients of the cell states of every step, shaped like y with D*N*H columns.
    """

    y: Any = None
    h: Any = None
    c: Any = None
    states: Any = None


class BackwardSpec(NamedTuple):
    """The key of a backward program.

    Attributes:
        forward: the `ForwardSpec` of the call. plan: of the backward pass. need: a `Need`.
        dy, dhy, dcy, d_states: whether the caller passes each, and for states in which form (`states.form_of_state`).
        adds: whether gradients of parameters are added to a `dw` that the caller passes; else they are written to a new
            one, if the plan computes them.
        after: whether a backward program without gradients of parameters has run before, and this one computes the
            rest.
    """

    forward: ForwardSpec
    plan: Plan
    need: Need = ALL
    dy: bool = True
    dhy: bool | None = None
    dcy: bool | None = None
    d_states: bool = False
    adds: bool = False
    after: bool = False


def backward_spec(spec, plan, need, gradients, adds=False, after=False):
    """Return the `BackwardSpec` that follows a call of a `ForwardSpec`, for these `ResultGrads`."""
    forms = (
        gradients.y is not None,
        form_of_state(gradients.h),
        form_of_state(gradients.c),
        gradients.states is not None,
    )
    return BackwardSpec(spec.for_backward(), plan, need, *forms, adds, after)


class Backward(Builder):
    """Builds the backward program of a `BackwardSpec`.

    Attributes:
        tape: the `Forward` whose views it reads.
        dy, d_states: in the order in which tasks read them. dx: [layer] -> gradient of the layer's input.
        dax, dah and others: [layer, direction] -> view.
        dh, dc: gradients of the states: of the final states before the steps, of the initial states after them. dhx,
            dcx: gradients of the initial states for the caller.
        dw, d_derived: gradients of the parameters, and of the weights derived from them.
    """

    steps_kind = "backward_steps"

    def __init__(self, spec):
        self.tape = tape = forward(spec.forward)
        problem = tape.problem
        super().__init__(problem, spec.plan)
        self.spec, self.need, self.accumulate, self.caller = spec, spec.need, spec.adds, tape.caller
        self.given = dict(tape.given) | {"reserve": tape.reserve}
        self.rewrites = problem.batch_major
        self._make_flag()
        self._make_states()
        self._make_outputs()
        self._make_gates()
        if spec.after:
            self.given |= {view.name: view for view in self._for_weights()}
        self.program = self.build()

    # --------------------------------------------------------------------------------------------------------- buffers
    def _make_flag(self):
        self.error_flag = self.tape.error_flag  # if forward failed, its backward fails
        if self.plan.has_launches:
            self.exits = self.input("exits", (1,), "int64")
            if self.error_flag is None:
                self.error_flag, self.clears_error_flag = self.new("own_error_flag", (1,), "int64"), True

    def _make_states(self):
        p, spec, cell = self.problem, self.spec, self.problem.cell
        of_h = state_shapes(p.output_sizes, p.directions, p.batch)
        of_c = state_shapes(tuple(cell.num_private * H for H in p.hidden_sizes), p.directions, p.batch)
        dtype = "state" if p.is_segment else "storage"
        self.dhy = spec.dhy if spec.dhy is None else self.state(self.input, "dhy", as_given(of_h, spec.dhy, p), dtype)
        self.dcy = spec.dcy if spec.dcy is None else self.state(self.input, "dcy", as_given(of_c, spec.dcy, p), dtype)
        self.dh = self.dhx = self.state(self.new, "dh", of_h, "state")
        self.dc = self.dcx = self.state(self.new, "dc", of_c, "state") if cell.num_private else None
        if not p.is_segment and p.dtype != p.state_dtype:  # what accumulates is rounded at the end
            self.dhx = self.state(self.new, "dhx", of_h)
            self.dcx = self.state(self.new, "dcx", of_c) if cell.num_private else None

    def _make_outputs(self):
        p, spec = self.problem, self.spec
        outer, major = (p.steps, p.batch), (p.batch, p.steps) if p.batch_major else (p.steps, p.batch)
        widths = p.directions * p.output_sizes[-1], p.directions * p.cell.num_private * p.hidden_sizes[-1]
        self.dy_given = self.input("dy", (*major, widths[0])) if spec.dy else None
        self.dy, self.copies_dy = self.dy_given, p.batch_major or not spec.dy
        if self.copies_dy:
            self.dy = self.new("dy_copy", (*outer, widths[0]))
        self.d_states_given = self.input("d_states", (*major, widths[1])) if spec.d_states else None
        self.d_states, self.copies_d_states = self.d_states_given, p.batch_major and spec.d_states
        if self.copies_d_states:
            self.d_states = self.new("d_states_copy", (*outer, widths[1]))
        inputs = p.input_size, *(p.directions * P for P in p.output_sizes[:-1])
        self.dx = {layer: self.new(("dx", layer), (*outer, width)) for layer, width in enumerate(inputs)}
        self.dx_copy = self.new("dx_copy", (*major, p.input_size)) if self.need.x and p.batch_major else None
        whole = spec.forward.whole or p
        make, each = self.input if spec.adds else self.new, (p.batch,) if self.need.by_sequence else ()
        self.dw, self.d_derived = make("dw", (*each, whole.space.size)), None
        if whole.space.derived_size:
            self.d_derived = self.input("d_derived", (*each, whole.space.derived_size))

    def _make_gates(self):
        p, cell, tape, B = self.problem, self.problem.cell, self.tape, self.problem.batch
        names = ("dax", "dah", "d_per_unit", "dht", "dm", "d_v", "words", "d_sums", "h_before", "dR")
        for name in names:
            setattr(self, name, {})
        for layer, (H, P) in enumerate(zip(p.hidden_sizes, p.output_sizes, strict=True)):
            for direction in range(p.directions):
                place, outer = (layer, direction), (p.steps, B)
                shared = None if self.need.again or tape.launched else tape.gates.get(place)

                def new(name, shape, dtype="storage", place=place):
                    getattr(self, name)[place] = view = self.new((name, place), shape, dtype)
                    return view

                if self._writes_given(layer):
                    columns = self.dx[layer][:, :, direction * cell.num_gates * H :]
                    self.dax[place] = columns[:, :, : cell.num_gates * H]
                else:
                    self.dax[place] = new("dax", (*outer, cell.num_gates * H)) if shared is None else shared
                self.dah[place] = self.dax[place]
                if not cell.same_gradient:
                    new("dah", (*outer, cell.num_ah * H))
                if cell.per_unit:
                    new("d_per_unit", (*outer, len(cell.per_unit) * H))
                if p.projection:
                    new("dht", (*outer, P))
                    new("dm", (B, H), "state")
                if cell.num_products:
                    new("d_v", (B, cell.num_products * H), "state")
                if cell.num_sums:
                    new("words", (2, cell.num_sums, B, -(-H // 4)), "int64")
                    new("d_sums", (B, cell.num_sums), "state")
                if p.resets:
                    new("h_before", (*outer, P))
                if self._adds_dropped:
                    new("dR", (cell.num_ah * H, P // cell.heads))

    def _writes_given(self, layer):
        """Return whether steps write the gradient of a given W x directly to the caller's dx. If another call computes
        gradients of parameters from it, they do not, since the caller may change dx before that."""
        return self.tape.reads_given(layer) and self.has_weights and not self.spec.after

    def _for_weights(self):
        """Return the arrays from which gradients of parameters are computed after the steps."""
        kinds = self.dax, self.dah, self.d_per_unit, self.dht
        return [view for views in kinds for view in views.values()]

    def left_arrays(self):
        """Return the arrays to keep for a later program that computes the gradients of parameters
        (`BackwardSpec.after`)."""
        return [] if self.has_weights else self._for_weights()

    @cached_property
    def has_weights(self):
        """Return whether the plan computes gradients of parameters."""
        return any(task.kind == "weights" for task in self.plan.tasks)

    @property
    def _adds_dropped(self):
        """Return whether masked gradients of R are added to earlier ones, which takes a scratch array."""
        return self.accumulate and self.tape.recurrent is not None and self.tape.recurrent.words is not None

    def dy_of(self, layer):
        """Return the gradient of the layer's output, (T, B, D*P)."""
        return self.dx[layer + 1] if layer + 1 < self.problem.layers else self.dy

    def d_states_of(self, layer):
        """Return dL/d(cell states of every step), (T, B, D*N*H), which callers pass for the last layer; None for the
        others."""
        return None if layer + 1 < self.problem.layers else self.d_states

    def state_gradients(self, layer, direction):
        """Return dh (B, P) and dc (B, N*H) of a layer and direction. The same arrays hold the final state's gradients
        before the steps and the initial state's after them."""
        dh = part_of_state(self.problem, self.dh, layer)[direction]
        if self.dc is None:
            return dh, self.new("no_dc", (self.problem.batch, 0), "state")
        return dh, part_of_state(self.problem, self.dc, layer)[direction]

    # ----------------------------------------------------------------------------------------------------------- tasks
    def steps_group(self, layer, direction):
        tape, problem, place = self.tape, self.problem, (layer, direction)
        dh, dc = self.state_gradients(*place)
        return BackwardBuffers(
            cell=problem.cell,
            direction=direction,
            parameters=tape.parameters_of(*place),
            states=tape.states_of(layer),
            saved=tape.saved_of(place),
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

    def do_launch(self, task):
        from numbarnn.programs import launches  # and with them Numba for GPUs, half a second

        self.emit("launch", launches.backward_arrays(self, task.launch))

    def do_remake(self, task):
        """Apply dropout to the layer's input again."""
        self.tape.do_dropout(task, self.emit)

    def do_input(self, task):
        """Compute dx = dax W at the task's times, summed over the directions."""
        when, tape, layer = task.times(self.problem.steps), self.tape, task.layer
        dx, mode = rows(self.dx[layer][when]), self.tape.input_mode(layer)
        for direction in range(self.problem.directions):
            gates, options = self.problem.cell.num_gates, {"accumulate": direction > 0}
            dax = self._columns(rows(self.dax[layer, direction][when]), layer, gates)
            if self._writes_given(layer):
                continue
            if mode == "given":
                self.emit("copy", dx[:, direction * dax.shape[1] :][:, : dax.shape[1]], dax)
                continue
            if mode == "skip":
                self.emit("sum_gates", dx, dax, gates, **options)
                continue
            W = tape.W_of(layer, direction)
            if len(W):
                self.emit("multiply", dx, dax[:, : len(W)], W, allow_tf32=self.problem.allow_tf32, **options)
                options["accumulate"] = True
            if copied := self.problem.copied_gates[layer]:
                self.emit("sum_gates", dx, dax[:, len(W) :], copied, **options)

    def do_dropout(self, task):
        """Apply forward's dropout mask to the gradient."""
        tape, when = self.tape, task.times(self.problem.steps)
        dy, mask = self.dx[task.layer][when], tape.masks[task.layer - 1]
        self.emit("dropout", dy, dy, mask, tape.scale, when.start * dy[0].size)

    def do_weights(self, task):
        """Compute the gradients of the parameters of one layer and direction."""
        tape, place, problem = self.tape, (task.layer, task.direction), self.problem
        if problem.resets:
            h_before = tape.h[task.layer][2 * task.direction :][: problem.steps]
            P, step_mask = problem.output_sizes[task.layer], tape.step_mask[task.direction][1:-1]
            h_before = h_before[:, :, task.direction * P : (task.direction + 1) * P]
            self.emit("select", self.h_before[place], h_before, step_mask, RESET, 0.0)
        if problem.padded and problem.cell.product_stages:  # beyond a sequence stages may have divided by x = 0
            v = tape.v[place]
            self.emit("select", v, v, tape.step_mask[task.direction][1:-1], SKIP, 0.0)
        if not self.need.by_sequence:
            self._weight_gradients(task, self.dw, self.d_derived, rows, problem.batch)
            return
        before, each = self._operations, []
        for number in (0, problem.batch - 1):
            self._operations = []
            d_derived = None if self.d_derived is None else self.d_derived[number]
            self._weight_gradients(task, self.dw[number], d_derived, lambda view, number=number: view[:, number], 1)
            each.append(self._operations)
        self._operations = before
        for (kind, operands, options), last in zip(*each, strict=True):
            self.emit("each", kind, problem.batch, stacked(operands, last.operands, problem.batch), options)

    def _weight_gradients(self, task, dw, d_derived, rows, batch):
        """Compute the gradients of parameters for some sequences; `rows` reshapes their part of a view (T, B, N) to
        (T*batch, N)."""
        tape, place, direction, problem = self.tape, (task.layer, task.direction), task.direction, self.problem
        P, h, cell = problem.output_sizes[task.layer], tape.h[task.layer], problem.cell
        spec = self.spec.forward
        h_before, columns = h[2 * direction :][: problem.steps], slice(direction * P, (direction + 1) * P)
        dax = self._columns(rows(self.dax[place]), task.layer, cell.num_gates)
        dah = self._columns(rows(self.dah[place]), task.layer, cell.num_ah)
        space = (spec.whole or problem).space
        dw = space.pseudo_layer(dw, spec.first_layer + task.layer, spec.direction + direction, d_derived)
        x = rows(tape.layer_input(task.layer))
        if problem.resets:
            h_before, columns = self.h_before[place], slice(None)
        plain, h_before = dict(dw), rows(h_before)[:, columns]
        if "W" in dw and problem.copied_gates[task.layer]:  # nobody asks for the gradients of an identity
            plain["W"] = dw["W"][: len(tape.W_of(*place))]
            plain = {kind: part for kind, part in plain.items() if len(part)}
        if tape.recurrent is not None:
            plain.pop("R", None)
        elif cell.num_products:  # their rows of R multiplied something else
            plain["R"] = dw["R"][: cell.num_recurrent * problem.hidden_sizes[task.layer]]
        rows_of_h = self._rows_of_h(direction, batch)
        options = {"accumulate": self.accumulate, "allow_tf32": problem.allow_tf32}
        self.emit("weight_gradients", plain, dax, dah, x, h_before, rows_of_h=rows_of_h, **options)
        self._recurrent_gradients(dw, dah, h_before, rows, place, options)
        if cell.per_unit:
            if not self.accumulate:
                self.emit("zero", dw["per_unit"])
            self.emit("add_column_sums", dw["per_unit"], rows(self.d_per_unit[place]))
        if "W_hr" in dw:
            H = problem.hidden_sizes[task.layer]
            m = rows(tape.m[task.layer][1:-1])[:, direction * H : (direction + 1) * H]
            self.emit("multiply", dw["W_hr"], rows(self.dht[place]), m, transpose_a=True, **options)

    def _rows_of_h(self, direction, batch):
        """Return which of the T*batch rows of h before a step can be nonzero. Without an initial h, the direction's
        first step has none."""
        if not self.tape.spec.from_zero:
            return EVERY_ROW
        return slice(batch, None) if direction == 0 else slice(0, batch * (self.problem.steps - 1))

    def _recurrent_gradients(self, dw, dah, h_before, rows, place, options):
        """Compute the gradients of the rows of R that are no single product with h: those of stages, or all if steps
        multiply with another R."""
        cell, H, recurrent = self.problem.cell, self.problem.hidden_sizes[place[0]], self.tape.recurrent
        per_unit = [h_before] * cell.num_recurrent
        for stage in cell.product_stages:
            of_R, first = cell.rows_of_stage(stage, H), cell.product_number(stage) * H
            v = rows(self.tape.v[place])[:, first : first + H]
            per_unit += [v] * len(cell.stages[stage].gates)
            if recurrent is None:
                self.emit("multiply", dw["R"][of_R], dah[:, of_R], v, transpose_a=True, **options)
        if recurrent is not None:
            recurrent.gradient(self.emit, dw["R"], self.dR.get(place), dah, per_unit, place, **options)

    def _columns(self, gradient, layer, gates):
        """Return the first gates*H columns of pre-activation gradients, (T*B, gates*H); rows may be longer."""
        return gradient[:, : gates * self.problem.hidden_sizes[layer]]

    # -------------------------------------------------------------------------------------------- before and after them
    def first_copies(self):
        """Fill R, and copy dy and the gradients of the states to where steps read or accumulate them."""
        if self.tape.recurrent is not None:  # which the reserve does not have
            self.tape.recurrent.fill(self)
        if self.copies_dy:
            self.put(self.dy, None if self.dy_given is None else self.dy_given.transpose(1, 0, 2))
        if self.copies_d_states:
            self.put(self.d_states, self.d_states_given.transpose(1, 0, 2))
        if not self.launched:  # which read them where they are, and write those of the initial states
            self.put_state(self.dh, self.dhy)
            self.put_state(self.dc, self.dcy)

    def last_copies(self):
        """Copy dx to the caller's order, and round the gradients of the initial states to the layer's dtype."""
        if self.dx_copy is not None:
            self.put(self.dx_copy, self.dx[0].transpose(1, 0, 2))
        if self.launched:
            return
        if self.problem.resets:  # nothing reaches an initial state that counted as zero
            for layer in range(self.problem.layers):
                for direction in range(self.problem.directions):
                    step_mask = self.tape.step_mask[direction][1 if direction == 0 else -2][None]
                    for d_state in self.state_gradients(layer, direction):
                        if d_state.size:
                            self.emit("select", d_state[None], d_state[None], step_mask, RESET, 0.0)
        if self.dhx is not self.dh:
            self.put_state(self.dhx, self.dh)
            self.put_state(self.dcx, self.dc)

    @property
    def results(self):
        """Return views of dx in the caller's order (or None), dhx and dcx."""
        dx = self.dx[0] if self.dx_copy is None else self.dx_copy
        return dx if self.need.x else None, self.dhx, self.dcx

    def result_arrays(self):
        dx, dhx, dcx = self.results
        arrays = [] if self.spec.after else [dx, *state_arrays(dhx), *state_arrays(dcx)]
        arrays += [self.dw, self.d_derived] if self.has_weights else []
        return [one for one in arrays if one is not None]


backward = lru_cache(BUILDERS)(Backward)
