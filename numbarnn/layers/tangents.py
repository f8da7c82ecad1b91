"""Derivatives of higher order of a stack of layers: values and their tangents forward, and backward through both.

Each layer is two recurrences of cells that `numbarnn.cells.tracing.tangent` makes, on the engine and with the schedules
of any other cell: the primal one, which also returns the factors of the tangent, and then the tangent one, whose inputs
these are. What does not recur is products with matrices, once for all steps:

    a  = W x + b                        primal    a, h0          -> h, S
    a' = W x' + W' x + R' h_before + b' tangent   a', S, h0'     -> h'

Backward goes through the tangent, whose backward gives the gradients of S, and with these through the primal. As the
tangent is linear, the gradient of <u, y'> is the derivative of backward with dy = u: a Hessian-vector product.
"""

from typing import Any, NamedTuple

import numpy as np

from numbarnn.cells.tracing.tangent import equations_of, opened
from numbarnn.common.precision import compute_dtype
from numbarnn.layers import drawn
from numbarnn.layers.planned import Shape
from numbarnn.layers.sequences import EVERY_STEP
from numbarnn.weights import parameter_name
from numbarnn.weights.derived import derived_tangents, pulled_back

class Values(NamedTuple):
    """What a call is a function of, or its tangents or gradients; what is None is zero.

    Attributes:
        x: (T, B, I), an array of the engine. weights: the flat buffer.
        states: [layer] -> [h (D, B, P), the other states (D, B, H)], as engines have them.
    """

    x: Any = None
    states: Any = None
    weights: Any = None


class Results(NamedTuple):
    """Results of a call, or its tangents or gradients; what is None is zero. `states` as those of `Values`."""

    y: Any = None
    states: Any = None


