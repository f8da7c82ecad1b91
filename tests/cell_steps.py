"""A general cell's functions in a plain loop over time: NumPy arrays (B, H) where an engine has one unit's numbers.

One layer, one direction. Parameters have the layer's names without their ending: weight_ih (G*H, I), weight_hh
(A*H, H), bias_ih, bias_hh, and vectors (H,); a missing one is zero. See `numbarnn.cells.definition` for who does what.
"""

import numpy as np


def whole(values, like):
    """Arrays of one shape: a value that does not depend on the unit, such as 0, may be a number."""
    return tuple(np.broadcast_to(value, like.shape) for value in values)


class Steps:
    """The cell with its parameters; `forward`, then `backward`.

    outer       which gates of ah multiply h
    products    which gates of ah multiply each stage's vector
    """

    def __init__(self, cell, parameters, hidden):
        self.cell, self.parameters, self.hidden = cell, parameters, hidden
        self.products, first = [], cell.num_outer
        self.outer = slice(0, cell.num_outer)
        for stage in cell.stages:
            self.products.append(slice(first, first + len(stage.gates)))
            first += len(stage.gates)
        self.W = self.gates("weight_ih", cell.num_gates)
        self.R = self.gates("weight_hh", first)
        self.b_w, self.b_r = self.gates("bias_ih", cell.num_gates), self.gates("bias_hh", first)
        self.vectors = tuple(parameters[name] for name in cell.vectors)

    def gates(self, name, count):
        """A parameter as (gates, H, ...), or zeros."""
        found = self.parameters.get(name)
        return [0.0] * count if found is None else found.reshape(count, self.hidden, *found.shape[1:])

    def multiply(self, ah, vector, rows):
        """Fill in the gates of ah that multiply the vector."""
        for gate in range(rows.start, rows.stop):
            ah[gate] = vector @ self.R[gate].T + self.b_r[gate]

    def forward(self, x, states):
        """y (T, B, H) and the final states; x (T, B, I), states one (B, H) each."""
        cell, self.x, self.tape = self.cell, x, []
        states = tuple(states)
        for x_t in x:
            ax = tuple(x_t @ W.T + b for W, b in zip(self.W, self.b_w, strict=True))
            ah, inner = [None] * len(self.R), []
            self.multiply(ah, states[0], self.outer)
            for stage, rows in zip(cell.stages, self.products, strict=True):
                inner.append(stage.forward(ax, tuple(ah), states, self.vectors, (), ()))
                self.multiply(ah, inner[-1], rows)
            before, (states, saved) = states, cell.forward(ax, tuple(ah), states, self.vectors, (), ())
            states = whole(states, before[0])
            self.tape.append((before, states, saved, inner))
        return np.stack([step[1][0] for step in self.tape]), states

    def backward(self, dy, d_states):
        """dx, the initial states' gradients and those of the parameters by name."""
        cell, dx = self.cell, np.empty_like(self.x)
        dW, dR = [np.zeros_like(W) for W in self.W], [np.zeros_like(R) for R in self.R]
        db_w, db_r = [0.0] * len(self.W), [0.0] * len(self.R)
        d_vectors = [0.0] * len(self.vectors)
        for t in reversed(range(len(dy))):
            before, after, saved, inner = self.tape[t]
            d_states = (d_states[0] + dy[t], *d_states[1:])
            d_v, d_ah = [None] * len(cell.stages), [None] * len(self.R)
            for s in reversed(range(len(cell.stages))):
                arguments = saved, before, after, d_states, tuple(d_v), self.vectors, (), (), ()
                d_ah[self.products[s]] = whole(cell.stages[s].backward(*arguments), before[0])
                d_v[s] = sum(d_ah[gate] @ self.R[gate] for gate in range(len(self.R))[self.products[s]])
            found = cell.backward(saved, before, after, d_states, tuple(d_v), self.vectors, (), (), ())
            d_ax, d_ah[self.outer], d_before, d_own = (whole(part, before[0]) for part in found)
            from_h = sum(d_ah[gate] @ self.R[gate] for gate in range(len(self.R))[self.outer])
            d_states = (d_before[0] + from_h, *d_before[1:])
            dx[t] = sum(d @ W for d, W in zip(d_ax, self.W, strict=True))
            for gate, d in enumerate(d_ax):
                dW[gate] += d.T @ self.x[t]
                db_w[gate] += d.sum(axis=0)
            for rows, vector in zip([self.outer, *self.products], [before[0], *inner], strict=True):
                for gate in range(len(self.R))[rows]:
                    dR[gate] += d_ah[gate].T @ vector
                    db_r[gate] += d_ah[gate].sum(axis=0)
            d_vectors = [total + d.sum(axis=0) for total, d in zip(d_vectors, d_own, strict=True)]
        found = {"weight_ih": dW, "weight_hh": dR, "bias_ih": db_w, "bias_hh": db_r}
        gradients = {name: np.concatenate(d) for name, d in found.items() if name in self.parameters}
        return dx, d_states, gradients | dict(zip(cell.vectors, d_vectors, strict=True))
