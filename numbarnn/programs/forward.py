"""Build the forward program: turn each task of a plan into operations on the call's arrays."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from numbarnn.common.order import SKIP
from numbarnn.common.philox import dropout_words
from numbarnn.kernels.step.groups import ForwardBuffers, Options, Parameters, Saved, Scratch, States
from numbarnn.programs.program import Builder, ReserveLayout
from numbarnn.programs.recurrent_weights import RecurrentWeights
from numbarnn.programs.states import part_of_state, rows, state_arrays
from numbarnn.schedules.plan import Plan
from numbarnn.schedules.problem import Problem, state_shapes

BUILDERS = 512  # programs that are remembered, the least recently used forgotten first: making one takes milliseconds


class ForwardSpec(NamedTuple):
    """The key of a forward program.

    Attributes:
        problem, plan: of the call.
        hx, cx: the form of the initial states (`states.form_of_state`); None is zero.
        fill: value of y beyond a sequence's length, as text because NaN does not equal itself.
        caller: the layer's description, for errors that appear later.
        from_zero: whether there is no initial h. Products with it are then left out, in backward too.
        whole: for a segment, the problem of the call whose weights it uses; None: its own problem.
        first_layer, direction: for a segment, its first layer in that problem, and its direction.
    """

    problem: Problem
    plan: Plan
    hx: bool | None = None
    cx: bool | None = None
    fill: str = "0.0"
    caller: str = ""
    from_zero: bool = False
    whole: Problem | None = None
    first_layer: int = 0
    direction: int = 0

    def for_backward(self):
        """Return the key without the settings that do not change the backward program."""
        return self._replace(hx=None, cx=None, fill="0.0")


def tape_buffers(problem, launched=False):
    """Yield (name, shape, dtype) of the buffers that steps fill. In training they form the reserve, which backward
    reads.

    T and B may be symbolic. Slot t + 1 of a state is after step t; slots 0 and T + 1 are initial. Inference allocates
    fewer slots where nothing reads old ones; launches need all of v.
    """
    p, cell = problem, problem.cell
    T, B, D = p.steps, p.batch, p.directions
    if p.copies_x:  # with time first, zero beyond sequences
        yield "x_copy", (T, B, p.input_size), "storage"
    if p.masked:  # what each step is (`numbarnn.common.order`)
        yield "step_mask", (D, T + 2, B), "uint8"
    for layer, (H, P) in enumerate(zip(p.hidden_sizes, p.output_sizes, strict=True)):
        yield ("h", layer), (T + 2, B, D * P), "storage"
        slots = T + 2 if p.training or p.keeps_states else 2
        yield ("c", layer), (slots, B, D * cell.num_private * H), "state"  # private states
        if p.projection:  # the cell's outputs, of which h is made
            yield ("m", layer), (T + 2, B, D * H), "storage"
        for direction in range(D):
            place = layer, direction
            if p.training and cell.num_saved:
                yield ("gates", place), (T, B, max(cell.num_saved, cell.num_gates) * H), "storage"
            steps = T if p.training or launched else 1
            if cell.num_products:  # what further products multiply
                yield ("v", place), (steps, B, cell.num_products * H), "storage"
            if cell.num_sums:  # over units
                yield ("sums", place), (T if p.training else 1, B, cell.num_sums), "state"
    if p.training:  # the call's error flag (`numbarnn.kernels.error_flag`)
        yield "error_flag", (1,), "int64"


class Forward(Builder):
    """Builds the forward program of a `ForwardSpec`. Backward programs start from its views.

    Attributes:
        x: (T, B, I), in the order in which tasks read it. step_mask: what each step is. masks, noise: words from which
            dropout and the cell draw random numbers.
        h, c, m: [layer] -> view. gates, v, sums, ax, ah, words: [layer, direction] -> view.
        hx, cx: initial states. y, hy, cy, all_states: results. Absent arrays are None, or missing in a dict.
        recurrent: the `RecurrentWeights` if steps do not multiply with the parameter R itself; else None.
        reserve: in training, the array of bytes that backward reads besides x and the weights; else None.
        scale: dropout's factor for what is kept.
        rewrites: whether the first and last copies also copy x and y, not only states.
    """

    steps_kind = "forward_steps"

    def __init__(self, spec):
        problem = p = spec.problem
        super().__init__(problem, spec.plan)
        self.spec, self.caller, self.fill = spec, spec.caller, float(spec.fill)
        self._make_parameters()
        self.reserve, views = None, {}
        if problem.training:
            places = ReserveLayout(problem, tape_buffers(problem))
            self.reserve = self.new("reserve", (places.size,), "uint8")
            views = places.views(self.reserve)
        else:
            for name, shape, dtype in tape_buffers(problem, self.launched):
                views[name] = self.new(name, shape, dtype)
        self._make_x(views)
        self.step_mask, layers = views.get("step_mask"), range(p.layers)
        self.h, self.c, self.m = ({n: views[k, n] for n in layers if (k, n) in views} for k in "hcm")
        if p.keeps_states and not self.rewrites:
            self.all_states = self.c[p.layers - 1][1:-1]
        self.gates, self.v, self.sums = (
            {name[1]: view for name, view in views.items() if name[0] == kind} for kind in ("gates", "v", "sums")
        )
        self._make_scratch()
        self._make_states()
        self._make_options()
        self._make_flag(views)
        self.program = self.build()

    # --------------------------------------------------------------------------------------------------------- buffers
    def _make_parameters(self):
        """Make the `Parameters` of this call's layers, [layer][direction], as views of the buffer `flat`. Missing
        biases are views of zeros."""
        p, spec = self.problem, self.spec
        whole = spec.whole or p
        space, cell = whole.space, whole.cell
        apart = space.derived_size and not p.weights_in_one
        self.flat = self.input("flat", (space.size + (0 if apart else space.derived_size),))
        derived = self.input("derived", (space.derived_size,)) if apart else self.flat[space.size :]
        self.derived = derived if space.derived_size else None
        zeros = self.input("no_bias", (max(cell.num_gates, cell.num_ah) * max(whole.hidden_sizes),))
        self.weights = []
        for layer, (H, P) in enumerate(zip(p.hidden_sizes, p.output_sizes, strict=True)):
            of_directions = []
            for direction in range(p.directions):
                place = spec.first_layer + layer, spec.direction + direction
                parts = space.pseudo_layer(self.flat, *place, self.derived)
                for kind, size in (("b_w", cell.num_gates * H), ("b_r", cell.num_ah * H)):
                    parts.setdefault(kind, zeros[:size])
                parts.setdefault("R", zeros[:0].reshape(0, P))
                of_directions.append(Parameters(**parts))
            self.weights.append(of_directions)

    def _make_x(self, views):
        p = self.problem
        outer = (p.batch, p.steps) if p.batch_major else (p.steps, p.batch)
        caller_x = self.input("x", (*outer, p.input_size))
        self.x = views.get("x_copy", caller_x)
        self.x_given = caller_x if p.copies_x else None
        self.y_copy = self.all_states = None
        if p.batch_major or p.padded:
            self.y_copy = self.new("y_copy", (*outer, p.directions * p.output_sizes[-1]))
            if p.keeps_states:
                width = p.directions * p.cell.num_private * p.hidden_sizes[-1]
                self.all_states = self.new("all_states", (*outer, width))
        self.rewrites = self.y_copy is not None

    def _make_scratch(self):
        p, cell = self.problem, self.problem.cell
        T, B = p.steps, p.batch
        self.ax, self.ah, self.words, self.dropped_input = {}, {}, {}, {}
        for layer, H in enumerate(p.hidden_sizes):
            if p.dropping and layer > 0:
                self.dropped_input[layer] = self.new(
                    ("dropped_input", layer), (T, B, p.directions * p.output_sizes[layer - 1])
                )
            for direction in range(p.directions):
                place = layer, direction
                if self.reads_given(layer):
                    self.ax[place] = self.x[:, :, direction * cell.num_gates * H :][:, :, : cell.num_gates * H]
                else:
                    self.ax[place] = self.gates.get(place) or self.new(("ax", place), (T, B, cell.num_gates * H))
                self.ah[place] = self.new(("ah", place), (B, cell.num_ah * H), "state")
                if cell.num_sums:  # of blocks of 4 units or more
                    self.words[place] = self.new(("words", place), (2, cell.num_sums, B, -(-H // 4)), "int64")

    def _make_states(self):
        p, spec = self.problem, self.spec
        shapes = [
            state_shapes(sizes, p.directions, p.batch)
            for sizes in (p.output_sizes, tuple(p.cell.num_private * H for H in p.hidden_sizes))
        ]
        of_state = "state" if p.is_segment else "storage"
        self.hy = self.state(self.new, "hy", shapes[0])
        self.cy = self.state(self.new, "cy", shapes[1], of_state) if p.cell.num_private else None
        self.hx, self.cx = (
            None if form is None else self.state(self.input, name, as_given(shape, form, p), dtype)
            for name, shape, form, dtype in (
                ("hx", shapes[0], spec.hx, "storage"),
                ("cx", shapes[1], spec.cx, of_state),
            )
        )

    def _make_options(self):
        p, cell = self.problem, self.problem.cell
        self.masks = self.noise = self.scale = self.lengths = self.resets = self.step_mask_given = None
        if p.masked and p.is_segment:
            self.step_mask_given = self.input("step_mask_given", self.step_mask.shape, "uint8")
        elif p.masked:
            self.lengths = self.input("lengths", (p.batch,), "int32")
            if not p.padded:
                self.constants["lengths"] = np.full(p.batch, p.steps, np.int32)
            none = self.step_mask[0, :0]
            self.resets = self.input("resets", (p.steps, p.batch), "uint8") if p.resets else none
        if p.dropping:
            self.scale, self.masks = (
                dropout_words(p.dropout, 0, 0, 0)[0],
                self.input("masks", (p.layers - 1, 6), "uint64"),
            )
        if p.training and cell.noise:
            self.noise = self.input("noise", (p.layers * p.directions, 6), "uint64")
        self.recurrent = RecurrentWeights.made_for(self)

    def _make_flag(self, views):
        if self.plan.has_launches:
            self.exits = self.input("exits", (1,), "int64")
            self.error_flag, self.clears_error_flag = views.get("error_flag"), self.problem.training
            if self.error_flag is None:  # the engine's, which the last launch clears
                self.error_flag = self.input("flag", (1,), "int64")

    @property
    def y(self):
        """Return the last layer's output: a view (T, B, D*P), or the copy that the caller gets."""
        return self.output(self.problem.layers - 1) if self.y_copy is None else self.y_copy

    def output(self, layer):
        """Return a view of the layer's output, (T, B, D*P)."""
        return self.h[layer][1:-1]

    def layer_input(self, layer):
        """Return the layer's input, (T, B, I): x or the output of the layer below. With dropout it is a separate array,
        which the layer's "dropout" (in backward "remake") tasks fill."""
        if layer == 0:
            return self.x
        return self.dropped_input[layer] if self.problem.dropping else self.output(layer - 1)

    # ----------------------------------------------------------------------------------------------------------- tasks
    def do_dropout(self, task, emit=None):
        """Fill the layer's input at the task's times."""
        when, below = task.times(self.problem.steps), self.output(task.layer - 1)
        out, mask = self.layer_input(task.layer)[when], self.masks[task.layer - 1]
        (emit or self.emit)("dropout", out, below[when], mask, self.scale, when.start * below[0].size)

    def do_input(self, task):
        """Compute x Wᵀ at the task's times."""
        layer, direction, cell = task.layer, task.direction, self.problem.cell
        when = task.times(self.problem.steps)
        ax = rows(self.ax[layer, direction][when])[:, : cell.num_gates * self.problem.hidden_sizes[layer]]
        x = rows(self.layer_input(layer)[when])
        mode = self.input_mode(layer)
        if mode == "skip":
            self.emit("spread", ax, x, cell.num_gates)
        elif mode == "given" and not self.reads_given(layer):
            self.emit("copy", ax, x[:, direction * ax.shape[1] :][:, : ax.shape[1]])
        elif mode == "linear":
            W = self.W_of(layer, direction)
            if len(W):
                self.emit("multiply", ax[:, : len(W)], x, W, transpose_b=True, allow_tf32=self.problem.allow_tf32)
            for first in range(len(W), ax.shape[1], x.shape[1]):
                self.emit("copy", ax[:, first : first + x.shape[1]], x)

    def do_launch(self, task):
        from numbarnn.programs import launches  # and with them Numba for GPUs, half a second

        self.emit("launch", launches.forward_arrays(self, task.launch))

    def W_of(self, layer, direction):
        """Return the rows of W that multiply x. Rows of gates that take x itself follow them in W."""
        W, copied = self.weights[layer][direction].W, self.problem.copied_gates[layer]
        return W[: len(W) - copied * self.problem.hidden_sizes[layer]] if copied else W

    def input_mode(self, layer):
        """Return how the layer computes x Wᵀ, one of `numbarnn.weights.INPUT_MODES`."""
        return self.problem.input_mode if layer == 0 else "linear"

    def reads_given(self, layer):
        """Return whether steps read a given W x directly from x, on engines whose steps include the input product."""
        return self.problem.fuses_input and self.input_mode(layer) == "given"

    def steps_group(self, layer, direction):
        """Return the arrays that the steps of a layer and direction work on."""
        problem, place = self.problem, (layer, direction)
        fuses = layer not in problem.input_products
        return ForwardBuffers(
            cell=problem.cell,
            direction=direction,
            save=problem.training,
            parameters=self.parameters_of(layer, direction, fuses),
            states=self.states_of(layer),
            saved=self.saved_of(place),
            scratch=Scratch() if fuses else Scratch(ax=self.ax[place], ah=self.ah[place]),
            options=self.options_of(*place),
            x=self.layer_input(layer) if fuses else None,
            from_zero=self.spec.from_zero,
            allow_tf32=problem.allow_tf32,
            call_steps=problem.segment_of or problem.steps,
        )

    def parameters_of(self, layer, direction, fuses=False):
        """Return the `Parameters` for the steps of a layer and direction; W only if the steps multiply x (`fuses`)."""
        parameters = self.weights[layer][direction]
        if parameters.W is not None:
            parameters = parameters._replace(W=self.W_of(layer, direction) if fuses else None)
        return parameters if self.recurrent is None else parameters._replace(R=self.recurrent.R((layer, direction)))

    def states_of(self, layer):
        return States(self.h[layer], self.c[layer], self.m.get(layer))

    def saved_of(self, place):
        return Saved(self.gates.get(place), self.v.get(place), self.sums.get(place))

    def options_of(self, layer, direction):
        step_mask = None if self.step_mask is None else self.step_mask[direction]
        noise = None if self.noise is None else self.noise[layer * self.problem.directions + direction]
        return Options(step_mask, noise, self.problem.chances)

    # -------------------------------------------------------------------------------------------- before and after them
    def first_copies(self):
        """Emit what comes before all steps: the effective R, the step mask, x in the order that tasks read, and initial
        states. A state goes into the first slot of the first direction, and into the last slot of the second."""
        problem = self.problem
        if self.recurrent is not None:
            self.recurrent.fill(self)
        if problem.masked:
            if problem.is_segment:
                self.emit("copy", self.step_mask, self.step_mask_given)
            else:
                self.emit("fill_step_mask", self.step_mask, self.lengths, self.resets)
            for m in self.m.values():  # carried through where the first step is skipped, multiplied by gradients of 0
                self.put(m[0], None)
                self.put(m[-1], None)
        if self.x_given is not None:
            caller_x = self.time_major(self.x_given)
            if problem.padded:
                self.emit("select", self.x, caller_x, self.step_mask[0, 1:-1], SKIP, 0.0)
            else:
                self.put(self.x, caller_x)
        for states, initial in ((self.h, self.hx), (self.c, self.cx))[: 1 + (problem.cell.num_private > 0)]:
            for slot, columns, part in self._slots(states, initial, (0, problem.steps + 1)):
                # Zero the whole slot: its other columns may be the other direction's initial state, also zero.
                self.emit(*(("zero", slot) if part is None else ("copy", columns, part)))

    def last_copies(self):
        """Emit what comes after all steps: y for the caller, and the states after each direction's last step."""
        problem, outputs = self.problem, []
        if self.rewrites:
            outputs.append((self.y, self.output(problem.layers - 1)))
        if self.rewrites and self.all_states is not None:
            outputs.append((self.all_states, self.c[problem.layers - 1][1:-1]))
        for out, value in outputs:
            if problem.padded:
                self.emit("select", self.time_major(out), value, self.step_mask[0, 1:-1], SKIP, self.fill)
            else:
                self.put(self.time_major(out), value)
        for states, results in ((self.h, self.hy), (self.c, self.cy))[: 1 + (problem.cell.num_private > 0)]:
            for _, columns, part in self._slots(states, results, (problem.steps, 1)):
                self.emit("copy", part, columns)

    def _slots(self, states, other, numbers):
        """Yield (slot, the direction's columns of it, that direction's part of `other`) for each layer's h or c, unless
        kernels copy them. numbers: the number of the slot for each direction."""
        directions = self.problem.directions
        for layer, slots in () if self.launched else states.items():
            for direction, number in enumerate(numbers[:directions]):
                slot = slots[number % len(slots)]
                width = slot.shape[1] // directions
                columns = slot[:, direction * width : (direction + 1) * width] if directions > 1 else slot
                part = None if other is None else part_of_state(self.problem, other, layer)[direction]
                yield slot, columns, part

    def time_major(self, array):
        """Return a view of the caller's x or y with time as first axis."""
        return array.transpose(1, 0, 2) if self.problem.batch_major else array

    @property
    def results(self):
        """Return views of y, hy, cy, and of all cell states if the problem keeps them."""
        results = self.y, self.hy, self.cy
        return results if self.all_states is None else (*results, self.all_states)

    def result_arrays(self):
        return [array for result in self.results for array in state_arrays(result)]

    def left_arrays(self):
        return [] if self.reserve is None else [self.reserve]


def as_given(shape, form, problem):
    """Return the shape of a state in the form in which the caller passes it, a list or one array."""
    if form and not isinstance(shape, list):
        return [(problem.directions, *shape[1:])] * problem.layers
    return shape


forward = lru_cache(BUILDERS)(Forward)
