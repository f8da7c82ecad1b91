"""Run calls with checkpoints, segment by segment; `numbarnn.programs.checkpoints` explains them."""

import numpy as np

from numbarnn.common.philox import Origin, dropout_words
from numbarnn.common.precision import known_dtype
from numbarnn.layers.calls import BackwardCall, run_forward
from numbarnn.programs.backward import ALL, ResultGrads
from numbarnn.programs.checkpoints import chains_of, checkpoint_buffers, segment_problem
from numbarnn.programs.program import ReserveLayout
from numbarnn.programs.states import part_of_state
from numbarnn.programs.views import View
from numbarnn.schedules.problem import state_shapes


class CheckpointedForward:
    """A forward call that keeps only the states before segments; the tape for `CheckpointedBackward`.

    Attributes:
        h, c: [layer, direction] -> states before each segment, (segments, B, ...). outputs: [layer] -> input of the
            layer above; only with two directions. step_mask: None if all steps are ordinary.
        y, hy, cy, all_states: results. reserve: the array of bytes that holds all that is kept.
    """

    reserve = y = hy = cy = all_states = None

    def __init__(self, call, schedule):
        self.call, self.schedule, self.engine, self.problem = call, schedule, call.engine, call.problem
        self.read = call.weights
        if self.problem.dropping:
            masks = self.engine.from_host(dict(call.drawn())["masks"])
            self._scale, self._masks = dropout_words(self.problem.dropout, 0, 0, 0)[0], masks

    @classmethod
    def of_reserve(cls, call, schedule, x, reserve):
        """Rebuild the tape of an earlier forward call from its reserve and x."""
        self = cls(call, schedule)
        self._keep_in(reserve)
        self.x = x
        return self

    def _keep_in(self, reserve=None):
        """Place what is kept in this reserve, or in a new one."""
        places = ReserveLayout(self.problem, checkpoint_buffers(self.problem))
        memory = View.of("reserve", (places.size,), known_dtype("uint8"))
        self.reserve = self.engine.empty(*memory.buffer[1:]) if reserve is None else reserve
        kept = {name: self.engine.array_at(view, self.reserve) for name, view in places.views(memory).items()}
        self.h, self.c, self.outputs = (
            {name[1]: array for name, array in kept.items() if name[0] == kind} for kind in ("h", "c", "outputs")
        )
        self.step_mask = kept.get("step_mask")

    def run(self, x, state, sequences):
        """Run all segments for the caller's x and (hx, cx), and return (y, hy, cy[, cell states of all steps])."""
        p, engine = self.problem, self.engine
        if self.call.keeps:
            self.read = self.read.of_copy(self._copy(self.read.parameters))
        self._keep_in()
        self._make_results()
        if p.masked:
            self._fill_step_mask(sequences.lengths, sequences.resets)
        self.x = self._copy(x) if self.call.keeps else x
        self.read.derive()
        for chain in chains_of(p):
            for layer, direction in chain.places:  # initial states into their first slots
                for slots, initial in zip((self.h, self.c), state, strict=True):
                    if (layer, direction) in slots and initial is None:
                        engine.zero(slots[layer, direction][0])
                    elif (layer, direction) in slots:
                        engine.copy(slots[layer, direction][0], part_of_state(p, initial, layer)[direction])
            for number in range(len(chain.segments(p))):
                self._keep(chain, number, *self.segment(chain, number, sequences.padding_value))
        results = self.y, self.hy, self.cy, self.all_states
        self.y = self.hy = self.cy = self.all_states = None  # the caller's alone
        return results if results[-1] is not None else results[:-1]

    def _copy(self, array):
        copy = self.engine.empty(array.shape, array.dtype)
        self.engine.copy(copy, array)
        return copy

    def _make_results(self):
        p, outer = self.problem, self.problem.x_shape[:2]
        self.y = self.empty((*outer, p.directions * p.output_sizes[-1]))
        self.hy, self.cy = self.empty_states()
        if p.keeps_states:
            self.all_states = self.empty((*outer, p.directions * p.cell.num_private * p.hidden_sizes[-1]))

    def empty(self, shape):
        """Allocate an array of the layer's dtype, or a list of arrays for a list of shapes."""
        if isinstance(shape, list):
            return [self.empty(part) for part in shape]
        return self.engine.empty(shape, known_dtype(self.problem.dtype))

    def empty_states(self):
        p, privates = self.problem, tuple(self.problem.cell.num_private * H for H in self.problem.hidden_sizes)
        h, c = (state_shapes(sizes, p.directions, p.batch) for sizes in (p.output_sizes, privates))
        return self.empty(h), self.empty(c) if p.cell.num_private else None

    def _fill_step_mask(self, lengths, resets):
        engine, problem = self.engine, self.problem
        lengths = np.full(problem.batch, problem.steps, np.int32) if lengths is None else lengths
        resets = self.step_mask[0, :0] if resets is None else resets
        arrays = (engine.from_host(one) if isinstance(one, np.ndarray) else one for one in (lengths, resets))
        engine.fill_step_mask(self.step_mask, *arrays)

    def segment(self, chain, number, fill=0.0):
        """Run a segment of a chain from the kept states; return its results and its `ForwardCall`."""
        whole = self.problem
        time, end = chain.segments(whole)[number]
        problem, direction = segment_problem(whole, chain, end - time), chain.direction
        origin = Origin(end - 1 if direction else time, chain.first * whole.directions + direction, direction == 1)
        mask = self.turned(chain, self.step_mask[direction, time : end + 2])[None] if problem.masked else None
        call = self.call._replace(
            problem=problem, weights=self.read.fixed(), keeps=False, from_zero=False, origin=origin,
            step_mask=mask, part=(whole, chain.first, direction),
        )  # fmt: skip
        slot = slice(number, number + 1)
        states = ([kept[at][slot] for at in chain.places] if kept else None for kept in (self.h, self.c))
        plan = self.schedule.pick(problem)[0].plan_forward(problem)
        return run_forward(call, plan, self._input(chain, time, end), *states, fill=fill)

    def _input(self, chain, time, end):
        """Return the input of the chain's first layer in a segment, (k, B, I)."""
        if chain.first == 0:
            x = self.time_major(self.x)[time:end]
            if self.problem.directions == 2 and self.problem.input_mode == "given":
                x = chain.columns(x)
            return self.turned(chain, x)
        x = self.outputs[chain.first - 1][time:end]
        if self.problem.dropping:
            dropped = self.engine.empty(x.shape, x.dtype)
            self.dropout(chain.first, dropped, x, time * x[0].size)
            x = dropped
        return self.turned(chain, x)

    def dropout(self, layer, out, x, position=0):
        """Compute out = dropout of x, which may be a part of the layer's input that begins at element `position`."""
        self.engine.dropout(out, x, self._masks[layer - 1], self._scale, position)

    def turned(self, chain, array):
        """Return an array of time steps in the direction's order, contiguous."""
        return self.contiguous(array[::-1] if chain.direction else array)

    def contiguous(self, array):
        """Return the array, or a contiguous copy; None stays None."""
        return array if array is None or array.flags.c_contiguous else self._copy(array)

    def time_major(self, array):
        """Return a view of the caller's array with time first; None stays None."""
        return array.transpose(1, 0, 2) if array is not None and self.problem.batch_major else array

    def of_segment(self, chain, number, array):
        """Return a view of a segment's part of an array (T, B, D*N), in the direction's order; None stays None."""
        if array is None:
            return None
        time, end = chain.segments(self.problem)[number]
        part = array[time:end] if self.problem.directions == 1 else chain.columns(array[time:end])
        return part[::-1] if chain.direction else part

    def _keep(self, chain, number, results, work):
        """Keep a finished segment's results: states and y."""
        problem, engine = self.problem, self.engine
        segments, is_last = chain.segments(problem), chain.last == problem.layers
        y, h, c, *states = results
        for layer, direction in chain.places:
            for slots, final, result in ((self.h, self.hy, h), (self.c, self.cy, c)):
                if result is None:
                    continue
                out = part_of_state(problem, final, layer)[direction]
                if number + 1 < len(segments):
                    out = slots[layer, direction][number + 1]
                engine.copy(out, part_of_state(work.problem, result, layer - chain.first)[0])
        outs = [self.time_major(self.y) if is_last else self.outputs[chain.last - 1]]
        outs += [self.time_major(self.all_states)] if states else []
        for out, result in zip(outs, (y, *states), strict=True):
            engine.copy(self.of_segment(chain, number, out), result)