class Tangents:
    """Derivatives of higher order of a `Stack`. Its cells are compiled when they first run.

    Raises:
        NotImplementedError: the stack's cell has no equations, or has heads and a projection.
    """

    def __init__(self, stack):
        from numbarnn.layers.models import RNN

        self.stack, self.cell = stack, stack.cell
        self.opened = opened(equations_of(self.cell, stack.cell_clip, stack.clip_propagate_nan))
        self.dtype = np.dtype(compute_dtype(stack.dtype))
        self.xp, D = stack.engine.array_module, stack.directions
        if stack.proj_size and self.cell.heads > 1:
            raise NotImplementedError(f"cell {self.cell.name} has heads and a projection, of which there are no tangents")
        arguments = stack._arguments_here()
        options = {name: arguments[name] for name in ("device", "allow_tf32")} | {"dtype": self.dtype.name}
        options |= {"bidirectional": D == 2, "input_mode": "given", "seed": 0}
        schedule = stack.schedule.name
        primal = "auto" if schedule == "persistent" else schedule  # which does not return the states of each step

        def layers(cell, inputs, schedule):
            made = {H: RNN(cell, D * len(inputs) * H, H, schedule=schedule, **options) for H in set(stack.widths)}
            return [made[H] for H in stack.widths]

        self.primal = layers(self.opened.primal, self.opened.inputs, primal)
        self.tangent = layers(self.opened.tangent, self.opened.tangent_inputs, schedule)

    def forward(self, at, along=None, sequences=EVERY_STEP, number=None, tape=True):
        """Return the `Results`, those of the tangents, and what `backward` reads.

        Args:
            at: the `Values`. along: the direction, also `Values`; None: there are no tangents.
            sequences: of the call.
            number: of the training call whose random numbers are drawn; None: inference, without any.
            tape: backward may follow.
        """
        stack, direction, passes = self.stack, along or Values(), []
        draws = self._draws(at.x, sequences, number)
        with stack.engine.activate():
            weights, tangents = weights_by_layer(stack, at.weights, direction.weights, self.dtype)
            x, dx = self._ready(at.x, sequences), self._ready(direction.x, sequences)
            found = []
            for layer in range(stack.num_layers):
                if layer and draws["masks"]:
                    x, dx = (one if one is None else one * draws["masks"][layer - 1] for one in (x, dx))
                own = weights[layer], None if along is None else tangents[layer]
                one = _Pass(self, layer, *own, draws, sequences, tape)
                states = (self._states(part, layer) for part in (at.states, direction.states))
                x, dx, *final = one.forward(x, dx, *states)
                found.append(final)
                passes.append(one)
        final, d_final = zip(*found, strict=True)
        return Results(x, final), Results(dx, d_final), (passes, draws, at.weights, direction.weights)

    def backward(self, tape, d_results, d_tangents=None):
        """Return the gradients of `at` and of `along`, both `Values`, for those of both `Results`."""
        stack, (passes, draws, flat, direction) = self.stack, tape
        d_tangents, found = d_tangents or Results(), []
        gy, gty = d_results.y, d_tangents.y
        with stack.engine.activate():
            for layer in reversed(range(stack.num_layers)):
                states = (self._states(part, layer) for part in (d_results.states, d_tangents.states))
                g, gt = states
                gy, *first, gty, t_states, t_weights = passes[layer].backward(gy, g, gty, gt)
                if layer and draws["masks"]:
                    gy, gty = (one if one is None else one * draws["masks"][layer - 1] for one in (gy, gty))
                found.insert(0, (*first, t_states, t_weights))
            states, weights, t_states, t_weights = map(list, zip(*found, strict=True))
            made, t_made = flat_gradients(stack, flat, direction, weights, t_weights, self.dtype)
        return Values(gy, states, made), Values(gty, t_states, t_made)

    def _states(self, states, layer):
        """Return [h, the other states] of a layer in the compute dtype."""
        if states is None:
            return [None] * self.opened.num_states
        return [part if part is None else part.astype(self.dtype, copy=False) for part in states[layer]]

    def _draws(self, x, sequences, number):
        """Return the random numbers of a call: masks between layers, and by layer masks of R and noise."""
        stack, cell, training = self.stack, self.cell, number is not None
        found, (steps, batch) = {"masks": [], "R": [], "noise": []}, x.shape[:2]
        if not (stack.dropout or cell.noise or any(cell.drop_connect)):
            return found
        ends = sequences.lengths is not None, sequences.resets is not None
        planned = stack._planned(Shape(steps, batch, *ends), training)
        call, to = planned.call(stack.engine.zeros(stack.space.size, stack.dtype), stack.seed, number or 0), stack.engine.from_host
        with stack.engine.activate():
            if planned.problem.dropping:
                masks = drawn.dropout_masks(call, self.dtype.name, stack.output_widths)
                found["masks"] = [to(mask) for mask in masks]
            if training and any(cell.drop_connect):
                masks = drawn.drop_connect_masks(call, self.dtype.name)
                names = [[parameter_name("R", layer, d) for d in range(stack.directions)] for layer in range(stack.num_layers)]
                found["R"] = [
                    to(np.stack([masks[name].reshape(cell.num_ah, H, -1) for name in own]))
                    for own, H in zip(names, stack.widths, strict=True)
                ]
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
    """One layer's part of a call. Its arrays have the axes (D, T*B, ...), gates, H; a matrix of gates is (D, gates, H, ..).

    Args:
        owner: the `Tangents`. layer: its number.
        weights, tangents: kind -> what kernels read, "W" (D, G, H, I), "R" (D, A, H, P / heads), "W_hr" (D, P, H), "b_w"
            (D, G, H), "b_r" (D, A, H), "per_unit" (D, V, H); what is missing is zero. No tangents
            at all: the tangent cell does not run.
        draws: of `Tangents._draws`. sequences: of the call.
        tape: backward may follow.
    """

    def __init__(self, owner, layer, weights, tangents, draws, sequences, tape):
        self.linear, tangents = tangents is not None, tangents or {}
        self.opened, self.xp, self.cell, self.dtype = owner.opened, owner.xp, owner.cell, owner.dtype
        self.sequences, self.tape = sequences, tape
        self.primal, self.tangent = owner.primal[layer], owner.tangent[layer]
        self.D, self.H = owner.stack.directions, owner.stack.widths[layer]
        self.mode = owner.stack.input_mode if layer == 0 else "linear"
        self.noise = draws["noise"][layer] if draws["noise"] else None
        self.mask = draws["R"][layer] if draws["R"] else None
        self.weights, self.tangents = (
            one | {"R": one["R"] * self.mask} if self.mask is not None and "R" in one else one
            for one in (weights, tangents)
        )
        self.projects = "W_hr" in weights
        self.recurs, self.d_recurs = self._recurring()
        self.own = self.opened.num_states
        self.together = {}  # what gates of R multiply -> their numbers
        for number, gate in enumerate(self.cell.gates_of_ah):
            if gate in self.opened.operands:
                self.together.setdefault(self.opened.operands[gate], []).append(number)

    def _recurring(self):
        """Return R as it multiplies what a step makes, and its tangent: with a projection R W_hr."""
        (R, P), (dR, dP) = ([one.get(kind) for kind in ("R", "W_hr")] for one in (self.weights, self.tangents))
        if P is None or R is None:
            return R, dR
        P, dP = P[:, None], None if dP is None else dP[:, None]
        return R @ P, _total(None if dR is None else dR @ P, None if dP is None else R @ dP)

    # ---------------------------------------------------------------- forward
    def forward(self, x, dx, state, d_state):
        """Return y, y', the final state and its tangent: a list of (D, B, ..), h first. x is (T, B, I)."""
        self.T, self.B = x.shape[:2]
        self.x, self.dx = x.reshape(1, -1, x.shape[-1]), None if dx is None else dx.reshape(1, -1, dx.shape[-1])
        self.h0, self.dh0 = self._first_steps(state[0]), self._first_steps(d_state[0])
        columns = self._columns(self.opened.inputs, self._inputs())
        y, last, states, self.primal_tape = self._run(self.primal, columns, state, True)
        self.known = {place: self._flat(value) for place, value in enumerate((y, *states))}
        self.known |= {name: columns[:, :, number] for number, name in enumerate(self.opened.inputs)}
        self.known["m"], self.known["m_last"] = self.known[0], last[0]
        dy, d_last = None, [None] * self.own
        if self.linear:
            columns = self._columns(self.opened.tangent_inputs, self._tangent_inputs())
            dy, d_last, _, self.tangent_tape = self._run(self.tangent, columns, d_state, False)
            self.known["dm"], self.known["dm_last"] = self._flat(dy), d_last[0]
        if self.projects:
            P, dP = self.weights["W_hr"], self.tangents.get("W_hr")
            y, last[0] = self._unflat(_times(self.known["m"], P)), _times(last[0], P)
            if dy is not None:
                dy = self._unflat(_total(_times(self.known["dm"], P), _times(self.known["m"], dP)))
                d_last[0] = _total(_times(d_last[0], P), _times(self.known["m_last"], dP))
        return y, dy, last[: self.own], d_last[: self.own]

    def _run(self, layer, columns, state, every):
        """Run a layer with given inputs: y, the final states, all private states of each step if wanted, the tape."""
        _load(layer, self.recurs, self.cell.gates_of_ah)
        count, rest = layer.stack.cell.num_states, {}
        if self.sequences is not EVERY_STEP:
            rest = {"lengths": self.sequences.lengths, "resets": self.sequences.resets}
        if every and count > 1:
            rest["output_states"] = True
        state = [None if self.projects else state[0], *state[1:], *[None] * (count - self.own)]
        columns = columns.reshape(self.D, self.T, self.B, -1).transpose(1, 2, 0, 3).reshape(self.T, self.B, -1)
        arguments = columns, tuple(state) if count > 1 else state[0]
        y, last, *more = layer.forward(*arguments, **rest) if self.tape else (*layer(*arguments, **rest), None)
        return y, list(last) if count > 1 else [last], more[0] if len(more) > 1 else (), more[-1]

    def _flat(self, value):
        """Return (T, B, D*N) as (D, T*B, N)."""
        return value.reshape(self.T * self.B, self.D, -1).transpose(1, 0, 2)

    def _unflat(self, value):
        """Return (D, T*B, N) as (T, B, D*N)."""
        return value.transpose(1, 0, 2).reshape(self.T, self.B, -1)

    def _columns(self, names, value):
        """Return the values of these names side by side, (D, T*B, number, H)."""
        columns = self.xp.empty((self.D, self.T * self.B, len(names), self.H), self.dtype)
        for number, name in enumerate(names):
            one = value(name)
            columns[:, :, number] = 0 if one is None else one
        return columns

    def _inputs(self):
        """Return the function of a name that returns an input of the primal cell."""
        a, read = self._of_x(self.x, self.weights.get("W")), self.weights
        recurrent = self._of_gates(read.get("b_r"), (self.h0, read.get("R"), None))

        def of(name):
            group, _, last = name.partition(".")
            if group == "N":
                noise = self.noise[:, :, :, int(last[1:])]
                return noise.reshape(self.D, -1, self.H)
            return self._input(group, last, read, [a], recurrent)

        return of

    def _tangent_inputs(self):
        """Return the function of a name that returns an input of the tangent cell."""
        read, tangents = self.weights, self.tangents
        parts = [None if self.dx is None else self._of_x(self.dx, read.get("W"))]
        parts.append(None if tangents.get("W") is None else self._of_x(self.x, tangents["W"]))
        products = [(self.known[place], self.d_recurs, numbers) for place, numbers in self.together.items()]
        products += [(self.dh0, read.get("R"), None), (self.h0, tangents.get("R"), None)]
        recurrent = self._of_gates(tangents.get("b_r"), *products)

        def of(name):
            group, _, last = name.partition(".")
            if group == "S":
                return self.known[self.opened.sources[name]]
            return self._input(group, last, tangents, parts, recurrent)

        return of

    def _input(self, group, name, read, parts, recurrent):
        if group == "Z":
            return recurrent(name)
        if group == "U":
            return _row(read.get("per_unit"), self.cell.per_unit.index(name))
        number = self.cell.gates.index(name)
        merged = [recurrent(gate) for gate, other in self.opened.merged.items() if other == name]
        return _total(*(None if part is None else part[:, :, number] for part in parts),
                      _row(read.get("b_w"), number), *merged)  # fmt: skip

    def _of_x(self, x, W):
        """Return W x of all gates, (D, T*B, G, H)."""
        G = len(self.cell.gates)
        if self.mode == "given":
            return x.reshape(-1, self.D, G, self.H).transpose(1, 0, 2, 3)
        if self.mode == "skip":
            return self.xp.broadcast_to(x[:, :, None], (self.D, x.shape[1], G, self.H))
        return _times_gates(x, W)

    def _of_gates(self, bias, *products):
        """Return the function of a gate of R that returns its part of the inputs: bias and products without None.

        Args:
            products: (what is multiplied, the matrix of all gates, the numbers of the gates that are or None: all).
        """
        gates, made = self.cell.gates_of_ah, []
        for vector, matrix, numbers in products:
            if vector is not None and matrix is not None:
                own = list(range(len(gates))) if numbers is None else numbers
                made.append((own, _times_gates(vector, matrix[:, own])))

        def of(gate):
            number = gates.index(gate)
            parts = (value[:, :, own.index(number)] for own, value in made if number in own)
            return _total(_row(bias, number), *parts)

        return of

    def _first_steps(self, h):
        """Return an initial h that is projected as (D, T*B, P), which R multiplies: 0 but in first steps."""
        if not self.projects or h is None:
            return None
        found = self.xp.zeros((self.D, self.T * self.B, h.shape[-1]), self.dtype)
        for d, where, there in self._first_places():
            found[d, where] = h[d] * there
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

    # ---------------------------------------------------------------- backward
    def backward(self, gy, g_state, gty, gt_state):
        """Return the gradients of x, of the state (a list) and of weights (by kind); then those of their tangents.

        Args:
            gy, g_state, gty, gt_state: gradients of y, of the final state, and of their tangents; None is zero.
        """
        grads, t_grads, of_known, gx, gtx, t_initial = {}, {}, {}, None, None, [None] * self.own
        first, t_first, of_recurs, t_of_recurs = None, None, None, None
        g_state, gt_state, read, tangents = list(g_state), list(gt_state), self.weights, self.tangents
        if self.projects:
            gy, g_state[0] = self._projection_backward(grads, t_grads, gy, gty, g_state[0], gt_state[0])
            gty, gt_state[0] = (None if one is None else one @ read["W_hr"] for one in (self._maybe_flat(gty), gt_state[0]))
            gty = None if gty is None else self._unflat(gty)
        if self.linear and any(one is not None for one in (gty, *gt_state)):
            columns, t_initial, of_recurs = self._run_backward(self.tangent, self.tangent_tape, gty, gt_state, {})
            of_x, of_gates = self._sorted(self.opened.tangent_inputs, columns, t_grads, of_known)
            gtx, gx = self._to_x(of_x, read.get("W")), self._to_x(of_x, tangents.get("W"), linear=True)
            self._add(t_grads, "W", of_x, self.x)
            self._add(grads, "W", of_x, self.dx)
            t_of_recurs = self._products_backward(of_gates, of_known)
            self._add(t_grads, "R", of_gates, self.h0)
            self._add(grads, "R", of_gates, self.dh0)
            if self.projects:
                t_first = _vector_gradient(of_gates, read["R"])
                first = _vector_gradient(of_gates, tangents.get("R"))
        gy = _total(gy, None if (more := of_known.pop(0, None)) is None else self._unflat(more))
        columns, initial, more = self._run_backward(self.primal, self.primal_tape, gy, g_state, of_known)
        for name, value in of_known.items():
            if isinstance(name, str):
                columns[:, :, self.opened.inputs.index(name)] += value
        of_x, of_gates = self._sorted(self.opened.inputs, columns, grads, {})
        gx = _total(gx, self._to_x(of_x, read.get("W")))
        self._add(grads, "W", of_x, self.x)
        self._add(grads, "R", of_gates, self.h0)
        of_recurs = _total(of_recurs, more)
        if self.projects:
            first = _total(first, _vector_gradient(of_gates, read["R"]))
            initial[0], t_initial[0] = (self._of_first_steps(one) for one in (first, t_first))
        self._recurring_backward(grads, t_grads, of_recurs, t_of_recurs)
        shape = self.T, self.B, -1
        gx, gtx = (None if one is None else one.reshape(shape) for one in (gx, gtx))
        return gx, initial, grads, gtx, t_initial, t_grads

    def _run_backward(self, layer, tape, gy, g_state, of_known):
        """Return the gradients of a layer's inputs (D, T*B, number, H), of its first own states, and of R."""
        count, rest = layer.stack.cell.num_states, {}
        states = [of_known.get(place) for place in range(1, count)]
        if any(one is not None for one in states):
            rest["dstates"] = tuple(one if one is None else self._unflat(one) for one in states)
        g_state = (*g_state, *[None] * (count - self.own)) if count > 1 else g_state[0]
        found = layer.backward(tape, gy, g_state, **rest)
        columns = found.x.reshape(self.T * self.B, self.D, -1, self.H).transpose(1, 0, 2, 3)
        state = list(found.state) if count > 1 else [found.state]
        return columns, state[: self.own], _unload(layer, found.weights, self.cell.gates_of_ah, self.recurs)

    def _sorted(self, names, columns, grads, of_known):
        """Return the gradients of W x and of what R multiplies, of all gates, from those of a cell's inputs.

        Args:
            grads: gets those of biases and of parameters per unit. of_known: gets those of the primal cell's values.
        """
        gates, recurrent = self.cell.gates, self.cell.gates_of_ah
        of_x, of_gates = (self.xp.zeros((*columns.shape[:2], len(one), self.H), self.dtype) for one in (gates, recurrent))
        of_units = self.xp.zeros((*columns.shape[:2], len(self.cell.per_unit), self.H), self.dtype)
        for number, name in enumerate(names):
            group, _, last = name.partition(".")
            if group == "W":
                of_x[:, :, gates.index(last)] = columns[:, :, number]
            elif group == "Z":
                of_gates[:, :, recurrent.index(last)] = columns[:, :, number]
            elif group == "U":
                of_units[:, :, self.cell.per_unit.index(last)] = columns[:, :, number]
            elif group == "S":
                place = self.opened.sources[name]
                of_known[place] = _total(of_known.get(place), columns[:, :, number])
        for gate, other in self.opened.merged.items():
            of_gates[:, :, recurrent.index(gate)] = of_x[:, :, gates.index(other)]
        for kind, value in (("b_w", of_x), ("b_r", of_gates), ("per_unit", of_units)):
            if kind in self.weights:
                grads[kind] = _total(grads.get(kind), value.sum(axis=1))
        return of_x, of_gates

    def _add(self, grads, kind, of_gates, vector):
        """Add to the gradient of a matrix of gates that multiplied a vector."""
        if kind in self.weights and vector is not None:
            grads[kind] = _total(grads.get(kind), _matrix_gradient(of_gates, vector, self.weights[kind].shape))

    def _products_backward(self, of_gates, of_known):
        """Return the gradient of the tangent of R, by what it multiplied.

        Args:
            of_known: gets the gradients that come through the tangent of R to the primal cell's values.
        """
        if self.recurs is None:
            return None
        found = self.xp.zeros(self.recurs.shape, self.dtype)
        for place, numbers in self.together.items():
            own, shape = of_gates[:, :, numbers], (self.D, len(numbers), *self.recurs.shape[2:])
            found[:, numbers] = _matrix_gradient(own, self.known[place], shape)
            if self.d_recurs is not None:
                more = _vector_gradient(own, self.d_recurs[:, numbers], self.cell.heads)
                of_known[place] = _total(of_known.get(place), more)
        return found

    def _to_x(self, of_x, W, linear=False):
        """Return the gradient of x, (T*B, I), from those of W x; linear: W is a tangent, of which there may be none."""
        if self.mode == "given":
            return None if linear else of_x.transpose(1, 0, 2, 3).reshape(self.T * self.B, -1)
        if self.mode == "skip":
            return None if linear else of_x.sum(axis=(0, 2))
        return None if W is None else _vector_gradient(of_x, W).sum(axis=0)

    def _maybe_flat(self, value):
        return None if value is None else self._flat(value)

    def _projection_backward(self, grads, t_grads, gy, gty, gh, gth):
        """Return the gradients of m, (T, B, D*H), and of its last value, for those of y = W_hr m and of tangents."""
        P, dP, known = self.weights["W_hr"], self.tangents.get("W_hr"), self.known
        for of_y, of_dy, m, dm in ((self._maybe_flat(gy), self._maybe_flat(gty), known["m"], known.get("dm")),
                                   (gh, gth, known["m_last"], known.get("dm_last"))):  # fmt: skip
            pairs = ((grads, of_y, m), (grads, of_dy, dm), (t_grads, of_dy, m))
            for where, g, vector in pairs:
                if g is not None and vector is not None:
                    where["W_hr"] = _total(where.get("W_hr"), g.swapaxes(-1, -2) @ vector)
        gm, last = (
            _total(None if of_y is None else of_y @ P, None if of_dy is None or dP is None else of_dy @ dP)
            for of_y, of_dy in ((self._maybe_flat(gy), self._maybe_flat(gty)), (gh, gth))
        )
        return None if gm is None else self._unflat(gm), last

    def _of_first_steps(self, first):
        """Return the gradient of the initial h, (D, B, P), that `_first_steps` spread."""
        if first is None:
            return None
        return self.xp.stack([first[d, where] * there for d, where, there in self._first_places()])

    def _recurring_backward(self, grads, t_grads, of_recurs, t_of_recurs):
        """Add the gradients of R and its tangent as they multiply, see `_recurring`."""
        if self.recurs is None:
            return
        if self.projects:
            R, P, dR, dP = (one.get(kind) for one in (self.weights, self.tangents) for kind in ("R", "W_hr"))
            for where, g, matrix, tangent in ((grads, of_recurs, P, R), (grads, t_of_recurs, dP, dR), (t_grads, t_of_recurs, P, R)):
                if g is not None and matrix is not None:
                    where["R"] = _total(where.get("R"), g @ matrix[:, None].swapaxes(-1, -2))
                if g is not None and tangent is not None:
                    where["W_hr"] = _total(where.get("W_hr"), (tangent.swapaxes(-1, -2) @ g).sum(axis=-3))
        else:
            grads["R"], t_grads["R"] = of_recurs, t_of_recurs
        for where in (grads, t_grads):
            if self.mask is not None and where.get("R") is not None:
                where["R"] = where["R"] * self.mask


