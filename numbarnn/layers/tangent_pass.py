"""Run one layer's part of a call of `numbarnn.layers.tangents`: its two recurrences, and the products around them."""

from dataclasses import replace

import numpy as np

from numbarnn.layers import private
from numbarnn.layers.planned import NEW, Shape, Tape
from numbarnn.programs.backward import ALL


class OpenedLayer:
    """The primal or the tangent recurrence of a layer, with the positions of its inputs and parameters.

    Args:
        stack: a `Stack` of the recurrence's cell. names: of the cell's inputs. opened: the `Opened`. cell: the layer's.

    Attributes:
        others: number of states besides h.
        of_x, of_h: [(first gate, first input, count)]: which gates of W, and of R, are added to which inputs.
        of_operands: number of an input -> list like `of_h`, of the gates of R that multiply this input.
        noise: [(number of an input, number of its random number)].
    """

    def __init__(self, stack, names, opened, cell):
        self.stack, self.others, self.H = stack, stack.cell.num_private, stack.widths[0]
        gates, recurrent = list(cell.gates), list(cell.gates_of_ah)
        column_of = {name: column for column, name in enumerate(names)}
        of_h = {gate: column_of[f"W.{opened.merged[gate]}" if gate in opened.merged else f"Z.{gate}"]
                for gate in recurrent}  # fmt: skip
        self.of_x = _runs((gates.index(name[2:]), column) for name, column in column_of.items() if name[0] == "W")
        self.of_h = _runs((recurrent.index(gate), column) for gate, column in of_h.items())
        units = ((cell.per_unit.index(name[2:]), column) for name, column in column_of.items() if name[0] == "U")
        self._biases = {"b_w": self.of_x, "b_r": self.of_h, "per_unit": _runs(units)}
        self.of_operands = {
            operand: _runs((recurrent.index(gate), of_h[gate]) for gate in of_h if opened.operands[gate] == operand)
            for operand in opened.operands.values()
        }
        self.noise = [(column, int(name[3:])) for name, column in column_of.items() if name[0] == "N"]
        gates_of_stack = enumerate(stack.cell.gates_of_ah)
        self._rows = [
            (slice(first * self.H, (first + count) * self.H), slice(place * self.H, (place + count) * self.H))
            for first, place, count in _runs((recurrent.index(gate), place) for place, gate in gates_of_stack)
        ]

    def load(self, flat, R, weights):
        """Fill the flat weights. R: [direction] -> (A*H, width). weights: [direction] -> kind -> array, with the
        biases."""
        for d, constants in enumerate(weights):
            parts = self.stack.space.pseudo_layer(flat, 0, d)
            for rows, place in self._rows:
                parts["R"][place] = R[d][rows]
            parts["b_w"][...] = 0
            bias = parts["b_w"].reshape(-1, self.H)
            for kind, runs in self._biases.items():
                for first, column, count in runs if kind in constants else ():
                    bias[column : column + count] += constants[kind].reshape(-1, self.H)[first : first + count]

    def unload(self, gradient, R, like, grads):
        """Add the gradients of biases to `grads`, and return the gradient of R, [direction] -> (A*H, width).
        gradient: of the flat weights. R: as in `load`. like, grads: [direction] -> the weights, and their gradients."""
        of_R, xp = [], self.stack.engine.array_module
        for d, weights in enumerate(like):
            parts = self.stack.space.pseudo_layer(gradient, 0, d)
            of_R.append(None if R[d] is None else xp.zeros_like(R[d]))
            for rows, place in self._rows:
                of_R[d][rows] = parts["R"][place]
            bias = parts["b_w"].reshape(-1, self.H)
            for kind, runs in self._biases.items():
                if kind in weights and kind not in grads[d]:
                    grads[d][kind] = xp.zeros((weights[kind].size // self.H, self.H), gradient.dtype)
                for first, column, count in runs if kind in weights else ():
                    grads[d][kind][first : first + count] += bias[column : column + count]
        return of_R


class Pass:
    """One layer's part of a call. Arrays of all steps have T*B rows; in a row, directions and inputs are side by side.

    Args:
        owner: the `Tangents`. layer: the layer's number.
        weights, tangents: [direction] -> kind -> what kernels read: "W" (G*H, I), "R" (A*H, P/heads), "W_hr" (P, H),
            "b_w" (G*H,), "b_r" (A*H,), "per_unit" (V*H,). What is missing is zero.
        draws: see `Tangents._draws`. sequences: of the call. tape: whether backward may follow.
    """

    def __init__(self, owner, layer, weights, tangents, draws, sequences, tape):
        self.engine, self.xp, self.cell, self.dtype = owner.stack.engine, owner.xp, owner.cell, owner.dtype
        self.primal, *others = owner.recurrences[layer]
        self.tangent, self.buffers = others[0] if others else None, vars(owner.of_thread)
        self.sequences, self.tape, self.own = sequences, tape, owner.opened.num_states
        self.D, self.H = owner.stack.directions, owner.stack.widths[layer]
        self.mode = owner.stack.input_mode if layer == 0 else "linear"
        self.tf32, self.products = owner.stack.allow_tf32 is True, []  # products: not computed yet
        self.noise = draws["noise"][layer] if draws["noise"] else None
        self.masks = draws["R"][layer] if draws["R"] else None
        self.weights, self.tangents = self._dropped(weights), self._dropped(tangents)
        self.projects = "W_hr" in weights[0]
        both = zip(self.weights, self.tangents, strict=True)
        self.recurs, d_recurs = zip(*(self._recurring(*one) for one in both), strict=True)
        self.d_recurs = [self._dense(one) for one in d_recurs]

    def _dropped(self, weights):
        if self.masks is None:
            return weights
        return [
            one | {"R": one["R"] * mask} if "R" in one else one for one, mask in zip(weights, self.masks, strict=True)
        ]

    def _recurring(self, weights, tangents):
        """Return the effective R, which multiplies the state that steps carry, and its tangent or None: R W_hr with a
        projection."""
        R, P, dR, dP = (one.get(kind) for one in (weights, tangents) for kind in ("R", "W_hr"))
        if P is None or R is None:
            return R, dR
        return self._times(R, P), _total(self._times(dR, P), self._times(R, dP))

    # ---------------------------------------------------------------- products
    def _multiply(self, out, a, b, **options):
        """Queue a product. The CPU engine computes several products in one call, which wakes its threads once."""
        self.products.append(("multiply", (out, a, b), options | {"allow_tf32": self.tf32}))

    def _compute(self):
        """Compute the queued products."""
        products, self.products = self.products, []
        for function in self.engine.compile(products):
            function()

    def _times(self, a, b, transpose_a=False, transpose_b=False):
        """Return a b, either transposed; None if a or b is None."""
        if a is None or b is None:
            return None
        out = self.engine.empty((a.shape[transpose_a], b.shape[not transpose_b]), self.dtype)
        self._multiply(out, a, b, transpose_a=transpose_a, transpose_b=transpose_b)
        self._compute()
        return out

    def _part(self, array, first, count=1):
        return array[:, first * self.H : (first + count) * self.H]

    def _direction(self, columns, d):
        """Return the columns of one direction."""
        count = columns.shape[1] // self.D
        return columns[:, d * count : (d + 1) * count]

    def _each(self, columns, runs, matrix):
        """Yield (columns, rows of a matrix of gates) for each entry of `OpenedLayer.of_x` or a list like it."""
        for gate, column, count in runs:
            yield self._part(columns, column, count), matrix[gate * self.H : (gate + count) * self.H]

    def _add_products(self, columns, vector, matrix, runs, accumulate=True):
        """Add a matrix of gates times a vector (T*B, width) to columns; without `accumulate`, overwrite them."""
        if vector is not None and matrix is not None:
            for out, rows in self._each(columns, runs, matrix):
                self._multiply(out, vector, rows, transpose_b=True, accumulate=accumulate)

    def _vector_gradient(self, columns, matrix, runs, out=None):
        """Return the gradient of the vector that a matrix of gates multiplied, added to `out`; without a matrix, return
        `out`."""
        if matrix is None:
            return out
        added = out is not None
        out = out if added else self.engine.empty((len(columns), matrix.shape[1]), self.dtype)
        for part, rows in self._each(columns, runs, matrix):
            self._multiply(out, part, rows, accumulate=added)
            added = True
        return out

    def _matrix_gradient(self, grads, kind, like, columns, vector, runs):
        """Add to grads[kind] the gradient of a matrix of gates, shaped like `like`, that multiplied a vector."""
        if like is None or vector is None:
            return
        if grads.get(kind) is None:
            grads[kind] = self.engine.zeros(like.shape, self.dtype)
        for part, rows in self._each(columns, runs, grads[kind]):
            self._multiply(rows, part, vector, transpose_a=True, accumulate=True)

    # ---------------------------------------------------------------- forward
    def forward(self, x, dx, state, d_state):
        """Return y, y', the final state and its tangent: lists of (D, B, ...), h first. x is (T, B, I). Tangents are
        None without a tangent recurrence."""
        self.T, self.B = x.shape[:2]
        self.x, self.dx = (one if one is None else one.reshape(-1, one.shape[-1]) for one in (x, dx))
        self.h0, self.dh0 = self._first_steps(state[0]), self._first_steps(d_state[0])
        self.m, last, self.values, self.primal_tape = self._run(self.primal, self._inputs(), self.weights, state)
        self.dm, d_last = None, [None] * self.own
        if self.tangent is not None:
            self._add_tangents()
            inputs = self.values, self.tangents, d_state
            self.dm, d_last, _, self.tangent_tape = self._run(self.tangent, *inputs)
        y, dy = self.m, self.dm
        if self.projects:
            self.ends = list(last[0]), [None] * self.D if d_last[0] is None else list(d_last[0])
            y, dy = map(self._joined, self._projected(self._apart(self.m), self._apart(dy)))
            ends = (None if one[0] is None else self.xp.stack(one) for one in self._projected(*self.ends))
            last[0], d_last[0] = (self._of_empty(*pair) for pair in zip(ends, (state[0], d_state[0]), strict=True))
        self.y = y
        return y, dy, last[: self.own], d_last[: self.own]

    def _run(self, recurrence, columns, weights, state):
        """Run a recurrence and return y, the final states, the primal's other states of each step, and the tape."""
        self._compute()
        stack, others, is_primal = recurrence.stack, recurrence.others, recurrence is self.primal
        h, c = None if self.projects else state[0], self._side_by_side(state[1:], others)
        x = columns.reshape(self.T, self.B, -1)
        apart = is_primal and self.tape  # a tape without copies, which the values of all steps stand in
        flat = self.buffers.get(stack) if stack.engine.prepares_calls and not apart else None
        if flat is None:
            flat = stack.engine.empty(stack.space.size, stack.dtype)
            if not apart:  # prepared calls know weights by the buffer
                self.buffers[stack] = flat
        recurrence.load(flat, self.recurs, weights)
        sequences = replace(self.sequences, every_state=True) if is_primal else self.sequences
        if apart:
            ends = sequences.lengths is not None, sequences.resets is not None
            calls = stack.planned(Shape(self.T, self.B, *ends, keeps_states=True, from_zero=h is None), True)
            done = calls.run(flat, x, (h, c), sequences)
            (y, h, c, *more), tape = done.results, Tape(stack, flat, calls, done.tape, x)
        else:
            y, h, c, *more, tape = stack.forward(x, h, c, flat, self.tape, False, sequences)
        states = [h, *(private.split(c, others) if others else [])]
        return y, states, more[0].reshape(len(columns), -1) if more else None, tape

    def _side_by_side(self, parts, count):
        """Concatenate states, and zeros up to `count` states, to (D, B, count*H); None if all are zero."""
        parts = [*parts, *[None] * (count - len(parts))]
        return private.join(self.xp, parts, (self.D, self.B, self.H), self.dtype) if count else None

    def _inputs(self):
        """Return the primal cell's inputs, (T*B, D*number*H)."""
        columns = self.engine.empty((self.T * self.B, self.D * self.primal.stack.cell.num_gates * self.H), self.dtype)
        for d, weights in enumerate(self.weights):
            inputs, W = self._direction(columns, d), weights.get("W")
            written = W is not None and sum(count for *_, count in self.primal.of_x)
            inputs[:, written * self.H :] = 0  # gates of W x come first
            for column, number in self.primal.noise:
                self._part(inputs, column)[...] = self.noise[d, :, :, number].reshape(-1, self.H)
            self._add_x(inputs, d, self.x, W, self.primal, not written)
            self._add_products(inputs, _of(self.h0, d), weights.get("R"), self.primal.of_h)
        return columns

    def _add_tangents(self):
        """Add to the tangent cell's inputs what does not depend on earlier steps."""
        for d, (weights, tangents, dR) in enumerate(zip(self.weights, self.tangents, self.d_recurs, strict=True)):
            inputs = self._direction(self.values, d)
            self._add_x(inputs, d, self.dx, weights.get("W"), self.tangent)
            if self.mode == "linear":
                self._add_x(inputs, d, self.x, tangents.get("W"), self.tangent)
            for operand, runs in self.tangent.of_operands.items():
                self._add_products(inputs, self._part(inputs, operand), dR, runs)
            self._add_products(inputs, _of(self.dh0, d), weights.get("R"), self.tangent.of_h)
            self._add_products(inputs, _of(self.h0, d), tangents.get("R"), self.tangent.of_h)

    def _add_x(self, columns, d, x, W, recurrence, accumulate=True):
        """Add W x, or what replaces it; without `accumulate`, overwrite."""
        if self.mode == "linear" or x is None:
            self._add_products(columns, x, W, recurrence.of_x, accumulate)
            return
        for place, column in self._places_of_x(d, recurrence):
            self._part(columns, column)[...] += self._part(x, place)

    def _places_of_x(self, d, recurrence):
        """Yield (number of a part of x, number of the input that it is added to) for input modes in which x replaces W
        x."""
        for gate, column, count in recurrence.of_x:
            for n in range(count):
                yield 0 if self.mode == "skip" else d * len(self.cell.gates) + gate + n, column + n

    def _dense(self, R):
        """Return an R with blocks on its diagonal as a dense matrix."""
        if R is None or self.cell.heads == 1:
            return R
        heads, (rows, width) = self.cell.heads, R.shape
        blocks, dense = (
            R.reshape(-1, heads, width, width),
            self.xp.zeros((rows // self.H, heads, width, heads, width), R.dtype),
        )
        for k in range(heads):
            dense[:, k, :, k] = blocks[:, k]
        return dense.reshape(rows, self.H)

    def _blocks(self, dense):
        """Return the diagonal blocks of a matrix from `_dense`."""
        if dense is None or self.cell.heads == 1:
            return dense
        heads, width = self.cell.heads, self.H // self.cell.heads
        apart = dense.reshape(-1, heads, width, heads, width)
        return self.xp.stack([apart[:, k, :, k] for k in range(heads)], axis=1).reshape(-1, width)

    # ---------------------------------------------------------------- projection: y = W_hr m
    def _first_steps(self, h):
        """Spread the initial state of a projected h to [direction] -> (T*B, P), zero except in first steps, as operand
        of R."""
        if not self.projects or h is None:
            return None
        spread = [self.xp.zeros((self.T * self.B, h.shape[-1]), self.dtype) for _ in range(self.D)]
        for d, where, there in self._first_places():
            spread[d][where] = h[d] * there
        return spread

    def _first_places(self):
        """Yield (direction, rows of its sequences' first steps, 1 where the initial state is read and 0 elsewhere)."""
        lengths, resets, column = self.sequences.lengths, self.sequences.resets, np.arange(self.B)
        lengths = np.full(self.B, self.T) if lengths is None else np.asarray(lengths)
        for d in range(self.D):
            first = np.maximum(lengths - 1, 0) if d else np.zeros(self.B, int)
            there = self.xp.asarray((lengths > 0)[:, None], self.dtype)
            if resets is not None and d == 0:
                there = there * (1 - self.xp.asarray(resets)[0][:, None])
            yield d, self.xp.asarray(first * self.B + column), there

    def _of_empty(self, final, state):
        """Add an initial h (or None) to `found` for sequences of length 0, as their final state."""
        lengths = self.sequences.lengths
        if lengths is None or state is None or np.all(lengths):
            return final
        return _total(final, state * self.xp.asarray((np.asarray(lengths) == 0)[:, None], self.dtype))

    def _projected(self, m, dm):
        """Return W_hr m and its tangent, each a list of rows by direction."""
        y, dy = [], []
        for one, other, weights, tangents in zip(m, dm, self.weights, self.tangents, strict=True):
            P, dP = weights["W_hr"], tangents.get("W_hr")
            y.append(self._times(one, P, transpose_b=True))
            dy.append(_total(self._times(other, P, transpose_b=True), self._times(one, dP, transpose_b=True)))
        return y, dy

    def _projected_backward(self, grads, t_grads, rows, of_y, of_dy):
        """Return the gradients of m and of its tangent, lists of rows by direction, and add the gradients of W_hr.
        rows: (m, its tangent). of_y, of_dy: gradients of W_hr m and of its tangent; entries may be None."""
        of_m, of_dm = [], []
        for d, (m, dm, g, tg) in enumerate(zip(*rows, of_y, of_dy, strict=True)):
            P, dP = self.weights[d]["W_hr"], self.tangents[d].get("W_hr")
            for where, one, vector in ((grads, g, m), (grads, tg, dm), (t_grads, tg, m)):
                if one is not None and vector is not None:
                    where[d]["W_hr"] = _total(where[d].get("W_hr"), self._times(one, vector, transpose_a=True))
            of_m.append(_total(self._times(g, P), self._times(tg, dP)))
            of_dm.append(self._times(tg, P))
        return of_m, of_dm

    def _apart(self, steps):
        """Return the rows of each direction of (T, B, D*N)."""
        if steps is None:
            return [None] * self.D
        return [self._direction(steps.reshape(self.T * self.B, -1), d) for d in range(self.D)]

    def _joined(self, rows):
        """Undo `_apart`."""
        if rows[0] is None:
            return None
        steps = rows[0] if self.D == 1 else self.xp.concatenate(rows, axis=1)
        return steps.reshape(self.T, self.B, -1)

    # ---------------------------------------------------------------- backward
    def backward(self, gy, g_state, gty, gt_state, wanted):
        """Return the gradients of x, of the state (a list) and of weights ([direction] -> by kind), then those of their
        tangents.

        Args:
            gy, g_state, gty, gt_state: gradients of y, of the final state, and of their tangents; None is zero.
            wanted: whether to compute the gradients of x's tangent, and of the weights' tangents.
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
        first, t_first, d_values = [None] * self.D, [None] * self.D, None
        if any(one is not None for one in (gty, *gt_state)):
            inputs = self.tangent_tape, gty, gt_state, None, t_grads
            d_values, t_initial, of_recurs = self._run_backward(self.tangent, *inputs)
            for d, (weights, tangents) in enumerate(zip(self.weights, self.tangents, strict=True)):
                d_in, values = self._direction(d_values, d), self._direction(self.values, d)
                W, R, of_dR = weights.get("W"), weights.get("R"), {}
                gtx = self._to_x(gtx, d_in, d, W, self.tangent) if wanted[0] else None
                if self.mode == "linear":
                    gx = self._to_x(gx, d_in, d, tangents.get("W"), self.tangent)
                self._matrix_gradient(t_grads[d], "W", W if wanted[1] else None, d_in, self.x, self.tangent.of_x)
                self._matrix_gradient(grads[d], "W", W, d_in, self.dx, self.tangent.of_x)
                like = self._dense(self.recurs[d]) if wanted[1] else None
                for operand, runs in self.tangent.of_operands.items():
                    self._matrix_gradient(of_dR, "R", like, d_in, self._part(values, operand), runs)
                    self._vector_gradient(d_in, self.d_recurs[d], runs, self._part(d_in, operand))
                self._compute()
                self._recurring_backward(grads[d], t_grads[d], d, of_recurs[d], self._blocks(of_dR.get("R")))
                for where, vector in ((t_grads, self.h0), (grads, self.dh0)):
                    self._matrix_gradient(where[d], "R", R, d_in, _of(vector, d), self.tangent.of_h)
                if self.projects:
                    t_first[d] = self._vector_gradient(d_in, R, self.tangent.of_h)
                    first[d] = self._vector_gradient(d_in, tangents.get("R"), self.tangent.of_h)
        inputs = self.primal_tape, gy, g_state, d_values, grads
        columns, initial, of_recurs = self._run_backward(self.primal, *inputs)
        self.d_inputs = columns
        for d, weights in enumerate(self.weights):
            d_in, W, R = self._direction(columns, d), weights.get("W"), weights.get("R")
            gx = self._to_x(gx, d_in, d, W, self.primal)
            self._matrix_gradient(grads[d], "W", W, d_in, self.x, self.primal.of_x)
            self._compute()
            self._recurring_backward(grads[d], t_grads[d], d, of_recurs[d], None)
            self._matrix_gradient(grads[d], "R", R, d_in, _of(self.h0, d), self.primal.of_h)
            if self.projects:
                first[d] = self._vector_gradient(d_in, R, self.primal.of_h, first[d])
            self._compute()
            for where in (grads[d], t_grads[d]):
                if self.masks is not None and where.get("R") is not None:
                    where["R"] *= self.masks[d]
        if self.projects:
            pairs = zip((first, t_first), passed_on, strict=True)
            initial[0], t_initial[0] = (self._of_empty(self._of_first_steps(one), g) for one, g in pairs)
        gx, gtx = (None if one is None else one.reshape(self.T, self.B, -1) for one in (gx, gtx))
        return gx, initial, grads, gtx, t_initial, t_grads

    def _run_backward(self, recurrence, tape, gy, g_state, d_values, grads):
        """Run a recurrence's backward; return the gradients of its inputs (T*B, D*number*H), of its initial states, and
        of R by direction. Add gradients of biases to `grads`. d_values: gradients of the states but h of each step, or
        None for zero."""
        self._compute()
        stack, others = recurrence.stack, recurrence.others
        gy, h = (one if one is None else self.xp.ascontiguousarray(one) for one in (gy, g_state[0]))
        c = self._side_by_side(g_state[1:], others)
        d_values = d_values if d_values is None else d_values.reshape(self.T, self.B, -1)
        dx, dh, dc = stack.backward_data(tape, gy, h, c, NEW, ALL, d_values)
        states = [dh, *(private.split(dc, others) if others else [])][: self.own]
        of_recurs = recurrence.unload(tape.dw, self.recurs, self.weights, grads)
        return dx.reshape(self.T * self.B, -1), states, of_recurs

    def _to_x(self, gx, columns, d, W, recurrence):
        """Return the gradient of x, (T*B, I), added to `gx`."""
        if self.mode == "linear":
            return self._vector_gradient(columns, W, recurrence.of_x, gx)
        gx = self.xp.zeros(self.x.shape, self.dtype) if gx is None else gx
        for place, column in self._places_of_x(d, recurrence):
            self._part(gx, place)[...] += self._part(columns, column)
        return gx

    def _of_first_steps(self, first):
        """Return the gradient of the initial h, (D, B, P): the reverse of `_first_steps`."""
        if first[0] is None:
            return None
        return self.xp.stack([first[d][where] * there for d, where, there in self._first_places()])

    def _recurring_backward(self, grads, t_grads, d, g, tg):
        """Add the gradients of R and of its tangent, from those of the effective R, see `_recurring`."""
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
                    where["W_hr"] = _total(where.get("W_hr"), self._times(other, one, transpose_a=True))


# ---------------------------------------------------------------------------------------------------- small parts
def _total(*parts):
    """Return the sum of the parts that are not None; None if there are none."""
    parts = [part for part in parts if part is not None]
    return sum(parts[1:], parts[0]) if parts else None


def _of(by_direction, d):
    return None if by_direction is None else by_direction[d]


def _runs(pairs):
    """Return (first gate, first column, count) for each run of consecutive (gate, column) pairs."""
    runs = []
    for gate, column in sorted(pairs):
        if runs and (gate, column) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((gate, column, 1))
    return runs
