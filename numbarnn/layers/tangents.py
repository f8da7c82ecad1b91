"""Derivatives of higher order of a stack of layers: values and their tangents forward, and backward through both.

Each layer is two recurrences of cells that `numbarnn.cells.tracing.tangent` makes, on the engine and with the schedules
of any other cell: the primal one, which also returns the factors of the tangent, and then the tangent one, whose inputs
these are. What does not recur is products with matrices, once for all steps:

    a  = W x + b                        primal    a, h0          -> h, S
    a' = W x' + W' x + R' h_before + b' tangent   a', S, h0'     -> h'

Backward goes through the tangent, whose backward gives the gradients of S, and with these through the primal. As the
tangent is linear, the gradient of <u, y'> is the derivative of backward with dy = u: a Hessian-vector product.
"""

import threading
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from numbarnn.cells.tracing.tangent import equations_of, opened
from numbarnn.common.precision import compute_dtype
from numbarnn.layers import drawn, private
from numbarnn.layers.kernel_weights import ReadWeights
from numbarnn.layers.planned import Shape
from numbarnn.layers.sequences import EVERY_STEP
from numbarnn.programs.backward import ALL
from numbarnn.weights import parameter_name
from numbarnn.weights.derived import derived_tangents, pulled_back


class Point(NamedTuple):
    """What a call is a function of, or a direction there, or gradients; what is None is zero.

    Attributes:
        x: (T, B, I), an array of the engine. weights: the flat buffer.
        states: [layer] -> [h (D, B, P), the other states (D, B, H)], as engines have them.
    """

    x: Any = None
    states: Any = None
    weights: Any = None


class Results(NamedTuple):
    """Results of a call, or its tangents or gradients; what is None is zero. `states` as those of a `Point`."""

    y: Any = None
    states: Any = None


