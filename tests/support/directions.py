"""A layer's calls along a line: what `jvp`, `hvp` and `backward` say of it, and what differences of calls say.

A point is (x, state, weights) as a layer takes them; so are its direction, its gradients and their derivative.
"""

import numpy as np


def mapped(function, *values):
    """Apply a function to arrays in tuples and lists; None stays None."""
    if isinstance(values[0], list | tuple):
        return type(values[0])(mapped(function, *parts) for parts in zip(*values, strict=True))
    return None if values[0] is None else function(*values)


def flat(value):
    """Everything in a value as one float64 vector."""
    if isinstance(value, list | tuple):
        return np.concatenate([flat(part) for part in value])
    return np.zeros(0) if value is None else np.asarray(value, np.float64).ravel()


def error(found, expected):
    """How far all of a value is from another, relative to its largest number, or to 1."""
    found, expected = flat(found), flat(expected)
    assert found.shape == expected.shape
    return np.abs(found - expected).max() / (1 + np.abs(expected).max())


def positive(line):
    """Give cells states that suit them: slstm divides by its third one; phased_lstm counts steps in it."""
    parts = {"slstm": range(len(line.layer.hidden_sizes)), "phased_lstm": range(1)}.get(line.layer.cell, ())
    for part in parts:
        state, tangent = (one[2][part] if isinstance(one[2], list) else one[2] for one in (line.state, line.dstate))
        state[...] = 1 + np.abs(state)
        if line.layer.cell == "phased_lstm":
            state[...], tangent[...] = 3, 0


class Line:
    """A layer, a point and a direction at random, and gradients dL/dy, dL/dstate that change along it.

    Args:
        adjust: function of the line that changes its state as a cell needs it.
        about: lengths, resets of the calls.
    """

    def __init__(self, layer, steps=4, batch=2, training=False, adjust=None, seed=0, **about):
        self.layer, self.training, self.about, rng = layer, training, about, np.random.default_rng(seed)

        def drawn(like):
            return rng.standard_normal(np.shape(like)).astype(layer.weights.dtype)

        shape = (batch, steps) if layer.batch_first else (steps, batch)
        x = drawn(np.empty((*shape, layer.input_size)))
        y, state = layer(x)
        self.x, self.state, self.weights = x, mapped(drawn, state), layer.weights.copy()
        self.dx, self.dstate, self.dweights = drawn(x), mapped(drawn, state), drawn(self.weights)
        if adjust is not None:
            adjust(self)
        self.dy, self.ddy = drawn(y), drawn(y)
        self.of_state, self.dd_state = mapped(drawn, state), mapped(drawn, state)
        self.calls = layer.training_calls

    def moved(self, step):
        """Move the weights along the line, and return x and the state there."""
        self.layer.weights[...] = self.weights + step * self.dweights
        self.layer.training_calls = self.calls
        move = lambda at, along: at + at.dtype.type(step) * along  # noqa: E731
        return mapped(move, self.x, self.dx), mapped(move, self.state, self.dstate)

    def results(self, step=0.0):
        """(y, the final state) of a call at a point of the line."""
        x, state = self.moved(step)
        call = self.layer.forward if self.training else self.layer
        return call(x, state, **self.about)[:2]

    def gradients(self, step=0.0):
        """What `backward` returns there."""
        *_, tape = self.layer.forward(*self.moved(step), **self.about)
        move = lambda at, along: at + at.dtype.type(step) * along  # noqa: E731
        found = self.layer.backward(tape, mapped(move, self.dy, self.ddy), mapped(move, self.of_state, self.dd_state))
        return found.x, found.state, found.weights

    def jvp(self):
        """((y, the final state), their tangents, the tape)."""
        x, state = self.moved(0.0)
        y, dy, final, d_final, tape = self.layer.jvp(
            x, self.dx, state, self.dstate, weights=self.dweights, training=self.training, tape=True, **self.about
        )
        return (y, final), (dy, d_final), tape

    def hvp(self, tape):
        """The gradients, and their derivative in the direction."""
        both = self.layer.hvp(tape, self.dy, self.of_state, ddy=self.ddy, ddstate=self.dd_state)
        return [(one.x, one.state, one.weights) for one in both]

    def errors(self, size=1e-6):
        """How far jvp and hvp are from calls, from `backward`, and from central differences of these."""
        results, tangents, tape = self.jvp()
        gradients, second = self.hvp(tape)
        slopes = [(flat(of(size)) - flat(of(-size))) / (2 * size) for of in (self.results, self.gradients)]
        expected = self.results(), slopes[0], self.gradients(), slopes[1]
        return [error(*pair) for pair in zip((results, tangents, gradients, second), expected, strict=True)]