# ---------------------------------------------------------------------------------------------------- small parts
def _total(*parts):
    """Return the sum of those that are not None; None without any."""
    parts = [part for part in parts if part is not None]
    return sum(parts[1:], parts[0]) if parts else None


def _row(array, number):
    """Return (D, 1, H) of (D, gates, H), or None of None."""
    return None if array is None else array[:, number, None]


def _times(vector, matrix):
    """Return a matrix (D, P, H) times (D, N, H), or None."""
    return None if vector is None or matrix is None else vector @ matrix.swapaxes(-1, -2)


def _times_gates(vector, matrix):
    """Return a matrix (D, gates, H, width) times (D or 1, N, heads * width): (D, N, gates, H)."""
    D, gates, H, width = matrix.shape
    heads = vector.shape[-1] // width
    blocks = matrix.reshape(D, gates, heads, H // heads, width).transpose(0, 2, 4, 1, 3).reshape(D, heads, width, -1)
    found = vector.reshape(len(vector), -1, heads, width).transpose(0, 2, 1, 3) @ blocks
    return found.reshape(D, heads, -1, gates, H // heads).transpose(0, 2, 3, 1, 4).reshape(D, -1, gates, H)


def _vector_gradient(of_gates, matrix, heads=1):
    """Return the gradient of what a matrix of gates multiplied, (D, N, heads * width); None without a matrix."""
    if matrix is None:
        return None
    D, gates, H, width = matrix.shape
    blocks = matrix.reshape(D, gates, heads, H // heads, width).transpose(0, 2, 1, 3, 4).reshape(D, heads, -1, width)
    g = of_gates.reshape(D, -1, gates, heads, H // heads).transpose(0, 3, 1, 2, 4).reshape(D, heads, -1, gates * H // heads)
    return (g @ blocks).transpose(0, 2, 1, 3).reshape(D, -1, heads * width)


def _matrix_gradient(of_gates, vector, shape):
    """Return the gradient of a matrix (D, gates, H, width) that multiplied (D or 1, N, heads * width)."""
    D, gates, H, width = shape
    heads = vector.shape[-1] // width
    g = of_gates.reshape(D, -1, gates, heads, H // heads).transpose(0, 3, 2, 4, 1).reshape(D, heads, gates * H // heads, -1)
    found = g @ vector.reshape(len(vector), -1, heads, width).transpose(0, 2, 1, 3)
    return found.reshape(D, heads, gates, H // heads, width).swapaxes(1, 2).reshape(D, gates, H, width)


def _rows_of(layer, gates):
    """Yield (direction, number of a gate, slice of the flat buffer, shape) of R's parts in a layer."""
    for (_, direction), blocks in layer.stack.space.blocks.items():
        for name, (_, where, shape) in blocks.items():
            if name.startswith("R."):
                yield direction, gates.index(name.removeprefix("R.")), where, shape


def _load(layer, R, gates):
    """Set a layer's R, (D, A, H, width)."""
    layer.weights[...] = 0
    for direction, gate, where, shape in _rows_of(layer, gates):
        layer.weights[where].reshape(shape)[...] = R[direction, gate]


def _unload(layer, gradient, gates, like):
    """Return the gradient of R, (D, A, H, width), in that of a layer's weights."""
    if like is None:
        return None
    found = layer.engine.array_module.zeros_like(like)
    for direction, gate, where, shape in _rows_of(layer, gates):
        found[direction, gate] = gradient[where].reshape(shape)
    return found


# ----------------------------------------------------------------------------------------------------------- weights
def weights_by_layer(stack, flat, direction, dtype):
    """Return [layer] -> kind -> what kernels read (D, ...), see `_Pass`; and its tangent in a direction.

    Args:
        flat, direction: flat buffers; no direction: there are no tangents ({}).
    """
    space, engine = stack.space, stack.engine
    read = stack.kernel_weights.of(flat)
    read.derive()
    derived = None if read.derived is None else read.derived.derived
    tangents = None if direction is None or derived is None else derived_tangents(space, engine, flat, direction, dtype)
    weights = _by_layer(stack, read.flat, derived, dtype)
    if direction is None:
        return weights, [{} for _ in weights]
    return weights, _by_layer(stack, direction, tangents, dtype)


def _by_layer(stack, flat, derived, dtype):
    found = []
    for layer in range(stack.num_layers):
        places = [stack.space.pseudo_layer(flat, layer, d, derived) for d in range(stack.directions)]
        H, one = stack.widths[layer], {}
        for kind in places[0]:
            arrays = stack.engine.array_module.stack([place[kind] for place in places]).astype(dtype, copy=False)
            if kind != "W_hr":
                rest = arrays.shape[2:] if kind in ("W", "R") else ()
                arrays = arrays.reshape(stack.directions, -1, H, *rest)
            one[kind] = arrays
        found.append(one)
    return found


def flat_gradients(stack, flat, direction, grads, t_grads, dtype):
    """Return the flat gradients of the weights and of their tangents, for [layer] -> kind -> array (D, ...).

    Args:
        flat, direction: as of `weights_by_layer`.
    """
    space, results = stack.space, []
    for by_layer in (grads, t_grads):
        made, of_derived = (stack.engine.array_module.zeros(size, dtype) for size in (space.size, space.derived_size))
        for layer, d in space.sizes:
            derived = space.derived.get((layer, d), {})
            for kind, array in by_layer[layer].items():
                if array is not None:
                    parts = [derived[kind]] if kind in derived else space.parts(layer, d, kind)
                    where = slice(parts[0].offset, parts[-1].offset + parts[-1].size)
                    (of_derived if kind in derived else made)[where] = array[d].reshape(-1)
        results.append((made, of_derived))
    (made, of_derived), (t_made, t_of_derived) = results
    if space.derived_size:
        pulled_back(space, stack.engine, flat, direction, (of_derived, t_of_derived), (made, t_made), dtype)
    return made, t_made