class Tangents:
    """Derivatives of higher order of a `Stack`. Its cells are compiled when they first run.

    Raises:
        NotImplementedError: the stack's cell has no equations, or has heads and a projection.
    """

    def __init__(self, stack):
        self._stack, self.cell = ref(stack), stack.cell
        self.opened = opened(equations_of(self.cell, stack.cell_clip, stack.clip_propagate_nan))
        self.dtype = np.dtype(compute_dtype(stack.dtype))
        self.xp, D = stack.engine.array_module, stack.directions
        if stack.proj_size and self.cell.heads > 1:
            raise NotImplementedError(
                f"cell {self.cell.name} has heads and a projection, of which there are no tangents"
            )
        arguments = stack._arguments_here()
        options = {name: arguments[name] for name in ("device", "allow_tf32")} | {"dtype": self.dtype.name}
        options |= {"bidirectional": D == 2, "input_mode": "given", "seed": 0}
        schedule = stack.schedule.name
        primal = "auto" if schedule == "persistent" else schedule  # which does not return the states of each step

        def layers(cell, inputs, schedule):
            made = {
                H: type(stack)(cell, D * len(inputs) * H, H, schedule=schedule, **options) for H in set(stack.widths)
            }
            return [made[H] for H in stack.widths]

        self.primal = layers(self.opened.primal, self.opened.inputs, primal)
        self.tangent = layers(self.opened.tangent, self.opened.tangent_inputs, schedule)
        self.of_thread = threading.local()

    stack = property(lambda self: self._stack(), doc="The `Stack`, which holds this object.")

    def forward(self, at, along, sequences=EVERY_STEP, draws=None, tape=True):
        """Return the `Results`, those of the tangents, and what `backward` reads.

        Args:
            at: the `Point`. along: the direction, also a `Point`.
            sequences: of the call.
            draws: (seed, number) of the training call whose random numbers are drawn; None: inference, without any.
            tape: backward may follow.
        """
        stack, passes = self.stack, []
        draws = self._draws(at.x, sequences, draws)
        with stack.engine.activate():
            weights, tangents = weights_by_layer(stack, at.weights, along.weights, self.dtype)
            x, dx = self._ready(at.x, sequences), self._ready(along.x, sequences)
            found = []
            for layer in range(stack.num_layers):
                if layer and draws["masks"]:
                    x, dx = (one if one is None else one * draws["masks"][layer - 1] for one in (x, dx))
                one = _Pass(self, layer, weights[layer], tangents[layer], draws, sequences, tape)
                states = (self._states(part, layer) for part in (at.states, along.states))
                x, dx, *final = one.forward(x, dx, *states)
                found.append(final)
                passes.append(one)
        final, d_final = zip(*found, strict=True)
        return Results(x, final), Results(dx, d_final), (passes, draws, at.weights, along.weights)

    def backward(self, tape, d_results, d_tangents, of_along=True):
        """Return the gradients of `at` and of `along`, each a `Point`, for those of both `Results`.

        Args:
            of_along: the second is wanted: it is backward of d_tangents. Else it is not specified.
        """
        stack, (passes, draws, flat, direction) = self.stack, tape
        # A gradient of weights that are made of parameters, as of R W_hr, is made of both gradients.
        both = of_along or (direction is not None and bool(stack.space.derived_size or stack.proj_size))
        found = []
        with stack.engine.activate():
            gy, gty = (self._ready(one.y, passes[0].sequences) for one in (d_results, d_tangents))
            for layer in reversed(range(stack.num_layers)):
                states = (self._states(part, layer) for part in (d_results.states, d_tangents.states))
                g, gt = states
                gy, *first, gty, t_states, t_weights = passes[layer].backward(
                    gy, g, gty, gt, (of_along or layer > 0, both)
                )
                t_states = [self._or_zero(*pair) for pair in zip(t_states, first[0], strict=True)]
                if layer and draws["masks"]:
                    gy, gty = (one if one is None else one * draws["masks"][layer - 1] for one in (gy, gty))
                found.insert(0, (*first, t_states, t_weights))
            states, weights, t_states, t_weights = map(list, zip(*found, strict=True))
            made, t_made = flat_gradients(stack, flat, direction, weights, t_weights, self.dtype)
            gty = self._or_zero(gty, gy)
        return Point(gy, states, made), Point(gty, t_states, t_made)

    def _or_zero(self, array, like):
        return self.xp.zeros_like(like) if array is None else array

    def _states(self, states, layer):
        """Return [h, the other states] of a layer in the compute dtype."""
        if states is None:
            return [None] * self.opened.num_states
        return [part if part is None else part.astype(self.dtype, copy=False) for part in states[layer]]

    def _draws(self, x, sequences, key):
        """Return the random numbers of a call: masks between layers, and by layer masks of R and noise."""
        stack, cell, training = self.stack, self.cell, key is not None
        found, (steps, batch) = {"masks": [], "R": [], "noise": []}, x.shape[:2]
        if not (stack.dropout or cell.noise or any(cell.drop_connect)):
            return found
        ends = sequences.lengths is not None, sequences.resets is not None
        planned = stack.planned(Shape(steps, batch, *ends), training)
        to = stack.engine.from_host
        with stack.engine.activate():
            call = planned.call(stack.engine.zeros(stack.space.size, stack.dtype), *(key or (0, 0)))
            call = call._replace(problem=replace(call.problem, dtype=self.dtype.name))  # what masks are made of
            if planned.problem.dropping:
                masks = drawn.dropout_masks(call, self.dtype.name, stack.output_widths)
                found["masks"] = [to(mask) for mask in masks]
            if training and any(cell.drop_connect):
                masks = drawn.drop_connect_masks(call, self.dtype.name)
                names = [
                    [parameter_name("R", layer, d) for d in range(stack.directions)]
                    for layer in range(stack.num_layers)
                ]
                found["R"] = [[to(masks[name]) for name in own] for own in names]
            if cell.noise:
                mean = np.array([one.mean for one in cell.noise])[:, None]
                shapes = [(stack.directions, steps, batch, len(mean), H) for H in stack.widths]
                noise = drawn.noise(call) if training else [np.broadcast_to(mean, shape) for shape in shapes]
                found["noise"] = [to(np.ascontiguousarray(one, self.dtype)) for one in noise]
        return found

    def _ready(self, x, sequences):
        """Return x in the compute dtype, and zero beyond sequences, where it may be anything."""
        if x is None:
            return None
        x = x.astype(self.dtype, copy=False)
        if sequences.lengths is None:
            return x
        beyond = np.arange(len(x))[:, None] >= np.asarray(sequences.lengths)
        return self.xp.where(self.stack.engine.from_host(beyond[..., None]), x.dtype.type(0), x)


