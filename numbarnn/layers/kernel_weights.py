"""Provide the weights that kernels read: a stack's flat buffer of parameters, and weights derived from it."""

import copy

from numbarnn.weights.derived import DerivedWeights


class KernelWeights:
    """Finds the `ReadWeights` of a flat buffer; problem: any `Problem` of the stack."""

    def __init__(self, engine, problem):
        self.engine, self.problem = engine, problem
        gates = max(problem.cell.num_gates, problem.cell.num_ah)
        self.no_bias = engine.zeros(gates * max(problem.hidden_sizes), problem.dtype)  # in place of missing biases
        self._last = None  # the `ReadWeights` of the last flat buffer: what is derived of it takes long to prepare

    def of(self, flat):
        """Return the `ReadWeights` of a flat buffer that later calls use too."""
        last = self._last  # one read: another thread may change it
        if last is None or last.parameters is not flat:
            last = self._last = ReadWeights(self.engine, self.problem, self.no_bias, flat)
        return last


class ReadWeights:
    """The arrays that kernels read for one flat buffer of parameters.

    Attributes:
        parameters: the flat buffer. derived: a `DerivedWeights`; None if kernels read only the parameters.
        flat: the buffer that kernels read weights from: the parameters, or the buffer of `derived`.
    """

    def __init__(self, engine, problem, no_bias, parameters, allocate=None):
        self._of_stack, self.parameters, self.derived = (engine, problem, no_bias), parameters, None
        if problem.space.derived_size:
            options = problem.dtype, problem.weights_in_one, allocate
            self.derived = DerivedWeights(problem.space, engine, parameters, *options)
        self.flat = parameters if self.derived is None else self.derived.flat

    def arrays(self):
        """Return name of a program's buffer -> array."""
        apart = {} if self.derived is None else {"derived": self.derived.derived}
        return {"flat": self.flat, "no_bias": self._of_stack[-1]} | apart

    def derive(self):
        """Compute the derived weights, before a program runs, on the caller's stream."""
        if self.derived is not None:
            self.derived.derive()

    def pull_back(self, dw, d_derived, accumulate):
        """Turn gradients of derived weights into gradients of the parameters, after a program; see `DerivedWeights`."""
        self.derived.pull_back(dw, d_derived, accumulate)

    def of_copy(self, parameters, allocate=None):
        """Return the `ReadWeights` of another flat buffer, which belongs to one call."""
        return ReadWeights(*self._of_stack, parameters, allocate)

    def fixed(self):
        """Return these weights for the segments of a call, which do not derive again."""
        fixed = copy.copy(self)
        fixed.derive = lambda: None
        return fixed