class CheckpointedBackward:
    """A backward call, segment by segment, which runs when it is made. Arguments and attributes: see `BackwardCall`."""

    def __init__(self, tape, gradients, dw=None, need=ALL):
        self.tape, self.gradients, self.need = tape, gradients, need
        self.engine, self.problem = tape.engine, tape.problem
        self.dw, p = dw, self.problem
        if need.weights and dw is None:
            self.dw = self.engine.zeros((p.space.size,), known_dtype(p.dtype))
        self.d_derived = None
        if p.space.derived_size and self.dw is not None:
            self.d_derived = self.engine.zeros((p.space.derived_size,), known_dtype(p.dtype))
        self.dhx, self.dcx = tape.empty_states()
        self.results = self._run()

    def _run(self):
        tape, problem = self.tape, self.problem
        tape.read.derive()
        dy_of_next = None
        for chain in reversed(chains_of(problem)):
            if chain.direction == problem.directions - 1:  # the layer's first one
                dy = tape.time_major(self.gradients.y) if chain.last == problem.layers else dy_of_next
                self._dx = None
                if chain.first > 0 or self.need.x:
                    below = problem.directions * problem.output_sizes[chain.first - 1]
                    width = below if chain.first else problem.input_size
                    self._dx = tape.empty((problem.steps, problem.batch, width))
            self._run_chain(chain, dy)
            if chain.direction == 0:
                dy_of_next = self._dx
                if chain.first > 0 and problem.dropping:
                    tape.dropout(chain.first, self._dx, self._dx)
        if self.d_derived is not None:
            tape.read.pull_back(self.dw, self.d_derived, True)
        dx, self._dx = self._dx, None
        if dx is not None and problem.batch_major:
            dx = tape.contiguous(tape.time_major(dx))
        return dx, self.dhx, self.dcx

    def _run_chain(self, chain, dy):
        """Run backward through all segments of a chain; dy: gradient of its last layer's output, or None."""
        every = self.tape.time_major(self.gradients.states) if chain.last == self.problem.layers else None
        h, c = self._of_final(chain, self.gradients.h), self._of_final(chain, self.gradients.c)
        for number in reversed(range(len(chain.segments(self.problem)))):
            outputs = (self.tape.contiguous(self.tape.of_segment(chain, number, one)) for one in (dy, every))
            h, c = self._run_segment(chain, number, ResultGrads(next(outputs), h, c, next(outputs)))
        for layer, direction in chain.places:
            for out, gradient in ((self.dhx, h), (self.dcx, c)):
                if out is not None:
                    number = layer - chain.first
                    source = gradient[number][0] if isinstance(gradient, list) else gradient[number]
                    self.engine.copy(part_of_state(self.problem, out, layer)[direction], source)

    def _run_segment(self, chain, number, gradients):
        """Run backward through one segment; return the gradients of the states before it. All its arrays are then
        freed."""
        _, tape = self.tape.segment(chain, number)
        # The segment's tape was just recomputed, so it may be overwritten. `frozen` counts layers of the whole call.
        need = self.need._replace(x=self._dx is not None, again=False, frozen=frozenset())
        schedule = self.tape.schedule.pick(tape.problem)[0]
        plan = schedule.plan_backward(tape.problem, self.dw is not None, need.x)
        dx, h, c = BackwardCall(tape, plan, gradients, self.dw, need, self.d_derived).results
        if self._dx is not None:
            self._put_dx(chain, number, self._dx, dx)
        return h, c

    def _of_final(self, chain, state):
        """Copy a chain's part of the gradient of a final state to the accumulation dtype: one (1, B, N) per layer, or
        None."""
        if state is None:
            return None
        gradients = []
        for layer, direction in chain.places:
            part = part_of_state(self.problem, state, layer)[direction]
            gradients.append(self.engine.empty((1, *part.shape), known_dtype(self.problem.state_dtype)))
            self.engine.copy(gradients[-1][0], part)
        return gradients

    def _put_dx(self, chain, number, dx, segment_dx):
        """Write a segment's gradient of its input to dx; the second direction of a layer runs first, and the first adds
        to it."""
        time, end = chain.segments(self.problem)[number]
        out, segment_dx = dx[time:end], self.tape.turned(chain, segment_dx)
        if self.problem.directions == 2 and self.problem.input_mode == "given" and chain.first == 0:
            self.engine.copy(chain.columns(out), segment_dx)
        elif chain.direction == self.problem.directions - 1:
            self.engine.copy(out, segment_dx)
        else:
            self.engine.sum_gates(*(one.reshape(-1, one.shape[2]) for one in (out, segment_dx)), 1, True)

    def add_weights(self, plan, dw):
        """Add the gradients of all parameters, which this call has computed, to a flat buffer."""
        self.engine.sum_gates(dw[None], self.dw[None], 1, True)