class _Pass:
    """One layer's part of a call. Arrays of all steps have T*B rows, and parts of rows side by side.

    Args:
        owner: the `Tangents`. layer: its number.
        weights, tangents: [direction] -> kind -> what kernels read: "W" (G*H, I), "R" (A*H, P / heads), "W_hr" (P, H),
            "b_w" (G*H,), "b_r" (A*H,), "per_unit" (V*H,); what is missing is zero.
        draws: of `Tangents._draws`. sequences: of the call.
        tape: backward may follow.
    """

    def __init__(self, owner, layer, weights, tangents, draws, sequences, tape):
        self.engine, self.xp, self.cell, self.dtype = owner.stack.engine, owner.xp, owner.cell, owner.dtype
        self.opened, self.sequences, self.tape = owner.opened, sequences, tape
        self.stacks, self.tf32 = (owner.primal[layer], owner.tangent[layer]), owner.stack.allow_tf32 is True
        self.buffers = vars(owner.of_thread)
        self.D, self.H, self.own = owner.stack.directions, owner.stack.widths[layer], owner.opened.num_states
        self.mode = owner.stack.input_mode if layer == 0 else "linear"
        self.noise = draws["noise"][layer] if draws["noise"] else None
        self.masks = draws["R"][layer] if draws["R"] else None
        self.weights, self.tangents = self._dropped(weights), self._dropped(tangents)
        self.projects = "W_hr" in weights[0]
        both = zip(self.weights, self.tangents, strict=True)
        self.recurs, self.d_recurs = zip(*(self._recurring(*one) for one in both), strict=True)
        gates, recurrent = self.cell.gates, self.cell.gates_of_ah
        names = self.opened.inputs, self.opened.tangent_inputs
        self.of_x = [_runs([(gates.index(one[2:]), n) for n, one in enumerate(own) if one[0] == "W"]) for own in names]
        self.of_gates, self.of_operand = [], []  # the same for R; by what R multiplies
        for own in names:
            places = {gate: f"W.{self.opened.merged[gate]}" if gate in self.opened.merged else f"Z.{gate}"
                      for gate in recurrent if gate in self.opened.operands}  # fmt: skip
            pairs = [(recurrent.index(gate), own.index(one), gate) for gate, one in places.items() if one in own]
            self.of_gates.append(_runs([pair[:2] for pair in pairs]))
            operands = {self.opened.operands[gate]: [] for *_, gate in pairs}
            for gate, column, name in pairs:
                operands[self.opened.operands[name]].append((gate, column))
            self.of_operand.append({place: _runs(found) for place, found in operands.items()})

    def _dropped(self, weights):
        if self.masks is None:
            return weights
        return [
            one | {"R": one["R"] * mask} if "R" in one else one for one, mask in zip(weights, self.masks, strict=True)
        ]

    def _recurring(self, weights, tangents):
        """Return R as it multiplies what a step makes, and its tangent or None: with a projection R W_hr."""
        R, P, dR, dP = (one.get(kind) for one in (weights, tangents) for kind in ("R", "W_hr"))
        if P is None or R is None:
            return R, dR
        return self._times(R, P), _total(self._times(dR, P), self._times(R, dP))

    # ---------------------------------------------------------------- products
    def _multiply(self, out, a, b, **options):
        self.engine.multiply(out, a, b, allow_tf32=self.tf32, **options)

    def _times(self, a, b, **options):
        """Return a b, or with transpose_b a b^T; None if one of them is."""
        if a is None or b is None:
            return None
        out = self.xp.empty((a.shape[0], b.shape[0] if options else b.shape[1]), self.dtype)
        self._multiply(out, a, b, **options)
        return out

    def _part(self, array, first, count):
        return array[:, first * self.H : (first + count) * self.H]

    def _add_products(self, columns, vector, matrix, runs):
        """Add a matrix of gates times a vector (T*B, width) to columns, in the places that `_runs` tells."""
        if vector is not None and matrix is not None:
            for gate, column, count in runs:
                rows = matrix[gate * self.H : (gate + count) * self.H]
                self._multiply(self._part(columns, column, count), vector, rows, transpose_b=True, accumulate=True)

    def _vector_gradient(self, columns, matrix, runs, out=None):
        """Return the gradient of what a matrix of gates multiplied, added to `out`; None without a matrix."""
        if matrix is None or columns is None:
            return out
        if out is None:
            out = self.xp.zeros((len(columns), matrix.shape[1]), self.dtype)
        for gate, column, count in runs:
            rows = matrix[gate * self.H : (gate + count) * self.H]
            self._multiply(out, self._part(columns, column, count), rows, accumulate=True)
        return out

    def _matrix_gradient(self, grads, kind, like, columns, vector, runs):
        """Add to grads[kind] the gradient of a matrix of gates, shaped like `like`, that multiplied a vector."""
        if like is None or columns is None or vector is None:
            return
        if grads.get(kind) is None:
            grads[kind] = self.xp.zeros(like.shape, self.dtype)
        for gate, column, count in runs:
            rows = grads[kind][gate * self.H : (gate + count) * self.H]
            self._multiply(rows, self._part(columns, column, count), vector, transpose_a=True, accumulate=True)

    # ---------------------------------------------------------------- forward
    def forward(self, x, dx, state, d_state):
        """Return y, y', the final state and its tangent: lists of (D, B, ..), h first. x is (T, B, I)."""
        self.T, self.B = x.shape[:2]
        self.x, self.dx = (one if one is None else one.reshape(-1, one.shape[-1]) for one in (x, dx))
        self.h0, self.dh0 = self._first_steps(state[0]), self._first_steps(d_state[0])
        self.columns = self._inputs()
        self.m, last, self.values, self.primal_tape = self._run(0, self.columns, state)
        self.dm, d_last, _, self.tangent_tape = self._run(1, self._tangent_inputs(), d_state)
        y, dy = self.m, self.dm
        if self.projects:
            self.ends = list(last[0]), list(d_last[0])
            y, dy = map(self._joined, self._projected(self._apart(self.m), self._apart(dy)))
            ends = map(self.xp.stack, self._projected(*self.ends))
            last[0], d_last[0] = (self._of_empty(*pair) for pair in zip(ends, (state[0], d_state[0]), strict=True))
        return y, dy, last[: self.own], d_last[: self.own]

    def _run(self, number, columns, state):
        """Run the primal or the tangent layer: y, the final states, the values of the states of each step, the tape."""
        stack, others = self.stacks[number], self.stacks[number].cell.num_private
        every = number == 0 and others > 0
        sequences = replace(self.sequences, every_state=True) if every else self.sequences
        h, c = None if self.projects else state[0], self._side_by_side(state[1:], others)
        x = columns.reshape(self.T, self.B, -1)
        weights = _load(stack, self.recurs, self.cell.gates_of_ah, self.buffers)
        y, h, c, *more, tape = stack.forward(x, h, c, weights, self.tape, False, sequences)
        states = [h, *(private.split(c, others) if others else [])]
        return y, states, more[0].reshape(len(columns), -1) if more else None, tape

    def _side_by_side(self, parts, count):
        """Return states, and zero for further ones, as one (D, B, count*H); None: all zero."""
        parts = [*parts, *[None] * (count - len(parts))]
        return private.join(self.xp, parts, (self.D, self.B, self.H), self.dtype) if count else None

    def _value(self, place, d, columns):
        """Return a value of the primal cell at each step, (T*B, H): a state after it, or an input in its columns."""
        if isinstance(place, str):
            return self._part(columns, d * len(self.opened.inputs) + self.opened.inputs.index(place), 1)
        if place == 0:
            return self._part(self.m.reshape(self.T * self.B, -1), d, 1)
        return self._part(self.values, d * self.stacks[0].cell.num_private + place - 1, 1)

    def _direction(self, columns, d):
        """Return the columns of one direction."""
        count = columns.shape[1] // self.D
        return columns[:, d * count : (d + 1) * count]

    def _constant_columns(self, number, weights):
        """Return the columns of a cell's inputs, of each direction: biases, parameters per unit, else 0."""
        names = (self.opened.inputs, self.opened.tangent_inputs)[number]
        row = self.xp.zeros((self.D, len(names), self.H), self.dtype)
        for one, own in zip(row, weights, strict=True):
            for kind, runs in (("b_w", self.of_x[number]), ("b_r", self.of_gates[number])):
                if own.get(kind) is not None:
                    for gate, column, count in runs:
                        one[column : column + count] += own[kind].reshape(-1, self.H)[gate : gate + count]
            for column, name in enumerate(names):
                if name[0] == "U" and own.get("per_unit") is not None:
                    one[column] = own["per_unit"].reshape(-1, self.H)[self.cell.per_unit.index(name[2:])]
        columns = self.xp.empty((self.T * self.B, row.size), self.dtype)
        columns[...] = row.reshape(-1)
        return columns

    def _inputs(self):
        """Return the inputs of the primal cell, (T*B, D*number*H)."""
        columns = self._constant_columns(0, self.weights)
        for d, weights in enumerate(self.weights):
            own = self._direction(columns, d)
            for column, name in enumerate(self.opened.inputs):
                if name[0] == "N":
                    self._part(own, column, 1)[...] = self.noise[d, :, :, int(name[3:])].reshape(-1, self.H)
            self._add_x(own, d, self.x, weights.get("W"), 0)
            self._add_products(own, _of(self.h0, d), weights.get("R"), self.of_gates[0])
        return columns

    def _tangent_inputs(self):
        """Return the inputs of the tangent cell."""
        columns = self._constant_columns(1, self.tangents)
        for d, (weights, tangents) in enumerate(zip(self.weights, self.tangents, strict=True)):
            own = self._direction(columns, d)
            for column, name in enumerate(self.opened.tangent_inputs):
                if name[0] == "S":
                    self._part(own, column, 1)[...] = self._value(self.opened.sources[name], d, self.columns)
            self._add_x(own, d, self.dx, weights.get("W"), 1)
            if self.mode == "linear":
                self._add_x(own, d, self.x, tangents.get("W"), 1)
            dR = self._dense(self.d_recurs[d])
            for place, runs in self.of_operand[1].items():
                self._add_products(own, self._value(place, d, self.columns), dR, runs)
            self._add_products(own, _of(self.dh0, d), weights.get("R"), self.of_gates[1])
            self._add_products(own, _of(self.h0, d), tangents.get("R"), self.of_gates[1])
        return columns

    def _add_x(self, columns, d, x, W, number):
        """Add what stands for W x."""
        if self.mode == "linear" or x is None:
            self._add_products(columns, x, W, self.of_x[number])
            return
        for gate, column, count in self.of_x[number]:
            for n in range(count):
                place = 0 if self.mode == "skip" else d * len(self.cell.gates) + gate + n
                self._part(columns, column + n, 1)[...] += self._part(x, place, 1)

    def _dense(self, R):
        """Return R with blocks on its diagonal as a whole matrix."""
        if R is None or self.cell.heads == 1:
            return R
        heads, (rows, width) = self.cell.heads, R.shape
        blocks, made = (
            R.reshape(-1, heads, width, width),
            self.xp.zeros((rows // self.H, heads, width, heads, width), R.dtype),
        )
        for k in range(heads):
            made[:, k, :, k] = blocks[:, k]
        return made.reshape(rows, self.H)

    def _blocks(self, dense):
        """Return the blocks on the diagonal of what `_dense` made."""
        if dense is None or self.cell.heads == 1:
            return dense
        heads, width = self.cell.heads, self.H // self.cell.heads
        apart = dense.reshape(-1, heads, width, heads, width)
        return self.xp.stack([apart[:, k, :, k] for k in range(heads)], axis=1).reshape(-1, width)

    # ---------------------------------------------------------------- projection: y = W_hr m
    def _first_steps(self, h):
        """Return an initial h that is projected as [direction] -> (T*B, P), 0 but in first steps, for R to multiply."""
        if not self.projects or h is None:
            return None
        found = [self.xp.zeros((self.T * self.B, h.shape[-1]), self.dtype) for _ in range(self.D)]
        for d, where, there in self._first_places():
            found[d][where] = h[d] * there
        return found

    def _first_places(self):
        """Yield each direction, the numbers of its sequences' first steps, and 1 where the initial state is read."""
        lengths, resets, column = self.sequences.lengths, self.sequences.resets, np.arange(self.B)
        lengths = np.full(self.B, self.T) if lengths is None else np.asarray(lengths)
        for d in range(self.D):
            first = np.maximum(lengths - 1, 0) if d else np.zeros(self.B, int)
            there = self.xp.asarray((lengths > 0)[:, None], self.dtype)
            if resets is not None and d == 0:
                there = there * (1 - self.xp.asarray(resets)[0][:, None])
            yield d, self.xp.asarray(first * self.B + column), there

    def _of_empty(self, found, state):
        """Add a state h to what is found for sequences without steps, which pass it on; either may be None."""
        lengths = self.sequences.lengths
        if lengths is None or state is None or np.all(lengths):
            return found
        return _total(found, state * self.xp.asarray((np.asarray(lengths) == 0)[:, None], self.dtype))

    def _projected(self, m, dm):
        """Return W_hr m and its tangent, of lists of rows by direction."""
        y, dy = [], []
        for one, other, weights, tangents in zip(m, dm, self.weights, self.tangents, strict=True):
            P, dP = weights["W_hr"], tangents.get("W_hr")
            y.append(self._times(one, P, transpose_b=True))
            dy.append(_total(self._times(other, P, transpose_b=True), self._times(one, dP, transpose_b=True)))
        return y, dy

    def _projected_backward(self, grads, t_grads, rows, of_y, of_dy):
        """Return the gradients of m and of its tangent, lists of rows by direction, and add those of W_hr.

        Args:
            rows: (m, its tangent). of_y, of_dy: gradients of W_hr m and of its tangent; their entries may be None.
        """
        found, t_found = [], []
        for d, (m, dm, g, tg) in enumerate(zip(*rows, of_y, of_dy, strict=True)):
            P, dP = self.weights[d]["W_hr"], self.tangents[d].get("W_hr")
            for where, one, vector in ((grads, g, m), (grads, tg, dm), (t_grads, tg, m)):
                if one is not None and vector is not None:
                    where[d]["W_hr"] = _total(where[d].get("W_hr"), self._outer(one, vector))
            found.append(_total(self._times(g, P), self._times(tg, dP)))
            t_found.append(self._times(tg, P))
        return found, t_found

    def _outer(self, a, b):
        """Return a^T b."""
        out = self.xp.empty((a.shape[1], b.shape[1]), self.dtype)
        self._multiply(out, a, b, transpose_a=True)
        return out

    def _apart(self, steps):
        """Return the rows of each direction of (T, B, D*N)."""
        if steps is None:
            return [None] * self.D
        return [self._direction(steps.reshape(self.T * self.B, -1), d) for d in range(self.D)]

    def _joined(self, rows):
        """Undo `_apart`."""
        if rows[0] is None:
            return None
        made = rows[0] if self.D == 1 else self.xp.concatenate(rows, axis=1)
        return made.reshape(self.T, self.B, -1)

    # ---------------------------------------------------------------- backward
    def backward(self, gy, g_state, gty, gt_state, wanted):
        """Return the gradients of x, of the state (a list) and of weights ([direction] -> by kind); then those of their
        tangents.

        Args:
            gy, g_state, gty, gt_state: gradients of y, of the final state, and of their tangents; None is zero.
            wanted: whether those of the tangents of x, and of weights, are; else they are left out.
        """
        grads, t_grads = ([{} for _ in range(self.D)] for _ in range(2))
        g_state, gt_state, gx, gtx, t_initial = list(g_state), list(gt_state), None, None, [None] * self.own
        passed_on = g_state[0], gt_state[0]
        if self.projects:
            rows = self._apart(self.m), self._apart(self.dm)
            gy, gty = map(self._joined, self._projected_backward(grads, t_grads, rows, *map(self._apart, (gy, gty))))
            pair = ([None] * self.D if one is None else list(one) for one in (g_state[0], gt_state[0]))
            pair = self._projected_backward(grads, t_grads, self.ends, *pair)
            g_state[0], gt_state[0] = (None if one[0] is None else self.xp.stack(one) for one in pair)
        count = self.stacks[0].cell.num_private
        first, t_first = [None] * self.D, [None] * self.D
        of_states, of_inputs = None, []
        if any(one is not None for one in (gty, *gt_state)):
            columns, t_initial, of_recurs = self._run_backward(1, self.tangent_tape, gty, gt_state, None)
            of_states = self.xp.zeros((self.T * self.B, self.D * (count + 1), self.H), self.dtype)
            for d, (weights, tangents) in enumerate(zip(self.weights, self.tangents, strict=True)):
                own = self._direction(columns, d)
                self._sum_columns(1, own, t_grads[d])
                W, R = weights.get("W"), weights.get("R")
                gtx = self._to_x(gtx, own, d, W, 1) if wanted[0] else None
                gx = self._to_x(gx, own, d, tangents.get("W"), 1, False)
                self._matrix_gradient(t_grads[d], "W", W if wanted[1] else None, own, self.x, self.of_x[1])
                self._matrix_gradient(grads[d], "W", W, own, self.dx, self.of_x[1])
                dR, of_dR = self._dense(self.d_recurs[d]), {}
                for place, runs in self.of_operand[1].items():
                    vector = self._value(place, d, self.columns)
                    like = self._dense(self.recurs[d]) if wanted[1] else None
                    self._matrix_gradient(of_dR, "R", like, own, vector, runs)
                    if dR is not None:
                        self._to_value(place, d, self._vector_gradient(own, dR, runs), of_states, of_inputs)
                for column, name in enumerate(self.opened.tangent_inputs):
                    if name[0] == "S":
                        self._to_value(self.opened.sources[name], d, self._part(own, column, 1), of_states, of_inputs)
                self._recurring_backward(grads[d], t_grads[d], d, of_recurs[d], self._blocks(of_dR.get("R")))
                for where, vector in ((t_grads, self.h0), (grads, self.dh0)):
                    if vector is not None:
                        self._matrix_gradient(where[d], "R", R, own, vector[d], self.of_gates[1])
                if self.projects:
                    t_first[d] = self._vector_gradient(own, R, self.of_gates[1])
                    first[d] = self._vector_gradient(own, tangents.get("R"), self.of_gates[1])
        columns, initial, of_recurs = self._run_backward(0, self.primal_tape, gy, g_state, of_states)
        for column, value in of_inputs:
            self._part(columns, column, 1)[...] += value
        for d, weights in enumerate(self.weights):
            own, R = self._direction(columns, d), weights.get("R")
            self._sum_columns(0, own, grads[d])
            gx = self._to_x(gx, own, d, weights.get("W"), 0)
            self._matrix_gradient(grads[d], "W", weights.get("W"), own, self.x, self.of_x[0])
            self._recurring_backward(grads[d], t_grads[d], d, of_recurs[d], None)
            if self.h0 is not None:
                self._matrix_gradient(grads[d], "R", R, own, self.h0[d], self.of_gates[0])
            if self.projects:
                first[d] = self._vector_gradient(own, R, self.of_gates[0], first[d])
            for where in (grads[d], t_grads[d]):
                if self.masks is not None and where.get("R") is not None:
                    where["R"] *= self.masks[d]
        if self.projects:
            pairs = zip((first, t_first), passed_on, strict=True)
            initial[0], t_initial[0] = (self._of_empty(self._of_first_steps(one), g) for one, g in pairs)
        gx, gtx = (None if one is None else one.reshape(self.T, self.B, -1) for one in (gx, gtx))
        return gx, initial, grads, gtx, t_initial, t_grads

    def _run_backward(self, number, tape, gy, g_state, of_states):
        """Return the gradients of a layer's inputs (T*B, D*number*H), of its own states at first, and [direction] of R.

        Args:
            of_states: gradients of the states of each step, (T*B, D*number, H), h's behind the others; None: zero.
        """
        stack, others, d_states = self.stacks[number], self.stacks[number].cell.num_private, None
        if of_states is not None:
            both = of_states.reshape(self.T, self.B, self.D, -1)
            split = others * self.H
            gy = _total(gy, both[..., split:].reshape(self.T, self.B, -1))
            d_states = self.xp.ascontiguousarray(both[..., :split]).reshape(self.T, self.B, -1) if others else None
        gy = None if gy is None else self.xp.ascontiguousarray(gy)
        h = None if g_state[0] is None else self.xp.ascontiguousarray(g_state[0])
        c = self._side_by_side(g_state[1:], others)
        dx, dh, dc = stack.backward_data(tape, gy, h, c, None, False, ALL, d_states)
        states = [dh, *(private.split(dc, others) if others else [])][: self.own]
        like = self.recurs[0]
        return dx.reshape(self.T * self.B, -1), states, _unload(stack, tape.dw, self.cell.gates_of_ah, like, self.D)

    def _to_value(self, place, d, g, of_states, of_inputs):
        """Add the gradient of a value of the primal cell, see `_value`."""
        if isinstance(place, str):
            of_inputs.append((d * len(self.opened.inputs) + self.opened.inputs.index(place), g))
        else:
            count = self.stacks[0].cell.num_private
            of_states[:, d * (count + 1) + (place - 1 if place else count)] += g

    def _sum_columns(self, number, columns, grads):
        """Add to the gradients of biases and of parameters per unit those of a cell's inputs."""
        total = columns.sum(axis=0).reshape(-1, self.H)
        for kind, runs, size in (("b_w", self.of_x[number], len(self.cell.gates)),
                                 ("b_r", self.of_gates[number], len(self.cell.gates_of_ah))):  # fmt: skip
            if kind in self.weights[0]:
                made = grads.setdefault(kind, self.xp.zeros((size, self.H), self.dtype))
                for gate, column, count in runs:
                    made[gate : gate + count] += total[column : column + count]
        names = (self.opened.inputs, self.opened.tangent_inputs)[number]
        if "per_unit" in self.weights[0]:
            made = grads.setdefault("per_unit", self.xp.zeros((len(self.cell.per_unit), self.H), self.dtype))
            for column, name in enumerate(names):
                if name[0] == "U":
                    made[self.cell.per_unit.index(name[2:])] += total[column]

    def _to_x(self, gx, columns, d, W, number, given=True):
        """Return the gradient of x, (T*B, I), added to what there is; given: also where x is given in place of W x."""
        if self.mode == "linear":
            return self._vector_gradient(columns, W, self.of_x[number], gx)
        if not given:
            return gx
        gx = self.xp.zeros(self.x.shape, self.dtype) if gx is None else gx
        for gate, column, count in self.of_x[number]:
            for n in range(count):
                place = 0 if self.mode == "skip" else d * len(self.cell.gates) + gate + n
                self._part(gx, place, 1)[...] += self._part(columns, column + n, 1)
        return gx

    def _of_first_steps(self, first):
        """Return the gradient of the initial h, (D, B, P), that `_first_steps` spread."""
        if first[0] is None:
            return None
        return self.xp.stack([first[d][where] * there for d, where, there in self._first_places()])

    def _recurring_backward(self, grads, t_grads, d, g, tg):
        """Add the gradients of R and its tangent for those of R as it multiplies, see `_recurring`."""
        if not self.projects:
            for where, one in ((grads, g), (t_grads, tg)):
                if one is not None:
                    where["R"] = _total(where.get("R"), one)
            return
        R, P, dR, dP = (one[d].get(kind) for one in (self.weights, self.tangents) for kind in ("R", "W_hr"))
        for where, one, matrix, other in ((grads, g, P, R), (grads, tg, dP, dR), (t_grads, tg, P, R)):
            if one is not None:
                where["R"] = _total(where.get("R"), self._times(one, matrix, transpose_b=True))
                if other is not None:
                    where["W_hr"] = _total(where.get("W_hr"), self._outer(other, one))


# ---------------------------------------------------------------------------------------------------- small parts
def _total(*parts):
    """Return the sum of those that are not None; None without any."""
    parts = [part for part in parts if part is not None]
    return sum(parts[1:], parts[0]) if parts else None


def _of(by_direction, d):
    return None if by_direction is None else by_direction[d]


def _runs(pairs):
    """Return (first gate, first column, count) of consecutive (gate, column) pairs."""
    found = []
    for gate, column in sorted(pairs):
        if found and (gate, column) == (found[-1][0] + found[-1][2], found[-1][1] + found[-1][2]):
            found[-1] = (*found[-1][:2], found[-1][2] + 1)
        else:
            found.append((gate, column, 1))
    return found


def _rows_of(stack, gates):
    """Yield (direction, number of a gate, slice of the flat buffer, shape) of R's parts in a stack's."""
    for (_, direction), blocks in stack.space.blocks.items():
        for name, (_, where, shape) in blocks.items():
            if name.startswith("R."):
                yield direction, gates.index(name.removeprefix("R.")), where, shape


def _load(stack, R, gates, buffers):
    """Return the flat weights of a stack with R, [direction] -> (A*H, width).

    Args:
        buffers: stack -> flat weights that the calling thread can overwrite: prepared calls know weights by the buffer.
    """
    flat = buffers.get(stack) if stack.engine.prepares_calls else None
    if flat is None:
        flat = buffers[stack] = stack.engine.zeros(stack.space.size, stack.dtype)
    for direction, gate, where, shape in _rows_of(stack, gates):
        flat[where].reshape(shape)[...] = R[direction][gate * shape[0] : (gate + 1) * shape[0]]
    return flat


def _unload(stack, gradient, gates, like, directions):
    """Return the gradient of R, [direction] -> (A*H, width) or None, in that of a stack's weights."""
    found = [None if like is None else stack.engine.array_module.zeros_like(like) for _ in range(directions)]
    for direction, gate, where, shape in _rows_of(stack, gates):
        found[direction][gate * shape[0] : (gate + 1) * shape[0]] = gradient[where].reshape(shape)
    return found


# ----------------------------------------------------------------------------------------------------------- weights
def weights_by_layer(stack, flat, direction, dtype):
    """Return [layer][direction] -> kind -> what kernels read, see `_Pass`; and its tangent.

    Args:
        flat, direction: flat buffers, of the weights and of their tangent, or None.
    """
    space, engine = stack.space, stack.engine
    known = stack.kernel_weights  # those that it finds are shared by threads
    read = ReadWeights(engine, known.problem, known.no_bias, flat)
    read.derive()
    derived = None if read.derived is None else read.derived.derived
    tangents = None if direction is None or derived is None else derived_tangents(space, engine, flat, direction, dtype)
    weights = _by_layer(stack, read.flat, derived, dtype)
    if direction is None:
        return weights, [[{}] * stack.directions] * stack.num_layers
    return weights, _by_layer(stack, direction, tangents, dtype)


def _by_layer(stack, flat, derived, dtype):
    places = {place: stack.space.pseudo_layer(flat, *place, derived) for place in stack.space.sizes}
    return [
        [
            {kind: one.astype(dtype, copy=False) for kind, one in places[layer, d].items()}
            for d in range(stack.directions)
        ]
        for layer in range(stack.num_layers)
    ]


def flat_gradients(stack, flat, direction, grads, t_grads, dtype):
    """Return the flat gradients of the weights and of their tangents, for [layer][direction] -> kind -> array.

    Args:
        flat, direction: as of `weights_by_layer`.
    """
    space, results = stack.space, []
    for by_layer in (grads, t_grads):
        made, of_derived = (stack.engine.array_module.zeros(size, dtype) for size in (space.size, space.derived_size))
        for layer, d in space.sizes:
            derived = space.derived.get((layer, d), {})
            for kind, array in by_layer[layer][d].items():
                if array is not None:
                    parts = [derived[kind]] if kind in derived else space.parts(layer, d, kind)
                    where = slice(parts[0].offset, parts[-1].offset + parts[-1].size)
                    (of_derived if kind in derived else made)[where] = array.reshape(-1)
        results.append((made, of_derived))
    (made, of_derived), (t_made, t_of_derived) = results
    if space.derived_size:
        pulled_back(space, stack.engine, flat, direction, (of_derived, t_of_derived), (made, t_made), dtype)
    return made, t_made
